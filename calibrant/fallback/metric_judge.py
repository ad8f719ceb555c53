"""Judges by the metrics of `calibrant evaluate`, on evaluation data: models are built in memory, the float model runs once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import numpy.typing as npt
import polars as pl

from calibrant.errors import ConfigError
from calibrant.evaluation import FAKE_QUANT, evaluation_frames
from calibrant.export.comparison import REFERENCE, ComparisonOptions, ComparisonPass, open_comparison
from calibrant.export.memory_session import session_source
from calibrant.export.metrics import METRICS, Metric
from calibrant.export.outputs import OutputRunner
from calibrant.export.partial import QuantizedParts, partial_fake_quant
from calibrant.export.user_metrics import user_metric
from calibrant.export.variants import Variant
from calibrant.fallback.goal import Goal, higher_is_better, value_of_itself
from calibrant.fallback.judgement import Judgement
from calibrant.ingest.data import DataSource
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.samples import Sample
from calibrant.stats.run import Run

Array = npt.NDArray[Any]
Row = dict[str, Any]

_BESIDE = ("sqnr_db", "cosine", "agreement")  # measured whatever the goal is about


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """What to judge on.

    Attributes:
        source: the samples.
        name: path or kind of the data, for the tables.
        labels: one entry a sample, or None.
        output: the only output to compare, or None.
    """

    source: DataSource
    name: object
    labels: Array | None = None
    output: str | None = None


@contextmanager
def metric_judge(run: Run, prepared: PreparedModel, goal: Goal, data: EvaluationData) -> "Iterator[MetricJudge]":
    """Run the float model over the data, and give the judge while the block runs.

    Raises:
        ConfigError: no such output or metric, a metric without the labels that it needs, or a user metric that fails.
        DataError: data or labels that do not fit.
    """
    own = () if goal.metric is None or ":" not in goal.metric else (user_metric(goal.metric),)
    options = ComparisonOptions(_metrics(goal, data.labels), own, data.output, data.labels)
    with open_comparison(lambda: OutputRunner(run.prepared_file, prepared.inputs), data.source, options) as going:
        yield MetricJudge(run, prepared, own[0].name if own else goal.metric, goal, data, going)


def _metrics(goal: Goal, labels: Array | None) -> tuple[Metric, ...]:
    asked = [goal.metric] if goal.metric in METRICS else []
    top = ["top1"] if labels is not None and labels.dtype.kind in "iu" else []
    return tuple(METRICS[name] for name in dict.fromkeys([*asked, *top, *_BESIDE]))


class MetricJudge:
    """A `Judge` by metrics; see `metric_judge`."""

    def __init__(
        self,
        run: Run,
        prepared: PreparedModel,
        metric: str | None,
        goal: Goal,
        data: EvaluationData,
        going: ComparisonPass,
    ) -> None:
        self._run, self._prepared, self._goal, self._data, self._going = run, prepared, goal, data, going
        self._metric = metric or ("top1" if self._float_value("top1") is not None else None)
        self._write(going.found.scores, [])

    def original(self) -> Judgement:
        """Return the judgement of the float model.

        Raises:
            ConfigError: it does not reach the goal itself.
        """
        metric = (
            self._metric or "agreement"
        )  # which of two perfect values it is does not matter before a step was judged
        value = self._original_value(metric)
        if not self._goal.is_reached(metric, value, value):
            message = (
                f"the float model itself has {metric} {value:.6g}, and the goal is {self._goal.words(metric)}: "
                "no choice of layers reaches it; lower --min"
            )
            raise ConfigError(message)
        return Judgement(metric, value, None, None, ok=True, loss=0.0, higher_is_better=higher_is_better(metric))

    def judge(self, fit: str, parts: QuantizedParts, chosen: Sequence[str]) -> Judgement:
        """Compare the model with these parts quantized with the float model; its rows go to the table `evaluation`."""
        scores, classes = len(self._going.found.scores), len(self._going.found.classes)
        self._going.run_variant(_in_memory(self._prepared, parts, chosen, fit))
        rows = self._going.found.scores[scores:]
        self._write(rows, self._going.found.classes[classes:])
        return self._judged(self._meaningful(rows, self._going.found.classes[classes:]))

    def _meaningful(self, rows: Iterable[Row], classes: Sequence[Row]) -> list[Row]:
        """Leave the agreement of outputs out that are no vectors of scores, unless it was asked for."""
        with_classes = {row["output"] for row in classes}
        kept = self._goal.metric == "agreement"
        return [row for row in rows if row["metric"] != "agreement" or kept or row["output"] in with_classes]

    def _judged(self, rows: Sequence[Row]) -> Judgement:
        if self._metric is None:
            self._metric = "agreement" if any(row["metric"] == "agreement" for row in rows) else "cosine"
        metric, better = self._metric, higher_is_better(self._metric)
        worst = min((row for row in rows if row["metric"] == metric), key=lambda row: _badness(row["value"], better))
        value = float(worst["value"])
        return Judgement(
            metric, value, worst["low"], worst["high"],
            ok=self._goal.is_reached(metric, value, self._original_value(metric)),
            loss=_noise(rows), higher_is_better=better, scores=tuple(rows),
        )  # fmt: skip

    def _original_value(self, metric: str) -> float:
        found = self._float_value(metric)
        return value_of_itself(metric) if found is None else found

    def _float_value(self, metric: str) -> float | None:
        rows = (row for row in self._going.found.scores if row["variant"] == REFERENCE and row["metric"] == metric)
        return next((float(row["value"]) for row in rows), None)

    def _write(self, rows: Sequence[Row], classes: Sequence[Row]) -> None:
        found = self._going.found
        frames = evaluation_frames(
            type(found)(scores=list(rows), classes=list(classes), fingerprint=found.fingerprint), self._data.name
        )
        self._run.replace_evaluation(frames.scores)
        self._run.replace_class_agreement(frames.classes)


def _badness(value: float, better: bool) -> float:
    return -inf if isnan(value) else value if better else -value


def _noise(rows: Sequence[Row]) -> float:
    """Return noise over signal of the output that fares worst; endless where it cannot be compared."""
    found = [float(row["value"]) for row in rows if row["metric"] == "sqnr_db"]
    worst = min(found, key=lambda value: _badness(value, better=True))
    return inf if isnan(worst) else float(10 ** (-worst / 10))


def _in_memory(prepared: PreparedModel, parts: QuantizedParts, chosen: Sequence[str], fit: str) -> Variant:
    """Return the model with these parts quantized as what is compared; nothing stays on disk."""

    def outputs(
        samples: Iterable[Sample], references: Iterable[Mapping[str, Array]], names: Sequence[str], every: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        del references, every
        with session_source(partial_fake_quant(prepared, parts, chosen)) as source:
            runner = OutputRunner(source, prepared.inputs, name=f"the model of fit '{fit}'")
        for found in runner.each(samples):
            yield {name: found[name] for name in names}

    return Variant(FAKE_QUANT, fit, outputs)


def copy_scores(run: Run, from_fit: str, to_fit: str) -> None:
    """Give a fit of equal scales what was evaluated of another one."""
    for table, replace in (("evaluation", run.replace_evaluation), ("class_agreement", run.replace_class_agreement)):
        rows = run.read(table).filter(fit=from_fit)
        if rows.height:
            replace(rows.with_columns(fit=pl.lit(to_fit)))


__all__ = ["EvaluationData", "MetricJudge", "copy_scores", "metric_judge"]
