"""Activations to Parquet, straight from numpy memory; one writer a tensor.

No compression, no dictionary, no statistics: measured, each costs more than it saves (docs/performance.md).
"""

import base64
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from calibrant.byte_sizes import bytes_text
from calibrant.errors import ModelError, RunError
from calibrant.ingest.samples import Array
from calibrant.stats.captures import PAGES_KEY, CaptureInfo, capture_folder
from calibrant.stats.parquet_lists import MAGIC, Chunk, Column, RowGroup, footer, list_levels, page_header
from calibrant.stats.sample_rows import SampleColumns, joined_columns, sorted_columns
from calibrant.stats.tables import frame_of, write_frame

ROW_GROUP_BYTES: Final = (
    8 * 2**20
)  # a group ends once it has as many bytes; rows that come together are split above four times that
PAGE_BYTES: Final = 2**30  # a page counts its bytes in 31 bits
SAMPLE_ROWS: Final = 2**16  # rows of a part of the `samples` table
SAMPLE_BATCHES: Final = 2**8  # batches that wait apart; small arrays cost far more memory than their rows

_ELEMENTS: Final = {"float32": pa.float32(), "float16": pa.float16()}


def _values_type(info: CaptureInfo) -> pa.DataType:
    element = pa.field("element", _ELEMENTS[info.dtype], nullable=False)
    if info.shape is None or 0 in info.shape:
        return pa.large_list(element)
    return pa.list_(element, int(np.prod(info.shape, dtype=np.int64)))


def capture_schema(info: CaptureInfo) -> pa.Schema:
    """Return the Arrow schema of a tensor's captures."""
    fields = [pa.field("sample", pa.int64(), nullable=False), pa.field("values", _values_type(info), nullable=False)]
    if info.shape is None:
        fields.append(pa.field("shape", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False))
    return pa.schema(fields, metadata=info.to_metadata())


def _columns(info: CaptureInfo) -> list[Column]:
    columns = [Column("sample", "int64", is_list=False), Column("values", info.dtype, is_list=True)]
    return [*columns, Column("shape", "int64", is_list=True)] if info.shape is None else columns


class CaptureWriter:
    """Writes the rows of one tensor as they come; the file is complete after `close`.

    Between two calls no file is open, so that a model may have more tensors than a process may have files.

    Args:
        folder: the run folder.
        tensor_id: which tensor.
        info: what its metadata says; a given shape makes `values` a fixed-size list.
    """

    def __init__(self, folder: Path, tensor_id: int, info: CaptureInfo) -> None:
        self.info = info
        place = capture_folder(folder, tensor_id)
        place.mkdir(parents=True, exist_ok=True)
        self._path = place / "part-00000.parquet"
        self._path.write_bytes(MAGIC)
        self._end = len(MAGIC)
        self._groups: list[RowGroup] = []
        self._group = RowGroup()
        self._samples: list[Array] = []
        self._shapes: list[Array] = []
        self._pages: list[tuple[int, int]] | None = []

    def append(self, samples: Iterable[int], rows: Array) -> None:
        """Add samples of equal shape, in order; nothing of them is held afterwards.

        Args:
            samples: their numbers.
            rows: shape (n, ...).

        Raises:
            ModelError: the shape is another than the model declares.
        """
        if self.info.shape is not None and rows.shape[1:] != self.info.shape:
            message = (
                f"tensor '{self.info.tensor}': a sample has shape {list(rows.shape[1:])}, the model declares {list(self.info.shape)}; "
                "its shape annotations are wrong, export it anew"
            )
            raise ModelError(message)
        numbers, contiguous = np.fromiter(samples, np.int64), np.ascontiguousarray(rows)
        step = max(1, 4 * ROW_GROUP_BYTES // max(1, contiguous[0].nbytes))
        for start in range(0, len(contiguous), step):
            self._add(numbers[start : start + step], contiguous[start : start + step])

    def _add(self, numbers: Array, rows: Array) -> None:
        if rows[0].nbytes > PAGE_BYTES:
            self._add_long(rows[0])
        else:
            self._add_page("values", rows.size // len(rows), len(rows), rows)
        self._group.rows += len(rows)
        self._samples.append(numbers)
        self._shapes.append(np.tile(np.array(rows.shape[1:], np.int64), (len(rows), 1)))
        if self._group.chunks["values"].size >= ROW_GROUP_BYTES:
            self._end_group()

    def _add_long(self, row: Array) -> None:
        """Write a row that no page can hold, in several."""
        self._pages = None  # whoever reads whole rows page by page has to read this file otherwise
        flat, step = row.reshape(-1), PAGE_BYTES // row.itemsize
        for start in range(0, flat.size, step):
            part = flat[start : start + step]
            self._add_page("values", part.size, 1, part, continues=start > 0)

    def _add_page(self, column: str, length: int, rows: int, numbers: Array, *, continues: bool = False) -> None:
        self._write(column, rows * max(length, 1), list_levels(rows, length, continues=continues), numbers)
        if column == "values" and self._pages is not None:
            self._pages.append((self._end - numbers.nbytes, rows))

    def _write(self, column: str, entries: int, levels: bytes, numbers: Array) -> None:
        header = page_header(entries, len(levels) + numbers.nbytes)
        with self._path.open("ab") as file:
            file.write(header + levels)
            numbers.tofile(file)  # reserves the space first: a third faster than a plain write of the same memory
        chunk = self._group.chunks.setdefault(column, Chunk(self._end))
        chunk.size += len(header) + len(levels) + numbers.nbytes
        chunk.entries += entries
        self._end += len(header) + len(levels) + numbers.nbytes

    def _end_group(self) -> None:
        """Write what belongs to each row beside its values, behind them."""
        if not self._group.rows:
            return
        self._write("sample", self._group.rows, b"", np.concatenate(self._samples))
        if self.info.shape is None:
            for shapes in self._shapes:
                self._add_page("shape", shapes.shape[1], len(shapes), shapes)
        self._groups.append(self._group)
        self._group, self._samples, self._shapes = RowGroup(), [], []

    def close(self) -> None:
        """Write what waits and finish the file."""
        self._end_group()
        arrow = base64.b64encode(capture_schema(self.info).serialize().to_pybytes())
        metadata = {**self.info.to_metadata(), b"ARROW:schema": arrow}
        if self._pages is not None:
            metadata[PAGES_KEY] = json.dumps(self._pages).encode()
        with self._path.open("ab") as file:
            file.write(footer(_columns(self.info), self._groups, metadata))


class SamplesWriter:
    """Writes rows of the `samples` table into parts, so that they are never held for all samples.

    Args:
        folder: where the parts go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[SampleColumns] = []
        self._rows = 0
        self._parts = 0

    def append(self, columns: SampleColumns) -> None:
        """Add rows.

        Raises:
            RunError: a part is due, and the disk is full or the folder cannot be written.
        """
        self._waiting.append(columns)
        self._rows += columns["sample"].size
        if self._rows >= SAMPLE_ROWS:
            self.close()
        elif len(self._waiting) >= SAMPLE_BATCHES:
            self._waiting = [joined_columns(self._waiting)]

    def close(self) -> None:
        """Write the rows that wait, sorted, as one part."""
        if not self._rows:
            return
        rows = sorted_columns(joined_columns(self._waiting))
        write_frame("samples", frame_of("samples", rows), self._folder / f"part-{self._parts:05d}.parquet")
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
            f"{folder}: the raw activations {what} {bytes_text(needed)}, and {bytes_text(free)} are free on that disk "
            "(at most half is used); pass --keep stats or --keep raw:N, or a --run folder on a larger disk"
        )
        raise RunError(message)
