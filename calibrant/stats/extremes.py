"""The greatest and the least values of a tensor, exactly, each with its count."""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _extreme_kernels
from calibrant.stats._count_kernels import BLOCK
from calibrant.stats._orders import INFINITY_ORDER

OrderArray = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]

LOWEST: Final = ~INFINITY_ORDER


class Runs(NamedTuple):
    """A multiset, descending: orders and their counts. Zeros are left out."""

    orders: OrderArray
    counts: Int64Array

    @classmethod
    def empty(cls) -> Self:
        """Return no runs."""
        return cls(np.empty(0, np.int32), np.empty(0, np.int64))

    def merged(self, other: "Runs", keep: int) -> "Runs":
        """Return the `keep` greatest of both, the last count cut."""
        if not other.orders.size:
            return self
        return Runs(*_extreme_kernels.merge_top(*self, *other, keep))

    def floor(self, keep: int) -> int:
        """Return what an order must exceed to change the `keep` greatest."""
        return int(self.orders[-1]) if int(self.counts.sum()) == keep else LOWEST


class BlockBounds(NamedTuple):
    """The least and the greatest finite order of each block of an array."""

    maxima: OrderArray
    minima: OrderArray

    @classmethod
    def of_size(cls, n: int) -> Self:
        """Return room for the blocks of n values."""
        blocks = -(-n // BLOCK)
        return cls(np.empty(blocks, np.int32), np.empty(blocks, np.int32))


class Extremes(NamedTuple):
    """The greatest orders of x (`top`) and of -x (`bottom`)."""

    top: Runs
    bottom: Runs

    @classmethod
    def empty(cls) -> Self:
        """Return the extremes of nothing."""
        return cls(Runs.empty(), Runs.empty())

    @classmethod
    def of_sorted(cls, orders: OrderArray, first: int, last: int, keep: int) -> Self:
        """Return the extremes of ascending orders, whose finite ones are at [first, last)."""
        top = _extreme_kernels.top_runs(orders[first:], last - first, keep)
        bottom = _extreme_kernels.top_runs(np.invert(orders[:last])[::-1].copy(), last - first, keep)
        return cls(Runs(*top), Runs(*bottom))

    def merged(self, other: "Extremes", keep: int) -> "Extremes":
        """Return the extremes of both multisets together."""
        return Extremes(self.top.merged(other.top, keep), self.bottom.merged(other.bottom, keep))

    def with_values(self, bits: KeyArray, bounds: BlockBounds, floors: tuple[int, int], keep: int) -> "Extremes":
        """Return the extremes with those of an array.

        Args:
            bits: its patterns.
            bounds: of its blocks.
            floors: what the orders of x and of -x must exceed to be among the `keep` greatest, as far as is known.
            keep: how many are held.
        """
        top = _collected(bits, bounds.maxima, 0, max(floors[0], self.top.floor(keep)), keep)
        bottom = _collected(bits, ~bounds.minima, -1, max(floors[1], self.bottom.floor(keep)), keep)
        return self.merged(Extremes(top, bottom), keep)


def _collected(bits: KeyArray, maxima: OrderArray, flip: int, floor: int, keep: int) -> Runs:
    buffer = np.empty(2 * keep + 4 * BLOCK, np.int32)
    used = _extreme_kernels.collect_top(bits, maxima, np.int32(flip), np.int32(floor), keep, buffer)
    return Runs(*_extreme_kernels.top_runs(np.sort(buffer[:used]), used, keep)) if used else Runs.empty()
