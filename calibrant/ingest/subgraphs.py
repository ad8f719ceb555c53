"""Layers inside the branches of If, Loop and Scan: counted, reported, never touched."""

from collections.abc import Iterator

import onnx_ir as ir

from calibrant.ingest.nodes import LAYER_TYPES
from calibrant.ingest.passes.constants import initializer_tensor


def layers_in_subgraphs(graph: ir.Graph) -> list[tuple[str, str]]:
    """Return (node name, text) for every node of the main graph whose subgraphs hold layers."""
    return [
        (str(node.name), f"{_count(count)} inside {node.op_type} '{node.name}'")
        for node in graph
        if (count := sum(1 for _ in _inner_layers(node)))
    ]


def _count(count: int) -> str:
    return "1 layer lies" if count == 1 else f"{count} layers lie"


def _inner_layers(node: ir.Node) -> Iterator[ir.Node]:
    for subgraph in _subgraphs(node):
        for inner in subgraph.all_nodes():
            if inner.op_type in LAYER_TYPES and not inner.domain:
                yield inner


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def hidden_layers_message(graph: ir.Graph) -> str:
    """Say where the layers of a model without layers of its own are, and which input to fix to reach them."""
    parts = []
    for node in graph:
        count = sum(1 for _ in _inner_layers(node))
        if count:
            parts.append(f"{_count(count)} inside {node.op_type} '{node.name}'{_advice(node)}")
    return "; ".join(parts)


def _advice(node: ir.Node) -> str:
    condition = node.inputs[0] if node.op_type == "If" and node.inputs else None
    if condition is None:
        return ", which is not unrolled"
    before = _ancestors(condition)
    inputs = [value for value in before if value.is_graph_input()]
    if not inputs:
        return ""
    names = ", ".join(f"'{value.name}'" for value in inputs)
    depends = f" (condition depends on input {names})"
    settings = [value for value in inputs if _is_single_number(value)]
    return (
        f"{depends}; try --fix-input {settings[0].name}={_candidate(before)}"
        if settings
        else f"{depends}, which is data"
    )


def _is_single_number(value: ir.Value) -> bool:
    return value.shape is not None and all(dim == 1 for dim in value.shape)


def _ancestors(value: ir.Value) -> list[ir.Value]:
    """Return `value` and all that it is computed from, nearest first."""
    found, todo = {value: None}, [value]
    for current in todo:
        producer = current.producer()
        new = [v for v in (producer.inputs if producer else ()) if v is not None and v not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return list(found)


def _candidate(ancestors: list[ir.Value]) -> str:
    """Return a constant that the input is compared with, which is the likeliest value to fix it at."""
    for value in ancestors:
        producer = value.producer()
        if producer is None or producer.op_type not in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
            continue
        for tensor in map(initializer_tensor, producer.inputs):
            if tensor is not None and tensor.size == 1:
                return str(tensor.numpy().item())
    return "VALUE"
