"""IFMR's search on raw values: the brute-force answer without judging every candidate on every value.

From the histogram alone, the least and greatest squared error that any value of a bin can have bounds each candidate's loss. A candidate
whose lower bound exceeds another's upper bound cannot win. The others are evaluated on the values in one pass that holds no value
back, so captures larger than memory stream through. The sums are exact on fixed grids: the order of the values changes nothing.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, SchemaError
from calibrant.quantizers._kernels import add_value_losses, loss_bounds
from calibrant.quantizers.affine import FLT_EPSILON, Float32Array, Float64Array, FloatArray
from calibrant.quantizers.grid import Grid, code_limits
from calibrant.stats.histogram import LogLinearHistogram

SUMMATION = 1e-9  # more than the relative error of a float64 sum over 150,000 bins


def blocks_of(values: FloatArray | Iterable[FloatArray]) -> Iterable[FloatArray]:
    """Return the values as an iterable of arrays; one array is one block."""
    return [values] if isinstance(values, np.ndarray) else values


def raw_losses(
    histogram: LogLinearHistogram, grid: Grid, losses: Float64Array, blocks: Iterable[FloatArray]
) -> Float64Array:
    """Return `losses` with those of every candidate that might be best replaced by sums over the raw values.

    Raises:
        DataError: the values are not those of the histogram.
        SchemaError: a block is neither float32 nor float16.
    """
    chosen = survivors(histogram, grid)
    result = losses.copy()
    result[chosen] = value_losses(histogram, grid.take(chosen), blocks)
    return result


def survivors(histogram: LogLinearHistogram, grid: Grid) -> npt.NDArray[np.intp]:
    """Return the candidates that no other is proven to beat."""
    least, greatest = bounds(histogram, grid)
    return np.flatnonzero(least * (1 - SUMMATION) <= greatest.min() * (1 + SUMMATION))


def bounds(histogram: LogLinearHistogram, grid: Grid) -> tuple[Float64Array, Float64Array]:
    """Return the least and greatest sum of squared errors that values in these bins can have, for each candidate."""
    bins, scale = histogram.bins(), grid.scale.astype(np.float64)
    return loss_bounds(bins.lower, bins.upper, bins.count.astype(np.float64), scale, *code_limits(grid))


def value_losses(histogram: LogLinearHistogram, grid: Grid, blocks: Iterable[FloatArray]) -> Float64Array:
    """Return each candidate's sum of squared float32 errors over the values, independent of their order."""
    coarse, fine = _summation_grids(histogram, grid)
    total, number = np.zeros((grid.scale.size, 2)), 0
    for values in _flat(blocks):
        number += values.size
        add_value_losses(values, grid.scale, grid.clip_min, grid.clip_max, coarse, fine, total)
    _require_count(number, histogram)
    losses: Float64Array = total.sum(axis=1)
    return losses


def _summation_grids(histogram: LogLinearHistogram, grid: Grid) -> tuple[Float64Array, Float64Array]:
    """Return, for each candidate, the powers of two whose last place is fine enough and whose sums over n stay exact.

    Adding and subtracting 2**e rounds a smaller number to multiples of 2**(e - 52); n of them add up exactly while the sum
    stays below 2**e. Both grids together resolve n**2 * 2**-104 of the greatest possible square.
    """
    outside = np.maximum(histogram.maximum - grid.clip_max.astype(np.float64), grid.clip_min - histogram.minimum)
    # No error exceeds its value: zero is a multiple of every scale.
    reach = max(histogram.maximum, -histogram.minimum, 1e-45)
    greatest = 1.01 * np.minimum(np.maximum(outside, 0.0) + grid.scale, reach) ** 2
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
