"""Few values: sorted and counted in runs, since even a look through a table would cost more; and tables of (key, count) added."""

import numpy as np

from calibrant.stats._jit import kernel
from calibrant.stats._orders import INFINITY_ORDER, Counts, Keys, Number, Orders


@kernel
def _segment(
    orders: Orders, first: Number, last: Number, step: Number, shift: Number, keys: Keys, counts: Counts, used: Number
) -> Number:
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
def count_sorted(orders: Orders, shift: Number) -> tuple[Keys, Counts, Number, Number, Number, Number]:
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
