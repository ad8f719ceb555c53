"""Every public name is importable, in `__all__`, and heavy libraries stay away until they are used."""

import importlib
import importlib.util
import pkgutil
import subprocess
import sys

import pytest

import calibrant

HEAVY = (
    "altair",
    "duckdb",
    "numba",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "polars",
    "prompt_toolkit",
    "pyarrow",
    "rich",
    "google.protobuf",
    "torch",
    "vl_convert",
)


@pytest.mark.parametrize("name", calibrant.__all__)
def test_public_names_exist_and_are_documented(name):
    value = getattr(calibrant, name)
    assert callable(value)
    assert value.__doc__


@pytest.mark.parametrize("room", ["quantizers", "stats", "proto"])
def test_all_lists_only_what_is_there(room):
    module = importlib.import_module(f"calibrant.{room}")
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'calibrant' has no attribute 'calibrate'"):
        _ = calibrant.calibrate


def test_export_is_a_function_even_after_its_package_was_imported(tmp_path):
    importlib.import_module("calibrant.export.files")
    with pytest.raises(calibrant.CalibrantError, match="no such folder"):
        calibrant.export(tmp_path / "missing.run")


def test_every_module_imports_and_has_a_docstring():
    names = [info.name for info in pkgutil.walk_packages(calibrant.__path__, "calibrant.")]
    if importlib.util.find_spec("torch") is None:
        names = [name for name in names if not name.startswith("calibrant.quantizers.qat")]
    for name in names:
        if not name.endswith("_pb2") and name != "calibrant.__main__":
            assert importlib.import_module(name).__doc__, name


@pytest.mark.parametrize(
    "statement",
    [
        "import calibrant",
        "import calibrant.cli.app",
        "import calibrant.quantizers, calibrant.proto",
        "import calibrant.amct",
    ],
)
def test_importing_loads_nothing_heavy(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    allowed = {"[]"} | ({"['numba']"} if "quantizers" in statement else set())
    assert done.stdout.strip() in allowed


def test_a_fit_loads_no_graph_library():
    code = "import sys, calibrant.calibration; print('onnx_ir' in sys.modules, 'onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
