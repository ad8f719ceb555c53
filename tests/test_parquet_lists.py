"""Parquet files of captures: pyarrow, Polars and DuckDB read what was written, and so does the shortcut past them."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.errors import RunError
from calibrant.ingest import writer
from calibrant.ingest.writer import CaptureWriter
from calibrant.stats.captures import CaptureInfo, capture_folder, read_capture_rows, read_captures
from calibrant.stats.parquet_lists import list_levels

Array = npt.NDArray[Any]

# name, shapes of a sample's own array in each part that is appended, whether the shape is static, dtype
CASES: list[tuple[str, list[tuple[int, ...]], bool, str]] = [
    ("static", [(2, 1, 3, 4), (1, 1, 3, 4)], True, "float32"),
    ("float16", [(3, 1, 5)], True, "float16"),
    ("one value", [(2, 1), (2, 1)], True, "float32"),
    ("scalar", [(4,)], True, "float32"),
    ("varying", [(2, 1, 3), (1, 1, 7), (2, 1, 3)], False, "float32"),
    ("varying float16", [(2, 1, 3), (1, 1, 7)], False, "float16"),
    ("empty among others", [(2, 1, 3), (3, 1, 0), (1, 1, 2)], False, "float32"),
    ("empty alone", [(2, 1, 0)], True, "float32"),
    ("scalars that vary", [(2,), (1, 1, 2)], False, "float32"),
    ("many values", [(2, 1, 40_000), (1, 1, 40_000)], True, "float32"),
]


def parts_of(shapes: list[tuple[int, ...]], dtype: str) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def write(folder: Path, parts: list[Array], *, is_static: bool, dtype: str) -> Path:
    shape = parts[0].shape[1:] if is_static else None
    file = CaptureWriter(folder, 5, CaptureInfo("a/b:0", dtype, parts[0].ndim - 1, 0, shape))
    first = 10
    for part in parts:
        file.append(range(first, first + len(part)), part)
        first += len(part)
    file.close()
    return capture_folder(folder, 5) / "part-00000.parquet"


@pytest.mark.parametrize("group_bytes", [1, 40, 8 * 2**20])
@pytest.mark.parametrize(
    ("shapes", "is_static", "dtype"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_every_reader_finds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]], is_static: bool, dtype: str, group_bytes: int
) -> None:  # fmt: skip
    monkeypatch.setattr(writer, "ROW_GROUP_BYTES", group_bytes)
    parts = parts_of(shapes, dtype)
    path = write(tmp_path, parts, is_static=is_static, dtype=dtype)
    rows = [row for part in parts for row in part]
    numbers = list(range(10, 10 + len(rows)))

    table = pq.read_table(path)
    table.validate(full=True)
    assert table["sample"].to_pylist() == numbers
    assert table["values"].to_pylist() == [row.reshape(-1).tolist() for row in rows]
    if not is_static:
        assert table["shape"].to_pylist() == [list(row.shape) for row in rows]

    frame = pl.read_parquet(path)
    assert frame["sample"].to_list() == numbers
    assert [list(row) for row in frame["values"].to_list()] == [row.reshape(-1).tolist() for row in rows]

    if dtype == "float32":  # DuckDB has no type of 16 bits
        found = duckdb.sql(f"select sample, values from read_parquet('{path}') order by sample").fetchall()
        assert found == [(n, row.reshape(-1).tolist()) for n, row in zip(numbers, rows, strict=True)]

    read = dict(read_captures(tmp_path, 5))
    assert list(read) == numbers
    for row, own in zip(rows, read.values(), strict=True):
        assert own.shape == row.shape
        assert own.dtype == row.dtype
        np.testing.assert_array_equal(own, row)


def test_static_rows_have_the_arrow_type_of_a_fixed_size_list(tmp_path: Path) -> None:
    path = write(tmp_path, parts_of([(2, 1, 3, 4)], "float32"), is_static=True, dtype="float32")
    kind = pq.read_schema(path).field("values").type
    assert kind == pa.list_(pa.field("element", pa.float32(), nullable=False), 12)
    described = pq.ParquetFile(path).metadata
    assert described.row_group(0).column(1).path_in_schema == "values.list.element"
    assert described.row_group(0).column(1).statistics is None


def test_a_row_that_no_page_can_hold_goes_to_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAGE_BYTES", 400)
    monkeypatch.setattr(writer, "ROW_GROUP_BYTES", 16)
    parts = parts_of([(1, 1, 250), (2, 1, 250)], "float32")
    path = write(tmp_path, parts, is_static=True, dtype="float32")
    rows = [row for part in parts for row in part]
    assert pq.read_table(path)["values"].to_pylist() == [row.reshape(-1).tolist() for row in rows]
    assert duckdb.sql(f"select len(values) from read_parquet('{path}')").fetchall() == [(250,)] * 3
    for row, (_, own) in zip(rows, read_captures(tmp_path, 5), strict=True):
        np.testing.assert_array_equal(own, row)


def test_captures_of_a_general_writer_are_read_as_well(tmp_path: Path) -> None:
    rows = parts_of([(3, 1, 4)], "float32")[0]
    info = CaptureInfo("t", "float32", 2, 0, (1, 4))
    schema = writer.capture_schema(info)
    place = capture_folder(tmp_path, 0)
    place.mkdir(parents=True)
    values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("values").type)
    table = pa.Table.from_arrays([pa.array([4, 5, 9]), values], schema=schema)
    pq.write_table(table, place / "part-00000.parquet", compression="zstd", row_group_size=2)
    found = list(read_capture_rows(tmp_path, 0))
    assert np.concatenate([numbers for numbers, _ in found]).tolist() == [4, 5, 9]
    np.testing.assert_array_equal(np.concatenate([own for _, own in found]), rows)


def test_levels_of_a_page() -> None:
    # RLE runs (varint of twice the count, then the level) behind their length in four bytes
    repetition = bytes([8, 0, 0, 0, 2, 0, 4, 1, 2, 0, 4, 1])
    assert list_levels(2, 3) == repetition + bytes([2, 0, 0, 0, 12, 1])
    assert list_levels(2, 0) == bytes([2, 0, 0, 0, 4, 0]) * 2
    assert list_levels(1, 100, continues=True) == bytes([3, 0, 0, 0, 200, 1, 1]) * 2


def test_values_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, parts_of([(2, 1, 3)], "float32"), is_static=True, dtype="float32")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RunError, match="cannot be read as Parquet"):
        list(read_capture_rows(tmp_path, 5))
