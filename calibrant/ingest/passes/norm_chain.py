"""The nodes behind a convolution that are one scale and one shift a channel: a BatchNormalization, with Mul and Add around it.

AMCT fuses BatchNormalization with a following Mul or Add of a constant, then the convolution with the result
(amct-config-and-export.md, 4.1). Each node alone consumes the one before it, and no value between them is a graph output.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.ingest.passes.constants import initializer_tensor

Array = npt.NDArray[Any]
CONSTANT_TYPES: Final = ("Mul", "Add")
_EPSILON: Final = 1e-5  # ONNX default


@dataclass(frozen=True, slots=True)
class NormChain:
    """The nodes behind a convolution up to the last that can be fused with it, in order; one is a BatchNormalization.

    Attributes:
        nodes: the nodes.
        constants: for each node its parameters as float32 or float16: (gamma, beta, mean, var), or the operand of a Mul or Add, shape (C,)
            or (1,); None where a parameter is no such constant.
    """

    nodes: tuple[ir.Node, ...]
    constants: tuple[tuple[Array, ...] | None, ...]

    @property
    def norm(self) -> ir.Node:
        """The BatchNormalization."""
        return next(node for node in self.nodes if node.op_type == "BatchNormalization")

    @property
    def is_constant(self) -> bool:
        """Whether every parameter is a constant."""
        return all(constants is not None for constants in self.constants)

    def scale_and_bias(self, bias: Array) -> tuple[Array, Array]:
        """Return the factor of each output channel and what becomes of its bias, both float64.

        Args:
            bias: float64, shape (C,).
        """
        scale = np.ones_like(bias)
        for node, constants in zip(self.nodes, self.constants, strict=True):
            step = tuple(array.astype(np.float64) for array in constants or ())
            if node.op_type == "BatchNormalization":
                gamma, beta, mean, var = step
                factor = gamma / np.sqrt(var + float(node.attributes.get_float("epsilon", _EPSILON)))
                scale, bias = scale * factor, (bias - mean) * factor + beta
            elif node.op_type == "Mul":
                scale, bias = scale * step[0], bias * step[0]
            else:
                bias = bias + step[0]
        return scale, bias


def norm_chain(conv: ir.Node, channels: int, rank: int) -> NormChain | None:
    """Find the nodes behind a convolution that can be fused with it, or None without a BatchNormalization among them.

    Args:
        conv: the convolution.
        channels: its output channels.
        rank: of its output.
    """
    found = list(_steps(conv, channels, rank))
    if not any(node.op_type == "BatchNormalization" for node, _ in found):
        return None
    return NormChain(tuple(node for node, _ in found), tuple(constants for _, constants in found))


def _steps(conv: ir.Node, channels: int, rank: int) -> Iterator[tuple[ir.Node, tuple[Array, ...] | None]]:
    """Walk along single consumers; a second BatchNormalization ends the walk."""
    value, seen_norm = conv.outputs[0], False
    while (use := _only_use(value, conv.graph)) is not None:
        node, position = use
        if node.op_type == "BatchNormalization":
            if seen_norm or position != 0 or not _is_inference(node):
                return
            seen_norm = True
            yield node, _norm_parameters(node)
        else:
            operand = _channel_operand(node, position, channels, rank)
            if operand is None:
                return
            yield node, (operand,)
        value = node.outputs[0]


def _only_use(value: ir.Value, graph: ir.Graph | None) -> tuple[ir.Node, int] | None:
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.graph is not graph:
        return None
    return uses[0].node, uses[0].idx


def _is_inference(node: ir.Node) -> bool:
    return (
        not node.domain
        and len(node.inputs) == 5
        and not any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        and not node.attributes.get_int("training_mode", 0)
        and node.attributes.get_int("spatial", 1) == 1
    )


def _norm_parameters(node: ir.Node) -> tuple[Array, ...] | None:
    arrays = tuple(array for value in node.inputs[1:] if (array := float_array(value)) is not None)
    return arrays if len(arrays) == 4 else None


def _channel_operand(node: ir.Node, position: int, channels: int, rank: int) -> Array | None:
    """Return the constant operand of a Mul or Add, where it has one value, or one for each channel on axis 1."""
    if node.op_type not in CONSTANT_TYPES or node.domain or len(node.attributes):
        return None
    array = float_array(node.inputs[1 - position])
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    fits = shape[1] in (1, channels) and array.size == shape[1]
    return array.reshape(-1) if fits else None


def float_array(value: ir.Value | None) -> Array | None:
    """Return the array of a float32 or float16 initializer, else None."""
    tensor = initializer_tensor(value)
    if tensor is None or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return None
    return tensor.numpy()
