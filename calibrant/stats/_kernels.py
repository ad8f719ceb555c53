"""Compiled loops of the statistics: plain arrays and scalars in, arrays out; callers validate.

Float32 values travel as `order`: an int32 that sorts as the value does (the bit pattern, with the magnitude bits of negative values
inverted). Zero has the orders 0 (+0.0) and -1 (-0.0); the order of -x is ``~order``. Integers, so no flush-to-zero
mode of a host library can change what counts as zero.
"""

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel

Keys = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Orders = npt.NDArray[np.int32]

INFINITY_ORDER = 0x7F800000  # order of +inf; NaN of positive sign lies above it


@kernel
def value_orders(bits: Keys) -> Orders:
    """Map float32 bit patterns to their orders."""
    orders = np.empty(bits.size, np.int32)
    for i in range(bits.size):
        signed = np.int32(bits[i])
        orders[i] = np.int32(signed ^ ((signed >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return orders


@kernel
def _segment(
    orders: Orders, first: int, last: int, step: int, shift: int, keys: Keys, counts: Counts, used: int
) -> int:
    """Append the (key, count) runs of one sign's sorted values; return the new length."""
    for i in range(first, last, step):
        order = orders[i]
        bits = np.uint32(order) if order >= 0 else np.uint32(order) ^ np.uint32(0x7FFFFFFF)
        key = np.uint32(bits >> np.uint32(shift))
        if used > 0 and keys[used - 1] == key:
            counts[used - 1] += 1
        else:
            keys[used] = key
            counts[used] = 1
            used += 1
    return used


@kernel
def count_sorted(orders: Orders, shift: int) -> tuple[Keys, Counts, int, int, int, int]:
    """Count sorted orders into bins.

    Returns:
        keys and counts (sorted by key, without zero, NaN and infinity), then n_zero, n_nan, and the
        half-open range [first, last) of the finite values in `orders`.
    """
    size = orders.size
    first = np.searchsorted(orders, np.int32(~INFINITY_ORDER), side="right")
    last = np.searchsorted(orders, np.int32(INFINITY_ORDER), side="left")
    nan = np.searchsorted(orders, np.int32(~INFINITY_ORDER), side="left")
    nan += size - np.searchsorted(orders, np.int32(INFINITY_ORDER), side="right")
    negative_end = np.searchsorted(orders, np.int32(-1), side="left")
    positive_start = np.searchsorted(orders, np.int32(0), side="right")
    keys = np.empty(size, np.uint32)
    counts = np.empty(size, np.int64)
    used = _segment(orders, positive_start, last, 1, shift, keys, counts, 0)
    used = _segment(orders, negative_end - 1, first - 1, -1, shift, keys, counts, used)
    return keys[:used].copy(), counts[:used].copy(), positive_start - negative_end, nan, first, last


@kernel
def top_runs(orders: Orders, last: int, keep: int) -> tuple[Orders, Counts]:
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
def merge_top(values: Orders, counts: Counts, others: Orders, other_counts: Counts, keep: int) -> tuple[Orders, Counts]:
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
def merge_pairs(keys: Keys, counts: Counts, others: Keys, other_counts: Counts) -> tuple[Keys, Counts]:
    """Add two tables of (key, count), each sorted by key."""
    merged = np.empty(keys.size + others.size, np.uint32)
    merged_counts = np.empty(merged.size, np.int64)
    i = j = used = 0
    while i < keys.size and j < others.size:
        if keys[i] == others[j]:
            merged[used] = keys[i]
            merged_counts[used] = counts[i] + other_counts[j]
            i += 1
            j += 1
        elif keys[i] < others[j]:
            merged[used] = keys[i]
            merged_counts[used] = counts[i]
            i += 1
        else:
            merged[used] = others[j]
            merged_counts[used] = other_counts[j]
            j += 1
        used += 1
    while i < keys.size:
        merged[used] = keys[i]
        merged_counts[used] = counts[i]
        i += 1
        used += 1
    while j < others.size:
        merged[used] = others[j]
        merged_counts[used] = other_counts[j]
        j += 1
        used += 1
    return merged[:used].copy(), merged_counts[:used].copy()
