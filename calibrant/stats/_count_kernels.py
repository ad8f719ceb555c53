"""Counting float32 patterns: what a block holds, and one count a value in a flat table."""

import numpy as np
import numpy.typing as npt

from calibrant.stats._chosen_values import HAS_COMPRESSION, nonzero_keys
from calibrant.stats._jit import kernel, prefetch
from calibrant.stats._lanes import LANES
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, order_of, signed_pattern

BLOCK = 1024  # values that are looked at before they are counted: 4 KB, well inside the first cache
CACHE_LINE = 16  # values in 64 bytes
SPAN = 128  # values whose extremes are noted: few of them have to be looked at again
STRIDES = 8  # measured: 8 strides of 128 values count faster than neighbours
TABLE_SIZE = 1 << 22  # keys of the finest histogram: sign, 8 exponent and 13 mantissa bits
SPARE = 256  # counters beyond the table, for zeros; a power of two
ZEROS, NANS, INFINITIES, LEAST, ABOVE, BELOW = range(6)  # the entries of facts: counts, then magnitudes
NO_FACTS = (0, 0, 0, 1 << 31, 0, 0)

Table = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@kernel
def _begins_with_both(values: Keys, greatest: Number, least: Number) -> bool:
    """Return whether the first two values are the greatest and the least, in any order, and so are the next two.

    Once would be likely among zeros, whose spans begin with zero and their greatest now and then.
    """
    if values.size < 4:
        return False
    for first in range(np.uint64(0), np.uint64(4), np.uint64(2)):
        one = order_of(values[first], np.int32(0))
        other = order_of(values[first + np.uint64(1)], np.int32(0))
        if not ((one == greatest and other == least) or (one == least and other == greatest)):
            return False
    return True


@kernel
def _span_bounds(block: Keys, first: Number, maxima: Orders, minima: Orders) -> tuple[Number, Number, bool]:
    """Fill in greatest and least order of a block's spans, from span `first` on; return the block's, and whether any may hold few values.

    Those are the spans that hold one value, or begin with both their greatest and their least, twice.
    """
    highest, lowest, has_few = np.int32(-0x7FFFFFFF - 1), np.int32(0x7FFFFFFF), False
    for span in range(-(-block.size // SPAN)):
        greatest, least = np.int32(-0x7FFFFFFF - 1), np.int32(0x7FFFFFFF)
        start = np.uint64(span * SPAN)
        if block.size - span * SPAN >= SPAN:  # a constant number of rounds is what makes vectors
            for i in range(SPAN):
                order = order_of(block[start + np.uint64(i)], np.int32(0))
                greatest = order if order > greatest else greatest
                least = order if order < least else least
        else:
            for i in range(block.size - span * SPAN):
                order = order_of(block[start + np.uint64(i)], np.int32(0))
                greatest, least = max(greatest, order), min(least, order)
        maxima[first + span], minima[first + span] = greatest, least
        highest, lowest = max(highest, greatest), min(lowest, least)
        has_few |= greatest == least or _begins_with_both(block[start:], greatest, least)
    return highest, lowest, has_few


@kernel
def _zeros_and_smallest(block: Keys) -> tuple[Number, Number]:
    """Return the zeros, and ``2 * magnitude - 1`` of the least value that is not zero."""
    smallest, zeros = np.uint32(0xFFFFFFFF), np.int32(0)
    for i in range(block.size):
        doubled = np.uint32(block[i] << np.uint32(1))
        zeros = np.int32(zeros + np.int32(doubled == np.uint32(0)))
        doubled = np.uint32(np.int64(doubled) - np.int64(1))  # zero becomes the greatest; a choice would not vectorize
        if doubled < smallest:
            smallest = doubled
    return zeros, smallest


@kernel
def _finite_bounds(block: Keys, first: Number, maxima: Orders, minima: Orders) -> tuple[Number, Number]:
    """Fill in the bounds of the finite values of each span of a block; return the NaN and the infinities."""
    nans, infinities = np.int64(0), np.int64(0)
    for span in range(-(-block.size // SPAN)):
        greatest, least = np.int32(~INFINITY_ORDER), np.int32(INFINITY_ORDER)
        for i in range(span * SPAN, min((span + 1) * SPAN, block.size)):
            order = order_of(block[i], np.int32(0))
            magnitude = np.int32(block[i] & np.uint32(0x7FFFFFFF))
            nans += np.int64(magnitude > np.int32(INFINITY_ORDER))
            infinities += np.int64(magnitude == np.int32(INFINITY_ORDER))
            if magnitude < np.int32(INFINITY_ORDER):
                greatest, least = max(greatest, order), min(least, order)
        maxima[first + span], minima[first + span] = greatest, least
    return nans, infinities


@kernel
def _survey_block(block: Keys, first: Number, facts: Counts, maxima: Orders, minima: Orders) -> tuple[Number, bool]:
    """Note what a block holds; return its zeros, and whether a span of it may hold one value or two and all are finite."""
    greatest, least, has_few = _span_bounds(block, first, maxima, minima)
    zeros, smallest = _zeros_and_smallest(block)
    facts[ZEROS] += zeros
    facts[LEAST] = min(facts[LEAST], (np.int64(smallest) + 1) >> 1)
    facts[ABOVE] = max(facts[ABOVE], np.int64(greatest))
    facts[BELOW] = max(facts[BELOW], np.int64(np.int32(~least)))
    if greatest >= np.int32(INFINITY_ORDER) or least <= np.int32(~INFINITY_ORDER):
        nans, infinities = _finite_bounds(block, first, maxima, minima)
        facts[NANS] += nans
        facts[INFINITIES] += infinities
        return zeros, False
    return zeros, has_few


@kernel
def survey(bits: Keys, facts: Counts, maxima: Orders, minima: Orders) -> None:
    """Note what an array holds.

    Args:
        bits: float32 patterns.
        facts: zeros, NaN and infinities, added to; least magnitude other than zero, lowered; greatest magnitude of each sign,
            raised (of NaN and infinity too).
        maxima: filled with the greatest finite order of each SPAN values.
        minima: filled with the least.
    """
    for start in range(0, bits.size, BLOCK):
        _survey_block(bits[start : start + BLOCK], start // SPAN, facts, maxima, minima)


@kernel
def table_spots(block: Keys, shift: Number, spots: Keys) -> None:
    """Fill in the key of each value; zeros go round the spare counters beyond the table, without a branch."""
    for i in range(block.size):
        key, spare = block[i] >> shift, np.uint32(TABLE_SIZE + (i & (SPARE - 1)))
        spots[i] = key if np.uint32(block[i] << np.uint32(1)) != np.uint32(0) else spare


@kernel
def _spot(pattern: Number, shift: Number, spare: Number) -> Number:
    """Return the place of a value in a table, or for zero that of a spare counter."""
    key = np.uint64(pattern >> shift)
    return key if np.uint32(pattern << np.uint32(1)) != np.uint32(0) else spare


@kernel
def _add_eight(
    table: Table, a: Number, b: Number, c: Number, d: Number, e: Number, f: Number, g: Number, h: Number
) -> None:
    """Add one to each of eight counters, all of whose places were read before.

    Where a read follows the counting of another value, a processor may take it to depend on that for as long as it runs, and wait:
    twice the time, as the addresses of the two arrays happen to lie.
    """
    table[a] += np.uint32(1)
    table[b] += np.uint32(1)
    table[c] += np.uint32(1)
    table[d] += np.uint32(1)
    table[e] += np.uint32(1)
    table[f] += np.uint32(1)
    table[g] += np.uint32(1)
    table[h] += np.uint32(1)


@kernel
def _count_eight(block: Keys, first: Number, shift: Number, table: Table) -> None:
    """Count eight neighbours, which may be zeros."""
    spare = np.uint64(TABLE_SIZE) + ((first >> np.uint64(3)) & np.uint64(SPARE // 8 - 1))
    step = np.uint64(SPARE // 8)
    _add_eight(
        table,
        _spot(block[first], shift, spare),
        _spot(block[first + np.uint64(1)], shift, spare + step),
        _spot(block[first + np.uint64(2)], shift, spare + step * np.uint64(2)),
        _spot(block[first + np.uint64(3)], shift, spare + step * np.uint64(3)),
        _spot(block[first + np.uint64(4)], shift, spare + step * np.uint64(4)),
        _spot(block[first + np.uint64(5)], shift, spare + step * np.uint64(5)),
        _spot(block[first + np.uint64(6)], shift, spare + step * np.uint64(6)),
        _spot(block[first + np.uint64(7)], shift, spare + step * np.uint64(7)),
    )


@kernel
def _count_run(block: Keys, start: Number, stop: Number, shift: Number, table: Table) -> None:
    """Count the values from start to stop, which may hold zeros."""
    whole = start + (stop - start) // np.uint64(8) * np.uint64(8)
    for first in range(start, whole, np.uint64(8)):
        _count_eight(block, np.uint64(first), shift, table)
    for i in range(whole, stop):
        table[_spot(block[i], shift, np.uint64(TABLE_SIZE))] += np.uint32(1)


@kernel
def _count_chosen(block: Keys, shift: Number, table: Table, spots: Keys) -> None:
    """Count a block of full size without its zeros, which the vector unit leaves out."""
    used = np.uint64(nonzero_keys(block, BLOCK // LANES, shift, spots))
    whole = used // np.uint64(8) * np.uint64(8)
    for i in range(np.uint64(0), whole, np.uint64(8)):
        first = np.uint64(i)
        a, b, c, d = spots[first], spots[first + np.uint64(1)], spots[first + np.uint64(2)], spots[first + np.uint64(3)]
        following = first + np.uint64(4)
        e, f = spots[following], spots[following + np.uint64(1)]
        g, h = spots[following + np.uint64(2)], spots[following + np.uint64(3)]
        _add_eight(table, a, b, c, d, e, f, g, h)
    for i in range(whole, used):
        table[spots[i]] += np.uint32(1)


@kernel
def _count_whole(block: Keys, shift: Number, table: Table) -> None:
    """Count a block of full size without zeros: strides overlap better than neighbours."""
    for i in range(BLOCK // STRIDES):
        for lane in range(STRIDES):
            table[block[i + lane * (BLOCK // STRIDES)] >> shift] += np.uint32(1)


@kernel
def _count_at_once(table: Table, pattern: Number, shift: Number, count: Number) -> None:
    """Count equal values; of zeros nothing is to be counted."""
    table[pattern >> shift] += np.uint32(count) if np.uint32(pattern << np.uint32(1)) else np.uint32(0)


@kernel
def _count_spans(block: Keys, shift: Number, table: Table, first: Number, maxima: Orders, minima: Orders) -> None:
    """Count a finite block some of whose spans hold one value or two, at once each."""
    for span in range(-(-block.size // SPAN)):
        start, stop = np.uint64(span * SPAN), np.uint64(min((span + 1) * SPAN, block.size))
        greatest, least = signed_pattern(maxima[first + span]), signed_pattern(minima[first + span])
        great, small = np.int64(stop - start), np.int64(0)
        if greatest != least:
            great, small = _occurrences(block[start:stop], greatest, least)
        if great + small == np.int64(stop - start):
            _count_at_once(table, greatest, shift, great)
            _count_at_once(table, least, shift, small)
        else:
            _count_run(block, start, stop, shift, table)


@kernel
def _occurrences(values: Keys, one: Number, other: Number) -> tuple[Number, Number]:
    """Return how many values are the one, and how many the other."""
    ones, others = np.int32(0), np.int32(0)
    for i in range(values.size):
        ones = np.int32(ones + np.int32(values[i] == one))
        others = np.int32(others + np.int32(values[i] == other))
    return np.int64(ones), np.int64(others)


@kernel
def count_dense(bits: Keys, shift: Number, table: Table, facts: Counts, maxima: Orders, minima: Orders) -> None:
    """Count patterns into a table that is indexed by their keys; its spare counters mean nothing.

    Args:
        bits: float32 patterns, fewer than 2**32.
        shift: how many low bits a key leaves out.
        table: counts, added to; those of 16 bits may wrap.
        facts: as `survey` notes them.
        maxima: as `survey` fills them.
        minima: likewise.
    """
    spots = np.empty(BLOCK + LANES, np.uint32)
    for start in range(0, bits.size, BLOCK):
        block = bits[start : start + BLOCK]
        for line in range(BLOCK // CACHE_LINE):  # the memory would idle while this block is counted
            prefetch(bits, min(start + BLOCK + line * CACHE_LINE, bits.size - 1))
        zeros, has_few = _survey_block(block, start // SPAN, facts, maxima, minima)
        if has_few:
            _count_spans(block, shift, table, start // SPAN, maxima, minima)
        elif zeros == 0 and block.size == BLOCK:
            _count_whole(block, shift, table)
        elif HAS_COMPRESSION and block.size == BLOCK:
            _count_chosen(block, shift, table, spots)
        else:
            _count_run(block, np.uint64(0), np.uint64(block.size), shift, table)
