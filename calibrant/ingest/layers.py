"""Which nodes of a prepared model can be quantized, and why the others cannot."""

from dataclasses import dataclass


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
