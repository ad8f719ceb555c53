"""A chunk of values from memory to a tensor's pages and extremes in two calls: what lies between is all that Python has to decide.

Every call from Python costs microseconds and a wait for the interpreter; a capture makes some for each tensor of each few samples.
"""

import numpy as np

from calibrant.stats._count_kernels import GREATEST, LEAST, Table, count_dense
from calibrant.stats._extreme_kernels import collect_top
from calibrant.stats._jit import kernel
from calibrant.stats._orders import Counts, Keys, Number, Orders
from calibrant.stats._page_kernels import ABSENT, PAGE_BITS, Pool, Slots, add_up, paged_floor, pour


@kernel
def page_ranges(facts: Counts, shift: Number, sign: Number) -> tuple[Number, Number, Number, Number]:
    """Return first and last page of each sign that may hold counts; few mantissa bits let both signs share a page, then one range."""
    low, high = facts[LEAST] >> shift, facts[GREATEST] >> shift
    first, last = low >> PAGE_BITS, high >> PAGE_BITS
    first_below, last_below = (sign + low) >> PAGE_BITS, (sign + high) >> PAGE_BITS
    if last < first_below:
        return first, last, first_below, last_below
    return first, last_below, last_below + 1, last_below


@kernel
def _absent(first: Number, last: Number, sums: Pool, slots: Slots) -> Number:
    found = 0
    for page in range(first, last + 1):
        found += (sums[page] != 0) & (slots[page] == ABSENT)
    return found


@kernel
def count_chunk(
    bits: Keys, shift: Number, sign: Number, table: Table, facts: Counts, bounds: Orders, sums: Pool, slots: Slots
) -> tuple[Number, Number]:  # fmt: skip
    """Count patterns in a flat table that is empty.

    Args:
        bits: float32 patterns.
        shift: how many low bits a key leaves out.
        sign: the key of -0.0.
        table: counts by key; those of 16 bits may wrap.
        facts: as `survey` notes them.
        bounds: shape (2, spans), filled as `survey` fills maxima and minima.
        sums: of the counts of each page, filled for the pages that may hold some.
        slots: places of the pages that exist.

    Returns:
        How many values the table holds: fewer than there are, zeros apart, where a count has wrapped; and how many pages are missing.
    """
    count_dense(bits, shift, table, facts, bounds[0], bounds[1])
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    held = add_up(table, first, last, sums) + add_up(table, first_below, last_below, sums)
    missing = _absent(first, last, sums, slots) + _absent(first_below, last_below, sums, slots)
    return held, missing


@kernel
def empty_table(table: Table, facts: Counts, shift: Number, sign: Number) -> None:
    """Clear the pages of a table that may hold counts."""
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    for start, stop in ((first, last + 1), (first_below, last_below + 1)):
        for i in range(start << PAGE_BITS, stop << PAGE_BITS):
            table[i] = 0


@kernel
def pour_chunk(
    bits: Keys, shift: Number, sign: Number, table: Table, facts: Counts, bounds: Orders, sums: Pool,
    slots: Slots, pool: Pool, used: Number, n_zero: Number, keep: Number, floors: Counts, buffers: Orders,
) -> tuple[Number, Number, Number, Number, Number]:  # fmt: skip
    """Move a table's counts into pages, and gather the values that may be among the greatest or least.

    Args:
        bits: as for `count_chunk`, likewise those to `slots`.
        shift: see there.
        sign: see there.
        table: see there; empty afterwards.
        facts: see there.
        bounds: see there; the minima are inverted afterwards.
        sums: see there.
        slots: see there.
        pool: the pages' counts, with places for those that are missing.
        used: how many places are taken.
        n_zero: zeros of all chunks so far.
        keep: how many values are kept at each end.
        floors: shape (2,), what the orders of x and of -x must exceed, raised.
        buffers: shape (2, more than a span), filled with orders of x and of -x.

    Returns:
        How many places are taken; for x and then for -x: the span from which to go on, the number of spans where all were looked
        at, and how many orders were gathered.
    """
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    _, used = pour(table, first, last, sums, slots, pool, used)
    _, used = pour(table, first_below, last_below, sums, slots, pool, used)
    infinite = sign - (sign >> 8)
    for span in range(bounds.shape[1]):
        bounds[1, span] = ~bounds[1, span]
    floors[0] = max(floors[0], paged_floor(slots, pool, 0, sign, infinite, n_zero, shift, keep))
    floors[1] = max(floors[1], paged_floor(slots, pool, sign, 0, infinite, n_zero, shift, keep))
    top, n_top = collect_top(bits, bounds[0], 0, np.int32(0), np.int32(floors[0]), buffers[0], 0)
    bottom, n_bottom = collect_top(bits, bounds[1], 0, np.int32(-1), np.int32(floors[1]), buffers[1], 0)
    return used, top, n_top, bottom, n_bottom
