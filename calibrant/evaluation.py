"""What quantization costs on data that it was not calibrated on: the float model, fits, other models and dumps side by side.

Everything is compared with the run's prepared model, with graph optimizations off; `optimizations_note` says why.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from calibrant.errors import ConfigError, ExportError
from calibrant.stats.events import Event, Progress, no_progress
from calibrant.stats.run import Run, open_run
from calibrant.stats.tables import SCHEMAS

if TYPE_CHECKING:
    import os

    from calibrant.export.comparison import Comparison
    from calibrant.export.user_metrics import UserFunction
    from calibrant.export.variants import Variant
    from calibrant.ingest.data import Data, DataSource
    from calibrant.ingest.labels import Labels
    from calibrant.ingest.model import ModelInput

    PathLike = str | os.PathLike[str]
    MetricLike = str | UserFunction

FAKE_QUANT: Final = "fake_quant"


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        scores: rows of the table `evaluation`, in the order of the variants.
        classes: rows of the table `class_agreement`.
        events: (fit, event) of each output that collapsed, and of fits that were evaluated from a temporary export.
    """

    scores: pl.DataFrame
    classes: pl.DataFrame
    events: tuple[tuple[str | None, Event], ...]


def evaluate(
    run: "PathLike | Run",
    data: "Data",
    *,
    labels: "Labels | None" = None,
    metrics: "Sequence[MetricLike]" = (),
    models: "Mapping[str, PathLike] | None" = None,
    fits: Sequence[str] = (),
    output: str | None = None,
    fused: bool = False,
    dumps: "Mapping[str, PathLike] | None" = None,
    dumps_type: str = "float32",
    progress: Progress = no_progress,
) -> pl.DataFrame:
    """Compare the fake-quant models of a run's fits, and whatever else, with the float model on the same data.

    The rows go to the tables `evaluation` and `class_agreement` too, where they replace earlier ones of the same fit, variant,
    output and metric; an output that collapsed is a row of `events`.

    Args:
        run: a run with at least one fit, or with other models or dumps to compare.
        data: evaluation samples, as `calibrant.capture` takes them.
        labels: one entry a sample: an array; a .npy or .npz file; ``file.npz:key``; or the name of an array in the data's .npz.
        metrics: names of metrics (docs/evaluation.md), ``module:function``, or functions of (outputs, reference, labels); by default
            sqnr_db, cosine where outputs are no single numbers, agreement where they are vectors of scores, and top1 where labels are
            given.
        models: other ONNX models by the name that they get in the tables; an input that the run has fixed is fed its value.
        fits: names of fits; by default all that were exported, or all where none was. One that was not is exported to a
            temporary folder for it.
        output: the only output to compare; labels belong to it, or to the model's first.
        fused: compare each model also with graph optimizations on, as ``<name>_fused``.
        dumps: folders of outputs dumped from the device, by name.
        dumps_type: numpy type of .bin dumps that say nothing themselves.
        progress: called as ``progress("evaluate", done, total)``.

    Returns:
        The rows of `evaluation`, the float model first.

    Raises:
        ConfigError: no such metric or output, a user metric that fails, a name that is taken, nothing to compare.
        DataError: data, labels or dumps that do not fit; the message names the sample or file.
        LayerNotFoundError: no such fit.
        ModelError: another model that onnxruntime refuses or that takes other inputs.
        RunError: the run cannot be written to.

    Example:
        >>> scores = evaluate("model.run", "eval.npz", labels="y.npy", metrics=["top1", "sqnr"])  # doctest: +SKIP
        >>> scores.filter(metric="top1").select("variant", "value", "low", "high")  # doctest: +SKIP
    """
    return evaluation(
        run, data, labels=labels, metrics=metrics, models=models, fits=fits, output=output, fused=fused, dumps=dumps,
        dumps_type=dumps_type, progress=progress,
    ).scores  # fmt: skip


def evaluation(
    run: "PathLike | Run",
    data: "Data",
    *,
    labels: "Labels | None" = None,
    metrics: "Sequence[MetricLike]" = (),
    models: "Mapping[str, PathLike] | None" = None,
    fits: Sequence[str] = (),
    output: str | None = None,
    fused: bool = False,
    dumps: "Mapping[str, PathLike] | None" = None,
    dumps_type: str = "float32",
    progress: Progress = no_progress,
) -> Evaluation:
    """Return everything that `evaluate` finds; the arguments are those of `evaluate`.

    Raises:
        ConfigError, DataError, LayerNotFoundError, ModelError: as `evaluate`.
    """
    from calibrant.ingest.model import load_prepared

    opened = open_run(run)
    opened.require_writable()
    inputs = load_prepared(opened.model_folder).inputs
    _check_names([*(models or {}), *(dumps or {})])
    chosen = _chosen_fits(opened, fits, alone=not models and not dumps)
    with _fake_quant_models(opened, chosen) as (files, notes):
        variants = _model_variants(files, models or {}, inputs, fused=fused, fixed=opened.info.fix_input)
        variants += _dump_variants(dumps or {}, dumps_type)
        if fused:
            variants.insert(0, _variant("fp32", opened.prepared_file, inputs, fused=True))
        found = _compared(opened.prepared_file, variants, data, inputs, labels, metrics, output, progress)
    result = evaluation_frames(found, data, notes)
    _keep(opened, result, [None, *chosen])
    return result


def evaluate_models(
    reference: Path,
    variants: Mapping[str, Path],
    data: "Data",
    inputs: "Sequence[ModelInput]",
    *,
    labels: "Labels | None" = None,
    metrics: "Sequence[MetricLike]" = (),
    output: str | None = None,
    fused: bool = False,
    progress: Progress = no_progress,
) -> Evaluation:
    """Compare ONNX models with a float model without a run; nothing is written.

    Args:
        reference: the float model, ``fp32`` in the rows.
        variants: other models by name.
        data: samples, as `calibrant.capture` takes them.
        inputs: what the samples are checked against: those of the prepared model.
        labels: as for `evaluate`.
        metrics: as for `evaluate`.
        output: as for `evaluate`.
        fused: as for `evaluate`.
        progress: as for `evaluate`.

    Raises:
        ConfigError, DataError, ModelError: as `evaluate`.

    Example:
        >>> found = evaluate_models(run.prepared_file, {"int8": Path("int8.onnx")}, "eval.npz", inputs)  # doctest: +SKIP
    """
    listed = _model_variants({}, variants, inputs, fused=fused)
    found = _compared(reference, listed, data, inputs, labels, metrics, output, progress)
    return evaluation_frames(found, data, [])


def optimizations_note() -> str:
    """Say that and why graph optimizations are off, and what kind of CPU this is.

    Example:
        >>> optimizations_note().startswith("graph optimizations are off: ")
        True
    """
    from calibrant.export.cpu import has_vnni

    this = {True: " (this one has it)", False: " (like this one)", None: ""}[has_vnni()]
    return (
        f"graph optimizations are off: onnxruntime's fused int8 kernels saturate on x86 CPUs without VNNI{this}, so that a score "
        "with them on would judge the machine; --fused adds what this CPU makes of each model"
    )


def score_fit(run: Run, fit: str, fake_quant: Path, feeds: "Sequence[Mapping[str, Any]]") -> pl.DataFrame:
    """Note how near a fit's fake-quant model is to the float model on the samples of a verify, each of which counts once.

    Returns:
        The rows, one an output, whose `data` is ``verify``.
    """
    from calibrant.export.metrics import find_metric
    from calibrant.ingest.data import DataSource, open_data
    from calibrant.ingest.model import load_prepared

    inputs = load_prepared(run.model_folder).inputs
    samples = list({sample.key: sample for sample in open_data(feeds, inputs)}.values())
    source = DataSource("verify", len(samples), lambda: iter(samples))
    variant = _variant(FAKE_QUANT, fake_quant, inputs, fit=fit)
    found = _compare(run.prepared_file, [variant], source, inputs, metrics=(find_metric("sqnr_db"),))
    rows = evaluation_frames(found, "verify", []).scores
    run.replace_evaluation(rows)
    return rows


def _compared(
    reference: Path,
    variants: "list[Variant]",
    data: "Data",
    inputs: "Sequence[ModelInput]",
    labels: "Labels | None",
    metrics: "Sequence[MetricLike]",
    output: str | None,
    progress: Progress,
) -> "Comparison":
    """Open data and labels, sort the metrics, and compare."""
    from calibrant.export.metrics import find_metric
    from calibrant.export.user_metrics import check_names, user_metric
    from calibrant.ingest.data import open_data
    from calibrant.ingest.labels import names_in_data, read_labels

    wanted = dict.fromkeys(metrics)
    own = [user_metric(one) for one in wanted if callable(one) or ":" in one]
    check_names(own)
    named = dict.fromkeys(find_metric(one) for one in wanted if isinstance(one, str) and ":" not in one)
    read = None if labels is None else read_labels(labels, data)
    source = open_data(data, inputs, beside=names_in_data(labels, data))
    return _compare(
        reference, variants, source, inputs,
        metrics=tuple(named), user_metrics=tuple(own), output=output, labels=read, progress=progress,
    )  # fmt: skip


def _compare(
    reference: Path, variants: "list[Variant]", source: "DataSource", inputs: "Sequence[ModelInput]", **options: Any
) -> "Comparison":
    from calibrant.export.comparison import ComparisonOptions, compare
    from calibrant.export.outputs import OutputRunner

    return compare(lambda: OutputRunner(reference, inputs), variants, source, ComparisonOptions(**options))


def _variant(
    name: str,
    path: Path,
    inputs: "Sequence[ModelInput]",
    *,
    fit: str | None = None,
    fused: bool = False,
    fixed: Mapping[str, str] | None = None,
) -> "Variant":
    from calibrant.export.variants import model_variant

    return model_variant(name, path, inputs, fit=fit, fused=fused, fixed=fixed)


def _model_variants(
    fits: Mapping[str, Path],
    models: "Mapping[str, PathLike]",
    inputs: "Sequence[ModelInput]",
    *,
    fused: bool,
    fixed: Mapping[str, str] | None = None,
) -> "list[Variant]":
    ways = (False, True) if fused else (False,)
    own = [_variant(FAKE_QUANT, path, inputs, fit=fit, fused=way) for fit, path in fits.items() for way in ways]
    others = [
        _variant(name, Path(path), inputs, fused=way, fixed=fixed) for name, path in models.items() for way in ways
    ]
    return own + others


def _dump_variants(dumps: "Mapping[str, PathLike]", dtype: str) -> "list[Variant]":
    from calibrant.export.dumps import Dumps
    from calibrant.export.variants import dump_variant

    return [dump_variant(name, Dumps(Path(folder), dtype)) for name, folder in dumps.items()]


def _check_names(names: Sequence[str]) -> None:
    taken = ["fp32", FAKE_QUANT, "fp32_fused", f"{FAKE_QUANT}_fused"]
    for name in names:
        if not name or name in taken or names.count(name) > 1:
            message = f"--model, --dumps: the name '{name}' is taken or empty; give each model and dump a name of its own, NAME=PATH"
            raise ConfigError(message)


def _chosen_fits(run: Run, fits: Sequence[str], *, alone: bool) -> list[str]:
    """Return the fits to evaluate: those named, else the exported ones, else all."""
    for name in fits:
        run.fit_record(name)
    exported = [name for name, record in run.info.fits.items() if record.prefix is not None]
    chosen = list(dict.fromkeys(fits)) or exported or list(run.info.fits)
    if not chosen and alone:
        message = f"{run.path}: no fits, and neither --model nor --dumps; run calibrant fit first"
        raise ConfigError(message)
    return chosen


@contextmanager
def _fake_quant_models(run: Run, fits: Sequence[str]) -> "Iterator[tuple[dict[str, Path], list[tuple[str, Event]]]]":
    """Give the fake-quant model of each fit: the exported file, or one that is written for the while."""
    from calibrant.exported_fit import write_fit
    from calibrant.ingest.model import load_prepared

    folder = Path(tempfile.mkdtemp(prefix="calibrant-"))
    files: dict[str, Path] = {}
    notes: list[tuple[str, Event]] = []
    try:
        for number, fit in enumerate(fits):
            found, reason = _exported(run, fit)
            if found is None:
                prepared = load_prepared(run.model_folder)
                found = write_fit(run, prepared, fit, folder / str(number) / "m")[0].fake_quant
                notes.append(
                    (fit, Event("evaluate", "info", f"fit '{fit}' is evaluated from a temporary export: {reason}"))
                )
            files[fit] = found
        yield files, notes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exported(run: Run, fit: str) -> tuple[Path | None, str]:
    """Return the fake-quant model that was exported of a fit, or None and why there is none."""
    from calibrant.export.files import export_files
    from calibrant.scores import check_fit

    prefix = run.fit_record(fit).prefix
    if prefix is None:
        return None, "it has not been exported"
    files = export_files(prefix)
    if not files.fake_quant.is_file() or not files.record.is_file():
        return None, f"the files at {prefix} are gone"
    try:
        check_fit(run, fit, files)
    except ExportError:
        return None, f"the files at {prefix} are of other scales"
    return files.fake_quant, ""


def evaluation_frames(
    found: "Comparison", data: object, notes: "Sequence[tuple[str | None, Event]]" = ()
) -> Evaluation:
    """Return what was compared as rows of the tables `evaluation` and `class_agreement`.

    Args:
        found: the comparison.
        data: the data, whose path or type the rows name.
        notes: (fit, event) to put before those of the comparison.
    """
    origin = {
        "data": str(data) if isinstance(data, str | Path) else type(data).__name__,
        "data_fingerprint": found.fingerprint,
    }
    scores = pl.DataFrame([{**row, **origin} for row in found.scores], schema=SCHEMAS["evaluation"])
    classes = pl.DataFrame([{**row, **origin} for row in found.classes], schema=SCHEMAS["class_agreement"])
    return Evaluation(scores, classes, (*notes, *found.events))


def _keep(run: Run, found: Evaluation, fits: Sequence[str | None]) -> None:
    """Write what was found into the run's tables."""
    run.replace_evaluation(found.scores)
    run.replace_class_agreement(found.classes)
    for fit in fits:
        run.replace_events(["evaluate"], fit, [event for owner, event in found.events if owner == fit])


__all__ = ["Evaluation", "evaluate", "evaluate_models", "evaluation", "evaluation_frames", "score_fit"]
