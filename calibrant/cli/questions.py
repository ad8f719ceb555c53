"""The commands that ask a run: sql, report and diff."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import Output, RunFolder, TableFormat
from calibrant.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from calibrant.cli.sql_session import SqlSession
    from calibrant.stats.run import Run

_PLAIN_WIDTH = 100  # columns of a bar table that goes to a file or a pipe

Against = Annotated[
    Path | None, typer.Option("--against", metavar="RUN2", help="A second run to compare with.", show_default=False)
]


def sql(
    run: RunFolder,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY", help="DuckDB SQL, or a command such as .schema. [default: a prompt, or queries from stdin]"
        ),
    ] = None,
    against: Against = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Ask the run's tables in SQL: one query, or a prompt.

    Every table is a view of its name; with --against RUN2 the second run's are against.NAME. Without a query, a prompt with
    completion opens; where stdin is no terminal, the statements in it are answered one after the other.

    Example: calibrant sql model.run "select layer, macs from layers order by macs desc limit 5"
    """
    from calibrant.console import print_frame
    from calibrant.stats.catalog import query_run
    from calibrant.stats.run import open_run

    opened, other = open_run(run), None if against is None else open_run(against)
    if query is not None and not query.lstrip().startswith("."):
        print_frame(query_run(opened, query, other), form, output)
        return
    if output is not None:
        raise typer.BadParameter("needs a query", param_hint="--output")  # noqa: EM101
    _hold_session(opened, other, query, form)


def _hold_session(run: "Run", against: "Run | None", query: str | None, form: str) -> None:
    from calibrant.cli.sql_session import SHOWN_ROWS, SqlSession
    from calibrant.stats.catalog import open_catalog

    interactive = query is None and sys.stdin.isatty() and sys.stdout.isatty()
    with open_catalog(run, against) as catalog:
        session = SqlSession(catalog, form, SHOWN_ROWS if interactive else None)
        _feed(session, run, query, interactive=interactive)
    if session.failures and not interactive:
        raise typer.Exit(1)


def _feed(session: "SqlSession", run: "Run", query: str | None, *, interactive: bool) -> None:
    if interactive:
        from calibrant.cli.sql_prompt import converse

        converse(run, session)
    else:
        session.read(sys.stdin.read() if query is None else query)


def report(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the report. [default: bars of the ranking]")
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the reports.")] = False,
    show_sql: Annotated[bool, typer.Option("--sql", help="Print the query of the report instead.")] = False,
    fit: Annotated[
        str | None, typer.Option(metavar="NAME", help="Rows of this fit only. [default: all; bars of one]")
    ] = None,
    against: Against = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Print layers, worst first, or a report; write an HTML page.

    -o FILE.html without a name writes one self-contained page that works offline: summary, ranked layers, and for each its histogram, loss
    curve, channels and plan. With --against RUN2 it compares two runs.

    Example: calibrant report model.run -o report.html
    """
    from calibrant.stats.report import DEFAULT_REPORT, find_report
    from calibrant.stats.run import open_run

    if list_names or show_sql:
        _describe_reports(None if list_names else find_report(name or DEFAULT_REPORT).query)
        return
    if run is None:
        raise typer.BadParameter("a run folder is needed", param_hint="RUN")  # noqa: EM101
    opened, other = open_run(run), None if against is None else open_run(against)
    if output is not None and output.suffix.lower() in (".html", ".htm"):
        _write_page(opened, other, name, fit, output)
    else:
        _print_report(opened, other, name, fit, form, output)


def _describe_reports(query: str | None) -> None:
    from calibrant.console import print_line
    from calibrant.stats.report import list_reports

    if query is not None:
        sys.stdout.write(query)
        return
    for entry in list_reports():
        print_line(entry.name, entry.title)


def _write_page(run: "Run", against: "Run | None", name: str | None, fit: str | None, output: Path) -> None:
    from calibrant.console import print_line
    from calibrant.reporting import write_report

    if name is not None or fit is not None:
        what = f"report '{name}'" if name is not None else f"--fit {fit}"
        message = (
            f"{what}: an HTML page holds the whole run; leave it out, or give -o another ending than {output.suffix}"
        )
        raise ConfigError(message)
    print_line("report", write_report(run, output, against=against).resolve())


def _print_report(
    run: "Run", against: "Run | None", name: str | None, fit: str | None, form: str, output: Path | None
) -> None:
    from calibrant.console import print_frame
    from calibrant.stats.report import DEFAULT_REPORT, run_report

    if name is None and against is not None:
        name = "compare_runs"
    if name is None and form == "table" and output is None:
        _print_bars(run, fit)
        return
    print_frame(run_report(run, name or DEFAULT_REPORT, fit, against=against), form, output)


def _print_bars(run: "Run", fit: str | None) -> None:
    from calibrant.cli.bar_table import bar_table
    from calibrant.run_difference import chosen_fit
    from calibrant.stats.report import run_report

    chosen = chosen_fit(run, fit)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH
    lines = bar_table(run_report(run, "ranking", chosen), width, ascii_only=not _takes_blocks())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    others = [name for name in run.info.fits if name != chosen]
    if fit is None and others:
        sys.stderr.write(f"fit {chosen}; others with --fit: {', '.join(others)}\n")


def _takes_blocks() -> bool:
    """Return whether stdout can write block characters."""
    try:
        "█…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def diff(
    run: RunFolder,
    against: Annotated[Path, typer.Argument(metavar="RUN2", help="The run to compare it with.", show_default=False)],
    fit: Annotated[
        str | None, typer.Option(metavar="NAME", help="Fit of RUN. [default: default, or its first]")
    ] = None,
    against_fit: Annotated[
        str | None, typer.Option(metavar="NAME", help="Fit of RUN2. [default: of the same name]")
    ] = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Compare two runs, or two fits of one, in text.

    It shows what they were made from where that differs, accuracy, and the layers with the greatest loss first; --format csv,
    json or parquet gives the layers alone. For a page: calibrant report RUN --against RUN2 -o diff.html.

    Example: calibrant diff model.run other.run
    """
    from calibrant import run_difference
    from calibrant.console import print_frame, print_table

    found = run_difference.diff(run, against, fit=fit, against_fit=against_fit)
    if form != "table" or output is not None:
        print_frame(found.layers, form, output)
        return
    for title, frame in (
        ("What the runs were made from", found.settings),
        ("Accuracy on the same data", found.evaluation),
        ("Layers, the greatest loss first", _shown_layers(found.layers)),
    ):
        print_table(frame, title)
        sys.stdout.write("\n")


def _shown_layers(layers: "pl.DataFrame") -> "pl.DataFrame":
    """Leave out what is the same for all layers, and what only a file is wide enough for."""
    pairs = [f"{name}_{side}" for name in ("sqnr_db", "clip_min", "clip_max") for side in ("here", "there")]
    sides = [name for name in ("algorithm", "bits") if (layers[f"{name}_here"] != layers[f"{name}_there"]).any()]
    pairs += [f"{name}_{side}" for name in sides for side in ("here", "there")]
    alone = (layers["quantized_in"] != "both").any()
    return layers.select("layer", "change_db", *pairs, *(["quantized_in"] if alone else []))
