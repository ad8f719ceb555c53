"""Arrays of many samples kept for a second look: in memory while they are few, in a temporary file beyond."""

import tempfile
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MEMORY: Final = 64 << 20  # bytes that are held before a file is used


class ArrayLog:
    """A list of name-to-array mappings that are appended one by one and then read in order, as often as wanted.

    Example:
        >>> with ArrayLog() as log:
        ...     log.append({"y": np.arange(3)})
        ...     [entry["y"].tolist() for entry in log], len(log)
        ([[0, 1, 2]], 1)
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory)  # noqa: SIM115 - closed by __exit__
        self._names: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete what was kept."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._names)

    def append(self, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays of one sample."""
        self._file.seek(0, 2)
        for array in arrays.values():
            np.lib.format.write_array(self._file, np.asarray(array), allow_pickle=False)
        self._names.append(tuple(arrays))

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield what was appended; several readers may take turns."""
        place = 0
        for names in self._names:
            self._file.seek(place)
            entry = {name: np.lib.format.read_array(self._file, allow_pickle=False) for name in names}
            place = self._file.tell()
            yield entry
