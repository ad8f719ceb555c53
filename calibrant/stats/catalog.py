"""SQL over a run: every table is a DuckDB view of its name. The only module that opens DuckDB."""

import re
from pathlib import Path
from typing import Final

import duckdb
import polars as pl

from calibrant.errors import SchemaError
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS

_TENSOR_ID: Final = r"tensor_id=(\d+)[/\\]part-[^/\\]*$"  # the folder of a capture, at the end of its path


def _literal(path: Path) -> str:
    """Quote a path for DuckDB, which would take brackets, stars and question marks for patterns."""
    return "'" + re.sub(r"([\[*?])", r"[\1]", str(path)).replace("'", "''") + "'"


def _files(paths: list[Path]) -> str:
    return "[" + ", ".join(_literal(path) for path in paths) + "]"


def _create_views(connection: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Make a view of every table, and `captures` over the raw activations where they were kept.

    Hive partitioning stays off: it would turn every folder above the run that is called ``key=value`` into a column.
    """
    for table in SCHEMAS:
        files = run.table_files(table)
        if files:
            connection.execute(
                f'create view "{table}" as select * from read_parquet({_files(files)}, hive_partitioning = false)'
            )
        else:
            connection.register(table, run.read(table).to_arrow())
    if captures := sorted(run.path.glob("captures/tensor_id=*/part-*.parquet")):
        connection.execute(
            f"create view captures as select * exclude (filename), regexp_extract(filename, '{_TENSOR_ID}', 1)::integer as tensor_id "
            f"from read_parquet({_files(captures)}, filename = true, hive_partitioning = false, union_by_name = true)"
        )


def _one_line(error: duckdb.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return " ".join(lines)


def query_run(run: Run, query: str) -> pl.DataFrame:
    """Answer a query over the tables of a run.

    Raises:
        SchemaError: DuckDB refuses the query.
    """
    with duckdb.connect(":memory:") as connection:
        try:
            _create_views(connection, run)
            relation: duckdb.DuckDBPyRelation | None = connection.sql(query)
            if relation is None:
                message = f"query on {run.path}: '{query}' asks nothing; pass a statement such as: select * from layers"
                raise SchemaError(message)
            frame: pl.DataFrame = relation.pl()
        except duckdb.Error as error:
            message = f"query on {run.path}: {_one_line(error)}"
            raise SchemaError(message) from error
        except pl.exceptions.PolarsError as error:
            message = f"query on {run.path}: a column has a type that Polars has not ({error}); cast it to another, e.g. ::varchar"
            raise SchemaError(message) from error
    return frame
