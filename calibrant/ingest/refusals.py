"""Why a node cannot be quantized, under AMCT's constraints (amct-config-and-export.md, section 3; 3.2 before 3.1)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.ingest.nodes import channels, is_half, kernel_rank
from calibrant.ingest.passes.constants import initializer_tensor

Array = npt.NDArray[Any]
_MAX_KERNEL_RANK: Final = 3
FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def refusal(node: ir.Node) -> str | None:
    """Return why a node cannot be quantized, or None where it can."""
    reason = _REFUSALS[node.op_type](node)
    if reason is not None:
        return reason
    data = node.inputs[0]
    if data is None or initializer_tensor(data) is not None:
        return "its input is a constant, so there is nothing to calibrate"
    return _refuse_dtype("input", data.dtype)


def _refuse_conv(node: ir.Node) -> str | None:
    reason = _refuse_parameters(node)
    if reason is not None:
        return reason
    reason = _refuse_steps(node) or _refuse_groups(node) or _refuse_conv_bias(node)
    if reason is not None:
        return reason
    rank = kernel_rank(node, node.inputs[1])
    if not 1 <= rank <= _MAX_KERNEL_RANK:
        return f"its kernel has rank {rank}; {node.op_type} is quantized for rank 1 to 3"
    dilations = tuple(node.attributes.get_ints("dilations", ()))
    if node.op_type == "ConvTranspose" and set(dilations) - {1}:
        return f"dilations {list(dilations)}: a quantized ConvTranspose needs dilation 1"
    if rank == _MAX_KERNEL_RANK and dilations and dilations[0] != 1:
        return f"dilations {list(dilations)}: a quantized 3-D Conv needs dilation 1 along the depth"
    return None


def _refuse_steps(node: ir.Node) -> str | None:
    for name in ("strides", "dilations"):
        steps = list(node.attributes.get_ints(name, ()))
        if any(step < 1 for step in steps):
            return f"{name} {steps}: each has to be at least 1"
    return None


def _refuse_groups(node: ir.Node) -> str | None:
    tensor, groups = initializer_tensor(node.inputs[1]), node.attributes.get_int("group", 1)
    if tensor is None or (groups >= 1 and tensor.shape.numpy()[0] % groups == 0):
        return None
    return f"its weight of shape {list(tensor.shape.numpy())} cannot be split into {groups} groups"


def _refuse_conv_bias(node: ir.Node) -> str | None:
    tensor = initializer_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
    columns, _ = channels(node, node.inputs[1])
    if tensor is None or tuple(tensor.shape.numpy()) == (columns,):
        return None
    return f"its bias of shape {list(tensor.shape.numpy())} is not one value for each of the {columns} output channels"


def _refuse_parameters(node: ir.Node) -> str | None:
    """Check the weight on input 1 and the bias on input 2."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = initializer_tensor(weight)
    if tensor is None:
        return f"its weight {_origin(weight)} is not a constant"
    reason = _refuse_dtype("weight", tensor.dtype) or _refuse_values("weight", tensor)
    if reason is not None or bias is None:
        return reason
    bias_tensor = initializer_tensor(bias)
    if bias_tensor is None:
        return f"its bias {_origin(bias)} is not a constant"
    return _refuse_dtype("bias", bias_tensor.dtype) or _refuse_values("bias", bias_tensor)


def _origin(value: ir.Value | None) -> str:
    if value is None:
        return "(missing)"
    producer = value.producer()
    return f"'{value.name}'" + (f" (computed by {producer.op_type} '{producer.name}')" if producer is not None else "")


def _refuse_dtype(what: str, dtype: ir.DataType | None) -> str | None:
    if dtype in (None, *FLOATS):
        return None
    return f"its {what} is {_dtype_name(dtype)}; only float32 and float16 are quantized"


def _dtype_name(dtype: ir.DataType | None) -> str:
    return {"DOUBLE": "float64"}.get(str(dtype), str(dtype).lower())


def _refuse_values(what: str, tensor: ir.TensorProtocol) -> str | None:
    if tensor.size == 0:
        return f"its {what} is empty"
    return None if np.isfinite(tensor.numpy()).all() else f"its {what} holds NaN or infinity"


def _refuse_gemm(node: ir.Node) -> str | None:
    attributes = node.attributes
    if attributes.get_int("transA", 0):
        return "transA = 1: Gemm is quantized for transA = 0 only"
    alpha, beta = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    if (alpha, beta) != (1.0, 1.0):
        return f"alpha = {alpha:g}, beta = {beta:g}: Gemm is quantized for alpha = beta = 1 only"
    return _refuse_parameters(node) or _refuse_rank(node.inputs[1], 2) or _refuse_gemm_bias(node)


def _refuse_rank(weight: ir.Value | None, *ranks: int) -> str | None:
    tensor = initializer_tensor(weight)
    rank = None if tensor is None else len(tensor.shape)
    if rank in ranks:
        return None
    return f"its constant has rank {rank}; it must have rank {' or '.join(map(str, ranks))}"


def _refuse_gemm_bias(node: ir.Node) -> str | None:
    tensor = initializer_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
    if tensor is None:
        return None
    columns, _ = channels(node, node.inputs[1])
    shape = tuple(tensor.shape.numpy())
    if tensor.size == 1 or (tensor.size == columns and (not shape or shape[-1] == columns)):
        return None
    return f"its bias of shape {list(shape)} is not one value for each of the {columns} columns"


def _refuse_matmul(node: ir.Node) -> str | None:
    first, second = (initializer_tensor(value) for value in node.inputs[:2])
    if second is None and first is None:
        return "both inputs are variable; MatMul of two variables (symmetric int8) is off by default"
    if second is None:
        return "its first input is the constant; MatMul is quantized for a constant second input"
    return (
        _refuse_dtype("weight", second.dtype) or _refuse_rank(node.inputs[1], 2, 3) or _refuse_values("weight", second)
    )


def is_product(node: ir.Node) -> bool:
    """Whether a node is a MatMul of two float32 variables, which an override can have quantized symmetrically."""
    if node.op_type != "MatMul" or node.domain or is_half(node.graph):
        return False
    return all(
        value is not None and initializer_tensor(value) is None and value.dtype in (None, ir.DataType.FLOAT)
        for value in node.inputs
    )


def _refuse_average_pool(node: ir.Node) -> str | None:
    rank = kernel_rank(node, None)
    dilations = node.attributes.get_ints("dilations", ())
    if is_half(node.graph):
        return "the model has float16 inputs or weights, in which Ascend quantizes no AveragePool"
    if rank != 2:
        return f"its input has rank {rank + 2}; AveragePool is quantized for rank 4"
    if reason := _refuse_steps(node):
        return reason
    if set(dilations) - {1}:
        return f"dilations {list(dilations)}: a quantized AveragePool needs dilation 1"
    return None


def _refuse_global(_node: ir.Node) -> str | None:
    return "GlobalAveragePool is not quantized on Ascend"


_REFUSALS: Final[Mapping[str, Callable[[ir.Node], str | None]]] = {
    "Conv": _refuse_conv,
    "ConvTranspose": _refuse_conv,
    "Gemm": _refuse_gemm,
    "MatMul": _refuse_matmul,
    "AveragePool": _refuse_average_pool,
    "GlobalAveragePool": _refuse_global,
}


def matmul_bias(node: ir.Node) -> tuple[ir.Node, ir.Value, Array] | None:
    """Find the Add of a constant with one value a column that alone consumes a MatMul.

    The constant has rank 1, or leading ones that do not raise the rank of the product.

    Returns:
        the Add, its constant and the constant's array; None where there is none.
    """
    product = node.outputs[0]
    uses = list(product.uses())
    weight = initializer_tensor(node.inputs[1])
    if weight is None or len(uses) != 1 or product.is_graph_output():
        return None
    add, position = uses[0].node, uses[0].idx
    if add.op_type != "Add" or add.domain or add.graph is not node.graph or len(add.attributes):
        return None
    constant = add.inputs[1 - position]
    tensor = initializer_tensor(constant)
    if constant is None or tensor is None or tensor.dtype not in FLOATS:
        return None
    shape, rank = tuple(tensor.shape.numpy()), 1 if product.shape is None else len(product.shape)
    fits = shape[-1:] == (weight.shape.numpy()[-1],) and tensor.size == shape[-1] and len(shape) <= max(rank, 1)
    array = tensor.numpy()
    return (add, constant, array) if fits and np.isfinite(array).all() else None
