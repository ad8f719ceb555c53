"""Samples from Python: any iterable of feeds, or an onnxruntime-style reader with ``get_next()``.

A feed maps input names to arrays of the model's own ranks with one or more samples, which are split along the batch axis.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calibrant.errors import DataError, EmptyDataError
from calibrant.ingest.model import ModelInput
from calibrant.ingest.samples import Array, Sample, check_dtype, check_names, check_shape, make_sample, samples_a_block

Feed = Mapping[str, Array]


@runtime_checkable
class FeedReader(Protocol):
    """What onnxruntime calls a calibration data reader."""

    def get_next(self) -> Feed | None:
        """Return the next feed, or None after the last."""


def _checked_array(value: object, spec: ModelInput, where: str) -> Array:
    if not isinstance(value, (np.ndarray, np.generic)):
        message = (
            f"{where}: input '{spec.name}' is a {type(value).__name__}, expected a numpy array of {spec.dtype.name}"
        )
        raise DataError(message)
    if isinstance(value, np.ma.MaskedArray):
        message = f"{where}: input '{spec.name}' is a masked array, whose mask nothing heeds; fill it with .filled()"
        raise DataError(message)
    array = np.asarray(value)
    check_dtype(array.dtype, spec, where)
    check_shape(array.shape, spec, where)
    return array


def _samples_in(feed: Mapping[str, Array], inputs: Sequence[ModelInput], where: str) -> int:
    counts = {s.name: feed[s.name].shape[s.batch_axis] for s in inputs if s.batch_axis is not None}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        message = f"{where}: the inputs have different numbers of samples on their batch axes: {listed}"
        raise DataError(message)
    count = next(iter(counts.values()), 1)
    if count == 0:
        message = f"{where}: holds no samples, its batch axis is 0 long; a feed has one or more"
        raise EmptyDataError(message)
    return count


def _parts(array: Array, spec: ModelInput, count: int) -> Iterator[Array]:
    """Copy the samples, some at a time: those lie side by side. The caller may fill the same array again for its next feed."""
    if spec.batch_axis is None:
        yield from repeat(array.copy(), count)
        return
    rows, shape = np.moveaxis(array, spec.batch_axis, 0), list(array.shape)
    shape[spec.batch_axis] = 1
    step = samples_a_block(array.nbytes // count)
    for start in range(0, count, step):
        block = np.array(rows[start : start + step], order="C")
        yield from (row.reshape(shape) for row in block)


def split_feed(feed: object, inputs: Sequence[ModelInput], number: int, first: int) -> Iterator[Sample]:
    """Yield the samples of one feed.

    Args:
        feed: what the caller gave, not yet checked.
        inputs: the model's inputs.
        number: how many feeds came before, which names the source.
        first: how many samples came before, for messages.

    Raises:
        DataError: no mapping, or wrong names, dtypes, ranks or sizes.
    """
    where = f"sample {first} (feed {number}[0])"
    if not isinstance(feed, Mapping):
        message = f"{where}: is a {type(feed).__name__}, expected a dict of input name to numpy array"
        raise DataError(message)
    check_names(feed, inputs, where)
    arrays = {spec.name: _checked_array(feed[spec.name], spec, where) for spec in inputs}
    count = _samples_in(arrays, inputs, where)
    parts = {spec.name: _parts(arrays[spec.name], spec, count) for spec in inputs}
    for index in range(count):
        yield make_sample({name: next(values) for name, values in parts.items()}, f"feed {number}", index)


def read_feeds(feeds: Iterable[object], inputs: Sequence[ModelInput]) -> Iterator[Sample]:
    """Yield the samples of all feeds in order."""
    first = 0
    for number, feed in enumerate(feeds):
        for sample in split_feed(feed, inputs, number, first):
            first += 1
            yield sample


def _until_none(reader: FeedReader) -> Iterator[Feed]:
    while (feed := reader.get_next()) is not None:
        yield feed


def is_read_once(data: Iterable[object] | FeedReader) -> bool:
    """Return whether data can be read once only: an iterator, or a reader without ``rewind()``.

    Example:
        >>> is_read_once([]), is_read_once(iter([]))
        (False, True)
    """
    if isinstance(data, FeedReader):
        return getattr(data, "rewind", None) is None
    return isinstance(data, Iterator)


def feeds_of(data: Iterable[object] | FeedReader) -> Callable[[], Iterable[object]]:
    """Return a function that starts to read from the beginning, as often as the data allows.

    Raises:
        DataError: (by that function) an iterator or a reader without ``rewind()`` is read a second time.
    """
    started: list[bool] = []

    def start() -> Iterable[object]:
        is_again = bool(started)
        started.append(True)
        if isinstance(data, FeedReader):
            rewind: Any = getattr(data, "rewind", None)
            if is_again and rewind is None:
                message = "the reader was already read to its end and has no rewind(); give a new one"
                raise DataError(message)
            if is_again:
                rewind()
            return _until_none(data)
        if is_again and isinstance(data, Iterator):
            message = "the iterator of feeds was already read to its end; give a list, or an object with __iter__"
            raise DataError(message)
        return data

    return start
