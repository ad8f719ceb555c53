"""Labels of evaluation data: one entry a sample, from an array, a file, or beside the inputs in the data's own .npz."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, nearest

Array = npt.NDArray[Any]
Labels = str | Path | Sequence[Any] | Array


def names_in_data(labels: Labels | None, data: object) -> tuple[str, ...]:
    """Return the array of the data's own .npz that the labels name, which is then no input.

    Example:
        >>> names_in_data("y.npy", "x.npz")
        ()
    """
    if not isinstance(labels, str) or not isinstance(data, str | Path) or Path(data).suffix != ".npz":
        return ()
    return (labels,) if labels in _members(Path(data)) else ()


def read_labels(labels: Labels, data: object) -> Array:
    """Return labels as an array whose first axis counts samples.

    Args:
        labels: an array or sequence; a .npy file; a .npz file of one array; ``file.npz:key``; or the name of an array in `data`.
        data: the evaluation data, whose .npz may hold them.

    Raises:
        DataError: no such file or array, several arrays without a key, Python objects, or one number for all samples.
    """
    array = _read(labels, data) if isinstance(labels, str | Path) else _as_array(labels)
    if array.dtype.hasobject:
        message = (
            "--labels: hold Python objects or rows of unequal length; expected numbers or texts, one entry a sample"
        )
        raise DataError(message)
    if not array.ndim:
        message = f"--labels: one value ({array}) for all samples; expected one entry a sample"
        raise DataError(message)
    return array


def _as_array(labels: Sequence[Any] | Array) -> Array:
    try:
        return np.asarray(labels)
    except ValueError:  # rows of unequal length
        return np.asarray(None)


def class_labels(labels: Array) -> list[int]:
    """Return labels as class indices.

    Raises:
        DataError: they are no whole numbers, or several a sample.

    Example:
        >>> class_labels(np.array([[2], [0]]))
        [2, 0]
    """
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] != 1 or flat.dtype.kind not in "iu":
        message = (
            f"--labels: shape {list(labels.shape)} and type {labels.dtype}; top1 and top5 expect one whole number a sample, "
            "the index of its class; argmax one-hot rows, or score them with module:function"
        )
        raise DataError(message)
    return [int(label) for label in flat[:, 0]]


def check_count(labels: Array, samples: int) -> None:
    """Refuse labels that are not as many as the samples.

    Raises:
        DataError: they are more or fewer.
    """
    if len(labels) != samples:
        message = (
            f"--labels: {len(labels)} labels, but the data has {samples} samples; give one a sample, in the same order"
        )
        raise DataError(message)


def _members(path: Path) -> list[str]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return list(arrays.files)
    except (OSError, ValueError, BadZipFile):
        return []  # opening the data says what is wrong with it


def _read(labels: str | Path, data: object) -> Array:
    if names_in_data(labels, data):
        return _load(Path(str(data)), str(labels))
    if Path(labels).exists():
        return _load(Path(labels), None)
    path, _, key = str(labels).rpartition(":")
    if path.endswith(".npz") and Path(path).exists():
        return _load(Path(path), key)
    there = _members(Path(data)) if isinstance(data, str | Path) else []
    hint = f", and no array of {data}{nearest(str(labels), there)}" if there else ""
    message = f"--labels {labels}: no such file{hint}; expected a .npy or .npz file, file.npz:key, or an array's name in the data"
    raise DataError(message)


def _load(path: Path, key: str | None) -> Array:
    if path.suffix not in (".npy", ".npz"):
        message = f"--labels {path}: of type '{path.suffix}'; expected a .npy or .npz file"
        raise DataError(message)
    try:
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else _member(loaded, path, key)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        message = f"--labels {path}: cannot be read: {error}; write it with numpy.save or numpy.savez"
        raise DataError(message) from error


def _member(arrays: Any, path: Path, key: str | None) -> Array:
    with arrays:
        names = list(arrays.files)
        if key is None and len(names) == 1:
            key = names[0]
        if key not in names:
            what = f"holds no array '{key}'{nearest(key, names)}" if key else "holds several arrays"
            message = f"--labels {path}: {what}; name one as {path}:KEY, of {', '.join(names)}"
            raise DataError(message)
        return np.asarray(arrays[key])
