"""Put integers around the quantized layers of a graph; what the integers look like is the form's business.

Both exported models come from this one pass, so that they cannot differ in where a quantizer or a dequantizer stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from calibrant.errors import ExportError, nearest
from calibrant.export.balance import multiply
from calibrant.export.graph_edit import Names, replace_initializer, take_over
from calibrant.export.quantized_layer import EncodedLayer
from calibrant.export.quantized_tensor import EncodedTensor, QuantizedTensor
from calibrant.export.weight_only import EncodedWeight, WeightPlacement, place_weight
from calibrant.quantizers.affine import CodeArray

Encoded = EncodedLayer | EncodedTensor
QuantizerKey = tuple[str, int, int, int]  # tensor, bits of scale_d as float32, offset_d, data_bits


@dataclass(frozen=True)
class Chain:
    """New nodes in order, and the value that the last one makes."""

    nodes: tuple[ir.Node, ...]
    output: ir.Value


@dataclass(frozen=True)
class Placement:
    """Where a layer's additions stand: node names of its (maybe shared) quantizer and of its dequantizer, and their constant.

    `balance` names the Mul and the constant that balance its data.
    """

    encoded: EncodedLayer
    quantizer: str
    dequantizer: str
    parameter: str
    balance: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorPlacement:
    """Where the pair of an input stands: node names of its (maybe shared) quantizer and of what makes it float again."""

    encoded: EncodedTensor
    quantizer: str
    antiquantizer: str


AnyPlacement = Placement | TensorPlacement | WeightPlacement


class Form(Protocol):
    """How quantizers, codes and dequantizers are written."""

    graph: ir.Graph
    names: Names

    def quantizer(self, encoded: Encoded, data: ir.Value) -> Chain:
        """Make the nodes from the float data to what the layer reads."""

    def antiquantizer(self, encoded: EncodedTensor, codes: ir.Value) -> Chain:
        """Make the nodes from what a quantizer makes to the float value of an input."""

    def codes_out(self, encoded: EncodedTensor, data: ir.Value) -> Chain:
        """Make the nodes from float data to int8 codes, offset included, that are an output of the model."""

    def weight(self, encoded: EncodedLayer) -> CodeArray | None:
        """Return the weight codes as the form stores them."""

    def codes(self, encoded: EncodedLayer, role: str, value: ir.Value) -> Chain:
        """Make the nodes from an integer initializer to what the layer reads; role is ``weight`` or ``bias``."""

    def dequantizer(self, encoded: EncodedLayer, accumulator: ir.Value) -> tuple[Chain, str]:
        """Make the nodes from the layer's output to the float value, and name the constant that they read."""

    def padding(self, encoded: EncodedLayer, node: ir.Node) -> None:
        """Let a Pad between a quantizer and its layer pad what the quantizer makes of zero."""

    def accumulator(self, value: ir.Value) -> None:
        """Correct what is known about a layer's output."""


def quantizer_key(encoded: Encoded) -> QuantizerKey:
    """Return what two layers or inputs must share to share one quantizer."""
    quantized = encoded.quantized
    scale_bits = int(np.float32(quantized.scale_d).view(np.uint32))
    return encoded.tensor, scale_bits, quantized.offset_d, quantized.data_bits


def rewrite(
    form: Form,
    layers: Sequence[EncodedLayer],
    tensors: Sequence[EncodedTensor] = (),
    weights: Sequence[EncodedWeight] = (),
    outputs: Sequence[EncodedTensor] = (),
) -> tuple[AnyPlacement, ...]:
    """Quantize layers, then inputs of other nodes and weights alone, of the form's graph in place; it stays topologically sorted.

    Each of `outputs` is an Identity that makes an output of the model: int8 codes take its place.

    Raises:
        ExportError: a layer is not in the graph.
    """
    nodes = {node.name: node for node in form.graph}
    position = {name: index for index, name in enumerate(nodes)}
    ordered = sorted(layers, key=lambda encoded: position[_node(nodes, encoded.layer.name).name])
    shared: dict[QuantizerKey, Chain] = {}
    placements = [_quantize(form, encoded, nodes, shared) for encoded in ordered]
    pairs = [_place_pair(form, encoded, _node(nodes, encoded.owner), shared) for encoded in tensors]
    alone = [place_weight(form.graph, form.names, _node(nodes, one.layer.name), one) for one in weights]
    for encoded in outputs:
        _place_output(form, encoded, _node(nodes, encoded.owner))
    form.graph.sort()
    return (*placements, *pairs, *alone)


def _quantize(
    form: Form, encoded: EncodedLayer, nodes: dict[str | None, ir.Node], shared: dict[QuantizerKey, Chain]
) -> Placement:
    layer = encoded.layer
    node = _node(nodes, layer.name)
    first = node if layer.pad_node is None else _node(nodes, layer.pad_node)
    last = node if layer.bias_node is None else _node(nodes, layer.bias_node)
    balance = _balance(form, encoded, first)
    # the data of a balanced layer is divided for it alone, so that no other layer shares its quantizer
    quantizer = _quantizer(form, encoded, first, 0, {} if balance else shared)
    first.replace_input_with(0, quantizer.output)
    if first is not node:
        form.padding(encoded, first)
    if layer.tensor_b is not None:
        second = _quantizer(form, _second(encoded, layer.tensor_b), node, 1, shared)
        node.replace_input_with(1, second.output)
    if encoded.weight is not None:
        _place_codes(form, encoded, "weight", node, 1)
    if encoded.bias is not None:
        _place_codes(form, encoded, "bias", last, _bias_slot(encoded, last))
    if last is not node and last.inputs[0] is not node.outputs[0]:
        _swap_operands(last)  # AMCT takes a constant for a bias on the Add's second input alone
    dequantizer, parameter = _dequantize(form, encoded, last)
    form.accumulator(node.outputs[0])
    form.accumulator(last.outputs[0])
    quantizer_name, dequantizer_name = quantizer.nodes[-1].name or "", dequantizer.nodes[-1].name or ""
    return Placement(encoded, quantizer_name, dequantizer_name, parameter, balance)


def _second(encoded: EncodedLayer, tensor: str) -> EncodedTensor:
    """Return the second input of a product, whose step stands where a weight's does."""
    quantized = QuantizedTensor(encoded.owner, 1, np.float32(encoded.quantized.scale_w[0]), 0)
    return EncodedTensor(quantized, tensor, encoded.float_type)


def _balance(form: Form, encoded: EncodedLayer, node: ir.Node) -> tuple[str, ...]:
    """Put the Mul by 1/factor before a balanced layer; return the names of node and constant."""
    values, data = encoded.multipliers, node.inputs[0]
    if values is None or data is None:
        return ()
    mul = multiply(form.graph, form.names, encoded.owner, values, data)
    form.graph.insert_before(node, mul)
    node.replace_input_with(0, mul.outputs[0])
    return tuple(part.name or "" for part in (mul, mul.inputs[1]) if part is not None)


def _place_pair(
    form: Form, encoded: EncodedTensor, node: ir.Node, shared: dict[QuantizerKey, Chain]
) -> TensorPlacement:
    slot = encoded.quantized.input_index
    data = node.inputs[slot]
    quantizer = _quantizer(form, encoded, node, slot, shared)
    chain = form.antiquantizer(encoded, quantizer.output)
    if data is not None:
        chain.output.shape, chain.output.type = data.shape, data.type
    form.graph.insert_before(node, chain.nodes)
    node.replace_input_with(slot, chain.output)
    return TensorPlacement(encoded, quantizer.nodes[-1].name or "", chain.nodes[-1].name or "")


def _place_output(form: Form, encoded: EncodedTensor, node: ir.Node) -> None:
    data, old = node.inputs[0], node.outputs[0]
    if data is None or not old.is_graph_output() or old.uses():
        message = f"node '{node.name}' does not make an output of the model alone, so codes cannot take its place"
        raise ExportError(message)
    chain = form.codes_out(encoded, data)
    form.graph.insert_before(node, chain.nodes)
    chain.output.shape, chain.output.type = old.shape, ir.TensorType(ir.DataType.INT8)
    take_over(form.graph, old, chain.output, node, form.names.fresh(f"{encoded.owner}.float"))
    form.graph.remove(node, safe=True)


def _quantizer(form: Form, encoded: Encoded, node: ir.Node, slot: int, shared: dict[QuantizerKey, Chain]) -> Chain:
    key, data = quantizer_key(encoded), node.inputs[slot]
    if data is None:
        message = f"node '{node.name}' has nothing on input {slot} to quantize"
        raise ExportError(message)
    if key not in shared:
        shared[key] = form.quantizer(encoded, data)
        form.graph.insert_before(node, shared[key].nodes)
    return shared[key]


def _place_codes(form: Form, encoded: EncodedLayer, role: str, node: ir.Node, slot: int) -> None:
    array = form.weight(encoded) if role == "weight" else encoded.bias
    if array is None:
        return
    chain = form.codes(encoded, role, replace_initializer(node, slot, array, form.names, form.graph))
    form.graph.insert_before(node, chain.nodes)
    node.replace_input_with(slot, chain.output)


def _bias_slot(encoded: EncodedLayer, node: ir.Node) -> int:
    """Find the bias among a node's inputs: 2 for Conv and Gemm, 0 or 1 for the Add after a MatMul."""
    first = 2 if encoded.layer.bias_node is None else 0
    for slot in range(first, len(node.inputs)):
        value = node.inputs[slot]
        if value is not None and value.name == encoded.layer.bias:
            return slot
    message = f"layer '{encoded.layer.name}': bias '{encoded.layer.bias}' is not an input of node '{node.name}'"
    raise ExportError(message)


def _swap_operands(add: ir.Node) -> None:
    first, second = add.inputs
    add.replace_input_with(0, second)
    add.replace_input_with(1, first)


def _dequantize(form: Form, encoded: EncodedLayer, last: ir.Node) -> tuple[Chain, str]:
    accumulator = last.outputs[0]
    chain, parameter = form.dequantizer(encoded, accumulator)
    chain.output.shape, chain.output.type = accumulator.shape, accumulator.type
    form.graph.insert_after(last, chain.nodes)
    inner = form.names.fresh(f"{encoded.layer.name}.dequant.input0") if accumulator.is_graph_output() else ""
    take_over(form.graph, accumulator, chain.output, chain.nodes[0], inner)
    return chain, parameter


def _node(nodes: dict[str | None, ir.Node], name: str) -> ir.Node:
    if name not in nodes:
        message = f"layer '{name}' is not in the prepared model{nearest(name, [key or '' for key in nodes])}"
        raise ExportError(message)
    return nodes[name]
