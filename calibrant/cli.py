"""The `calibrant` command: each command parses, calls the function of the same name, and prints.

stdout carries data, stderr progress and errors. Exit codes: 0 done, 1 failed (the last line on stderr says why), 2 usage.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from calibrant.cli_config import config_app
from calibrant.cli_options import DialectName, FixInput, WeightOnlyFormName, WeightOnlyFormOption, fixed_inputs
from calibrant.cli_preprocess import preprocess
from calibrant.errors import CalibrantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from calibrant.export.files import ExportedFiles
    from calibrant.ingest.data import Data as Samples
    from calibrant.pipeline import Config as Configuration
    from calibrant.stats.events import Event
    from calibrant.stats.run import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Quantization calibration for Ascend NPUs: ONNX and data in, statistics in SQL and Ascend-ready ONNX out.\n\n"
    "Example: calibrant run model.onnx --data samples.npz --config quant.cfg",
)
app.add_typer(config_app, name="config")


class Keep(StrEnum):
    """What a capture keeps on disk."""

    raw = "raw"
    stats = "stats"


class FailOn(StrEnum):
    """The least severity of an event that makes a command fail."""

    warn = "warn"
    error = "error"


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float ONNX model.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Data = Annotated[Path, typer.Option(help="Calibration samples: a .npz file or a folder of .npy files.")]
DialectOption = Annotated[
    DialectName | None,
    typer.Option("--dialect", help="Whose type names the configuration uses. [default: told by the file]"),
]
Config = Annotated[Path | None, typer.Option(help="quant.cfg or config.json; AMCT's defaults without it.")]
RunOption = Annotated[
    Path | None, typer.Option("--run", help="Run folder to make. [default: <model stem>.run]", show_default=False)
]
Prefix = Annotated[
    str | None, typer.Option(help="Path prefix of the exported files. [default: RUN/export/<model stem>]")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples a batch; it changes no statistic. [default: the model's, else 8]")
]
KeepOption = Annotated[Keep, typer.Option(help="raw: keep the activations as Parquet; stats: the statistics only.")]
Fit = Annotated[str, typer.Option("--fit", help="Name of the fit.")]
TableFormat = Annotated[str, typer.Option("--format", help="table, csv, json (one object a line) or parquet.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Capture anew. [default: a complete run of the same content is reused]")
]
StrictAmct = Annotated[
    bool,
    typer.Option("--strict-amct", help="Refuse a bias outside int32, as AMCT does. [default: raise the weight scale]"),
]
MatmulPerChannel = Annotated[
    bool,
    typer.Option(
        "--matmul-per-channel", help="One weight scale an output column of Gemm and MatMul. [default: one, as in AMCT]"
    ),
]
Fail = Annotated[FailOn | None, typer.Option(help="Exit with 1 where an event of this severity was recorded.")]


def _version(wanted: bool) -> None:
    if wanted:
        from calibrant import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error was raised; any command takes it.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that hold for every command; `main` reads --traceback itself."""


_SHOWN = 10  # warnings on stderr before the rest is left to the report


def _show_events(run: "Run", fail_on: FailOn | None = None) -> None:
    """Print warnings and what was reused or replaced on stderr, and fail where the caller does not tolerate them."""
    from calibrant.console import print_note

    events = run.read("events")
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


def _print_quality(run: "Run", fit: str) -> None:
    from calibrant.console import print_line

    found = run.read("evaluation").filter(fit=fit, variant="fake_quant", metric="sqnr_db")
    for row in found.iter_rows(named=True):
        print_line("output_sqnr_db", f"{row['value']:.1f}")


def _print_files(run: "Run", fit: str) -> None:
    from calibrant.export.files import export_files

    if (prefix := run.info.fits[fit].prefix) is not None:
        _print_paths(export_files(prefix))


def _print_paths(files: "ExportedFiles") -> None:
    from calibrant.console import print_line

    print_line("fake_quant_model", files.fake_quant.resolve())
    print_line("deploy_model", files.deploy.resolve())
    print_line("record", files.record.resolve())
    print_line("quant_map", files.quant_map.resolve())
    print_line("config", files.config.resolve())


def _configuration(config: Path | None, dialect: DialectName | None) -> "Configuration | None":
    """Read the configuration here where the caller forces its dialect; else the stages read it."""
    if config is None or dialect is None:
        return config
    from calibrant.proto.any_config import read_calibration_config

    return read_calibration_config(config, dialect=dialect.value)


def _run_inputs(data: Path | None, config: Path | None, atc_job: Path | None) -> "tuple[Samples, Path | None]":
    """Return data and configuration from the options, or from ATC's job file."""
    if (data is None) == (atc_job is None):
        raise typer.BadParameter("give either --data or --compression-optimize-conf", param_hint="--data")  # noqa: EM101
    if data is not None:
        return data, config
    from calibrant.atc import read_atc_job
    from calibrant.console import print_note

    job = read_atc_job(Path(str(atc_job)))
    for note in job.notes:
        print_note(note.severity, None, note.message)
    return job.data, config or job.config


@app.command("run")
def run_command(
    model: Model,
    data: Annotated[
        Path | None, typer.Option(help="Calibration samples: a .npz file or a folder of .npy files.")
    ] = None,
    config: Config = None,
    run: RunOption = None,
    prefix: Prefix = None,
    batch_size: BatchSize = None,
    keep: KeepOption = Keep.raw,
    fix_input: FixInput = None,
    fit: Fit = "default",
    restart: Restart = False,
    strict_amct: StrictAmct = False,
    matmul_per_channel: MatmulPerChannel = False,
    weight_only_form: WeightOnlyFormOption = WeightOnlyFormName.dequantize,
    fail_on: Fail = None,
    dialect: DialectOption = None,
    compression_optimize_conf: Annotated[
        Path | None, typer.Option(help="ATC's job file, in the place of --data and --config.")
    ] = None,
) -> None:
    """Capture, fit, export and verify in one go.

    Example: calibrant run model.onnx --data samples.npz --config quant.cfg --prefix out/model
    """
    from calibrant import pipeline
    from calibrant.console import print_line, progress_bar

    samples, chosen = _run_inputs(data, config, compression_optimize_conf)
    settings = _configuration(chosen, dialect)
    with progress_bar() as progress:
        done = pipeline.run(
            model, samples, run=run, config=settings, batch_size=batch_size, keep=keep.value, prefix=prefix,
            fix_input=fixed_inputs(fix_input), fit=fit, restart=restart, strict_amct=strict_amct,
            matmul_per_channel=matmul_per_channel, weight_only_form=weight_only_form.value, progress=progress,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    _print_files(done, fit)
    _print_quality(done, fit)
    _show_events(done, fail_on)


@app.command()
def capture(
    model: Model,
    data: Data,
    config: Config = None,
    run: RunOption = None,
    batch_size: BatchSize = None,
    keep: KeepOption = Keep.raw,
    fix_input: FixInput = None,
    restart: Restart = False,
    fail_on: Fail = None,
    dialect: DialectOption = None,
) -> None:
    """Run the model over the data; keep activations, statistics.

    Example: calibrant capture model.onnx --data samples/ --keep stats
    """
    from calibrant import pipeline
    from calibrant.console import print_line, progress_bar

    with progress_bar() as progress:
        done = pipeline.capture(
            model, data, run=run or Path(f"{model.stem}.run"), config=_configuration(config, dialect),
            batch_size=batch_size, keep=keep.value, fix_input=fixed_inputs(fix_input), restart=restart, progress=progress,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    _show_events(done, fail_on)


@app.command()
def plan(
    model: Model,
    config: Config = None,
    fix_input: FixInput = None,
    form: TableFormat = "table",
    output: Output = None,
    dialect: DialectOption = None,
) -> None:
    """Show what a configuration means for each layer; run nothing.

    Example: calibrant plan model.onnx --config quant.cfg --format csv
    """
    from calibrant.console import print_frame, print_note

    rows, events = _plan_of(model, config, fixed_inputs(fix_input), dialect)
    for event in events:
        print_note(event.severity, event.layer, event.message)
    print_frame(rows, form, output)


def _plan_of(
    model: Path, config: Path | None, fix_input: dict[str, str], dialect: DialectName | None
) -> "tuple[pl.DataFrame, Sequence[Event]]":
    """Return the plan of a configuration of calibration, or of one of retraining, which no other stage takes."""
    from calibrant import pipeline
    from calibrant.config_files import plan_retraining
    from calibrant.proto.documents import detect_document

    if config is not None and detect_document(config) in ("retrain", "retrain-json"):
        return plan_retraining(config, model, dialect=dialect.value if dialect else None, fix_input=fix_input)
    return pipeline.plan(model, config=_configuration(config, dialect), fix_input=fix_input)


app.command()(preprocess)


@app.command()
def stats(run: RunFolder) -> None:
    """Compute the statistics again from the activations.

    Example: calibrant stats model.run
    """
    from calibrant import pipeline
    from calibrant.console import print_line, progress_bar

    with progress_bar() as progress:
        done = pipeline.stats(run, progress=progress)
    print_line("run", done.path.resolve())


@app.command()
def fit(
    run: RunFolder,
    config: Config = None,
    name: Annotated[str, typer.Option(help="Name of this fit; one of that name is replaced.")] = "default",
    exact: Annotated[
        bool, typer.Option("--exact", help="Search on the raw activations instead of the histograms.")
    ] = False,
    strict_amct: StrictAmct = False,
    matmul_per_channel: MatmulPerChannel = False,
    fail_on: Fail = None,
    dialect: DialectOption = None,
) -> None:
    """Fit scales again on an existing run, without inference.

    Example: calibrant fit model.run --config hfmg.cfg --name hfmg
    """
    from calibrant import pipeline
    from calibrant.console import print_line, progress_bar

    with progress_bar() as progress:
        done = pipeline.fit(
            run, config=_configuration(config, dialect), name=name, exact=exact, strict_amct=strict_amct,
            matmul_per_channel=matmul_per_channel, progress=progress,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    print_line("fit", name)
    _show_events(done, fail_on)


@app.command()
def export(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run folder.", show_default=False)] = None,
    fit: Fit = "default",
    prefix: Prefix = None,
    record: Annotated[
        Path | None, typer.Option(help="Export the scales of this record.txt instead of a run's.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The float model that the record belongs to.")] = None,
    fix_input: FixInput = None,
    weight_only_form: WeightOnlyFormOption = WeightOnlyFormName.dequantize,
) -> None:
    """Write both models, record, node map and configuration.

    Example: calibrant export model.run --fit hfmg --prefix out/model_hfmg
    """
    from calibrant import pipeline
    from calibrant.console import progress_bar

    if (record is None) != (model is None) or (run is not None and record is not None):
        raise typer.BadParameter("either a run folder, or --record and --model", param_hint="RUN")  # noqa: EM101
    if record is not None:
        _export_record(record, model, prefix, fix_input, weight_only_form)
        return
    if run is None:
        raise typer.BadParameter("a run folder, or --record and --model, are needed", param_hint="RUN")  # noqa: EM101
    with progress_bar() as progress:
        done = pipeline.export(run, fit=fit, prefix=prefix, weight_only_form=weight_only_form.value, progress=progress)
    _print_files(done, fit)


def _export_record(
    record: Path, model: Path | None, prefix: str | None, fix_input: list[str] | None, form: WeightOnlyFormName
) -> None:
    from calibrant.console import print_note
    from calibrant.rebuild import export_record

    if model is None:
        raise typer.BadParameter("the record's float model is needed", param_hint="--model")  # noqa: EM101
    files = export_record(
        record, model, prefix or model.stem, fix_input=fixed_inputs(fix_input), weight_only_form=form.value,
        notice=lambda event: print_note(event.severity, event.layer, event.message),
    )  # fmt: skip
    _print_paths(files)


@app.command()
def verify(
    run: RunFolder,
    fit: Fit = "default",
    prefix: Annotated[
        str | None, typer.Option(help="Prefix of the files. [default: where the fit was exported last]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Samples to verify on. [default: those that the capture kept]")
    ] = None,
    every_layer: Annotated[bool, typer.Option("--all", help="Show the layers that are exact as well.")] = False,
) -> None:
    """Prove the deploy model in exact integers, and lint it.

    Example: calibrant verify model.run
    """
    from calibrant import pipeline
    from calibrant.console import print_line, print_table, progress_bar
    from calibrant.stats.run import open_run

    with progress_bar() as progress:
        report = pipeline.verification(run, fit=fit, prefix=prefix, data=data, progress=progress)
    rows = report.frame()
    print_table(
        rows if every_layer else rows.filter(~(rows["passed"] & rows["exact"])), "Layers that are not exact, or fail"
    )
    for finding in report.findings:
        print_line("finding", finding)
    print_line("verified", report.summary())
    _print_quality(open_run(run), fit)
    pipeline.require_passed(report)


@app.command()
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


@app.command()
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to make; an earlier demo's is replaced.")] = Path("calibrant-demo"),
) -> None:
    """Quantize a real model on drawn pages; show the result.

    Example: calibrant demo --out /tmp/calibrant-demo
    """
    from calibrant.console import progress_bar
    from calibrant.demo import run_demo, show_demo

    with progress_bar() as progress:
        result = run_demo(out, progress)
    show_demo(result)


_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def _describe(error: BaseException) -> str:
    if isinstance(error, CalibrantError):
        return str(error)
    if isinstance(error, OSError):
        where = error.filename or "a file or stdout"
        return f"{where}: {error.strerror or error}; use another place, or mend its permissions and its disk's space"
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); take a smaller --batch-size, or smaller samples"
    return f"{type(error).__name__}: {error}; this is a fault of calibrant, run again with --traceback and report it"


def main() -> None:
    """Run the command line; the only place where every exception is caught."""
    arguments = sys.argv[1:]
    traceback = "--traceback" in arguments
    try:
        app(args=[argument for argument in arguments if argument != "--traceback"] or ["--help"], prog_name="calibrant")
    except BrokenPipeError:
        # The reader of stdout has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _fail("interrupted; what was finished stays, run the command again", _INTERRUPTED)
        raise
    except Exception as error:
        if traceback:
            raise
        _fail(_describe(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    from calibrant.console import print_error

    print_error(message)
    sys.exit(code)
