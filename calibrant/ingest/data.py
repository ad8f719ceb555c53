"""Calibration data of every supported kind as one stream of samples, checked against the model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from calibrant.errors import DataError, EmptyDataError
from calibrant.ingest.feeds import FeedReader, feeds_of, is_read_once, read_feeds
from calibrant.ingest.model import ModelInput
from calibrant.ingest.npy_folder import count_files, read_npy_folder
from calibrant.ingest.npz import count_samples, read_npz
from calibrant.ingest.samples import Array, Sample, fingerprint_of_keys

__all__ = ["Data", "DataSource", "Sample", "fingerprint", "open_data"]

Data = Path | str | Iterable[Mapping[str, Array]] | FeedReader
SUPPORTED = "an .npz file, a folder of .npy files, an iterable of dicts, or a reader with get_next()"


class DataSource:
    """A stream of checked samples; each iteration starts at the beginning.

    Attributes:
        name: the file or kind of object, for messages.
        count: number of samples, or None where only reading tells.
        read_once: whether a second iteration is an error.
    """

    def __init__(
        self, name: str, count: int | None, read: Callable[[], Iterator[Sample]], *, read_once: bool = False
    ) -> None:
        self.name = name
        self.count = count
        self.read_once = read_once
        self._read = read

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples in order.

        Raises:
            EmptyDataError: there is none.
            DataError: a sample does not fit the model; the message names it.
        """
        is_empty = True
        for sample in self._read():
            is_empty = False
            yield sample
        if is_empty:
            message = f"{self.name}: no samples; give at least one"
            raise EmptyDataError(message)


def _open_path(path: Path, inputs: Sequence[ModelInput], beside: Sequence[str]) -> DataSource:
    if not path.exists():
        message = f"{path}: no such file or folder; data is {SUPPORTED}"
        raise DataError(message)
    if path.is_dir():
        return DataSource(str(path), count_files(path, inputs), partial(read_npy_folder, path, inputs))
    if path.suffix != ".npz":
        advice = "; put .npy files into a folder, one a sample" if path.suffix == ".npy" else ""
        message = f"{path}: data of type '{path.suffix or path.name}' is not supported; expected {SUPPORTED}{advice}"
        raise DataError(message)
    return DataSource(str(path), count_samples(path, inputs, beside), partial(read_npz, path, inputs, beside))


def _feeds(data: object) -> Iterable[object] | FeedReader:
    if isinstance(data, (FeedReader, Iterable)):
        return data
    message = f"data of type {type(data).__name__} is not supported; expected {SUPPORTED}"
    raise DataError(message)


def open_data(data: Data, inputs: Sequence[ModelInput], *, beside: Sequence[str] = ()) -> DataSource:
    """Open calibration data and check what can be checked before the first sample is read.

    * ``.npz``: the first axis of every array counts samples. A sample of one rank less than the model's input gets a
      batch axis; one of equal rank keeps its batch axis of size 1.
    * a folder: each ``.npy`` file is one sample, sorted by name; one sub-folder an input where there are several,
      matched by equal file names.
    * an iterable of dicts, or a reader with ``get_next()``: feeds of the model's own ranks with one or more samples.

    Args:
        data: path or Python object.
        inputs: the model's inputs.
        beside: arrays of an ``.npz`` that are no inputs, such as labels.

    Raises:
        DataError: missing file, unsupported kind, or anything that does not fit the model.

    Example:
        >>> import numpy as np
        >>> x = ModelInput("x", np.dtype("float32"), ("N", 2), 0)
        >>> [s.place for s in open_data([{"x": np.zeros((2, 2), np.float32)}], [x])]
        ['feed 0[0]', 'feed 0[1]']
    """
    if isinstance(data, (str, Path)):
        return _open_path(Path(data), inputs, beside)
    if isinstance(data, Mapping):
        message = "data is one dict; expected an iterable of dicts: put it into a list, or save it as .npz"
        raise DataError(message)
    feeds = _feeds(data)
    start = feeds_of(feeds)
    return DataSource("the data", None, lambda: read_feeds(start(), inputs), read_once=is_read_once(feeds))


def fingerprint(source: DataSource, limit: int | None = None) -> str:
    """Return the fingerprint of the first `limit` samples (of all for None), by reading them.

    A generator can be read only once.
    """
    keys = []
    for sample in source:
        keys.append(sample.key)
        if len(keys) == limit:
            break
    return fingerprint_of_keys(keys)
