"""Quantized models in another form than QuantizeLinear and DequantizeLinear, and what to export instead."""

from typing import Final

import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.qdq.grids import DEQUANTIZE, QUANTIZE, is_pair_node

_DYNAMIC: Final = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulIntegerToFloat")
_INTEGER: Final = frozenset(
    {"ConvInteger", "MatMulInteger", "QGemm", "QAttention", "QEmbedLayerNormalization", "QOrderedMatMul", "NhwcMaxPool",
     "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QMoE", *_DYNAMIC}
)  # fmt: skip


def refuse_operators(model: ir.Model) -> None:
    """Refuse a model that holds quantized operators, a model for Ascend, a float model, and pairs inside subgraphs.

    Raises:
        ModelError: it says which form is converted.
    """
    nodes = [node for graph in model.graphs() for node in graph]
    _refuse_operators([node for node in nodes if _is_operator(node)])
    pairs = [node for node in nodes if is_pair_node(node, QUANTIZE) or is_pair_node(node, DEQUANTIZE)]
    if not pairs:
        message = (
            "the model has no QuantizeLinear or DequantizeLinear, so there is nothing to convert; "
            "quantize a float model with calibrant run"
        )
        raise ModelError(message)
    if inner := [node for node in pairs if node.graph is not model.graph]:
        message = (
            f"{inner[0].op_type} '{inner[0].name}' lies inside a subgraph; only pairs of the main graph are converted: "
            "make the condition constant (--fix-input), or export the model without If and Loop"
        )
        raise ModelError(message)


def _is_operator(node: ir.Node) -> bool:
    own = node.op_type.startswith(("QLinear", "Ascend")) or node.op_type in _INTEGER
    return own or node.domain.startswith("amct")


def _refuse_operators(found: list[ir.Node]) -> None:
    if not found:
        return
    kinds = ", ".join(sorted({node.op_type for node in found}))
    count = f"{len(found)} node{'s' if len(found) > 1 else ''} of type {kinds} (first '{found[0].name}')"
    if any(node.op_type.startswith("Ascend") or node.domain.startswith("amct") for node in found):
        message = (
            f"the model is one for Ascend already: {count}; give the model with QuantizeLinear and DequantizeLinear"
        )
    elif any(node.op_type in _DYNAMIC for node in found):
        message = (
            f"the model is quantized dynamically: {count}; Ascend needs scales that are fixed: quantize statically, in the QDQ form "
            "(onnxruntime: quantize_static with quant_format=QuantFormat.QDQ)"
        )
    else:
        message = (
            f"the model holds quantized operators: {count}; pairs of QuantizeLinear and DequantizeLinear are converted: export the "
            "QDQ form (onnxruntime: quant_format=QuantFormat.QDQ)"
        )
    raise ModelError(message)
