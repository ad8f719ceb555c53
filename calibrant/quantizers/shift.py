"""SearchN: by how many bits an accumulator is shifted so that it fits int16 with the least loss (docs/algorithms.md 8).

For N from 1 to 16 the loss is ``sum((clip(floor(s / 2**N), -32768, 32767) * 2**N - s)**2)`` over the accumulators s; the least wins, of
equal ones the smallest N. This is AMCT's second version: losses are added over batches and the floor is a true one. Here they are
added in whole numbers, so that the order of the samples changes nothing.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

SHIFTS: Final = tuple(range(1, 17))
INT16: Final = (-32768, 32767)
_LOW_BITS: Final = 31  # a square has at most 62 bits; halves of 31 can be added 2**32 times


class ShiftSearch:
    """Losses of every shift, by row; a row is an output channel, or all of a layer.

    Args:
        rows: how many shifts are searched.

    Example:
        >>> search = ShiftSearch(1)
        >>> search.update(np.array([[100000, -70000]]))
        >>> search.best()
        (2,)
    """

    def __init__(self, rows: int) -> None:
        self._losses = [[0] * len(SHIFTS) for _ in range(rows)]

    def update(self, accumulators: Int64Array) -> None:
        """Add accumulators.

        Args:
            accumulators: int32 values as int64, shape (rows, any number).
        """
        for place, shift in enumerate(SHIFTS):
            shifted = np.clip(accumulators >> shift, *INT16) << shift
            squares = (shifted - accumulators) ** 2
            high = (squares >> _LOW_BITS).sum(axis=1).tolist()
            low = (squares & ((1 << _LOW_BITS) - 1)).sum(axis=1).tolist()
            for losses, upper, lower in zip(self._losses, high, low, strict=True):
                losses[place] += (int(upper) << _LOW_BITS) + int(lower)

    def best(self, *, shared: bool = False) -> tuple[int, ...]:
        """Return the shift of each row; with `shared` one for all rows together, as often as there are rows."""
        if not shared:
            return tuple(_least(losses) for losses in self._losses)
        total = [sum(column) for column in zip(*self._losses, strict=True)]
        return (_least(total),) * len(self._losses)


def _least(losses: Sequence[int]) -> int:
    return SHIFTS[losses.index(min(losses))]
