"""The cache of compiled kernels: a second process compiles nothing, and one call compiles all that a run needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant.stats._jit import cache_is_writable

TESTS = Path(__file__).parent


def needed(folder: Path) -> dict[str, list[str]]:
    """What a new process had to compile for its runs, and which kernels it called beyond `compile_kernels`."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    environment.pop("NUMBA_DISABLE_JIT", None)
    script = [sys.executable, str(TESTS / "compiled_kernels.py"), str(folder)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not cache_is_writable(), reason="no place for a cache is writable here")
def test_a_second_process_compiles_nothing_and_the_warm_up_calls_every_kernel(tmp_path):
    needed(tmp_path / "first")
    assert needed(tmp_path / "second") == {"beyond": [], "compiled": []}
