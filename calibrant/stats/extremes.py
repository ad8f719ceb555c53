"""The greatest and the least values of a tensor, exactly, each with its count."""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _extreme_kernels
from calibrant.stats._count_kernels import SPAN
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
        return Runs(*_extreme_kernels.merge_top(*self, *other, keep))


class SpanBounds(NamedTuple):
    """The least and the greatest finite order of each span of an array."""

    maxima: OrderArray
    minima: OrderArray

    @classmethod
    def of(cls, spans: int) -> Self:
        """Return room for that many spans."""
        return cls(np.empty(spans, np.int32), np.empty(spans, np.int32))

    def first(self, spans: int) -> Self:
        """Return those of the first spans, in the same memory."""
        return type(self)(self.maxima[:spans], self.minima[:spans])


class TopOrders:
    """The `keep` greatest of the orders that were offered, as a multiset without zeros.

    Offers wait unsorted until as many of them have come as are kept: a batch of a long run adds few.

    Args:
        keep: how many, counted with multiplicity.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._runs = Runs.empty()
        self._floor = LOWEST
        self._waiting: list[OrderArray] = []
        self._waiting_size = 0

    @property
    def floor(self) -> int:
        """What an order must exceed to change anything, as far as offers were looked at."""
        return self._floor

    def offer(self, orders: OrderArray) -> None:
        """Add orders of finite values, in any order."""
        self._waiting.append(orders)
        self._waiting_size += orders.size
        if self._waiting_size >= self._keep:
            self._settle()

    def add(self, runs: Runs) -> None:
        """Add a multiset."""
        self._runs = self._runs.merged(runs, self._keep)
        held = int(self._runs.counts.sum())
        self._floor = int(self._runs.orders[-1]) if held == self._keep else LOWEST

    def runs(self) -> Runs:
        """Return what is kept."""
        if self._waiting_size:
            self._settle()
        return self._runs

    def _settle(self) -> None:
        orders = np.sort(np.concatenate(self._waiting))
        self._waiting, self._waiting_size = [], 0
        self.add(Runs(*_extreme_kernels.top_runs(orders, orders.size, self._keep)))


class Extremes:
    """The greatest orders of x (`top`) and of -x (`bottom`).

    Args:
        keep: how many of each.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.top, self.bottom = TopOrders(keep), TopOrders(keep)

    def add(self, other: Self) -> None:
        """Add the extremes of another multiset, which keeps what it has."""
        self.top.add(other.top.runs())
        self.bottom.add(other.bottom.runs())

    def add_sorted(self, orders: OrderArray, first: int, last: int) -> None:
        """Add ascending orders, whose finite ones are at [first, last)."""
        self.top.add(Runs(*_extreme_kernels.top_runs(orders[first:], last - first, self._keep)))
        negated = np.invert(orders[:last])[::-1].copy()
        self.bottom.add(Runs(*_extreme_kernels.top_runs(negated, last - first, self._keep)))

    @property
    def floors(self) -> tuple[int, int]:
        """What the orders of x and of -x must exceed to change anything, as far as is known."""
        return self.top.floor, self.bottom.floor

    def add_values(self, bits: KeyArray, bounds: SpanBounds, floors: tuple[int, int]) -> None:
        """Add the values of an array.

        Args:
            bits: its patterns.
            bounds: of its spans.
            floors: what the orders of x and of -x must exceed to be among the greatest kept, as far as is known.
        """
        for side, maxima, flip, floor in (
            (self.top, bounds.maxima, 0, floors[0]), (self.bottom, ~bounds.minima, -1, floors[1])
        ):  # fmt: skip
            floor = max(floor, side.floor)
            if (maxima > floor).any():
                self.go_on(side, bits, maxima, flip, floor, np.empty(2 * self._keep + 4 * SPAN, np.int32))

    def go_on(
        self, side: TopOrders, bits: KeyArray, maxima: OrderArray, flip: int, floor: int, buffer: OrderArray,
        span: int = 0, used: int = 0,
    ) -> None:  # fmt: skip
        """Gather the orders above a floor from a span on, and offer them.

        Args:
            side: what to add to.
            bits: patterns.
            maxima: the greatest order of each span, flipped.
            flip: 0 for x, -1 for -x.
            floor: what an order must exceed.
            buffer: longer than `keep` and a span.
            span: the one to go on with.
            used: how many orders the buffer holds already.
        """
        keep = self._keep
        while span < maxima.size:
            span, used = _extreme_kernels.collect_top(bits, maxima, span, np.int32(flip), np.int32(floor), buffer, used)
            if span == maxima.size:
                break
            buffer[:keep] = np.partition(buffer[:used], used - keep)[used - keep :]
            floor, used = int(buffer[0]), keep
        if used:
            side.offer(buffer[:used].copy())
