"""Both models from a record, without data: scales that somebody tuned by hand, or that another tool found.

The record lists the layers; layers that it does not name stay in float.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.record_layers import check_record, fusion_skips, layers_of_record
from calibrant.export.record_tensors import tensors_of_record
from calibrant.export.record_weights import weights_of_record
from calibrant.export.weight_only import WeightOnlyForm
from calibrant.given_scales import Exported, given_config_text
from calibrant.ingest.model import PreparedModel, initializer_value, prepare_model
from calibrant.proto.record import RecordEntry, RecordFile, read_record_file
from calibrant.stats.events import Event

PathLike = str | os.PathLike[str]
Notice = Callable[[Event], None]


def export_record(
    record: PathLike,
    model: PathLike,
    prefix: PathLike,
    *,
    do_fusion: bool = True,
    skip_fusion_layers: Sequence[str] = (),
    fix_input: Mapping[str, str | int | float] | None = None,
    weight_only_form: WeightOnlyForm = "dequantize",
    notice: Notice | None = None,
) -> ExportedFiles:
    """Write the five files of an export with the scales of a record; nothing is calibrated.

    With the record that calibrant wrote and the options of that run, both models come out as the run's own. The configuration
    tells bits, offsets and which layers are quantized; the algorithm in it is AMCT's default, since a record does not say.

    Args:
        record: a record.txt of any flavour whose keys are layers of the model.
        model: the float ONNX model.
        prefix: folder and beginning of the file names.
        do_fusion: whether BatchNormalization is fused, as when the record was made.
        skip_fusion_layers: convolutions that are not fused, besides those that the record marks with ``skip_fusion: true``.
        fix_input: inputs to turn into constants, as when the record was made.
        weight_only_form: how weights without data become float again, as for `calibrant.export`.
        notice: called with each event: the flavour, warnings, what stays in float.

    Returns:
        Where the files are.

    Raises:
        ConfigError: the record cannot be read or does not fit the model; says ``file:line:column``.
        ModelError: the model cannot be prepared.
        ExportError: a bias leaves int32 at these scales, or the files cannot be written.

    Example:
        >>> export_record("tuned_record.txt", "model.onnx", "out/model")  # doctest: +SKIP
    """
    file = read_record_file(os.fspath(record))
    fixed = {name: str(value) for name, value in (fix_input or {}).items()}
    skips = _skips(file, Path(model), do_fusion, skip_fusion_layers, fixed)
    prepared = prepare_model(Path(model), do_fusion=do_fusion, skip_fusion_layers=skips, fix_input=fixed)
    nodes = {node.name for node in prepared.model.graph if node.name}
    warnings = check_record(file.entries, prepared.layers, nodes, source=file.source)
    quantized = layers_of_record(file.entries, prepared.layers, file.prunes, source=file.source)
    tensors = tensors_of_record(file.entries, prepared, quantized)
    alone = weights_of_record(file.entries, prepared.layers)
    for event in (*prepared.events, *_events(file, prepared, [*quantized, *alone]), *warnings):
        if notice is not None:
            notice(event)
    text = given_config_text(prepared, [*quantized, *alone], tensors, do_fusion=do_fusion, skips=skips)
    return write_export(
        prepared, quantized, os.fspath(prefix), text, tensors, weight_only=alone, weight_only_form=weight_only_form
    )


def _skips(
    file: RecordFile, model: Path, do_fusion: bool, given: Sequence[str], fixed: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the layers that are not fused; the model before fusion tells which marks of the record are of convolutions."""
    if not do_fusion or not any(entry.skip_fusion for entry in file.entries):
        return tuple(given)
    unfused = prepare_model(model, do_fusion=False, fix_input=fixed)
    marked = fusion_skips(file.entries, unfused.layers)
    return (*given, *(name for name in marked if name not in given))


def _events(file: RecordFile, prepared: PreparedModel, quantized: Sequence[Exported]) -> list[Event]:
    found = [
        Event("export", "info", f"{file.source}: a record of the {file.flavour} flavour, {len(file.entries)} entries")
    ]
    found += [Event("export", note.severity, note.message) for note in file.notes]
    return [*found, *_wide(file, quantized), *_other_types(file, prepared, quantized), *_in_float(prepared, quantized)]


def _wide(file: RecordFile, quantized: Sequence[Exported]) -> list[Event]:
    wide = [item.layer.name for item in quantized if isinstance(item, QuantizedLayer) and item.data_bits > 8]
    text = f"{file.source}: act_type INT16 of {len(wide)} layers: the models have it, but ATC refuses it today"
    return [Event("export", "warn", text, layer=wide[0])] if wide else []


def _other_types(file: RecordFile, prepared: PreparedModel, quantized: Sequence[Exported]) -> list[Event]:
    entries = {entry.key: entry for entry in file.entries}
    pairs = ((item, _other_type(entries[item.layer.name], prepared, item)) for item in quantized)
    return [Event("export", "warn", text, layer=item.layer.name) for item, text in pairs if text]


def _other_type(entry: RecordEntry, prepared: PreparedModel, quantized: Exported) -> str | None:
    weight = quantized.layer.weight
    if weight is None or entry.op_data_type is None:
        return None
    actual = str(initializer_value(prepared, weight).dtype).upper()
    if actual == entry.op_data_type:
        return None
    place = entry.where.get("op_data_type", "record")
    return f"{place}: op_data_type is {entry.op_data_type}, but the layer computes in {actual}, which holds"


def _in_float(prepared: PreparedModel, quantized: Sequence[Exported]) -> list[Event]:
    named = {item.layer.name for item in quantized}
    left = [layer.name for layer in prepared.layers if layer.quantizable and layer.name not in named]
    if not left:
        return []
    shown = f"{', '.join(left[:3])}{' …' if len(left) > 3 else ''}"
    return [
        Event("export", "info", f"{len(left)} layers stay in float, since the record has no scales for them: {shown}")
    ]


__all__ = ["Notice", "export_record"]
