"""Counts by key that one tensor keeps between its batches: adding a batch costs no sort and no merge.

Keys come in pages of half an octave, 16 KB each, there once a key of theirs occurred; at most 16 MB a tensor, about 1 MB in
practice. Counts are 32 bits wide: `room` says how many more values fit for certain.
"""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _chunk_kernels, _page_kernels
from calibrant.stats._count_kernels import SPAN, ZEROS, Table
from calibrant.stats._page_kernels import ABSENT, PAGE, PAGES

CAPACITY: Final = 2**32 - 1  # values that one count is sure to hold
FIRST_PLACES: Final = 128  # 2 MB of address space; memory comes with the pages that are used
FLOAT32_MANTISSA_BITS: Final = 23

KeyArray = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]


Gathered = tuple[int, int]  # a span, and entries of a buffer


class ChunkWork(NamedTuple):
    """Arrays that the two calls for a chunk share.

    Attributes:
        bounds: shape (2, spans), greatest and least order of each span.
        sums: shape (PAGES,), of the counts of each page.
        floors: shape (2,), what orders of x and of -x must exceed.
        buffers: shape (2, more than a span), orders that do.
    """

    bounds: npt.NDArray[np.int32]
    sums: KeyArray
    floors: Int64Array
    buffers: npt.NDArray[np.int32]

    @classmethod
    def of_size(cls, n: int, floors: tuple[int, int], keep: int) -> Self:
        """Return room for n values, of which `keep` are wanted at each end."""
        bounds, buffers = np.empty((2, -(-n // SPAN)), np.int32), np.empty((2, 2 * keep + 4 * SPAN), np.int32)
        return cls(bounds, np.empty(PAGES, np.uint32), np.array(floors, np.int64), buffers)


class PagedCounts:
    """How often each key occurred.

    Args:
        mantissa_bits: of a key.

    Attributes:
        total: how many values are counted, zeros and NaN included.
    """

    def __init__(self, mantissa_bits: int) -> None:
        self._mantissa_bits = mantissa_bits
        self._slots = np.full(PAGES + 1, ABSENT, np.int32)
        self._slots[PAGES] = 0  # the spare counters beyond the table
        self._pool = np.zeros(FIRST_PLACES * PAGE, np.uint32)
        self._used = 1
        self.total = 0

    @property
    def room(self) -> int:
        """How many more values can be counted for certain."""
        return CAPACITY - self.total

    def count_in(self, table: Table, bits: KeyArray, facts: Int64Array, work: "ChunkWork") -> bool:
        """Count patterns in a flat table, which is empty before.

        Args:
            table: counts of 16 or 32 bits.
            bits: at most `room` patterns.
            facts: of these values, filled.
            work: filled for `pour`.

        Returns:
            False, and the table is empty again, where a count of it has wrapped.
        """
        place = np.uint32(self._shift), self._sign
        held, missing = _chunk_kernels.count_chunk(bits, *place, table, facts, work.bounds, work.sums, self._slots)
        if held + facts[ZEROS] != bits.size:
            _chunk_kernels.empty_table(table, facts, *place)
            return False
        self._grow(self._used + missing)
        return True

    def pour(
        self, table: Table, bits: KeyArray, facts: Int64Array, work: "ChunkWork", n_zero: int, keep: int
    ) -> tuple[Gathered, Gathered]:
        """Move what `count_in` counted here, and gather what may be among the greatest orders of x and of -x.

        Args:
            table: empty afterwards.
            bits: as for `count_in`.
            facts: as it filled them.
            work: likewise; its floors are what is known already.
            n_zero: zeros of all patterns so far.
            keep: how many values are wanted at each end.

        Returns:
            For x and for -x: the span from which to go on, and how many orders are in the buffer.
        """
        self._used, *found = _chunk_kernels.pour_chunk(
            bits, np.uint32(self._shift), self._sign, table, facts, work.bounds, work.sums,
            self._slots, self._pool, self._used, n_zero, keep, work.floors, work.buffers,
        )  # fmt: skip
        self.total += bits.size
        return (found[0], found[1]), (found[2], found[3])

    def count(self, bits: KeyArray) -> None:
        """Count patterns one by one; at most `room`."""
        self.total += bits.size
        done = 0
        while done < bits.size:
            done, self._used = _page_kernels.count_paged(
                bits, done, np.uint32(self._shift), self._slots, self._pool, self._used
            )
            if done < bits.size:
                self._grow(self._used + 1)

    def add(self, other: Self) -> None:
        """Add counts of equal mantissa bits; at most as many as there is room for."""
        self.total += other.total
        self._grow(self._used + other._used)
        self._used = _page_kernels.add_pages(other._slots, other._pool, self._slots, self._pool, self._used)

    def pairs(self) -> tuple[KeyArray, Int64Array]:
        """Return the keys of finite values that occurred, ascending, and their counts; zero has none."""
        return _page_kernels.paged_pairs(self._slots, self._pool, self._sign, self._infinite)

    def floors(self, n_zero: int, keep: int) -> tuple[int, int]:
        """Return what the orders of x and of -x must exceed to be among the `keep` greatest, as far as the counts tell."""
        signs = (0, self._sign), (self._sign, 0)
        top, bottom = (
            _page_kernels.paged_floor(self._slots, self._pool, *pair, self._infinite, n_zero, self._shift, keep)
            for pair in signs
        )
        return top, bottom

    def _grow(self, places: int) -> None:
        """Make room for that many places, and some more."""
        if places * PAGE > self._pool.size:
            grown = np.zeros(places * 3 // 2 * PAGE, np.uint32)
            grown[: self._used * PAGE] = self._pool[: self._used * PAGE]
            self._pool = grown

    @property
    def _shift(self) -> int:
        return FLOAT32_MANTISSA_BITS - self._mantissa_bits

    @property
    def _sign(self) -> int:
        return 1 << (8 + self._mantissa_bits)

    @property
    def _infinite(self) -> int:
        return 255 << self._mantissa_bits
