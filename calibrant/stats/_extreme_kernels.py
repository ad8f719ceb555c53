"""The greatest values of many, as descending runs of (order, count); the least are the greatest of the negated values."""

import numpy as np

from calibrant.stats._count_kernels import BLOCK, CACHE_LINE
from calibrant.stats._jit import kernel, prefetch
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, order_of

PATCH = 64  # values of a block that are searched for extremes at once


@kernel
def top_runs(orders: Orders, last: Number, keep: Number) -> tuple[Orders, Counts]:
    """Return the `keep` greatest of ``orders[:last]`` (ascending) as runs, descending, without zeros."""
    values = np.empty(min(last, keep), np.int32)
    counts = np.empty(values.size, np.int64)
    used = 0
    held = 0
    for i in range(last - 1, -1, -1):
        order = orders[i]
        if order == 0 or order == -1:
            continue
        if held == keep:
            break
        held += 1
        if used > 0 and values[used - 1] == order:
            counts[used - 1] += 1
        else:
            values[used] = order
            counts[used] = 1
            used += 1
    return values[:used].copy(), counts[:used].copy()


@kernel
def merge_top(
    values: Orders, counts: Counts, others: Orders, other_counts: Counts, keep: Number
) -> tuple[Orders, Counts]:
    """Merge two descending multisets and truncate to `keep` members, the last count included."""
    merged = np.empty(min(values.size + others.size, keep), np.int32)
    merged_counts = np.empty(merged.size, np.int64)
    i = j = used = 0
    room = np.int64(keep)
    while room > 0 and (i < values.size or j < others.size):
        ours_next = j == others.size or (i < values.size and values[i] >= others[j])
        value = values[i] if ours_next else others[j]
        count = np.int64(0)
        if i < values.size and values[i] == value:
            count += counts[i]
            i += 1
        if j < others.size and others[j] == value:
            count += other_counts[j]
            j += 1
        count = min(count, room)
        merged[used] = value
        merged_counts[used] = count
        used += 1
        room -= count
    return merged[:used].copy(), merged_counts[:used].copy()


@kernel
def _collect_span(
    bits: Keys, start: Number, stop: Number, flip: Number, floor: Number, buffer: Orders, used: Number
) -> Number:
    """Append the finite orders above a floor; return the new length of the buffer."""
    end = np.uint64(used)
    for i in range(np.uint64(start), np.uint64(stop)):
        order = order_of(bits[i], flip)
        buffer[end] = order
        end += np.uint64((order > floor) & (order < np.int32(INFINITY_ORDER)))
    return np.int64(end)


@kernel
def _collect_block(
    bits: Keys, start: Number, stop: Number, flip: Number, floor: Number, buffer: Orders, used: Number
) -> Number:
    """Do what `_collect_span` does, passing over patches without such an order."""
    whole = (stop - start) // PATCH
    for patch in range(whole):
        first = np.uint64(start + patch * PATCH)
        greatest = np.int32(~INFINITY_ORDER)
        for i in range(PATCH):
            order = order_of(bits[first + np.uint64(i)], flip)
            if order > greatest:
                greatest = order
        if greatest > floor:
            used = _collect_span(bits, first, first + np.uint64(PATCH), flip, floor, buffer, used)
    return _collect_span(bits, start + whole * PATCH, stop, flip, floor, buffer, used)


@kernel
def _next_above(maxima: Orders, index: Number, floor: Number, bits: Keys) -> Number:
    """Return the next block with an order above a floor, and ask for its memory."""
    while index < maxima.size and maxima[index] <= floor:
        index += 1
    if index < maxima.size:
        for line in range(BLOCK // CACHE_LINE):
            prefetch(bits, min(index * BLOCK + line * CACHE_LINE, bits.size - 1))
    return index


@kernel
def collect_top(
    bits: Keys, maxima: Orders, index: Number, flip: Number, floor: Number, buffer: Orders, used: Number
) -> tuple[Number, Number]:
    """Append the finite orders above a floor to a buffer while there is room for a whole block.

    Args:
        bits: float32 patterns.
        maxima: the greatest finite order (flipped) of each block.
        index: the block to begin with.
        flip: 0 for the greatest values, -1 for the greatest negated ones.
        floor: what an order must exceed; at least that of -infinity.
        buffer: filled from `used` on; longer than BLOCK.
        used: how many entries are filled.

    Returns:
        The block from which to go on once the buffer has room, or the number of blocks; and how many entries are filled.
    """
    index = _next_above(maxima, index, floor, bits)
    while index < maxima.size and used < buffer.size - BLOCK:
        following = _next_above(maxima, index + 1, floor, bits)
        used = _collect_block(bits, index * BLOCK, min((index + 1) * BLOCK, bits.size), flip, floor, buffer, used)
        index = following
    return index, used
