"""A model cut down to what some of its values need, with these as its outputs."""

from collections.abc import Iterator, Sequence

import onnx


def exposing(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Return a copy that gives these values, and has nothing that they do not need.

    Args:
        model: the model, which stays as it is.
        names: of values that nodes or initializers give.

    Example:
        >>> from onnx import helper
        >>> nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
        >>> graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2])], [])
        >>> [node.op_type for node in exposing(helper.make_model(graph), ["a"]).graph.node]
        ['Relu']
    """
    source, needed = model.graph, set(names)
    nodes = []
    for node in reversed(source.node):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(read_names(node))
    copy = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = copy.graph
    graph.name = source.name
    graph.node.extend(reversed(nodes))
    for field in ("initializer", "value_info"):
        getattr(graph, field).extend(one for one in getattr(source, field) if one.name in needed)
    graph.sparse_initializer.extend(one for one in source.sparse_initializer if one.values.name in needed)
    graph.input.extend(source.input)
    known = {info.name: info for info in (*source.value_info, *source.output)}
    graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in names)
    return copy


def read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, its subgraphs included; a subgraph's own names are among them."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (info.name for info in graph.output)
            for inner in graph.node:
                yield from read_names(inner)


def has_external_data(model: onnx.ModelProto) -> bool:
    """Return whether weights lie in files beside the model."""
    return any(one.data_location == onnx.TensorProto.EXTERNAL for one in model.graph.initializer)
