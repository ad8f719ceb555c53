"""Reports on a run: a named one as a frame, or the whole as one HTML page; `calibrant report` is their command."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.stats.report import DEFAULT_REPORT, run_report
from calibrant.stats.run import Run, open_run

if TYPE_CHECKING:
    import polars as pl

PathLike = str | os.PathLike[str]


def report(
    run: PathLike | Run, name: str = DEFAULT_REPORT, *, fit: str | None = None, against: PathLike | Run | None = None
) -> "pl.DataFrame":
    """Answer a named report on a run.

    Args:
        run: a complete run.
        name: of the report; `calibrant report --list` lists them. The default ranks the layers, worst first.
        fit: keep the rows of this fit only; by default those of all.
        against: the second run of a report that compares two.

    Raises:
        LayerNotFoundError: no report, or no fit, has that name.
        ConfigError: the report compares two runs and there is one, or the other way round.
        RunError: not a complete run.

    Example:
        >>> report("model.run", "clip_gain").head(3)  # doctest: +SKIP
    """
    return run_report(open_run(run), name, fit, against=None if against is None else open_run(against))


def write_report(run: PathLike | Run, output: PathLike, *, against: PathLike | Run | None = None) -> Path:
    """Write one self-contained HTML file on a run that works offline, or on two runs and how they differ.

    Args:
        run: a complete run.
        output: the file.
        against: the run to compare it with.

    Returns:
        The file.

    Raises:
        RunError: not a complete run.
        ExportError: the file cannot be written.

    Example:
        >>> write_report("model.run", "report.html")  # doctest: +SKIP
    """
    from calibrant.report_page.page import write_page

    path = Path(output)
    write_page(open_run(run), path, None if against is None else open_run(against))
    return path
