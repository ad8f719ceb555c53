"""What a command shows of a run: its files, its quality, and its events, which may fail it."""

from typing import TYPE_CHECKING

from calibrant.cli.options import FailOn
from calibrant.errors import CalibrantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from calibrant.export.files import ExportedFiles
    from calibrant.stats.run import Run

_SHOWN = 10  # warnings on stderr before the rest is left to the report


def show_events(run: "Run", fail_on: FailOn | None = None, *, fits: "Sequence[str | None] | None" = None) -> None:
    """Print warnings and what was reused or replaced on stderr, and fail where the caller does not tolerate them.

    Args:
        run: the run.
        fail_on: the least severity that fails.
        fits: whose events count, None among them for those of the capture: a run also holds what earlier commands told. All by default.
    """
    from calibrant.console import print_note

    events = run.read("events")
    if fits is not None:
        events = events.filter(events["fit"].is_in(list(fits), nulls_equal=True))
    messages, severities = events["message"], events["severity"]
    told = messages.str.starts_with("capture skipped") | messages.str.ends_with("is replaced")
    shown = events.filter((severities != "info") | told)
    for row in shown.head(_SHOWN).iter_rows(named=True):
        print_note(row["severity"], row["layer"], row["message"])
    if shown.height > _SHOWN:
        print_note("warn", None, f"{shown.height - _SHOWN} more; see calibrant report {run.path} events")
    _check_events(events.filter(severities.is_in(_intolerable(fail_on))), fail_on, run)


def _intolerable(fail_on: FailOn | None) -> list[str]:
    return [] if fail_on is None else ["error"] if fail_on is FailOn.error else ["error", "warn"]


def _check_events(severe: "pl.DataFrame", fail_on: FailOn | None, run: "Run") -> None:
    if severe.height:
        message = f"{severe.height} events at --fail-on {fail_on}, the first: {severe['message'][0]}; see calibrant report RUN events"
        raise CalibrantError(message)


def print_quality(run: "Run", fit: str) -> None:
    """Print the SQNR of the fake-quant model's worst output, as the last verify measured it, and its interval over samples."""
    from calibrant.console import print_line

    found = run.read("evaluation").filter(fit=fit, variant="fake_quant", metric="sqnr_db", data="verify").sort("value")
    for row in found.head(1).iter_rows(named=True):
        print_line("output_sqnr_db", f"{row['value']:.1f}")
        if row["low"] is not None:
            print_line("output_sqnr_interval", f"{row['low']:.1f} to {row['high']:.1f}")


def print_files(run: "Run", fit: str) -> None:
    """Print where the files of an exported fit are."""
    from calibrant.export.files import export_files

    if (prefix := run.info.fits[fit].prefix) is not None:
        print_paths(export_files(prefix))


def print_paths(files: "ExportedFiles") -> None:
    """Print the path of each exported file."""
    from calibrant.console import print_line

    print_line("fake_quant_model", files.fake_quant.resolve())
    print_line("deploy_model", files.deploy.resolve())
    print_line("record", files.record.resolve())
    print_line("quant_map", files.quant_map.resolve())
    print_line("config", files.config.resolve())
