"""Which nodes of a prepared model can be quantized, and why the others cannot.

The constraints are AMCT's (amct-config-and-export.md, section 3; where its 3.1 and 3.2 differ, 3.2 holds).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.stats.tables import LayerRow

if TYPE_CHECKING:
    from calibrant.ingest.model import PreparedModel

Array = npt.NDArray[Any]
LAYER_TYPES: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "GlobalAveragePool")
_MAX_KERNEL_RANK: Final = 3
_WEIGHT_AXES: Final = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


@dataclass(frozen=True, slots=True)
class Layer:
    """A node that AMCT could quantize, as it stands in the prepared model.

    In the prepared model a quantizable layer's weight is an initializer that no other node uses, a Gemm has transB = 0, and a
    MatMul's constant second input is an initializer, so ``weight`` can be replaced in place.

    Attributes:
        layer_id: position in topological order among the layers.
        name: ONNX node name.
        op_type: Conv, ConvTranspose, Gemm, MatMul, AveragePool or GlobalAveragePool.
        tensor: the value on input 0.
        tensor_id: its id among the captured tensors, or None.
        output: the value on output 0.
        weight: initializer name of the weight, or None.
        bias: initializer name of the bias (for a MatMul: the constant of the Add that follows), or None.
        bias_node: name of that Add node for a MatMul with bias, else None.
        weight_axis: axis of the output channels in the weight: Conv 0, ConvTranspose 1 (times groups), Gemm and MatMul last.
        channels_out, channels_in, groups, kernel_rank, parameters: as in `stats.tables.LayerRow`.
        quantizable: whether the layer may be quantized at all.
        reason: why not, or None.
    """

    layer_id: int
    name: str
    op_type: str
    tensor: str
    tensor_id: int | None
    output: str
    weight: str | None
    bias: str | None
    bias_node: str | None
    weight_axis: int | None
    channels_out: int | None
    channels_in: int | None
    groups: int
    kernel_rank: int
    parameters: int
    quantizable: bool
    reason: str | None


def find_layers(graph: ir.Graph) -> list[Layer]:
    """Describe every layer of the main graph, in the order of its nodes; tensor ids are not set yet."""
    nodes = [node for node in graph if node.op_type in LAYER_TYPES and not node.domain]
    return [_describe(layer_id, node) for layer_id, node in enumerate(nodes)]


def _describe(layer_id: int, node: ir.Node) -> Layer:
    reason = refusal(node)
    weight, bias = _parameter(node, 1), _parameter(node, 2)
    add = matmul_bias(node) if reason is None and node.op_type == "MatMul" else None
    if add is not None:
        bias = add[1]
    out, into = _channels(node, weight)
    data = node.inputs[0]
    return Layer(
        layer_id=layer_id,
        name=str(node.name),
        op_type=node.op_type,
        tensor="" if data is None else str(data.name),
        tensor_id=None,
        output=str(node.outputs[0].name),
        weight=None if weight is None else weight.name,
        bias=None if bias is None else bias.name,
        bias_node=None if add is None else str(add[0].name),
        weight_axis=None if weight is None else _WEIGHT_AXES[node.op_type],
        channels_out=out,
        channels_in=into,
        groups=node.attributes.get_int("group", 1),
        kernel_rank=_kernel_rank(node, weight),
        parameters=sum(t.size for value in (weight, bias) if (t := initializer_tensor(value)) is not None),
        quantizable=reason is None,
        reason=reason,
    )


def _parameter(node: ir.Node, position: int) -> ir.Value | None:
    if node.op_type not in _WEIGHT_AXES or position >= len(node.inputs):
        return None
    value = node.inputs[position]
    return value if initializer_tensor(value) is not None else None


def _channels(node: ir.Node, weight: ir.Value | None) -> tuple[int | None, int | None]:
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


def _kernel_rank(node: ir.Node, weight: ir.Value | None) -> int:
    tensor = initializer_tensor(weight)
    if node.op_type in ("Conv", "ConvTranspose"):
        return 0 if tensor is None else len(tensor.shape) - 2
    if node.op_type == "AveragePool":
        return len(node.attributes.get_ints("kernel_shape", ()))
    return 0


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
    rank = _kernel_rank(node, node.inputs[1])
    if not 1 <= rank <= _MAX_KERNEL_RANK:
        return f"its kernel has rank {rank}; {node.op_type} is quantized for rank 1 to 3"
    dilations = tuple(node.attributes.get_ints("dilations", ()))
    if node.op_type == "ConvTranspose" and set(dilations) - {1}:
        return f"dilations {list(dilations)}: a quantized ConvTranspose needs dilation 1"
    if rank == _MAX_KERNEL_RANK and dilations and dilations[0] != 1:
        return f"dilations {list(dilations)}: a quantized 3-D Conv needs dilation 1 along the depth"
    return None


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
    if dtype in (None, ir.DataType.FLOAT):
        return None
    if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return f"its {what} is {dtype.name.lower()}; float16 models come with a later version"
    return f"its {what} is {_dtype_name(dtype)}; only float32 is quantized"


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
    return _refuse_parameters(node) or _refuse_rank(node.inputs[1]) or _refuse_gemm_bias(node)


def _refuse_rank(weight: ir.Value | None) -> str | None:
    tensor = initializer_tensor(weight)
    rank = None if tensor is None else len(tensor.shape)
    if rank == 3:
        return "its constant has rank 3; batched weights come with a later version"
    return None if rank == 2 else f"its constant has rank {rank}; it must have rank 2"


def _refuse_gemm_bias(node: ir.Node) -> str | None:
    tensor = initializer_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
    if tensor is None:
        return None
    columns, _ = _channels(node, node.inputs[1])
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
    return _refuse_dtype("weight", second.dtype) or _refuse_rank(node.inputs[1]) or _refuse_values("weight", second)


def _refuse_average_pool(node: ir.Node) -> str | None:
    rank = _kernel_rank(node, None)
    dilations = node.attributes.get_ints("dilations", ())
    if rank != 2:
        return f"its input has rank {rank + 2}; AveragePool is quantized for rank 4"
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
    if constant is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return None
    shape, rank = tuple(tensor.shape.numpy()), 1 if product.shape is None else len(product.shape)
    fits = shape[-1:] == (weight.shape.numpy()[-1],) and tensor.size == shape[-1] and len(shape) <= max(rank, 1)
    array = tensor.numpy()
    return (add, constant, array) if fits and np.isfinite(array).all() else None


def layer_macs(prepared: "PreparedModel", layer: Layer, input_shape: Sequence[int]) -> int | None:
    """Count the multiply-accumulates of a layer on an input of this shape; give one sample's shape for those of a sample.

    A pooling layer counts one for each element of a window. None where the layer's weight is not known.

    Args:
        prepared: the model that the layer belongs to.
        layer: the layer.
        input_shape: shape of the value on input 0, the batch axis included.
    """
    node = prepared.model.graph.node(layer.name)
    weight = initializer_tensor(_parameter(node, 1))
    if layer.op_type == "GlobalAveragePool":
        return prod(input_shape)
    if layer.op_type == "AveragePool":
        kernel = node.attributes.get_ints("kernel_shape", ())
        return prod((*input_shape[:2], *_windows(node, input_shape[2:], kernel), *kernel))
    if weight is None:
        return None
    dims = weight.shape.numpy()
    if layer.op_type == "Conv":
        return prod((input_shape[0], *_windows(node, input_shape[2:], dims[2:]), *dims))
    if layer.op_type == "ConvTranspose":
        return prod((input_shape[0], *input_shape[2:], *dims))
    return prod((*input_shape[:-1], *dims[-2:]))


def _windows(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return how many windows fit along each axis (ONNX's formula, auto_pad included)."""
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", (1,) * rank)
    dilations = node.attributes.get_ints("dilations", (1,) * rank)
    pads = node.attributes.get_ints("pads", (0,) * (2 * rank))
    auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        return [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    if auto_pad == "VALID":
        pads = (0,) * (2 * rank)
    counts = []
    for axis, (size, extent, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        room = size + pads[axis] + pads[axis + rank] - dilation * (extent - 1) - 1
        rounded = -(-room // stride) if node.attributes.get_int("ceil_mode", 0) else room // stride
        counts.append(rounded + 1)
    return counts


def layer_rows_of(prepared: "PreparedModel", input_shapes: Mapping[str, Sequence[int]] | None = None) -> list[LayerRow]:
    """Return the rows of the `layers` table.

    Args:
        prepared: the prepared model.
        input_shapes: measured shape of one sample (its batch axis of size 1 included) by tensor name; where a tensor is
            missing, the static shape serves, with its first axis taken as the batch.
    """
    known = {tensor.name: _one_sample(tensor.shape) for tensor in prepared.tensors}
    known.update({name: tuple(shape) for name, shape in (input_shapes or {}).items()})
    return [_row(prepared, layer, known.get(layer.tensor)) for layer in prepared.layers]


def _one_sample(shape: tuple[int | str | None, ...] | None) -> tuple[int, ...] | None:
    if not shape:
        return None
    sizes = [size for size in shape[1:] if isinstance(size, int)]
    return (1, *sizes) if len(sizes) == len(shape) - 1 else None


def _row(prepared: "PreparedModel", layer: Layer, shape: tuple[int, ...] | None) -> LayerRow:
    return LayerRow(
        layer_id=layer.layer_id,
        layer=layer.name,
        op_type=layer.op_type,
        tensor_id=layer.tensor_id,
        weight=layer.weight,
        channels_out=layer.channels_out,
        channels_in=layer.channels_in,
        groups=layer.groups,
        kernel_rank=layer.kernel_rank,
        macs=None if shape is None else layer_macs(prepared, layer, shape),
        parameters=layer.parameters,
        quantizable=layer.quantizable,
        reason=layer.reason,
    )
