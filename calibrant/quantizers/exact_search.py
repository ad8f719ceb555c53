"""IFMR's search on raw values: the brute-force answer without judging every candidate on every value.

Three filters, each of which drops only candidates that are proven to lose; what is left is summed exactly.

1. The distance of a value to a candidate's grid changes no faster than the value. So the root of a candidate's summed squared error
   is within ``sqrt(sum count * width**2 / 3)`` of that of values spread evenly over the bins, whatever the candidate (Minkowski).
2. The difference of two candidates' squared errors changes with the value by twice the distance of their grid values, so their summed
   difference is known to ``sum count * width * distance`` without a look at the values.
3. Where more than three are left, a pass over the values sums them in float32, which is four times as fast and whose rounding is bounded.

The last pass holds no value back, so captures larger than memory stream through. Its sums are exact on fixed grids: the order of the
values changes nothing.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, SchemaError
from calibrant.quantizers._value_kernels import add_rough_losses, add_value_losses, spread_sums, weighted_distance
from calibrant.quantizers.affine import FLT_EPSILON, Float32Array, Float64Array, FloatArray
from calibrant.quantizers.grid import Grid, code_limits
from calibrant.stats.histogram import Bins, LogLinearHistogram

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

NUMERIC: Final = 1e-6  # more than the rounding of an integral over 150,000 bins, relative to it and to n * scale**2
ROUNDING: Final = 2.0**-22  # more than float32's rounding of x / s, q * s and q * s - x together, relative to |x| + s
ROUGH: Final = 40 * 2.0**-24  # more than the float32 roundings that a sum of a block passes through
ROUGH_REACH: Final = 1e18  # beyond it a square may leave float32
TINY: Final = 1e-37  # more than what a square loses that is no normal float32
BEHIND: Final = 1e-12  # how far at least a beaten candidate's loss is shown behind the best one's
FEW: Final = 3  # so many candidates cost less to sum exactly than a second reading of the values (measured)


class Judged(NamedTuple):
    """Losses of all candidates.

    Attributes:
        losses: shape (K,), sums over the raw values where `evaluated`, elsewhere those of the histogram, kept above the least sum.
        evaluated: shape (K,), which candidates were summed over the raw values.
    """

    losses: Float64Array
    evaluated: Flags


def blocks_of(values: FloatArray | Iterable[FloatArray]) -> Iterable[FloatArray]:
    """Return the values as an iterable of arrays; one array is one block."""
    return [values] if isinstance(values, np.ndarray) else values


def raw_losses(
    histogram: LogLinearHistogram, bins: Bins, grid: Grid, losses: Float64Array, blocks: Iterable[FloatArray]
) -> Judged:
    """Sum every candidate that might be best over the raw values.

    Args:
        histogram: of the values.
        bins: the histogram's.
        grid: the candidates.
        losses: shape (K,), of the candidates on the histogram.
        blocks: the values; read twice where the bins leave more than FEW candidates, else once.

    Raises:
        DataError: the values are not those of the histogram.
        SchemaError: a block is neither float32 nor float16.
    """
    chosen, twins = _distinct(grid, survivors(bins, grid, losses))
    if chosen.size > FEW and _reach(histogram) < ROUGH_REACH:
        rough = rough_losses(histogram, grid.take(chosen), blocks)
        chosen = chosen[rough * (1 - ROUGH) <= rough.min() * (1 + ROUGH) + 2 * histogram.n * TINY]
    exact = value_losses(histogram, grid.take(chosen), blocks)
    found = dict(zip(chosen.tolist(), exact.tolist(), strict=True))
    least = exact.min() * (1 + BEHIND) + 1e-300
    result = np.maximum(losses, least)  # what is not summed is proven worse, whatever the histogram made of it
    evaluated = np.zeros(losses.size, np.bool_)
    for candidate, twin in twins.items():
        if twin in found:
            result[candidate], evaluated[candidate] = found[twin], True
    return Judged(result, evaluated)


def _distinct(grid: Grid, chosen: Indices) -> tuple[Indices, dict[int, int]]:
    """Return the first of each set of equal candidates, and which one stands for each: those of a tensor of zeros are all equal."""
    first: dict[tuple[float, float, float], int] = {}
    twins = {
        i: first.setdefault((float(grid.clip_min[i]), float(grid.clip_max[i]), float(grid.scale[i])), i)
        for i in map(int, chosen)
    }
    return np.fromiter(first.values(), np.intp), twins


def survivors(bins: Bins, grid: Grid, losses: Float64Array) -> Indices:
    """Return the candidates that the bins do not prove worse than another, given their losses on the histogram."""
    spread = Spread.of(bins)
    least, greatest = bounds(spread, grid, losses)
    left = np.flatnonzero(least <= greatest.min())
    rival = int(left[np.argmin(losses[left])])
    beaten = (int(i) != rival and _is_beaten(spread, grid, losses, int(i), rival) for i in left)
    return np.array([i for i, lost in zip(left, beaten, strict=True) if not lost], np.intp)


class Spread(NamedTuple):
    """Bins and sums over them.

    Attributes:
        bins: of a histogram.
        n: number of values.
        width: root of the sum of count * width**2.
        norm: root of the greatest sum of squares that the values can have.
    """

    bins: Bins
    n: int
    width: float
    norm: float

    @classmethod
    def of(cls, bins: Bins) -> "Spread":
        """Take the sums."""
        widths, squares = spread_sums(*bins)
        return cls(bins, int(bins.count.sum()), math.sqrt(widths), math.sqrt(squares))

    def float32_root(self, grid: Grid) -> Float64Array:
        """Return the root of the sum of squares of what float32 adds to the errors, for each candidate."""
        root: Float64Array = ROUNDING * (self.norm + math.sqrt(self.n) * grid.scale.astype(np.float64))
        return root

    def numeric_slack(self, grid: Grid, losses: Float64Array) -> Float64Array:
        """Return how far the computed integrals may be from the true ones."""
        slack: Float64Array = NUMERIC * (losses + self.n * grid.scale.astype(np.float64) ** 2)
        return slack


def bounds(spread: Spread, grid: Grid, losses: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the least and greatest sum of squared float32 errors that values in these bins can have, for each candidate."""
    slack, reach = spread.numeric_slack(grid, losses), spread.width / math.sqrt(3) + spread.float32_root(grid)
    least = np.maximum(np.sqrt(np.maximum(losses - slack, 0)) - reach, 0) ** 2
    return least, (np.sqrt(losses + slack) + reach) ** 2


def _is_beaten(spread: Spread, grid: Grid, losses: Float64Array, one: int, rival: int) -> bool:
    """Return whether a candidate's errors sum up to more than the rival's for all values that fall into these bins."""
    chosen = np.array([one, rival])
    pair, of_pair = grid.take(chosen), losses[chosen]
    scale = pair.scale.astype(np.float64)
    columns = np.stack([scale, 1 / scale, *code_limits(pair)], axis=1)
    distance = weighted_distance(*spread.bins, columns[0], columns[1])
    added = spread.float32_root(pair)
    float32 = float(np.sum(added * (2 * (np.sqrt(of_pair) + spread.width) + added)))
    slack = float(spread.numeric_slack(pair, of_pair).sum())
    return bool(of_pair[0] - of_pair[1] > distance * (1 + NUMERIC) + float32 + slack)


def rough_losses(histogram: LogLinearHistogram, grid: Grid, blocks: Iterable[FloatArray]) -> Float64Array:
    """Return each candidate's sum of squared errors over the values within ROUGH of it, and TINY a value."""
    total, number = np.zeros(grid.scale.size), 0
    for values in _flat(blocks):
        number += values.size
        add_rough_losses(values, grid.scale, _per_scale(grid), grid.clip_min, grid.clip_max, total)
    _require_count(number, histogram)
    return total


def value_losses(histogram: LogLinearHistogram, grid: Grid, blocks: Iterable[FloatArray]) -> Float64Array:
    """Return each candidate's sum of squared float32 errors over the values, independent of their order."""
    coarse, fine = _summation_grids(histogram, grid)
    total, number = np.zeros((grid.scale.size, 2)), 0
    for values in _flat(blocks):
        number += values.size
        add_value_losses(values, grid.scale, _per_scale(grid), grid.clip_min, grid.clip_max, coarse, fine, total)
    _require_count(number, histogram)
    losses: Float64Array = total.sum(axis=1)
    return losses


def _per_scale(grid: Grid) -> Float32Array:
    """Return 1 / scale, correctly rounded."""
    return (np.float32(1) / grid.scale).astype(np.float32)


def _reach(histogram: LogLinearHistogram) -> float:
    """Return the greatest magnitude; no error exceeds its value, because zero is a multiple of every scale."""
    return max(histogram.maximum, -histogram.minimum, 1e-45)


def _summation_grids(histogram: LogLinearHistogram, grid: Grid) -> tuple[Float64Array, Float64Array]:
    """Return, for each candidate, the powers of two whose last place is fine enough and whose sums over n stay exact.

    Adding and subtracting 2**e rounds a smaller number to multiples of 2**(e - 52); n of them add up exactly while the sum
    stays below 2**e. Both grids together resolve n**2 * 2**-104 of the greatest possible square.
    """
    outside = np.maximum(histogram.maximum - grid.clip_max.astype(np.float64), grid.clip_min - histogram.minimum)
    greatest = 1.01 * np.minimum(np.maximum(outside, 0.0) + grid.scale, _reach(histogram)) ** 2
    coarse = np.ceil(np.log2(histogram.n * greatest)).astype(np.int32)
    fine = np.ceil(np.log2(histogram.n)).astype(np.int32) + coarse - 52
    return np.ldexp(1.0, coarse), np.ldexp(1.0, fine)


def order_statistic(
    histogram: LogLinearHistogram, blocks: Iterable[FloatArray], percentile: float, side: Literal["max", "min"]
) -> float:
    """Return AMCT's percentile where the histogram's extremes do not reach it: select among the values of the bin that holds it.

    Raises:
        DataError: the values are not those that the histogram counted.
    """
    bins, n = histogram.bins(), histogram.n
    rank = 1 if 1.0 - percentile < FLT_EPSILON else max(1, n - math.floor(percentile * n))
    ascending = n + 1 - rank if side == "max" else rank
    at = int(np.searchsorted(np.cumsum(bins.count), ascending))
    number, below, held = 0, 0, [np.empty(0, np.float32)]
    for values in _flat(blocks):
        number += values.size
        below += int(np.count_nonzero(values < bins.lower[at]))
        held.append(values[(values >= bins.lower[at]) & (values <= bins.upper[at])])
    _require_count(number, histogram)
    inside, place = np.concatenate(held), ascending - below - 1
    if not 0 <= place < inside.size:
        message = f"values: not those that the histogram counted, by their {percentile} percentile; exact mode needs the same values"
        raise DataError(message)
    return float(np.partition(inside, place)[place])


def _require_count(number: int, histogram: LogLinearHistogram) -> None:
    if number != histogram.n:
        message = (
            f"values: {number} given, but the histogram counted {histogram.n}; exact mode needs the same values, "
            "as an array or as something that can be iterated more than once"
        )
        raise DataError(message)


def _flat(blocks: Iterable[FloatArray]) -> Iterator[Float32Array]:
    for block in blocks:
        if block.dtype not in (np.float32, np.float16):
            message = f"values of dtype {block.dtype}: float32 or float16 was expected, as the histogram counted them"
            raise SchemaError(message)
        yield np.ascontiguousarray(block, np.float32).reshape(-1)
