"""SQL over a run: every table is a DuckDB view of its name. The only module that opens DuckDB."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import polars as pl

from calibrant.errors import SchemaError
from calibrant.stats.report import AGAINST
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS

_TENSOR_ID: Final = r"tensor_id=(\d+)[/\\]part-[^/\\]*$"  # the folder of a capture, at the end of its path
_SQL_TYPES: Final[dict[type[pl.DataType], str]] = {
    pl.String: "varchar", pl.Boolean: "boolean", pl.Int32: "integer", pl.Int64: "bigint", pl.UInt32: "uinteger",
    pl.Float32: "float", pl.Float64: "double",
}  # fmt: skip
_OWN: Final = "main"  # DuckDB's own schema


def _literal(path: Path) -> str:
    """Quote a path for DuckDB, which would take brackets, stars and question marks for patterns."""
    return "'" + re.sub(r"([\[*?])", r"[\1]", str(path)).replace("'", "''") + "'"


def _files(paths: list[Path]) -> str:
    return "[" + ", ".join(_literal(path) for path in paths) + "]"


def _table_view(connection: duckdb.DuckDBPyConnection, schema: str, run: Run, table: str) -> None:
    """Make the view of a table; hive partitioning would turn folders above the run called ``key=value`` into columns."""
    if files := run.table_files(table):
        source = f"(select *{_absent_columns(table, files[0])} from read_parquet({_files(files)}, hive_partitioning = false))"
    else:
        source = f"empty_{schema}_{table}"
        connection.register(source, run.read(table).to_arrow())
    connection.execute(f'create view {schema}."{table}" as select * from {source}')


def _absent_columns(table: str, file: Path) -> str:
    """Return columns that a run of an earlier version has not written, as NULL."""
    try:
        there = pl.read_parquet_schema(file)
    except (pl.exceptions.PolarsError, OSError):
        return ""  # DuckDB says what is wrong with the file
    absent = {name: _SQL_TYPES[type(dtype)] for name, dtype in SCHEMAS[table].items() if name not in there}
    return "".join(f', null::{kind} as "{name}"' for name, kind in absent.items())


def _captures_view(connection: duckdb.DuckDBPyConnection, schema: str, run: Run) -> None:
    if captures := sorted(run.path.glob("captures/tensor_id=*/part-*.parquet")):
        connection.execute(
            f"create view {schema}.captures as "
            f"select * exclude (filename), regexp_extract(filename, '{_TENSOR_ID}', 1)::integer as tensor_id "
            f"from read_parquet({_files(captures)}, filename = true, hive_partitioning = false, union_by_name = true)"
        )


def _create_views(connection: duckdb.DuckDBPyConnection, schema: str, run: Run) -> None:
    """Make a view of every table, and `captures` over the raw activations where they were kept."""
    for table in SCHEMAS:
        _table_view(connection, schema, run, table)
    _captures_view(connection, schema, run)


def _one_line(error: duckdb.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return " ".join(lines)


class Catalog:
    """An open database over the tables of a run; what one query creates, the next one finds.

    Args:
        connection: of DuckDB, with the views.
        run: the run, for messages.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, run: Run) -> None:
        self._connection = connection
        self._run = run

    def answer(self, query: str) -> pl.DataFrame | None:
        """Answer a statement; None for one that asks nothing, such as ``create table``.

        Raises:
            SchemaError: DuckDB refuses it; the message is DuckDB's in one line.
        """
        try:
            relation: duckdb.DuckDBPyRelation | None = self._connection.sql(query)
            frame: pl.DataFrame | None = None if relation is None else relation.pl()
        except duckdb.Error as error:
            message = f"query on {self._run.path}: {_one_line(error)}"
            raise SchemaError(message) from error
        except pl.exceptions.PolarsError as error:
            message = (
                f"query on {self._run.path}: a column has a type that Polars has not ({error}); "
                "cast it to another, e.g. ::varchar"
            )
            raise SchemaError(message) from error
        return frame

    def columns(self) -> dict[str, list[str]]:
        """Return the columns of every table and view there is now, by name; those of a second run as ``against.NAME``."""
        rows = self._connection.execute(
            "select table_schema, table_name, column_name from information_schema.columns "
            "where not starts_with(table_name, 'empty_') order by table_schema, table_name, ordinal_position"
        ).fetchall()
        found: dict[str, list[str]] = {}
        for schema, table, column in rows:
            found.setdefault(table if schema == _OWN else f"{schema}.{table}", []).append(column)
        return found


@contextmanager
def open_catalog(run: Run, against: Run | None = None) -> Iterator[Catalog]:
    """Open a database over a run's tables while the block runs.

    Args:
        run: its tables are views of their names.
        against: a second run, whose tables are ``against.NAME``.

    Raises:
        SchemaError: a file is damaged.
    """
    with duckdb.connect(":memory:") as connection:
        try:
            _create_views(connection, _OWN, run)
            if against is not None:
                connection.execute(f"create schema {AGAINST}")
                _create_views(connection, AGAINST, against)
        except duckdb.Error as error:
            message = f"tables of {run.path}: {_one_line(error)}"
            raise SchemaError(message) from error
        yield Catalog(connection, run)


def query_run(run: Run, query: str, against: Run | None = None) -> pl.DataFrame:
    """Answer a query over the tables of a run, and of a second one as ``against.NAME``.

    Raises:
        SchemaError: DuckDB refuses the query.
    """
    with open_catalog(run, against) as catalog:
        frame = catalog.answer(query)
    if frame is None:
        message = f"query on {run.path}: '{query}' asks nothing; pass a statement such as: select * from layers"
        raise SchemaError(message)
    return frame
