"""Named reports: each is a .sql file of this package that a person can copy and change."""

from dataclasses import dataclass
from importlib import resources
from typing import Final

import polars as pl

from calibrant.errors import LayerNotFoundError, nearest
from calibrant.stats.run import Run

DEFAULT_REPORT: Final = "layers"


@dataclass(frozen=True, slots=True)
class Report:
    """A named query.

    Attributes:
        name: as given to `calibrant report RUN NAME`.
        title: what it answers; the first comment line of the file.
        query: the whole file.
    """

    name: str
    title: str
    query: str


def _folder() -> resources.abc.Traversable:
    return resources.files("calibrant.stats").joinpath("sql")


def list_reports() -> list[Report]:
    """Return the reports of this package, by name.

    Example:
        >>> [report.name for report in list_reports()]
        ['clip_rate', 'compare_fits', 'events', 'layers', 'range_samples', 'unquantized']
    """
    files = sorted((file for file in _folder().iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    texts = [(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files]
    return [Report(name, text.splitlines()[0].removeprefix("--").strip(), text) for name, text in texts]


def run_report(run: Run, name: str = DEFAULT_REPORT, fit: str | None = None) -> pl.DataFrame:
    """Answer a named report.

    Args:
        run: the run.
        name: of the report.
        fit: keep the rows of this fit only, where the report tells fits apart.

    Raises:
        LayerNotFoundError: no report, or no fit, has that name.
    """
    if fit is not None and fit not in run.info.fits:
        message = f"{run.path}: no fit '{fit}'{nearest(fit, run.info.fits)}; fits: {', '.join(run.info.fits)}"
        raise LayerNotFoundError(message)
    reports = {report.name: report for report in list_reports()}
    if name not in reports:
        message = f"no report '{name}'{nearest(name, reports)}; reports: {', '.join(reports)}"
        raise LayerNotFoundError(message)
    rows = run.sql(reports[name].query)
    return rows if fit is None or "fit" not in rows.columns else rows.filter(pl.col("fit") == fit)
