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

from calibrant.stats.thrift import BYTES, I32, STRUCT, fields, i32, i64, sequence, structure, text, varint

MAGIC: Final = b"PAR1"
_INT64, _FLOAT, _FIXED = 2, 4, 7  # physical types of Parquet
_REQUIRED, _REPEATED = 0, 2
_LIST_LOGICAL, _FLOAT16_LOGICAL = 3, 15  # members of the union LogicalType
_LIST_CONVERTED: Final = 3
_PLAIN, _RLE = 0, 3
_PHYSICAL: Final = {"float32": _FLOAT, "float16": _FIXED, "int64": _INT64}
_LEVEL_RUN: Final = 2**30  # levels of one run; its header counts in 32 bits


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
        logical = structure(10, [structure(_LIST_LOGICAL, [])])
        head = [i32(3, _REQUIRED), text(4, self.name.encode()), i32(5, 1), i32(6, _LIST_CONVERTED), logical]
        return [fields(head), fields([i32(3, _REPEATED), text(4, b"list"), i32(5, 1)]), leaf]

    def _leaf(self, name: str) -> bytes:
        described = [i32(1, _PHYSICAL[self.dtype]), i32(3, _REQUIRED), text(4, name.encode())]
        if self.dtype == "float16":
            described.insert(1, i32(2, 2))
            described.append(structure(10, [structure(_FLOAT16_LOGICAL, [])]))
        return fields(described)


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
        return fields([sequence(1, STRUCT, parts), i64(2, total), i64(3, self.rows)])


def _chunk(column: Column, chunk: Chunk) -> bytes:
    encodings = [varint(code << 1) for code in ((_PLAIN, _RLE) if column.is_list else (_PLAIN,))]
    path = [varint(len(name)) + name for name in (part.encode() for part in column.path)]
    described = [
        i32(1, _PHYSICAL[column.dtype]), sequence(2, I32, encodings), sequence(3, BYTES, path), i32(4, 0),
        i64(5, chunk.entries), i64(6, chunk.size), i64(7, chunk.size), i64(9, chunk.offset),
    ]  # fmt: skip
    return fields([i64(2, 0), structure(3, described)])


def _runs(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Encode runs (count, level) of one bit each, with their length before them."""
    whole = ((min(_LEVEL_RUN, count - start), level) for count, level in pairs for start in range(0, count, _LEVEL_RUN))
    encoded = b"".join(varint(count << 1) + bytes([level]) for count, level in whole)
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
    data = [i32(1, entries), i32(2, _PLAIN), i32(3, _RLE), i32(4, _RLE)]
    return fields([i32(1, 0), i32(2, size), i32(3, size), structure(5, data)])


def footer(columns: Sequence[Column], groups: Sequence[RowGroup], metadata: dict[bytes, bytes]) -> bytes:
    """Return the end of a file, which describes all that lies before it.

    Args:
        columns: in the order of the schema.
        groups: in the order of the rows.
        metadata: key -> value, of the file.
    """
    schema = [fields([text(4, b"schema"), i32(5, len(columns))])]
    for column in columns:
        schema += column.schema()
    pairs = [fields([text(1, key), text(2, value)]) for key, value in metadata.items()]
    described = fields(
        [
            i32(1, 1), sequence(2, STRUCT, schema), i64(3, sum(group.rows for group in groups)),
            sequence(4, STRUCT, [group.encoded(columns) for group in groups]), sequence(5, STRUCT, pairs),
            text(6, b"calibrant"),
        ]
    )  # fmt: skip
    return described + struct.pack("<I", len(described)) + MAGIC
