"""Parquet files of plain columns, from numpy memory to pages as small as compression makes them at a fifth of its time.

Whole numbers are written as differences (`_delta_kernels`), floats as they are, and what is the same for all rows that come together, such
as the number of their tensor, as runs of entries of a dictionary. The files are ordinary Parquet without compression. Source of the
layout: parquet.thrift and Encodings.md of the Parquet format specification.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibrant.stats._delta_kernels import BLOCK, PARTS, pack_differences
from calibrant.stats.thrift import BYTES, I32, STRUCT, Field, fields, i32, i64, sequence, structure, text, varint

GROUP_ROWS: Final = 2**18  # a row group ends once it has as many; readers share a file by its groups

Array = npt.NDArray[Any]
Part = Mapping[str, "Array | int | str"]  # neighbouring rows: arrays, and what is the same in all of them

_MAGIC: Final = b"PAR1"
_PLAIN, _RLE, _DELTA, _DICTIONARY = 0, 3, 5, 8  # encodings
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_REQUIRED, _OPTIONAL = 0, 1
_UTF8, _UINT_32 = 0, 13  # converted types


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """A column.

    Attributes:
        name: of the column.
        dtype: int32, uint32 (below 2^31), int64, float32, float64, or text, which has to be the same in all rows of a part.
        is_optional: whether NaN stands for a value that is not there.
    """

    name: str
    dtype: str
    is_optional: bool = False

    @property
    def physical(self) -> int:
        """Parquet's number of the type."""
        return {"int32": 1, "uint32": 1, "int64": 2, "float32": 4, "float64": 5, "text": 6}[self.dtype]

    def schema(self) -> bytes:
        """Return the column's element of the schema."""
        repetition = _OPTIONAL if self.is_optional else _REQUIRED
        described = [i32(1, self.physical), i32(3, repetition), text(4, self.name.encode())]
        converted = {"text": _UTF8, "uint32": _UINT_32}.get(self.dtype)
        return fields(described if converted is None else [*described, i32(6, converted)])


@dataclass(frozen=True, slots=True)
class Pages:
    """Rows as they go to the file.

    Attributes:
        rows: how many.
        columns: name -> a whole page, or the value that all rows share.
    """

    rows: int
    columns: Mapping[str, bytes | int | str]


def joined_parts(parts: Sequence[Part]) -> dict[str, Array]:
    """Return the rows of parts, at least one, as arrays.

    Example:
        >>> joined_parts([{"a": 1, "b": np.array([5, 6])}, {"a": 2, "b": np.array([7])}])["a"].tolist()
        [1, 1, 2]
    """
    sizes = [next(value.size for value in part.values() if isinstance(value, np.ndarray)) for part in parts]
    joined = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        joined[name] = np.concatenate(values) if isinstance(first, np.ndarray) else np.repeat(np.array(values), sizes)
    return joined


def pages_of(part: Part, columns: Sequence[PlainColumn]) -> Pages:
    """Encode rows; threads may do so at once.

    Args:
        part: every column of the table, at least one of them an array; arrays have equal lengths.
        columns: of the table.
    """
    rows = next(len(value) for value in part.values() if isinstance(value, np.ndarray))
    encoded = {column.name: _encoded(part[column.name], column) for column in columns}
    return Pages(rows, encoded)


def _encoded(value: Array | int | str, column: PlainColumn) -> bytes | int | str:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f":
        return _float_page(value.astype(column.dtype, copy=False), is_optional=column.is_optional)
    return _data_page(value.size, _DELTA, differences(value)) if value.size else b""


def differences(values: Array) -> bytes:
    """Return whole numbers, at least one, as DELTA_BINARY_PACKED.

    Example:
        >>> differences(np.arange(1, 6)).hex(" ")
        '80 01 04 05 02 02 00 00 00 00'
    """
    numbers = np.ascontiguousarray(values, np.int64)
    first = int(numbers[0])
    header = b"".join(map(varint, (BLOCK, PARTS, numbers.size, first << 1 if first >= 0 else -(first << 1) - 1)))
    blocks = -(-numbers.size // BLOCK)
    out = np.empty(blocks * (16 + 8 * BLOCK), np.uint8)  # memory that is not written to is never there
    return header + out[: pack_differences(numbers, out, 0)].tobytes()


def _float_page(values: Array, *, is_optional: bool) -> bytes:
    if not is_optional:
        return _data_page(values.size, _PLAIN, values.tobytes())
    there = ~np.isnan(values)
    if there.all():
        levels = varint(values.size << 1) + b"\1"
    else:
        packed = np.packbits(there, bitorder="little").tobytes()
        levels = varint(len(packed) << 1 | 1) + packed
    return _data_page(values.size, _PLAIN, struct.pack("<I", len(levels)) + levels + values[there].tobytes())


def _data_page(entries: int, encoding: int, body: bytes) -> bytes:
    described = structure(5, [i32(1, entries), i32(2, encoding), i32(3, _RLE), i32(4, _RLE)])
    return fields([i32(1, _DATA_PAGE), i32(2, len(body)), i32(3, len(body)), described]) + body


def _shared_pages(runs: Sequence[tuple[int, int | str]], column: PlainColumn) -> tuple[bytes, bytes]:
    """Return the dictionary and the data page of runs (rows, value)."""
    entries = list(dict.fromkeys(value for _, value in runs))
    plain = [_plain(value, column) for value in entries]
    body = b"".join(struct.pack("<I", len(one)) + one if column.dtype == "text" else one for one in plain)
    described = structure(7, [i32(1, len(entries)), i32(2, _PLAIN)])
    head = fields([i32(1, _DICTIONARY_PAGE), i32(2, len(body)), i32(3, len(body)), described])
    width = max(1, (len(entries) - 1).bit_length())
    places = {value: place.to_bytes(-(-width // 8), "little") for place, value in enumerate(entries)}
    indices = bytes([width]) + b"".join(varint(rows << 1) + places[value] for rows, value in runs)
    return head + body, _data_page(sum(rows for rows, _ in runs), _DICTIONARY, indices)


def _plain(value: int | str, column: PlainColumn) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.to_bytes(8 if column.dtype == "int64" else 4, "little", signed=True)


@dataclass(slots=True)
class ColumnFile:
    """Puts pages together to a file.

    Args:
        columns: in the order of the schema.
        metadata: key -> value, of the file.
    """

    columns: Sequence[PlainColumn]
    metadata: Mapping[str, str]
    _file: BytesIO = field(default_factory=lambda: BytesIO(_MAGIC))
    _groups: list[bytes] = field(default_factory=list)
    _waiting: list[Pages] = field(default_factory=list)
    _rows: int = 0
    _end: int = len(_MAGIC)

    def add(self, pages: Pages) -> None:
        """Add rows; no rows add nothing."""
        if not pages.rows:
            return
        self._waiting.append(pages)
        self._rows += pages.rows
        if sum(one.rows for one in self._waiting) >= GROUP_ROWS:
            self._end_group()

    def whole(self) -> memoryview:
        """Return the file."""
        self._end_group()
        schema = [fields([text(4, b"schema"), i32(5, len(self.columns))]), *(one.schema() for one in self.columns)]
        pairs = [fields([text(1, key.encode()), text(2, value.encode())]) for key, value in self.metadata.items()]
        orders = [fields([structure(1, [])])] * len(self.columns)  # statistics are in the order of the type
        footer = fields(
            [
                i32(1, 1), sequence(2, STRUCT, schema), i64(3, self._rows), sequence(4, STRUCT, self._groups),
                sequence(5, STRUCT, pairs), text(6, b"calibrant"), sequence(7, STRUCT, orders),
            ]
        )  # fmt: skip
        self._write(footer + struct.pack("<I", len(footer)) + _MAGIC)
        return self._file.getbuffer()

    def _write(self, data: bytes) -> int:
        """Append bytes and return where they begin."""
        start = self._end
        self._file.seek(start)
        self._end += self._file.write(data)
        return start

    def _end_group(self) -> None:
        if not self._waiting:
            return
        start, rows = self._end, sum(pages.rows for pages in self._waiting)
        chunks = [self._chunk(column, rows) for column in self.columns]
        self._groups.append(fields([sequence(1, STRUCT, chunks), i64(2, self._end - start), i64(3, rows)]))
        self._waiting = []

    def _chunk(self, column: PlainColumn, rows: int) -> bytes:
        values = [pages.columns[column.name] for pages in self._waiting]
        if isinstance(values[0], bytes):
            start = self._write(b"".join(page for page in values if isinstance(page, bytes)))
            whole = column.dtype.startswith(("int", "uint"))
            return self._described(column, rows, [_DELTA if whole else _PLAIN, _RLE], start, start, [])
        runs = [
            (pages.rows, value)
            for pages, value in zip(self._waiting, values, strict=True)
            if not isinstance(value, bytes)
        ]
        dictionary, data = _shared_pages(runs, column)
        start = self._write(dictionary)
        place = self._write(data)
        shared = [value for _, value in runs]
        bounds = [_plain(bound(shared), column) for bound in (max, min)]
        statistics = [i64(11, start), structure(12, [i64(3, 0), text(5, bounds[0]), text(6, bounds[1])])]
        return self._described(column, rows, [_PLAIN, _RLE, _DICTIONARY], start, place, statistics)

    def _described(
        self, column: PlainColumn, rows: int, encodings: Sequence[int], start: int, data: int, more: Sequence[Field]
    ) -> bytes:
        size = self._end - start
        described = [
            i32(1, column.physical), sequence(2, I32, [varint(code << 1) for code in encodings]),
            sequence(3, BYTES, [varint(len(column.name)) + column.name.encode()]), i32(4, 0), i64(5, rows),
            i64(6, size), i64(7, size), i64(9, data), *more,
        ]  # fmt: skip
        return fields([i64(2, 0), structure(3, described)])


def columns_file(parts: Iterable[Pages], columns: Sequence[PlainColumn], metadata: Mapping[str, str]) -> memoryview:
    """Return the file of all rows, in the order of the parts; what is shared in one has to be shared in all."""
    file = ColumnFile(columns, metadata)
    for pages in parts:
        file.add(pages)
    return file.whole()
