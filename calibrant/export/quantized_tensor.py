"""An input of a node that is no layer, with the scale that a fit chose for it (``tensor_quantize``).

Its values go through an AscendQuant and an AscendAntiQuant, so that they travel as int8; the node itself computes in float.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calibrant.errors import ExportError, nearest
from calibrant.ingest.model import PreparedModel
from calibrant.quantizers.affine import code_range


@dataclass(frozen=True)
class QuantizedTensor:
    """An input and its scale.

    Attributes:
        node: name of the node.
        input_index: which of its inputs.
        scale_d: step of the codes.
        offset_d: integer added to the codes after scaling.
        data_bits: width of a code.

    Raises:
        ExportError: the scale is not positive and finite, or the offset leaves the code range.

    Example:
        >>> QuantizedTensor("pool", 0, np.float32(0.05), -128).key
        'pool:0'
    """

    node: str
    input_index: int
    scale_d: np.float32
    offset_d: int
    data_bits: int = 8

    def __post_init__(self) -> None:
        low, high = code_range(self.data_bits)
        if not (np.isfinite(self.scale_d) and self.scale_d > 0 and np.isfinite(self.reciprocal)):
            message = f"input '{self.key}': scale_d {self.scale_d} and its reciprocal must be positive and finite"
            raise ExportError(message)
        if not low <= self.offset_d <= high:
            message = f"input '{self.key}': offset {self.offset_d} is outside [{low}, {high}]"
            raise ExportError(message)

    @property
    def key(self) -> str:
        """What the record calls it: ``node:index``."""
        return f"{self.node}:{self.input_index}"

    @property
    def reciprocal(self) -> np.float32:
        """``float32(1 / scale_d)``, the factor of AscendQuant and of the fake-quant model."""
        with np.errstate(all="ignore"):
            return np.float32(1) / np.float32(self.scale_d)


@dataclass(frozen=True)
class EncodedTensor:
    """What both exported models need to know of a quantized input.

    Attributes:
        quantized: the input and its scale.
        tensor: the value on it in the prepared model.
        float_type: numpy name of its type, ``float32`` or ``float16``.
    """

    quantized: QuantizedTensor
    tensor: str
    float_type: str

    @property
    def owner(self) -> str:
        """The node that the added nodes are named after."""
        return self.quantized.node


def in_order(prepared: PreparedModel, tensors: Sequence[QuantizedTensor]) -> list[QuantizedTensor]:
    """Return inputs in the order of their nodes, then by number."""
    position = {node.name: place for place, node in enumerate(prepared.model.graph)}
    return sorted(tensors, key=lambda one: (position.get(one.node, len(position)), one.input_index))


def encode_tensor(prepared: PreparedModel, quantized: QuantizedTensor) -> EncodedTensor:
    """Look an input up in the prepared model.

    Raises:
        ExportError: the model has no such node or input.
    """
    nodes = {node.name: node for node in prepared.model.graph}
    node = nodes.get(quantized.node)
    value = None if node is None or quantized.input_index >= len(node.inputs) else node.inputs[quantized.input_index]
    if value is None or value.name is None:
        near = nearest(quantized.node, [name or "" for name in nodes]) if node is None else ""
        message = f"input '{quantized.key}' is not in the prepared model{near}"
        raise ExportError(message)
    return EncodedTensor(quantized, value.name, "float16" if value.dtype == ir.DataType.FLOAT16 else "float32")
