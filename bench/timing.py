"""Side by side timing: both contestants alternate in one process, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """Milliseconds of one contestant."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest, relative to the median."""
        return (max(self.milliseconds) - min(self.milliseconds)) / 2 / self.median

    def __str__(self) -> str:
        return f"{self.median:.2f} ± {self.spread:.0%}"


def measure(works: list[Work], repeats: int) -> list[Sample]:
    """Time the works in turn, after one untimed round that compiles and warms."""
    for work in works:
        work()
    rounds = [[_milliseconds(work) for work in works] for _ in range(repeats)]
    return [Sample(tuple(column)) for column in zip(*rounds, strict=True)]


def _milliseconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3
