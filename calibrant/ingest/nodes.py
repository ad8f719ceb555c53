"""Facts of a layer's node: its parameters, channels and kernel; and what a configuration may need to know of any node."""

from typing import Final

import onnx_ir as ir

from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.stats.model_nodes import ModelNode

LAYER_TYPES: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "GlobalAveragePool")
WEIGHT_AXES: Final = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}  # axis of the output channels


def parameter(node: ir.Node, position: int) -> ir.Value | None:
    """Return the constant weight (position 1) or bias (position 2) of a layer, else None."""
    if node.op_type not in WEIGHT_AXES or position >= len(node.inputs):
        return None
    value = node.inputs[position]
    return value if initializer_tensor(value) is not None else None


def channels(node: ir.Node, weight: ir.Value | None) -> tuple[int | None, int | None]:
    """Return (output, input) channels over all groups; None without a weight of rank 2 or more."""
    tensor = initializer_tensor(weight)
    if tensor is None or len(tensor.shape) < 2:
        return None, None
    first, second = tensor.shape.numpy()[:2]
    groups = node.attributes.get_int("group", 1)
    if node.op_type == "Conv":
        return first, second * groups
    if node.op_type == "ConvTranspose":
        return second * groups, first
    transposed = node.attributes.get_int("transB", 0) == 1
    return (first, second) if transposed else (tensor.shape.numpy()[-1], tensor.shape.numpy()[-2])


def kernel_rank(node: ir.Node, weight: ir.Value | None) -> int:
    """Return the number of spatial axes of a layer's kernel; 0 where it has none."""
    tensor = initializer_tensor(weight)
    if node.op_type in ("Conv", "ConvTranspose"):
        return 0 if tensor is None else len(tensor.shape) - 2
    if node.op_type == "AveragePool":
        return len(node.attributes.get_ints("kernel_shape", ()))
    return 0


def model_nodes(graph: ir.Graph) -> dict[str, ModelNode]:
    """Return what a configuration may need to know of each named node of a graph, in its order."""
    half = is_half(graph)
    return {str(node.name): _model_node(node)._replace(half=half) for node in graph if node.name}


def is_half(graph: ir.Graph | None) -> bool:
    """Whether an input or a weight of a network is float16, which switches pooling and two-variable products off (3.1)."""
    if graph is None:
        return False
    values = (*graph.inputs, *graph.initializers.values())
    return any(value.dtype == ir.DataType.FLOAT16 for value in values)


def _model_node(node: ir.Node) -> ModelNode:
    fixed = frozenset(index for index, value in enumerate(node.inputs) if _is_constant(value))
    dilated = any(value != 1 for value in node.attributes.get_ints("dilations", ()))
    maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    tensors = tuple("" if value is None else str(value.name) for value in node.inputs)
    not_float = frozenset(index for index, value in enumerate(node.inputs) if _is_not_float(value))
    kind = "" if maker is None else _op_type(maker)
    outputs = tuple(str(value.name) for value in node.outputs)
    return ModelNode(_op_type(node), len(node.inputs), fixed, dilated, kind, tensors, not_float, outputs)


def _op_type(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _is_not_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype not in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or initializer_tensor(value) is not None:
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant" and not producer.domain
