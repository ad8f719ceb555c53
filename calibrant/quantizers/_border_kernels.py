"""Squared rounding errors by the borders between codes: one visit to each border of a candidate instead of each bin.

For x > 0 every border ``b = (k + 1/2) * scale`` below x moves the code by one, and ``(x - code * scale)**2`` is ``x**2`` less twice
``scale * (x - b)`` for each of them. Summed over values, a candidate needs the sum of x**2, and at each border how far the values beyond
it lie beyond it; that is known from how many they are and what they sum up to.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel

Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

NARROW = 2.0**-15  # full bins are wider: 2**-13 of their lower end; only trimmed ones and zero are not
GUIDE_SHIFT = 42  # of a float64 pattern: 1024 steps of the guide an octave, eight of the finest bins each
LEAST_WIDTH = 5e-324  # what a bin of a single value is divided by; nothing of it is counted here
CHUNK = 256  # bins that are copied at once


@kernel
def guide_step(value: Any) -> Any:
    """Return the step of the guide that holds a value of at least 0."""
    return np.float64(value).view(np.int64) >> np.int64(GUIDE_SHIFT)


@kernel
def _step_start(step: Any) -> Any:
    """Return the least value of a step."""
    return np.int64(step << np.int64(GUIDE_SHIFT)).view(np.float64)


@kernel
def _copy_bins(
    lower: Float64Array, upper: Float64Array, count: Int64Array, start: Any, size: Any, negative: bool, bins: Float64Array
) -> None:  # fmt: skip
    """Copy bins of a sign, counted from the outermost: their ends by distance from zero, and their counts; 0 for narrow ones."""
    near, far, weight = bins[0], bins[1], bins[2]
    if negative:
        left, right, number = lower[start : start + size], upper[start : start + size], count[start : start + size]
        for i in range(size):
            near[i], far[i], weight[i] = -right[i], -left[i], number[i]
    else:
        first = lower.size - start - size
        left, right, number = lower[first : first + size], upper[first : first + size], count[first : first + size]
        for i in range(size):
            near[i], far[i], weight[i] = left[size - 1 - i], right[size - 1 - i], number[size - 1 - i]
    for i in range(size):
        weight[i] = weight[i] if far[i] - near[i] > NARROW * far[i] else 0.0


@kernel
def _sum_beyond(
    lower: Float64Array, upper: Float64Array, count: Int64Array, number: int, negative: bool,
    first_step: int, guide: Int32Array, beyond: Float64Array, narrow: Int64Array, listed: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Sum the wide bins of a sign from the outermost on, and list the narrow ones.

    Fills in how many bins reach beyond each step of the guide, and how many values lie beyond each bin and what they sum up to.
    Returns the sum of x**2, and how many are listed.
    """
    values = total = lost = squares = 0.0
    step, bins = guide.size - 1, np.empty((3, CHUNK))
    end = _step_start(first_step + step + 1)
    near, far, weight = bins[0], bins[1], bins[2]
    for start in range(0, number, CHUNK):
        size = min(CHUNK, number - start)
        _copy_bins(lower, upper, count, start, size, negative, bins)
        rows, part, part_squares = beyond[start : start + size], 0.0, 0.0
        for i in range(size):
            while far[i] < end and step >= 0:
                guide[step] = start + i
                step -= 1
                end = _step_start(first_step + step + 1)
            if weight[i] == 0.0:
                narrow[listed] = start + i if negative else lower.size - 1 - start - i
                listed += 1
            rows[i, 0], rows[i, 1] = values, total + part
            values += weight[i]
            part += weight[i] * (0.5 * (near[i] + far[i]))
            part_squares += weight[i] * ((near[i] * near[i] + near[i] * far[i] + far[i] * far[i]) * (1.0 / 3.0))
        added = part - lost
        following = total + added
        lost, total = (following - total) - added, following
        squares += part_squares
    guide[: step + 1] = number
    return squares, listed


@kernel
def _bin(
    lower: Float64Array, upper: Float64Array, count: Int64Array, place: Any, negative: bool
) -> tuple[Any, Any, Any]:
    """Return a bin of a sign as `_copy_bins` does."""
    i = np.uint64(place) if negative else np.uint64(lower.size - 1 - place)
    near, far = (-upper[i], -lower[i]) if negative else (lower[i], upper[i])
    return near, far, np.float64(count[i]) if far - near > NARROW * far else 0.0


@kernel
def _beyond_border(
    lower: Float64Array, upper: Float64Array, count: Int64Array, reaching: Any, negative: bool, beyond: Float64Array, border: Any
) -> Any:  # fmt: skip
    """Return how far the values of the bins that reach beyond a border lie beyond it, in all."""
    last = np.uint64(reaching - 1)
    near, far, weight = _bin(lower, upper, count, last, negative)
    start = max(near, border)
    share = (far - start) / max(far - near, LEAST_WIDTH)
    outer = beyond[last, 1] - border * beyond[last, 0]
    return outer + weight * share * (0.5 * (start + far) - border)


@kernel
def _subtract_borders(
    lower: Float64Array, upper: Float64Array, count: Int64Array, number: int, negative: bool,
    first_step: int, guide: Int32Array, beyond: Float64Array, scale: Float64Array, codes: Float64Array, losses: Float64Array,
) -> None:  # fmt: skip
    """Take what the borders of one sign spare from each candidate's losses."""
    for candidate in range(scale.size):
        spared = 0.0
        for k in range(np.int64(codes[candidate])):
            border = (np.float64(k) + 0.5) * scale[candidate]
            reaching = np.int64(guide[np.uint64(guide_step(border) - first_step)])
            while reaching < number and _bin(lower, upper, count, reaching, negative)[1] > border:
                reaching += 1
            if reaching == 0:
                break
            spared += _beyond_border(lower, upper, count, reaching, negative, beyond, border)
        losses[candidate] -= 2.0 * scale[candidate] * spared


@kernel
def border_losses(
    lower: Float64Array, upper: Float64Array, count: Int64Array, negatives: int, positives: int,
    scale: Float64Array, lowest: Float64Array, highest: Float64Array, first_step: int, steps: int,
) -> tuple[Float64Array, Int64Array]:  # fmt: skip
    """Integrate the squared rounding error over the wide bins, for each candidate; list the narrow bins.

    Args:
        lower: of bins, ascending; none has zero inside.
        upper: of bins.
        count: of values spread evenly in each.
        negatives: how many bins lie below zero.
        positives: how many above.
        scale: shape (K,), of the candidates.
        lowest: their least codes, at most 0.
        highest: their greatest, at least 0.
        first_step: `guide_step` of the least border.
        steps: that many hold all borders.
    """
    narrow, used, losses = np.empty(lower.size, np.int64), 0, np.zeros(scale.size)
    guide, beyond = np.empty(steps, np.int32), np.empty((max(negatives, positives), 2))
    total = 0.0
    for negative, number, codes in ((True, negatives, -lowest), (False, positives, highest)):
        given = lower, upper, count, number, negative, first_step, guide, beyond
        squares, used = _sum_beyond(*given, narrow, used)
        _subtract_borders(*given, scale, codes, losses)
        total += squares
    return losses + total, narrow[:used]
