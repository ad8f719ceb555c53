"""A record against the layers of a model: AMCT's reader rules, and the scales that an export takes from it.

The rules that need no model are those of `calibrant.proto.record_rules`; here are the names, the lengths and what a kind of layer
can have (docs/export.md).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NoReturn

import numpy as np
import onnx_ir as ir

from calibrant.errors import ConfigError, nearest
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.record_weights import check_weight_entry, weight_only_events
from calibrant.export.weight_only import is_weight_only
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.passes.batch_norm import chain_of
from calibrant.proto.record import PruneGroup, RecordEntry
from calibrant.proto.record_rules import check_entries, of_entry
from calibrant.quantizers.half_factors import FORCED
from calibrant.stats.events import Event

_STAGE: Final = "export"
_CHANNEL_WISE: Final = ("Conv", "ConvTranspose")  # AMCT gives all others one scale
_LATER: Final = "this version cannot apply it, and without it the models would compute something else"


def check_record(
    entries: Sequence[RecordEntry], layers: Sequence[Layer], nodes: Collection[str] = (), *, source: str = "record"
) -> tuple[Event, ...]:
    """Check a record by the rules of AMCT's reader.

    Args:
        entries: the record.
        layers: all layers of the prepared model.
        nodes: names of all its nodes, to tell a name that is wrong from one that is never quantized.
        source: name of the record for messages.

    Returns:
        Warnings: types that are not written.

    Raises:
        ConfigError: the record is empty, or an entry breaks a rule; says ``file:line:column`` where the record came from a file,
            and the nearest name for one that the model does not have.
    """
    if not entries:
        message = f"{source}: an empty record; it needs an entry for each layer to quantize"
        raise ConfigError(message)
    notes = check_entries(entries)
    by_name = {layer.name: layer for layer in layers}
    for entry in entries:
        if entry.is_tensor_quantize:
            _check_tensor(entry, {*nodes, *by_name})
        else:
            _check_entry(entry, _layer_of(entry, by_name, nodes))
    events = [*_columns(entries, by_name), *weight_only_events(entries)]
    return (*(Event(_STAGE, note.severity, note.message) for note in notes), *events)


def _columns(entries: Sequence[RecordEntry], by_name: Mapping[str, Layer]) -> list[Event]:
    """Say where a matrix has one scale a column, which other tools write and AMCT's reader refuses."""
    layers = [by_name[entry.key] for entry in entries if len(entry.scale_w) > 1 and entry.key in by_name]
    found = [layer.name for layer in layers if layer.op_type not in _CHANNEL_WISE]
    text = (
        f"scale_w for each column of {len(found)} Gemm and MatMul: AMCT's own reader takes one (first '{found[0]}')"
        if found
        else ""
    )
    return [Event(_STAGE, "warn", text, layer=found[0])] if found else []


def layers_of_record(
    entries: Sequence[RecordEntry],
    layers: Sequence[Layer],
    prunes: Sequence[PruneGroup] = (),
    *,
    source: str = "record",
) -> list[QuantizedLayer]:
    """Return the layers that a checked record quantizes with their data, with its scales, in the order of `layers`.

    Args:
        entries: a record that passed `check_record` with these layers.
        layers: all layers of the prepared model.
        prunes: what the record says of pruning.
        source: name of the record for messages.

    Raises:
        ConfigError: an entry asks for something that would change the models and is not applied (data of 4
            bits, fp16 factors, key-value caches, recurrent weights, pruning); a scale without a float32 reciprocal or product; or
            no entry with scales.
    """
    for group in prunes:
        message = f"{group.where}: prune_record of {_members(group)}: {_LATER}; give the pruned model and delete it"
        raise ConfigError(message)
    for entry in entries:
        _refuse_unapplied(entry)
    if not any(_quantizes(entry) for entry in entries):
        message = f"{source}: no entry has scales, so there is nothing to quantize"
        raise ConfigError(message)
    by_key = {entry.key: entry for entry in entries if _has_data(entry)}
    return [_quantized(layer, by_key[layer.name]) for layer in layers if layer.name in by_key]


def fusion_skips(entries: Sequence[RecordEntry], layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the convolutions that a record keeps apart from their BatchNormalization (``skip_fusion: true``).

    The fields of other layers mean nothing: only convolutions are fused.
    """
    fusable = {layer.name for layer in layers if layer.op_type in _CHANNEL_WISE}
    return tuple(entry.key for entry in entries if entry.skip_fusion and entry.key in fusable)


def kept_apart(prepared: PreparedModel) -> frozenset[str]:
    """Return the convolutions of a prepared model that a BatchNormalization still follows.

    Their scales belong to weights that are not fused, which a record has to say.
    """
    nodes = (node for node in prepared.model.graph if node.op_type in _CHANNEL_WISE and not node.domain)
    return frozenset(str(node.name) for node in nodes if _feeds_norm(node.outputs[0]) or chain_of(node) is not None)


def _feeds_norm(value: ir.Value) -> bool:
    uses = list(value.uses())
    return not value.is_graph_output() and len(uses) == 1 and uses[0].node.op_type == "BatchNormalization"


def _reject(entry: RecordEntry, field: str, text: str) -> NoReturn:
    raise ConfigError(of_entry(entry, field, text))


def _quantizes(entry: RecordEntry) -> bool:
    return entry.scale_d is not None or bool(entry.scale_w)


def _has_data(entry: RecordEntry) -> bool:
    """Whether an entry quantizes a layer with its data, so neither an input of another node nor a weight alone."""
    return _quantizes(entry) and not entry.is_tensor_quantize and not is_weight_only(entry)


def _layer_of(entry: RecordEntry, by_name: Mapping[str, Layer], nodes: Collection[str]) -> Layer:
    if (layer := by_name.get(entry.key)) is not None:
        return layer
    if entry.key in nodes:
        _reject(entry, "key", "a node of its type is never quantized; delete the entry")
    _reject(entry, "key", f"the model has no such layer{nearest(entry.key, by_name) or _examples(by_name)}")


def _members(group: PruneGroup) -> str:
    names = [*group.producers, *group.consumers, *([group.selective] if group.selective is not None else [])]
    return ", ".join(f"'{name}'" for name in names[:3]) or "no layer"


def _examples(names: Collection[str]) -> str:
    return f"; its layers are {', '.join(list(names)[:3])} …" if names else ""


def _check_tensor(entry: RecordEntry, nodes: Collection[str]) -> None:
    node, colon, index = entry.key.rpartition(":")
    if not colon or not (index.isascii() and index.isdigit()):
        _reject(entry, "key", "the key of a tensor is 'node:index', e.g. 'MaxPool_3:0'")
    if node not in nodes:
        _reject(entry, "key", f"the model has no node '{node}'{nearest(node, nodes)}")
    if entry.scale_d is None:
        _reject(entry, "key", "no scale_d; a tensor needs one")


def _check_entry(entry: RecordEntry, layer: Layer) -> None:
    if layer.tensor_b is not None and entry.offset_d:
        _reject(
            entry, "offset_d", f"offset_d is {entry.offset_d}; 0 is expected, a MatMul of two variables is symmetric"
        )
    if not layer.quantizable and layer.tensor_b is None:
        _reject(entry, "key", f"the {layer.op_type} cannot be quantized: {layer.reason}; delete the entry")
    _check_factors(entry, layer)
    if not _quantizes(entry):
        return
    if is_weight_only(entry):
        check_weight_entry(entry, layer)
    for name in () if is_weight_only(entry) else ("scale_d", "offset_d"):
        if getattr(entry, name) is None:
            _reject(entry, "key", f"no {name}; was the calibration completed? (offset_d: 0 where symmetric)")
    _check_lengths(entry, layer)
    _check_levels(entry, layer)
    if layer.kernel_rank == 3 and layer.op_type.startswith("Conv") and entry.offset_d:
        _reject(entry, "offset_d", f"offset_d is {entry.offset_d}; 0 is expected, data of a 3-D kernel is symmetric")
    if layer.op_type == "AveragePool" and any(scale != 1 for scale in entry.scale_w):
        _reject(entry, "scale_w", f"scale_w is {entry.scale_w[0]!s}; 1 is expected, an AveragePool has no weight")
    if entry.wts_type in ("INT6", "INT7") and not (layer.op_type == "Conv" and layer.kernel_rank == 2):
        _reject(
            entry, "wts_type", f"wts_type is {entry.wts_type}, which only a Conv with a 2-D kernel can have; use INT8"
        )


def _check_levels(entry: RecordEntry, layer: Layer) -> None:
    """Check what few levels of a weight ask of its layer: 4 bits, or the centres of NUQ."""
    if entry.wts_type == "INT4" and (layer.weight is None or layer.groups > 1 or (layer.channels_in or 0) % 2):
        _reject(
            entry,
            "wts_type",
            "wts_type is INT4, which needs a weight of one group and an even number of input channels",
        )
    if entry.cluster and (layer.weight is None or entry.wts_type not in (None, "INT8")):
        _reject(entry, "cluster", "cluster (non-uniform weights) needs a layer with a weight of INT8")


def _check_lengths(entry: RecordEntry, layer: Layer) -> None:
    lengths = sorted({1, layer.channels_out or 1})
    given = len(entry.scale_w)
    if given not in lengths:
        detail = "one" if lengths == [1] else f"one, or {lengths[-1]} (one an output channel),"
        _reject(entry, "scale_w", f"{given} scale_w; the {layer.op_type} needs {detail.rstrip(',')}")
    if len(entry.offset_w) != given:
        _reject(entry, "scale_w", f"{given} scale_w but {len(entry.offset_w)} offset_w; as many (all 0) are expected")
    if len(entry.shift_bit) not in (0, 1, given):
        _reject(
            entry, "shift_bit", f"{len(entry.shift_bit)} shift_bit for {given} scale_w; none or as many are expected"
        )


def _check_factors(entry: RecordEntry, layer: Layer) -> None:
    name, given = "tensor_balance_factor", len(entry.tensor_balance_factor)
    if given and layer.channels_in is None:
        _reject(entry, name, f"{name} for an {layer.op_type}, which has no weight to balance; delete it")
    if given not in (0, layer.channels_in):
        _reject(entry, name, f"{given} {name}; {layer.channels_in}, one an input channel, are expected")


def _refuse_unapplied(entry: RecordEntry) -> None:
    for field, text in _unapplied(entry):
        _reject(entry, field, f"{text}: {_LATER}; delete it if the models shall do without")


def _unapplied(entry: RecordEntry) -> Iterator[tuple[str, str]]:
    """Yield what would change numbers."""
    if entry.kv_scale or entry.kv_offset:
        yield "kv_cache_value", "kv_cache_value"
    if entry.scale_h is not None or entry.scale_r:
        yield ("scale_h" if entry.scale_h is not None else "scale_r"), "scales of an LSTM or GRU"
    if entry.dst_type == "INT4":
        yield "dst_type", "dst_type INT4"


def _quantized(layer: Layer, entry: RecordEntry) -> QuantizedLayer:
    quantized = QuantizedLayer(
        layer=layer,
        scale_d=np.float32(1 if entry.scale_d is None else entry.scale_d),
        offset_d=entry.offset_d or 0,
        data_bits=_bits(entry.act_type),
        scale_w=np.array(entry.scale_w, np.float32),
        weight_bits=_bits(entry.wts_type),
        cluster=entry.cluster,
        half_factors=entry.fakequant_precision_mode == FORCED,
        balance=np.array(entry.tensor_balance_factor, np.float32) if entry.tensor_balance_factor else None,
        shift=_shift(entry),
    )
    _check_products(entry, quantized)
    return quantized


def _bits(type_name: str | None) -> int:
    return 8 if type_name is None else int(type_name.removeprefix("INT"))


def _shift(entry: RecordEntry) -> tuple[int, ...]:
    """Return the shifts, one for each scale of the weight; 0 throughout means none."""
    shift = entry.shift_bit if any(entry.shift_bit) else ()
    return shift * len(entry.scale_w) if len(shift) == 1 else shift


def _check_products(entry: RecordEntry, quantized: QuantizedLayer) -> None:
    """Refuse scales whose reciprocal, largest values or product float32 does not have."""
    scale_d, scale_w = quantized.scale_d, quantized.scale_w
    with np.errstate(all="ignore"):
        data = np.array([quantized.reciprocal, scale_d * np.float32(2**quantized.data_bits)])
        weight = np.append(scale_w * np.float32(2**quantized.weight_bits), quantized.dequant_scale)
    if not np.all(np.isfinite(data) & (data > 0)):
        _reject(entry, "scale_d", f"scale_d is {scale_d!s}, and 1/scale_d or the largest value leaves float32")
    if not np.all(np.isfinite(weight) & (weight > 0)):
        text = f"scale_w reaches from {scale_w.min()!s} to {scale_w.max()!s}: scale_d * scale_w or the largest weight leaves float32"
        _reject(entry, "scale_w", text)
