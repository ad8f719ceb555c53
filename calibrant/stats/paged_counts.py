"""Counts by key that one tensor keeps between its batches: adding a batch costs no sort and no merge.

Keys come in pages of half an octave, 16 KB each, there once a key of theirs occurred; at most 16 MB a tensor, about 1 MB in
practice. Counts are 32 bits wide: `room` says how many more values fit for certain.
"""

from typing import Final, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _page_kernels
from calibrant.stats._count_kernels import LEAST, ZEROS, Table
from calibrant.stats._page_kernels import ABSENT, PAGE, PAGE_BITS, PAGES

CAPACITY: Final = 2**32 - 1  # values that one count is sure to hold
FIRST_PLACES: Final = 128  # 2 MB of address space; memory comes with the pages that are used
FLOAT32_MANTISSA_BITS: Final = 23

KeyArray = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]


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

    def pour(self, table: Table, facts: Int64Array, n: int) -> bool:
        """Move the counts of a flat table here.

        Args:
            table: counts of n values; empty afterwards.
            facts: of these values, as `count_dense` notes them.
            n: at most `room`.

        Returns:
            False, and nothing is added, where a count of the table has wrapped.
        """
        sums = np.zeros(PAGES, np.uint32)
        ranges = self._ranges(facts)
        counted = sum(_page_kernels.add_up(table, *pages, sums) for pages in ranges)
        if counted + facts[ZEROS] != n:
            for first, last in ranges:
                table[first * PAGE : (last + 1) * PAGE] = 0
            return False
        for pages in ranges:
            self._pour_range(table, *pages, sums)
        self.total += n
        return True

    def _ranges(self, facts: Int64Array) -> list[tuple[int, int]]:
        """Return first and last page of each sign that may hold counts; of both where few mantissa bits let them share a page."""
        magnitudes = [int(magnitude) >> self._shift for magnitude in facts[LEAST:]]
        above, below = (tuple((sign + key) >> PAGE_BITS for key in magnitudes) for sign in (0, self._sign))
        return [(above[0], above[1]), (below[0], below[1])] if above[1] < below[0] else [(above[0], below[1])]

    def _pour_range(self, table: Table, first: int, last: int, sums: KeyArray) -> None:
        while first <= last:
            first, self._used = _page_kernels.pour(table, first, last, sums, self._slots, self._pool, self._used)
            if first <= last:
                self._grow(self._used + 1)

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
