"""Describe a prepared model: its inputs, layers and the tensors that a run observes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.layers import Layer, find_layers
from calibrant.ingest.nodes import LAYER_TYPES
from calibrant.ingest.passes import names
from calibrant.ingest.prepared import CapturedTensor, ModelInput, PreparedModel
from calibrant.ingest.subgraphs import hidden_layers_message, layers_in_subgraphs
from calibrant.stats.events import Event

SOURCE_HASH: Final = "calibrant.source_hash"  # key in the prepared model's metadata_props
OBSERVED: Final = (
    "calibrant.observed"  # the same: names of the tensors that a run observes besides the inputs of layers
)
_LAST_AXIS_TYPES: Final = ("Gemm", "MatMul")


def describe_model(model: ir.Model) -> tuple[PreparedModel, list[Event]]:
    """Return the description of a prepared model and the events that arose from describing it.

    Raises:
        ModelError: nothing in the model can be quantized, or an input has no declared type or rank.
    """
    found = find_layers(model.graph)
    _require_layers(model, found)
    tensors, events = _captured_tensors(model.graph, found, json.loads(model.metadata_props.get(OBSERVED, "[]")))
    ids = {tensor.name: tensor.tensor_id for tensor in tensors}
    layers = tuple(replace(layer, tensor_id=ids[layer.tensor]) if layer.quantizable else layer for layer in found)
    prepared = PreparedModel(
        model=model,
        inputs=tuple(_model_input(value) for value in model.graph.inputs),
        outputs=tuple(str(value.name) for value in model.graph.outputs),
        tensors=tensors,
        layers=layers,
        original_nodes={str(node.name): names.original_nodes(node) for node in model.graph},
        events=(),
        source_hash=model.metadata_props.get(SOURCE_HASH, ""),
    )
    return prepared, events + _layer_events(model, layers)


def observe(prepared: PreparedModel, tensors: Sequence[str]) -> PreparedModel:
    """Return a prepared model whose runs observe these tensors besides the inputs of its layers.

    Args:
        prepared: the prepared model, which takes a note of them.
        tensors: names of values.
    """
    others = sorted(set(tensors) - {tensor.name for tensor in prepared.tensors})
    if not others:
        return prepared
    prepared.model.metadata_props[OBSERVED] = json.dumps(others)
    described, _ = describe_model(prepared.model)
    return replace(described, events=prepared.events)


def _require_layers(model: ir.Model, found: Sequence[Layer]) -> None:
    if any(
        layer.quantizable or layer.tensor_b is not None for layer in found
    ):  # a configuration may ask for the latter
        return
    hidden = hidden_layers_message(model.graph)
    reasons = [f"{layer.op_type} '{layer.name}': {layer.reason}" for layer in found[:3]]
    if hidden:
        message = f"no layer to quantize: {hidden}"
    elif reasons:
        message = f"no layer to quantize: {_refused(len(found))}; {'; '.join(reasons)}"
    else:
        types = ", ".join(sorted({node.op_type for node in model.graph}))
        message = f"no layer to quantize: the model has none of {', '.join(LAYER_TYPES[:-1])}, only {types}"
    raise ModelError(message)


def _refused(count: int) -> str:
    return "1 candidate refused" if count == 1 else f"{count} candidates, all refused"


def _layer_events(model: ir.Model, layers: Sequence[Layer]) -> list[Event]:
    events = [
        Event("ingest", "info", f"{text}; left in float", where) for where, text in layers_in_subgraphs(model.graph)
    ]
    flat = [layer for layer in layers if layer.quantizable and _is_undocumented(layer)]
    if flat:
        types = " and ".join(sorted({layer.op_type for layer in flat}))
        message = (
            f"{types} with a kernel that AMCT's documentation for ONNX excludes (1-D, or 3-D transposed) but its graph checks "
            f"take: {len(flat)}, quantized (first '{flat[0].name}')"
        )
        events.append(Event("ingest", "info", message, flat[0].name))
    batched = [layer for layer in layers if layer.quantizable and layer.op_type == "MatMul" and layer.weight_axis == 2]
    if batched:
        message = (
            f"MatMul with a constant of rank 3, which AMCT quantizes but ATC's own table leaves out: {len(batched)}, quantized "
            f"(first '{batched[0].name}')"
        )
        events.append(Event("ingest", "info", message, batched[0].name))
    return events


def _is_undocumented(layer: Layer) -> bool:
    return (layer.op_type == "Conv" and layer.kernel_rank == 1) or (
        layer.op_type == "ConvTranspose" and layer.kernel_rank != 2
    )


def _captured_tensors(
    graph: ir.Graph, layers: Sequence[Layer], others: Sequence[str]
) -> tuple[tuple[CapturedTensor, ...], list[Event]]:
    consumers: dict[str, list[Layer]] = {name: [] for name in others}
    for layer in layers:
        if layer.quantizable:
            consumers.setdefault(layer.tensor, []).append(layer)
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    observed = [value for value in values if value.name in consumers]
    tensors = tuple(_captured(i, value, consumers[str(value.name)]) for i, value in enumerate(observed))
    return tensors, [event for value in observed for event in _axis_events(str(value.name), consumers[str(value.name)])]


def _captured(tensor_id: int, value: ir.Value, consumers: Sequence[Layer]) -> CapturedTensor:
    producer = value.producer()
    return CapturedTensor(
        tensor_id=tensor_id,
        name=str(value.name),
        producer="" if producer is None else str(producer.name),
        is_input=value.is_graph_input(),
        channel_axis=_channel_axis(consumers[0]) if consumers else 1,
        shape=_shape(value),
    )


def _channel_axis(layer: Layer) -> int:
    return -1 if layer.op_type in _LAST_AXIS_TYPES else 1


def _axis_events(tensor: str, consumers: Sequence[Layer]) -> list[Event]:
    if len({_channel_axis(layer) for layer in consumers}) <= 1:
        return []
    first = consumers[0]
    message = (
        f"tensor '{tensor}' has consumers with other channel axes; "
        f"its channels are those of the first, {first.op_type} '{first.name}'"
    )
    return [Event("ingest", "info", message, tensor)]


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(_dim(dim) for dim in value.shape)


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim > 0 else None  # old exporters write 0 or -1 for an axis of any size
    return dim.value


def _model_input(value: ir.Value) -> ModelInput:
    shape = _shape(value)
    if shape is None or value.dtype is None:
        message = (
            f"input '{value.name}' has no declared {'type' if value.dtype is None else 'rank'}; declare it in the model"
        )
        raise ModelError(message)
    if value.dtype == ir.DataType.STRING:
        message = (
            f"input '{value.name}' takes strings; calibrant feeds numbers, cut the model behind its text processing"
        )
        raise ModelError(message)
    return ModelInput(str(value.name), np.dtype(value.dtype.numpy()), shape, batch_axis_of(shape))


def batch_axis_of(shape: Sequence[int | str | None]) -> int | None:
    """Return the axis along which samples are joined: the symbolic one, 0 where all sizes are fixed, None for a scalar.

    Of several symbolic axes: axis 0, unless only another has "batch" in its name; else one named like a batch, else the first.

    Example:
        >>> batch_axis_of([2, "batch", 128]), batch_axis_of([1, 3, 224, 224]), batch_axis_of([])
        (1, 0, None)
        >>> batch_axis_of(["time", "batch", 4]), batch_axis_of(["N", "time", 4])
        (1, 0)
    """
    symbolic = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if not shape:
        return None
    spoken = [axis for axis in symbolic if "batch" in str(shape[axis]).lower()]
    if spoken and not _is_batch_name(shape[0]):
        return spoken[0]
    if not symbolic or 0 in symbolic:
        return 0
    named = [axis for axis in symbolic if _is_batch_name(shape[axis])]
    return (named or symbolic)[0]


def _is_batch_name(name: int | str | None) -> bool:
    return isinstance(name, str) and ("batch" in name.lower() or name.lower() in ("n", "b", "bs"))
