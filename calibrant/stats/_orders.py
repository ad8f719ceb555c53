"""Float32 values as `order`: an int32 that sorts as the value does, and the plain types of all kernels of the statistics.

An order is the bit pattern, with the magnitude bits of negative values inverted. Zero has the orders 0 (+0.0) and -1 (-0.0); the
order of -x is ``~order``. Integers, so no flush-to-zero mode of a host library can change what counts as zero.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel

Keys = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Orders = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]

Number = Any  # a numpy scalar within kernels, a Python number outside

INFINITY_ORDER = 0x7F800000  # order of +inf; NaN of positive sign lies above it
NAN_PATTERN = 0x7FC00000


@kernel
def order_of(bits: Number, flip: Number) -> Number:
    """Return the order of a pattern, or that of the negated value where `flip` is -1."""
    signed = np.int32(bits)
    return np.int32(np.int32(signed ^ np.int32(np.int32(signed >> np.int32(31)) & np.int32(0x7FFFFFFF))) ^ flip)


@kernel
def value_orders(bits: Keys) -> Orders:
    """Map float32 bit patterns to their orders."""
    orders = np.empty(bits.size, np.int32)
    for i in range(bits.size):
        orders[i] = order_of(bits[i], np.int32(0))
    return orders


@kernel
def signed_pattern(order: Number) -> Number:
    """Return the pattern of an order, the sign of a zero included."""
    return np.uint32(order ^ ((order >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@kernel
def pattern_of(order: Number) -> Number:
    """Return the pattern of an order; both zeros become +0.0."""
    pattern = signed_pattern(order)
    return pattern if order != np.int32(-1) else np.uint32(0)


@kernel
def order_values(orders: Orders) -> Values:
    """Map orders back to values; both zeros become +0.0."""
    bits = np.empty(orders.size, np.uint32)
    for i in range(orders.size):
        bits[i] = pattern_of(orders[i])
    return bits.view(np.float32)


@kernel
def finite_pattern(order: Number) -> Number:
    """Return the pattern of an order; that of NaN for the order of an infinity."""
    is_finite = np.int32(~INFINITY_ORDER) < order < np.int32(INFINITY_ORDER)
    return pattern_of(order) if is_finite else np.uint32(NAN_PATTERN)
