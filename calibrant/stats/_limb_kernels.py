"""Fixed-point sums: one row of limbs a channel, lowest limb first. Float64 values come as their bit patterns."""

import numpy as np

from calibrant.stats._jit import kernel
from calibrant.stats._orders import Counts, Number

FRACTION_BITS = 52
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
