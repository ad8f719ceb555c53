"""The inner loops of exact mode: candidates judged on the values themselves. Serial, without the GIL, on plain arrays.

Arrays are read as rows of LANES values with one accumulator a lane. Two-dimensional indices matter: where an index is a sum, numba
allows for negative ones, and the compiler gathers what it could have loaded.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import fused_multiply_add, kernel

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

LANES = 32  # independent accumulators, so that the compiler may use vector registers
BLOCK = 4096  # values that stay in the first-level cache while every candidate reads them


@kernel
def block_of(values: Float32Array, start: int, short: Float32Array) -> Float32Array:
    """Return the BLOCK values from `start` on as rows of LANES; a last block is filled up with zeros, which have no error.

    `short` (BLOCK,) is room for that last block.
    """
    if start + BLOCK <= values.size:
        return values[start : start + BLOCK].reshape(-1, LANES)
    short[:] = np.float32(0.0)
    for i in range(values.size - start):  # assigning a slice would compile numba's text functions for an error message
        short[i] = values[start + i]
    return short.reshape(-1, LANES)


@kernel
def _error(x: Any, step: Any, per_step: Any, least: Any, greatest: Any) -> Any:
    """Return the float32 error of a value, as AMCT has it: clip, divide, round, multiply, subtract.

    With the correctly rounded ``per_step = 1 / step``, one step of Newton's in fused operations gives the correctly rounded
    quotient (Markstein 1990) in a third of the time of a division. It is not exact for quotients that underflow; they round to 0.
    """
    inside = min(max(x, least), greatest)
    near = inside * per_step
    quotient = fused_multiply_add(fused_multiply_add(-near, step, inside), per_step, near)
    return np.rint(quotient) * step - x


@kernel
def _square(x: Any, step: Any, per_step: Any, least: Any, greatest: Any) -> Any:
    """Return the squared error, exact in float64."""
    error = np.float64(_error(x, step, per_step, least, greatest))
    return error * error


@kernel
def _add_rough_block(
    rows: Float32Array, step: Any, per_step: Any, least: Any, greatest: Any, lanes: Float32Array
) -> float:
    """Return the sum of a block's squared errors in float32: at most 40 roundings a lane."""
    lanes[:] = np.float32(0.0)
    for row in range(rows.shape[0] // 4):
        for t in range(LANES):
            a = _error(rows[4 * row, t], step, per_step, least, greatest)
            b = _error(rows[4 * row + 1, t], step, per_step, least, greatest)
            c = _error(rows[4 * row + 2, t], step, per_step, least, greatest)
            d = _error(rows[4 * row + 3, t], step, per_step, least, greatest)
            lanes[t] += (a * a + b * b) + (c * c + d * d)
    total = 0.0
    for t in range(LANES):
        total += np.float64(lanes[t])
    return total


@kernel
def add_rough_losses(
    values: Float32Array,
    scale: Float32Array,
    per_scale: Float32Array,
    clip_min: Float32Array,
    clip_max: Float32Array,
    total: Float64Array,
) -> None:
    """Add each candidate's squared errors of the values to `total` (K,), within a few float32 roundings."""
    short, lanes = np.empty(BLOCK, np.float32), np.empty(LANES, np.float32)
    for start in range(0, values.size, BLOCK):
        rows = block_of(values, start, short)
        for i in range(scale.size):
            total[i] += _add_rough_block(rows, scale[i], per_scale[i], clip_min[i], clip_max[i], lanes)


@kernel
def _add_exact_block(
    rows: Float32Array,
    step: Any,
    per_step: Any,
    least: Any,
    greatest: Any,
    big: float,
    small: float,
    coarse_lanes: Float64Array,
    fine_lanes: Float64Array,
) -> None:
    """Put the sums of a block's squared errors on both grids into the lanes."""
    coarse_lanes[:] = 0.0
    fine_lanes[:] = 0.0
    for row in range(rows.shape[0] // 2):
        for t in range(LANES):
            a = _square(rows[2 * row, t], step, per_step, least, greatest)
            b = _square(rows[2 * row + 1, t], step, per_step, least, greatest)
            coarse_a, coarse_b = (a + big) - big, (b + big) - big
            coarse_lanes[t] += coarse_a + coarse_b
            fine_lanes[t] += (((a - coarse_a) + small) - small) + (((b - coarse_b) + small) - small)


@kernel
def add_value_losses(
    values: Float32Array,
    scale: Float32Array,
    per_scale: Float32Array,
    clip_min: Float32Array,
    clip_max: Float32Array,
    coarse: Float64Array,
    fine: Float64Array,
    total: Float64Array,
) -> None:
    """Add each candidate's squared errors of the values to `total` (K, 2), the same in any order of the values.

    Errors are float32 as in AMCT. Their squares are split at two fixed grids (adding and subtracting `coarse` or `fine` rounds to a
    multiple of its last place), so that every partial sum is exact: the result cannot depend on the order, and lanes may add apart.
    """
    short, coarse_lanes, fine_lanes = np.empty(BLOCK, np.float32), np.empty(LANES), np.empty(LANES)
    for start in range(0, values.size, BLOCK):
        rows = block_of(values, start, short)
        for i in range(scale.size):
            _add_exact_block(
                rows, scale[i], per_scale[i], clip_min[i], clip_max[i], coarse[i], fine[i], coarse_lanes, fine_lanes
            )
            total[i, 0] += coarse_lanes.sum()
            total[i, 1] += fine_lanes.sum()


@kernel
def _snapped(x: Any, step: Any, per_step: Any, lowest: Any, highest: Any) -> Any:
    """Return the value of a candidate's grid that is nearest to x."""
    return min(max(np.rint(x * per_step), lowest), highest) * step


@kernel
def _distance(lower: Any, upper: Any, count: Any, one: Any, other: Any) -> Any:
    """Return count * width times the most that the grid values of two candidates differ in a bin; they grow with x."""
    low, high = _snapped(lower, *one), _snapped(upper, *one)
    other_low, other_high = _snapped(lower, *other), _snapped(upper, *other)
    return count * (upper - lower) * max(high - other_low, other_high - low)


@kernel
def weighted_distance(
    lower: Float64Array, upper: Float64Array, count: Int64Array, one: Float64Array, other: Float64Array
) -> float:
    """Sum over bins count * width times the most that the grid values of two candidates differ in the bin.

    A candidate is (step, 1 / step, lowest code, highest code).
    """
    lanes, whole = np.zeros(LANES), lower.size - lower.size % LANES
    first, second = (one[0], one[1], one[2], one[3]), (other[0], other[1], other[2], other[3])
    lowers, uppers = lower[:whole].reshape(-1, LANES), upper[:whole].reshape(-1, LANES)
    counts = count[:whole].reshape(-1, LANES)
    for row in range(lowers.shape[0]):
        for t in range(LANES):
            lanes[t] += _distance(lowers[row, t], uppers[row, t], counts[row, t], first, second)
    total = lanes.sum()
    for b in range(whole, lower.size):
        total += _distance(lower[b], upper[b], count[b], first, second)
    return total  # type: ignore[no-any-return]


@kernel
def spread_sums(lower: Float64Array, upper: Float64Array, count: Int64Array) -> tuple[float, float]:
    """Return the sums over bins of count * width**2 and of count times the greatest square of a value."""
    widths, squares = 0.0, 0.0
    for b in range(lower.size):
        width, reach = upper[b] - lower[b], max(upper[b], -lower[b])
        widths += count[b] * width * width
        squares += count[b] * reach * reach
    return widths, squares
