"""A chunk of values from memory to a tensor's pages and extremes, in one call where the pages exist and no narrow count wraps.

Every call from Python costs microseconds and a wait for the interpreter; a capture makes some for each tensor of each few samples.
"""

import numpy as np

from calibrant.stats._count_kernels import ABOVE, BELOW, LEAST, NO_FACTS, ZEROS, Table, count_dense
from calibrant.stats._extreme_kernels import collect_top
from calibrant.stats._jit import kernel
from calibrant.stats._orders import Counts, Keys, Number, Orders
from calibrant.stats._page_kernels import PAGE_BITS, Pool, Slots, Sums, Tops, add_up, paged_floor, places_missing, pour

POURED, WRAPPED = 0, -1


@kernel
def page_ranges(facts: Counts, shift: Number, sign: Number) -> tuple[Number, Number, Number, Number]:
    """Return first and last page of each sign that may hold counts; few mantissa bits let both signs share a page, then one range."""
    low = facts[LEAST] >> shift
    first, first_below = low >> PAGE_BITS, (sign + low) >> PAGE_BITS
    last, last_below = first - 1, first_below - 1
    if facts[ABOVE] > 0:
        last = (facts[ABOVE] >> shift) >> PAGE_BITS
    if facts[BELOW] > 0:
        last_below = (sign + (facts[BELOW] >> shift)) >> PAGE_BITS
    if last < first_below:
        return first, last, first_below, last_below
    return first, max(last, last_below), first, first - 1


@kernel
def _count_chunk(
    bits: Keys, shift: Number, sign: Number, table: Table, facts: Counts, maxima: Orders, minima: Orders, sums: Sums
) -> Number:  # fmt: skip
    """Count patterns in a flat table; return how many values it holds."""
    for fact in range(facts.size):
        facts[fact] = NO_FACTS[fact]
    count_dense(bits, shift, table, facts, maxima, minima)
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    return add_up(table, first, last, sums) + add_up(table, first_below, last_below, sums)


@kernel
def _empty_table(table: Table, facts: Counts, shift: Number, sign: Number) -> None:
    """Clear the pages of a table that may hold counts."""
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    for start, stop in ((first, last + 1), (first_below, last_below + 1)):
        for i in range(start << PAGE_BITS, stop << PAGE_BITS):
            table[i] = 0


@kernel
def pour_chunk(
    bits: Keys, shift: Number, sign: Number, table: Table, facts: Counts, maxima: Orders, minima: Orders, sums: Sums,
    slots: Slots, pool: Pool, tops: Tops, used: Number, n_zero: Number, keep: Number, floors: Counts, top: Orders, bottom: Orders,
) -> tuple[Number, Number, Number, Number, Number, Number]:  # fmt: skip
    """Move a table's counts into pages, and then gather the values that may be among the greatest or least.

    Args:
        bits: as for `add_chunk`, likewise those to `slots`.
        shift: see there.
        sign: see there.
        table: see there; empty afterwards.
        facts: as filled there.
        maxima: likewise.
        minima: likewise; inverted afterwards.
        sums: likewise; zero for the pages that were moved.
        slots: filled in for the pages that were missing.
        pool: the pages' counts.
        tops: see `pour`.
        used: how many places are taken.
        n_zero: zeros of all chunks before.
        keep: how many values are kept at each end.
        floors: shape (2,), what the orders of x and of -x must exceed, raised.
        top: longer than a span, filled with orders of x.
        bottom: likewise of -x.

    Returns:
        `POURED`, or by how many places the pool has to grow before the rest is moved; how many places are taken; for x and then
        for -x: the span from which to go on, the number of spans where all were looked at, and how many orders were gathered.
    """
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    is_poured, used = pour(table, first, last, sums, slots, pool, tops, used)
    if is_poured:
        is_poured, used = pour(table, first_below, last_below, sums, slots, pool, tops, used)
    if not is_poured:
        missing = places_missing(first, last, sums, slots) + places_missing(first_below, last_below, sums, slots)
        return missing + 2, used, 0, 0, 0, 0
    infinite = sign - (sign >> 8)
    for span in range(minima.size):
        minima[span] = ~minima[span]
    zeros = n_zero + facts[ZEROS]
    floors[0] = max(floors[0], paged_floor(slots, pool, 0, sign, infinite, zeros, shift, keep))
    floors[1] = max(floors[1], paged_floor(slots, pool, sign, 0, infinite, zeros, shift, keep))
    span, n_top = collect_top(bits, maxima, 0, np.int32(0), np.int32(floors[0]), top, 0)
    span_below, n_bottom = collect_top(bits, minima, 0, np.int32(-1), np.int32(floors[1]), bottom, 0)
    return POURED, used, span, n_top, span_below, n_bottom


@kernel
def add_chunk(
    bits: Keys, shift: Number, sign: Number, table: Table, facts: Counts, maxima: Orders, minima: Orders, sums: Sums,
    slots: Slots, pool: Pool, tops: Tops, used: Number, n_zero: Number, keep: Number, floors: Counts, top: Orders, bottom: Orders,
) -> tuple[Number, Number, Number, Number, Number, Number]:  # fmt: skip
    """Count patterns in a flat table that is empty, and do what `pour_chunk` does.

    Args:
        bits: float32 patterns.
        shift: how many low bits a key leaves out.
        sign: the key of -0.0.
        table: counts by key; those of 16 bits may wrap.
        facts: filled as `survey` notes them.
        maxima: one a span, filled as `survey` fills them.
        minima: likewise.
        sums: of the counts of each page, filled for the pages that may hold some.
        slots: places of the pages that exist, filled in for others.
        pool: the pages' counts.
        tops: see `pour`.
        used: how many places are taken.
        n_zero: see `pour_chunk`, likewise the others.
        keep: see there.
        floors: see there.
        top: see there.
        bottom: see there.

    Returns:
        `WRAPPED` where a count has, with the table empty again; or what `pour_chunk` returns, which has to go on where the pool is
        too small.
    """
    held = _count_chunk(bits, shift, sign, table, facts, maxima, minima, sums)
    if held + facts[ZEROS] != bits.size:
        _empty_table(table, facts, shift, sign)
        return WRAPPED, used, 0, 0, 0, 0
    return pour_chunk(
        bits,
        shift,
        sign,
        table,
        facts,
        maxima,
        minima,
        sums,
        slots,
        pool,
        tops,
        used,
        n_zero,
        keep,
        floors,
        top,
        bottom,
    )
