"""Removal of what computes nothing: Identity nodes, dead nodes, unused operator sets, constants listed as inputs."""

from typing import Final

import onnx_ir as ir
from onnx_ir.passes import common

from calibrant.errors import ModelError

_ONNX: Final = ("", "onnx.ai")  # domains of ONNX's own operators


def inline_functions(model: ir.Model) -> None:
    """Replace calls of model-local functions by their nodes and drop the functions."""
    if model.functions:
        common.InlinePass()(model)
        model.functions.clear()


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes that hold a tensor, and initializers listed as graph inputs, into plain initializers."""
    common.RemoveInitializersFromInputsPass()(model)
    for graph in model.graphs():
        for node in graph:
            _lift(node, graph)
    model.ir_version = max(model.ir_version, 4)  # before 4 every initializer had to be an input as well


def _lift(node: ir.Node, graph: ir.Graph) -> None:
    """Replace a Constant by an initializer; onnx_ir's own pass checks each tensor's type anew, a tenth of all preparation."""
    if node.op_type != "Constant" or node.domain not in _ONNX or list(node.attributes) != ["value"]:
        return
    attribute, output = node.attributes["value"], node.outputs[0]
    if output.is_graph_output():
        return
    tensor = attribute.value if attribute.type == ir.AttributeType.TENSOR else attribute.as_tensor()
    initializer = ir.Value(
        name=output.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    initializer.metadata_props.update(output.metadata_props)
    graph.register_initializer(initializer)
    output.replace_all_uses_with(initializer)
    graph.remove(node, safe=True)


def sort_nodes(model: ir.Model) -> None:
    """Bring the nodes into topological order, as near to the source's order as possible.

    Raises:
        ModelError: the graph has a cycle.
    """
    try:
        common.TopologicalSortPass()(model)
    except ValueError as error:
        message = "the graph has a cycle: no order lets every node come after those it needs"
        raise ModelError(message) from error


def remove_identities(graph: ir.Graph) -> None:
    """Bypass the Identity nodes of the main graph, but those that make a graph output.

    onnx_ir's own pass also rewrites subgraphs, which must stay as they are.
    """
    for node in graph:
        if node.op_type != "Identity" or node.domain or node.inputs[0] is None:
            continue
        if not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            graph.remove(node, safe=True)


def remove_unused(model: ir.Model) -> None:
    """Drop nodes, initializers and operator sets that nothing uses."""
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
