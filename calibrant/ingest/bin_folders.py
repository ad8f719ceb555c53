"""AMCT's folders of raw `.bin` files: one folder an input, one file a batch, without any header."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from calibrant.errors import DataError
from calibrant.ingest.samples import Array


@dataclass(frozen=True, slots=True)
class BinInput:
    """Where one input's batches lie.

    Attributes:
        name: of the model's input.
        folder: its `.bin` files, taken in sorted order; a single file is one batch.
        shape: of one batch, every axis given.
        dtype: of the values.
    """

    name: str
    folder: Path
    shape: tuple[int, ...]
    dtype: type[np.generic] = np.float32


class BinFolders:
    """Feeds read from `.bin` files, one file of each input at a time; each iteration starts at the beginning.

    Args:
        inputs: one for each input of the model.

    Raises:
        DataError: a folder is missing or empty, or the folders hold different numbers of files.
    """

    def __init__(self, inputs: Sequence[BinInput]) -> None:
        self._files: Mapping[str, list[Path]] = {given.name: _bin_files(given) for given in inputs}
        self._inputs = tuple(inputs)
        counts = {given.name: len(self._files[given.name]) for given in inputs}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            message = f"{inputs[0].folder}: the inputs have different numbers of .bin files: {listed}; one each a batch is expected"
            raise DataError(message)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield one feed a batch.

        Raises:
            DataError: a file does not hold exactly one batch of its shape.
        """
        for index in range(len(self._files[self._inputs[0].name])):
            yield {given.name: _read_batch(self._files[given.name][index], given) for given in self._inputs}


def _bin_files(given: BinInput) -> list[Path]:
    files = [given.folder] if given.folder.is_file() else sorted(given.folder.glob("*.bin"))
    if not files:
        what = "holds no .bin files" if given.folder.is_dir() else "no such file or folder"
        message = f"{given.folder}: {what}; input '{given.name}' expects one .bin file a batch"
        raise DataError(message)
    return files


def _read_batch(path: Path, given: BinInput) -> Array:
    expected, size = prod(given.shape) * np.dtype(given.dtype).itemsize, path.stat().st_size
    if size != expected:
        message = (
            f"{path}: {size} bytes, but a batch of input '{given.name}' of shape {list(given.shape)} and type {np.dtype(given.dtype)} "
            f"has {expected}; give the shape and type that the file was written with"
        )
        raise DataError(message)
    return np.fromfile(path, given.dtype).reshape(given.shape)
