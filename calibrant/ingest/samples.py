"""One calibration sample: its values at the model's ranks, its content key and where it came from.

Every check of data against the model lives here, so that all readers refuse the same things in the same words.
Nothing is cast, padded or replaced.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from calibrant.errors import DataError, nearest
from calibrant.ingest.model import ModelInput

Array = npt.NDArray[Any]

KEY_HASH: Final = "sha256"  # of a sample's content; with another, a run's `key_hash` tells its keys apart
BLOCK_BYTES: Final = (
    2**21
)  # of samples that are read at once: a core's cache holds them until they are hashed (measured)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sample, ready to be fed.

    Attributes:
        values: input name -> array of the model's rank, its batch axis of size 1.
        key: content hash of all values; equal samples have equal keys.
        source: the file or feed that it came from.
        position: its index inside that source.
    """

    values: dict[str, Array]
    key: str
    source: str
    position: int

    @property
    def place(self) -> str:
        """Where the sample came from, as messages name it, e.g. ``x.npz[5]``."""
        return f"{self.source}[{self.position}]"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input."""
        return {name: value.shape for name, value in self.values.items()}


def sample_key(values: Mapping[str, Array]) -> str:
    """Return the content hash of a sample: names, dtypes, shapes and bytes, whatever the order of the inputs.

    It is the sha256 (decision 0007) over the inputs by name: name, dtype as numpy writes it (``<f4``) and shape as Python writes
    it (``(1, 3)``), each with a zero byte behind it, then the elements in C order. They are read where they lie, and other threads
    run meanwhile.

    Args:
        values: input name -> array at the model's rank.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> a, b = np.zeros(2, np.float32), np.ones(1, np.int64)
        >>> sample_key({"a": a, "b": b}) == sample_key({"b": b, "a": a})
        True
    """
    digest = hashlib.new(KEY_HASH, usedforsecurity=False)
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        digest.update(f"{name}\0{array.dtype.str}\0{values[name].shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def fingerprint_of_keys(keys: Iterable[str]) -> str:
    """Return the fingerprint of a data set: the hash of its sorted sample keys, so that order does not matter.

    Example:
        >>> fingerprint_of_keys(["b", "a"]) == fingerprint_of_keys(["a", "b"])
        True
    """
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()


def check_names(names: Iterable[str], inputs: Sequence[ModelInput], where: str) -> None:
    """Refuse names that the model does not have, and missing ones.

    Raises:
        DataError: with the nearest name for an unknown one.
    """
    expected, given = [spec.name for spec in inputs], list(names)
    listed = ", ".join(f"'{name}'" for name in expected)
    for name in given:
        if name not in expected:
            message = (
                f"{where}: '{name}' is no input of the model; its inputs are {listed}{nearest(str(name), expected)}"
            )
            raise DataError(message)
    missing = [name for name in expected if name not in given]
    if missing:
        message = f"{where}: no values for input '{missing[0]}'; the model's inputs are {listed}, each sample needs all"
        raise DataError(message)


def check_dtype(dtype: np.dtype[Any], spec: ModelInput, where: str) -> None:
    """Refuse another dtype than the model's.

    Raises:
        DataError: the dtype differs; values are never cast.
    """
    if dtype != spec.dtype:
        name = spec.dtype.name
        found = dtype.name if dtype.isnative else f"{dtype.name} of foreign byte order"
        message = f"{where}: input '{spec.name}' is {found}, expected {name}; convert it with .astype('{name}')"
        raise DataError(message)


def _shape_text(spec: ModelInput) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in spec.shape) + "]"


def check_shape(shape: tuple[int, ...], spec: ModelInput, where: str) -> None:
    """Refuse a shape of the model's rank that does not fit; the batch axis may have any size.

    Raises:
        DataError: the rank or the size of an axis differs.
    """
    if len(shape) != len(spec.shape):
        message = (
            f"{where}: input '{spec.name}' has shape {list(shape)} of rank {len(shape)}, expected {_shape_text(spec)}"
        )
        raise DataError(message)
    for axis, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if isinstance(wanted, int) and axis != spec.batch_axis and size != wanted:
            message = (
                f"{where}: input '{spec.name}' has shape {list(shape)}, expected {_shape_text(spec)}: "
                f"axis {axis} has {size} entries instead of {wanted}"
            )
            raise DataError(message)


def single_sample_shape(shape: tuple[int, ...], spec: ModelInput, where: str) -> tuple[int, ...]:
    """Return the shape at the model's rank of a sample stored with or without its batch axis.

    Raises:
        DataError: the rank fits neither, the batch axis is not 1, or another axis differs from the model.

    Example:
        >>> spec = ModelInput("state", np.dtype("float32"), (2, "batch", 128), 1)
        >>> single_sample_shape((2, 128), spec, "x.npz[0]"), single_sample_shape((2, 1, 128), spec, "x.npz[0]")
        ((2, 1, 128), (2, 1, 128))
    """
    axis = spec.batch_axis
    full = shape
    if axis is not None and len(shape) == len(spec.shape) - 1:
        full = (*shape[:axis], 1, *shape[axis:])
    elif axis is not None and len(shape) == len(spec.shape) and shape[axis] != 1:
        message = (
            f"{where}: input '{spec.name}' has shape {list(shape)}: one sample has one entry on the batch axis {axis}, "
            f"not {shape[axis]}; expected {_shape_text(spec)} with or without that axis"
        )
        raise DataError(message)
    check_shape(full, spec, where)
    return full


def make_sample(values: dict[str, Array], source: str, position: int) -> Sample:
    """Return a sample of checked values with its key."""
    return Sample(values, sample_key(values), source, position)


def samples_a_block(size: int) -> int:
    """Return how many samples of `size` bytes are read at once: a power of two, so that small batches lie within a block.

    Example:
        >>> samples_a_block(602_112), samples_a_block(2**30), samples_a_block(2**11)
        (2, 1, 1024)
    """
    return 1 << max(0, (BLOCK_BYTES // max(1, size)).bit_length() - 1)


def side_by_side(arrays: Sequence[Array], axis: int) -> Array | None:
    """Return arrays joined along an axis without a copy, or None where they do not lie so in one piece of memory.

    Args:
        arrays: at least one; of equal shape and dtype, with one entry on the axis.
        axis: along which they are joined.

    Example:
        >>> block = np.arange(6, dtype=np.float32).reshape(3, 2)
        >>> side_by_side([block[1:2], block[2:3]], 0).tolist()
        [[2.0, 3.0], [4.0, 5.0]]
        >>> side_by_side([block[2:3], block[1:2]], 0) is None
        True
    """
    first, size = arrays[0], arrays[0].nbytes
    if first.base is None or any(array.base is not first.base or not array.flags.c_contiguous for array in arrays):
        return None
    start = _address(first)
    if any(_address(array) != start + number * size for number, array in enumerate(arrays)):
        return None
    if any(entries != 1 for entries in first.shape[: axis + 1]):  # an entry of those axes holds a part of every array
        return None
    shape = (*first.shape[:axis], len(arrays), *first.shape[axis + 1 :])
    strides = (*(size * len(arrays) for _ in range(axis)), size, *first.strides[axis + 1 :])
    return as_strided(first, shape, strides)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
