"""Infer the ranks of a deploy model's values with onnx's shape inference, which does not know Ascend's operators."""

import onnx
from onnx import TensorProto

_INTEGERS = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32}
_AS_IDENTITY = {"AscendQuant", "AscendDequant", "AscendAntiQuant"}


def ranks_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the rank of every value for which it can be inferred.

    Ascend's operators keep the shape, so each becomes an Identity; integer weights become float inputs of the same shape.
    """
    inferred = onnx.shape_inference.infer_shapes(_float_twin(model))
    graph = inferred.graph
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


def _float_twin(model: onnx.ModelProto) -> onnx.ModelProto:
    nodes = [_float_node(node) for node in model.graph.node]
    read = _read_by_layers(model.graph)
    inputs, initializers = list(model.graph.input), []
    known = {value.name for value in inputs}
    for tensor in model.graph.initializer:
        if tensor.name in read and tensor.data_type in _INTEGERS and tensor.name not in known:
            inputs.append(onnx.helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims)))
        else:
            initializers.append(tensor)
    outputs = [onnx.ValueInfoProto(name=value.name, type=value.type) for value in model.graph.output]
    graph = onnx.helper.make_graph(nodes, "ranks", inputs, outputs, initializers)
    twin = onnx.helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    twin.ir_version = max(model.ir_version, 4)
    return twin


def _read_by_layers(graph: onnx.GraphProto) -> set[str]:
    """Names on the inputs of nodes that stand between AscendQuant and AscendDequant."""
    codes = {node.output[0] for node in graph.node if node.op_type == "AscendQuant"}
    sums = {node.input[0] for node in graph.node if node.op_type == "AscendDequant"}
    return {
        name
        for node in graph.node
        if codes.intersection(node.input) or sums.intersection(node.output)
        for name in node.input
    }


def _float_node(node: onnx.NodeProto) -> onnx.NodeProto:
    if node.op_type not in _AS_IDENTITY:
        return node
    return onnx.helper.make_node("Identity", [node.input[0]], list(node.output), name=node.name)
