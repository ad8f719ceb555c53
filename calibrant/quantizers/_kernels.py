"""The inner loops of the quantizers: serial, without the GIL, on plain arrays.

Losses of many candidates run over the candidates inside and the bins outside: each candidate adds in the order of the bins,
so results do not depend on the machine's vector width, and the inner loop needs no reduction.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.quantizers._border_kernels import NARROW
from calibrant.stats._jit import kernel

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

EDGES = 256  # that are gathered before all candidates visit them
LANES = 32  # independent accumulators, so that the compiler may use vector registers


@kernel
def _at_edge(edge: Any, per_step: Any, lowest: Any, highest: Any) -> Any:
    """Return 12 times the antiderivative of (y - k)**2 at y = edge / scale, where k = clip(rint(y), lowest, highest)."""
    y = edge * per_step
    k = min(max(np.rint(y), lowest), highest)
    y -= k
    return k + 4.0 * y * y * y


@kernel
def _add_edges(
    edges: Float64Array,
    drops: Float64Array,
    number: int,
    per_step: Float64Array,
    lowest: Float64Array,
    highest: Float64Array,
    total: Float64Array,
) -> None:
    """Add `number` edges, four at a time: one visit to each total for all four."""
    whole = number - number % 4
    for e in range(0, whole, 4):
        for i in range(per_step.size):
            step, least, greatest = per_step[i], lowest[i], highest[i]
            first = drops[e] * _at_edge(edges[e], step, least, greatest)
            second = drops[e + 1] * _at_edge(edges[e + 1], step, least, greatest)
            third = drops[e + 2] * _at_edge(edges[e + 2], step, least, greatest)
            total[i] += first + second + third + drops[e + 3] * _at_edge(edges[e + 3], step, least, greatest)
    for e in range(whole, number):
        for i in range(per_step.size):
            total[i] += drops[e] * _at_edge(edges[e], per_step[i], lowest[i], highest[i])


@kernel
def integral_losses(
    lower: Float64Array,
    upper: Float64Array,
    count: Int64Array,
    per_step: Float64Array,
    lowest: Float64Array,
    highest: Float64Array,
) -> tuple[Float64Array, Int64Array]:
    """Integrate the squared rounding error over the wide bins, for each candidate, in units of ``scale**3 / 12``; list the narrow bins.

    With y = x / scale and k = clip(rint(y), lowest, highest), ``k / 12 + (y - k)**3 / 3`` is an antiderivative of
    ``(y - k)**2`` that is continuous over cells and clip ends, so a bin costs its two ends however many cells it spans. Summed by
    parts, each edge is visited once with how much the density falls there from left to right.

    A bin is narrow if its width is lost beside its distance from zero; sums by parts would be too coarse for it.
    """
    total, narrow, points = np.zeros(per_step.size), np.empty(lower.size, np.int64), 0
    edges, drops, number = np.empty(EDGES + 2), np.empty(EDGES + 2), 0
    border, density = np.nan, 0.0
    for b in range(lower.size):
        left, right = lower[b], upper[b]
        if right - left <= NARROW * max(abs(left), abs(right)):
            narrow[points] = b
            points += 1
            continue
        if left != border:
            edges[number], drops[number] = border, density
            number += 0 if density == 0.0 else 1
            density = 0.0
        before, density = density, count[b] / (right - left)
        edges[number], drops[number] = left, before - density
        number, border = number + 1, right
        if number >= EDGES:
            _add_edges(edges, drops, number, per_step, lowest, highest, total)
            number = 0
    edges[number], drops[number] = border, density
    number += 0 if density == 0.0 else 1
    _add_edges(edges, drops, number, per_step, lowest, highest, total)
    return total, narrow[:points]


@kernel
def shrinking_ranges(prefix: Int64Array, step: int, least_width: int) -> tuple[Int64Array, Int64Array]:
    """Walk HFMG's candidates: each turn the end that crosses more bins to gather `step` counts moves; ties move the right one.

    `prefix` (B + 1,) holds the counts before each bin.
    """
    left, right = 0, prefix.size - 2
    lefts, rights = np.empty(prefix.size, np.int64), np.empty(prefix.size, np.int64)
    number = 0
    while right - left > least_width:
        inner_left = min(np.searchsorted(prefix, prefix[left] + step), right)
        inner_right = max(np.searchsorted(prefix, prefix[right + 1] - step, "right") - 2, inner_left)
        if right - inner_right >= inner_left - left:
            right = inner_right
        else:
            left = inner_left
        lefts[number], rights[number] = left, right
        number += 1
    return lefts[:number], rights[:number]


@kernel
def _square_distance(moments: Float64Array, start: int, stop: int, centre: float) -> float:
    """Integrate (t - centre)² p from one bin border to another."""
    mass = moments[stop, 0] - moments[start, 0]
    first = moments[stop, 1] - moments[start, 1]
    second = moments[stop, 2] - moments[start, 2]
    distance: float = second - 2.0 * centre * first + centre * centre * mass
    return distance


@kernel
def wide_cell_losses(
    counts: Float64Array, moments: Float64Array, lefts: Int64Array, rights: Int64Array, cells: int
) -> Float64Array:
    """HFMG's loss of each range in squared bin widths, in a time that depends on the cells and not on the bins.

    `moments` (B + 1, 4) holds, at each bin border, the integrals from 0 of p, t p and t² p and the second integral of p, where p
    is the density. Summed by parts over the cells, the integral of (t - own centre)² p is that of (t - last centre)² p
    less twice the cell width times the second integral of p from the range's start to each inner cell border.
    """
    losses = np.empty(lefts.size)
    for i in range(lefts.size):
        start, end = lefts[i], rights[i] + 1
        width = (end - start) / cells
        inner = 0.0
        for cell in range(1, cells):
            distance = cell * width
            j = start + np.int64(distance)
            part = start + distance - j
            inner += moments[j, 3] + part * (moments[j, 0] + 0.5 * part * counts[j])
            inner -= moments[start, 3] + distance * moments[start, 0]
        tail = _square_distance(moments, 0, start, start + 0.5 * width)
        losses[i] = tail + _square_distance(moments, start, counts.size, end - 0.5 * width) - 2.0 * width * inner
    return losses


@kernel
def narrow_cell_losses(drops: Float64Array, lefts: Int64Array, rights: Int64Array, cells: int) -> Float64Array:
    """The same loss where cells are narrower than bins (INT16): one evaluation of the antiderivative at each bin border.

    `drops` holds how much the density falls at each bin border, filled with zeros to a multiple of LANES.
    """
    losses, lanes = np.empty(lefts.size), np.empty(LANES)
    rows = drops.reshape(-1, LANES)  # indices that are sums would be allowed to be negative, and gathered
    for i in range(lefts.size):
        width = (rights[i] + 1 - lefts[i]) / cells
        per_width, start = 1.0 / width, float(lefts[i])
        lanes[:] = 0.0
        for row in range(rows.shape[0]):
            for t in range(LANES):
                position = (np.float64(row * LANES + t) - start) * per_width
                cell = min(max(np.floor(position), 0.0), cells - 1.0)
                distance = position - cell - 0.5
                lanes[t] += rows[row, t] * (cell + 4.0 * distance * distance * distance)
        losses[i] = lanes.sum() * width * width * width / 12.0
    return losses


@kernel
def row_extremes(bits: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the least and greatest value of each row as ordered integers.

    `bits` (C, E) are float32 patterns; flipping the magnitude of negative ones makes integers that sort as the values do, with
    NaN beyond the infinities. Unlike float minima, integer minima may be taken in any order, so the loop uses vector registers.
    """
    least, greatest = np.empty(bits.shape[0], np.int32), np.empty(bits.shape[0], np.int32)
    for row in range(bits.shape[0]):
        low, high = np.int32(2**31 - 1), np.int32(-(2**31))
        for pattern in bits[row]:
            order = pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF))
            low, high = min(low, order), max(high, order)
        least[row], greatest[row] = low, high
    return least, greatest


@kernel
def row_errors(
    rows: Float32Array, scale: Float32Array, offset: Float32Array, low: float, high: float
) -> tuple[Float64Array, Float64Array]:
    """Sum x² and (x - dequantize(quantize(x)))² over each row in element order."""
    signal, noise = np.zeros(rows.shape[0]), np.zeros(rows.shape[0])
    least, greatest = np.float32(low), np.float32(high)
    for row in range(rows.shape[0]):
        step, zero = scale[row], offset[row]
        for x in rows[row]:
            code = min(max(np.rint(x / step) + zero, least), greatest)
            error = np.float64((code - zero) * step) - np.float64(x)
            signal[row] += np.float64(x) * np.float64(x)
            noise[row] += error * error
    return signal, noise


@kernel
def best_intervals(levels: Int64Array, counts: Int64Array, parts: int) -> Int64Array:
    """Split ascending whole-number levels into intervals so that the summed squared distance to whole-number centres is least.

    ``best[j]`` is the least loss of the levels before j in so many intervals as rounds are done; an interval's best centre is its
    mean, rounded. All losses are exact whole numbers; of equal ones the first split counts.

    Args:
        levels: ascending, each at most 2**15 in magnitude.
        counts: how often each occurs, at least once.
        parts: number of intervals, at most that of the levels.

    Returns:
        the centres, shape (parts,), ascending.
    """
    size = levels.size
    zeroth, first = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    second = np.zeros(size + 1, np.int64)
    for j in range(size):
        zeroth[j + 1] = zeroth[j] + counts[j]
        first[j + 1] = first[j] + counts[j] * levels[j]
        second[j + 1] = second[j] + counts[j] * levels[j] * levels[j]
    best, last = np.full(size + 1, -1, np.int64), np.full(size + 1, -1, np.int64)  # -1: impossible
    last[0] = 0
    cuts = np.zeros((parts + 1, size + 1), np.int64)
    for part in range(1, parts + 1):
        best[:] = -1
        for j in range(part, size + 1):
            for i in range(part - 1, j):
                if last[i] < 0:
                    continue
                weight, total = zeroth[j] - zeroth[i], first[j] - first[i]
                centre = (2 * total + weight) // (2 * weight)
                loss = last[i] + second[j] - second[i] - 2 * centre * total + centre * centre * weight
                if best[j] < 0 or loss < best[j]:
                    best[j], cuts[part, j] = loss, i
        last[:] = best
    centres, j = np.empty(parts, np.int64), size
    for part in range(parts, 0, -1):
        i = cuts[part, j]
        weight, total = zeroth[j] - zeroth[i], first[j] - first[i]
        centres[part - 1] = (2 * total + weight) // (2 * weight)
        j = i
    return centres
