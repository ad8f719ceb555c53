"""The options of the fits: frozen, validated when they are built, free of heavy imports.

Defaults and valid ranges are AMCT's (docs/algorithms.md 14). A wrong value is one line: the field, the value, what is valid.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NoReturn, TypeGuard

from calibrant.errors import ConfigError

DATA_BITS: Final = (4, 8, 16)
WEIGHT_BITS: Final = (4, 6, 7, 8)
HISTOGRAM_SIZES: Final = (1024, 2048, 4096, 8192)
NUQ_STEPS: Final = (16, 32)
NUQ_ITERATIONS: Final = tuple(range(6))
CANDIDATES_ALLOWED: Final = 100_000  # a mistyped search_step must not run for hours


@dataclass(frozen=True)
class IfmrOptions:
    """Options of the search for an activation's range.

    Attributes:
        bits: width of a code: 4, 8 or 16.
        asymmetric: whether codes have an offset.
        max_percentile: the share of values, in (0.5, 1], that the initial upper end covers.
        min_percentile: the same for the lower end.
        search_range: the least and greatest multiple of the initial upper end that is tried; 0 < first < second.
        search_step: distance between multiples; above 0 and at most the width of `search_range`.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> IfmrOptions(bits=16).search_range
        (0.7, 1.3)
    """

    bits: int = 8
    asymmetric: bool = True
    max_percentile: float = 0.999999
    min_percentile: float = 0.999999
    search_range: tuple[float, float] = (0.7, 1.3)
    search_step: float = 0.01

    def __post_init__(self) -> None:
        _require_choice("bits", self.bits, DATA_BITS)
        _require_bool("asymmetric", self.asymmetric)
        _require_percentile("max_percentile", self.max_percentile)
        _require_percentile("min_percentile", self.min_percentile)
        _require_search(self.search_range, self.search_step)

    def number_of_candidates(self) -> int:
        """Return how many multiples the search tries: ``ceil((end - start) / step)`` in float64, as numpy's arange counts."""
        start, end = self.search_range
        return math.ceil((end - start) / self.search_step)


@dataclass(frozen=True)
class HfmgOptions:
    """Options of the fit from a histogram of equal bins.

    Attributes:
        bits: width of a code: 4, 8 or 16.
        asymmetric: whether codes have an offset.
        num_of_bins: 1024, 2048, 4096 or 8192.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> HfmgOptions().num_of_bins
        4096
    """

    bits: int = 8
    asymmetric: bool = True
    num_of_bins: int = 4096

    def __post_init__(self) -> None:
        _require_choice("bits", self.bits, DATA_BITS)
        _require_bool("asymmetric", self.asymmetric)
        _require_choice("num_of_bins", self.num_of_bins, HISTOGRAM_SIZES)


@dataclass(frozen=True)
class ArqOptions:
    """Options of the fit of a weight.

    Attributes:
        bits: width of a code: 4, 6, 7 or 8.
        channel_wise: one scale for each entry of axis 0 rather than one for the whole weight.
        asymmetric: whether codes have an offset; AMCT's deployed weights never have.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> ArqOptions(bits=4).channel_wise
        True
    """

    bits: int = 8
    channel_wise: bool = True
    asymmetric: bool = False

    def __post_init__(self) -> None:
        _require_choice("bits", self.bits, WEIGHT_BITS)
        _require_bool("channel_wise", self.channel_wise)
        _require_bool("asymmetric", self.asymmetric)


@dataclass(frozen=True)
class UlqOptions:
    """Options of an activation whose clip ends training learns.

    Attributes:
        bits: width of a code: 4, 8 or 16.
        asymmetric: whether codes have an offset.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> UlqOptions().bits
        8
    """

    bits: int = 8
    asymmetric: bool = True

    def __post_init__(self) -> None:
        _require_choice("bits", self.bits, DATA_BITS)
        _require_bool("asymmetric", self.asymmetric)


@dataclass(frozen=True)
class DmqOptions:
    """Options of the balance between activations and weights.

    Attributes:
        migration_strength: how much of the difficulty moves to the weights: a float in [0.2, 0.8].

    Raises:
        ConfigError: the strength is no float or out of its range.

    Example:
        >>> DmqOptions().migration_strength
        0.5
    """

    migration_strength: float = 0.5

    def __post_init__(self) -> None:
        _require_strength(self.migration_strength)


@dataclass(frozen=True)
class NuqOptions:
    """Options of the choice of a quantized weight's levels.

    Attributes:
        num_steps: how many of the 256 levels stay: 16 or 32.
        num_of_iteration: 0 to 5; 0 places them by quantiles and one pass of Lloyd's, any other finds the best ones.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> NuqOptions().num_steps
        32
    """

    num_steps: int = 32
    num_of_iteration: int = 1

    def __post_init__(self) -> None:
        _require_choice("num_steps", self.num_steps, NUQ_STEPS)
        _require_choice("num_of_iteration", self.num_of_iteration, NUQ_ITERATIONS)


def _refuse(field: str, value: object, valid: str) -> NoReturn:
    message = f"{field} is {value!r}, but must be {valid}"
    raise ConfigError(message)


def _require_choice(field: str, value: object, choices: Collection[int]) -> None:
    if isinstance(value, bool) or value not in choices:
        _refuse(field, value, "one of " + ", ".join(map(str, choices)))


def _require_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(field, value, "True or False")


def _is_finite_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_percentile(field: str, value: object) -> None:
    if not _is_finite_number(value) or not 0.5 < value <= 1.0:
        _refuse(field, value, "greater than 0.5 and at most 1.0")


def _require_strength(value: object) -> None:
    if not isinstance(value, float) or not 0.2 <= value <= 0.8:
        _refuse("migration_strength", value, "a float from 0.2 to 0.8")


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_finite_number, value))


def _require_search(search_range: tuple[float, float], step: float) -> None:
    if not _is_pair(search_range) or not 0 < search_range[0] < search_range[1]:
        _refuse("search_range", search_range, "a tuple of two numbers with 0 < first < second")
    if not _is_finite_number(step):
        _refuse("search_step", step, "a number")
    width = Decimal(str(search_range[1])) - Decimal(str(search_range[0]))  # 1.3 - 0.7 is no 0.6 in binary
    if not 0 < Decimal(str(step)) <= width:
        _refuse("search_step", step, f"above 0 and at most the width of search_range, {width}")
    if width / Decimal(str(step)) > CANDIDATES_ALLOWED:
        _refuse("search_step", step, f"wide enough for at most {CANDIDATES_ALLOWED} candidates in {search_range}")
