"""Rows of a tensor folded into its statistics; capture and recomputation share this and the tables made from it."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from calibrant.ingest.joins import joins_table
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import CapturedTensor, PreparedModel, initializer_value
from calibrant.ingest.runner import Rows
from calibrant.stats.captures import CONSTANT_SAMPLE
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import CountScratch
from calibrant.stats.parquet_columns import Pages, Part, joined_parts, pages_of
from calibrant.stats.percentiles import SIDES
from calibrant.stats.sample_rows import SampleRows
from calibrant.stats.tables import SCHEMAS, conform, empty_frame, plain_columns, write_frame, write_parts
from calibrant.stats.weights import channels_first, weight_columns

THREADS: Final = 2  # that make and encode rows of tables
_TASKS: Final = 32  # of a table at most: each waits for the interpreter


def digest_of(rows: Rows) -> bytes | None:
    """Return the hash of a constant tensor's value; None for rows of samples."""
    if rows.samples[0] != CONSTANT_SAMPLE:
        return None
    flat = np.ascontiguousarray(rows.values).reshape(-1).view(np.uint8)
    return hashlib.blake2b(flat.data, digest_size=16).digest()


class TensorFold:
    """What a run knows of one captured tensor: its statistics, its type and its largest shape.

    A tensor without a sample axis is counted once for each value that it takes, so that grouping changes nothing.

    Args:
        tensor: what is observed.
        sample_axis: the model's axis that holds the samples, or None.

    Attributes:
        statistics: folded so far.
        dtype: name, once rows came.
        rank: of a sample's own array.
        largest_shape: the largest own array's shape.
    """

    def __init__(self, tensor: CapturedTensor, sample_axis: int | None) -> None:
        self.tensor = tensor
        self.sample_axis = sample_axis
        self.dtype = "float32"
        self.rank = 0
        self.largest_shape: tuple[int, ...] = ()
        axis = tensor.channel_axis
        self.statistics = TensorStatistics(tensor.tensor_id, channel_axis=axis + 1 if axis >= 0 else axis)
        self._constants: dict[bytes, SampleRows | None] = {}

    @property
    def constant_values(self) -> int:
        """How many different values a tensor without sample axis took."""
        return len(self._constants)

    def fold(self, rows: Rows, scratch: CountScratch) -> SampleRows:
        """Fold rows in and return their rows of the `samples` table."""
        values, shape = rows.values, rows.own_shape
        if values.dtype != self.dtype:
            self.dtype = values.dtype.name
        self.rank = len(shape)
        if shape != self.largest_shape:
            self.largest_shape = max(self.largest_shape, shape, key=_by_size)
        return self.statistics.fold(values, rows.samples, scratch=scratch, is_blocked=rows.is_blocked)

    def fold_once(self, rows: Rows, scratch: CountScratch) -> tuple[SampleRows, bool]:
        """Fold rows in, but for a constant that was before; return their rows of the `samples` table, and whether they were new.

        Batches may come in any order, and the first in the order of the samples needs the rows, whichever of them was folded.
        """
        digest = digest_of(rows)
        before = None if digest is None else self._constants.get(digest)
        if before is not None:
            return before, False
        folded = self.fold(rows, scratch)
        if digest is not None:
            self._constants[digest] = folded
        return folded, True

    def is_new(self, rows: Rows) -> bool:
        """Return whether rows have to be counted: always, but for a constant that was counted before."""
        digest = digest_of(rows)
        if digest is None:
            return True
        is_new = digest not in self._constants
        self._constants.setdefault(digest, None)
        return is_new

    def _channel_axis(self) -> int | None:
        axis = self.tensor.channel_axis
        resolved = axis if axis >= 0 else self.rank + axis
        return resolved if 0 <= resolved < self.rank else None

    def table_row(self) -> dict[str, object]:
        """Return the tensor's row of the `tensors` table."""
        tensor = self.tensor
        return {
            "tensor_id": tensor.tensor_id, "tensor": tensor.name, "dtype": self.dtype, "rank": self.rank,
            "sample_axis": self.sample_axis, "channel_axis": self._channel_axis(), "producer": tensor.producer,
            "is_input": tensor.is_input, **self.statistics.counters(),
        }  # fmt: skip


def _by_size(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return (int(np.prod(shape, dtype=np.int64)) if shape else -1), shape


MakePart = Callable[[], Part]  # called on any thread
Table = tuple[str, "pl.DataFrame | Sequence[MakePart]"]  # name, and its rows or what makes them


def _weights_part(prepared: PreparedModel, layer: Layer) -> Part:
    """Return rows of the `weights` table: the output channels of a layer's weight."""
    rows = channels_first(initializer_value(prepared, str(layer.weight)), layer.op_type, layer.groups)
    return {"layer_id": layer.layer_id, **weight_columns(layer.layer_id, rows)}


def _together(makes: Sequence[MakePart]) -> list[MakePart]:
    """Join rows that are few each: a page of their own would cost more than they do."""
    return [lambda: joined_parts([make() for make in makes])] if makes else []


def biases_table(prepared: PreparedModel) -> pl.DataFrame:
    """Return the `biases` table: the bias of each output channel of every quantizable layer that has one."""
    layers = [layer for layer in prepared.layers if layer.quantizable and layer.bias is not None]
    parts: list[Part] = []
    for layer in layers:
        values = np.ravel(initializer_value(prepared, str(layer.bias))).astype(np.float32)
        parts.append({"layer_id": layer.layer_id, "channel": np.arange(values.size, dtype=np.int32), "value": values})
    return conform("biases", pl.DataFrame(joined_parts(parts))) if parts else empty_frame("biases")


def statistics_tables(folds: Sequence[TensorFold], prepared: PreparedModel) -> Iterator[Table]:
    """Yield the tables of everything folded, sorted by their ids; those first whose rows are made in one go, which takes longest.

    `samples` is written as it comes.

    Args:
        folds: settled, since threads read them.
        prepared: the model.
    """
    statistics = [fold.statistics for fold in folds]
    weights = [layer for layer in prepared.layers if layer.quantizable and layer.weight is not None]
    yield "channels", _together([one.channels_part for one in statistics])
    yield "weights", _together([partial(_weights_part, prepared, layer) for layer in weights])
    yield "histograms", [one.histogram_part for one in statistics]
    yield "extremes", [partial(one.extremes_part, side) for one in statistics for side in SIDES]
    yield "tensors", pl.DataFrame([fold.table_row() for fold in folds], schema=SCHEMAS["tensors"])
    yield "biases", biases_table(prepared)
    yield "joins", joins_table(prepared)


def write_tables(tables: Iterable[Table], folder: Path) -> None:
    """Write tables into a run folder, each whole or not at all, on threads that make and encode the rows of several at once.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        encoded: dict[Path, list[Future[list[Pages]]]] = {}
        for name, content in tables:
            path = folder / "tables" / f"{name}.parquet"
            if isinstance(content, pl.DataFrame):
                write_frame(name, content, path)
            else:
                size = max(1, -(-len(content) // _TASKS))
                groups = (content[n : n + size] for n in range(0, len(content), size))
                encoded[path] = [pool.submit(_pages, name, group) for group in groups]
        for path, tasks in encoded.items():
            write_parts(path.stem, (pages for task in tasks for pages in task.result()), path)


def _pages(table: str, makes: Sequence[MakePart]) -> list[Pages]:
    columns = plain_columns(table)
    return [pages_of(make(), columns) for make in makes]
