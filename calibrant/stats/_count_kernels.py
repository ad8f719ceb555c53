"""Counting float32 patterns: what a block holds, and one count a value in a flat table."""

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel, prefetch
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, order_of

BLOCK = 1024  # values that are looked at before they are counted: 4 KB, well inside the first cache
CACHE_LINE = 16  # values in 64 bytes
STRIDES = 8  # measured: 8 strides of 128 values count faster than neighbours
TABLE_SIZE = 1 << 22  # keys of the finest histogram: sign, 8 exponent and 13 mantissa bits
SPARE = 256  # counters beyond the table, for zeros; a power of two
ZEROS, NANS, INFINITIES, LEAST, GREATEST = range(5)  # the entries of facts: counts, then magnitudes
NO_FACTS = (0, 0, 0, 1 << 31, 0)

Table = npt.NDArray[np.uint32]


@kernel
def _bounds(block: Keys) -> tuple[Number, Number, Number, Number]:
    """Return greatest order, least order, ``2 * magnitude - 1`` of the least value that is not zero, and the zeros."""
    greatest, least = np.int32(-0x7FFFFFFF - 1), np.int32(0x7FFFFFFF)
    smallest = np.uint32(0xFFFFFFFF)
    zeros = np.int32(0)
    for i in range(block.size):
        order = order_of(block[i], np.int32(0))
        if order > greatest:
            greatest = order
        if order < least:
            least = order
        doubled = np.uint32(block[i] << np.uint32(1))
        zeros = np.int32(zeros + np.int32(doubled == np.uint32(0)))
        doubled = np.uint32(np.int64(doubled) - np.int64(1))  # zero becomes the greatest; a choice would not vectorize
        if doubled < smallest:
            smallest = doubled
    return greatest, least, smallest, zeros


@kernel
def _finite_bounds(block: Keys) -> tuple[Number, Number, Number, Number]:
    """Return greatest and least order of the finite values, the NaN and the infinities."""
    greatest, least = np.int32(~INFINITY_ORDER), np.int32(INFINITY_ORDER)
    nans, infinities = np.int32(0), np.int32(0)
    for i in range(block.size):
        order = order_of(block[i], np.int32(0))
        magnitude = np.int32(block[i] & np.uint32(0x7FFFFFFF))
        nans = np.int32(nans + np.int32(magnitude > np.int32(INFINITY_ORDER)))
        infinities = np.int32(infinities + np.int32(magnitude == np.int32(INFINITY_ORDER)))
        if magnitude < np.int32(INFINITY_ORDER):
            greatest = max(greatest, order)
            least = min(least, order)
    return greatest, least, np.int64(nans), np.int64(infinities)


@kernel
def _survey_block(block: Keys, index: Number, facts: Counts, maxima: Orders, minima: Orders) -> tuple[Number, Number]:
    """Note what a block holds; return its zeros, and whether all its values are the same one other than zero."""
    greatest, least, smallest, zeros = _bounds(block)
    is_constant = greatest == least and zeros == 0
    facts[ZEROS] += zeros
    facts[LEAST] = min(facts[LEAST], (np.int64(smallest) + 1) >> 1)
    facts[GREATEST] = max(facts[GREATEST], np.int64(greatest), np.int64(np.int32(~least)))
    if greatest >= np.int32(INFINITY_ORDER) or least <= np.int32(~INFINITY_ORDER):
        greatest, least, nans, infinities = _finite_bounds(block)
        facts[NANS] += nans
        facts[INFINITIES] += infinities
    maxima[index], minima[index] = greatest, least
    return zeros, is_constant


@kernel
def survey(bits: Keys, facts: Counts, maxima: Orders, minima: Orders) -> None:
    """Note what each block of BLOCK values holds.

    Args:
        bits: float32 patterns.
        facts: zeros, NaN and infinities, added to; least magnitude other than zero, lowered; greatest magnitude, raised (of NaN and
            infinity too).
        maxima: filled with the greatest finite order of each block.
        minima: filled with the least.
    """
    for index in range(maxima.size):
        _survey_block(bits[index * BLOCK : (index + 1) * BLOCK], index, facts, maxima, minima)


@kernel
def table_spots(block: Keys, shift: Number, spots: Keys) -> None:
    """Fill in the key of each value; zeros go round the spare counters beyond the table, without a branch."""
    for i in range(block.size):
        key, spare = block[i] >> shift, np.uint32(TABLE_SIZE + (i & (SPARE - 1)))
        spots[i] = key if np.uint32(block[i] << np.uint32(1)) != np.uint32(0) else spare


@kernel
def _count_any(block: Keys, shift: Number, table: Table, spots: Keys) -> None:
    """Count a block of any size that may hold zeros."""
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
def count_dense(bits: Keys, shift: Number, table: Table, facts: Counts, maxima: Orders, minima: Orders) -> None:
    """Count patterns into a table that is indexed by their keys; its spare counters mean nothing.

    Args:
        bits: float32 patterns, fewer than 2**32.
        shift: how many low bits a key leaves out.
        table: counts, added to.
        facts: as `survey` notes them.
        maxima: as `survey` fills them.
        minima: likewise.
    """
    spots = np.empty(BLOCK, np.uint32)
    for index in range(maxima.size):
        block = bits[index * BLOCK : (index + 1) * BLOCK]
        for line in range(BLOCK // CACHE_LINE):  # the memory would idle while this block is counted
            prefetch(bits, min((index + 1) * BLOCK + line * CACHE_LINE, bits.size - 1))
        zeros, is_constant = _survey_block(block, index, facts, maxima, minima)
        if is_constant:
            table[block[0] >> shift] += np.uint32(block.size)
        elif zeros == 0 and block.size == BLOCK:
            _count_whole(block, shift, table)
        else:
            _count_any(block, shift, table, spots)
