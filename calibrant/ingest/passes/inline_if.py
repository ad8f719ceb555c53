"""Replace an If node by the nodes of one of its branches."""

import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.passes.names import UniqueNames, set_original_nodes, value_names


def inline_branch(model: ir.Model, node: ir.Node, *, taken: bool) -> None:
    """Put the branch of an If of the main graph in its place.

    Nodes and values keep their names unless the main graph uses them already; the outputs keep the If's names.

    Raises:
        ModelError: the branch is missing or has another number of outputs than the If.
    """
    branch = _branch(node, "then_branch" if taken else "else_branch")
    if branch is None or len(branch.outputs) != len(node.outputs):
        message = f"If '{node.name}': its {'then' if taken else 'else'} branch does not have the If's {len(node.outputs)} outputs"
        raise ModelError(message)
    names = value_names(model)
    results = list(branch.outputs)
    branch.outputs.clear()
    body = list(branch)
    branch.remove(body)
    _move_initializers(branch, model.graph, names)
    _rename(body, model.graph, names)
    model.graph.insert_before(node, body)
    _replace_outputs(model.graph, node, results, body)
    if (other := _branch(node, "else_branch" if taken else "then_branch")) is not None:
        _release(other)


def _branch(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.as_graph()


def _release(branch: ir.Graph) -> None:
    """Let the branch that is dropped use nothing of the main graph, so that what only it needed can go."""
    branch.outputs.clear()
    for node in list(branch.all_nodes()):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def _move_initializers(branch: ir.Graph, graph: ir.Graph, names: UniqueNames) -> None:
    taken = _names_in(graph)
    for name, value in list(branch.initializers.items()):
        branch.initializers.pop(name)
        if name in taken:
            value.name = names.take(name)
        graph.register_initializer(value)


def _names_in(graph: ir.Graph) -> set[str]:
    values = {str(value.name) for node in graph for value in node.outputs if value.name}
    return values | set(graph.initializers) | {str(value.name) for value in graph.inputs}


def _rename(body: list[ir.Node], graph: ir.Graph, names: UniqueNames) -> None:
    taken_values, node_names = _names_in(graph), UniqueNames(str(n.name) for n in graph)
    for node in body:
        node.name = node_names.take(str(node.name))
        for value in node.outputs:
            if value.name and value.name in taken_values:
                value.name = names.take(value.name)


def _replace_outputs(graph: ir.Graph, node: ir.Node, results: list[ir.Value], body: list[ir.Node]) -> None:
    outputs = list(node.outputs)
    wanted = [str(output.name) for output in outputs]
    for index, (output, result) in enumerate(zip(outputs, results, strict=True)):
        source = result
        if result.producer() not in body or result.is_graph_output() or result in results[:index]:
            source = _identity(graph, node, result, index)
        source.shape = source.shape if source.shape is not None else output.shape
        output.replace_all_uses_with(source, replace_graph_outputs=True)
        results[index] = source
    graph.remove(node, safe=True)
    for result, name in zip(results, wanted, strict=True):
        result.name = name


def _identity(graph: ir.Graph, node: ir.Node, value: ir.Value, index: int) -> ir.Value:
    """Give a result that is no node's own output (an initializer, an outer value, a repeated one) a node of its own."""
    copy = ir.Node(
        "", "Identity", [value], name=UniqueNames(str(n.name) for n in graph).take(f"{node.name}_output_{index}")
    )
    set_original_nodes(copy, [str(node.name)])
    graph.insert_before(node, copy)
    return copy.outputs[0]
