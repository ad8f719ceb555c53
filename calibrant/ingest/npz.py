"""Samples from an ``.npz`` file, streamed from its zip members; no array is ever loaded whole."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from calibrant.errors import DataError
from calibrant.ingest.model import ModelInput
from calibrant.ingest.samples import (
    Array,
    Sample,
    check_dtype,
    check_names,
    make_sample,
    samples_a_block,
    single_sample_shape,
)

_SUFFIX = ".npy"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """What the header of an array says.

    Attributes:
        shape: the first axis counts samples.
        dtype: of the elements.
        is_fortran: whether the first axis varies fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool


def read_header(stream: IO[bytes], where: str) -> StoredArray:
    """Read the header of an ``.npy`` stream and leave the stream at the first element.

    Raises:
        DataError: no npy data, or object elements.
    """
    try:
        version = npy_format.read_magic(stream)
        reader = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, is_fortran, dtype = reader(stream)
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        message = f"{where}: no numpy array: {error}; write it with numpy.save or numpy.savez"
        raise DataError(message) from error
    if dtype.hasobject:
        message = (
            f"{where}: holds Python objects, expected numbers; samples of unequal shape go into a folder of .npy files"
        )
        raise DataError(message)
    return StoredArray(tuple(shape), dtype, is_fortran)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _BROKEN as error:
        message = f"{path}: cannot be read as .npz: {error}; write it with numpy.savez"
        raise DataError(message) from error


def _array_names(archive: zipfile.ZipFile, path: Path) -> list[str]:
    members = archive.namelist()
    for member in members:
        if not member.endswith(_SUFFIX):
            message = f"{path}: member '{member}' is no array; write the file with numpy.savez"
            raise DataError(message)
        if members.count(member) > 1:
            message = f"{path}: member '{member}' occurs twice; write the file with numpy.savez"
            raise DataError(message)
    return [member.removesuffix(_SUFFIX) for member in members]


def _headers(archive: zipfile.ZipFile, names: Sequence[str], path: Path) -> dict[str, StoredArray]:
    headers = {}
    for name in names:
        where = f"{path}: array '{name}'"
        with archive.open(name + _SUFFIX) as stream:
            headers[name] = read_header(stream, where)
        if headers[name].is_fortran and len(headers[name].shape) > 1:
            message = f"{where}: is stored in Fortran order and cannot be streamed; save numpy.ascontiguousarray of it"
            raise DataError(message)
    return headers


def _common_count(headers: dict[str, StoredArray], path: Path) -> int:
    """The number of samples, which all arrays must agree on."""
    for name, header in headers.items():
        if not header.shape:
            message = f"{path}: array '{name}' has no first axis to count samples; repeat the value once a sample"
            raise DataError(message)
    counts = {name: header.shape[0] for name, header in headers.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        message = f"{path}: the arrays have different numbers of samples on their first axis: {listed}"
        raise DataError(message)
    return next(iter(counts.values()))


def count_samples(path: Path, inputs: Sequence[ModelInput], beside: Sequence[str] = ()) -> int:
    """Check the arrays of the file against the model from their headers and return the number of samples.

    `beside` names arrays that are no inputs, such as labels.

    Raises:
        DataError: broken file, wrong name, dtype or shape, or unequal numbers of samples.
    """
    with _archive(path) as archive:
        names = [name for name in _array_names(archive, path) if name not in beside]
        check_names(names, inputs, str(path))
        headers = _headers(archive, names, path)
    count = _common_count(headers, path)
    for spec in inputs:
        check_dtype(headers[spec.name].dtype, spec, str(path))
        single_sample_shape(headers[spec.name].shape[1:], spec, f"sample 0 ({path.name}[0])")
    return count


class _Reader:
    """Reads the samples of one array, some at a time: those lie side by side in memory.

    Args:
        stream: of the array's member; its header is read.
        spec: the input that it is for.
        path: of the file.
    """

    def __init__(self, stream: IO[bytes], spec: ModelInput, path: Path) -> None:
        self._stream, self._path = stream, path
        header = read_header(stream, f"{path}: array '{spec.name}'")
        self._shape = single_sample_shape(header.shape[1:], spec, str(path))
        self._dtype = header.dtype
        self._size = math.prod(self._shape) * header.dtype.itemsize
        self._count = header.shape[0]
        self._a_block = samples_a_block(self._size)
        self._block = b""

    def sample(self, position: int) -> Array:
        """Return the next sample, which is the one at that position.

        Raises:
            DataError: the file ends before it does.
        """
        place = position % self._a_block
        if place == 0:
            self._block = self._stream.read(self._size * min(self._a_block, self._count - position))
        start = self._size * place
        if len(self._block) < start + self._size:
            found = max(0, len(self._block) - start)
            message = (
                f"sample {position} ({self._path.name}[{position}]): the file ends inside this sample "
                f"({found} of {self._size} bytes); it was cut, write it again"
            )
            raise DataError(message)
        return np.ndarray(self._shape, self._dtype, self._block, start)


def read_npz(path: Path, inputs: Sequence[ModelInput], beside: Sequence[str] = ()) -> Iterator[Sample]:
    """Yield the samples of an ``.npz`` file.

    Memory: for each input one sample, or 2 MB of smaller ones, and zlib's window where it is compressed.

    Raises:
        DataError: as `count_samples`, or the file is cut or damaged.
    """
    count = count_samples(path, inputs, beside)
    with _archive(path) as archive, ExitStack() as stack:
        streams = {spec.name: stack.enter_context(archive.open(spec.name + _SUFFIX)) for spec in inputs}
        readers = {spec.name: _Reader(streams[spec.name], spec, path) for spec in inputs}
        for position in range(count):
            values = {name: reader.sample(position) for name, reader in readers.items()}
            yield make_sample(values, path.name, position)
