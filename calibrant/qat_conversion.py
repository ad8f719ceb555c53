"""Models that were quantized elsewhere (QuantizeLinear and DequantizeLinear) as both models for Ascend, with their own scales."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.errors import ExportError
from calibrant.stats.events import Event, Progress, no_progress

if TYPE_CHECKING:
    import polars as pl

    from calibrant.export.files import ExportedFiles
    from calibrant.export.qdq_source import SourceDistance
    from calibrant.export.qdq_table import QdqExport
    from calibrant.export.report import VerifyReport
    from calibrant.ingest.data import Data
    from calibrant.ingest.qdq.prepare import QdqModel

PathLike = str | os.PathLike[str]
Notice = Callable[[Event], None]
Feeds = Sequence[Mapping[str, Any]]
FEEDS: Final = 4  # samples that a conversion is verified on
LEAST_DB: Final = 60.0


@dataclass(frozen=True)
class ConvertedModel:
    """What a conversion wrote, and what became of each layer.

    Attributes:
        files: where the five files are.
        layers: one row a layer, and one a pair before another node (docs/convert_qat.md).
        events: what a person should know.
        report: how the deploy model was verified; None where there was nothing to verify it on.
        source_sqnr_db: least SQNR of an output of the fake-quant model against the source model, onnxruntime's optimizations off;
            infinite where they are equal, None where the source could not be run.
    """

    files: "ExportedFiles"
    layers: "pl.DataFrame"
    events: tuple[Event, ...] = field(repr=False)
    report: "VerifyReport | None" = None
    source_sqnr_db: float | None = None


def convert_qat(
    model: PathLike,
    *,
    prefix: PathLike,
    data: "Data | None" = None,
    samples: int = FEEDS,
    fix_input: Mapping[str, str | int | float] | None = None,
    do_fusion: bool = False,
    matmul_per_channel: bool = False,
    notice: Notice | None = None,
    progress: Progress = no_progress,
) -> ConvertedModel:
    """Turn a model with QuantizeLinear and DequantizeLinear into the five files of an export, and verify them.

    Scales and offsets are those of the model; nothing is calibrated. What int8 layers cannot express stays in float with a reason.

    Args:
        model: an ONNX model in QDQ form, from any exporter.
        prefix: folder and beginning of the file names.
        data: samples to verify on; without them random ones are made where all sizes but the batch are known.
        samples: how many samples are used, from the first.
        fix_input: inputs to turn into constants.
        do_fusion: fuse BatchNormalization (and a Div, Mul or Add of constants beside it) into the convolution before it: each weight
            scale is multiplied by the factor of its channel, as AMCT does for trained models. By default it stays, and scales too.
        matmul_per_channel: take one weight scale an output column of Gemm and MatMul, which AMCT does not know; otherwise such
            layers stay in float.
        notice: called with each event.
        progress: called as ``progress(stage, done, total)``.

    Returns:
        The files, a table of what became of each layer, and how near the result is to the source.

    Raises:
        ModelError: no QDQ model, quantized operators (QLinearConv …), or nothing in it that Ascend quantizes.
        ExportError: no layer can be converted, the files cannot be written or one would replace the model, or they do not verify.
        DataError: the samples do not fit the model.

    Example:
        >>> done = convert_qat("qat.onnx", prefix="out/qat", data="samples.npz")  # doctest: +SKIP
        >>> done.layers.filter(becomes="float").select("node", "reason")  # doctest: +SKIP
    """
    from calibrant.export.files import write_export
    from calibrant.export.qdq_layers import qdq_export
    from calibrant.ingest.qdq.prepare import prepare_qdq_model

    _check_places(Path(model), os.fspath(prefix))
    fixed = {name: str(value) for name, value in (fix_input or {}).items()}
    source = prepare_qdq_model(Path(model), fix_input=fixed, do_fusion=do_fusion)
    found = qdq_export(source, matmul_per_channel=matmul_per_channel)
    events = [*source.prepared.events, *found.events, *_summary(found)]
    if notice is not None:
        for event in events:
            notice(event)
    _require_something(found)
    feeds = _feeds(source, data, samples)
    files = write_export(
        source.prepared,
        found.layers,
        os.fspath(prefix),
        _config(source, found, do_fusion=do_fusion),
        found.tensors,
        outputs=found.outputs,
    )
    judged = _judge(Path(model), fixed, source, found, files, feeds, progress)
    if notice is not None:
        for event in judged.events:
            notice(event)
    distance = judged.distance
    return ConvertedModel(
        files, found.frame({} if distance is None else distance.layers), (*events, *judged.events), judged.report,
        None if distance is None else distance.sqnr_db,
    )  # fmt: skip


def _check_places(model: Path, prefix: str) -> None:
    """Refuse to write one of the files over the model that is read."""
    from calibrant.export.files import export_files

    files = export_files(prefix)
    for path in (files.fake_quant, files.deploy, files.record, files.quant_map, files.config):
        if path.resolve() == model.resolve():
            message = f"{model}: --prefix {prefix} would write over the model that is read; choose another --prefix"
            raise ExportError(message)


def convert_qat_model(model_file: PathLike, save_path: PathLike, record_file: PathLike | None = None) -> ConvertedModel:
    """Do what AMCT's function of this name does: both models beside `save_path`, and the record where it is asked for.

    Args:
        model_file: an ONNX model with QuantizeLinear and DequantizeLinear.
        save_path: folder and beginning of the file names.
        record_file: where to put a copy of the record; None: it stands beside the models alone.

    Raises:
        CalibrantError: as `convert_qat`.

    Example:
        >>> convert_qat_model("qat.onnx", "out/qat", "out/record.txt")  # doctest: +SKIP
    """
    done = convert_qat(model_file, prefix=save_path)
    if record_file is not None:
        _copy_record(done.files.record, Path(record_file))
    return done


def _copy_record(record: Path, place: Path) -> None:
    from calibrant.whole_files import whole_file

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as partial:
            shutil.copyfile(record, partial)
    except OSError as error:
        message = f"{place}: cannot be written ({error.strerror or error}); choose a writable record_file"
        raise ExportError(message) from error


def _summary(found: "QdqExport") -> list[Event]:
    left = [row for row in found.rows if row.becomes == "float"]
    events = [
        Event("export", "warn", f"stays in float: {row.reason}", layer=row.node)
        for row in left
        if row.scale_d is not None
    ]
    pairs = [row for row in found.rows if row.becomes == "pair"]
    others = sorted({row.op_type for row in pairs} - {"Add", "MaxPool"})
    if others:
        text = (
            f"pairs before {', '.join(others)} are kept as AscendQuant and AscendAntiQuant, so that values stay those of the model; "
            "the configuration has no key for them"
        )
        events.append(Event("export", "info", text))
    return events


def _require_something(found: "QdqExport") -> None:
    if found.layers or found.tensors or found.outputs:
        return
    reasons = [f"{row.op_type} '{row.node}': {row.reason}" for row in found.rows if row.becomes == "float"]
    message = f"no layer of the model can be converted: {'; '.join(reasons[:3])}"
    raise ExportError(message)


def _config(source: "QdqModel", found: "QdqExport", *, do_fusion: bool) -> str:
    from calibrant.export.record_layers import kept_apart
    from calibrant.given_scales import given_config_text

    kinds = {str(node.name): node.op_type for node in source.prepared.model.graph if not node.domain}
    named = [tensor for tensor in found.tensors if kinds.get(tensor.node) in ("Add", "MaxPool")]
    skips = tuple(sorted(kept_apart(source.prepared))) if do_fusion else ()
    return given_config_text(source.prepared, found.layers, named, do_fusion=do_fusion, skips=skips)


def _feeds(source: "QdqModel", data: "Data | None", samples: int) -> Feeds:
    from calibrant.export.qdq_source import random_feeds
    from calibrant.ingest.batches import model_feeds
    from calibrant.ingest.data import open_data

    if data is None:
        return random_feeds(source, samples)
    inputs = source.prepared.inputs
    return list(islice(model_feeds(open_data(data, inputs), inputs), samples))


@dataclass(frozen=True)
class _Judgement:
    """What was found of the files that a conversion wrote."""

    report: "VerifyReport | None" = None
    distance: "SourceDistance | None" = None
    events: tuple[Event, ...] = ()


def _judge(
    model: Path,
    fixed: Mapping[str, str],
    source: "QdqModel",
    found: "QdqExport",
    files: "ExportedFiles",
    feeds: Feeds,
    progress: Progress,
) -> _Judgement:
    from calibrant.export.qdq_source import distance_from_source
    from calibrant.export.verify import verify_export
    from calibrant.pipeline import require_passed

    if not feeds:
        text = "not verified: the sizes or types of its inputs leave no samples to make; give some (--data)"
        return _Judgement(events=(Event("verify", "warn", text),))
    report = verify_export(files, feeds, progress)
    require_passed(report)
    events = [Event("verify", one.severity, one.message, layer=one.where) for one in report.findings]
    try:
        distance = distance_from_source(model, fixed, source, found.layers, files.fake_quant, feeds)
    except ExportError as error:
        return _Judgement(report, None, (*events, Event("verify", "warn", str(error))))
    return _Judgement(report, distance, (*events, *_far(distance)))


def _far(distance: "SourceDistance") -> list[Event]:
    """Say which layers are far from the source, or that only the whole is."""
    far = [name for name, decibels in distance.layers.items() if decibels < LEAST_DB]
    text = (
        "on the source's own data it is {0:.1f} dB from the source, where {1:.0f} dB are expected: a float bias that was quantized moves "
        "its output; round it to whole scale_d * scale_w there"
    )
    events = [Event("verify", "warn", text.format(distance.layers[name], LEAST_DB), layer=name) for name in far]
    if distance.sqnr_db < LEAST_DB and not far:
        whole = (
            f"the whole model is {distance.sqnr_db:.1f} dB from the source, though each layer alone is near: values half way between two "
            "codes take another code where sums are rounded in another order, and the layers behind carry that on"
        )
        events.append(Event("verify", "info", whole))
    return events


__all__ = ["ConvertedModel", "convert_qat", "convert_qat_model"]
