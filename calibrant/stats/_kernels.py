"""Compiled loops of the statistics: plain arrays and scalars in, arrays out; callers validate.

Float32 values travel as `order`: an int32 that sorts as the value does (the bit pattern, with the magnitude bits of negative values
inverted). Zero has the orders 0 (+0.0) and -1 (-0.0); the order of -x is ``~order``. Integers, so no flush-to-zero
mode of a host library can change what counts as zero.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel, prefetch

Keys = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Orders = npt.NDArray[np.int32]
Table = npt.NDArray[np.uint16]
Lanes = npt.NDArray[np.uint32]
Reals = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]

Number = Any  # a numpy scalar within kernels, a Python number outside

INFINITY_ORDER = 0x7F800000  # order of +inf; NaN of positive sign lies above it
BLOCK = 1024  # values that are looked at before they are counted: 4 KB, well inside the first cache
CACHE_LINE = 16  # values in 64 bytes
STRIDES = 8  # measured: 8 strides of 128 values count in 60 % of the time of neighbours
PATCH = 64  # values of a block that are searched for extremes at once
SAMPLED = 128  # values of a block that are compared with their neighbours
STALLING = 2  # equal neighbours in the sample from which the spread table is faster
LANES = 4  # counters of a key in the spread table
TABLE_SIZE = 1 << 22  # keys of the finest histogram: sign, 8 exponent and 13 mantissa bits
SPARE = 256  # counters beyond the table, for zeros; a power of two


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


@kernel
def _order(bits: Number, flip: Number) -> Number:
    """Return the order of a pattern, or that of the negated value where `flip` is -1."""
    signed = np.int32(bits)
    return np.int32(np.int32(signed ^ np.int32(np.int32(signed >> np.int32(31)) & np.int32(0x7FFFFFFF))) ^ flip)


@kernel
def _block_facts(block: Keys) -> tuple[Number, Number, Number, Number]:
    """Return greatest order, least order, ``2 * magnitude - 1`` of the least value that is not zero, and the zeros."""
    greatest, least = np.int32(-0x7FFFFFFF - 1), np.int32(0x7FFFFFFF)
    smallest = np.uint32(0xFFFFFFFF)
    zeros = np.int32(0)
    for i in range(block.size):
        order = _order(block[i], np.int32(0))
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
def _finite_facts(block: Keys) -> tuple[Number, Number, Number]:
    """Return greatest and least order of the finite values, and the infinities."""
    greatest, least = np.int32(~INFINITY_ORDER), np.int32(INFINITY_ORDER)
    infinities = np.int32(0)
    for i in range(block.size):
        order = _order(block[i], np.int32(0))
        magnitude = np.int32(block[i] & np.uint32(0x7FFFFFFF))
        infinities = np.int32(infinities + np.int32(magnitude == np.int32(INFINITY_ORDER)))
        if magnitude < np.int32(INFINITY_ORDER):
            greatest = max(greatest, order)
            least = min(least, order)
    return greatest, least, np.int64(infinities)


@kernel
def _repeats(block: Keys) -> Number:
    """Tell by a sample whether near neighbours are equal; then increments of one counter wait for each other."""
    equal = np.int32(0)
    for i in range(min(block.size - 2, SAMPLED)):
        same = (block[i] == block[i + 1]) | (block[i] == block[i + 2])
        equal = np.int32(equal + np.int32(same & (np.uint32(block[i] << np.uint32(1)) != np.uint32(0))))
    return equal >= STALLING


@kernel
def _spot(key: Number) -> Number:
    """Return the row of a key in the lanes: round numbers share their low key bits, and so would share cache sets."""
    return key ^ (key >> np.uint32(8))


@kernel
def _count_spread(block: Keys, shift: Number, lanes: Lanes, spots: Keys) -> None:
    """Count values that repeat: neighbours go to different lanes of a key, so that no store is read back at once."""
    for i in range(block.size):
        key = block[i] >> shift
        row = _spot(key) if np.uint32(block[i] << np.uint32(1)) != np.uint32(0) else np.uint32(TABLE_SIZE)
        spots[i] = np.uint32((row << np.uint32(2)) | np.uint32(i & (LANES - 1)))
    for i in range(block.size):
        lanes[spots[i]] += np.uint32(1)


@kernel
def _count_sparse(block: Keys, shift: Number, table: Table, spots: Keys) -> None:
    """Count values that rarely repeat but for zeros: these go round the spare counters, without a branch."""
    for i in range(block.size):
        key, spare = block[i] >> shift, np.uint32(TABLE_SIZE + (i & (SPARE - 1)))
        spots[i] = key if np.uint32(block[i] << np.uint32(1)) != np.uint32(0) else spare
    for i in range(block.size):
        table[spots[i]] = np.uint16(table[spots[i]] + np.uint16(1))


@kernel
def _count_whole(block: Keys, shift: Number, table: Table) -> None:
    """Count a block of full size without zeros whose values rarely repeat: strides overlap better than neighbours."""
    for i in range(BLOCK // STRIDES):
        for lane in range(STRIDES):
            key = block[i + lane * (BLOCK // STRIDES)] >> shift
            table[key] = np.uint16(table[key] + np.uint16(1))


@kernel
def count_dense(
    bits: Keys, shift: Number, table: Table, lanes: Lanes, careful: bool, maxima: Orders, minima: Orders
) -> tuple[Number, Number, Number, Number, Number]:
    """Count bit patterns into `table` (16 bits wide, may wrap) and `lanes`; zeros only in the result.

    Args:
        bits: float32 patterns.
        shift: how many low bits a key leaves out.
        table: counts of values that rarely repeat; then spare counters of no meaning.
        lanes: counts of values that repeat; then a spare row.
        careful: use `lanes` alone, which cannot wrap.
        maxima: filled with the greatest finite order of each block of BLOCK values.
        minima: filled with the least.

    Returns:
        Zeros, infinities, least and greatest magnitude key (of NaN and infinity too), whether lanes were used.
    """
    least_magnitude, greatest_magnitude = np.uint32(0xFFFFFFFF), np.int32(0)
    n_zero = n_inf = np.int64(0)
    spots, flat = np.empty(BLOCK, np.uint32), lanes.reshape(lanes.size)
    spread = False
    for index in range(maxima.size):
        block = bits[index * BLOCK : (index + 1) * BLOCK]
        for line in range(
            BLOCK // CACHE_LINE
        ):  # the memory would idle while this block is counted: a third of the time
            prefetch(bits, min((index + 1) * BLOCK + line * CACHE_LINE, bits.size - 1))
        greatest, least, smallest, zeros = _block_facts(block)
        is_constant = greatest == least and zeros == 0
        least_magnitude = min(least_magnitude, smallest)
        greatest_magnitude = max(greatest_magnitude, greatest, np.int32(~least))
        if greatest >= np.int32(INFINITY_ORDER) or least <= np.int32(~INFINITY_ORDER):
            greatest, least, infinities = _finite_facts(block)
            n_inf += infinities
        maxima[index], minima[index] = greatest, least
        n_zero += zeros
        if is_constant:
            spread = True
            flat[_spot(block[0] >> shift) << np.uint32(2)] += np.uint32(block.size)
        elif careful or _repeats(block):
            spread = True
            _count_spread(block, shift, flat, spots)
        elif zeros == 0 and block.size == BLOCK:
            _count_whole(block, shift, table)
        else:
            _count_sparse(block, shift, table, spots)
    low = (np.int64(least_magnitude) + 1) >> 1 >> np.int64(shift)
    return n_zero, n_inf, low, np.int64(greatest_magnitude) >> np.int64(shift), spread


@kernel
def floor_order(
    ahead: Keys, ahead_counts: Counts, n_zero: Number, behind: Keys, behind_counts: Counts, shift: Number, keep: Number
) -> Number:
    """Return an order that the `keep` greatest values exceed and few others do.

    Args:
        ahead: magnitude keys of the values above zero, ascending.
        ahead_counts: their counts.
        n_zero: number of zeros, which are not wanted themselves.
        behind: magnitude keys of the values below zero, ascending.
        behind_counts: their counts.
        shift: how many low bits a key leaves out.
        keep: how many values are wanted.
    """
    gathered = np.int64(0)
    for i in range(ahead.size - 1, -1, -1):
        gathered += ahead_counts[i]
        if gathered >= keep:
            return (np.int64(ahead[i]) << shift) - 1
    gathered += n_zero
    if gathered >= keep:
        return 0
    for i in range(behind.size):
        gathered += behind_counts[i]
        if gathered >= keep:
            return -((np.int64(behind[i]) + 1) << shift) - 1
    return ~INFINITY_ORDER


@kernel
def _thin_out(buffer: Orders, used: Number, keep: Number) -> Number:
    """Move the `keep` greatest to the front; return the least of them."""
    chosen = np.partition(buffer[:used], used - keep)
    buffer[:keep] = chosen[used - keep :]
    return chosen[used - keep]


@kernel
def _collect_span(
    bits: Keys, start: Number, stop: Number, flip: Number, floor: Number, buffer: Orders, used: Number
) -> Number:
    """Append the finite orders above a floor; return the new length of the buffer."""
    end = np.uint64(used)
    for i in range(np.uint64(start), np.uint64(stop)):
        order = _order(bits[i], flip)
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
            order = _order(bits[first + np.uint64(i)], flip)
            if order > greatest:
                greatest = order
        if greatest > floor:
            used = _collect_span(bits, first, first + np.uint64(PATCH), flip, floor, buffer, used)
    return _collect_span(bits, start + whole * PATCH, stop, flip, floor, buffer, used)


@kernel
def collect_top(bits: Keys, maxima: Orders, flip: Number, floor: Number, keep: Number, buffer: Orders) -> Number:
    """Collect the finite orders above a floor, at least the `keep` greatest of them.

    Args:
        bits: float32 patterns.
        maxima: the greatest finite order (flipped) of each block.
        flip: 0 for the greatest values, -1 for the greatest negated ones.
        floor: what an order must exceed; at least that of -infinity.
        keep: how many are needed.
        buffer: filled; at least ``keep + 2 * BLOCK`` long.

    Returns:
        How many entries of the buffer are filled.
    """
    used = np.int64(0)
    for index in range(maxima.size):
        if maxima[index] <= floor:
            continue
        if used > buffer.size - BLOCK:
            floor = _thin_out(buffer, used, keep)
            used = np.int64(keep)
        used = _collect_block(bits, index * BLOCK, min((index + 1) * BLOCK, bits.size), flip, floor, buffer, used)
    return used


@kernel
def _fold_lanes(table: Table, lanes: Lanes, low: Number, high: Number, counts: Counts) -> None:
    """Move the counts of a range of keys out of both tables into `counts`."""
    for i in range(np.uint64(high - low + 1)):
        key = np.uint64(low) + i
        spot = key ^ (key >> np.uint64(8))
        counts[i] = table[key]
        table[key] = np.uint16(0)
        if lanes[spot, 0] | lanes[spot, 1] | lanes[spot, 2] | lanes[spot, 3]:
            for lane in range(LANES):
                counts[i] += np.int64(lanes[spot, lane])
                lanes[spot, lane] = np.uint32(0)


@kernel
def drain(table: Table, lanes: Lanes, spread: bool, low: Number, high: Number) -> tuple[Keys, Counts]:
    """Empty the tables over a range of keys, low to high inclusive; return the keys that occurred and their counts."""
    size = max(np.int64(0), high - low + 1)
    found = np.empty(size, np.int64)
    if spread:
        _fold_lanes(table, lanes, low, high, found)
    else:
        found[:] = table[low : low + size]
        table[low : low + size] = np.uint16(0)
    used = np.int64(0)
    for i in range(size):
        used += np.int64(found[i] != 0)
    keys, counts = np.empty(used + 1, np.uint32), np.empty(used + 1, np.int64)
    end = np.uint64(0)
    for i in range(np.uint64(size)):
        keys[end] = np.uint32(np.uint64(low) + i)
        counts[end] = found[i]
        end += np.uint64(found[i] != 0)
    return keys[:used], counts[:used]


@kernel
def _limb_position(value: Number, lowest_bit: Number) -> tuple[Number, Number]:
    """Split a finite value: its integer significand and the bit of the sum where that starts."""
    fraction, exponent = math.frexp(value)
    significand = np.int64(math.ldexp(fraction, 53))
    return significand, np.int64(exponent) - 53 - lowest_bit


@kernel
def _misplaced(value: Number, lowest_bit: Number, highest_bit: Number) -> Number:
    """Tell whether a value has bits outside [lowest_bit, highest_bit)."""
    if not math.isfinite(value) or math.frexp(value)[1] > highest_bit:
        return True
    significand, position = _limb_position(value, lowest_bit)
    return position < 0 and (position <= -64 or significand & ((np.int64(1) << -position) - 1) != 0)


@kernel
def add_exactly(limbs: Counts, values: Reals, lowest_bit: Number, highest_bit: Number) -> Number:
    """Add a value to each row of limbs; return the index of a value out of range, and add nothing then, or -1."""
    for row in range(values.size):
        if values[row] != 0.0 and _misplaced(values[row], lowest_bit, highest_bit):
            return row
    for row in range(values.size):
        if values[row] == 0.0:
            continue
        significand, position = _limb_position(values[row], lowest_bit)
        if position < 0:
            significand >>= -position
            position = np.int64(0)
        limb, shift = position // 32, position % 32
        magnitude, sign = abs(significand), 1 if significand > 0 else -1
        low = (magnitude & 0xFFFFFFFF) << shift
        high = ((magnitude >> 32) << shift) + (low >> 32)
        limbs[row, limb] += sign * (low & 0xFFFFFFFF)
        limbs[row, limb + 1] += sign * (high & 0xFFFFFFFF)
        limbs[row, limb + 2] += sign * (high >> 32)
    return -1


@kernel
def carry_limbs(limbs: Counts) -> None:
    """Bring all limbs but the last into [0, 2**32), which makes equal sums equal limbs."""
    for row in range(limbs.shape[0]):
        carried = np.int64(0)
        for limb in range(limbs.shape[1] - 1):
            total = limbs[row, limb] + carried
            limbs[row, limb] = total & 0xFFFFFFFF
            carried = total >> 32
        limbs[row, limbs.shape[1] - 1] += carried


@kernel
def order_values(orders: Orders) -> Values:
    """Map orders back to values; both zeros become +0.0."""
    bits = np.empty(orders.size, np.uint32)
    for i in range(orders.size):
        order = orders[i]
        pattern = np.uint32(order ^ ((order >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        bits[i] = pattern if order != np.int32(-1) else np.uint32(0)
    return bits.view(np.float32)
