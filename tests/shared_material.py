"""Material that may stand beside the checkout: trained models, real inputs, AMCT's vectors. Tests that need it skip where it is absent."""

import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

needs_shared = pytest.mark.skipif(
    not (SHARED / "models" / "onnx").is_dir(), reason="the shared models and vectors do not stand beside the checkout"
)


def shared_model(name: str) -> Path:
    """Path of a model, named without its ending: ``shared_model("mnist_vit")``."""
    return SHARED / "models" / "onnx" / f"{name}.onnx"


def shared_inputs(folder: Path) -> Path:
    """Write the inputs of all shared models as ``<model>.npz`` and ``<model>.eval.npz`` into `folder` and return it."""
    script = SHARED / "tools" / "inputs.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, text=True)
    return folder
