"""Variants beside the float model on the same data: one pass over the samples each, with one session open at a time.

The outputs of the float model are kept in an `ArrayLog` for as long as that takes; of a variant only the terms of its metrics are
held. A metric of the user's own sees the outputs of all samples at once, so these are held while it is asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibrant.errors import ConfigError, nearest
from calibrant.export.array_log import ArrayLog
from calibrant.export.collapse import Spread, collapse
from calibrant.export.metrics import METRICS, Metric
from calibrant.export.output_tally import OutputTally, Row, value_row
from calibrant.export.outputs import OutputRunner, joined
from calibrant.export.user_metrics import Outputs, UserMetric
from calibrant.export.variants import Variant
from calibrant.ingest.data import DataSource
from calibrant.ingest.labels import check_count, class_labels
from calibrant.ingest.samples import Sample, fingerprint_of_keys
from calibrant.stats.bootstrap import interval
from calibrant.stats.events import Event, Progress, no_progress

Array = npt.NDArray[Any]

REFERENCE: Final = "fp32"
_DEFAULT: Final = ("sqnr_db", "cosine", "agreement")


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """What to measure.

    Attributes:
        metrics: empty for sqnr_db, cosine, agreement where outputs are vectors of scores, and top1 where labels are given.
        user_metrics: functions of all outputs.
        output: the only output to compare, or None for all; labels belong to it, or to the first.
        labels: one entry a sample, or None.
        progress: called as ``progress("evaluate", done, total)`` in samples times models.
    """

    metrics: tuple[Metric, ...] = ()
    user_metrics: tuple[UserMetric, ...] = ()
    output: str | None = None
    labels: Array | None = None
    progress: Progress = no_progress

    @property
    def wants_default(self) -> bool:
        """Whether nothing was asked for by name."""
        return not self.metrics and not self.user_metrics

    def chosen_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics of single samples.

        Raises:
            ConfigError: one needs labels, and there are none.
        """
        if self.wants_default:
            top = () if self.labels is None or self.labels.dtype.kind not in "iu" else (METRICS["top1"],)
            return (*top, *(METRICS[name] for name in _DEFAULT))
        for metric in self.metrics:
            if metric.needs_labels and self.labels is None:
                message = f"--metric {metric.name}: needs labels; pass --labels"
                raise ConfigError(message)
        return self.metrics


@dataclass
class Comparison:
    """What was found: rows of `evaluation` and `class_agreement` by fit, and collapsed outputs.

    Attributes:
        scores: rows with fit, variant, output, metric, value, low, high, samples.
        classes: rows with fit, variant, output, class_id, samples, agreement, low, high, confused_with.
        events: (fit, event) of each output that collapsed.
        fingerprint: of the data.
        samples: how many were compared.
    """

    scores: list[Row] = field(default_factory=list)
    classes: list[Row] = field(default_factory=list)
    events: list[tuple[str | None, Event]] = field(default_factory=list)
    fingerprint: str = ""
    samples: int = 0


def compare(
    reference: Callable[[], OutputRunner],
    variants: Sequence[Variant],
    source: DataSource,
    options: ComparisonOptions | None = None,
) -> Comparison:
    """Run the float model and every variant over the same samples and compare their outputs.

    Args:
        reference: opens the float model, whose session is closed before those of the variants are opened.
        variants: what stands beside it.
        source: the samples; data that can be read once is kept in a temporary file.
        options: what to measure.

    Raises:
        ConfigError: no such output or metric, labels that are needed and missing, or a user metric that fails.
        DataError, ModelError, ShapeError: data, labels, a model or dumps that do not fit; the message names them.
    """
    with open_comparison(reference, source, options, models=len(variants) + 1) as going:
        for variant in variants:
            going.run_variant(variant)
        return going.found


@contextmanager
def open_comparison(
    reference: Callable[[], OutputRunner],
    source: DataSource,
    options: ComparisonOptions | None = None,
    *,
    models: int = 2,
) -> "Iterator[ComparisonPass]":
    """Run the float model over the samples, and give what compares variants with it while the block runs.

    Args:
        reference: as for `compare`.
        source: as for `compare`.
        options: as for `compare`.
        models: how many models there will be, the float model included; for the progress alone.

    Raises:
        ConfigError, DataError, ModelError: as `compare`.
    """
    with ExitStack() as stack:
        inputs, outputs = stack.enter_context(ArrayLog()), stack.enter_context(ArrayLog())
        going = ComparisonPass(_Samples(source, inputs), outputs, options or ComparisonOptions(), models)
        going.run_reference(reference())
        yield going


class _Samples:
    """Samples that can be read again: a source that can be read once is kept as it passes."""

    def __init__(self, source: DataSource, log: ArrayLog) -> None:
        self.count = source.count
        self.keys: list[str] = []
        self._source = source
        self._log = log
        self._origins: list[Sample] = []

    def first(self) -> Iterator[Sample]:
        """Yield the samples and remember what a second pass needs."""
        for sample in self._source:
            self.keys.append(sample.key)
            if self._source.read_once:
                self._log.append(sample.values)
                self._origins.append(Sample({}, sample.key, sample.source, sample.position))
            yield sample

    def __iter__(self) -> Iterator[Sample]:
        if not self._source.read_once:
            yield from self._source
            return
        for values, origin in zip(self._log, self._origins, strict=True):
            yield Sample(values, origin.key, origin.source, origin.position)


class ComparisonPass:
    """A comparison that goes on: the float model's outputs are known, and variants are compared with them one by one.

    Attributes:
        found: what was found up to now.
    """

    def __init__(self, samples: _Samples, log: ArrayLog, options: ComparisonOptions, models: int) -> None:
        self.found = Comparison()
        self._samples, self._log, self._options, self._models = samples, log, options, models
        self._metrics = options.chosen_metrics()
        self._needs_labels = any(metric.needs_labels for metric in self._metrics)
        if options.labels is not None and samples.count is not None:
            check_count(options.labels, samples.count)
        labels = options.labels if self._needs_labels else None
        self._labels: list[int] | None = None if labels is None else class_labels(labels)
        self._every: tuple[str, ...] = ()
        self._chosen: tuple[str, ...] = ()
        self._done = 0
        self._spreads: dict[str, Spread] = {}
        self._reference: Outputs = {}

    def run_reference(self, runner: OutputRunner) -> None:
        """Keep the float model's outputs, and score it where labels or the user's metrics do."""
        self._every = runner.outputs
        self._chosen = _chosen(runner.outputs, self._options.output)
        self._spreads = {name: Spread() for name in self._chosen}
        for found in self._told(runner.each(self._samples.first())):
            self._log.append({name: found[name] for name in self._chosen})
            for name, spread in self._spreads.items():
                spread.add(found[name])
        self.found.samples, self.found.fingerprint = len(self._log), fingerprint_of_keys(self._samples.keys)
        if self._options.labels is not None:
            check_count(self._options.labels, len(self._log))
        self._judge_reference()

    def _judge_reference(self) -> None:
        """Score the float model itself: against labels, and by the user's metrics."""
        tallies = self._tallies(REFERENCE, [metric for metric in self._metrics if metric.needs_labels])
        if self._needs_labels:
            for found, label in self._labelled(self._log):
                self._add(tallies, found, found, label)
            self._note(Variant(REFERENCE, None, lambda *_: iter(())), tallies)
        if self._options.user_metrics:
            self._reference = joined(_columns(self._log))
            self._ask(REFERENCE, None, self._reference)

    def run_variant(self, variant: Variant) -> None:
        """Compare a variant; what was found of it comes after what was found before."""
        tallies = self._tallies(str(variant), self._metrics)
        kept: list[dict[str, Array]] = []
        stream = variant.outputs(self._samples, self._log, self._chosen, self._every)
        pairs = zip(self._labelled(self._log), self._told(stream), strict=True)
        for (reference, label), found in pairs:
            self._add(tallies, reference, found, label)
            if self._options.user_metrics:
                kept.append(found)
        self._note(variant, tallies)
        self._alarm(variant, tallies)
        if self._options.user_metrics:
            self._ask(variant.name, variant.fit, joined(_columns(kept)))

    def _tallies(self, name: str, metrics: Sequence[Metric]) -> dict[str, OutputTally]:
        first = self._chosen[0] if self._chosen else None
        return {
            output: OutputTally(name, output, [m for m in metrics if output == first or not m.needs_labels])
            for output in self._chosen
        }

    def _labelled(self, entries: Iterable[Mapping[str, Array]]) -> Iterator[tuple[Mapping[str, Array], int | None]]:
        for number, entry in enumerate(entries):
            yield entry, None if self._labels is None else self._labels[number]

    def _add(
        self,
        tallies: Mapping[str, OutputTally],
        reference: Mapping[str, Array],
        found: Mapping[str, Array],
        label: int | None,
    ) -> None:
        for name, tally in tallies.items():
            tally.add(reference[name], found[name], label)

    def _told(self, outputs: Iterator[dict[str, Array]]) -> Iterator[dict[str, Array]]:
        total = (self._samples.count or len(self._log)) * self._models
        for found in outputs:
            yield found
            self._done += 1
            self._options.progress("evaluate", self._done, total)

    def _note(self, variant: Variant, tallies: Mapping[str, OutputTally]) -> None:
        for output, tally in tallies.items():
            place = {"fit": variant.fit, "variant": variant.name, "output": output}
            self.found.scores += [{**place, **row} for row in tally.rows(all_metrics=not self._options.wants_default)]
            if variant.name != REFERENCE:
                self.found.classes += [{**place, **row} for row in tally.class_rows()]

    def _alarm(self, variant: Variant, tallies: Mapping[str, OutputTally]) -> None:
        for output, tally in tallies.items():
            if complaint := collapse(self._spreads[output], tally.spread):
                sample = tally.spread.broken[0] if tally.spread.broken else None
                message = f"{variant}: output '{output}' {complaint}; {_advice(variant)}"
                self.found.events.append((variant.fit, Event("evaluate", "warn", message, sample=sample)))

    def _ask(self, name: str, fit: str | None, outputs: Outputs) -> None:
        for metric in self._options.user_metrics:
            answer = metric(name, outputs, self._reference, self._options.labels, self.found.samples)
            value, (low, high) = (
                (answer, (nan, nan)) if isinstance(answer, float) else (float(answer.mean()), interval(answer))
            )
            row = {
                "fit": fit,
                "variant": name,
                "output": None,
                **value_row(metric.name, value, low, high, self.found.samples),
            }
            self.found.scores.append(row)


def _advice(variant: Variant) -> str:
    if variant.name.endswith("_fused"):
        return "onnxruntime's fused kernels may saturate on this CPU; judge the model without --fused"
    if variant.fit is not None:
        return "leave the layers that quantize worst in float (skip_layers; calibrant report RUN layers lists them)"
    return "its numbers say nothing of its other outputs; check how it was quantized, fed or dumped"


def _chosen(outputs: Sequence[str], output: str | None) -> tuple[str, ...]:
    if output is None:
        return tuple(outputs)
    if output not in outputs:
        listed = ", ".join(f"'{name}'" for name in outputs)
        message = f"--output-name: no output '{output}'{nearest(output, outputs)}; the model's outputs of numbers are {listed}"
        raise ConfigError(message)
    return (output,)


def _columns(entries: Iterable[Mapping[str, Array]]) -> dict[str, list[Array]]:
    columns: dict[str, list[Array]] = {}
    for entry in entries:
        for name, array in entry.items():
            columns.setdefault(name, []).append(np.asarray(array))
    return columns
