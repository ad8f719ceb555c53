"""Check a deploy model by the rules that ATC's ONNX parsers are known to follow (docs/export.md).

ATC itself is not needed. What a rule would make ATC misread silently (an INT offset becomes 0.0) is an error here; what it may
refuse is a warning.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from calibrant.export import lint_record
from calibrant.export.integer_layers import INTEGER_OPS
from calibrant.export.lint_graph import DeployLookups, Finding, channels_out, dtype_of, layer_before, name_of
from calibrant.export.proto_graph import attributes_of, default_opset, values_read
from calibrant.export.quantized_layer import dequant_shifts
from calibrant.export.static_shapes import ranks_of
from calibrant.proto.record import RecordEntry

__all__ = ["Finding", "lint_deploy"]

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
_RANGES = {"INT4": (-8, 7), "INT8": (-128, 127), "INT16": (-32768, 32767)}
_CODES = {"INT8": TensorProto.INT8, "INT16": TensorProto.INT16}


Rule = Callable[[DeployLookups], Iterator[Finding]]


def lint_deploy(model: onnx.ModelProto, record: Sequence[RecordEntry] = ()) -> tuple[Finding, ...]:
    """Return everything in a deploy model that ATC would refuse or misread, errors first.

    Args:
        model: the deploy model.
        record: the record that belongs to it; with it, scales and words are compared.
    """
    graph = DeployLookups(model, {entry.key: entry for entry in record})
    found = [finding for rule in _RULES for finding in rule(graph)]
    return tuple(sorted(found, key=lambda finding: finding.severity))


def _opset(graph: DeployLookups) -> Iterator[Finding]:
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


def _domains(graph: DeployLookups) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.domain not in _DOMAINS:
            severity: Literal["error", "warn"] = "error" if node.op_type.startswith("Ascend") else "warn"
            yield Finding(severity, name_of(node), f"domain '{node.domain}'; ATC has parsers for the default domain")


def _order(graph: DeployLookups) -> Iterator[Finding]:
    seen = {value.name for value in graph.model.graph.input} | set(graph.initializers)
    seen |= {tensor.values.name for tensor in graph.model.graph.sparse_initializer}
    for node in graph.nodes:
        for name in sorted(values_read(node) - seen):
            yield Finding(
                "error", name_of(node), f"reads '{name}' before it is made; nodes must be in topological order"
            )
        seen |= set(node.output)


def _names(graph: DeployLookups) -> Iterator[Finding]:
    for name, count in Counter(node.name for node in graph.nodes).items():
        if not name:
            yield Finding("error", "nodes", f"{count} without a name")
        elif count > 1:
            yield Finding("error", name, f"{count} nodes have this name")
    for name, count in Counter(name for node in graph.nodes for name in node.output if name).items():
        if count > 1:
            yield Finding("error", name, f"{count} nodes make this value")


def _attributes(graph: DeployLookups) -> Iterator[Finding]:
    for op_type, wanted in _TYPES.items():
        for node in graph.of_type(op_type):
            given = {attribute.name: attribute.type for attribute in node.attribute}
            for name, kind in wanted.items():
                if name not in given:
                    yield Finding("error", name_of(node), f"attribute {name} is missing")
                elif given[name] != kind:
                    got = _TYPE_NAMES.get(given[name], str(given[name]))
                    yield Finding(
                        "error", name_of(node), f"attribute {name} is {got}; ATC reads only {_TYPE_NAMES[kind]}"
                    )
            if unknown := sorted(given.keys() - wanted.keys()):
                yield Finding("warn", name_of(node), f"attribute {unknown[0]} is not known to ATC's parser")


def _quantizers(graph: DeployLookups) -> Iterator[Finding]:
    seen: dict[tuple[str, float, float, str], str] = {}
    for node in graph.of_type("AscendQuant"):
        attributes = attributes_of(node)
        scale, offset = float(attributes.get("scale", 0)), float(attributes.get("offset", 0))
        kind = _dst_type(node)
        if not (np.isfinite(scale) and scale > 0):
            yield Finding("error", name_of(node), f"scale {scale} is not positive and finite")
        if kind not in _RANGES:
            yield Finding("error", name_of(node), f"dst_type '{kind}'; expected INT4, INT8 or INT16")
        elif not (offset.is_integer() and _RANGES[kind][0] <= offset <= _RANGES[kind][1]):
            yield Finding("error", name_of(node), f"offset {offset} is no {kind} integer")
        first = seen.setdefault((node.input[0], scale, offset, kind), node.name)
        if first != node.name:
            yield Finding("warn", name_of(node), f"quantizes '{node.input[0]}' just as '{first}' does; one is enough")


def _narrow_codes(graph: DeployLookups) -> Iterator[Finding]:
    narrow = [name_of(node) for node in graph.of_type("AscendQuant") if _dst_type(node) == "INT4"]
    if narrow:
        text = (
            f"dst_type INT4 of {len(narrow)} AscendQuant: chips before the 950 need static shapes and an even last axis for it, "
            "and the documents of AMCT know INT8 alone; try it on the device"
        )
        yield Finding("warn", narrow[0], text)


def _dst_type(quantizer: onnx.NodeProto) -> str:
    return str(attributes_of(quantizer).get("dst_type", "INT8")).rstrip()


def _code_readers(graph: DeployLookups) -> Iterator[Finding]:
    """Codes may go to the data input of integer layers, to AscendAntiQuant and out of the model only."""
    for node in graph.of_type("AscendQuant"):
        codes = node.output[0]
        if codes in graph.outputs and graph.output_type(codes) != _CODES.get(_dst_type(node)):
            yield Finding("error", name_of(node), "its codes are a graph output that is not declared as their type")
        for reader, slot in graph.consumers.get(codes, []):
            taken = reader.op_type in {*INTEGER_OPS, "AscendAntiQuant"} or graph.pads_a_layer(reader)
            if not taken or slot not in ({0, 1} if graph.is_product(reader) else {0}):
                yield Finding(
                    "error", name_of(node), f"its codes go to input {slot} of {reader.op_type} '{reader.name}'"
                )
        if codes not in graph.consumers and codes not in graph.outputs:
            yield Finding("warn", name_of(node), "nothing reads its codes")


def _layers(graph: DeployLookups) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type not in INTEGER_OPS:
            continue
        if graph.is_quantized(node):
            yield from _integer_layer(graph, node)
        elif any(dtype_of(graph, name) == TensorProto.INT8 for name in node.input):
            yield Finding("error", name_of(node), "int8 weights, but no AscendQuant before it")


def _integer_layer(graph: DeployLookups, node: onnx.NodeProto) -> Iterator[Finding]:
    if (
        node.op_type != "AveragePool"
        and not graph.is_product(node)
        and dtype_of(graph, node.input[1]) != TensorProto.INT8
    ):
        yield Finding("error", name_of(node), f"weight '{node.input[1]}' is not an int8 initializer")
    for name in node.input[2:]:
        if name and dtype_of(graph, name) != TensorProto.INT32:
            yield Finding("error", name_of(node), f"bias '{name}' is not an int32 initializer")
    yield from _accumulator(graph, node, node)
    attributes = attributes_of(node)
    if node.op_type == "Gemm" and (attributes.get("transA", 0) or attributes.get("transB", 0)):
        yield Finding("error", name_of(node), "Gemm must have transA = transB = 0")
    if node.op_type == "Gemm" and not attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0:
        yield Finding("error", name_of(node), "Gemm must have alpha = beta = 1")
    if len(attributes.get("kernel_shape", ())) == 3 and attributes.get("dilations", [1])[0] != 1:
        yield Finding("warn", name_of(node), "ATC wants dilation 1 along the depth of a 3-D kernel")


def _accumulator(graph: DeployLookups, layer: onnx.NodeProto, node: onnx.NodeProto) -> Iterator[Finding]:
    """The int32 output must go to exactly one AscendDequant, for a MatMul maybe through the Add of an int32 bias."""
    value = node.output[0]
    readers = [reader for reader, _ in graph.consumers.get(value, [])]
    if value in graph.outputs or len(readers) != 1:
        yield Finding("error", name_of(layer), f"its int32 output '{value}' must go to one AscendDequant alone")
    elif readers[0].op_type == "Add" and layer.op_type == "MatMul" and node is layer:
        biases = [name for name in readers[0].input if name != value]
        if len(biases) != 1 or dtype_of(graph, biases[0]) != TensorProto.INT32:
            yield Finding("error", name_of(readers[0]), "the bias of a quantized MatMul must be an int32 initializer")
        yield from _accumulator(graph, layer, readers[0])
    elif readers[0].op_type != "AscendDequant":
        yield Finding("error", name_of(layer), f"its int32 output goes to {readers[0].op_type} '{readers[0].name}'")


def _words(graph: DeployLookups) -> Iterator[Finding]:
    for node in graph.of_type("AscendDequant"):
        layer = layer_before(graph, node)
        if len(node.input) != 2 or dtype_of(graph, node.input[1]) != TensorProto.UINT64:
            yield Finding("error", name_of(node), "needs a second input, a uint64 initializer")
            continue
        if layer is None:
            yield Finding("error", name_of(node), "does not follow a quantized layer")
            continue
        words = numpy_helper.to_array(graph.initializers[node.input[1]])
        yield from _word_shape(graph, node, layer, words)
        yield from lint_record.word_values(graph, node, layer, words)


def _word_shape(
    graph: DeployLookups, node: onnx.NodeProto, layer: onnx.NodeProto, words: np.ndarray
) -> Iterator[Finding]:
    channels = channels_out(graph, layer)
    if words.ndim != 1 or words.size not in {1, channels}:
        expected = "1" if channels is None else f"1 or {channels}"
        yield Finding("error", name_of(node), f"parameter of shape {words.shape}; length {expected} was expected")
    shift = dequant_shifts(words)
    if np.any(words >> np.uint64(40)):
        yield Finding("error", name_of(node), "bits above 39 of a word are not 0 (they would be read as an offset)")
    if shift.any() and (shift.min() < 1 or shift.max() > 16):
        yield Finding("error", name_of(node), "shifts (bits 39 to 32) must be 0 in all words, or from 1 to 16 in all")
    if attributes_of(node).get("dtype", 0) not in {0, 1}:
        yield Finding("error", name_of(node), "dtype must be 0 (float32) or 1 (float16)")


def _ranks(graph: DeployLookups) -> Iterator[Finding]:
    try:
        ranks = ranks_of(graph.model)
    except onnx.shape_inference.InferenceError as error:
        yield Finding("warn", "ranks", f"cannot be inferred ({error}); ATC needs static ranks")
        return
    for node in graph.of_type("AscendQuant"):
        if node.input[0] not in ranks:
            yield Finding(
                "warn", name_of(node), f"the rank of '{node.input[0]}' cannot be inferred; ATC needs static ranks"
            )


_RULES: tuple[Rule, ...] = (
    _opset, _domains, _order, _names, _attributes, _quantizers, _narrow_codes, _code_readers, _layers, _words, lint_record.float_types,
    lint_record.entries, lint_record.pairs, lint_record.weights_alone, _ranks,
)  # fmt: skip
