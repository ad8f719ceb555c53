"""The rules of lint that compare a deploy model with the record that belongs to it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from calibrant.errors import ExportError
from calibrant.export.balance import balance_fault
from calibrant.export.integer_layers import INTEGER_OPS
from calibrant.export.lint_graph import DeployLookups, Finding, kernel_rank, layer_before, name_of
from calibrant.export.proto_graph import attributes_of, default_opset
from calibrant.export.quantized_layer import dequant_scales, dequant_shifts
from calibrant.export.weight_only import DEQUANTIZE_OPSETS, is_weight_only
from calibrant.export.weight_only_graph import codes_behind, read_weight_only
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.half_factors import FORCED, dequant_factors


def float_types(graph: DeployLookups) -> Iterator[Finding]:
    """The float type that an AscendDequant makes must be that of the record."""
    for node in graph.of_type("AscendDequant"):
        layer = layer_before(graph, node)
        entry = None if layer is None else graph.record.get(layer.name)
        kind = {0: "FLOAT32", 1: "FLOAT16"}.get(attributes_of(node).get("dtype", 0))
        if entry is not None and entry.op_data_type not in (None, kind):
            yield Finding(
                "error", name_of(node), f"dtype makes {kind}, but op_data_type of the record is {entry.op_data_type}"
            )


def entries(graph: DeployLookups) -> Iterator[Finding]:
    """Each quantized layer has an entry with its scale and offset, and each entry a layer."""
    if not graph.record:
        return
    quantized = {node.name: node for node in graph.nodes if node.op_type in INTEGER_OPS and graph.is_quantized(node)}
    for name in sorted(quantized.keys() - graph.record.keys()):
        yield Finding("error", name, "is quantized, but the record has no entry for it")
    for key, entry in graph.record.items():
        if entry.is_tensor_quantize or is_weight_only(entry):
            continue  # the rules of the pairs and of weights alone look at it
        if key not in quantized:
            yield Finding("error", key, "has a record entry, but no quantized layer of the model has this name")
        else:
            yield from _entry(graph, quantized[key], entry)


def _entry(graph: DeployLookups, layer: onnx.NodeProto, entry: RecordEntry) -> Iterator[Finding]:
    quantizer = graph.quantizer_of(layer)
    if quantizer is None:
        return
    attributes = attributes_of(quantizer)
    if entry.scale_d is None or entry.offset_d is None:
        yield Finding("error", entry.key, "the record has no scale_d or offset_d")
        return
    if np.float32(attributes.get("scale", 0)) != np.float32(1) / np.float32(entry.scale_d):
        yield Finding("error", name_of(quantizer), f"scale is not float32(1 / scale_d) of the record of '{entry.key}'")
    if float(attributes.get("offset", 0)) != entry.offset_d:
        yield Finding(
            "error", name_of(quantizer), f"offset is not {entry.offset_d}, that of the record of '{entry.key}'"
        )
    if str(attributes.get("dst_type", "INT8")).rstrip() != (entry.act_type or "INT8"):
        yield Finding(
            "error", name_of(quantizer), f"dst_type is not {entry.act_type}, that of the record of '{entry.key}'"
        )
    if fault := balance_fault(
        entry, quantizer.input[0], kernel_rank(graph, layer), graph.producers, graph.initializers
    ):
        yield Finding("error", entry.key, fault)
    if any(entry.offset_w):
        yield Finding("error", entry.key, "offset_w must be 0: weights are symmetric")


def weights_alone(graph: DeployLookups) -> Iterator[Finding]:
    """Each weight that is quantized without its data is made float again as the record says, by nodes that ATC has parsers for."""
    for entry in filter(is_weight_only, graph.record.values()):
        try:
            node = read_weight_only(graph.model, entry.key)
        except ExportError as error:
            yield Finding("error", entry.key, str(error))
            continue
        yield from (Finding("error", entry.key, fault) for fault in node.faults(entry))
    for node in (node for node in graph.nodes if node.op_type in INTEGER_OPS and not graph.is_quantized(node)):
        said = graph.record.get(node.name)
        made = graph.producers.get(node.input[1]) if len(node.input) > 1 else None
        if codes_behind(node, graph.producers, graph.initializers) is None or made is None:
            continue
        if graph.record and (said is None or not is_weight_only(said)):
            yield Finding("error", name_of(node), "its weight is quantized alone, but the record does not say so")
        opset, (low, high) = default_opset(graph.model), DEQUANTIZE_OPSETS
        if made.op_type == "DequantizeLinear" and not low <= opset <= high:
            yield Finding(
                "warn", name_of(made), f"DequantizeLinear of opset {opset}; ATC has a parser for {low} to {high}"
            )


def pairs(graph: DeployLookups) -> Iterator[Finding]:
    """Each AscendAntiQuant undoes the AscendQuant before it, for one input, as the record says."""
    served: set[str] = set()
    for node in graph.of_type("AscendAntiQuant"):
        quantizer, readers = graph.producers.get(node.input[0]), graph.consumers.get(node.output[0], [])
        if quantizer is None or quantizer.op_type != "AscendQuant":
            yield Finding("error", name_of(node), "does not follow an AscendQuant")
            continue
        if len(readers) != 1 or node.output[0] in graph.outputs:
            yield Finding("error", name_of(node), "its value must go to one input of one node")
        yield from _pair_values(node, attributes_of(quantizer), attributes_of(node))
        keys = {f"{reader.name}:{slot}" for reader, slot in readers}
        served |= keys
        for key in sorted(keys):
            yield from _pair_entry(graph, node, key)
    for key, entry in graph.record.items():
        if entry.is_tensor_quantize and key not in served:
            yield Finding("error", key, "has a record entry, but no AscendAntiQuant serves this input")


def _pair_values(node: onnx.NodeProto, quant: Mapping[str, Any], anti: Mapping[str, Any]) -> Iterator[Finding]:
    scale = np.float32(anti.get("scale", 0))
    if not (np.isfinite(scale) and scale > 0):
        yield Finding("error", name_of(node), f"scale {scale} is not positive and finite")
    elif np.float32(1) / scale != np.float32(quant.get("scale", 0)):
        yield Finding("error", name_of(node), "the scale of the AscendQuant before it is not float32(1 / scale)")
    if float(anti.get("offset", 0)) != float(quant.get("offset", 0)):
        yield Finding("error", name_of(node), "its offset is not that of the AscendQuant before it")


def _pair_entry(graph: DeployLookups, node: onnx.NodeProto, key: str) -> Iterator[Finding]:
    if not graph.record:
        return
    entry, attributes = graph.record.get(key), attributes_of(node)
    if entry is None or not entry.is_tensor_quantize:
        yield Finding("error", name_of(node), f"the record has no entry '{key}' with is_tensor_quantize")
    elif np.float32(attributes.get("scale", 0)) != entry.scale_d or attributes.get("offset") != entry.offset_d:
        yield Finding("error", name_of(node), f"scale and offset are not those of the record of '{key}'")


def word_values(
    graph: DeployLookups, node: onnx.NodeProto, layer: onnx.NodeProto, words: np.ndarray
) -> Iterator[Finding]:
    """The words of an AscendDequant are those that the record gives."""
    scales = dequant_scales(words)
    if not np.all(np.isfinite(scales) & (scales > 0)):
        yield Finding("error", name_of(node), "a word holds no positive finite float32")
    entry = graph.record.get(layer.name)
    if entry is None or entry.scale_d is None:
        return
    wanted = dequant_factors(entry.scale_d, entry.scale_w, half=entry.fakequant_precision_mode == FORCED)
    if scales.shape != wanted.shape or not np.array_equal(scales, wanted):
        yield Finding("error", name_of(node), "words differ from scale_d * scale_w of the record")
    told = list(entry.shift_bit) if any(entry.shift_bit) else [0]
    if not np.array_equal(dequant_shifts(words), np.broadcast_to(told, scales.shape if len(told) == 1 else len(told))):
        yield Finding("error", name_of(node), "shifts (bits 39 to 32 of the words) are not shift_bit of the record")
