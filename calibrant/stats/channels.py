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
_TOGETHER: Final = 16  # samples that are added at once: each addition costs microseconds before the first channel
SQUARE_BITS: Final = (-298, 296)  # their squares


class SampleFold(NamedTuple):
    """What the samples of a batch hold.

    Attributes:
        counts: shape (N, 3), zeros, NaN and infinities of each sample.
        ranges: shape (N, 2), least and greatest finite value; NaN where none is.
        sums: shape (N, 2), sum of the finite values, which adds the channels' sums in order, and sum of their squares.
    """

    counts: Int64Array
    ranges: Float32Array
    sums: Float64Array

    @classmethod
    def of(cls, samples: int) -> Self:
        """Return room for that many samples."""
        return cls(np.empty((samples, 3), np.int64), np.empty((samples, 2), np.float32), np.empty((samples, 2)))


class ChannelRows(NamedTuple):
    """Where the channels of a batch go.

    Attributes:
        totals: shape (N, C), filled: sum of each channel of each sample.
        squares: shape (N, C), filled: sum of squares.
        least: shape (C,), orders, lowered to those of finite values.
        greatest: shape (C,), raised.
    """

    totals: Float64Array
    squares: Float64Array
    least: Int32Array
    greatest: Int32Array

    @classmethod
    def of(cls, samples: int, channels: int) -> Self:
        """Return rows of no value yet."""
        least = np.full(channels, INFINITY_ORDER, np.int32)
        return cls(np.empty((samples, channels)), np.empty((samples, channels)), least, ~least)


def fold_samples(blocks: Float32Array, rows: ChannelRows) -> SampleFold:
    """Fold a batch of shape (N, outer, C, inner), each sample by itself, into rows of N samples and C channels.

    Example:
        >>> rows = ChannelRows.of(1, 2)
        >>> fold_samples(np.float32([[[[1, 2], [-3, 0]]]]), rows).sums.tolist(), rows.totals.tolist()
        ([[0.0, 14.0]], [[3.0, -3.0]])
    """
    values, fold = _flat(blocks), SampleFold.of(blocks.shape[0])
    _fold_kernels.fold_samples(
        values, values.view(np.uint32), blocks.shape, fold.counts, fold.ranges.view(np.uint32), fold.sums, *rows
    )
    return fold


def fold_blocked(blocks: Float32Array, rows: ChannelRows) -> SampleFold:
    """Fold a batch of shape (N, blocks, inner, width), width channels side by side, with the result that the channels as runs give.

    Example:
        >>> rows = ChannelRows.of(1, 2)
        >>> fold_blocked(np.float32([[[[1, -3], [2, 0]]]]), rows).sums.tolist(), rows.totals.tolist()
        ([[0.0, 14.0]], [[3.0, -3.0]])
    """
    fold = SampleFold.of(blocks.shape[0])
    _blocked_kernels.fold_blocked_samples(
        _flat(blocks), blocks.shape, fold.counts, fold.ranges.view(np.uint32), fold.sums, *rows
    )
    return fold


def _flat(blocks: Float32Array) -> Float32Array:
    values = blocks.reshape(-1)
    # Of the view alone: numba would compile all kernels twice, since inputs of a model are read-only.
    values.flags.writeable = False
    return values


class ChannelStatistics:
    """Counts, extremes and exact sums of the channels of one tensor.

    Channels that only some samples have (a dynamic last axis) count over those samples.
    """

    def __init__(self) -> None:
        self._n: Int64Array = np.zeros(0, np.int64)
        self._totals, self._squares = ExactSums(0, *SUM_BITS), ExactSums(0, *SQUARE_BITS)
        self._waiting = ChannelRows.of(0, 0)
        self._used = 0

    def rows(self, samples: int, channels: int) -> ChannelRows:
        """Return where the next samples go; they count once `add` is told.

        Args:
            samples: how many.
            channels: of each.
        """
        self._grow(channels)
        room, width = self._waiting.totals.shape
        if width != channels or self._used + samples > room:
            self.settle()
            if width != channels or samples > room:
                shape = (max(_TOGETHER, samples), channels)
                self._waiting = self._waiting._replace(totals=np.empty(shape), squares=np.empty(shape))
        totals, squares, least, greatest = self._waiting
        part = slice(self._used, self._used + samples)
        return ChannelRows(totals[part], squares[part], least[:channels], greatest[:channels])

    def add(self, rows: ChannelRows, values_per_channel: int) -> None:
        """Take the rows that were given and filled.

        Args:
            rows: as `rows` returned them last.
            values_per_channel: how many values a channel of one sample has.
        """
        samples, channels = rows.totals.shape
        self._n[:channels] += samples * values_per_channel
        self._used += samples

    def settle(self) -> None:
        """Add the samples that wait; done by itself when one reads."""
        used, self._used = self._used, 0
        if used:
            self._totals.add(self._waiting.totals[:used])
            self._squares.add(self._waiting.squares[:used])

    def merge(self, other: Self) -> Self:
        """Return the statistics of both together; the empty one is the identity."""
        self.settle()
        other.settle()
        merged = type(self)()
        merged._grow(max(self._n.size, other._n.size))
        least, greatest = merged._waiting.least, merged._waiting.greatest
        for part in (self, other):
            mine = slice(part._n.size)
            merged._n[mine] += part._n
            np.minimum(least[mine], part._waiting.least, out=least[mine])
            np.maximum(greatest[mine], part._waiting.greatest, out=greatest[mine])
        merged._totals = self._totals.merge(other._totals)
        merged._squares = self._squares.merge(other._squares)
        return merged

    def columns(self) -> dict[str, AnyArray]:
        """Return one value a channel, as `channel_columns` has them."""
        self.settle()
        _, _, least, greatest = self._waiting
        return channel_columns(self._n, least, greatest, self._totals.values(), self._squares.values())

    def _grow(self, channels: int) -> None:
        """Add channels of no value yet."""
        more = channels - self._n.size
        if more <= 0:
            return
        self._n = np.concatenate([self._n, np.zeros(more, np.int64)])
        old, new = self._waiting, ChannelRows.of(0, more)
        least, greatest = np.concatenate([old.least, new.least]), np.concatenate([old.greatest, new.greatest])
        self._waiting = old._replace(least=least, greatest=greatest)
        self._totals, self._squares = self._totals.resized(channels), self._squares.resized(channels)


def channel_columns(
    n: Int64Array, least: Int32Array, greatest: Int32Array, totals: Float64Array, squares: Float64Array
) -> dict[str, AnyArray]:
    """Return the columns that the `channels` and `weights` tables share, one value a channel.

    Args:
        n: shape (C,), values of each channel, NaN and infinity included.
        least: shape (C,), order of the least finite value; where there is none that of +inf, which becomes NaN.
        greatest: shape (C,), of the greatest; where there is none that of -inf.
        totals: shape (C,).
        squares: shape (C,).
    """
    low, high = (np.where(least <= greatest, order_values(bound), np.float32(np.nan)) for bound in (least, greatest))
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
