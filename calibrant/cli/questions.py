"""The commands that ask a run: sql and report."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Output, RunFolder, TableFormat


def sql(
    run: RunFolder,
    query: Annotated[str, typer.Argument(help="DuckDB SQL; every table is a view of its name.", show_default=False)],
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Ask the run's tables a question in SQL.

    Example: calibrant sql model.run "select layer, macs from layers order by macs desc limit 5"
    """
    from calibrant.console import print_frame
    from calibrant.stats.run import open_run

    print_frame(open_run(run).sql(query), form, output)


def report(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)] = None,
    name: Annotated[str, typer.Argument(help="Name of the report.")] = "layers",
    list_names: Annotated[bool, typer.Option("--list", help="List the reports.")] = False,
    fit: Annotated[str | None, typer.Option(help="Rows of this fit only. [default: all fits]")] = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Print a named report; by default the worst layers.

    Example: calibrant report model.run clip_rate
    """
    from calibrant.console import print_frame, print_line
    from calibrant.stats.report import list_reports, run_report
    from calibrant.stats.run import open_run

    if list_names:
        for entry in list_reports():
            print_line(entry.name, entry.title)
        return
    if run is None:
        raise typer.BadParameter("a run folder is needed", param_hint="RUN")  # noqa: EM101
    print_frame(run_report(open_run(run), name, fit), form, output)
