"""The kernels as plain Python: the same answers with the jit off, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kernel_answers
import pytest


@pytest.mark.slow
def test_kernels_give_equal_answers_with_the_jit_off():
    tests = Path(__file__).parent
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    script = str(tests / "kernel_answers.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, compiled = json.loads(done.stdout), kernel_answers.answers()
    assert plain.keys() == compiled.keys()
    for name, answer in compiled.items():
        assert plain[name] == answer, name
