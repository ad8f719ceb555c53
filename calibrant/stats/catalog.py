"""SQL over a run: every table is a DuckDB view of its name. The only module that opens DuckDB."""

from pathlib import Path

import duckdb
import polars as pl

from calibrant.errors import SchemaError
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _files(paths: list[Path]) -> str:
    return "[" + ", ".join(_literal(path) for path in paths) + "]"


def _create_views(connection: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Make a view of every table, and `captures` over the raw activations where they were kept."""
    for table in SCHEMAS:
        files = run.table_files(table)
        if files:
            connection.execute(f'create view "{table}" as select * from read_parquet({_files(files)})')
        else:
            connection.register(table, run.read(table).to_arrow())
    if captures := sorted(run.path.glob("captures/tensor_id=*/part-*.parquet")):
        connection.execute(
            "create view captures as select * from read_parquet("
            f"{_files(captures)}, hive_partitioning = true, hive_types = {{'tensor_id': 'integer'}}, union_by_name = true)"
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
            relation = connection.sql(query)
            frame: pl.DataFrame = relation.pl()
        except duckdb.Error as error:
            message = f"query on {run.path}: {_one_line(error)}"
            raise SchemaError(message) from error
    return frame
