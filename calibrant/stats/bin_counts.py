"""The counts of a histogram's bins, however they came: sorted pairs of any size, and pages for what is counted value by value."""

from typing import Self

import numpy as np
import numpy.typing as npt

from calibrant.stats import _pair_kernels
from calibrant.stats.paged_counts import PagedCounts

KeyArray = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]
Pairs = tuple[KeyArray, Int64Array]


class BinCounts:
    """How often each bin occurred; the zeros have none.

    Args:
        mantissa_bits: of the keys.
    """

    def __init__(self, mantissa_bits: int) -> None:
        self._mantissa_bits = mantissa_bits
        self._pairs: Pairs = np.empty(0, np.uint32), np.empty(0, np.int64)
        self._pages: PagedCounts | None = None
        self._joined: Pairs | None = self._pairs

    def add_pairs(self, keys: KeyArray, counts: Int64Array) -> None:
        """Add counts by key, ascending."""
        self._pairs = _added(self._pairs, (keys, counts))
        self._joined = None

    def add(self, other: Self) -> None:
        """Add the counts of another histogram of equal bins, which does not change."""
        if other._pages is not None:
            self.pages(other._pages.total).add(other._pages)
        self.add_pairs(*other._pairs)

    def pages(self, n: int) -> PagedCounts:
        """Return pages to count n more values in; counts that they might not hold move to the pairs first."""
        if self._pages is not None and self._pages.room < n:
            self.add_pairs(*self._pages.pairs())
            self._pages = None
        if self._pages is None:
            self._pages = PagedCounts(self._mantissa_bits)
        self._joined = None
        return self._pages

    def pairs(self, *, keep: bool = True) -> Pairs:
        """Return the occupied bins: keys, ascending, and their counts; they are held for the next call if `keep`."""
        if self._joined is not None:
            return self._joined
        joined = self._pairs if self._pages is None else _added(self._pairs, self._pages.pairs())
        if keep:
            self._joined = joined
        return joined


def _added(one: Pairs, two: Pairs) -> Pairs:
    """Return counts by key added; what has nothing added to it is not copied."""
    if not one[0].size or not two[0].size:
        return one if one[0].size else two
    return _pair_kernels.merge_pairs(*one, *two)
