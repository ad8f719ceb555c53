"""Activations to Parquet, straight from numpy memory; one writer a tensor.

No compression, no dictionary, no statistics: floats of activations gain nothing from them, and the write runs at the speed of memory.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.errors import ModelError, RunError
from calibrant.ingest.samples import Array
from calibrant.stats.captures import CaptureInfo, capture_folder
from calibrant.stats.tables import write_frame

ROW_GROUP_BYTES: Final = 8 * 2**20  # a group is written once it has as many bytes, and split above four times that
BUFFERED_BYTES: Final = 128 * 2**20  # over all tensors: what may wait for its row group to fill
SAMPLE_ROWS: Final = 2**16  # rows of a part of the `samples` table
SAMPLE_FRAMES: Final = 2**8  # frames that wait; a small frame costs far more memory than its rows

_ELEMENTS: Final = {"float32": pa.float32(), "float16": pa.float16()}
_PARQUET: Final = {
    "compression": "none", "use_dictionary": False, "write_statistics": False,
    "data_page_size": 2**20, "write_batch_size": 2**17,
}  # fmt: skip


def row_group_bytes(tensors: int) -> int:
    """Return the size at which a tensor's rows are written, so that the waiting rows of all tensors stay bounded."""
    return min(ROW_GROUP_BYTES, BUFFERED_BYTES // max(tensors, 1))


def _element_field(dtype: str) -> pa.Field:
    return pa.field("element", _ELEMENTS[dtype], nullable=False)


def _values_type(info: CaptureInfo) -> pa.DataType:
    if info.shape is None or 0 in info.shape:
        return pa.large_list(_element_field(info.dtype))
    return pa.list_(_element_field(info.dtype), int(np.prod(info.shape, dtype=np.int64)))


def capture_schema(info: CaptureInfo) -> pa.Schema:
    """Return the Arrow schema of a tensor's captures."""
    fields = [pa.field("sample", pa.int64(), nullable=False), pa.field("values", _values_type(info), nullable=False)]
    if info.shape is None:
        fields.append(pa.field("shape", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False))
    return pa.schema(fields, metadata=info.to_metadata())


def _values_array(rows: Array, kind: pa.DataType) -> pa.Array:
    """Wrap rows as a list array without copying; offsets are 64 bit, since a batch may pass 2**31 elements."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    element = kind.value_type
    values = pa.Array.from_buffers(element, flat.size, [None, pa.py_buffer(flat)])
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    size = flat.size // len(rows)
    offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int64) * size)
    return pa.LargeListArray.from_arrays(offsets, values, type=kind)


def _shape_array(rows: Array, kind: pa.DataType) -> pa.Array:
    shapes = np.tile(np.array(rows.shape[1:], np.int64), len(rows))
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.ndim - 1)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(shapes), type=kind)


class CaptureWriter:
    """Writes the rows of one tensor; the file is complete after `close`.

    Args:
        folder: the run folder.
        tensor_id: which tensor.
        info: what its metadata says; a given shape makes `values` a fixed-size list.
        group_bytes: when to write a row group.
    """

    def __init__(self, folder: Path, tensor_id: int, info: CaptureInfo, group_bytes: int) -> None:
        self.info = info
        self._schema = capture_schema(info)
        place = capture_folder(folder, tensor_id)
        place.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(place / "part-00000.parquet", self._schema, **_PARQUET)
        self._group_bytes = group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def append(self, samples: Iterable[int], rows: Array) -> None:
        """Add samples of equal shape, in order.

        Args:
            samples: their numbers.
            rows: shape (n, ...), contiguous; may be reused by the caller after the next batch was appended.

        Raises:
            ModelError: the shape is another than the model declares.
        """
        if self.info.shape is not None and rows.shape[1:] != self.info.shape:
            message = (
                f"tensor '{self.info.tensor}': a sample has shape {list(rows.shape[1:])}, the model declares {list(self.info.shape)}; "
                "its shape annotations are wrong, export it anew"
            )
            raise ModelError(message)
        if rows.nbytes < self._group_bytes:
            rows = rows.copy()  # it waits beyond this batch, whose memory onnxruntime may use again
        self._waiting.append(self._record_batch(samples, rows))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._flush()

    def _record_batch(self, samples: Iterable[int], rows: Array) -> pa.RecordBatch:
        arrays = [pa.array(np.fromiter(samples, np.int64)), _values_array(rows, self._schema.field("values").type)]
        if self.info.shape is None:
            arrays.append(_shape_array(rows, self._schema.field("shape").type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        bytes_a_row = max(1, self._waiting_bytes // table.num_rows)
        self._writer.write_table(table, row_group_size=max(1, 4 * ROW_GROUP_BYTES // bytes_a_row))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Write what waits and finish the file."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Let go of an unfinished file."""
        self._waiting = []
        self._writer.close()


class SamplesWriter:
    """Writes rows of the `samples` table into parts, so that they are never held for all samples.

    Args:
        folder: where the parts go.
        prefix: how their names begin; two writers into one folder need different ones.
    """

    def __init__(self, folder: Path, prefix: str = "part") -> None:
        self._folder = folder
        self._prefix = prefix
        self._waiting: list[pl.DataFrame] = []
        self._rows = 0
        self._parts = 0

    def append(self, frames: Iterable[pl.DataFrame]) -> None:
        """Add rows."""
        for frame in frames:
            self._waiting.append(frame)
            self._rows += frame.height
        if self._rows >= SAMPLE_ROWS:
            self.close()
        elif len(self._waiting) >= SAMPLE_FRAMES:
            self._waiting = [pl.concat(self._waiting, rechunk=True)]

    def close(self) -> None:
        """Write the rows that wait, sorted, as one part."""
        if not self._rows:
            return
        rows = pl.concat(self._waiting).sort("tensor_id", "sample")
        write_frame("samples", rows, self._folder / f"{self._prefix}-{self._parts:05d}.parquet")
        self._waiting, self._rows, self._parts = [], 0, self._parts + 1


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error of the run.

    Raises:
        RunError: the disk is full, or the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        message = f"{folder}: cannot be written: {error}; free space or choose another --run folder"
        raise RunError(message) from error


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Stop before the disk fills.

    Args:
        folder: where the captures go.
        needed: bytes that they will take.
        what: how that was found, for the message.

    Raises:
        RunError: they would take more than half of what is free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free // 2:
        message = (
            f"{folder}: the raw activations {what} {_size(needed)}, and {_size(free)} are free on that disk (at most half is used); "
            "pass --keep stats, or a --run folder on a larger disk"
        )
        raise RunError(message)


def _size(count: int) -> str:
    """Return bytes as a person reads them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
