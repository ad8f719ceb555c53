"""Infer ranks and sizes with onnx's shape inference, which does not know Ascend's operators."""

from collections.abc import Mapping
from math import prod
from typing import Any

import onnx
from onnx import TensorProto

_INTEGERS = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32}
_AS_IDENTITY = {"AscendQuant", "AscendDequant", "AscendAntiQuant"}


def ranks_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the rank of every value for which it can be inferred.

    Ascend's operators keep the shape, so each becomes an Identity; integer weights become float inputs of the same shape. A Reshape
    to a computed shape, on which onnx gives up, has as many axes as that shape has entries.
    """
    twin = _float_twin(model)
    while True:
        inferred = onnx.shape_inference.infer_shapes(twin).graph
        shapes = _shapes(inferred)
        told = {value.name for value in twin.graph.value_info}
        found = [value for value in _reshaped(inferred, shapes) if value.name not in told]
        if not found:
            return {name: len(shape) for name, shape in shapes.items()}
        twin.graph.value_info.extend(found)


def elements_of(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return how many elements the values of a plain ONNX model have for these inputs; those that cannot be inferred are left out."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:], bare.graph.input[:]
    for value in model.graph.input:
        element = value.type.tensor_type.elem_type
        shape = list(feeds[value.name].shape) if value.name in feeds else None
        bare.graph.input.append(onnx.helper.make_tensor_value_info(value.name, element, shape))
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    shapes = _shapes(onnx.shape_inference.infer_shapes(bare, data_prop=True).graph)
    return {name: prod(shape) for name, shape in shapes.items() if all(shape)}


def _reshaped(graph: onnx.GraphProto, shapes: dict[str, list[int]]) -> list[onnx.ValueInfoProto]:
    """Describe the outputs of unknown rank of Reshape nodes whose shape input has a known length."""
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    outputs = {
        node.output[0]: _length(shapes, node.input[1])
        for node in graph.node
        if node.op_type == "Reshape" and len(node.input) == 2 and node.output[0] not in shapes
    }
    return [
        onnx.helper.make_tensor_value_info(name, types[name], [None] * length)
        for name, length in outputs.items()
        if length and types.get(name)
    ]


def _shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Shapes by value, 0 where a size is unknown; values of unknown rank are left out."""
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return shapes


def _length(shapes: dict[str, list[int]], name: str) -> int:
    shape = shapes.get(name, [])
    return shape[0] if len(shape) == 1 else 0


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
