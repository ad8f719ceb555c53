"""Parquet files of plain columns: pyarrow, Polars and DuckDB read what was written, and the bytes are those of the format."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq
import pytest

from calibrant.errors import RunError
from calibrant.stats import parquet_columns
from calibrant.stats.parquet_columns import Part, PlainColumn, columns_file, differences, joined_parts, pages_of
from calibrant.stats.tables import SCHEMAS, plain_columns, write_parts

Array = npt.NDArray[Any]
Row = tuple[object, ...]

COLUMNS = [
    PlainColumn("tensor_id", "int32"), PlainColumn("side", "text"), PlainColumn("key", "uint32"),
    PlainColumn("count", "int64"), PlainColumn("min", "float32", is_optional=True), PlainColumn("sum", "float64"),
]  # fmt: skip
SIZES = [1, 2, 33, 128, 129, 130, 257, 0, 5000]


def part(number: int, size: int) -> Part:
    rng = np.random.default_rng(number)
    bounds = rng.normal(size=size).astype(np.float32)
    if number % 3 == 1:
        bounds[::3] = np.nan
    return {
        "tensor_id": number,
        "side": "größer" if number % 2 else "min",
        "key": np.sort(rng.integers(0, 2**31, size)).astype(np.uint32),
        "count": rng.integers(-(2**63), 2**63, size) >> (7 * number),
        "min": bounds,
        "sum": rng.normal(size=size),
    }


def rows_of(parts: list[Part]) -> list[Row]:
    rows: list[Row] = []
    for one in parts:
        size = len(one["sum"])  # type: ignore[arg-type]
        columns = [value.tolist() if isinstance(value, np.ndarray) else [value] * size for value in one.values()]
        columns[4] = [None if value != value else value for value in columns[4]]
        rows += zip(*columns, strict=True)
    return rows


def readers(path: Path) -> dict[str, pl.DataFrame]:
    arrow = pl.from_arrow(pq.read_table(path))
    assert isinstance(arrow, pl.DataFrame)
    return {"polars": pl.read_parquet(path), "pyarrow": arrow, "duckdb": duckdb.sql(f"from '{path}'").pl()}


@pytest.mark.parametrize("group_rows", [1, 200, 2**18])
def test_every_reader_finds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int) -> None:
    monkeypatch.setattr(parquet_columns, "GROUP_ROWS", group_rows)
    parts = [part(number, size) for number, size in enumerate(SIZES)]
    path = tmp_path / "x.parquet"
    path.write_bytes(columns_file([pages_of(one, COLUMNS) for one in parts], COLUMNS, {"a": "b"}))
    types = [pl.Int32, pl.String, pl.UInt32, pl.Int64, pl.Float32, pl.Float64]
    for name, frame in readers(path).items():
        assert frame.rows() == rows_of(parts), name
        assert frame.dtypes == types, name
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == {1: 8, 200: 3, 2**18: 1}[group_rows]
    assert file.metadata.metadata[b"a"] == b"b"


def test_readers_skip_groups_by_what_their_rows_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_columns, "GROUP_ROWS", 300)
    path = tmp_path / "x.parquet"
    path.write_bytes(columns_file([pages_of(part(n, 100), COLUMNS) for n in range(6)], COLUMNS, {}))
    bounds = [pq.ParquetFile(path).metadata.row_group(group).column(0).statistics for group in range(2)]
    assert [(one.min, one.max, one.null_count) for one in bounds] == [(0, 2, 0), (3, 5, 0)]
    assert pl.scan_parquet(path).filter(pl.col("tensor_id") == 4).select("key").collect().height == 100
    assert duckdb.sql(f"select count(*) from '{path}' where tensor_id > 3 and side = 'min'").fetchall() == [(100,)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], "80 01 04 01 0e"),
        ([-3], "80 01 04 01 05"),
        ([1, 2, 3, 4, 5], "80 01 04 05 02 02 00 00 00 00"),  # Encodings.md, example 1
        ([7, 5, 3, 1, 2, 3, 4, 5], "80 01 04 08 0e 03 02 00 00 00 c0 3f 00 00 00 00 00 00"),  # example 2
    ],
)
def test_differences_are_those_of_the_format(values: list[int], expected: str) -> None:
    assert differences(np.array(values)).hex(" ") == expected


@pytest.mark.parametrize("width", [*range(1, 34), 48, 63, 64])
def test_numbers_of_every_width_come_back(tmp_path: Path, width: int) -> None:
    steps = (
        np.random.default_rng(width).integers(0, 2**width, 300, dtype=np.uint64, endpoint=False) if width < 64 else None
    )
    values = np.cumsum(steps).astype(np.int64) if steps is not None else np.array([-(2**63), 2**63 - 1] * 150)
    columns = [PlainColumn("n", "int64")]
    (tmp_path / "x.parquet").write_bytes(columns_file([pages_of({"n": values}, columns)], columns, {}))
    for name, frame in readers(tmp_path / "x.parquet").items():
        assert frame["n"].to_list() == values.tolist(), name


def test_many_shared_values_need_more_than_a_byte(tmp_path: Path) -> None:
    columns = [PlainColumn("id", "int32"), PlainColumn("n", "int64")]
    parts = [pages_of({"id": number, "n": np.array([number, -number])}, columns) for number in range(300)]
    (tmp_path / "x.parquet").write_bytes(columns_file(parts, columns, {}))
    for name, frame in readers(tmp_path / "x.parquet").items():
        assert frame.rows() == [(n, v) for n in range(300) for v in (n, -n)], name


def test_bounds_that_are_all_absent(tmp_path: Path) -> None:
    columns = [PlainColumn("n", "int64"), PlainColumn("min", "float32", is_optional=True)]
    rows: Part = {"n": np.arange(11), "min": np.full(11, np.nan, np.float32)}
    (tmp_path / "x.parquet").write_bytes(columns_file([pages_of(rows, columns)], columns, {}))
    for name, frame in readers(tmp_path / "x.parquet").items():
        assert frame["min"].null_count() == 11, name


@pytest.mark.parametrize("table", ["histograms", "extremes", "channels", "weights", "biases", "samples"])
def test_tables_have_the_types_of_their_schema(tmp_path: Path, table: str) -> None:
    path = tmp_path / f"{table}.parquet"
    rows = {
        name: "max"
        if dtype == pl.String
        else np.array([3], dtype.to_python()).astype(np.float32 if dtype.is_float() else np.int64)
        for name, dtype in SCHEMAS[table].items()
    }
    write_parts(table, [pages_of(rows, plain_columns(table))], path)
    assert pl.read_parquet(path).schema == SCHEMAS[table]
    metadata = pl.read_parquet_metadata(path)
    assert (metadata["calibrant.table"], metadata["calibrant.schema_version"]) == (table, "1")


def test_a_table_without_rows_is_a_file_of_its_schema(tmp_path: Path) -> None:
    write_parts("histograms", [], tmp_path / "x.parquet")
    nothing: Part = {"tensor_id": 1, "key": np.empty(0, np.uint32), "count": np.empty(0, np.int64)}
    write_parts("histograms", [pages_of(nothing, plain_columns("histograms"))], tmp_path / "y.parquet")
    for name in ("x", "y"):
        assert all(frame.height == 0 for frame in readers(tmp_path / f"{name}.parquet").values())
        assert pl.read_parquet(tmp_path / f"{name}.parquet").schema == SCHEMAS["histograms"]


def test_an_error_while_rows_are_made_leaves_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "histograms.parquet").write_text("older")

    def broken() -> Any:
        yield pages_of({"tensor_id": 1, "key": np.uint32([1]), "count": np.array([1])}, plain_columns("histograms"))
        raise MemoryError

    with pytest.raises(MemoryError):
        write_parts("histograms", broken(), tmp_path / "histograms.parquet")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("histograms.parquet", "older")]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "tables").touch()
    pages = pages_of({"tensor_id": 1, "key": np.uint32([1]), "count": np.array([1])}, plain_columns("histograms"))
    with pytest.raises(RunError, match=r"histograms\.parquet: cannot be written .*free space on its disk"):
        write_parts("histograms", [pages], tmp_path / "tables" / "histograms.parquet")


def test_joined_parts_repeat_what_is_shared() -> None:
    joined = joined_parts(
        [{"id": 4, "n": np.array([1, 2])}, {"id": 5, "n": np.empty(0, np.int64)}, {"id": 6, "n": np.array([3])}]
    )
    assert {name: values.tolist() for name, values in joined.items()} == {"id": [4, 4, 6], "n": [1, 2, 3]}
