"""The bars: what the figures must be at full size on two free cores."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Bar:
    """A limit of a figure.

    Attributes:
        limit: in the unit of the figure.
        at_most: whether the figure must not be above it; else it must not be below.
    """

    limit: float
    at_most: bool = True

    def is_met(self, value: float) -> bool:
        """Return whether a figure keeps the promise."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


def at_most(limit: float) -> Bar:
    return Bar(limit)


def at_least(limit: float) -> Bar:
    return Bar(limit, at_most=False)


HISTOGRAM: Final = {  # 64 M values, one thread, times np.max
    "gaussian": at_most(4.5),
    "relu, 90 % zeros": at_most(4),
    "two alternating constants": at_most(4),
    "blocks of constants": at_most(4),
    "uniform bits": at_most(16),
}
HISTOGRAM_TWO_THREADS: Final = at_most(3)  # Gaussian
SMALL_TENSOR_MS: Final = at_most(0.2)  # 10,000 values
IFMR_MS: Final = at_most(15)  # from 100,000 bins
HFMG_MS: Final = at_most(10)
FIFTY_LAYERS_S: Final = at_most(1.5)  # both searches
IFMR_FASTER: Final = at_least(50)  # from 8 M values, than 61 numpy passes in place
EXACT_PASSES: Final = at_most(2)  # histogram passes that exact mode adds at 8 bits and a million values
EXACT_FASTER: Final = at_least(2)  # than 61 numpy passes in place, where the bins rule out none
ARQ: Final = at_most(3)  # 25 M weights, times np.abs(w).max()
CAPTURE: Final = at_most(1.8)  # times the session that exposes the same tensors
CAPTURE_ENTROPY: Final = at_least(10)  # times faster than quantize_static
CAPTURE_MINMAX: Final = at_least(3)
RAW: Final = at_most(2)  # what --keep raw adds, times np.save of the same arrays
STATS: Final = at_most(1.5)  # times pyarrow.dataset and the maximum
MEMORY: Final = at_most(1.3)  # peak less 256 MB, times that of the exposing session
MEMORY_MB: Final = 256
FLAT: Final = at_most(1.1)  # peak of 32 batches over that of 4
REPORT_MS: Final = at_most(150)  # 1,000 layers, ten fits
HELP: Final = at_most(2)  # times import typer
IMPORT: Final = at_most(1.5)  # times import dataclasses, pathlib, typing
COMPILE_S: Final = at_most(20)
COMPILED_WARM: Final = at_most(0)  # kernels that a second process compiles
