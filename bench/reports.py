"""Every shipped report over a run of 1,000 layers with ten fits, and over ten such runs one after another."""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from bench import bars
from bench.contest import Case, Contest, Figure, Setting, alone
from bench.large_run import FITS, LAYERS, make_large_run
from calibrant.stats.report import Report, list_reports, run_report
from calibrant.stats.run import Run, open_run

RUNS: Final = 10


@lru_cache(maxsize=1)
def large_runs(folder: Path, layers: int, fits: int) -> tuple[Run, ...]:
    """Make one run and nine of the same files."""
    first = make_large_run(folder / "large0.run", layers=layers, fits=fits)
    return (first, *(_linked(first, folder / f"large{number}.run") for number in range(1, RUNS)))


def _linked(run: Run, path: Path) -> Run:
    for file in run.path.rglob("*"):
        if file.is_file():
            target = path / file.relative_to(run.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    return open_run(path)


def _answer(report: Report, run: Run, other: Run) -> None:
    run_report(run, report.name, against=other if report.is_comparison else None)


def of_one_run(report: Report, setting: Setting) -> Contest:
    runs = large_runs(setting.folder, setting.scaled(LAYERS, 2), setting.scaled(FITS, 2))
    return Contest({"calibrant": lambda: _answer(report, runs[0], runs[1])}, threads=2)


def of_ten_runs(setting: Setting) -> Contest:
    runs = large_runs(setting.folder, setting.scaled(LAYERS, 2), setting.scaled(FITS, 2))
    shipped = list_reports()

    def all_reports() -> None:
        for run in runs:
            for report in shipped:
                _answer(report, run, runs[0])

    return Contest({"calibrant": all_reports}, threads=2)


def cases(setting: Setting) -> Iterator[Case]:
    figure = Figure("milliseconds", alone("calibrant"), "ms", bars.REPORT_MS)
    for report in list_reports():
        yield Case(f"reports/{report.name}", lambda given, report=report: of_one_run(report, given), (figure,), 5)
    answers = RUNS * len(list_reports())
    mean = Figure("milliseconds an answer", lambda readings: readings["calibrant"] / answers, "ms", bars.REPORT_MS)
    yield Case("reports/all, of ten runs", of_ten_runs, (mean,), 1, warm=False)
