"""Shapes and types that onnx infers, added to a model without bringing its weights through a message."""

from typing import Final

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

_SMALL: Final = 1000  # bytes; larger constants hold weights, whose values tell nothing of a shape
_FAILURES: Final = (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError)


def infer_shapes(model: ir.Model) -> None:
    """Add what onnx can infer of shapes and types; inputs and outputs keep what the model declares.

    Where onnx fails, the model stays as it is.
    """
    declared = [(value, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    if any(model.graph.subgraphs()):
        common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    else:
        _infer(model)
    for value, shape in declared:
        value.shape = shape or value.shape


def _infer(model: ir.Model) -> None:
    """Do what the library's pass does, which reads the inferred model as a whole and takes three times as long."""
    try:
        skeleton = _skeleton(model)
        inferred = onnx.shape_inference.infer_shapes(skeleton, check_type=False, strict_mode=False, data_prop=True)
    except _FAILURES:
        return
    values = {value.name: value for node in model.graph for value in node.outputs}
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in values:
            _take(values[info.name], info.type)


def _take(value: ir.Value, found: onnx.TypeProto) -> None:
    shape, kind = ir.serde.deserialize_type_proto_for_shape(found), ir.serde.deserialize_type_proto_for_type(found)
    if shape is not None and value.shape != shape:
        value.shape = shape
    if kind is not None and value.dtype != kind.dtype:
        value.dtype = kind.dtype


def _skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return the model with its large constants as inputs."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for value in model.graph.inputs:
        ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            _add_constant(proto.graph, value, value.const_value)
    _add_nodes(proto.graph, model.graph)
    return proto


def _add_constant(proto: onnx.GraphProto, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Add a constant as an input, and with what it holds where that is little."""
    if value.shape is None:
        value.shape = ir.Shape(tensor.shape.numpy())
    if value.dtype is None:
        value.dtype = tensor.dtype
    if not value.is_graph_input():
        info = proto.input.add(name=value.name).type.tensor_type
        info.elem_type = int(tensor.dtype)
        info.shape.dim.extend([onnx.TensorShapeProto.Dimension(dim_value=size) for size in tensor.shape.numpy()])
    if tensor.nbytes <= _SMALL:
        ir.serde.serialize_tensor_into(proto.initializer.add(), tensor)
        proto.initializer[-1].name = str(value.name)


def _add_nodes(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    for node in graph:
        ir.serde.serialize_node_into(proto.node.add(), node)
        for value in node.outputs:
            if value.name and not value.is_graph_output() and (value.shape is not None or value.type is not None):
                ir.serde.serialize_value_into(proto.value_info.add(), value)
    for value in graph.outputs:
        ir.serde.serialize_value_into(proto.output.add(), value)
