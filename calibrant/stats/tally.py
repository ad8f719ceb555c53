"""How the values of an array come into a histogram: sorted, counted in its pages, or counted in a table first."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _pair_kernels
from calibrant.stats._count_kernels import LEAST, NO_FACTS, survey
from calibrant.stats._orders import value_orders
from calibrant.stats.bin_counts import BinCounts
from calibrant.stats.counting import CountScratch, lent
from calibrant.stats.extremes import Extremes, SpanBounds
from calibrant.stats.paged_counts import FLOAT32_MANTISSA_BITS, ChunkWork

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
            self._count_chunk(bits)
            return
        with lent(scratch) as tables:
            for start in range(0, bits.size, DENSE_CHUNK):
                self._count_in_table(bits[start : start + DENSE_CHUNK], tables)

    def _count_chunk(self, bits: KeyArray) -> None:
        """Count patterns in the pages at once, and look for extremes."""
        bounds, pages = SpanBounds.of_size(bits.size), self.bins.pages(bits.size)
        facts = np.array(NO_FACTS, np.int64)
        survey(bits, facts, *bounds)
        pages.count(bits)
        self.add_counters(bits.size, *facts[:LEAST])
        self.extremes.add_values(bits, bounds, pages.floors(self.n_zero, self._extremes_kept))

    def _count_in_table(self, bits: KeyArray, tables: CountScratch) -> None:
        """Count in the narrow table, or in the wide one from the first time that a narrow count wraps, and look for extremes."""
        keep, pages, extremes = self._extremes_kept, self.bins.pages(bits.size), self.extremes
        work = ChunkWork.of_size(bits.size, extremes.floors, keep)
        for table in (tables.wide,) if self._is_crowded else (tables.narrow, tables.wide):
            facts = np.array(NO_FACTS, np.int64)
            if pages.count_in(table, bits, facts, work):
                break
            self._is_crowded = True
        self.add_counters(bits.size, *facts[:LEAST])
        gathered = pages.pour(table, bits, facts, work, self.n_zero, keep)
        for n, (side, flip) in enumerate(((extremes.top, 0), (extremes.bottom, -1))):
            extremes.go_on(side, bits, work.bounds[n], flip, int(work.floors[n]), work.buffers[n], *gathered[n])

    @property
    def _shift(self) -> int:
        return FLOAT32_MANTISSA_BITS - self._mantissa_bits
