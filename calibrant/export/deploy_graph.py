"""A deploy model taken apart: its quantizers, its integer layers (with the Add of a MatMul and the AscendDequant), its float nodes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from calibrant.errors import ExportError
from calibrant.export.antiquantizer import AntiQuantizer
from calibrant.export.code_padding import read_padding
from calibrant.export.integer_layers import INTEGER_OPS, Array, IntegerLayer, Quantizer
from calibrant.export.proto_graph import attributes_of
from calibrant.export.quantized_layer import dequant_scales, dequant_shifts
from calibrant.export.weight_codes import input_axis, unpack_nibbles

Nodes = Mapping[str, onnx.NodeProto]
_ENDS = frozenset({"AscendQuant", "AscendAntiQuant"})


@dataclass(frozen=True)
class DeployGraph:
    """A deploy model taken apart; every tuple is in the order of the graph.

    Attributes:
        model: the model itself.
        quantizers: the AscendQuant nodes.
        layers: the quantized layers.
        antiquantizers: the AscendAntiQuant nodes.
        floats: every other node.
    """

    model: onnx.ModelProto
    quantizers: tuple[Quantizer, ...]
    layers: tuple[IntegerLayer, ...]
    antiquantizers: tuple[AntiQuantizer, ...]
    floats: tuple[onnx.NodeProto, ...]

    def layer(self, name: str) -> IntegerLayer | None:
        """Return the layer of this node name, or None."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def second_quantizer_of(self, layer: IntegerLayer) -> Quantizer | None:
        """Return the quantizer that makes the second input of a product, or None."""
        return next((quantizer for quantizer in self.quantizers if quantizer.output == layer.source_b), None)

    def quantizer_of(self, layer: IntegerLayer | AntiQuantizer) -> Quantizer:
        """Return the quantizer that makes the codes of a layer or input."""
        return next(quantizer for quantizer in self.quantizers if quantizer.output == layer.source)


def take_apart(model: onnx.ModelProto, packed: Collection[str] = ()) -> DeployGraph:
    """Take a deploy model apart.

    Args:
        model: the deploy model.
        packed: the layers whose weight codes have 4 bits, two in a byte; the model itself does not say.

    Raises:
        ExportError: an AscendDequant does not follow an integer layer, an AscendAntiQuant no AscendQuant, or an operator lacks
            what it needs.
    """
    reader = _Reader(model, packed)
    quantizers = tuple(_quantizer(node) for node in model.graph.node if node.op_type == "AscendQuant")
    codes = {quantizer.output: quantizer for quantizer in quantizers}
    antis = tuple(reader.antiquantizer(node, codes) for node in model.graph.node if node.op_type == "AscendAntiQuant")
    pairs = [reader.layer(node, codes) for node in model.graph.node if node.op_type == "AscendDequant"]
    inside = {id(node) for _, nodes in pairs for node in nodes}
    floats = [node for node in model.graph.node if id(node) not in inside and node.op_type not in _ENDS]
    for node in floats:
        if stray := next((name for name in node.input if name in codes), None):
            message = f"node '{node.name}' ({node.op_type}) reads the codes '{stray}', but no AscendDequant follows it"
            raise ExportError(message)
    return DeployGraph(model, quantizers, tuple(layer for layer, _ in pairs), antis, tuple(floats))


class _Reader:
    """Finds the nodes between an AscendQuant and its AscendDequant."""

    def __init__(self, model: onnx.ModelProto, packed: Collection[str]) -> None:
        self._packed = packed
        self._producers: Nodes = {name: node for node in model.graph.node for name in node.output}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._readers = {
            name: (node, slot) for node in reversed(model.graph.node) for slot, name in enumerate(node.input)
        }

    def antiquantizer(self, node: onnx.NodeProto, codes: Mapping[str, Quantizer]) -> AntiQuantizer:
        """Return an AscendAntiQuant with the quantizer before it and the input that it serves."""
        quantizer, found = codes.get(node.input[0]), attributes_of(node)
        reader = self._readers.get(node.output[0])
        if quantizer is None or reader is None or "scale" not in found or "offset" not in found:
            message = f"node '{node.name}': AscendAntiQuant needs an AscendQuant before it, a node behind it, scale and offset"
            raise ExportError(message)
        offset = int(found["offset"])
        return AntiQuantizer(
            name=node.name, source=node.input[0], output=node.output[0], scale=np.float32(found["scale"]),
            offset=offset, shift=quantizer.offset - offset, half=found.get("dtype", 0) == 1, node=reader[0].name,
            input_index=reader[1],
        )  # fmt: skip

    def layer(
        self, dequantizer: onnx.NodeProto, codes: Mapping[str, Quantizer]
    ) -> tuple[IntegerLayer, list[onnx.NodeProto]]:
        """Return the layer before an AscendDequant and the nodes that it stands for."""
        last = self._producer(dequantizer.input[0], dequantizer)
        node, bias = (last, self._bias(last)) if last.op_type != "Add" else self._matmul_before(last)
        pad = self._pad(node)
        source = node.input[0] if pad is None else pad.input[0]
        if node.op_type not in INTEGER_OPS or source not in codes:
            message = (
                f"node '{dequantizer.name}': AscendDequant must follow an integer layer that an AscendQuant feeds, "
                f"but '{node.name}' is {node.op_type} on '{node.input[0]}'"
            )
            raise ExportError(message)
        words = self._words(dequantizer)
        found = IntegerLayer(
            name=node.name, op_type=node.op_type, attributes=attributes_of(node), source=source,
            output=dequantizer.output[0], weight=None if _is_product(node, codes) else self._weight(node), bias=bias,
            bias_node=last.name if last is not node else None, dequant_scale=dequant_scales(words),
            dequantizer=dequantizer.name, half=attributes_of(dequantizer).get("dtype", 0) == 1,
            source_b=str(node.input[1]) if _is_product(node, codes) else None,
            padding=None if pad is None else read_padding(pad, self._initializers, codes[source].offset),
            shift=_shift(words),
        )  # fmt: skip
        if found.dequant_scale.size not in {1, found.channels_out}:
            message = (
                f"node '{dequantizer.name}': {found.dequant_scale.size} words for {found.channels_out} output channels"
            )
            raise ExportError(message)
        return found, [dequantizer, last, node, *([] if pad is None else [pad])]

    def _pad(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        before = self._producers.get(node.input[0]) if node.op_type == "AveragePool" else None
        return before if before is not None and before.op_type == "Pad" else None

    def _producer(self, name: str, reader: onnx.NodeProto) -> onnx.NodeProto:
        if name not in self._producers:
            message = f"node '{reader.name}' reads '{name}', which no node makes"
            raise ExportError(message)
        return self._producers[name]

    def _matmul_before(self, add: onnx.NodeProto) -> tuple[onnx.NodeProto, Array]:
        constants = [name for name in add.input if name in self._initializers]
        others = [name for name in add.input if name not in self._initializers]
        if len(constants) != 1 or len(others) != 1:
            message = f"node '{add.name}': an Add before AscendDequant must add one int32 initializer"
            raise ExportError(message)
        return self._producer(others[0], add), self._constant(constants[0], add)

    def _weight(self, node: onnx.NodeProto) -> Array | None:
        if node.op_type == "AveragePool":
            return None
        codes = self._constant(node.input[1], node)
        return unpack_nibbles(codes, input_axis(node.op_type, codes.ndim)) if node.name in self._packed else codes

    def _bias(self, node: onnx.NodeProto) -> Array | None:
        return self._constant(node.input[2], node) if len(node.input) > 2 and node.input[2] else None

    def _words(self, dequantizer: onnx.NodeProto) -> Array:
        words = self._constant(dequantizer.input[1], dequantizer)
        if words.dtype != np.uint64:
            message = f"node '{dequantizer.name}': its parameter is {words.dtype}, uint64 was expected"
            raise ExportError(message)
        return words

    def _constant(self, name: str, node: onnx.NodeProto) -> Array:
        if name not in self._initializers:
            message = f"node '{node.name}': '{name}' is not an initializer"
            raise ExportError(message)
        return numpy_helper.to_array(self._initializers[name])


def _shift(words: Array) -> Array | None:
    shift = dequant_shifts(words)
    return shift if shift.any() else None


def _is_product(node: onnx.NodeProto, codes: Collection[str]) -> bool:
    return node.op_type == "MatMul" and len(node.input) > 1 and node.input[1] in codes


def _quantizer(node: onnx.NodeProto) -> Quantizer:
    attributes = attributes_of(node)
    bits = {"INT4": 4, "INT8": 8, "INT16": 16}.get(str(attributes.get("dst_type", "INT8")).rstrip(), 0)
    if "scale" not in attributes or "offset" not in attributes or not bits:
        message = f"node '{node.name}': AscendQuant needs scale, offset and dst_type INT4, INT8 or INT16"
        raise ExportError(message)
    scale = np.float32(attributes["scale"])
    return Quantizer(node.name, node.input[0], node.output[0], scale, int(attributes["offset"]), bits)
