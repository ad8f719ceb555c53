"""Check a deploy model by the rules that ATC's ONNX parsers are known to follow (spec amct-config-and-export 5.2, 9.1, 11).

ATC itself is not needed. What a rule would make ATC misread silently (an INT offset becomes 0.0) is an error here; what it may
refuse is a warning.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from calibrant.errors import ExportError
from calibrant.export.balance import balance_fault
from calibrant.export.integer_layers import INTEGER_OPS
from calibrant.export.proto_graph import attributes_of, default_opset, values_read
from calibrant.export.quantized_layer import dequant_scales, dequant_shifts
from calibrant.export.static_shapes import ranks_of
from calibrant.export.weight_only import DEQUANTIZE_OPSETS, is_weight_only
from calibrant.export.weight_only_graph import codes_behind, read_weight_only
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.half_factors import FORCED, dequant_factors

_OPSETS = (8, 22)  # ATC looks operators up as ai.onnx::<opset>::<type> and knows these
_DOMAINS = frozenset({"", "ai.onnx"})
_TYPES: Mapping[str, Mapping[str, int]] = {
    "AscendQuant": {"scale": AttributeProto.FLOAT, "offset": AttributeProto.FLOAT, "dst_type": AttributeProto.STRING},
    "AscendDequant": {"dtype": AttributeProto.INT},
    "AscendAntiQuant": {"scale": AttributeProto.FLOAT, "offset": AttributeProto.FLOAT, "dtype": AttributeProto.INT},
}
_TYPE_NAMES: Mapping[int, str] = {
    AttributeProto.FLOAT: "FLOAT",
    AttributeProto.INT: "INT",
    AttributeProto.STRING: "STRING",
}
_RANGES = {"INT8": (-128, 127), "INT16": (-32768, 32767)}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be refused.

    Attributes:
        severity: ``error`` or ``warn``.
        where: node, layer or value.
        message: what is wrong and what was expected.
    """

    severity: Literal["error", "warn"]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}"


class _Graph:
    """A deploy model with its lookups."""

    def __init__(self, model: onnx.ModelProto, record: Mapping[str, RecordEntry]) -> None:
        self.model, self.record = model, record
        self.nodes = list(model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output}
        self.outputs = {value.name for value in model.graph.output}
        self.consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                self.consumers.setdefault(name, []).append((node, slot))

    def of_type(self, op_type: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if node.op_type == op_type]

    def is_quantized(self, node: onnx.NodeProto) -> bool:
        return self.quantizer_of(node) is not None

    def quantizer_of(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the AscendQuant before a layer, for an AveragePool maybe behind a Pad of codes."""
        source = self.producers.get(node.input[0]) if node.input else None
        if source is not None and source.op_type == "Pad" and node.op_type == "AveragePool":
            source = self.producers.get(source.input[0])
        return source if source is not None and source.op_type == "AscendQuant" else None

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a MatMul of two quantized variables."""
        makers = [self.producers.get(name) for name in node.input]
        return node.op_type == "MatMul" and all(one is not None and one.op_type == "AscendQuant" for one in makers)

    def pads_a_layer(self, node: onnx.NodeProto) -> bool:
        """Whether a node is the Pad of codes before an AveragePool."""
        readers = [reader.op_type for reader, _ in self.consumers.get(node.output[0], [])]
        return node.op_type == "Pad" and readers == ["AveragePool"]


Rule = Callable[[_Graph], Iterator[Finding]]


def lint_deploy(model: onnx.ModelProto, record: Sequence[RecordEntry] = ()) -> tuple[Finding, ...]:
    """Return everything in a deploy model that ATC would refuse or misread, errors first.

    Args:
        model: the deploy model.
        record: the record that belongs to it; with it, scales and words are compared.
    """
    graph = _Graph(model, {entry.key: entry for entry in record})
    found = [finding for rule in _RULES for finding in rule(graph)]
    return tuple(sorted(found, key=lambda finding: finding.severity))


def _opset(graph: _Graph) -> Iterator[Finding]:
    opset, (low, high) = default_opset(graph.model), _OPSETS
    if not low <= opset <= high:
        yield Finding("warn", "opset", f"{opset}; ATC knows {low} to {high}: export the float model with one of them")
    for entry in graph.model.opset_import:
        if entry.domain.startswith("amct"):
            yield Finding(
                "error",
                "opset",
                f"domain '{entry.domain}' is imported; ATC takes Ascend's operators from the default domain",
            )


def _domains(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.domain not in _DOMAINS:
            severity: Literal["error", "warn"] = "error" if node.op_type.startswith("Ascend") else "warn"
            yield Finding(severity, _name(node), f"domain '{node.domain}'; ATC has parsers for the default domain")


def _order(graph: _Graph) -> Iterator[Finding]:
    seen = {value.name for value in graph.model.graph.input} | set(graph.initializers)
    seen |= {tensor.values.name for tensor in graph.model.graph.sparse_initializer}
    for node in graph.nodes:
        for name in sorted(values_read(node) - seen):
            yield Finding("error", _name(node), f"reads '{name}' before it is made; nodes must be in topological order")
        seen |= set(node.output)


def _names(graph: _Graph) -> Iterator[Finding]:
    for name, count in Counter(node.name for node in graph.nodes).items():
        if not name:
            yield Finding("error", "nodes", f"{count} without a name")
        elif count > 1:
            yield Finding("error", name, f"{count} nodes have this name")
    for name, count in Counter(name for node in graph.nodes for name in node.output if name).items():
        if count > 1:
            yield Finding("error", name, f"{count} nodes make this value")


def _attributes(graph: _Graph) -> Iterator[Finding]:
    for op_type, wanted in _TYPES.items():
        for node in graph.of_type(op_type):
            given = {attribute.name: attribute.type for attribute in node.attribute}
            for name, kind in wanted.items():
                if name not in given:
                    yield Finding("error", _name(node), f"attribute {name} is missing")
                elif given[name] != kind:
                    got = _TYPE_NAMES.get(given[name], str(given[name]))
                    yield Finding(
                        "error", _name(node), f"attribute {name} is {got}; ATC reads only {_TYPE_NAMES[kind]}"
                    )
            if unknown := sorted(given.keys() - wanted.keys()):
                yield Finding("warn", _name(node), f"attribute {unknown[0]} is not known to ATC's parser")


def _quantizers(graph: _Graph) -> Iterator[Finding]:
    seen: dict[tuple[str, float, float, str], str] = {}
    for node in graph.of_type("AscendQuant"):
        attributes = attributes_of(node)
        scale, offset = float(attributes.get("scale", 0)), float(attributes.get("offset", 0))
        kind = str(attributes.get("dst_type", "INT8")).rstrip()
        if not (np.isfinite(scale) and scale > 0):
            yield Finding("error", _name(node), f"scale {scale} is not positive and finite")
        if kind not in _RANGES:
            yield Finding("error", _name(node), f"dst_type '{kind}'; expected INT8 or INT16")
        elif not (offset.is_integer() and _RANGES[kind][0] <= offset <= _RANGES[kind][1]):
            yield Finding("error", _name(node), f"offset {offset} is no {kind} integer")
        first = seen.setdefault((node.input[0], scale, offset, kind), node.name)
        if first != node.name:
            yield Finding("warn", _name(node), f"quantizes '{node.input[0]}' just as '{first}' does; one is enough")


def _code_readers(graph: _Graph) -> Iterator[Finding]:
    """Codes may go to the data input of integer layers and to AscendAntiQuant only."""
    for node in graph.of_type("AscendQuant"):
        codes = node.output[0]
        if codes in graph.outputs:
            yield Finding("error", _name(node), "its codes are a graph output")
        for reader, slot in graph.consumers.get(codes, []):
            taken = reader.op_type in {*INTEGER_OPS, "AscendAntiQuant"} or graph.pads_a_layer(reader)
            if not taken or slot not in ({0, 1} if graph.is_product(reader) else {0}):
                yield Finding("error", _name(node), f"its codes go to input {slot} of {reader.op_type} '{reader.name}'")
        if codes not in graph.consumers:
            yield Finding("warn", _name(node), "nothing reads its codes")


def _layers(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type not in INTEGER_OPS:
            continue
        if graph.is_quantized(node):
            yield from _integer_layer(graph, node)
        elif any(_dtype(graph, name) == TensorProto.INT8 for name in node.input):
            yield Finding("error", _name(node), "int8 weights, but no AscendQuant before it")


def _integer_layer(graph: _Graph, node: onnx.NodeProto) -> Iterator[Finding]:
    if (
        node.op_type != "AveragePool"
        and not graph.is_product(node)
        and _dtype(graph, node.input[1]) != TensorProto.INT8
    ):
        yield Finding("error", _name(node), f"weight '{node.input[1]}' is not an int8 initializer")
    for name in node.input[2:]:
        if name and _dtype(graph, name) != TensorProto.INT32:
            yield Finding("error", _name(node), f"bias '{name}' is not an int32 initializer")
    yield from _accumulator(graph, node, node)
    attributes = attributes_of(node)
    if node.op_type == "Gemm" and (attributes.get("transA", 0) or attributes.get("transB", 0)):
        yield Finding("error", _name(node), "Gemm must have transA = transB = 0")
    if node.op_type == "Gemm" and not attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0:
        yield Finding("error", _name(node), "Gemm must have alpha = beta = 1")
    if len(attributes.get("kernel_shape", ())) == 3 and attributes.get("dilations", [1])[0] != 1:
        yield Finding("warn", _name(node), "ATC wants dilation 1 along the depth of a 3-D kernel")


def _accumulator(graph: _Graph, layer: onnx.NodeProto, node: onnx.NodeProto) -> Iterator[Finding]:
    """The int32 output must go to exactly one AscendDequant, for a MatMul maybe through the Add of an int32 bias."""
    value = node.output[0]
    readers = [reader for reader, _ in graph.consumers.get(value, [])]
    if value in graph.outputs or len(readers) != 1:
        yield Finding("error", _name(layer), f"its int32 output '{value}' must go to one AscendDequant alone")
    elif readers[0].op_type == "Add" and layer.op_type == "MatMul" and node is layer:
        biases = [name for name in readers[0].input if name != value]
        if len(biases) != 1 or _dtype(graph, biases[0]) != TensorProto.INT32:
            yield Finding("error", _name(readers[0]), "the bias of a quantized MatMul must be an int32 initializer")
        yield from _accumulator(graph, layer, readers[0])
    elif readers[0].op_type != "AscendDequant":
        yield Finding("error", _name(layer), f"its int32 output goes to {readers[0].op_type} '{readers[0].name}'")


def _words(graph: _Graph) -> Iterator[Finding]:
    for node in graph.of_type("AscendDequant"):
        layer = _layer_before(graph, node)
        if len(node.input) != 2 or _dtype(graph, node.input[1]) != TensorProto.UINT64:
            yield Finding("error", _name(node), "needs a second input, a uint64 initializer")
            continue
        if layer is None:
            yield Finding("error", _name(node), "does not follow a quantized layer")
            continue
        words = numpy_helper.to_array(graph.initializers[node.input[1]])
        yield from _word_shape(graph, node, layer, words)
        yield from _word_values(graph, node, layer, words)


def _word_shape(graph: _Graph, node: onnx.NodeProto, layer: onnx.NodeProto, words: np.ndarray) -> Iterator[Finding]:
    channels = _channels_out(graph, layer)
    if words.ndim != 1 or words.size not in {1, channels}:
        expected = "1" if channels is None else f"1 or {channels}"
        yield Finding("error", _name(node), f"parameter of shape {words.shape}; length {expected} was expected")
    shift = dequant_shifts(words)
    if np.any(words >> np.uint64(40)):
        yield Finding("error", _name(node), "bits above 39 of a word are not 0 (they would be read as an offset)")
    if shift.any() and (shift.min() < 1 or shift.max() > 16):
        yield Finding("error", _name(node), "shifts (bits 39 to 32) must be 0 in all words, or from 1 to 16 in all")
    if attributes_of(node).get("dtype", 0) not in {0, 1}:
        yield Finding("error", _name(node), "dtype must be 0 (float32) or 1 (float16)")


def _float_types(graph: _Graph) -> Iterator[Finding]:
    """The float type that an AscendDequant makes must be that of the record."""
    for node in graph.of_type("AscendDequant"):
        layer = _layer_before(graph, node)
        entry = None if layer is None else graph.record.get(layer.name)
        kind = {0: "FLOAT32", 1: "FLOAT16"}.get(attributes_of(node).get("dtype", 0))
        if entry is not None and entry.op_data_type not in (None, kind):
            yield Finding(
                "error", _name(node), f"dtype makes {kind}, but op_data_type of the record is {entry.op_data_type}"
            )


def _word_values(graph: _Graph, node: onnx.NodeProto, layer: onnx.NodeProto, words: np.ndarray) -> Iterator[Finding]:
    scales = dequant_scales(words)
    if not np.all(np.isfinite(scales) & (scales > 0)):
        yield Finding("error", _name(node), "a word holds no positive finite float32")
    entry = graph.record.get(layer.name)
    if entry is None or entry.scale_d is None:
        return
    wanted = dequant_factors(entry.scale_d, entry.scale_w, half=entry.fakequant_precision_mode == FORCED)
    if scales.shape != wanted.shape or not np.array_equal(scales, wanted):
        yield Finding("error", _name(node), "words differ from scale_d * scale_w of the record")
    told = list(entry.shift_bit) if any(entry.shift_bit) else [0]
    if not np.array_equal(dequant_shifts(words), np.broadcast_to(told, scales.shape if len(told) == 1 else len(told))):
        yield Finding("error", _name(node), "shifts (bits 39 to 32 of the words) are not shift_bit of the record")


def _record(graph: _Graph) -> Iterator[Finding]:
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


def _entry(graph: _Graph, layer: onnx.NodeProto, entry: RecordEntry) -> Iterator[Finding]:
    quantizer = graph.quantizer_of(layer)
    if quantizer is None:
        return
    attributes = attributes_of(quantizer)
    if entry.scale_d is None or entry.offset_d is None:
        yield Finding("error", entry.key, "the record has no scale_d or offset_d")
        return
    if np.float32(attributes.get("scale", 0)) != np.float32(1) / np.float32(entry.scale_d):
        yield Finding("error", _name(quantizer), f"scale is not float32(1 / scale_d) of the record of '{entry.key}'")
    if float(attributes.get("offset", 0)) != entry.offset_d:
        yield Finding("error", _name(quantizer), f"offset is not {entry.offset_d}, that of the record of '{entry.key}'")
    if str(attributes.get("dst_type", "INT8")).rstrip() != (entry.act_type or "INT8"):
        yield Finding(
            "error", _name(quantizer), f"dst_type is not {entry.act_type}, that of the record of '{entry.key}'"
        )
    if fault := balance_fault(
        entry, quantizer.input[0], _kernel_rank(graph, layer), graph.producers, graph.initializers
    ):
        yield Finding("error", entry.key, fault)
    if any(entry.offset_w):
        yield Finding("error", entry.key, "offset_w must be 0: weights are symmetric")


def _weights_alone(graph: _Graph) -> Iterator[Finding]:
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
            yield Finding("error", _name(node), "its weight is quantized alone, but the record does not say so")
        opset, (low, high) = default_opset(graph.model), DEQUANTIZE_OPSETS
        if made.op_type == "DequantizeLinear" and not low <= opset <= high:
            yield Finding(
                "warn", _name(made), f"DequantizeLinear of opset {opset}; ATC has a parser for {low} to {high}"
            )


def _pairs(graph: _Graph) -> Iterator[Finding]:
    """Each AscendAntiQuant undoes the AscendQuant before it, for one input, as the record says."""
    served: set[str] = set()
    for node in graph.of_type("AscendAntiQuant"):
        quantizer, readers = graph.producers.get(node.input[0]), graph.consumers.get(node.output[0], [])
        if quantizer is None or quantizer.op_type != "AscendQuant":
            yield Finding("error", _name(node), "does not follow an AscendQuant")
            continue
        if len(readers) != 1 or node.output[0] in graph.outputs:
            yield Finding("error", _name(node), "its value must go to one input of one node")
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
        yield Finding("error", _name(node), f"scale {scale} is not positive and finite")
    elif np.float32(1) / scale != np.float32(quant.get("scale", 0)):
        yield Finding("error", _name(node), "the scale of the AscendQuant before it is not float32(1 / scale)")
    if float(anti.get("offset", 0)) != float(quant.get("offset", 0)):
        yield Finding("error", _name(node), "its offset is not that of the AscendQuant before it")


def _pair_entry(graph: _Graph, node: onnx.NodeProto, key: str) -> Iterator[Finding]:
    if not graph.record:
        return
    entry, attributes = graph.record.get(key), attributes_of(node)
    if entry is None or not entry.is_tensor_quantize:
        yield Finding("error", _name(node), f"the record has no entry '{key}' with is_tensor_quantize")
    elif np.float32(attributes.get("scale", 0)) != entry.scale_d or attributes.get("offset") != entry.offset_d:
        yield Finding("error", _name(node), f"scale and offset are not those of the record of '{key}'")


def _ranks(graph: _Graph) -> Iterator[Finding]:
    try:
        ranks = ranks_of(graph.model)
    except onnx.shape_inference.InferenceError as error:
        yield Finding("warn", "ranks", f"cannot be inferred ({error}); ATC needs static ranks")
        return
    for node in graph.of_type("AscendQuant"):
        if node.input[0] not in ranks:
            yield Finding(
                "warn", _name(node), f"the rank of '{node.input[0]}' cannot be inferred; ATC needs static ranks"
            )


def _layer_before(graph: _Graph, dequantizer: onnx.NodeProto) -> onnx.NodeProto | None:
    node = graph.producers.get(dequantizer.input[0])
    if node is not None and node.op_type == "Add":
        makers = [graph.producers[name] for name in node.input if name in graph.producers]
        node = makers[0] if len(makers) == 1 else None
    return node if node is not None and node.op_type in INTEGER_OPS and graph.is_quantized(node) else None


def _channels_out(graph: _Graph, layer: onnx.NodeProto) -> int | None:
    if layer.op_type == "AveragePool" or layer.input[1] not in graph.initializers:
        return None
    dims = graph.initializers[layer.input[1]].dims
    if layer.op_type == "ConvTranspose":
        return int(dims[1]) * int(attributes_of(layer).get("group", 1))
    return int(dims[0 if layer.op_type == "Conv" else -1])


def _kernel_rank(graph: _Graph, layer: onnx.NodeProto) -> int:
    weight = graph.initializers.get(layer.input[1]) if layer.op_type.startswith("Conv") else None
    return 0 if weight is None else len(weight.dims) - 2


def _dtype(graph: _Graph, name: str) -> int | None:
    tensor = graph.initializers.get(name)
    return None if tensor is None else int(tensor.data_type)


def _name(node: onnx.NodeProto) -> str:
    return node.name or f"nameless {node.op_type}"


_RULES: tuple[Rule, ...] = (
    _opset, _domains, _order, _names, _attributes, _quantizers, _code_readers, _layers, _words, _float_types, _record, _pairs,
    _weights_alone, _ranks,
)  # fmt: skip
