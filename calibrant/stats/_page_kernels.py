"""Counts by key in pages: what one tensor keeps between its batches. A page is there once one of its keys occurred."""

import numpy as np
import numpy.typing as npt

from calibrant.stats._count_kernels import BLOCK, TABLE_SIZE, Table, table_spots
from calibrant.stats._jit import kernel
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS  # keys of a page: half an octave of the finest bins, 16 KB
PAGES = TABLE_SIZE // PAGE
ABSENT = -1

Pool = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.int32]


@kernel
def _page(pool: Pool, place: Number) -> Pool:
    return pool[np.int64(place) * PAGE : (np.int64(place) + 1) * PAGE]


@kernel
def _window(page: Number, low: Number, high: Number) -> tuple[Number, Number]:
    """Return which positions of a page hold keys in [low, high)."""
    return max(0, low - page * PAGE), min(PAGE, high - page * PAGE)


@kernel
def add_up(table: Table, first: Number, last: Number, sums: Pool) -> Number:
    """Fill in the sum of the counts of each page of a flat table, first to last inclusive; return the sum of all."""
    total = np.int64(0)
    for page in range(first, last + 1):
        counts, found = table[page * PAGE : (page + 1) * PAGE], np.uint32(0)
        for i in range(PAGE):
            found += np.uint32(counts[i])
        sums[page] = found
        total += np.int64(found)
    return total


@kernel
def pour(
    table: Table, first: Number, last: Number, sums: Pool, slots: Slots, pool: Pool, used: Number
) -> tuple[Number, Number]:
    """Move the counts of a range of a flat table's pages into pages, and leave zeros.

    Args:
        table: counts by key.
        first: first page.
        last: last page, inclusive.
        sums: of each page, as `add_up` fills them in.
        slots: the place of each page in the pool, or ABSENT; filled in.
        pool: places of PAGE counts each; those from `used` on are zero.
        used: how many places are taken.

    Returns:
        The page that found no place, or `last` + 1, and how many places are taken now.
    """
    for page in range(first, last + 1):
        if sums[page] == np.uint32(0):
            continue
        if slots[page] == ABSENT:
            if (used + 1) * PAGE > pool.size:
                return page, used
            slots[page] = used
            used += 1
        source, counts = table[page * PAGE : (page + 1) * PAGE], _page(pool, slots[page])
        for i in range(PAGE):
            counts[i] += source[i]
            source[i] = 0
    return last + 1, used


@kernel
def count_paged(
    bits: Keys, start: Number, shift: Number, slots: Slots, pool: Pool, used: Number
) -> tuple[Number, Number]:
    """Count patterns into pages at once, from `start` on; zeros go to the place of the spare counters.

    Returns:
        The position from which to go on once the pool has grown, or the number of patterns, and how many places are taken now.
    """
    spots = np.empty(BLOCK, np.uint32)
    for first in range(start, bits.size, BLOCK):
        block = bits[first : first + BLOCK]
        table_spots(block, shift, spots)
        for i in range(block.size):
            page = spots[i] >> np.uint32(PAGE_BITS)
            if slots[page] == ABSENT:
                if (used + 1) * PAGE > pool.size:
                    return first + i, used
                slots[page] = used
                used += 1
            place = np.uint32(slots[page]) << np.uint32(PAGE_BITS)
            pool[place | (spots[i] & np.uint32(PAGE - 1))] += np.uint32(1)
    return bits.size, used


@kernel
def add_pages(others: Slots, other_pool: Pool, slots: Slots, pool: Pool, used: Number) -> Number:
    """Add the pages of others; the pool has room for all of them. Return how many places are taken now."""
    for page in range(PAGES):
        if others[page] == ABSENT:
            continue
        if slots[page] == ABSENT:
            slots[page] = used
            used += 1
        counts, more = _page(pool, slots[page]), _page(other_pool, others[page])
        for i in range(PAGE):
            counts[i] += more[i]
    return used


@kernel
def _occupied(slots: Slots, pool: Pool, low: Number, high: Number) -> Number:
    """Count the keys in [low, high) that occurred."""
    found = np.int64(0)
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        counts = _page(pool, slots[page])[start:stop]
        for i in range(counts.size):
            found += np.int64(counts[i] != np.uint32(0))
    return found


@kernel
def _gather(slots: Slots, pool: Pool, low: Number, high: Number, keys: Keys, counts: Counts, used: Number) -> Number:
    """Append the keys in [low, high) that occurred; return the new length."""
    end = np.uint64(used)
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        found = _page(pool, slots[page])[start:stop]
        for i in range(found.size):
            keys[end] = np.uint32(page * PAGE + start + i)
            counts[end] = np.int64(found[i])
            end += np.uint64(found[i] != np.uint32(0))
    return np.int64(end)


@kernel
def paged_pairs(slots: Slots, pool: Pool, sign: Number, infinite: Number) -> tuple[Keys, Counts]:
    """Return the keys of finite values that occurred, ascending, and their counts.

    Args:
        slots: as for `pour`.
        pool: likewise.
        sign: the key of -0.0.
        infinite: the key of +infinity.
    """
    size = _occupied(slots, pool, 0, infinite) + _occupied(slots, pool, sign, sign + infinite)
    keys, counts = np.empty(size + 1, np.uint32), np.empty(size + 1, np.int64)  # one more, for what is written over
    end = _gather(slots, pool, 0, infinite, keys, counts, 0)
    _gather(slots, pool, sign, sign + infinite, keys, counts, end)
    return keys[:size], counts[:size]


@kernel
def _from_above(slots: Slots, pool: Pool, low: Number, high: Number, wanted: Number) -> tuple[Number, Number]:
    """Go down the keys in [low, high) until that many values are gathered; return the last key and how many they are."""
    gathered = np.int64(0)
    for page in range(-(-high // PAGE) - 1, low // PAGE - 1, -1):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        counts = _page(pool, slots[page])
        for i in range(stop - 1, start - 1, -1):
            gathered += np.int64(counts[i])
            if gathered >= wanted:
                return page * PAGE + i, gathered
    return low, gathered


@kernel
def _from_below(slots: Slots, pool: Pool, low: Number, high: Number, wanted: Number) -> tuple[Number, Number]:
    """Do the same upwards."""
    gathered = np.int64(0)
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        counts = _page(pool, slots[page])
        for i in range(start, stop):
            gathered += np.int64(counts[i])
            if gathered >= wanted:
                return page * PAGE + i, gathered
    return high, gathered


@kernel
def paged_floor(
    slots: Slots, pool: Pool, ahead: Number, behind: Number, infinite: Number, n_zero: Number, shift: Number, keep: Number
) -> Number:  # fmt: skip
    """Return an order that the `keep` greatest of the counted values exceed and few others do.

    Args:
        slots: as for `pour`.
        pool: likewise.
        ahead: the key of zero of the sign whose values are the great ones.
        behind: that of the other sign.
        infinite: the key of +infinity.
        n_zero: number of zeros, which are not wanted themselves.
        shift: how many low bits a key leaves out.
        keep: how many values are wanted.
    """
    key, gathered = _from_above(slots, pool, ahead, ahead + infinite, keep)
    if gathered >= keep:
        return (np.int64(key - ahead) << shift) - 1
    gathered += n_zero
    if gathered >= keep:
        return 0
    key, more = _from_below(slots, pool, behind, behind + infinite, keep - gathered)
    if gathered + more >= keep:
        return -((np.int64(key - behind) + 1) << shift) - 1
    return ~INFINITY_ORDER
