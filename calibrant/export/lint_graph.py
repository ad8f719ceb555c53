"""What the rules of lint look at: a deploy model with its lookups, and what they find."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import onnx

from calibrant.export.integer_layers import INTEGER_OPS
from calibrant.export.proto_graph import attributes_of
from calibrant.proto.record import RecordEntry


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be refused.

    Attributes:
        severity: ``error`` or ``warn``.
        where: node, layer or value.
        message: what is wrong and what was expected.
    """

    severity: Literal["error", "warn"]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}"


class DeployLookups:
    """A deploy model with its lookups.

    Args:
        model: the deploy model.
        record: the entries of the record that belongs to it, by key; empty: there is none to compare with.
    """

    def __init__(self, model: onnx.ModelProto, record: Mapping[str, RecordEntry]) -> None:
        self.model, self.record = model, record
        self.nodes = list(model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output}
        self.outputs = {value.name for value in model.graph.output}
        self.consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                self.consumers.setdefault(name, []).append((node, slot))

    def output_type(self, name: str) -> int | None:
        """Return the ONNX type that an output of the model is declared as."""
        return next((v.type.tensor_type.elem_type for v in self.model.graph.output if v.name == name), None)

    def of_type(self, op_type: str) -> list[onnx.NodeProto]:
        """Return the nodes of a type, in the order of the graph."""
        return [node for node in self.nodes if node.op_type == op_type]

    def is_quantized(self, node: onnx.NodeProto) -> bool:
        """Whether a layer takes codes."""
        return self.quantizer_of(node) is not None

    def quantizer_of(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the AscendQuant before a layer, for an AveragePool maybe behind a Pad of codes."""
        source = self.producers.get(node.input[0]) if node.input else None
        if source is not None and source.op_type == "Pad" and node.op_type == "AveragePool":
            source = self.producers.get(source.input[0])
        return source if source is not None and source.op_type == "AscendQuant" else None

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a MatMul of two quantized variables."""
        makers = [self.producers.get(name) for name in node.input]
        return node.op_type == "MatMul" and all(one is not None and one.op_type == "AscendQuant" for one in makers)

    def pads_a_layer(self, node: onnx.NodeProto) -> bool:
        """Whether a node is the Pad of codes before an AveragePool."""
        readers = [reader.op_type for reader, _ in self.consumers.get(node.output[0], [])]
        return node.op_type == "Pad" and readers == ["AveragePool"]


def layer_before(graph: DeployLookups, dequantizer: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the quantized layer whose accumulators an AscendDequant takes, maybe through the Add of a bias; None where there is none."""
    node = graph.producers.get(dequantizer.input[0])
    if node is not None and node.op_type == "Add":
        makers = [graph.producers[name] for name in node.input if name in graph.producers]
        node = makers[0] if len(makers) == 1 else None
    return node if node is not None and node.op_type in INTEGER_OPS and graph.is_quantized(node) else None


def channels_out(graph: DeployLookups, layer: onnx.NodeProto) -> int | None:
    """Return the output channels of a layer; None where it has no constant weight."""
    if layer.op_type == "AveragePool" or layer.input[1] not in graph.initializers:
        return None
    dims = graph.initializers[layer.input[1]].dims
    if layer.op_type == "ConvTranspose":
        return int(dims[1]) * int(attributes_of(layer).get("group", 1))
    return int(dims[0 if layer.op_type == "Conv" else -1])


def kernel_rank(graph: DeployLookups, layer: onnx.NodeProto) -> int:
    """Return how many axes a convolution's kernel has; 0 for other layers."""
    weight = graph.initializers.get(layer.input[1]) if layer.op_type.startswith("Conv") else None
    return 0 if weight is None else len(weight.dims) - 2


def dtype_of(graph: DeployLookups, name: str) -> int | None:
    """Return the ONNX type of an initializer; None where there is none of that name."""
    tensor = graph.initializers.get(name)
    return None if tensor is None else int(tensor.data_type)


def name_of(node: onnx.NodeProto) -> str:
    """Return how a finding names a node."""
    return node.name or f"nameless {node.op_type}"
