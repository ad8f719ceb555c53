"""Sums of float64 values that do not depend on the order of addition, rounded once.

A sum is a fixed-point number: int64 limbs of 32 bits each, lowest first. Adding a value touches at most three limbs and loses nothing;
merging adds limbs. Memory is bounded by the range of exponents, not by the number of values.
"""

from typing import Final, Self

import numpy as np
import numpy.typing as npt

from calibrant.errors import MergeError, RangeError, ShapeError
from calibrant.stats import _limb_kernels

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

LIMB_BITS: Final = 32
ADDITIONS: Final = 1 << 30  # between two carries: a limb takes less than 2**32 from each, and holds 2**63
LOWEST_BIT: Final = -1074  # of a float64
HIGHEST_BIT: Final = 1024


class ExactSums:
    """Exact sums of many channels at once.

    Args:
        size: number of channels.
        lowest_bit: values are multiples of ``2**lowest_bit``; the default suits every float64.
        highest_bit: magnitudes of values lie below ``2**highest_bit``; the sum may exceed it by 2**60.

    Example:
        >>> sums = ExactSums(1)
        >>> for value in (1e16, 1.0, -1e16):
        ...     sums.add(np.array([value]))
        >>> sums.values().tolist()
        [1.0]
    """

    def __init__(self, size: int, lowest_bit: int = LOWEST_BIT, highest_bit: int = HIGHEST_BIT) -> None:
        self._lowest_bit, self._highest_bit = lowest_bit, highest_bit
        limbs = -(-(highest_bit - lowest_bit) // LIMB_BITS) + 3  # two for the sum's growth, one for the sign
        self._limbs: Int64Array = np.zeros((size, limbs), np.int64)
        self._additions = 0

    @property
    def size(self) -> int:
        """Number of channels."""
        return int(self._limbs.shape[0])

    def add(self, values: Float64Array) -> None:
        """Add values to the channels, in place.

        Args:
            values: shape (C,) or (N, C): one value, or N, for each of the first C channels; the others get nothing.

        Raises:
            ShapeError: more values than channels.
            RangeError: a value is not finite, or has bits outside the range of this sum; nothing is added then.
        """
        rows = np.atleast_2d(np.ascontiguousarray(values, np.float64))
        if rows.shape[1] > self.size:
            message = f"exact sums: {rows.shape[1]} values for {self.size} channels"
            raise ShapeError(message)
        for start in range(0, len(rows), ADDITIONS):
            self._add(rows[start : start + ADDITIONS])

    def _add(self, rows: Float64Array) -> None:
        if self._additions + len(rows) > ADDITIONS:
            self._carry()
        wrong = _limb_kernels.add_exactly(self._limbs, rows.view(np.int64), self._lowest_bit, self._highest_bit)
        if wrong >= 0:
            row, channel = divmod(wrong, rows.shape[1])
            message = (
                f"exact sums: value {rows[row, channel]} of channel {channel} is outside the range "
                f"2**{self._lowest_bit} to 2**{self._highest_bit}; nothing of it was added"
            )
            raise RangeError(message)
        self._additions += len(rows)

    def merge(self, other: Self) -> Self:
        """Return the sums of both together; of two sizes the greater holds.

        Raises:
            MergeError: the operands have different ranges.
        """
        if (self._lowest_bit, self._highest_bit) != (other._lowest_bit, other._highest_bit):
            message = "exact sums of different ranges cannot be merged"
            raise MergeError(message)
        self._carry()
        other._carry()
        merged = self.resized(max(self.size, other.size))
        merged._limbs[: other.size] += other._limbs
        merged._additions = 2
        return merged

    def resized(self, size: int) -> Self:
        """Return a copy with at least as many channels; new ones are zero."""
        copy = type(self)(max(size, self.size), self._lowest_bit, self._highest_bit)
        copy._limbs[: self.size] = self._limbs
        copy._additions = self._additions
        return copy

    def values(self) -> Float64Array:
        """Return the sums, each rounded once (half to even); beyond float64 it is infinite.

        Returns:
            shape (size,), float64.
        """
        self._carry()
        return _limb_kernels.round_limbs(self._limbs, self._lowest_bit)

    def _carry(self) -> None:
        _limb_kernels.carry_limbs(self._limbs)
        self._additions = 1
