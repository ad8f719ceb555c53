"""The deploy model for ATC: AscendQuant, int8 layers with int32 bias, AscendDequant (docs/export.md).

The three operators stand in the default domain and no opset is added: ATC looks them up as ``ai.onnx::<opset>::<type>``. The
bias is not corrected for the data offset; ATC does that itself.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from calibrant.export.graph_edit import Names, add_initializer, export_clone, into_memory
from calibrant.export.quantized_layer import EncodedLayer
from calibrant.export.quantized_tensor import EncodedTensor
from calibrant.export.rewrite import AnyPlacement, Chain, Encoded, rewrite
from calibrant.export.weight_only import EncodedWeight
from calibrant.ingest.model import PreparedModel
from calibrant.quantizers.affine import CodeArray


class DeployForm:
    """Ascend's operators."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.names = Names.of(model)

    def quantizer(self, encoded: Encoded, data: ir.Value) -> Chain:
        """Make an AscendQuant: ``scale`` is the reciprocal and ``offset`` a FLOAT (ATC reads an INT offset as 0)."""
        quantized, name = encoded.quantized, self.names.fresh(f"{encoded.owner}.quant")
        attributes = [
            ir.AttrFloat32("scale", float(quantized.reciprocal)),
            ir.AttrFloat32("offset", float(quantized.offset_d)),
            ir.AttrString("dst_type", f"INT{quantized.data_bits}"),
        ]
        output = ir.Value(name=self.names.fresh(f"{name}.output0"))
        return Chain((ir.Node("", "AscendQuant", [data], attributes, outputs=[output], name=name),), output)

    def antiquantizer(self, encoded: EncodedTensor, codes: ir.Value) -> Chain:
        """Make an AscendAntiQuant: ``scale`` is the step itself; ATC negates ``offset`` while it reads, so it is offset_d here."""
        quantized, name = encoded.quantized, self.names.fresh(f"{encoded.owner}.anti_quant")
        attributes = [
            ir.AttrFloat32("scale", float(quantized.scale_d)),
            ir.AttrFloat32("offset", float(quantized.offset_d)),
            ir.AttrInt64("dtype", 1 if encoded.float_type == "float16" else 0),
        ]
        output = ir.Value(name=self.names.fresh(f"{name}.output0"))
        return Chain((ir.Node("", "AscendAntiQuant", [codes], attributes, outputs=[output], name=name),), output)

    def codes_out(self, encoded: EncodedTensor, data: ir.Value) -> Chain:
        """Make an AscendQuant: its codes are what the model returns."""
        return self.quantizer(encoded, data)

    def weight(self, encoded: EncodedLayer) -> CodeArray | None:
        """Store 4-bit codes two in a byte, others as they are."""
        return encoded.packed_weight

    def codes(self, encoded: EncodedLayer, role: str, value: ir.Value) -> Chain:
        """Let the layer read the integers themselves."""
        return Chain((), value)

    def dequantizer(self, encoded: EncodedLayer, accumulator: ir.Value) -> tuple[Chain, str]:
        """Make an AscendDequant with its uint64 words."""
        name = self.names.fresh(f"{encoded.layer.name}.dequant")
        parameter = add_initializer(self.graph, self.names.fresh(f"{name}.param"), encoded.words)
        attributes = [ir.AttrInt64("dtype", 1 if encoded.float_type == "float16" else 0)]
        output = ir.Value(name=self.names.fresh(f"{name}.output0"))
        inputs = [accumulator, parameter]
        node = ir.Node("", "AscendDequant", inputs, attributes, outputs=[output], name=name)
        return Chain((node,), output), parameter.name or ""

    def padding(self, encoded: EncodedLayer, node: ir.Node) -> None:
        """Pad codes with the code of zero, which is the offset; our reading, since AMCT's writer is not known to."""
        self.accumulator(node.outputs[0])
        if node.attributes.get_string("mode", "constant") != "constant":
            return
        name = self.names.fresh(f"{encoded.layer.name}.quant.pad_value")
        node.resize_inputs(max(3, len(node.inputs)))
        old = node.inputs[2]
        filler = add_initializer(self.graph, name, np.array(encoded.quantized.offset_d, np.int8))
        node.replace_input_with(2, filler)
        if old is not None and old.name is not None and not old.uses() and not old.is_graph_output():
            self.graph.initializers.pop(old.name, None)

    def accumulator(self, value: ir.Value) -> None:
        """Forget that the layer's output was float."""
        value.type, value.shape = None, None


def build_deploy(
    prepared: PreparedModel,
    layers: Sequence[EncodedLayer],
    tensors: Sequence[EncodedTensor] = (),
    weights: Sequence[EncodedWeight] = (),
    outputs: Sequence[EncodedTensor] = (),
) -> tuple[ir.Model, tuple[AnyPlacement, ...]]:
    """Return the deploy model and where its additions stand; the opset of the source model is kept.

    Args:
        prepared: the float model.
        layers: those that are quantized with their data.
        tensors: quantized inputs of other nodes.
        weights: layers whose weight alone is quantized.
        outputs: Identity nodes before outputs of the model that become int8 codes.

    Raises:
        ExportError: a layer is not in the model.
    """
    model = export_clone(prepared)
    placements = rewrite(DeployForm(model), layers, tensors, weights, outputs)
    return into_memory(model), placements
