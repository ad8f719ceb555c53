"""Load a float model, prepare it, and describe what a run needs to know of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import LayerNotFoundError, ModelError, nearest
from calibrant.ingest.describe import SOURCE_HASH, describe_model, observe
from calibrant.ingest.layers import layer_macs, layer_rows_of
from calibrant.ingest.model_message import ModelMessage
from calibrant.ingest.passes import batch_norm, cleanup, fix_input, names, parameters, shapes
from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.ingest.prepared import CapturedTensor, ModelInput, PreparedModel
from calibrant.ingest.source import hashed_model, read_model, reading
from calibrant.stats.events import Event
from calibrant.stats.run import PREPARED_FILE

__all__ = [
    "CapturedTensor",
    "ModelInput",
    "PreparedModel",
    "initializer_value",
    "layer_macs",
    "layer_rows_of",
    "load_prepared",
    "observe",
    "prepare_model",
    "prepared_proto",
    "save_prepared",
]

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
    path = Path(path)
    with reading(path), hashed_model(path) as (model, source_hash):
        _refuse_quantized(model)
        events = _normalise(model, fix_input or {})
        events += _fuse(model, do_fusion=do_fusion, skip=skip_fusion_layers)
        model.metadata_props[SOURCE_HASH] = source_hash()
        prepared, found = describe_model(model)
    return replace(prepared, events=(*events, *found))


def _normalise(model: ir.Model, fixed: Mapping[str, str]) -> list[Event]:
    cleanup.inline_functions(model)
    names.name_nodes(model)
    cleanup.lift_constants(model)
    events = fix_input.fix_inputs(model, fixed)
    cleanup.remove_identities(model.graph)
    parameters.fold_parameters(model.graph)
    cleanup.remove_unused(model)
    shapes.infer_shapes(model)
    return events + parameters.own_parameters(model)


def _fuse(model: ir.Model, *, do_fusion: bool, skip: Sequence[str]) -> list[Event]:
    batch_norm.check_skip_fusion(model.graph, skip)
    events = batch_norm.fuse_batch_norm(model, skip=skip) if do_fusion else []
    parameters.normalise_products(model)
    cleanup.remove_unused(model)
    return events


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


def prepared_proto(prepared: PreparedModel) -> ModelMessage | None:
    """Return the prepared model in memory, which `save_prepared` writes as it is and a session can be made of.

    It is made once, at the first call; a PreparedModel that `observe` returns has its own. All who ask share it, on several threads:
    nobody may change it, nor `prepared.model` from then on. Whoever needs other outputs changes a copy of its message, and keeps hold of
    the weights as long as a session uses them.

    Returns:
        the message and its large weights; None where weights lie in files or are too large for one message
        (`PreparedModel.has_external_weights`): then the file that `save_prepared` writes is what a session is made of.
    """
    return prepared.message


def save_prepared(prepared: PreparedModel, folder: Path) -> None:
    """Write ``prepared.onnx`` into a folder; large or external weights go to ``prepared.onnx.data``."""
    folder.mkdir(parents=True, exist_ok=True)
    message, path = prepared_proto(prepared), folder / PREPARED_FILE
    if message is None:
        # A tensor that is external already would be saved as a reference to the source's file, which is not in this folder.
        ir.save(prepared.model, path, external_data=f"{PREPARED_FILE}.data")
    else:
        message.save(path)


def load_prepared(folder: Path) -> PreparedModel:
    """Read what `save_prepared` wrote; the events of the preparation are not stored there.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path = folder / PREPARED_FILE
    with reading(path):
        return describe_model(read_model(path))[0]


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
