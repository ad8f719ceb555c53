"""What a process costs before it works: imports, help, and the compilation of the kernels."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import bars
from bench.captures import Subject, subjects
from bench.contest import Case, Contest, Figure, Medians, Reading, Setting, Work, over, per

ROOT: Final = Path(__file__).resolve().parents[1]
HELP: Final = ("-m", "calibrant", "--help")
RUN: Final = "import sys, calibrant; calibrant.run(sys.argv[1], sys.argv[2], run=sys.argv[3], restart=True)"


def process(*arguments: str) -> Work:
    """Return a Python process to be timed."""
    return lambda: subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def help_text(_: Setting) -> Contest:
    return Contest({"calibrant --help": process(*HELP), "import typer": process("-c", "import typer")})


def import_alone(_: Setting) -> Contest:
    standard = process("-c", "import dataclasses, pathlib, typing")
    return Contest({"import calibrant": process("-c", "import calibrant"), "standard": standard})


def first_run(one: Subject) -> Contest:
    """A run in an environment without compiled kernels, and a second one; then how many kernels that one compiled."""
    cache = Path(tempfile.mkdtemp(dir=one.folder))
    command = [sys.executable, "-c", RUN, str(one.model), str(one.samples), str(one.folder / "cold.run")]

    def start() -> None:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)

    def cold() -> None:
        for file in cache.rglob("*.nb?"):
            file.unlink()
        start()

    def warm() -> Reading:
        before = _compiled(cache)
        reading = per(start, 1)()
        compiled.append(_compiled(cache) - before)
        return reading

    compiled: list[int] = []
    works = {
        "first run": cold,
        "second run": warm,
        "compiled by the second": lambda: Reading(compiled[-1]),
    }
    return Contest(works, threads=2)


def _compiled(cache: Path) -> int:
    return len(list(cache.rglob("*.nbc")))


def compilation(readings: Medians) -> float:
    return (readings["first run"] - readings["second run"]) / 1e3


def cases(setting: Setting) -> Iterator[Case]:
    times = Figure("times import typer", over("calibrant --help", "import typer"), bar=bars.HELP)
    yield Case("cold start/calibrant --help", help_text, (times,), 9)
    times = Figure("times import dataclasses, pathlib, typing", over("import calibrant", "standard"), bar=bars.IMPORT)
    yield Case("cold start/import calibrant", import_alone, (times,), 9)
    compiling = Figure("seconds of compilation", compilation, "s", bars.COMPILE_S)
    compiled = Figure(
        "kernels compiled by the second run",
        lambda readings: readings["compiled by the second"],
        "",
        bars.COMPILED_WARM,
    )
    name, one = next(iter(subjects(setting).items()))
    yield Case(f"cold start/first run of {name}", lambda _: first_run(one()), (compiling, compiled), 1, warm=False)
