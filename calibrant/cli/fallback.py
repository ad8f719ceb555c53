"""The command that leaves layers in float until a goal is reached: auto."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import (
    BatchSize,
    Config,
    DialectOption,
    Fail,
    Fit,
    FixInput,
    KeepOption,
    Memory,
    Model,
    Prefix,
    Restart,
    RunOption,
    configuration,
    fixed_inputs,
    share,
)
from calibrant.cli.results import print_files, show_events
from calibrant.errors import CalibrantError

if TYPE_CHECKING:
    from calibrant.fallback.outcome import AutoCalibration
    from calibrant.fallback.steps import Step


class StrategyName(StrEnum):
    """How layers are chosen."""

    binary = "binary"
    greedy = "greedy"


class ViewName(StrEnum):
    """How sensitive layers are found."""

    whole = "whole"
    isolated = "isolated"
    statistics = "statistics"


def auto(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Calibration samples: a .npz file or a folder of .npy files. [default: what an evaluator's calibration runs]"
        ),
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Samples to judge on, and to rank layers on.", show_default=False)
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Labels: a .npy or .npz file, FILE.npz:KEY, or an array's name in the .npz of --eval."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="top1, agreement, sqnr, cosine … or module:function of your own. "
            "[default: top1 with labels, else agreement for scores of classes, else cosine]",
        ),
    ] = None,
    max_drop: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="How much worse than the float model the metric may be: 0.005 or 0.5%. [default: 0.5%]",
        ),
    ] = None,
    minimum: Annotated[
        float | None, typer.Option("--min", help="The least value of the metric, in the place of --max-drop.")
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py[:OBJECT]",
            help="An object with AMCT's calibration, evaluate and metric_eval, which judges in the place of a metric.",
        ),
    ] = None,
    strategy: Annotated[
        StrategyName,
        typer.Option(help="binary: the most sensitive first, as AMCT; greedy: those that buy most per MAC."),
    ] = StrategyName.binary,
    view: Annotated[
        ViewName | None,
        typer.Option(help="How sensitive layers are found. [default: whole where affordable, else isolated]"),
    ] = None,
    max_float_macs: Annotated[
        str, typer.Option(metavar="SHARE", help="The greatest share of the MACs in float.")
    ] = "100%",
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="How many samples of --eval rank the layers.")] = 16,
    output_name: Annotated[
        str | None, typer.Option("--output-name", help="The only output to judge. [default: the worst of all]")
    ] = None,
    config: Config = None,
    run: RunOption = None,
    prefix: Prefix = None,
    fit: Fit = "default",
    batch_size: BatchSize = None,
    keep: KeepOption = "raw",
    fix_input: FixInput = None,
    memory: Memory = None,
    restart: Restart = False,
    fail_on: Fail = None,
    dialect: DialectOption = None,
) -> None:
    """Quantize, and leave the layers in float that it takes to reach a goal.

    Example: calibrant auto model.onnx --data samples.npz --eval eval.npz --metric sqnr --min 24 --max-float-macs 15%
    """
    from calibrant.auto_calibration import auto_calibrate
    from calibrant.console import print_event, progress_bar
    from calibrant.fallback.options import CaptureSettings

    with progress_bar() as progress:
        found = auto_calibrate(
            model, data, evaluation=evaluation, labels=labels, evaluator=_evaluator(evaluator), metric=metric,
            max_drop=max_drop, minimum=minimum, strategy=strategy.value, view=view and view.value,
            max_float_macs=share(max_float_macs, "--max-float-macs"),
            config=configuration(config, dialect), run=run, prefix=prefix, fit=fit,
            output=output_name, samples=samples, progress=progress, notice=print_event,
            capture=CaptureSettings(batch_size, keep, fixed_inputs(fix_input), memory, restart),
        )  # fmt: skip
    _show(found)
    show_events(found.run, fail_on, fits=[None, fit])
    _refuse(found)


def _evaluator(given: str | None) -> object | None:
    if given is None:
        return None
    from calibrant.export.user_code import load_object
    from calibrant.fallback.user_evaluator import VERBS

    found: object = load_object(
        given, "--evaluator", lambda one: all(callable(getattr(one, verb, None)) for verb in VERBS[1:])
    )
    return found


def _show(found: "AutoCalibration") -> None:
    from calibrant.console import print_line, print_table

    print_table(found.pareto())
    print_line("run", found.run.path.resolve())
    if found.fit is not None:
        print_files(found.run, found.fit)
        print_line("quant_cfg", found.config.resolve() if found.config else "")
    print_line("goal", found.goal)
    _show_score("before", found.before)
    _show_score("after", found.after)
    print_line("macs_in_float", f"{100 * found.macs_float:.1f} %")
    print_line("layers_in_float", len(found.layers))
    for layer in found.layers:
        print_line("in_float", layer)


def _show_score(when: str, step: "Step") -> None:
    from calibrant.console import print_line

    judged = step.judgement
    print_line(f"{judged.metric}_{when}", _with_interval(judged.value, judged.low, judged.high))
    if judged.metric != "agreement" and (row := judged.score("agreement")) is not None:
        print_line(f"agreement_{when}", _with_interval(row["value"], row["low"], row["high"]))


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.5g}" if low is None or high is None else f"{value:.5g} (95 %: {low:.5g} to {high:.5g})"


def _refuse(found: "AutoCalibration") -> None:
    """Fail where the goal is not reached by a model that could be exported."""
    if found.fit is None:
        message = f"every layer would have to stay in float for the goal ({found.goal}), so that nothing is exported; lower the goal"
        raise CalibrantError(message)
    if not found.reached:
        message = f"the goal ({found.goal}) is not reached within --max-float-macs; what comes nearest was exported"
        raise CalibrantError(message)
