"""Removal of what computes nothing: Identity nodes, dead nodes, unused operator sets, constants listed as inputs."""

import onnx_ir as ir
from onnx_ir.passes import common

from calibrant.errors import ModelError


def inline_functions(model: ir.Model) -> None:
    """Replace calls of model-local functions by their nodes and drop the functions."""
    if model.functions:
        common.InlinePass()(model)
        model.functions.clear()


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes that hold a tensor, and initializers listed as graph inputs, into plain initializers."""
    common.RemoveInitializersFromInputsPass()(model)
    common.LiftConstantsToInitializersPass(size_limit=0)(model)
    model.ir_version = max(model.ir_version, 4)  # before 4 every initializer had to be an input as well


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


def infer_shapes(model: ir.Model) -> None:
    """Add what onnx can infer of shapes and types; inputs and outputs keep what the model declares."""
    declared = [(value, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    for value, shape in declared:
        value.shape = shape or value.shape
