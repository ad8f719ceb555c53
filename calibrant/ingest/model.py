"""Load a float model, prepare it, and describe what a run needs to know of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import LayerNotFoundError, ModelError, nearest
from calibrant.ingest.layers import LAYER_TYPES, Layer, find_layers, layer_macs, layer_rows_of
from calibrant.ingest.passes import batch_norm, cleanup, fix_input, names, parameters
from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.ingest.source import read_model
from calibrant.ingest.subgraphs import hidden_layers_message, layers_in_subgraphs
from calibrant.stats.events import Event

__all__ = [
    "CapturedTensor",
    "ModelInput",
    "PreparedModel",
    "initializer_value",
    "layer_macs",
    "layer_rows_of",
    "load_prepared",
    "prepare_model",
    "save_prepared",
]

SOURCE_HASH: Final = "calibrant.source_hash"  # key in the prepared model's metadata_props
PREPARED_FILE: Final = "prepared.onnx"
_EXTERNAL_ABOVE: Final = 64 << 20  # bytes of weights; larger ones go to prepared.onnx.data
_LAST_AXIS_TYPES: Final = ("Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input that a caller feeds.

    Attributes:
        name: as in the model.
        dtype: numpy dtype, e.g. float32 or int64.
        shape: one entry an axis: a size, a symbolic name, or None where unknown.
        batch_axis: the axis along which samples are joined, or None for a scalar or an input without one.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...]
    batch_axis: int | None


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A value that the run observes: input 0 of at least one quantizable layer.

    Attributes:
        tensor_id: counts from 0 in topological order of the producers (graph inputs first; ties by name).
        name: value name in the prepared model.
        producer: name of the producing node, or "" for a graph input.
        is_input: whether it is a graph input (then it is taken from the feed).
        channel_axis: axis of the channels for its first consumer (Conv, ConvTranspose, AveragePool 1; Gemm, MatMul last = -1).
        shape: static shape knowledge, one entry an axis (size, symbol or None), or None where the rank is unknown.
    """

    tensor_id: int
    name: str
    producer: str
    is_input: bool
    channel_axis: int
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class PreparedModel:
    """A normalised, fused float model and what can be quantized in it.

    Attributes:
        model: the prepared onnx_ir model.
        inputs: what a caller feeds.
        outputs: names of the graph outputs.
        tensors: what the run observes, by tensor_id.
        layers: what AMCT could quantize, by layer_id, refused ones included.
        original_nodes: prepared node name -> names of the source model's nodes that it stands for (a Conv with its fused BN: both).
        events: decisions and warnings of the preparation.
        source_hash: sha256 of the source model file (and of its external data).
    """

    model: ir.Model
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    tensors: tuple[CapturedTensor, ...]
    layers: tuple[Layer, ...]
    original_nodes: Mapping[str, tuple[str, ...]]
    events: tuple[Event, ...]
    source_hash: str


def prepare_model(
    path: Path,
    *,
    do_fusion: bool = True,
    skip_fusion_layers: Sequence[str] = (),
    fix_input: Mapping[str, str] | None = None,
) -> PreparedModel:
    """Read a float ONNX model and bring it to the form that everything else works on.

    Names are made unique, parameters become initializers of one layer each, BatchNormalization is fused. Outputs stay equal up
    to float32 rounding; inputs, outputs, opset and metadata stay as they are.

    Args:
        path: the .onnx file; external data lies beside it.
        do_fusion: whether to fuse BatchNormalization into convolutions.
        skip_fusion_layers: names of convolutions that are not fused.
        fix_input: input name -> text of the value it is fixed at.

    Raises:
        ModelError: the file is no float ONNX model, or nothing in it can be quantized.
        ConfigError: a name in skip_fusion_layers is repeated or of no convolution.
    """
    model, source_hash = read_model(Path(path))
    _refuse_quantized(model)
    events = _normalise(model, fix_input or {})
    batch_norm.check_skip_fusion(model.graph, skip_fusion_layers)
    if do_fusion:
        events += batch_norm.fuse_batch_norm(model, skip=skip_fusion_layers)
    parameters.normalise_products(model)
    cleanup.remove_unused(model)
    model.metadata_props[SOURCE_HASH] = source_hash
    prepared, found = _describe(model)
    return replace(prepared, events=(*events, *found))


def _normalise(model: ir.Model, fixed: Mapping[str, str]) -> list[Event]:
    cleanup.inline_functions(model)
    names.name_nodes(model)
    cleanup.lift_constants(model)
    events = fix_input.fix_inputs(model, fixed)
    cleanup.remove_identities(model.graph)
    parameters.fold_parameters(model.graph)
    cleanup.remove_unused(model)
    cleanup.infer_shapes(model)
    return events + parameters.own_parameters(model)


def _refuse_quantized(model: ir.Model) -> None:
    found = [node for graph in model.graphs() for node in graph if _is_quantizing(node)]
    if found:
        kinds = sorted({node.op_type for node in found})
        message = (
            f"the model is quantized already: {len(found)} nodes of type {', '.join(kinds)} (first '{found[0].name}'); "
            "give the float model"
        )
        raise ModelError(message)


def _is_quantizing(node: ir.Node) -> bool:
    named = node.op_type.startswith(("Ascend", "QLinear")) or node.op_type in _QUANTIZING_TYPES
    return named or node.domain.startswith("amct")


_QUANTIZING_TYPES: Final = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "IFMR",
        "HFMG",
        "SearchN",
    }
)


def _describe(model: ir.Model) -> tuple[PreparedModel, list[Event]]:
    found = find_layers(model.graph)
    _require_layers(model, found)
    tensors, events = _captured_tensors(model.graph, found)
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


def _require_layers(model: ir.Model, found: Sequence[Layer]) -> None:
    if any(layer.quantizable for layer in found):
        return
    hidden = hidden_layers_message(model.graph)
    reasons = [f"{layer.op_type} '{layer.name}': {layer.reason}" for layer in found[:3]]
    if hidden:
        message = f"no layer to quantize: {hidden}"
    elif reasons:
        message = f"no layer to quantize: {len(found)} candidates, all refused; {'; '.join(reasons)}"
    else:
        types = ", ".join(sorted({node.op_type for node in model.graph}))
        message = f"no layer to quantize: the model has none of {', '.join(LAYER_TYPES[:-1])}, only {types}"
    raise ModelError(message)


def _layer_events(model: ir.Model, layers: Sequence[Layer]) -> list[Event]:
    events = [
        Event("ingest", "info", f"{text}; they stay in float", where)
        for where, text in layers_in_subgraphs(model.graph)
    ]
    flat = [layer for layer in layers if layer.quantizable and _is_undocumented(layer)]
    if flat:
        message = (
            f"{len(flat)} {' and '.join(sorted({layer.op_type for layer in flat}))} layers have a kernel that AMCT's documentation "
            f"for ONNX excludes (1-D, or 3-D transposed) though its graph checks take them; they are quantized (first '{flat[0].name}')"
        )
        events.append(Event("ingest", "info", message, flat[0].name))
    return events


def _is_undocumented(layer: Layer) -> bool:
    return (layer.op_type == "Conv" and layer.kernel_rank == 1) or (
        layer.op_type == "ConvTranspose" and layer.kernel_rank != 2
    )


def _captured_tensors(graph: ir.Graph, layers: Sequence[Layer]) -> tuple[tuple[CapturedTensor, ...], list[Event]]:
    consumers: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.quantizable:
            consumers.setdefault(layer.tensor, []).append(layer)
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    observed = [value for value in values if value.name in consumers]
    tensors = tuple(_captured(i, value, consumers[str(value.name)][0]) for i, value in enumerate(observed))
    return tensors, [event for value in observed for event in _axis_events(str(value.name), consumers[str(value.name)])]


def _captured(tensor_id: int, value: ir.Value, first: Layer) -> CapturedTensor:
    producer = value.producer()
    return CapturedTensor(
        tensor_id=tensor_id,
        name=str(value.name),
        producer="" if producer is None else str(producer.name),
        is_input=value.is_graph_input(),
        channel_axis=_channel_axis(first),
        shape=_shape(value),
    )


def _channel_axis(layer: Layer) -> int:
    return -1 if layer.op_type in _LAST_AXIS_TYPES else 1


def _axis_events(tensor: str, consumers: Sequence[Layer]) -> list[Event]:
    if len({_channel_axis(layer) for layer in consumers}) == 1:
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
    return ModelInput(str(value.name), np.dtype(value.dtype.numpy()), shape, batch_axis_of(shape))


def batch_axis_of(shape: Sequence[int | str | None]) -> int | None:
    """Return the axis along which samples are joined: the symbolic one, 0 where all sizes are fixed, None for a scalar.

    Of several symbolic axes: axis 0, else one named like a batch, else the first.

    Example:
        >>> batch_axis_of([2, "batch", 128]), batch_axis_of([1, 3, 224, 224]), batch_axis_of([])
        (1, 0, None)
    """
    symbolic = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if not shape:
        return None
    if not symbolic or 0 in symbolic:
        return 0
    named = [axis for axis in symbolic if _is_batch_name(shape[axis])]
    return (named or symbolic)[0]


def _is_batch_name(name: int | str | None) -> bool:
    return isinstance(name, str) and ("batch" in name.lower() or name.lower() in ("n", "b", "bs"))


def save_prepared(prepared: PreparedModel, folder: Path) -> None:
    """Write ``prepared.onnx`` into a folder; more than 64 MB of weights go to ``prepared.onnx.data`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = sum(tensor.nbytes for tensor in prepared.model.graph.initializers.tensors())
    external = f"{PREPARED_FILE}.data" if weights > _EXTERNAL_ABOVE else None
    ir.save(prepared.model, folder / PREPARED_FILE, external_data=external)


def load_prepared(folder: Path) -> PreparedModel:
    """Read what `save_prepared` wrote; the events of the preparation are not stored there.

    Raises:
        ModelError: the file is missing or damaged.
    """
    model, _ = read_model(folder / PREPARED_FILE)
    prepared, _ = _describe(model)
    return prepared


def initializer_value(prepared: PreparedModel, name: str) -> npt.NDArray[Any]:
    """Return the array of an initializer; external data is mapped, not copied.

    Raises:
        LayerNotFoundError: the prepared model has no initializer of that name.
    """
    initializers = prepared.model.graph.initializers
    tensor = initializer_tensor(initializers.get(name))
    if tensor is None:
        message = f"the prepared model has no initializer '{name}'{nearest(name, initializers)}"
        raise LayerNotFoundError(message)
    return tensor.numpy()
