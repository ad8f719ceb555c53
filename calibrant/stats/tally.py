"""How the values of an array come into a histogram: sorted, counted in its pages, or counted in a table first."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _pair_kernels
from calibrant.stats._count_kernels import LEAST, NO_FACTS, SPAN, Table, survey
from calibrant.stats._orders import value_orders
from calibrant.stats.bin_counts import BinCounts
from calibrant.stats.counting import CountScratch, lent
from calibrant.stats.extremes import Extremes, SpanBounds
from calibrant.stats.paged_counts import FLOAT32_MANTISSA_BITS

KeyArray = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]

DENSE_SIZE: Final = 1 << 16  # fewer values than this are sorted, the first ones of a histogram (measured)
TABLE_PAYS: Final = 1 << 17  # from here on a flat table that is emptied afterwards beats counting in pages (measured)
DENSE_CHUNK: Final = 1 << 24  # values between two looks for extremes, and for counts of 16 bits that wrapped


class Tally:
    """What was counted: bins, extremes, zeros, NaN and infinities.

    Args:
        mantissa_bits: of the bins.
        extremes_kept: how many values of each end are held.

    Attributes:
        bins: counts of the values that are finite and not zero.
        extremes: of the finite values, zeros left out.
        n: number of values.
        n_zero: of zeros.
        n_nan: of NaN.
        n_inf: of infinities.
    """

    def __init__(self, mantissa_bits: int, extremes_kept: int) -> None:
        self.bins = BinCounts(mantissa_bits)
        self.extremes = Extremes(extremes_kept)
        self.n = self.n_zero = self.n_nan = self.n_inf = 0
        self._mantissa_bits = mantissa_bits
        self._extremes_kept = extremes_kept
        self._is_crowded = False

    def count(self, bits: KeyArray, scratch: CountScratch | None, threads: int) -> None:
        """Count float32 patterns.

        Args:
            bits: flat and contiguous.
            scratch: tables to count in; idle ones are lent otherwise.
            threads: how many may share a large array.
        """
        if self.n + bits.size < DENSE_SIZE:
            self._count_by_sorting(bits)
            return
        count = min(threads, bits.size // DENSE_SIZE)
        if count <= 1:
            self._count_part(bits, scratch)
            return
        parts = np.array_split(bits, count)
        others = [type(self)(self._mantissa_bits, self._extremes_kept) for _ in parts[1:]]
        scratches = [scratch, *(None for _ in others)]
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(type(self)._count_part, [self, *others], parts, scratches))
        for other in others:
            self.add(other)

    def add(self, other: Self) -> None:
        """Add another tally of equal bins, which does not change."""
        self.bins.add(other.bins)
        self.extremes.add(other.extremes)
        self.add_counters(other.n, other.n_zero, other.n_nan, other.n_inf)

    def add_counters(self, n: int, n_zero: int, n_nan: int, n_inf: int) -> None:
        """Add numbers of values."""
        self.n += n
        self.n_zero += int(n_zero)
        self.n_nan += int(n_nan)
        self.n_inf += int(n_inf)

    def _count_by_sorting(self, bits: KeyArray) -> None:
        orders = value_orders(bits)
        orders.sort()
        keys, counts, n_zero, n_nan, first, last = _pair_kernels.count_sorted(orders, self._shift)
        self.bins.add_pairs(keys, counts)
        self.extremes.add_sorted(orders, first, last)
        self.add_counters(bits.size, n_zero, n_nan, bits.size - (last - first) - n_nan)

    def _count_part(self, bits: KeyArray, scratch: CountScratch | None) -> None:
        """Count the patterns of one thread."""
        if bits.size < TABLE_PAYS:
            self._count_few(bits)
        elif scratch is not None:
            self._count_many(bits, scratch)
        else:
            with lent() as tables:
                self._count_many(bits, tables)

    def _count_few(self, bits: KeyArray) -> None:
        """Count patterns in the pages at once, and look for extremes."""
        bounds, pages = SpanBounds.of(-(-bits.size // SPAN)), self.bins.pages(bits.size)
        facts = np.array(NO_FACTS, np.int64)
        survey(bits, facts, *bounds)
        pages.count(bits)
        self.add_counters(bits.size, *facts[:LEAST])
        self.extremes.add_values(bits, bounds, pages.floors(self.n_zero, self._extremes_kept))

    def _count_many(self, bits: KeyArray, tables: CountScratch) -> None:
        """Count in tables, a chunk at a time: in the narrow one, or in the wide one from the first time that a narrow count wraps."""
        for start in range(0, bits.size, DENSE_CHUNK):
            chunk = bits[start : start + DENSE_CHUNK]
            if self._is_crowded or not self._count_chunk(chunk, tables.narrow, tables):
                self._is_crowded = True
                self._count_chunk(chunk, tables.wide, tables)

    def _count_chunk(self, bits: KeyArray, table: Table, tables: CountScratch) -> bool:
        """Count in a table, and look for extremes; return False, with nothing counted, where a count wraps."""
        keep, extremes = self._extremes_kept, self.extremes
        work = tables.work(bits.size, keep)
        work.floors[:] = extremes.floors
        gathered = self.bins.pages(bits.size).add_chunk(table, bits, work, self.n_zero, keep)
        if gathered is None:
            return False
        self.add_counters(bits.size, *work.facts[:LEAST].tolist())
        (maxima, minima), (top, bottom) = work.bounds, gathered
        extremes.go_on(extremes.top, bits, maxima, 0, int(work.floors[0]), work.top, *top)
        extremes.go_on(extremes.bottom, bits, minima, -1, int(work.floors[1]), work.bottom, *bottom)
        return True

    @property
    def _shift(self) -> int:
        return FLOAT32_MANTISSA_BITS - self._mantissa_bits
