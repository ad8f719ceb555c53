"""AMCT's percentile from a histogram: which rank it has, and the value of a rank (docs/algorithms.md 2)."""

import math
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from calibrant.errors import ConfigError
from calibrant.stats.paged_counts import FLOAT32_MANTISSA_BITS

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]
Side = Literal["max", "min"]
SIDES: Final[tuple[Side, ...]] = ("max", "min")

FLT_EPSILON = 1.192092896e-7  # AMCT takes a percentile nearer to 1 than this as 1


def rank_of(n: int, p: float, side: Side) -> int:
    """Return which value of n, from 1 at the greatest (side max) or least (side min), the percentile is.

    Raises:
        ConfigError: `p` or `side` is out of range.

    Example:
        >>> rank_of(17, 0.9, "max")
        2
    """
    if side not in ("max", "min"):
        message = f"percentile: side is {side!r}; expected 'max' or 'min'"
        raise ConfigError(message)
    if not 0.0 <= p <= 1.0:
        message = f"percentile: p is {p}; expected 0 to 1"
        raise ConfigError(message)
    if 1.0 - p < FLT_EPSILON:
        return 1
    return max(1, n - math.floor(p * n))


def ranked(extremes: tuple[Float32Array, Int64Array], rank: int) -> float:
    """Return the value at a rank (from 1) of a multiset.

    Example:
        >>> ranked((np.float32([5, 2]), np.array([1, 3])), 2)
        2.0
    """
    values, counts = extremes
    return float(values[np.searchsorted(np.cumsum(counts), rank)])


def binned(keys: KeyArray, counts: Int64Array, n_zero: int, mantissa_bits: int, rank: int, side: Side) -> float:
    """Return the middle of the bin that holds a rank; of zero, zero itself.

    Args:
        keys: shape (B,), ascending; zero has none.
        counts: shape (B,).
        n_zero: how many zeros.
        mantissa_bits: of the keys.
        rank: from 1.
        side: which end rank 1 is at.
    """
    ordered, numbers = _by_value(keys, counts, n_zero, 1 << (8 + mantissa_bits))
    if side == "max":
        ordered, numbers = ordered[::-1], numbers[::-1]
    key = ordered[np.searchsorted(np.cumsum(numbers), rank)]
    if key < 0:
        return 0.0
    shift = FLOAT32_MANTISSA_BITS - mantissa_bits
    return float(np.array([(int(key) << shift) | (1 << shift >> 1)], np.uint32).view(np.float32)[0])


def _by_value(keys: KeyArray, counts: Int64Array, n_zero: int, sign: int) -> tuple[Int64Array, Int64Array]:
    """Return keys and counts ascending in value; the zeros have key -1."""
    split = int(np.searchsorted(keys, np.uint32(sign)))
    zero = np.full(1 if n_zero else 0, -1, np.int64)
    ordered = np.concatenate([keys[split:][::-1].astype(np.int64), zero, keys[:split].astype(np.int64)])
    return ordered, np.concatenate([counts[split:][::-1], np.full(zero.size, n_zero, np.int64), counts[:split]])
