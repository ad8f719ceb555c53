"""Automatic fallback: the fewest layers back to float so that a quantized model reaches a goal; `calibrant auto`.

The model runs over the calibration data once. Every step of the search is a fit of the same run, with the scales of the fit that
quantizes everything, and is judged in memory (docs/auto.md).
"""

import heapq
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from calibrant.errors import ConfigError, DataError
from calibrant.stats.events import Notice, Progress, no_notice, no_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calibrant.capturing import CaptureRequest, Config
    from calibrant.export.array_log import ArrayLog
    from calibrant.fallback.course import Search
    from calibrant.fallback.goal import Goal
    from calibrant.fallback.judgement import Judge
    from calibrant.fallback.metric_judge import EvaluationData
    from calibrant.fallback.options import CaptureSettings
    from calibrant.fallback.outcome import AutoCalibration
    from calibrant.fallback.own_strategy import Strategy
    from calibrant.fallback.user_evaluator import UserEvaluator
    from calibrant.ingest.data import Data
    from calibrant.ingest.labels import Labels
    from calibrant.ingest.model import PreparedModel
    from calibrant.ingest.samples import Sample
    from calibrant.stats.run import Run

PathLike = str | os.PathLike[str]

SAMPLES: Final = 16  # to rank layers on


@dataclass(frozen=True)
class _Judging:
    """What decides whether a step is good enough, and how many samples layers are ranked on."""

    goal: "Goal | None"
    evaluation: "Data | None"
    labels: "Labels | None"
    output: str | None
    samples: int
    evaluator: "UserEvaluator | None"


def auto_calibrate(
    model: PathLike,
    data: "Data | None" = None,
    *,
    evaluation: "Data | None" = None,
    labels: "Labels | None" = None,
    evaluator: object | None = None,
    metric: str | None = None,
    max_drop: str | float | None = None,
    minimum: float | None = None,
    strategy: "Literal['binary', 'greedy'] | Strategy" = "binary",
    view: str | None = None,
    max_float_macs: float = 1.0,
    config: "Config | None" = None,
    run: PathLike | None = None,
    prefix: PathLike | None = None,
    fit: str = "default",
    output: str | None = None,
    samples: int = SAMPLES,
    capture: "CaptureSettings | None" = None,
    rank_by: str = "sqnr_db",
    rank_always: bool = False,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> "AutoCalibration":
    """Quantize a model, and leave the layers in float that it takes to reach a goal; export and verify the result.

    Args:
        model: an ONNX file.
        data: calibration samples, as for `calibrant.capture`; None: what an evaluator's `calibration` feeds the float model.
        evaluation: samples to judge and to rank layers on.
        labels: of them, as for `calibrant.evaluate`.
        evaluator: an object with AMCT's verbs `calibration`, `evaluate` and `metric_eval`, which judges in the place of a metric.
        metric: top1, agreement, sqnr, cosine … or ``module:function``; None: top1 with labels, else agreement where outputs are
            scores of classes, else cosine.
        max_drop: how much worse than the float model's the metric may be, as a number or ``"0.5%"``, the default.
        minimum: its least value, in the place of `max_drop`.
        strategy: ``binary`` rolls the most sensitive layers back and halves their number, as AMCT does; ``greedy`` takes the layers
            that buy most per multiply-accumulate; or an object with AMCT's `initialize` and `update_quant_config`.
        view: how sensitive layers are found: whole, isolated or statistics; None: whole where that is affordable, else isolated.
        max_float_macs: the greatest share of the multiply-accumulates in float, 0 to 1.
        config: a quant.cfg or config.json, or None for AMCT's defaults.
        run: the run folder, by default ``<model stem>.run``; a complete run of the same content is reused.
        prefix: path prefix of the exported files.
        fit: name of the chosen fit.
        output: the only output to judge.
        samples: how many samples layers are ranked on, those of least content key.
        capture: how the capture is made.
        rank_by: metric of the view by which layers are ordered; greedy needs sqnr_db.
        rank_always: rank the layers even where nothing has to be rolled back.
        progress: called as ``progress(stage, done, total)``.
        notice: told of each step when it is finished.

    Returns:
        What was chosen; ``reached`` is False where the limit of MACs did not allow the goal, and ``fit`` None where every layer
        would have to be rolled back, so that nothing was exported.

    Raises:
        ConfigError: options that contradict each other, an evaluator that lacks a verb or fails, a goal that the float model misses.
        CalibrantError: as `calibrant.run` and `calibrant.evaluate`.

    Example:
        >>> found = auto_calibrate("m.onnx", "x.npz", evaluation="eval.npz", metric="sqnr", minimum=24)  # doctest: +SKIP
        >>> found.layers, found.macs_float, found.after.judgement.value  # doctest: +SKIP
    """
    from calibrant.fallback.course import Search
    from calibrant.fallback.goal import checked_goal
    from calibrant.fallback.options import CaptureSettings, check_before_capture, check_judging, check_search
    from calibrant.fallback.ranked_layers import checked_view
    from calibrant.fallback.user_evaluator import UserEvaluator

    check_judging(data, evaluation, labels, evaluator, [metric, max_drop, minimum])
    check_search(strategy, max_float_macs, samples, fit)
    own = None if evaluator is None else UserEvaluator(evaluator, needs_calibration=data is None)
    goal = None if evaluator is not None else checked_goal(metric, max_drop, minimum)
    check_before_capture(goal, evaluation, labels)
    judging = _Judging(goal, _readable_again(evaluation), labels, output, samples, own)
    search = Search(
        fit, strategy, checked_view(view), rank_by, max_float_macs,
        prefix=None if prefix is None else os.fspath(prefix), ranks_always=rank_always,
    )  # fmt: skip
    folder = Path(run) if run is not None else Path(f"{Path(model).stem}.run")
    captured = _captured(Path(model), data, folder, config, own, capture or CaptureSettings(), progress, notice)
    return _searched(captured, judging, search, progress, notice)


def _readable_again(data: "Data | None") -> "Data | None":
    """Read data that can be read once into memory: they rank layers and judge steps."""
    from calibrant.ingest.feeds import feeds_of, is_read_once

    if data is None or isinstance(data, str | Path) or not is_read_once(data):
        return data
    return list(feeds_of(data)())  # type: ignore[arg-type]  # what is no feed is refused when it is opened


def _captured(
    model: Path,
    data: "Data | None",
    folder: Path,
    config: "Config | None",
    evaluator: "UserEvaluator | None",
    settings: "CaptureSettings",
    progress: Progress,
    notice: Notice,
) -> "Run":
    """Capture once, or reuse a run, and fit everything that the configuration quantizes."""
    from calibrant.byte_sizes import parse_bytes
    from calibrant.capturing import CaptureRequest, read_config
    from calibrant.fallback.step_fits import drop_step_fits, step_name
    from calibrant.pipeline import capture_and_fit
    from calibrant.stats.keep import Keep

    request = CaptureRequest(
        model, data or (), folder, read_config(config), settings.batch_size, Keep.parse(settings.keep), settings.fix_input,
        memory=None if settings.memory is None else parse_bytes(settings.memory, "--memory"),
        restart=settings.restart, fits_too=True,
    )  # fmt: skip
    if data is not None:
        run = capture_and_fit(request, step_name(1), progress=progress, notice=notice)
    else:
        with _calibration_data(request, evaluator) as (feeds, batch_size):
            request = replace(request, data=feeds, batch_size=batch_size)
            run = capture_and_fit(request, step_name(1), progress=progress, notice=notice)
    drop_step_fits(run)
    return run


@contextmanager
def _calibration_data(
    request: "CaptureRequest", evaluator: "UserEvaluator | None"
) -> "Iterator[tuple[ArrayLog, int | None]]":
    """Give what an evaluator's `calibration` feeds the float model, and its batch size, while the block runs."""
    from calibrant.configured_model import prepare_configured
    from calibrant.export.array_log import ArrayLog
    from calibrant.fallback.observed import observed_feeds

    if evaluator is None:
        message = "auto: no calibration data; pass --data"
        raise ConfigError(message)
    inputs = prepare_configured(request.model, request.config, request.fix_input).inputs
    names = [spec.name for spec in inputs]
    with ArrayLog() as feeds:
        with observed_feeds(names, feeds):
            evaluator.calibration(request.model)
        if not len(feeds):
            listed = ", ".join(f"'{name}'" for name in names)
            message = (
                f"evaluator: calibration({request.model}) fed no onnxruntime.InferenceSession.run with the model's inputs {listed} "
                "in this process; let it do so, or pass the calibration data (--data)"
            )
            raise DataError(message)
        axis = inputs[0].batch_axis
        yield feeds, request.batch_size if axis is None else next(iter(feeds))[names[0]].shape[axis]


def _searched(run: "Run", judging: _Judging, search: "Search", progress: Progress, notice: Notice) -> "AutoCalibration":
    """Judge, rank, search and export."""
    from calibrant.fallback.course import Course
    from calibrant.ingest.model import load_prepared

    prepared = load_prepared(run.model_folder)
    with ExitStack() as stack:
        data = _evaluation_data(judging, prepared)
        judge = _judge(stack, run, prepared, judging, data)
        goal = judging.goal
        words = (lambda metric: "metric_eval of the evaluator") if goal is None else goal.words
        search = replace(search, samples=_least_samples(data, judging.samples), count=judging.samples)
        return Course(run, prepared, judge, words, search, progress, notice).outcome()


def _judge(
    stack: ExitStack, run: "Run", prepared: "PreparedModel", judging: _Judging, data: "EvaluationData | None"
) -> "Judge":
    from calibrant.fallback.metric_judge import metric_judge
    from calibrant.fallback.user_evaluator import EvaluatorJudge

    if judging.evaluator is not None:
        return EvaluatorJudge(run, prepared, judging.evaluator)
    if judging.goal is None or data is None:
        message = "auto: nothing to judge by; pass evaluation data (--eval) or an evaluator (--evaluator)"
        raise ConfigError(message)
    return stack.enter_context(metric_judge(run, prepared, judging.goal, data))


def _evaluation_data(judging: _Judging, prepared: "PreparedModel") -> "EvaluationData | None":
    from calibrant.fallback.metric_judge import EvaluationData
    from calibrant.ingest.data import open_data
    from calibrant.ingest.labels import names_in_data, read_labels

    if judging.evaluation is None:
        return None
    labels = None if judging.labels is None else read_labels(judging.labels, judging.evaluation)
    beside = names_in_data(judging.labels, judging.evaluation)
    source = open_data(judging.evaluation, prepared.inputs, beside=beside)
    return EvaluationData(source, judging.evaluation, labels, judging.output)


def _least_samples(data: "EvaluationData | None", count: int) -> "list[Sample]":
    """Return up to `count` samples of the evaluation data, those of least content key."""
    return [] if data is None else heapq.nsmallest(count, data.source, key=lambda sample: sample.key)


__all__ = ["SAMPLES", "auto_calibrate"]
