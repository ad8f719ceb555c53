"""Training is an extra: without PyTorch everything else works, and what needs it says what to install."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

BLOCKED = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] == "torch" else found(name, *rest)
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import calibrant, calibrant.amct
"""


def without_torch(statement):
    return subprocess.run([sys.executable, "-c", BLOCKED + statement], capture_output=True, text=True)


@pytest.mark.parametrize(
    "name", ["create_quant_retrain_config", "create_quant_retrain_model", "restore_quant_retrain_model"]
)
def test_without_it_the_functions_name_the_extra(name):
    done = without_torch(f"calibrant.amct.{name}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "calibrant.errors.DependencyError: quantization-aware training needs PyTorch, which is not installed; "
        "pip install 'calibrant[qat]' (see docs/qat.md)"
    )


def test_saving_names_it_too_and_the_error_is_one_of_ours_and_of_import():
    code = """
try:
    calibrant.amct.save_quant_retrain_model("c.json", None, "r.txt", "out/m", None)
except calibrant.CalibrantError as error:
    print(isinstance(error, ImportError), "calibrant[qat]" in str(error))
"""
    assert without_torch(code).stdout.split() == ["True", "True"]


def test_without_it_the_rest_works():
    code = "from calibrant.quantizers import fit_ulq, UlqOptions; print(int(fit_ulq(3.0, -1.0, UlqOptions()).offset))"
    assert without_torch(code).stdout.split() == ["-64"]


def test_training_loads_it_only_when_it_is_asked_for():
    code = "import sys, calibrant.qat_export, calibrant.amct, calibrant.trained_fit; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install '.[qat]'")
def test_with_it_amct_s_import_line_works():
    code = (
        "from calibrant.amct import (create_quant_retrain_config, create_quant_retrain_model, restore_quant_retrain_model, "
        "save_quant_retrain_model); print(create_quant_retrain_model.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["create_quant_retrain_model"]
