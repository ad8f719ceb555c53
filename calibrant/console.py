"""What people see: progress bars on stderr, tables and plain lines on stdout."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import ConfigError, ExportError, nearest
from calibrant.stats.events import Event, Progress

if TYPE_CHECKING:
    import polars as pl

FORMATS = ("table", "csv", "json", "parquet")

_PLAIN_WIDTH = 10_000  # where stdout is no terminal nothing is cut to a width


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show one bar a stage on stderr while the block runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(bar.task_ids[tasks[stage]], completed=done, total=total or None)

        yield report


def print_table(frame: "pl.DataFrame", title: str | None = None) -> None:
    """Print a frame as a table on stdout, every row and column."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name, dtype in frame.schema.items():
        table.add_column(Text(name), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_frame(frame: "pl.DataFrame", form: str, output: Path | None) -> None:
    """Print a frame on stdout as a table, CSV or JSON lines, or write it to a file.

    Args:
        frame: the rows.
        form: ``table``, ``csv`` (header, shortest round-trip floats, NULL empty), ``json`` (one object a line) or ``parquet``.
        output: the file to write; needed for Parquet.

    Raises:
        ConfigError: an unknown format, or Parquet without a file.
        ExportError: the file cannot be written.
    """
    if form not in FORMATS:
        message = f"--format: '{form}' is not a format{nearest(form, FORMATS)}; formats: {', '.join(FORMATS)}"
        raise ConfigError(message)
    if form == "parquet" and output is None:
        message = "--format parquet: needs a file; pass -o FILE"
        raise ConfigError(message)
    if output is not None:
        _write_frame(frame, form, output)
    elif form == "table":
        print_table(frame)
    else:
        sys.stdout.write(_frame_text(frame, form))


def _frame_text(frame: "pl.DataFrame", form: str) -> str:
    _refuse_unwritable(frame, form)
    return str(frame.write_csv()) if form == "csv" else str(frame.write_ndjson())


def _refuse_unwritable(frame: "pl.DataFrame", form: str) -> None:
    for name, dtype in frame.schema.items():
        if _holds_bytes(dtype) or (form == "csv" and dtype.is_nested()):
            other = "json or parquet" if form == "csv" and not _holds_bytes(dtype) else "parquet"
            message = f"--format {form}: column '{name}' of type {dtype} has no text there; use --format {other}, or cast it to varchar"
            raise ConfigError(message)


def _holds_bytes(dtype: "pl.DataType") -> bool:
    return "Binary" in str(dtype)


def _write_frame(frame: "pl.DataFrame", form: str, output: Path) -> None:
    if not output.name or output.is_dir():
        message = f"{output}: is a folder; pass -o FILE"
        raise ExportError(message)
    partial = output.with_name(f".{output.name}.partial")
    try:
        if form == "parquet":
            frame.write_parquet(partial)
        else:
            partial.write_text(_frame_text(frame, "csv" if form == "table" else form), encoding="utf-8")
        partial.replace(output)
    except OSError as error:
        message = f"{output}: cannot be written ({error.strerror or error}); choose a writable file"
        raise ExportError(message) from error
    finally:
        partial.unlink(missing_ok=True)


def print_line(name: str, value: object) -> None:
    """Print one plain ``name: value`` line on stdout, for people and scripts alike."""
    sys.stdout.write(f"{name}: {value}\n")


def print_note(event: Event) -> None:
    """Print a decision or warning on stderr."""
    place = f"{event.layer}: " if event.layer else ""
    sys.stderr.write(f"{event.severity}: {place}{event.message}\n")


def print_error(message: str) -> None:
    """Print the one line on stderr that says what went wrong."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
