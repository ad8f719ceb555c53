"""Side by side measurement: contestants alternate in one process, so that a busy machine slows all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.bars import Bar

Work = Callable[
    [], object
]  # a float that it returns is its reading (milliseconds or megabytes); anything else is timed


class Reading(NamedTuple):
    """What a contestant measured itself: milliseconds, megabytes or a number."""

    value: float


Work = Callable[[], object]  # timed, unless it returns a Reading
Medians = Mapping[str, float]

FLOOR_BYTES: Final = 1 << 28  # as much is read to measure how fast np.max reads


@dataclass(frozen=True)
class Setting:
    """What a run of the bench is told.

    Attributes:
        size: share of the full inputs; bars hold at 1.
        folder: for files, emptied when the bench ends.
        models: (model, data) of the real models, may be empty.
        rounds: timed rounds of every case, or None for the case's own.
    """

    size: float
    folder: Path
    models: tuple[tuple[Path, Path], ...] = ()
    rounds: int | None = None

    def scaled(self, count: float, least: int = 1) -> int:
        """Return this share of a count."""
        return max(int(count * self.size), least)


@dataclass(frozen=True)
class Figure:
    """A number that contestants' readings of one round give.

    Attributes:
        name: what it says, e.g. ``times np.max``.
        of: computes it.
        unit: ``x`` for a ratio, else ``ms``, ``s``, ``MB`` or nothing.
        bar: the promise, or None.
    """

    name: str
    of: Callable[[Medians], float]
    unit: str = "x"
    bar: Bar | None = None


@dataclass(frozen=True)
class Contest:
    """What is measured.

    Attributes:
        works: by name, calibrant's first.
        moved: bytes that must be read at least.
        threads: how many calibrant's work uses.
    """

    works: Mapping[str, Work]
    moved: int = 0
    threads: int = 1


@dataclass(frozen=True)
class Case:
    """A contest to be prepared, and its figures.

    Attributes:
        name: ``family/what/…``, unique.
        prepare: makes inputs and contestants.
        figures: what comes of it.
        rounds: timed rounds.
        warm: whether an untimed round compiles and fills caches first.
    """

    name: str
    prepare: Callable[[Setting], Contest]
    figures: tuple[Figure, ...]
    rounds: int = 5
    warm: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a case measured.

    Attributes:
        name: of the case.
        readings: of each contestant, one a round: milliseconds, or megabytes where a figure is of memory.
        values: of each figure, one a round.
        moved: bytes that must be read at least.
        floor_ms: how long np.max takes to read as much, or None.
        threads: that calibrant's work used.
        figures: the figures themselves.
    """

    name: str
    readings: Mapping[str, tuple[float, ...]]
    values: tuple[tuple[float, ...], ...]
    moved: int
    floor_ms: float | None
    threads: int
    figures: tuple[Figure, ...] = field(repr=False)

    def median(self, index: int) -> float:
        """Return the median of a figure over the rounds."""
        return statistics.median(self.values[index])

    def missed(self) -> list[int]:
        """Return the figures that miss their bar."""
        return [i for i, one in enumerate(self.figures) if one.bar is not None and not one.bar.is_met(self.median(i))]


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the least and the greatest, relative to the median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / 2 / abs(middle) if middle else 0.0


def run(case: Case, setting: Setting) -> Outcome:
    """Prepare a case and measure it."""
    contest = case.prepare(setting)
    names = list(contest.works)
    if case.warm:
        for work in contest.works.values():
            work()
    rounds = [[_reading(work) for work in contest.works.values()] for _ in range(setting.rounds or case.rounds)]
    by_name = [dict(zip(names, readings, strict=True)) for readings in rounds]
    values = tuple(tuple(figure.of(readings) for readings in by_name) for figure in case.figures)
    columns = {name: tuple(readings[name] for readings in by_name) for name in names}
    floor = _floor_ms(contest.moved) if contest.moved else None
    return Outcome(case.name, columns, values, contest.moved, floor, contest.threads, case.figures)


def _reading(work: Work) -> float:
    start = time.perf_counter()
    result = work()
    return result.value if isinstance(result, Reading) else (time.perf_counter() - start) * 1e3


def _floor_ms(moved: int) -> float:
    """Return how long np.max takes to read so many bytes: measured on at most FLOOR_BYTES, best of three."""
    values = np.ones(max(min(moved, FLOOR_BYTES) // 4, 1), np.float32)
    best = min(_reading(values.max) for _ in range(3))
    return best * moved / values.nbytes


def per(work: Work, count: int) -> Work:
    """Return the reading of one of `count` equal parts of a work."""
    return lambda: Reading(_reading(work) / count)


def over(ours: str, theirs: str) -> Callable[[Medians], float]:
    """Return the figure ours / theirs."""
    return lambda readings: readings[ours] / readings[theirs]


def alone(ours: str) -> Callable[[Medians], float]:
    """Return the reading itself."""
    return lambda readings: readings[ours]
