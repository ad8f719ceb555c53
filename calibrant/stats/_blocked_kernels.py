"""Samples whose channels lie side by side, folded one by one as `_fold_kernels` folds those whose channels are runs."""

import numpy as np

from calibrant.stats._block_lanes import fold_block, fold_finite_block
from calibrant.stats._jit import kernel
from calibrant.stats._lanes import LANES
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, Reals, Values, finite_pattern


@kernel
def _halve(lanes: Reals) -> None:
    """Add the upper half of the lanes to the lower half until one is left, in row 0."""
    half = LANES // 2
    while half:
        for lane in range(half):
            for channel in range(lanes.shape[1]):
                lanes[lane, channel] += lanes[lane + half, channel]
        half //= 2


@kernel
def _fold_any_block(values: Values, start: Number, count: Number, lanes: Reals, squares: Reals, kept: Orders) -> None:
    """Fold a block that holds values that are not finite; leave the channels' sums and squares in row 0."""
    lanes[:] = 0.0
    squares[:] = 0.0
    fold_block(values, start, count, lanes.shape[1], lanes, squares, kept)
    _halve(lanes)
    _halve(squares)


@kernel
def _bound(kept: Orders, width: Number, least: Orders, greatest: Orders) -> None:
    """Fill in least and greatest order of the channels of a block."""
    for channel in range(width):
        least[channel], greatest[channel] = kept[0, channel], kept[1, channel]
        for place in range(channel + width, LANES, width):
            least[channel] = min(least[channel], kept[0, place])
            greatest[channel] = max(greatest[channel], kept[1, place])


@kernel
def fold_blocked_samples(
    values: Values, shape: tuple[Number, Number, Number, Number],
    counts: Counts, ranges: Keys, reals: Reals, sums: Reals, squares: Reals, least: Orders, greatest: Orders,
) -> None:  # fmt: skip
    """Fold each sample by itself.

    Args:
        values: flat, of the shape below.
        shape: (N, blocks, inner, width): width channels side by side, a divisor of 16.
        counts: shape (N, 3), filled, as all below by `_fold_kernels.fold_samples`.
        ranges: shape (N, 2).
        reals: shape (N, 2).
        sums: shape (N, C).
        squares: shape (N, C).
        least: shape (C,).
        greatest: shape (C,).
    """
    samples, blocks, inner, width = shape
    lanes, lane_squares = np.empty((LANES, width)), np.empty((LANES, width))
    kept = np.empty((5, LANES), np.int32)
    low, high = np.empty(width, np.int32), np.empty(width, np.int32)
    start = 0
    for i in range(samples):
        first, last, total, squared = np.int32(INFINITY_ORDER), np.int32(~INFINITY_ORDER), 0.0, 0.0
        counts[i, 0] = counts[i, 1] = counts[i, 2] = 0
        for block in range(blocks):
            lanes[:] = 0.0
            lane_squares[:] = 0.0
            fold_finite_block(values, start, inner * width, width, lanes, lane_squares, kept)
            _halve(lanes)
            _halve(lane_squares)
            block_squared = 0.0
            for k in range(width):
                block_squared += lane_squares[0, k]
            if not np.isfinite(block_squared):
                _fold_any_block(values, start, inner * width, lanes, lane_squares, kept)
            start += inner * width
            _bound(kept, width, low, high)
            for place in range(LANES):
                for kind in range(3):
                    counts[i, kind] += kept[2 + kind, place]
            for k in range(width):
                channel = block * width + k
                sums[i, channel], squares[i, channel] = lanes[0, k], lane_squares[0, k]
                total += lanes[0, k]
                squared += lane_squares[0, k]
                first, last = min(first, low[k]), max(last, high[k])
                least[channel], greatest[channel] = min(least[channel], low[k]), max(greatest[channel], high[k])
        ranges[i, 0], ranges[i, 1] = finite_pattern(first), finite_pattern(last)
        reals[i, 0], reals[i, 1] = total, squared
