"""The layers of an exported model whose weight alone is quantized, read from their nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from calibrant.errors import ExportError
from calibrant.export.integer_layers import Array
from calibrant.export.proto_graph import attributes_of
from calibrant.export.weight_codes import along_channels
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.affine import code_range

Producers = Mapping[str, onnx.NodeProto]
Tensors = Mapping[str, onnx.TensorProto]


@dataclass(frozen=True, eq=False)
class WeightOnlyNode:
    """A float layer whose weight is made of int8 codes.

    Attributes:
        name: node name.
        op_type: Conv, ConvTranspose, Gemm or MatMul.
        attributes: the node's attributes.
        source: the float data.
        output: what the node makes.
        codes: int8, in the layout of the weight.
        scale: float32, to be broadcast against the codes.
        offset: the same for the offsets.
        bias: the node's float bias, or None.
        half: whether the weight is float16.
    """

    name: str
    op_type: str
    attributes: Mapping[str, Any]
    source: str
    output: str
    codes: Array
    scale: Array
    offset: Array
    bias: Array | None
    half: bool

    @property
    def exposed(self) -> tuple[str, str, str]:
        """Return the values that verify looks at."""
        return self.source, self.source, self.output

    @property
    def weight(self) -> Array:
        """The weight that the layer reads: ``(code - offset) * scale`` in float32, then in the model's own type."""
        values = (self.codes.astype(np.float32) - self.offset.astype(np.float32)) * self.scale.astype(np.float32)
        return values.astype(np.float16 if self.half else np.float32)

    def faults(self, entry: RecordEntry) -> list[str]:
        """Compare with the record."""
        groups = int(self.attributes.get("group", 1))
        scale, offset = (
            along_channels(self.op_type, groups, self.codes.shape, np.asarray(values, dtype))
            for values, dtype in ((entry.scale_w, np.float32), (entry.offset_w, np.int32))
        )
        low, high = code_range(int((entry.wts_type or "INT8").removeprefix("INT")))
        checks = [
            (_alike(self.scale, scale, self.codes), "the scales of the weight are not scale_w of the record"),
            (_alike(self.offset, offset, self.codes), "the offsets of the weight are not offset_w of the record"),
            (
                low <= self.codes.min(initial=0) and self.codes.max(initial=0) <= high,
                "weight codes are wider than the record says",
            ),
        ]
        return [fault for holds, fault in checks if not holds]


def read_weight_only(model: onnx.ModelProto, name: str) -> WeightOnlyNode:
    """Return the layer of this node name.

    Raises:
        ExportError: there is none, or its weight is not made of int8 codes by DequantizeLinear or by Cast, Sub and Mul.
    """
    node = next((node for node in model.graph.node if node.name == name), None)
    if node is None:
        message = f"layer '{name}' of the record is not in the model"
        raise ExportError(message)
    producers = {output: node for node in model.graph.node for output in node.output}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    found = codes_behind(node, producers, tensors)
    if found is None:
        message = f"layer '{name}': its weight is not made of int8 codes by DequantizeLinear, or by Cast, Sub and Mul"
        raise ExportError(message)
    codes, scale, offset, half = found
    bias = tensors.get(node.input[2]) if len(node.input) > 2 else None
    return WeightOnlyNode(
        name, node.op_type, attributes_of(node), node.input[0], node.output[0], codes, scale, offset,
        None if bias is None else numpy_helper.to_array(bias), half,
    )  # fmt: skip


def codes_behind(
    node: onnx.NodeProto, producers: Producers, tensors: Tensors
) -> tuple[Array, Array, Array, bool] | None:
    """Return codes, scale, offset and whether a cast to float16 follows, of a layer's weight; None where it has another form."""
    made = producers.get(node.input[1]) if len(node.input) > 1 else None
    half = made is not None and made.op_type == "Cast" and attributes_of(made)["to"] == TensorProto.FLOAT16
    if half and made is not None:
        made = producers.get(made.input[0])
    if made is None:
        return None
    if made.op_type == "DequantizeLinear":
        names = list(made.input)
    else:
        chain = _chain(made, producers, ("Mul", "Sub", "Cast"))
        names = [chain[2].input[0], chain[0].input[1], chain[1].input[1]] if chain else []
    if len(names) != 3 or not all(one in tensors for one in names):
        return None
    codes, scale, offset = (numpy_helper.to_array(tensors[one]) for one in names)
    return (codes, scale, offset, half) if codes.dtype == np.int8 else None


def _chain(last: onnx.NodeProto, producers: Producers, types: tuple[str, ...]) -> list[onnx.NodeProto]:
    """Return the nodes of these types from the last one backwards, along first inputs; nothing where they are others."""
    found: list[onnx.NodeProto] = []
    node: onnx.NodeProto | None = last
    for op_type in types:
        if node is None or node.op_type != op_type:
            return []
        found.append(node)
        node = producers.get(node.input[0])
    return found


def _alike(first: Array, second: Array, codes: Array) -> bool:
    try:
        return bool(np.array_equal(np.broadcast_to(first, codes.shape), np.broadcast_to(second, codes.shape)))
    except ValueError:  # lengths that fit no axis of the weight
        return False


__all__ = ["WeightOnlyNode", "codes_behind", "read_weight_only"]
