"""Counting float32 patterns: what a block holds, and one count a value in a flat table."""

import numpy as np
import numpy.typing as npt

from calibrant.stats._chosen_values import HAS_COMPRESSION, nonzero_keys
from calibrant.stats._jit import kernel, prefetch
from calibrant.stats._lanes import LANES
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, order_of

BLOCK = 1024  # values that are looked at before they are counted: 4 KB, well inside the first cache
CACHE_LINE = 16  # values in 64 bytes
SPAN = 128  # values whose extremes are noted: few of them have to be looked at again
STRIDES = 8  # measured: 8 strides of 128 values count faster than neighbours
TABLE_SIZE = 1 << 22  # keys of the finest histogram: sign, 8 exponent and 13 mantissa bits
SPARE = 256  # counters beyond the table, for zeros; a power of two
ZEROS, NANS, INFINITIES, LEAST, GREATEST = range(5)  # the entries of facts: counts, then magnitudes
NO_FACTS = (0, 0, 0, 1 << 31, 0)

Table = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@kernel
def _span_bounds(block: Keys, first: Number, maxima: Orders, minima: Orders) -> tuple[Number, Number, Number]:
    """Fill in greatest and least order of a block's spans, from span `first` on; return the block's, and how many are constant."""
    highest, lowest, constant = np.int32(-0x7FFFFFFF - 1), np.int32(0x7FFFFFFF), np.int64(0)
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
        constant += np.int64(greatest == least)
    return highest, lowest, constant


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
def _survey_block(block: Keys, first: Number, facts: Counts, maxima: Orders, minima: Orders) -> tuple[Number, Number]:
    """Note what a block holds; return its zeros, and whether a span of it holds one value only and all are finite."""
    greatest, least, constant = _span_bounds(block, first, maxima, minima)
    zeros, smallest = _zeros_and_smallest(block)
    facts[ZEROS] += zeros
    facts[LEAST] = min(facts[LEAST], (np.int64(smallest) + 1) >> 1)
    facts[GREATEST] = max(facts[GREATEST], np.int64(greatest), np.int64(np.int32(~least)))
    if greatest >= np.int32(INFINITY_ORDER) or least <= np.int32(~INFINITY_ORDER):
        nans, infinities = _finite_bounds(block, first, maxima, minima)
        facts[NANS] += nans
        facts[INFINITIES] += infinities
        return zeros, False
    return zeros, constant > 0


@kernel
def survey(bits: Keys, facts: Counts, maxima: Orders, minima: Orders) -> None:
    """Note what an array holds.

    Args:
        bits: float32 patterns.
        facts: zeros, NaN and infinities, added to; least magnitude other than zero, lowered; greatest magnitude, raised (of NaN and
            infinity too).
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
def _count_any(block: Keys, shift: Number, table: Table, spots: Keys) -> None:
    """Count a block of any size that may hold zeros."""
    if HAS_COMPRESSION and block.size == BLOCK:
        for i in range(np.uint64(nonzero_keys(block, BLOCK // LANES, shift, spots))):
            table[spots[i]] += np.uint32(1)
        return
    table_spots(block, shift, spots)
    for i in range(block.size):
        table[spots[i]] += np.uint32(1)


@kernel
def _count_whole(block: Keys, shift: Number, table: Table) -> None:
    """Count a block of full size without zeros: strides overlap better than neighbours."""
    for i in range(BLOCK // STRIDES):
        for lane in range(STRIDES):
            table[block[i + lane * (BLOCK // STRIDES)] >> shift] += np.uint32(1)


@kernel
def _count_spans(block: Keys, shift: Number, table: Table, first: Number, maxima: Orders, minima: Orders) -> None:
    """Count a finite block some of whose spans are constant, at once each; of zeros nothing is to be counted."""
    for span in range(-(-block.size // SPAN)):
        start, stop = np.uint64(span * SPAN), np.uint64(min((span + 1) * SPAN, block.size))
        if maxima[first + span] == minima[first + span]:
            count = np.uint32(stop - start) if np.uint32(block[start] << np.uint32(1)) else np.uint32(0)
            table[block[start] >> shift] += count
            continue
        for i in range(start, stop):
            if np.uint32(block[i] << np.uint32(1)):
                table[block[i] >> shift] += np.uint32(1)


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
        zeros, has_constant = _survey_block(block, start // SPAN, facts, maxima, minima)
        if has_constant:
            _count_spans(block, shift, table, start // SPAN, maxima, minima)
        elif zeros == 0 and block.size == BLOCK:
            _count_whole(block, shift, table)
        else:
            _count_any(block, shift, table, spots)
