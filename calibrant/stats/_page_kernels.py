"""Counts by key in pages: what one tensor keeps between its batches. A page is there once one of its keys occurred.

A page begins with counts of 16 bits, half the memory and the cache of 32, and is copied into one of 32 when a count would wrap.
"""

import numpy as np
import numpy.typing as npt

from calibrant.stats._count_kernels import BLOCK, TABLE_SIZE, Table, table_spots
from calibrant.stats._jit import kernel
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS  # keys of a page: half an octave of the finest bins, 8 KB of narrow counts
PAGES = TABLE_SIZE // PAGE
ABSENT = -1
WIDE = 1 << 30  # added to the place of a page whose counts have 32 bits and take two places
NARROW_MOST = 0xFFFF
CAPACITY = 2**32 - 1  # values that one count is sure to hold

Pool = npt.NDArray[np.uint16]
Sums = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.int32]
Tops = npt.NDArray[np.int64]


@kernel
def _narrow(pool: Pool, slot: Number) -> Table:
    return pool[np.int64(slot) * PAGE : (np.int64(slot) + 1) * PAGE]


@kernel
def _wide(pool: Pool, slot: Number) -> Table:
    start = np.int64(slot - WIDE) * PAGE
    return pool[start : start + 2 * PAGE].view(np.uint32)


@kernel
def _window(page: Number, low: Number, high: Number) -> tuple[Number, Number]:
    """Return which positions of a page hold keys in [low, high)."""
    return max(0, low - page * PAGE), min(PAGE, high - page * PAGE)


@kernel
def add_up(table: Table, first: Number, last: Number, sums: Sums) -> Number:
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
def _fits(counts: Table, source: Table) -> Number:
    """Return whether no sum of a narrow count and what comes to it wraps."""
    found = np.uint32(0)
    for i in range(PAGE):
        found |= np.uint32(counts[i]) + np.uint32(source[i])
    return found <= np.uint32(NARROW_MOST)


@kernel
def _top(counts: Table) -> Number:
    """Return the greatest of narrow counts."""
    found = np.uint16(0)
    for i in range(PAGE):
        found = max(found, counts[i])
    return np.int64(found)


@kernel
def _has_room(counts: Table, source: Table, total: Number, tops: Tops, page: Number) -> Number:
    """Return whether what comes to the counts of a page makes none of them wrap, and note what they may be then at most."""
    if tops[page] + total > NARROW_MOST:
        tops[page] = _top(counts)
    if tops[page] + total > NARROW_MOST and not _fits(counts, source):
        return False
    tops[page] = min(tops[page] + total, NARROW_MOST)
    return True


@kernel
def _add(counts: Table, source: Table) -> None:
    for i in range(PAGE):
        counts[i] += source[i]


@kernel
def _widen(slots: Slots, pool: Pool, used: Number, page: Number) -> None:
    """Copy a narrow page to the next two places."""
    counts = _narrow(pool, slots[page])
    slots[page] = used + WIDE
    copied = _wide(pool, slots[page])
    for i in range(PAGE):
        copied[i] = counts[i]


@kernel
def _add_to_page(
    source: Table, total: Number, page: Number, slots: Slots, pool: Pool, tops: Tops, used: Number
) -> tuple[bool, Number]:
    """Add counts to a page.

    Args:
        source: PAGE counts.
        total: none of them is greater.
        page: which.
        slots: the place of each page in the pool, or ABSENT; filled in.
        pool: places of PAGE narrow counts each; those from `used` on are zero.
        tops: what no count of a narrow page exceeds, raised.
        used: how many places are taken.

    Returns:
        Whether there was a place, without which nothing is added, and how many are taken now.
    """
    if slots[page] == ABSENT:
        if (used + 1) * PAGE > pool.size:
            return False, used
        slots[page] = used
        used += 1
    if slots[page] < WIDE:
        if _has_room(_narrow(pool, slots[page]), source, total, tops, page):
            _add(_narrow(pool, slots[page]), source)
            return True, used
        if (used + 2) * PAGE > pool.size:
            return False, used
        _widen(slots, pool, used, page)
        used += 2
    _add(_wide(pool, slots[page]), source)
    return True, used


@kernel
def pour(
    table: Table, first: Number, last: Number, sums: Sums, slots: Slots, pool: Pool, tops: Tops, used: Number
) -> tuple[bool, Number]:
    """Move the counts of a range of a flat table's pages into pages, and leave zeros.

    Args:
        table: counts by key.
        first: first page.
        last: last page, inclusive.
        sums: of each page, as `add_up` fills them in; zero for what was moved.
        slots: the place of each page in the pool, or ABSENT; filled in.
        pool: places of PAGE narrow counts each; those from `used` on are zero.
        tops: what no count of a narrow page exceeds, raised.
        used: how many places are taken.

    Returns:
        Whether all pages found a place, and how many places are taken now.
    """
    for page in range(first, last + 1):
        if sums[page] == np.uint32(0):
            continue
        source = table[page * PAGE : (page + 1) * PAGE]
        is_added, used = _add_to_page(source, np.int64(sums[page]), page, slots, pool, tops, used)
        if not is_added:
            return False, used
        for i in range(PAGE):
            source[i] = 0
        sums[page] = 0
    return True, used


@kernel
def places_missing(first: Number, last: Number, sums: Sums, slots: Slots) -> Number:
    """Return how many places `pour` may still take for pages that are absent."""
    found = 0
    for page in range(first, last + 1):
        found += (sums[page] != 0) & (slots[page] == ABSENT)
    return found


@kernel
def count_paged(
    bits: Keys, start: Number, shift: Number, slots: Slots, pool: Pool, used: Number
) -> tuple[Number, Number]:
    """Count patterns into pages at once, from `start` on; zeros go to the place of the spare counters, which is wide.

    Returns:
        The position from which to go on once the pool has grown by two places, or the number of patterns, and how many places are
        taken now.
    """
    spots, wide = np.empty(BLOCK, np.uint32), pool.view(np.uint32)
    for first in range(start, bits.size, BLOCK):
        block = bits[first : first + BLOCK]
        table_spots(block, shift, spots)
        for i in range(block.size):
            page, spot = spots[i] >> np.uint32(PAGE_BITS), np.int64(spots[i] & np.uint32(PAGE - 1))
            if slots[page] == ABSENT:
                if (used + 1) * PAGE > pool.size:
                    return first + i, used
                slots[page] = used
                used += 1
            if slots[page] < WIDE:
                place = np.int64(slots[page]) * PAGE + spot
                if pool[place] < np.uint16(NARROW_MOST):
                    pool[place] += np.uint16(1)
                    continue
                if (used + 2) * PAGE > pool.size:
                    return first + i, used
                _widen(slots, pool, used, page)
                used += 2
            wide[np.int64(slots[page] - WIDE) * (PAGE // 2) + spot] += np.uint32(1)
    return bits.size, used


@kernel
def add_pages(
    start: Number, others: Slots, other_pool: Pool, slots: Slots, pool: Pool, tops: Tops, used: Number
) -> tuple[Number, Number]:
    """Add the pages of others from `start` on.

    Returns:
        The page from which to go on once the pool has grown by two places, or PAGES, and how many places are taken now.
    """
    for page in range(start, PAGES):
        if others[page] == ABSENT:
            continue
        if others[page] < WIDE:
            counts = _narrow(other_pool, others[page])
            is_added, used = _add_to_page(counts, NARROW_MOST, page, slots, pool, tops, used)
        else:
            wide = _wide(other_pool, others[page])
            is_added, used = _add_to_page(wide, CAPACITY, page, slots, pool, tops, used)
        if not is_added:
            return page, used
    return PAGES, used


@kernel
def _occupied_of(counts: Table) -> Number:
    found = np.int64(0)
    for i in range(counts.size):
        found += np.int64(counts[i] != 0)
    return found


@kernel
def _occupied(slots: Slots, pool: Pool, low: Number, high: Number) -> Number:
    """Count the keys in [low, high) that occurred."""
    found = np.int64(0)
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        if slots[page] < WIDE:
            found += _occupied_of(_narrow(pool, slots[page])[start:stop])
        else:
            found += _occupied_of(_wide(pool, slots[page])[start:stop])
    return found


@kernel
def _gather_of(found: Table, first: Number, keys: Keys, counts: Counts, used: Number) -> Number:
    end = np.uint64(used)
    for i in range(found.size):
        keys[end] = np.uint32(first + i)
        counts[end] = np.int64(found[i])
        end += np.uint64(found[i] != 0)
    return np.int64(end)


@kernel
def _gather(slots: Slots, pool: Pool, low: Number, high: Number, keys: Keys, counts: Counts, used: Number) -> Number:
    """Append the keys in [low, high) that occurred; return the new length."""
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        if slots[page] < WIDE:
            used = _gather_of(_narrow(pool, slots[page])[start:stop], page * PAGE + start, keys, counts, used)
        else:
            used = _gather_of(_wide(pool, slots[page])[start:stop], page * PAGE + start, keys, counts, used)
    return used


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
def _last_of(counts: Table, wanted: Number) -> tuple[Number, Number]:
    """Go down a page until that many values are gathered; return the position, -1 for none, and how many they are."""
    gathered = np.int64(0)
    for i in range(counts.size - 1, -1, -1):
        gathered += np.int64(counts[i])
        if gathered >= wanted:
            return i, gathered
    return -1, gathered


@kernel
def _first_of(counts: Table, wanted: Number) -> tuple[Number, Number]:
    """Do the same upwards."""
    gathered = np.int64(0)
    for i in range(counts.size):
        gathered += np.int64(counts[i])
        if gathered >= wanted:
            return i, gathered
    return -1, gathered


@kernel
def _from_above(slots: Slots, pool: Pool, low: Number, high: Number, wanted: Number) -> tuple[Number, Number]:
    """Go down the keys in [low, high) until that many values are gathered; return the last key and how many they are."""
    gathered = np.int64(0)
    for page in range(-(-high // PAGE) - 1, low // PAGE - 1, -1):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        if slots[page] < WIDE:
            place, found = _last_of(_narrow(pool, slots[page])[start:stop], wanted - gathered)
        else:
            place, found = _last_of(_wide(pool, slots[page])[start:stop], wanted - gathered)
        gathered += found
        if place >= 0:
            return page * PAGE + start + place, gathered
    return low, gathered


@kernel
def _from_below(slots: Slots, pool: Pool, low: Number, high: Number, wanted: Number) -> tuple[Number, Number]:
    """Do the same upwards."""
    gathered = np.int64(0)
    for page in range(low // PAGE, -(-high // PAGE)):
        if slots[page] == ABSENT:
            continue
        start, stop = _window(page, low, high)
        if slots[page] < WIDE:
            place, found = _first_of(_narrow(pool, slots[page])[start:stop], wanted - gathered)
        else:
            place, found = _first_of(_wide(pool, slots[page])[start:stop], wanted - gathered)
        gathered += found
        if place >= 0:
            return page * PAGE + start + place, gathered
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
