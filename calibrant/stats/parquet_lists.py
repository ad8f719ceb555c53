"""Parquet files of lists, one list a row, whose numbers go from numpy memory to the file as they are.

A general writer makes two levels for each number of a list (where a list begins, and that the number exists), which costs several times
what writing the numbers does. Here all numbers exist and the lists' lengths are known, so that the levels of a row are two runs.
The files are ordinary Parquet: uncompressed, PLAIN, pages of version 1. Source of the layout: the Parquet format specification
(parquet.thrift, Encodings.md) and the compact protocol of Thrift.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

MAGIC: Final = b"PAR1"
_BYTES, _I32, _I64, _LIST, _STRUCT = 8, 5, 6, 9, 12  # types of the compact protocol
_INT64, _FLOAT, _FIXED = 2, 4, 7  # physical types of Parquet
_REQUIRED, _REPEATED = 0, 2
_LIST_LOGICAL, _FLOAT16_LOGICAL = 3, 15  # members of the union LogicalType
_LIST_CONVERTED: Final = 3
_PLAIN, _RLE = 0, 3
_PHYSICAL: Final = {"float32": _FLOAT, "float16": _FIXED, "int64": _INT64}
_LEVEL_RUN: Final = 2**30  # levels of one run; its header counts in 32 bits

Field = tuple[int, int, bytes]  # number, type, encoded value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _i32(number: int, value: int) -> Field:
    return number, _I32, _varint(value << 1)  # no negative number occurs; zigzag doubles the others


def _i64(number: int, value: int) -> Field:
    return number, _I64, _varint(value << 1)


def _text(number: int, value: bytes) -> Field:
    return number, _BYTES, _varint(len(value)) + value


def _structure(number: int, fields: Iterable[Field]) -> Field:
    return number, _STRUCT, _fields(fields)


def _sequence(number: int, kind: int, items: Sequence[bytes]) -> Field:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return number, _LIST, head + b"".join(items)


def _fields(fields: Iterable[Field]) -> bytes:
    """Encode a struct; the numbers of its fields ascend by less than 16."""
    parts, last = [], 0
    for number, kind, value in fields:
        parts.append(bytes([(number - last) << 4 | kind]) + value)
        last = number
    return b"".join(parts) + b"\0"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file: a number a row, or a list of numbers.

    Attributes:
        name: of the column.
        dtype: int64, float32 or float16.
        is_list: whether a row holds a list.
    """

    name: str
    dtype: str
    is_list: bool

    @property
    def path(self) -> tuple[str, ...]:
        """Names from the root to the numbers."""
        return (self.name, "list", "element") if self.is_list else (self.name,)

    def schema(self) -> list[bytes]:
        """Return the column's elements of the schema."""
        leaf = self._leaf("element" if self.is_list else self.name)
        if not self.is_list:
            return [leaf]
        logical = _structure(10, [_structure(_LIST_LOGICAL, [])])
        head = [_i32(3, _REQUIRED), _text(4, self.name.encode()), _i32(5, 1), _i32(6, _LIST_CONVERTED), logical]
        return [_fields(head), _fields([_i32(3, _REPEATED), _text(4, b"list"), _i32(5, 1)]), leaf]

    def _leaf(self, name: str) -> bytes:
        fields = [_i32(1, _PHYSICAL[self.dtype]), _i32(3, _REQUIRED), _text(4, name.encode())]
        if self.dtype == "float16":
            fields.insert(1, _i32(2, 2))
            fields.append(_structure(10, [_structure(_FLOAT16_LOGICAL, [])]))
        return _fields(fields)


@dataclass(slots=True)
class Chunk:
    """Where a column's numbers of one row group lie.

    Attributes:
        offset: of its first page.
        size: bytes, page headers included.
        entries: numbers, and one for each empty list.
    """

    offset: int
    size: int = 0
    entries: int = 0


@dataclass(slots=True)
class RowGroup:
    """Rows that are described together.

    Attributes:
        rows: how many.
        chunks: by column.
    """

    rows: int = 0
    chunks: dict[str, Chunk] = field(default_factory=dict)

    def encoded(self, columns: Sequence[Column]) -> bytes:
        """Return its description for the footer."""
        parts = [_chunk(column, self.chunks[column.name]) for column in columns]
        total = sum(chunk.size for chunk in self.chunks.values())
        return _fields([_sequence(1, _STRUCT, parts), _i64(2, total), _i64(3, self.rows)])


def _chunk(column: Column, chunk: Chunk) -> bytes:
    encodings = [_varint(code << 1) for code in ((_PLAIN, _RLE) if column.is_list else (_PLAIN,))]
    path = [_varint(len(name)) + name for name in (part.encode() for part in column.path)]
    fields = [
        _i32(1, _PHYSICAL[column.dtype]), _sequence(2, _I32, encodings), _sequence(3, _BYTES, path), _i32(4, 0),
        _i64(5, chunk.entries), _i64(6, chunk.size), _i64(7, chunk.size), _i64(9, chunk.offset),
    ]  # fmt: skip
    return _fields([_i64(2, 0), _structure(3, fields)])


def _runs(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Encode runs (count, level) of one bit each, with their length before them."""
    whole = ((min(_LEVEL_RUN, count - start), level) for count, level in pairs for start in range(0, count, _LEVEL_RUN))
    encoded = b"".join(_varint(count << 1) + bytes([level]) for count, level in whole)
    return struct.pack("<I", len(encoded)) + encoded


def list_levels(rows: int, length: int, *, continues: bool = False) -> bytes:
    """Return the levels of a page: repetition (0 begins a list), then definition (1 is a number, 0 an empty list).

    Args:
        rows: lists in the page.
        length: numbers in each.
        continues: the page goes on with the list of the page before.

    Example:
        >>> list_levels(1, 3).hex(" ")
        '04 00 00 00 02 00 04 01 02 00 00 00 06 01'
    """
    if length == 0:
        return _runs([(rows, 0)]) + _runs([(rows, 0)])
    pairs = [(length, 1)] if continues else [(1, 0), (length - 1, 1)] * rows
    return _runs(pairs) + _runs([(rows * length, 1)])


def page_header(entries: int, size: int) -> bytes:
    """Return the header of a page of `entries` numbers (and empty lists) whose levels and numbers take `size` bytes."""
    data = [_i32(1, entries), _i32(2, _PLAIN), _i32(3, _RLE), _i32(4, _RLE)]
    return _fields([_i32(1, 0), _i32(2, size), _i32(3, size), _structure(5, data)])


def footer(columns: Sequence[Column], groups: Sequence[RowGroup], metadata: dict[bytes, bytes]) -> bytes:
    """Return the end of a file, which describes all that lies before it.

    Args:
        columns: in the order of the schema.
        groups: in the order of the rows.
        metadata: key -> value, of the file.
    """
    schema = [_fields([_text(4, b"schema"), _i32(5, len(columns))])]
    for column in columns:
        schema += column.schema()
    pairs = [_fields([_text(1, key), _text(2, value)]) for key, value in metadata.items()]
    described = _fields(
        [
            _i32(1, 1), _sequence(2, _STRUCT, schema), _i64(3, sum(group.rows for group in groups)),
            _sequence(4, _STRUCT, [group.encoded(columns) for group in groups]), _sequence(5, _STRUCT, pairs),
            _text(6, b"calibrant"),
        ]
    )  # fmt: skip
    return described + struct.pack("<I", len(described)) + MAGIC
