"""Named reports: each is a .sql file of this package that a person can copy and change."""

from dataclasses import dataclass
from importlib import resources
from typing import Final

import polars as pl

from calibrant.errors import ConfigError, LayerNotFoundError, nearest
from calibrant.stats.run import Run

DEFAULT_REPORT: Final = "ranking"
AGAINST: Final = "against"  # schema of the second run's tables


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

    @property
    def is_comparison(self) -> bool:
        """Whether it asks two runs."""
        return f"{AGAINST}." in self.query


def _folder() -> resources.abc.Traversable:
    return resources.files("calibrant.stats").joinpath("sql")


def list_reports() -> list[Report]:
    """Return the reports of this package, by name.

    Example:
        >>> [report.name for report in list_reports()][:3]
        ['algorithms_disagree', 'bias_range', 'channel_imbalance']
    """
    files = sorted((file for file in _folder().iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    texts = [(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files]
    return [Report(name, text.splitlines()[0].removeprefix("--").strip(), text) for name, text in texts]


def find_report(name: str) -> Report:
    """Return a report by name.

    Raises:
        LayerNotFoundError: no report has that name.
    """
    reports = {report.name: report for report in list_reports()}
    if name not in reports:
        message = f"no report '{name}'{nearest(name, reports)}; reports: {', '.join(reports)}"
        raise LayerNotFoundError(message)
    return reports[name]


def run_report(
    run: Run, name: str = DEFAULT_REPORT, fit: str | None = None, *, against: Run | None = None
) -> pl.DataFrame:
    """Answer a named report.

    Args:
        run: the run.
        name: of the report.
        fit: keep the rows of this fit only, where the report tells fits apart.
        against: the second run of a report that compares two.

    Raises:
        LayerNotFoundError: no report, or no fit, has that name.
        ConfigError: the report compares two runs and there is one, or the other way round.
    """
    check_fit_name(run, fit)
    report = find_report(name)
    _check_runs(report, against)
    from calibrant.stats.catalog import query_run

    rows = query_run(run, report.query, against)
    return rows if fit is None or "fit" not in rows.columns else rows.filter(pl.col("fit") == fit)


def check_fit_name(run: Run, fit: str | None) -> None:
    """Refuse a fit that a run has not.

    Raises:
        LayerNotFoundError: no fit has that name.
    """
    if fit is not None and fit not in run.info.fits:
        message = f"{run.path}: no fit '{fit}'{nearest(fit, run.info.fits)}; fits: {', '.join(run.info.fits)}"
        raise LayerNotFoundError(message)


def require_second(report: Report, *, has_second: bool) -> None:
    """Refuse a report that compares two runs where there is one.

    Raises:
        ConfigError: it does.
    """
    if report.is_comparison and not has_second:
        message = f"report '{report.name}' compares two runs; pass the second one with --against RUN2"
        raise ConfigError(message)


def _check_runs(report: Report, against: Run | None) -> None:
    require_second(report, has_second=against is not None)
    if against is not None and not report.is_comparison:
        others = ", ".join(other.name for other in list_reports() if other.is_comparison)
        message = f"report '{report.name}' asks one run; with --against there is: {others}"
        raise ConfigError(message)
