"""The cache of compiled kernels: a second process compiles nothing, and one call compiles all that a run needs."""

import json
import os
import shutil
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


def stamp_of(folder: Path) -> str:
    """The stamp that the name of a kernel bears in a copy of the package."""
    code = "from calibrant.stats._orders import order_values; print(order_values.__qualname__)"
    environment = os.environ | {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    environment.pop("NUMBA_DISABLE_JIT", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_change_of_any_kernel_compiles_all_of_them_anew(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TESTS.parent / "calibrant", tmp_path / "calibrant", ignore=ignored)
    first, again = stamp_of(tmp_path), stamp_of(tmp_path)
    assert first == again
    with (tmp_path / "calibrant/quantizers/_kernels.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert stamp_of(tmp_path) != first
