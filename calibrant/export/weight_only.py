"""Layers whose weight alone is quantized (``weight_compress_only``): int8 codes and the nodes that make them float again.

No source says how ATC wants such a layer, so this is calibrant's reading, not confirmed on ATC: an int8 initializer in the weight's
place, then DequantizeLinear where one scale holds for the whole weight and the opset is one for which ATC has a parser, else
Cast, Sub and Mul. Both models hold the same nodes; the layer itself computes in float.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ExportError
from calibrant.export.graph_edit import Names, add_initializer, replace_initializer
from calibrant.export.weight_codes import along_channels, weight_codes
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, initializer_value
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.affine import CodeArray, Float32Array, Int32Array, code_range

WeightOnlyForm = Literal["dequantize", "mul"]

DEQUANTIZE_OPSETS: Final = (
    10,
    15,
)  # those for which ATC has a parser of DequantizeLinear (docs/export.md)
WIDTHS: Final = (6, 7, 8)


@dataclass(frozen=True, eq=False)
class WeightOnlyLayer:
    """A layer and the scales that a fit chose for its weight.

    Attributes:
        layer: the node of the prepared model.
        scale_w: steps of the weight codes, shape (1,) per tensor or (C,) per output channel.
        offset_w: integers added to the codes after scaling, the same shape.
        weight_bits: 6, 7 or 8; the codes are stored as int8.

    Raises:
        ExportError: the layer has no weight, a scale is not positive and finite, an offset leaves the code range, or lengths differ.
    """

    layer: Layer
    scale_w: Float32Array
    offset_w: Int32Array
    weight_bits: int

    def __post_init__(self) -> None:
        if fault := self._fault():
            message = f"layer '{self.layer.name}': {fault}"
            raise ExportError(message)

    def _fault(self) -> str | None:
        low, high = code_range(self.weight_bits)
        if self.layer.weight is None:
            return "it has no weight to compress"
        if self.weight_bits not in WIDTHS:
            return f"weight codes of {self.weight_bits} bits; 6, 7 or 8 are possible for weights alone"
        if self.scale_w.size not in {1, self.layer.channels_out} or self.scale_w.shape != self.offset_w.shape:
            lengths = f"{self.scale_w.size} scales and {self.offset_w.size} offsets"
            return f"{lengths} for {self.layer.channels_out} output channels; one of each, or one a channel, is needed"
        if not np.all(np.isfinite(self.scale_w) & (self.scale_w > 0)):
            return "scales must be positive and finite"
        if self.offset_w.min() < low or self.offset_w.max() > high:
            return f"offsets from {self.offset_w.min()} to {self.offset_w.max()} leave [{low}, {high}]"
        return None


@dataclass(frozen=True, eq=False)
class EncodedWeight:
    """What both models hold for such a layer.

    Attributes:
        quantized: the layer and its scales.
        codes: int8, in the layout of the float weight.
        float_type: numpy name of the weight's float type.
        form: how the codes become float again.
    """

    quantized: WeightOnlyLayer
    codes: CodeArray
    float_type: str
    form: WeightOnlyForm

    @property
    def layer(self) -> Layer:
        """The node of the prepared model."""
        return self.quantized.layer

    def along(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Shape one value, or one an output channel, so that it broadcasts against the weight."""
        return along_channels(self.layer.op_type, self.layer.groups, self.codes.shape, values)


@dataclass(frozen=True)
class WeightPlacement:
    """Where the additions of such a layer stand: names of nodes and constants."""

    encoded: EncodedWeight
    names: tuple[str, ...]


def encode_weight(prepared: PreparedModel, quantized: WeightOnlyLayer, form: WeightOnlyForm) -> EncodedWeight:
    """Quantize the weight of such a layer.

    Args:
        prepared: the float model.
        quantized: the layer and its scales.
        form: ``dequantize`` for DequantizeLinear where it is possible, ``mul`` for Cast, Sub and Mul everywhere.
    """
    weight = initializer_value(prepared, quantized.layer.weight or "")
    codes = weight_codes(quantized.layer, weight, quantized.scale_w, quantized.offset_w, quantized.weight_bits)
    low, high = DEQUANTIZE_OPSETS
    possible = quantized.scale_w.size == 1 and low <= prepared.model.graph.opset_imports.get("", 0) <= high
    return EncodedWeight(quantized, codes, str(weight.dtype), form if possible else "mul")


def place_weight(graph: ir.Graph, names: Names, node: ir.Node, encoded: EncodedWeight) -> WeightPlacement:
    """Put codes into a weight's place and make them float again before the layer reads them."""
    placer = _Placer(graph, names, f"{encoded.layer.name}.weight")
    value = replace_initializer(node, 1, encoded.codes, names, graph)
    value = placer.dequantize(value, encoded) if encoded.form == "dequantize" else placer.multiply(value, encoded)
    if encoded.float_type == "float16":
        value = placer.node("Cast", "cast_back", [value], to=ir.DataType.FLOAT16)
    graph.insert_before(node, placer.nodes)
    node.replace_input_with(1, value)
    return WeightPlacement(encoded, tuple(placer.made))


def weight_entry(encoded: EncodedWeight, *, unfused: bool) -> RecordEntry:
    """Return the record of such a layer: no scale_d, and offsets of the weight that may be other than 0."""
    quantized = encoded.quantized
    return RecordEntry(
        key=encoded.layer.name,
        scale_w=tuple(np.float32(scale) for scale in quantized.scale_w),
        offset_w=tuple(int(offset) for offset in quantized.offset_w),
        act_type=None,
        wts_type=f"INT{quantized.weight_bits}",
        op_data_type=encoded.float_type.upper(),
        skip_fusion=True if unfused else None,
    )


def is_weight_only(entry: RecordEntry) -> bool:
    """Whether a record's entry quantizes a weight alone: it has scales of the weight and says nothing of the data."""
    said = (entry.scale_d, entry.offset_d, entry.act_type)
    return bool(entry.scale_w) and not entry.is_tensor_quantize and said == (None, None, None)


class _Placer:
    """Makes nodes and constants with names of one prefix."""

    def __init__(self, graph: ir.Graph, names: Names, prefix: str) -> None:
        self._graph, self._names, self._prefix = graph, names, prefix
        self.nodes: list[ir.Node] = []
        self.made: list[str] = []

    def dequantize(self, codes: ir.Value, encoded: EncodedWeight) -> ir.Value:
        scale, offset = encoded.quantized.scale_w, encoded.quantized.offset_w
        parameters = [
            self._constant("scale", scale.reshape(()).astype(np.float32)),
            self._constant("zero_point", offset.reshape(()).astype(np.int8)),
        ]
        return self.node("DequantizeLinear", "dequantize", [codes, *parameters])

    def multiply(self, codes: ir.Value, encoded: EncodedWeight) -> ir.Value:
        offset = self._constant("offset", encoded.along(encoded.quantized.offset_w).astype(np.float32))
        scale = self._constant("scale", encoded.along(encoded.quantized.scale_w).astype(np.float32))
        value = self.node("Cast", "cast", [codes], to=ir.DataType.FLOAT)
        value = self.node("Sub", "sub", [value, offset])
        return self.node("Mul", "mul", [value, scale])

    def node(self, op_type: str, suffix: str, inputs: Sequence[ir.Value], to: ir.DataType | None = None) -> ir.Value:
        name = self._names.fresh(f"{self._prefix}.{suffix}")
        output = ir.Value(name=self._names.fresh(f"{name}.output0"))
        attributes = [] if to is None else [ir.AttrInt64("to", int(to))]
        self.nodes.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=name))
        self.made.append(name)
        return output

    def _constant(self, suffix: str, array: npt.NDArray[np.generic]) -> ir.Value:
        name = self._names.fresh(f"{self._prefix}.{suffix}")
        self.made.append(name)
        return add_initializer(self._graph, name, array)
