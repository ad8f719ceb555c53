"""The commands that are stages of a run: run, capture, plan, stats, fit, export, verify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import (
    BatchSize,
    Config,
    Data,
    DialectName,
    DialectOption,
    Fail,
    Fit,
    FixInput,
    KeepOption,
    MatmulPerChannel,
    Memory,
    Model,
    Output,
    Prefix,
    Restart,
    RunFolder,
    RunOption,
    StrictAmct,
    TableFormat,
    WeightOnlyFormName,
    WeightOnlyFormOption,
    configuration,
    fixed_inputs,
)
from calibrant.cli.results import print_files, print_paths, print_quality, show_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from calibrant.ingest.data import Data as Samples
    from calibrant.stats.events import Event


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


def run(
    model: Model,
    data: Annotated[
        Path | None, typer.Option(help="Calibration samples: a .npz file or a folder of .npy files.")
    ] = None,
    config: Config = None,
    run: RunOption = None,
    prefix: Prefix = None,
    batch_size: BatchSize = None,
    keep: KeepOption = "raw",
    fix_input: FixInput = None,
    memory: Memory = None,
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
    from calibrant.console import print_event, print_line, progress_bar

    samples, chosen = _run_inputs(data, config, compression_optimize_conf)
    settings = configuration(chosen, dialect)
    with progress_bar() as progress:
        done = pipeline.run(
            model, samples, run=run, config=settings, batch_size=batch_size, keep=keep, prefix=prefix,
            fix_input=fixed_inputs(fix_input), memory=memory, fit=fit, restart=restart, strict_amct=strict_amct,
            matmul_per_channel=matmul_per_channel, weight_only_form=weight_only_form.value, progress=progress,
            notice=print_event,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    print_files(done, fit)
    print_quality(done, fit)
    show_events(done, fail_on, fits=(None, fit))


def capture(
    model: Model,
    data: Data,
    config: Config = None,
    run: RunOption = None,
    batch_size: BatchSize = None,
    keep: KeepOption = "raw",
    fix_input: FixInput = None,
    memory: Memory = None,
    restart: Restart = False,
    fail_on: Fail = None,
    dialect: DialectOption = None,
) -> None:
    """Run the model over the data; keep activations, statistics.

    Example: calibrant capture model.onnx --data samples/ --keep stats
    """
    from calibrant import pipeline
    from calibrant.console import print_event, print_line, progress_bar

    with progress_bar() as progress:
        done = pipeline.capture(
            model, data, run=run or Path(f"{model.stem}.run"), config=configuration(config, dialect),
            batch_size=batch_size, keep=keep, fix_input=fixed_inputs(fix_input), memory=memory, restart=restart,
            progress=progress, notice=print_event,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    show_events(done, fail_on, fits=(None,))


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
    from calibrant.cli.plan_table import print_plan
    from calibrant.console import print_note

    rows, events = _plan_of(model, config, fixed_inputs(fix_input), dialect)
    for event in events:
        print_note(event.severity, event.layer, event.message)
    print_plan(rows, form, output)


def _plan_of(
    model: Path, config: Path | None, fix_input: dict[str, str], dialect: DialectName | None
) -> "tuple[pl.DataFrame, Sequence[Event]]":
    """Return the plan of a configuration of calibration, or of one of retraining, which no other stage takes."""
    from calibrant import pipeline
    from calibrant.config_files import plan_retraining
    from calibrant.proto.documents import detect_document

    if config is not None and detect_document(config) in ("retrain", "retrain-json"):
        return plan_retraining(config, model, dialect=dialect.value if dialect else None, fix_input=fix_input)
    return pipeline.plan(model, config=configuration(config, dialect), fix_input=fix_input)


def stats(run: RunFolder) -> None:
    """Compute the statistics again from the activations.

    Example: calibrant stats model.run
    """
    from calibrant import pipeline
    from calibrant.console import print_line, progress_bar

    with progress_bar() as progress:
        done = pipeline.stats(run, progress=progress)
    print_line("run", done.path.resolve())


def fit(
    run: RunFolder,
    config: Config = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of this fit; one of that name is replaced.")
    ] = "default",
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
            run, config=configuration(config, dialect), name=name, exact=exact, strict_amct=strict_amct,
            matmul_per_channel=matmul_per_channel, progress=progress,
        )  # fmt: skip
    print_line("run", done.path.resolve())
    print_line("fit", name)
    show_events(done, fail_on, fits=(name,))


def export(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)] = None,
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
    print_files(done, fit)


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
    print_paths(files)


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
    print_quality(open_run(run), fit)
    pipeline.require_passed(report)
