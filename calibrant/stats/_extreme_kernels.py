"""The greatest values of many, as descending runs of (order, count); the least are the greatest of the negated values."""

import numpy as np

from calibrant.stats._chosen_values import HAS_COMPRESSION, orders_above
from calibrant.stats._count_kernels import CACHE_LINE, SPAN
from calibrant.stats._jit import kernel, prefetch
from calibrant.stats._lanes import LANES
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders, order_of


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
    if HAS_COMPRESSION and stop - start == SPAN:
        return used + orders_above(bits, start, SPAN // LANES, flip, floor, buffer, used)
    end = np.uint64(used)
    if floor >= 0:  # values of the other sign lie below, however far: no need to invert their magnitudes
        sign = np.uint32(np.uint32(flip) << np.uint32(31))
        for i in range(np.uint64(start), np.uint64(stop)):
            order = np.int32(bits[i] ^ sign)
            if order > floor and order < np.int32(INFINITY_ORDER):
                buffer[end] = order
                end += np.uint64(1)
        return np.int64(end)
    for i in range(np.uint64(start), np.uint64(stop)):
        order = order_of(bits[i], flip)
        buffer[end] = order
        end += np.uint64((order > floor) & (order < np.int32(INFINITY_ORDER)))
    return np.int64(end)


@kernel
def _next_above(maxima: Orders, span: Number, floor: Number, bits: Keys) -> Number:
    """Return the next span with an order above a floor, and ask for its memory."""
    while span < maxima.size and maxima[span] <= floor:
        span += 1
    if span < maxima.size:
        for line in range(SPAN // CACHE_LINE):
            prefetch(bits, min(span * SPAN + line * CACHE_LINE, bits.size - 1))
    return span


@kernel
def collect_top(
    bits: Keys, maxima: Orders, span: Number, flip: Number, floor: Number, buffer: Orders, used: Number
) -> tuple[Number, Number]:
    """Append the finite orders above a floor to a buffer while there is room for a whole span.

    Args:
        bits: float32 patterns.
        maxima: the greatest finite order (flipped) of each span.
        span: the one to begin with.
        flip: 0 for the greatest values, -1 for the greatest negated ones.
        floor: what an order must exceed; at least that of -infinity.
        buffer: filled from `used` on; longer than SPAN.
        used: how many entries are filled.

    Returns:
        The span from which to go on once the buffer has room, or the number of spans; and how many entries are filled.
    """
    ahead = _next_above(maxima, span, floor, bits)
    following = _next_above(maxima, ahead + 1, floor, bits)
    while ahead < maxima.size and used < buffer.size - SPAN:
        further = _next_above(maxima, following + 1, floor, bits)
        used = _collect_span(bits, ahead * SPAN, min((ahead + 1) * SPAN, bits.size), flip, floor, buffer, used)
        ahead, following = following, further
    return ahead, used
