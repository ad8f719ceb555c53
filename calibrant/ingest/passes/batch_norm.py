"""Fold BatchNormalization, and a Mul or Add of a constant around it, into the convolution before it.

AMCT's rule (amct-config-and-export.md, 4.1): the convolution has exactly one consumer, that BatchNormalization, in
inference form; it is not in skip_fusion_layers; the result is finite. ``w' = w * s`` and ``b' = (b - mean) * s + beta`` with
``s = gamma / sqrt(var + epsilon)`` for each output channel, computed in float64 and rounded once. A Mul or Add of one value a
channel before or behind the BatchNormalization goes along with it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ConfigError, nearest
from calibrant.ingest.nodes import channels, parameter
from calibrant.ingest.passes.constants import initializer_tensor, make_initializer, set_initializer
from calibrant.ingest.passes.names import UniqueNames, original_nodes, set_original_nodes, value_names
from calibrant.ingest.passes.norm_chain import NormChain, float_array, norm_chain
from calibrant.stats.events import Event

Array = npt.NDArray[Any]
FUSABLE_TYPES: Final = ("Conv", "ConvTranspose")


@dataclass(frozen=True, slots=True)
class _Pair:
    conv: ir.Node
    chain: NormChain
    weight: Array
    bias: Array | None


def fuse_batch_norm(model: ir.Model, *, skip: Sequence[str] = ()) -> list[Event]:
    """Fuse every Conv or ConvTranspose with the BatchNormalization that alone consumes it; return what was left and why."""
    names = value_names(model)
    events: list[Event] = []
    for node in list(model.graph):
        pair = None if node.name in skip else _pair(node)
        if pair is not None:
            events += _fuse(model.graph, pair, names)
    return events + _left(model.graph)


def _left(graph: ir.Graph) -> list[Event]:
    left = [node for node in graph if node.op_type == "BatchNormalization" and not node.domain]
    if not left:
        return []
    message = (
        f"BatchNormalization left in place: {len(left)} (first '{left[0].name}'); fused is one in inference form that alone "
        "consumes a convolution with constant weights which skip_fusion_layers does not name"
    )
    return [Event("ingest", "info", message, str(left[0].name))]


class SkipFusionError(ConfigError):
    """A name in skip_fusion_layers that cannot mean anything.

    Attributes:
        layer: the name.
    """

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(f"skip_fusion_layers: {message}")
        self.layer = layer


def check_skip_fusion(graph: ir.Graph, skip: Sequence[str]) -> None:
    """Check the names of skip_fusion_layers.

    Raises:
        SkipFusionError: a name given twice, or of no Conv or ConvTranspose.
    """
    repeated = [name for name, count in Counter(skip).items() if count > 1]
    if repeated:
        raise SkipFusionError(repeated[0], f"'{repeated[0]}' is given more than once; name each layer once")
    types = {str(node.name): node.op_type for node in graph}
    fusable = [name for name, op_type in types.items() if op_type in FUSABLE_TYPES]
    for name in skip:
        if name not in types:
            raise SkipFusionError(name, f"the model has no layer '{name}'{nearest(name, fusable)}")
        if name not in fusable:
            words = f"'{name}' is a {types[name]}; only Conv and ConvTranspose are fused{nearest(name, fusable)}"
            raise SkipFusionError(name, words)


def _pair(conv: ir.Node) -> _Pair | None:
    chain = chain_of(conv)
    if chain is None or not chain.is_constant:
        return None
    weight = float_array(conv.inputs[1])
    bias_value = conv.inputs[2] if len(conv.inputs) > 2 else None
    bias = float_array(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return None
    return _Pair(conv, chain, weight, bias)


def chain_of(node: ir.Node) -> NormChain | None:
    """Return what could be fused into a convolution with a constant weight, or None."""
    if node.op_type not in FUSABLE_TYPES or node.domain:
        return None
    tensor = initializer_tensor(parameter(node, 1))
    outputs, _ = channels(node, parameter(node, 1))
    if tensor is None or outputs is None:
        return None
    return norm_chain(node, outputs, len(tensor.shape))


def _fuse(graph: ir.Graph, pair: _Pair, names: UniqueNames) -> list[Event]:
    weight, bias = fused_parameters(pair.conv, pair.weight, pair.bias, pair.chain)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        message = (
            f"BatchNormalization '{pair.chain.norm.name}' was not fused: "
            f"the fused weight of '{pair.conv.name}' is not finite"
        )
        return [Event("ingest", "warn", message, str(pair.conv.name))]
    _set_parameter(graph, pair.conv, 1, weight, names)
    _set_parameter(graph, pair.conv, 2, bias, names)
    _bypass(graph, pair)
    return []


def fused_parameters(conv: ir.Node, weight: Array, bias: Array | None, chain: NormChain) -> tuple[Array, Array]:
    """Return the weight and bias of a convolution with what follows it, in the type of the weight."""
    outputs, _ = channels(conv, conv.inputs[1])
    start = np.zeros(outputs or 0) if bias is None else bias.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scale, fused_bias = chain.scale_and_bias(start)
        fused_weight = np.empty_like(weight, order="C")
        factor = _weight_scale(conv, weight, scale)
        np.multiply(
            weight, factor, out=fused_weight, dtype=np.float64, casting="unsafe"
        )  # block by block: no copy in float64
        return fused_weight, fused_bias.astype(weight.dtype)


def _weight_scale(conv: ir.Node, weight: Array, scale: Array) -> Array:
    """Bring the scale of each output channel to the weight's axes: Conv [Cout, ...], ConvTranspose [Cin, Cout / groups, ...]."""
    kernel = (1,) * (weight.ndim - 2)
    if conv.op_type == "Conv":
        return scale.reshape(-1, 1, *kernel)
    groups = conv.attributes.get_int("group", 1)
    per_group = scale.reshape(groups, -1)
    return np.repeat(per_group, weight.shape[0] // groups, axis=0).reshape(*weight.shape[:2], *kernel)


def _set_parameter(graph: ir.Graph, node: ir.Node, position: int, array: Array, names: UniqueNames) -> None:
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        set_initializer(value, array)
        return
    name = "weight" if position == 1 else "bias"
    node.resize_inputs(max(position + 1, len(node.inputs)))
    node.replace_input_with(position, make_initializer(graph, names.take(f"{node.name}.{name}"), array))


def _bypass(graph: ir.Graph, pair: _Pair) -> None:
    """Let the convolution make the value that the last fused node made, under that value's name."""
    nodes = pair.chain.nodes
    result, kept = nodes[-1].outputs[0], pair.conv.outputs[0]
    name = result.name
    if kept.shape is None:
        kept.shape = result.shape
    fused = [source for node in nodes for source in original_nodes(node)]
    result.replace_all_uses_with(kept, replace_graph_outputs=True)
    for node in reversed(nodes):
        graph.remove(node, safe=True)
    kept.name = name
    set_original_nodes(pair.conv, [*original_nodes(pair.conv), *fused])
