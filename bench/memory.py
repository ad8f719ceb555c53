"""Peak memory of a capture, each in a process of its own, against onnxruntime's run of the exposing session."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from bench import bars
from bench.captures import BATCH, Subject, subjects
from bench.contest import Case, Contest, Figure, Medians, Reading, Setting, Work, over

ROOT: Final = Path(__file__).resolve().parents[1]
PEAK: Final = """
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""  # not ru_maxrss: a process that another one starts inherits that one's
CAPTURE: Final = """
import sys, calibrant
model, samples, run = sys.argv[1:]
calibrant.capture(model, samples, run=run, keep="stats", batch_size={batch}, restart=True)
"""
EXPOSE: Final = """
import sys, numpy as np
from pathlib import Path
from bench import rivals
model, samples = sys.argv[1:]
with np.load(samples) as file:
    arrays = dict(file)
rivals.infer(Path(model), arrays, {batch})
"""


def peak(program: str, *arguments: Path) -> Work:
    """Return a reading of the megabytes that a program holds at most; the kernel counts kilobytes."""
    command = [sys.executable, "-c", program.format(batch=BATCH) + PEAK, *map(str, arguments)]

    def reading() -> Reading:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return Reading(int(done.stdout.split()[-1]) / 1024)

    return reading


def against_exposing(one: Subject) -> Contest:
    short, long = (_repeated(one, batches) for batches in (4, 32))
    works = {
        "calibrant": peak(CAPTURE, one.model, short, one.folder / "peak.run"),
        "calibrant, 32 batches": peak(CAPTURE, one.model, long, one.folder / "peak.run"),
        "exposing": peak(EXPOSE, one.exposing, short),
    }
    return Contest(works, threads=2)


def _repeated(one: Subject, batches: int) -> Path:
    path = one.folder / f"{batches}-batches.npz"
    np.savez(path, **{name: np.resize(a, (batches * BATCH, *a.shape[1:])) for name, a in one.arrays.items()})
    return path


def without_allowance(readings: Medians) -> float:
    return (readings["calibrant"] - bars.MEMORY_MB) / readings["exposing"]


FIGURES: Final = (
    Figure(f"peak less {bars.MEMORY_MB} MB, times the exposing session", without_allowance, bar=bars.MEMORY),
    Figure("peak of 32 batches, times that of 4", over("calibrant, 32 batches", "calibrant"), bar=bars.FLAT),
)


def cases(setting: Setting) -> Iterator[Case]:
    for name, one in subjects(setting).items():
        yield Case(f"memory/{name}", lambda _, one=one: against_exposing(one()), FIGURES, rounds=2, warm=False)
