"""Fixed-point sums: one row of limbs a channel, lowest limb first."""

import math

import numpy as np

from calibrant.stats._jit import kernel
from calibrant.stats._orders import Counts, Number, Reals


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
