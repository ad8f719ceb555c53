"""Values of a tensor that wait until counting them pays: a few touch nearly as many counters as many do, and those come from memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

ROOM: Final = 1 << 18  # values that wait at most, 1 MB a tensor (measured: docs/performance.md)
PAYS: Final = ROOM // 2  # from here on values are counted as they come


class HeldValues:
    """Holds a copy of small batches.

    Example:
        >>> held = HeldValues()
        >>> list(held.add(np.ones(3, np.float32))), held.taken().tolist(), held.taken().tolist()
        ([], [1.0, 1.0, 1.0], [])
    """

    def __init__(self) -> None:
        self._buffer: Float32Array = np.empty(0, np.float32)
        self._used = 0

    def add(self, values: Float32Array) -> Iterator[Float32Array]:
        """Take values, and yield those that are to be counted now, each before the next is asked for.

        Args:
            values: flat.
        """
        if values.size >= PAYS:
            yield values
            return
        if self._used + values.size > ROOM:
            yield self.taken()
        if not self._buffer.size:
            self._buffer = np.empty(ROOM, np.float32)  # memory comes with what is written
        self._buffer[self._used : self._used + values.size] = values
        self._used += values.size

    def taken(self) -> Float32Array:
        """Return what waits, and hold nothing; valid until more is added."""
        values = self._buffer[: self._used]
        self._used = 0
        return values
