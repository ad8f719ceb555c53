"""Samples folded one by one: sums, extremes and counts of a sample and of its channels, in an order that its shape alone decides."""

import numpy as np

from calibrant.stats._jit import kernel
from calibrant.stats._lanes import fold_finite_run, fold_run
from calibrant.stats._orders import (
    INFINITY_ORDER,
    Counts,
    Keys,
    Number,
    Orders,
    Reals,
    Values,
    finite_pattern,
    order_of,
)


@kernel
def _fold_runs(
    values: Values, start: Number, shape: tuple[Number, Number, Number, Number],
    sums: Reals, squares: Reals, least: Orders, greatest: Orders,
) -> tuple[Number, Number, Number]:  # fmt: skip
    """Fold a sample whose channels are runs of neighbours; return its zeros, NaN and infinities."""
    _, outer, channels, inner = shape
    zeros, nans, infinities = np.int64(0), np.int64(0), np.int64(0)
    for _ in range(outer):
        for channel in range(channels):
            found = fold_finite_run(values, start, inner)
            if not np.isfinite(found[1]):
                found = fold_run(values, start, inner)
            total, squared, low, high, n_zero, n_nan, n_inf = found
            sums[channel] += total
            squares[channel] += squared
            least[channel], greatest[channel] = min(least[channel], low), max(greatest[channel], high)
            zeros, nans, infinities = zeros + n_zero, nans + n_nan, infinities + n_inf
            start += inner
    return zeros, nans, infinities


@kernel
def _add_row(row: Values, bits: Keys, sums: Reals, squares: Reals) -> None:
    """Add one finite value, or zero in place of another, to each channel."""
    for i in range(row.size):
        is_finite = np.uint32(bits[i] & np.uint32(0x7FFFFFFF)) < np.uint32(INFINITY_ORDER)
        wide = np.float64(row[i] if is_finite else np.float32(0))
        sums[i] += wide
        squares[i] += wide * wide


@kernel
def _bound_row(bits: Keys, least: Orders, greatest: Orders) -> None:
    """Widen the range of each channel by one value, where that is finite."""
    for i in range(bits.size):
        is_finite = np.uint32(bits[i] & np.uint32(0x7FFFFFFF)) < np.uint32(INFINITY_ORDER)
        order = order_of(bits[i], np.int32(0))
        low = order if is_finite else np.int32(INFINITY_ORDER)
        high = order if is_finite else np.int32(~INFINITY_ORDER)
        least[i] = low if low < least[i] else least[i]
        greatest[i] = high if high > greatest[i] else greatest[i]


@kernel
def _count_row(bits: Keys) -> tuple[Number, Number, Number]:
    """Return the zeros, NaN and infinities of a row."""
    zeros, nans, infinities = np.int32(0), np.int32(0), np.int32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        zeros = np.int32(zeros + np.int32(magnitude == np.uint32(0)))
        nans = np.int32(nans + np.int32(magnitude > np.uint32(INFINITY_ORDER)))
        infinities = np.int32(infinities + np.int32(magnitude == np.uint32(INFINITY_ORDER)))
    return zeros, nans, infinities


@kernel
def _fold_rows(
    values: Values, bits: Keys, start: Number, shape: tuple[Number, Number, Number, Number],
    sums: Reals, squares: Reals, least: Orders, greatest: Orders,
) -> tuple[Number, Number, Number]:  # fmt: skip
    """Do what `_fold_runs` does where neighbours belong to different channels."""
    _, outer, channels, _ = shape
    for part in range(outer):
        first = start + part * channels
        row, row_bits = values[first : first + channels], bits[first : first + channels]
        _add_row(row, row_bits, sums, squares)
        _bound_row(row_bits, least, greatest)
    return _count_row(bits[start : start + outer * channels])


@kernel
def fold_samples(
    values: Values, bits: Keys, shape: tuple[Number, Number, Number, Number],
    counts: Counts, ranges: Keys, reals: Reals, sums: Reals, squares: Reals, least: Orders, greatest: Orders,
) -> None:  # fmt: skip
    """Fold each sample by itself: what a sample's row and its share of the channels need.

    Only finite values count for sums and extremes. The runs of a channel are summed in lanes (`fold_run`) and added in order; a
    sample's sum adds its channels in order.

    Args:
        values: flat, of the shape below.
        bits: the same memory as patterns.
        shape: (N, outer, C, inner).
        counts: shape (N, 3), filled: zeros, NaN, infinities.
        ranges: shape (N, 2), filled: patterns of the least and the greatest value; of NaN where none is finite.
        reals: shape (N, 2), filled: sum, sum of squares.
        sums: shape (N, C), filled: sum of each channel.
        squares: shape (N, C), filled: sum of squares.
        least: shape (C,), orders, lowered in place.
        greatest: shape (C,), raised in place.
    """
    samples, outer, channels, inner = shape
    low, high = np.empty(channels, np.int32), np.empty(channels, np.int32)
    for i in range(samples):
        start = i * outer * channels * inner
        for channel in range(channels):
            low[channel], high[channel] = np.int32(INFINITY_ORDER), np.int32(~INFINITY_ORDER)
            sums[i, channel] = squares[i, channel] = 0.0
        if inner == 1:
            found = _fold_rows(values, bits, start, shape, sums[i], squares[i], low, high)
        else:
            found = _fold_runs(values, start, shape, sums[i], squares[i], low, high)
        counts[i, 0], counts[i, 1], counts[i, 2] = found
        first, last, total, squared = np.int32(INFINITY_ORDER), np.int32(~INFINITY_ORDER), 0.0, 0.0
        for channel in range(channels):
            total += sums[i, channel]
            squared += squares[i, channel]
            first, last = min(first, low[channel]), max(last, high[channel])
            least[channel] = min(least[channel], low[channel])
            greatest[channel] = max(greatest[channel], high[channel])
        ranges[i, 0], ranges[i, 1] = finite_pattern(first), finite_pattern(last)
        reals[i, 0], reals[i, 1] = total, squared
