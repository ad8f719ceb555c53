"""The fake-quant model: what the NPU computes, in plain ONNX that any runtime can run.

Integer-faithful: ``Mul(1/scale_d) -> Round -> Add(offset) -> Clip -> Sub(offset)`` on the data, int8 weights and int32 biases cast
to float32, the layer on integer-valued float32, then ``Mul(scale_d * scale_w)``. Wherever all sums stay below 2**24 in magnitude
float32 holds them exactly, so the layer's output equals the integer computation bit for bit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from calibrant.errors import ExportError, first_line
from calibrant.export.graph_edit import Names, add_initializer, export_clone, into_memory
from calibrant.export.quantized_layer import EncodedLayer
from calibrant.export.quantized_tensor import EncodedTensor
from calibrant.export.rewrite import AnyPlacement, Chain, Encoded, rewrite
from calibrant.export.weight_only import EncodedWeight
from calibrant.ingest.model import PreparedModel
from calibrant.quantizers.affine import CodeArray, Float32Array, code_range
from calibrant.quantizers.shift import INT16

_LEAST_OPSET = 11  # Round exists, and Clip takes its limits as inputs, from here on


class FakeQuantForm:
    """Plain ONNX operators."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.names = Names.of(model)

    def quantizer(self, encoded: Encoded, data: ir.Value) -> Chain:
        """Make the chain from float data to integer-valued float32 without offset."""
        quantized, prefix = encoded.quantized, f"{encoded.owner}.quant.fakequant"
        low, high = code_range(quantized.data_bits)
        offset = self._constant(f"{prefix}.offset", quantized.offset_d)
        nodes = [] if encoded.float_type == "float32" else self._widened(prefix, data)
        value = nodes[-1].outputs[0] if nodes else data
        limits = (self._constant(f"{prefix}.min_val", low), self._constant(f"{prefix}.max_val", high))
        for op_type, operands in (
            ("Mul", (self._constant(f"{prefix}.scale", quantized.reciprocal),)),
            ("Round", ()),
            ("Add", (offset,)),
            ("Clip", limits),
            ("Sub", (offset,)),
        ):
            nodes.append(self._node(op_type, f"{prefix}.{op_type.lower()}", [value, *operands]))
            value = nodes[-1].outputs[0]
        return Chain(tuple(nodes), value)

    def antiquantizer(self, encoded: EncodedTensor, codes: ir.Value) -> Chain:
        """Multiply by the step of the codes."""
        prefix = f"{encoded.owner}.anti_quant.fakequant"
        nodes = [
            self._node("Mul", f"{prefix}.mul", [codes, self._constant(f"{prefix}.scale", encoded.quantized.scale_d)])
        ]
        if encoded.float_type != "float32":
            nodes.append(self._cast(f"{prefix}.cast", nodes[0].outputs[0], ir.DataType[encoded.float_type.upper()]))
        return Chain(tuple(nodes), nodes[-1].outputs[0])

    def codes_out(self, encoded: EncodedTensor, data: ir.Value) -> Chain:
        """Make the chain up to the Clip, which keeps the offset, and a Cast to int8."""
        *nodes, last = self.quantizer(encoded, data).nodes
        clipped = nodes[-1].outputs[0]
        last.replace_input_with(0, None)  # the Sub is not part of the model; it must not count as a reader
        last.replace_input_with(1, None)
        nodes.append(self._cast(f"{encoded.owner}.quant.fakequant.cast", clipped, ir.DataType.INT8))
        return Chain(tuple(nodes), nodes[-1].outputs[0])

    def weight(self, encoded: EncodedLayer) -> CodeArray | None:
        """Store one code a byte."""
        return encoded.weight

    def codes(self, encoded: EncodedLayer, role: str, value: ir.Value) -> Chain:
        """Cast stored integers to float32."""
        node = self._cast(f"{encoded.layer.name}.{role}.fakequant.cast", value, ir.DataType.FLOAT)
        return Chain((node,), node.outputs[0])

    def dequantizer(self, encoded: EncodedLayer, accumulator: ir.Value) -> tuple[Chain, str]:
        """Multiply by what one unit of the accumulator is worth."""
        prefix = f"{encoded.layer.name}.dequant.fakequant"
        nodes = self._shift(encoded, prefix, accumulator) if encoded.quantized.shift else []
        scale = self._constant(f"{prefix}.scale", _along_channels(encoded, encoded.quantized.shifted_scale))
        value = nodes[-1].outputs[0] if nodes else accumulator
        nodes.append(self._node("Mul", f"{prefix}.mul", [value, scale]))
        if encoded.float_type != "float32":
            nodes.append(self._cast(f"{prefix}.cast", nodes[-1].outputs[0], ir.DataType[encoded.float_type.upper()]))
            nodes.append(self._node("Identity", f"{prefix}.identity", [nodes[-1].outputs[0]]))
        return Chain(tuple(nodes), nodes[-1].outputs[0]), scale.name or ""

    def _shift(self, encoded: EncodedLayer, prefix: str, accumulator: ir.Value) -> list[ir.Node]:
        """Shift the accumulator into int16: ``clip(floor(acc * 2**-N), -32768, 32767)``."""
        powers = np.exp2(-np.array(encoded.quantized.shift, np.float32)).astype(np.float32)
        factor = self._constant(f"{prefix}.shift", _along_channels(encoded, powers))
        limits = [
            self._constant(f"{prefix}.{end}_val", value) for end, value in zip(("min", "max"), INT16, strict=True)
        ]
        nodes = [self._node("Mul", f"{prefix}.shift_mul", [accumulator, factor])]
        nodes.append(self._node("Floor", f"{prefix}.floor", [nodes[0].outputs[0]]))
        nodes.append(self._node("Clip", f"{prefix}.clip", [nodes[1].outputs[0], *limits]))
        return nodes

    def padding(self, encoded: EncodedLayer, node: ir.Node) -> None:
        """Codes without offset are padded with 0, as the float data was."""

    def accumulator(self, value: ir.Value) -> None:
        """The layer's output is float32, whatever the model's own float type is."""
        if value.dtype not in {None, ir.DataType.FLOAT}:
            value.type = ir.TensorType(ir.DataType.FLOAT)

    def _widened(self, prefix: str, data: ir.Value) -> list[ir.Node]:
        """Make float32 of float16 data; the Identity keeps onnxruntime from dropping the rounding to float16 before it."""
        kept = self._node("Identity", f"{prefix}.identity", [data])
        return [kept, self._cast(f"{prefix}.cast", kept.outputs[0], ir.DataType.FLOAT)]

    def _constant(self, name: str, array: npt.ArrayLike) -> ir.Value:
        return add_initializer(self.graph, self.names.fresh(name), np.asarray(array, np.float32))

    def _cast(self, name: str, value: ir.Value, to: ir.DataType) -> ir.Node:
        return self._node("Cast", name, [value], [ir.AttrInt64("to", int(to))])

    def _node(self, op_type: str, name: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr] = ()) -> ir.Node:
        name = self.names.fresh(name)
        output = ir.Value(name=self.names.fresh(f"{name}.output0"))
        return ir.Node("", op_type, inputs, attributes, outputs=[output], name=name)


def build_fake_quant(
    prepared: PreparedModel,
    layers: Sequence[EncodedLayer],
    tensors: Sequence[EncodedTensor] = (),
    weights: Sequence[EncodedWeight] = (),
    outputs: Sequence[EncodedTensor] = (),
) -> tuple[ir.Model, tuple[AnyPlacement, ...]]:
    """Return the fake-quant model and where its additions stand.

    The opset is that of the source model, raised to 11 where it is older.

    Args:
        prepared: the float model.
        layers: those that are quantized with their data.
        tensors: quantized inputs of other nodes.
        weights: layers whose weight alone is quantized.
        outputs: Identity nodes before outputs of the model that become int8 codes.

    Raises:
        ExportError: the opset cannot be raised, or a layer is not in the model.
    """
    model = _raise_opset(export_clone(prepared))
    placements = rewrite(FakeQuantForm(model), layers, tensors, weights, outputs)
    return into_memory(model), placements


def _along_channels(encoded: EncodedLayer, scale: Float32Array) -> Float32Array:
    """Shape values so that they broadcast along the output channels: [1,C,1,1] for Conv, [C] for matrices, [] for one."""
    layer = encoded.layer
    if scale.size == 1:
        return scale.reshape(())
    if layer.op_type in {"Conv", "ConvTranspose"}:
        return scale.reshape(1, -1, *[1] * layer.kernel_rank)
    return scale


def _raise_opset(model: ir.Model) -> ir.Model:
    opset = model.graph.opset_imports.get("", 0)
    if opset >= _LEAST_OPSET:
        return model
    try:
        raised = onnx.version_converter.convert_version(ir.to_proto(into_memory(model)), _LEAST_OPSET)
    except Exception as error:  # the converter raises bare RuntimeErrors and its own C++ types
        message = (
            f"the fake-quant model needs opset {_LEAST_OPSET} and the model has {opset}, which onnx cannot raise: "
            f"{first_line(error)}; export the float model with opset {_LEAST_OPSET} or newer"
        )
        raise ExportError(message) from error
    return ir.from_proto(raised)
