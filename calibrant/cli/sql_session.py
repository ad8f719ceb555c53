"""A conversation with the tables of a run: SQL statements and commands that begin with a dot, from a prompt or from a pipe."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calibrant.cli.sql_statements import is_blank, split_statements
from calibrant.console import FORMATS, print_error, print_frame, print_line, print_table
from calibrant.errors import CalibrantError, ConfigError, LayerNotFoundError, nearest
from calibrant.stats.report import AGAINST, find_report, list_reports, require_second

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from calibrant.stats.catalog import Catalog

SHOWN_ROWS: Final = 200  # of a table in the prompt; a pipe gets all
COMMANDS: Final = {
    ".tables": "the tables, and what one row of each is",
    ".schema": "columns of a table: .schema NAME; of all without a name",
    ".reports": "the named reports",
    ".report": "answer a report: .report NAME; .report NAME sql prints its query",
    ".format": f"how answers are printed: .format {' | '.join(FORMATS[:-1])}",
    ".help": "this list",
    ".quit": "leave; the end of the input does as well",
}


@dataclass
class SqlSession:
    """Answers statements and commands over an open catalog, and prints what they give.

    Attributes:
        catalog: the tables.
        form: how answers are printed.
        most_rows: of a table that is printed; None for all.
        failures: how many statements and commands were refused.
        is_over: whether the user asked to leave.
    """

    catalog: "Catalog"
    form: str = "table"
    most_rows: int | None = None
    failures: int = 0
    is_over: bool = False

    def read(self, text: str) -> None:
        """Answer everything that a text holds: statements, of which the last needs no semicolon, and lines that are commands.

        An error is printed in one line, and the next statement answered.
        """
        left = ""
        for line in text.splitlines():
            if is_blank(left) and line.lstrip().startswith("."):
                self._guarded(self._command, line.strip().rstrip(";"))
            else:
                left = self._statements(f"{left}\n{line}" if left else line)
            if self.is_over:
                return
        if not is_blank(left):
            self._guarded(self._answer, left)

    def _statements(self, text: str) -> str:
        """Answer the finished statements of a text; return what is not finished yet."""
        statements, left = split_statements(text)
        for statement in statements:
            self._guarded(self._answer, statement)
        return left

    def _guarded(self, work: Callable[[str], None], text: str) -> None:
        try:
            work(text)
        except CalibrantError as error:
            self.failures += 1
            sys.stdout.flush()  # so that what came before stands before it
            print_error(str(error))

    def _answer(self, statement: str) -> None:
        frame = self.catalog.answer(statement)
        if frame is not None:
            self._print(frame)

    def _print(self, frame: "pl.DataFrame") -> None:
        shown = frame if self.most_rows is None else frame.head(self.most_rows)
        print_frame(shown, self.form, None)
        if shown.height < frame.height:
            sys.stderr.write(
                f"{shown.height:,} of {frame.height:,} rows; add a limit, or pass the query to: calibrant sql RUN\n"
            )

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name in (".quit", ".exit", ".q"):
            self.is_over = True
            return
        work = {
            ".tables": self._tables, ".schema": self._schema, ".reports": self._reports, ".report": self._report,
            ".format": self._format, ".help": self._help,
        }.get(name)  # fmt: skip
        if work is None:
            message = f"no command '{name}'{nearest(name, COMMANDS)}; commands: {' '.join(COMMANDS)}"
            raise LayerNotFoundError(message)
        work(argument.strip())

    def _help(self, argument: str) -> None:
        print_lines((name, text) for name, text in COMMANDS.items())
        print_line("SQL", "any statement of DuckDB, over several lines, ended by ;")

    def _tables(self, argument: str) -> None:
        from calibrant.stats.table_notes import TABLE_NOTES

        plain = {name: name.removeprefix(f"{AGAINST}.") for name in self.catalog.columns()}
        print_lines((name, TABLE_NOTES[table].row if table in TABLE_NOTES else "") for name, table in plain.items())

    def _schema(self, argument: str) -> None:
        from calibrant.stats.schema_page import schema_frame
        from calibrant.stats.table_notes import TABLE_NOTES

        second = f"{AGAINST}." if self._has_second else ""
        for name in [argument.removeprefix(second)] if argument else TABLE_NOTES:
            print_table(schema_frame(name), f"{name}: {TABLE_NOTES[name].row}")
            sys.stdout.write("" if argument else "\n")

    @property
    def _has_second(self) -> bool:
        return any(name.startswith(f"{AGAINST}.") for name in self.catalog.columns())

    def _reports(self, argument: str) -> None:
        print_lines((report.name, report.title) for report in list_reports())

    def _report(self, argument: str) -> None:
        name, _, wanted = argument.partition(" ")
        report = find_report(name)
        if wanted.strip() == "sql":
            sys.stdout.write(report.query)
        elif wanted.strip():
            message = f".report {argument}: '{wanted.strip()}' is not known; pass the name alone, or sql behind it"
            raise ConfigError(message)
        else:
            require_second(report, has_second=self._has_second)
            self._answer(report.query)

    def _format(self, argument: str) -> None:
        forms = FORMATS[:-1]  # Parquet needs a file
        if argument not in forms:
            message = f".format '{argument}': is not a format{nearest(argument, forms)}; formats: {', '.join(forms)}"
            raise ConfigError(message)
        self.form = argument


def print_lines(rows: "Iterable[tuple[str, str]] | Iterator[tuple[str, str]]") -> None:
    """Print names with what they are, the second column aligned."""
    pairs = list(rows)
    size = max((len(name) for name, _ in pairs), default=0)
    sys.stdout.writelines(f"{name:<{size}}  {text}".rstrip() + "\n" for name, text in pairs)
