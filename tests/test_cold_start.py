"""What a process loads before it works: no command's help, and no import of the package, opens a heavy library."""

import json
import subprocess
import sys

import pytest

HEAVY = [
    "altair", "duckdb", "google.protobuf", "numba", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "polars",
    "prompt_toolkit", "pyarrow", "rich", "torch", "vl_convert",
]  # fmt: skip

HELP = """
import contextlib, io, json, sys
import typer
from calibrant.cli.app import app

def paths(command, path):
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, [*path, name])

loaded = {}
for path in paths(typer.main.get_command(app), []):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        with contextlib.suppress(SystemExit):
            app(args=[*path, "--help"], prog_name="calibrant")
    assert "Usage: calibrant" in text.getvalue(), path
    loaded[" ".join(path)] = [name for name in HEAVY if name in sys.modules]
print(json.dumps(loaded))
"""


def output_of(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_no_help_of_any_command_loads_a_heavy_library():
    loaded = json.loads(output_of(f"HEAVY = {HEAVY!r}\n{HELP}"))
    assert {"", "run", "fit", "config", "config check"} <= set(loaded)
    assert {command: names for command, names in loaded.items() if names} == {}


@pytest.mark.parametrize("names", ["", "from calibrant import CalibrantError;"])
def test_the_package_loads_nothing_heavy(names):
    code = f"import sys, calibrant; {names} print([name for name in {HEAVY!r} if name in sys.modules])"
    assert output_of(code).strip() == "[]"


def test_the_package_takes_little_from_the_standard_library():
    """What `import calibrant` adds to dataclasses, pathlib and typing is the package itself."""
    code = "import sys, dataclasses, pathlib, typing; known = set(sys.modules); import calibrant; print(sorted(set(sys.modules) - known))"
    assert all(name.startswith("calibrant") for name in eval(output_of(code)))
