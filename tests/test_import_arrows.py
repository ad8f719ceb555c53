"""The contracts of pyproject.toml hold: imports point one way, each library has one home."""

import subprocess
import sys
from pathlib import Path


def test_imports_point_one_way():
    root = Path(__file__).resolve().parents[1]
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "0 broken" in done.stdout
