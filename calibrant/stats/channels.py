"""Sums and extremes of samples and channels, folded in a way that no grouping changes.

A sample is folded by itself: float64 sums in an order that its shape alone decides (docs/algorithms.md 15). Channels then add the
samples' sums exactly (`ExactSums`), so batch size, order and merge tree leave no trace. Only finite values count for sums and extremes.
"""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.errors import MergeError
from calibrant.stats import _blocked_kernels, _fold_kernels
from calibrant.stats._orders import INFINITY_ORDER, order_values
from calibrant.stats.exact_sums import ExactSums

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]

SUM_BITS: Final = (-149, 168)  # float32 values, up to 2**40 of them
FOLDED_WIDTHS: Final = (1, 2, 4, 8, 16)  # channels side by side that `fold_blocked` takes
_TOGETHER: Final = 16  # samples that are added at once: each addition costs 10 microseconds before the first channel
SQUARE_BITS: Final = (-298, 296)  # their squares


class SampleFold(NamedTuple):
    """What a batch of samples adds.

    Attributes:
        n_zero: shape (N,), zeros of each sample.
        n_nan: shape (N,).
        n_inf: shape (N,).
        minimum: shape (N,), NaN where no value is finite.
        maximum: shape (N,).
        total: shape (N,), sum of the finite values: the channels' sums added in order.
        total_squares: shape (N,), sum of their squares.
        channel_totals: shape (N, C), sum of each channel of each sample.
        channel_squares: shape (N, C).
        channel_minimum: shape (C,), over the batch; +inf where no value is finite.
        channel_maximum: shape (C,), -inf where none is.
    """

    n_zero: Int64Array
    n_nan: Int64Array
    n_inf: Int64Array
    minimum: Float32Array
    maximum: Float32Array
    total: Float64Array
    total_squares: Float64Array
    channel_totals: Float64Array
    channel_squares: Float64Array
    channel_minimum: Float32Array
    channel_maximum: Float32Array


def fold_samples(blocks: Float32Array) -> SampleFold:
    """Fold a batch of shape (N, outer, C, inner), each sample by itself.

    Example:
        >>> fold_samples(np.float32([[[[1, 2], [-3, 0]]]])).channel_totals.tolist()
        [[3.0, -3.0]]
    """
    room = _Room.of(blocks.shape[0], blocks.shape[2])
    values = _flat(blocks)
    _fold_kernels.fold_samples(values, values.view(np.uint32), blocks.shape, *room)
    return room.result()


def fold_blocked(blocks: Float32Array) -> SampleFold:
    """Fold a batch of shape (N, blocks, inner, width), width channels side by side, with the result that the channels as runs give.

    Example:
        >>> fold_blocked(np.float32([[[[1, -3], [2, 0]]]])).channel_totals.tolist()
        [[3.0, -3.0]]
    """
    samples, count, _, width = blocks.shape
    room = _Room.of(samples, count * width)
    _blocked_kernels.fold_blocked_samples(_flat(blocks), blocks.shape, *room)
    return room.result()


def _flat(blocks: Float32Array) -> Float32Array:
    values = blocks.reshape(-1)
    # Of the view alone: numba would compile all kernels twice, since inputs of a model are read-only.
    values.flags.writeable = False
    return values


class _Room(NamedTuple):
    """Arrays that the kernels fill."""

    counts: Int64Array
    ranges: Int32Array
    reals: Float64Array
    totals: Float64Array
    squares: Float64Array
    least: Int32Array
    greatest: Int32Array

    @classmethod
    def of(cls, samples: int, channels: int) -> Self:
        counts, ranges = np.zeros((samples, 3), np.int64), np.zeros((samples, 2), np.int32)
        totals, squares = np.zeros((samples, channels)), np.zeros((samples, channels))
        least = np.full(channels, INFINITY_ORDER, np.int32)
        return cls(counts, ranges, np.zeros((samples, 2)), totals, squares, least, ~least)

    def result(self) -> SampleFold:
        """Return what was folded."""
        extremes = order_values(self.ranges.reshape(-1)).reshape(-1, 2)
        extremes[np.isinf(extremes)] = np.nan
        n_zero, n_nan, n_inf = self.counts.T
        (minimum, maximum), (total, squares) = extremes.T, self.reals.T
        channels = self.totals, self.squares, order_values(self.least), order_values(self.greatest)
        return SampleFold(n_zero, n_nan, n_inf, minimum, maximum, total, squares, *channels)


class ChannelStatistics:
    """Counts, extremes and exact sums of the channels of one tensor.

    Channels that only some samples have (a dynamic last axis) count over those samples.
    """

    def __init__(self) -> None:
        self._n: Int64Array = np.zeros(0, np.int64)
        self._minimum: Float32Array = np.zeros(0, np.float32)
        self._maximum: Float32Array = np.zeros(0, np.float32)
        self._totals, self._squares = ExactSums(0, *SUM_BITS), ExactSums(0, *SQUARE_BITS)
        self._waiting: list[SampleFold] = []
        self._waiting_samples = 0

    def update(self, fold: SampleFold, values_per_channel: int) -> None:
        """Add a batch, in place.

        Args:
            fold: the folded batch.
            values_per_channel: how many values a channel of one sample has.
        """
        samples, channels = fold.channel_totals.shape
        if self._waiting and self._waiting[0].channel_minimum.size != channels:
            self.settle()
        self._grow(channels)
        self._n[:channels] += samples * values_per_channel
        self._waiting.append(fold)
        self._waiting_samples += samples
        if self._waiting_samples >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Add the batches that wait, which all have as many channels; done by itself when one reads."""
        if not self._waiting:
            return
        folds, self._waiting, self._waiting_samples = self._waiting, [], 0
        mine = slice(folds[0].channel_minimum.size)
        self._minimum[mine] = np.min([self._minimum[mine], *(fold.channel_minimum for fold in folds)], axis=0)
        self._maximum[mine] = np.max([self._maximum[mine], *(fold.channel_maximum for fold in folds)], axis=0)
        self._totals.add(np.concatenate([fold.channel_totals for fold in folds]))
        self._squares.add(np.concatenate([fold.channel_squares for fold in folds]))

    def merge(self, other: Self) -> Self:
        """Return the statistics of both together; the empty one is the identity."""
        self.settle()
        other.settle()
        merged = type(self)()
        merged._grow(max(self._n.size, other._n.size))
        for part in (self, other):
            mine = slice(part._n.size)
            merged._n[mine] += part._n
            np.minimum(merged._minimum[mine], part._minimum, out=merged._minimum[mine])
            np.maximum(merged._maximum[mine], part._maximum, out=merged._maximum[mine])
        merged._totals = self._totals.merge(other._totals)
        merged._squares = self._squares.merge(other._squares)
        return merged

    def columns(self) -> dict[str, AnyArray]:
        """Return one value a channel, as `channel_columns` has them."""
        self.settle()
        return channel_columns(self._n, self._minimum, self._maximum, self._totals.values(), self._squares.values())

    def _grow(self, channels: int) -> None:
        more = channels - self._n.size
        if more <= 0:
            return
        self._n = np.concatenate([self._n, np.zeros(more, np.int64)])
        self._minimum = np.concatenate([self._minimum, np.full(more, np.inf, np.float32)])
        self._maximum = np.concatenate([self._maximum, np.full(more, -np.inf, np.float32)])
        self._totals, self._squares = self._totals.resized(channels), self._squares.resized(channels)


def channel_columns(
    n: Int64Array, minimum: Float32Array, maximum: Float32Array, totals: Float64Array, squares: Float64Array
) -> dict[str, AnyArray]:
    """Return the columns that the `channels` and `weights` tables share, one value a channel.

    Args:
        n: shape (C,), values of each channel, NaN and infinity included.
        minimum: shape (C,), over finite values; +inf where there is none, which becomes NaN.
        maximum: shape (C,), -inf where there is none.
        totals: shape (C,).
        squares: shape (C,).
    """
    found = minimum <= maximum
    low, high = (np.where(found, bound, np.float32(np.nan)) for bound in (minimum, maximum))
    return {
        "channel": np.arange(n.size, dtype=np.int32),
        "n": n,
        "min": low,
        "max": high,
        "abs_max": np.maximum(np.abs(low), np.abs(high)),
        "sum": totals,
        "sum_sq": squares,
    }


def require_equal(what: str, mine: object, theirs: object) -> None:
    """Refuse to merge statistics that differ in what they describe.

    Raises:
        MergeError: the two differ.
    """
    if mine != theirs:
        message = f"statistics of {what} {mine} and {theirs} cannot be merged"
        raise MergeError(message)
