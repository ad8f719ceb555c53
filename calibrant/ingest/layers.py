"""Which nodes of a prepared model can be quantized: one `Layer` for each candidate, refused ones with their reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from calibrant.ingest.explicit_pad import pad_before
from calibrant.ingest.macs import layer_macs
from calibrant.ingest.nodes import LAYER_TYPES, WEIGHT_AXES, channels, kernel_rank, parameter
from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.ingest.refusals import is_product, matmul_bias, refusal
from calibrant.stats.tables import LayerRow

if TYPE_CHECKING:
    from calibrant.ingest.prepared import PreparedModel

__all__ = ["Layer", "find_layers", "layer_macs", "layer_rows_of"]


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
        tensor_b: the value on input 1 of a MatMul of two variables, which only an override has quantized; else None.
        pad_node: name of the Pad before an AveragePool that is its padding; `tensor` is then the value before it.
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
    pad_node: str | None = None
    tensor_b: str | None = None


def find_layers(graph: ir.Graph) -> list[Layer]:
    """Describe every layer of the main graph, in the order of its nodes; tensor ids are not set yet."""
    nodes = [node for node in graph if node.op_type in LAYER_TYPES and not node.domain]
    return [_describe(layer_id, node) for layer_id, node in enumerate(nodes)]


def _describe(layer_id: int, node: ir.Node) -> Layer:
    reason = refusal(node)
    weight, bias = parameter(node, 1), parameter(node, 2)
    add = matmul_bias(node) if reason is None and node.op_type == "MatMul" else None
    if add is not None:
        bias = add[1]
    out, into = channels(node, weight)
    pad = pad_before(node) if reason is None else None
    data = (node if pad is None else pad).inputs[0]
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
        weight_axis=_weight_axis(node, weight),
        channels_out=out,
        channels_in=into,
        groups=node.attributes.get_int("group", 1),
        kernel_rank=kernel_rank(node, weight),
        parameters=sum(t.size for value in (weight, bias) if (t := initializer_tensor(value)) is not None),
        quantizable=reason is None,
        reason=reason,
        pad_node=None if pad is None else str(pad.name),
        tensor_b=_tensor_b(node),
    )


def _tensor_b(node: ir.Node) -> str | None:
    value = node.inputs[1] if is_product(node) else None
    return None if value is None else str(value.name)


def _weight_axis(node: ir.Node, weight: ir.Value | None) -> int | None:
    tensor = initializer_tensor(weight)
    if tensor is None:
        return None
    return len(tensor.shape) - 1 if node.op_type == "MatMul" else WEIGHT_AXES[node.op_type]


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
        bias=layer.bias,
        channels_out=layer.channels_out,
        channels_in=layer.channels_in,
        groups=layer.groups,
        kernel_rank=layer.kernel_rank,
        macs=None if shape is None else layer_macs(prepared, layer, shape),
        parameters=layer.parameters,
        quantizable=layer.quantizable,
        reason=layer.reason,
        tensor_b=layer.tensor_b,
    )
