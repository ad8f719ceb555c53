"""Counts by key that one tensor keeps between its batches: adding a batch costs no sort and no merge.

Keys come in pages of half an octave, 8 KB each, there once a key of theirs occurred; about 0.5 MB a tensor in practice. A page whose
counts outgrow 16 bits takes 16 KB more; beyond 32 bits nothing fits: `room` says how many more values do for certain.
"""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _chunk_kernels, _page_kernels
from calibrant.stats._count_kernels import Table
from calibrant.stats._page_kernels import ABSENT, CAPACITY, NARROW_MOST, PAGE, PAGES, WIDE
from calibrant.stats.counting import ChunkWork

SPARE_SHARE: Final = (
    4  # one place to spare for each so many that are taken: unused ones cost memory, cleared as it is handed out
)
FLOAT32_MANTISSA_BITS: Final = 23

KeyArray = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]


class Gathered(NamedTuple):
    """What a chunk has for one end.

    Attributes:
        span: the one from which to go on.
        used: how many orders are in the buffer.
    """

    span: int
    used: int


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
        self._slots[PAGES] = WIDE  # the spare counters beyond the table, at the first two places
        self._pool = np.zeros(2 * PAGE, np.uint16)
        self._tops = np.zeros(PAGES + 1, np.int64)
        self._used = 2
        self.total = 0

    @property
    def room(self) -> int:
        """How many more values can be counted for certain."""
        return CAPACITY - self.total

    def add_chunk(
        self, table: Table, bits: KeyArray, work: ChunkWork, n_zero: int, keep: int
    ) -> tuple[Gathered, Gathered] | None:
        """Count patterns in a flat table, move the counts here, and gather what may be among the greatest orders of x and of -x.

        Args:
            table: counts of 16 or 32 bits, empty before and afterwards.
            bits: at most `room` patterns.
            work: filled; its floors are what is known already.
            n_zero: zeros of all patterns before.
            keep: how many values are wanted at each end.

        Returns:
            For x and for -x; None, and nothing is counted, where a count of the table has wrapped.
        """
        place = np.uint32(self._shift), self._sign
        given = (bits, *place, table, work.facts, *work.bounds, work.sums, self._slots)
        wanted = (n_zero, keep, work.floors, work.top, work.bottom)
        state, *found = _chunk_kernels.add_chunk(*given, self._pool, self._tops, self._used, *wanted)
        if state == _chunk_kernels.WRAPPED:
            return None
        while state != _chunk_kernels.POURED:
            self._used = found[0]
            self._grow(self._used + state)
            state, *found = _chunk_kernels.pour_chunk(*given, self._pool, self._tops, self._used, *wanted)
        self._used, top, n_top, bottom, n_bottom = found
        self.total += bits.size
        return Gathered(top, n_top), Gathered(bottom, n_bottom)

    def count(self, bits: KeyArray) -> None:
        """Count patterns one by one; at most `room`."""
        self.total += bits.size
        self._tops[:] = NARROW_MOST  # nobody notes them here
        done = 0
        while done < bits.size:
            done, self._used = _page_kernels.count_paged(
                bits, done, np.uint32(self._shift), self._slots, self._pool, self._used
            )
            if done < bits.size:
                self._grow(self._used + 2)

    def add(self, other: Self) -> None:
        """Add counts of equal mantissa bits; at most as many as there is room for."""
        self.total += other.total
        self._grow(self._used + other._used)
        page = 0
        while page < PAGES:
            given = page, other._slots, other._pool, self._slots, self._pool, self._tops, self._used
            page, self._used = _page_kernels.add_pages(*given)
            self._grow(self._used + (2 if page < PAGES else 0))

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
            grown = np.zeros((places + self._used // SPARE_SHARE) * PAGE, np.uint16)
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
