"""Fixed-point sums: one row of limbs a channel, lowest limb first. Float64 values come as their bit patterns."""

import math

import numpy as np

from calibrant.stats._jit import kernel
from calibrant.stats._orders import Counts, Number, Reals

FRACTION_BITS = 52
LOWEST_EXPONENT, HIGHEST_EXPONENT = -1074, 1024  # of the bits of a float64
EXPONENT_BIAS = 1075  # a value is its integer significand times two to the exponent field less this


@kernel
def _significand(pattern: Number) -> Number:
    """Return the integer significand of a magnitude."""
    fraction = pattern & ((np.int64(1) << FRACTION_BITS) - 1)
    return fraction | (np.int64(1) << FRACTION_BITS) if (pattern >> FRACTION_BITS) & 0x7FF else fraction


@kernel
def _position(pattern: Number, lowest_bit: Number) -> Number:
    """Return the bit of the sum where the significand starts."""
    return max((pattern >> FRACTION_BITS) & 0x7FF, np.int64(1)) - EXPONENT_BIAS - lowest_bit


@kernel
def _misplaced(pattern: Number, lowest_bit: Number, highest_bit: Number) -> Number:
    """Tell whether a value is not finite or has bits outside [lowest_bit, highest_bit)."""
    significand, position = _significand(pattern), _position(pattern, lowest_bit)
    if (pattern >> FRACTION_BITS) & 0x7FF == 0x7FF:
        return True
    room = highest_bit - lowest_bit - position  # bits of the significand that fit
    if room <= FRACTION_BITS and significand >> max(room, np.int64(0)):
        return True
    return position < 0 and (position <= -64 or significand & ((np.int64(1) << -position) - 1) != 0)


@kernel
def add_exactly(limbs: Counts, patterns: Counts, lowest_bit: Number, highest_bit: Number) -> Number:
    """Add values of shape (N, C) to the first C rows of limbs; or return the place of one out of range, and add nothing.

    Returns:
        ``row * C + channel``, or -1.
    """
    for row in range(patterns.shape[0]):
        for channel in range(patterns.shape[1]):
            pattern = patterns[row, channel] & 0x7FFFFFFFFFFFFFFF
            if pattern and _misplaced(pattern, lowest_bit, highest_bit):
                return row * patterns.shape[1] + channel
    for channel in range(patterns.shape[1]):
        for row in range(patterns.shape[0]):
            pattern = patterns[row, channel] & 0x7FFFFFFFFFFFFFFF
            if pattern:
                sign = np.int64(-1) if patterns[row, channel] < 0 else np.int64(1)
                _add_at(limbs[channel], _significand(pattern), _position(pattern, lowest_bit), sign)
    return -1


@kernel
def _add_at(limbs: Counts, significand: Number, position: Number, sign: Number) -> None:
    """Add a significand at a bit of one row of limbs."""
    if position < 0:
        significand >>= -position
        position = np.int64(0)
    limb, shift = position >> 5, position & 31
    low = (significand & 0xFFFFFFFF) << shift
    high = ((significand >> 32) << shift) + (low >> 32)
    limbs[limb] += sign * (low & 0xFFFFFFFF)
    limbs[limb + 1] += sign * (high & 0xFFFFFFFF)
    limbs[limb + 2] += sign * (high >> 32)


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
def _bit_length(value: Number) -> Number:
    length = np.int64(0)
    while value > 0:
        value >>= np.int64(1)
        length += 1
    return length


@kernel
def _bits_at(limbs: Counts, position: Number, count: Number) -> Number:
    """Return up to 54 bits of limbs that hold 32 bits each, from a position on."""
    found, taken = np.int64(0), np.int64(0)
    while taken < count:
        limb, shift = (position + taken) >> 5, (position + taken) & 31
        if limb >= limbs.size:
            break
        wanted = min(32 - shift, count - taken)
        found |= ((limbs[limb] >> shift) & ((np.int64(1) << wanted) - 1)) << taken
        taken += wanted
    return found


@kernel
def _has_bits_below(limbs: Counts, position: Number) -> Number:
    for limb in range(position >> 5):
        if limbs[limb]:
            return True
    return (limbs[position >> 5] & ((np.int64(1) << (position & 31)) - 1)) != 0


@kernel
def _negate(limbs: Counts) -> None:
    """Turn carried limbs into those of the opposite."""
    carried = np.int64(1)
    for limb in range(limbs.size - 1):
        total = (limbs[limb] ^ 0xFFFFFFFF) + carried
        limbs[limb], carried = total & 0xFFFFFFFF, total >> 32
    limbs[limbs.size - 1] = ~limbs[limbs.size - 1] + carried


@kernel
def _magnitude(limbs: Counts, lowest_bit: Number) -> Number:
    """Round limbs of 32 bits each to float64, half to even; beyond float64 it is infinite."""
    top = limbs.size - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    length = 32 * top + _bit_length(limbs[top])
    dropped = max(length - (FRACTION_BITS + 1), LOWEST_EXPONENT - lowest_bit, 0)
    kept = _bits_at(limbs, dropped, FRACTION_BITS + 1)
    if dropped > 0 and _bits_at(limbs, dropped - 1, 1) and (kept & 1 or _has_bits_below(limbs, dropped - 1)):
        kept += 1
    exponent = dropped + lowest_bit
    if _bit_length(kept) + exponent > HIGHEST_EXPONENT:
        return np.inf
    return math.ldexp(np.float64(kept), int(exponent))


@kernel
def round_limbs(limbs: Counts, lowest_bit: Number) -> Reals:
    """Return each row of carried limbs as a float64, rounded once.

    Args:
        limbs: as `carry_limbs` leaves them; the last limb of a row holds the sign.
        lowest_bit: what the lowest bit stands for.
    """
    values = np.empty(limbs.shape[0])
    for row in range(limbs.shape[0]):
        own = limbs[row].copy()
        is_negative = own[own.size - 1] < 0
        if is_negative:
            _negate(own)
        size = _magnitude(_split_last(own), lowest_bit)
        values[row] = -size if is_negative else size
    return values


@kernel
def _split_last(limbs: Counts) -> Counts:
    """Return limbs whose last one, which may hold more than 32 bits, is two."""
    split = np.empty(limbs.size + 1, np.int64)
    for i in range(limbs.size):  # assigning a slice would compile numba's text functions for an error message
        split[i] = limbs[i]
    split[limbs.size] = limbs[limbs.size - 1] >> 32
    split[limbs.size - 1] &= 0xFFFFFFFF
    return split
