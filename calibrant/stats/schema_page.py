"""The page docs/tables.md, made from the schemas and their notes: ``python -m calibrant.stats.schema_page > docs/tables.md``."""

import sys
from collections.abc import Iterator
from typing import Final

import polars as pl

from calibrant.errors import LayerNotFoundError, nearest
from calibrant.stats.table_notes import CAPTURES_TYPES, TABLE_NOTES, column_note
from calibrant.stats.tables import SCHEMA_VERSION, SCHEMAS

_HEAD: Final = f"""# The tables of a run

<!-- Made from the code by `just docs`; change calibrant/stats/table_notes.py instead. -->

A run is a folder; every table is a Parquet file in `RUN/tables/` (or part files in `RUN/tables/NAME/`), and a view of the same name in
`calibrant sql RUN`, `Run.sql` and `Run.scan`. The schema version ({SCHEMA_VERSION}) stands in the metadata of each file. Types are Polars'.
A table with a column `fit` keeps the rows of several named fits side by side.

Ids count from 0: `tensor_id` and `layer_id` in topological order of the prepared model, `sample` in the order of the data.
Values are in the unit of the tensor that they describe; NULL means that there is no such value. `calibrant sql RUN ".schema"` prints the
same in the terminal; the reports that use these tables are in [reports.md](reports.md).
"""


def schema_page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for table in TABLE_NOTES for line in _section(table))])


def schema_frame(table: str) -> pl.DataFrame:
    """Return one row a column of a table: its name, type and what it holds.

    Raises:
        LayerNotFoundError: no table has that name.

    Example:
        >>> schema_frame("histograms")["column"].to_list()
        ['tensor_id', 'key', 'count']
    """
    if table not in TABLE_NOTES:
        message = f"no table '{table}'{nearest(table, TABLE_NOTES)}; tables: {', '.join(TABLE_NOTES)}"
        raise LayerNotFoundError(message)
    rows = [(column, kind, column_note(table, column)) for column, kind in _types(table).items()]
    return pl.DataFrame(rows, schema=["column", "type", "what"], orient="row")


def _types(table: str) -> dict[str, str]:
    if table == "captures":
        return dict(CAPTURES_TYPES)
    return {name: str(dtype) for name, dtype in SCHEMAS[table].items()}


def _section(table: str) -> Iterator[str]:
    note = TABLE_NOTES[table]
    yield f"## {table}: {note.row}"
    yield ""
    if note.about:
        yield note.about
        yield ""
    yield "| column | type | what |"
    yield "|---|---|---|"
    for column, kind, what in schema_frame(table).iter_rows():
        yield f"| {column} | {kind} | {what} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(schema_page())
