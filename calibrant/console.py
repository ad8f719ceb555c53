"""What people see: progress bars on stderr, tables and plain lines on stdout."""

import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import ConfigError, ExportError, nearest
from calibrant.stats.events import Event, Progress
from calibrant.whole_files import whole_file

if TYPE_CHECKING:
    import polars as pl
    from rich.progress import TaskID

FORMATS = ("table", "csv", "json", "parquet")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEAST_TEXT = 20  # characters of a name that still tell it apart


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far each stage is on stderr while the block runs: a bar in a terminal, one line a stage in a log."""
    if not sys.stderr.isatty():
        yield _StageLines().report
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(tasks[stage], completed=done, total=total or None)

        yield report


class _StageLines:
    """One line when a stage begins and one when it ends, for logs."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()

    def report(self, stage: str, done: int, total: int) -> None:
        if stage not in self._started:
            self._started[stage] = time.monotonic()
            sys.stderr.write(f"{stage}: begins\n")
        if total and done >= total and stage not in self._ended:
            self._ended.add(stage)
            sys.stderr.write(f"{stage}: {done} done in {time.monotonic() - self._started[stage]:.1f} s\n")


def print_table(frame: "pl.DataFrame", title: str | None = None) -> None:
    """Print a frame as a table on stdout: every row and column, numbers whole, long names shortened in a narrow terminal."""
    if title:
        sys.stdout.write(f"{title}\n")
    sys.stdout.writelines(f"{line}\n" for line in table_lines(frame, _terminal_width()))


def printable(text: str) -> str:
    r"""Return text with its control characters escaped: a name of the model must neither break a line nor steer the terminal.

    Example:
        >>> printable("a" + chr(10) + "b" + chr(27) + "[2J")
        'a\\nb\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(frame: "pl.DataFrame", width: int | None = None) -> list[str]:
    """Return the lines of a table: header, rule, rows; numbers to the right, text to the left.

    Args:
        frame: the rows.
        width: where given, names are shortened in the middle (to no less than 20 characters) to come near it; numbers never are.

    Example:
        >>> import polars as pl
        >>> table_lines(pl.DataFrame({"layer": ["conv"], "macs": [1200]}))
        ['layer  macs', '-----------', 'conv   1200']
    """
    from rich.cells import cell_len

    is_number = [dtype.is_numeric() for dtype in frame.dtypes]
    columns = [[name, *map(_cell, frame[name])] for name in frame.columns]
    widths = [max(map(cell_len, column)) for column in columns]
    widths = widths if width is None else _narrowed(widths, is_number, width)
    lines = [
        "  ".join(
            _aligned(cell, size, right) for cell, size, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return lines if frame.height else [*lines, "(no rows)"]


def _narrowed(widths: list[int], is_number: list[bool], width: int) -> list[int]:
    """Take what a terminal lacks from the widest text columns."""
    widths = list(widths)
    texts = [index for index, number in enumerate(is_number) if not number]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(texts, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _LEAST_TEXT:
            break
        widths[widest] -= 1
    return widths


def _aligned(cell: str, size: int, right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(cell) > size:
        half = (size - 1) // 2
        cell = f"{set_cell_size(cell, size - 1 - half).rstrip()}…{cell[len(cell) - half :]}"
    space = " " * (size - cell_len(cell))
    return space + cell if right else cell + space


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def check_form(form: str, output: Path | None) -> None:
    """Refuse what `print_frame` could not give out, before anything is computed.

    Raises:
        ConfigError: an unknown format, or Parquet without a file.
    """
    if form not in FORMATS:
        message = f"--format: '{form}' is not a format{nearest(form, FORMATS)}; formats: {', '.join(FORMATS)}"
        raise ConfigError(message)
    if form == "parquet" and output is None:
        message = "--format parquet: needs a file; pass -o FILE"
        raise ConfigError(message)


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
    check_form(form, output)
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
    try:
        with whole_file(output) as partial:
            if form == "parquet":
                frame.write_parquet(partial)
            else:
                partial.write_text(_frame_text(frame, "csv" if form == "table" else form), encoding="utf-8")
    except OSError as error:
        message = f"{output}: cannot be written ({error.strerror or error}); choose a writable file"
        raise ExportError(message) from error


def print_text(lines: Sequence[str], output: Path | None) -> None:
    """Print lines on stdout, or write them to a file; in a terminal, lines without indentation are headings and stand out.

    Raises:
        ExportError: the file cannot be written.
    """
    if output is not None:
        _write_text(lines, output)
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for line in map(printable, lines):
            console.print(Text(line, style="" if line.startswith(" ") else "bold"), soft_wrap=True)
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def _write_text(lines: Sequence[str], output: Path) -> None:
    try:
        with whole_file(output) as partial:
            partial.write_text("".join(f"{printable(line)}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        message = f"{output}: cannot be written ({error.strerror or error}); choose a writable file"
        raise ExportError(message) from error


def print_line(name: str, value: object) -> None:
    """Print one plain ``name: value`` line on stdout, for people and scripts alike."""
    sys.stdout.write(f"{name}: {value}\n")


def print_note(severity: str, layer: str | None, message: str) -> None:
    """Print a decision or warning on stderr."""
    place = f"{layer}: " if layer else ""
    sys.stderr.write(f"{printable(f'{severity}: {place}{message}')}\n")


def print_event(event: Event) -> None:
    """Print what a stage tells before it goes on, on stderr."""
    print_note(event.severity, event.layer, event.message)


def print_error(message: str) -> None:
    """Print the one line on stderr that says what went wrong."""
    sys.stderr.write(f"error: {printable(' '.join(message.split()))}\n")
