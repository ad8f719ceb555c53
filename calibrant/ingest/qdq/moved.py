"""Nodes that move codes between a QuantizeLinear and its DequantizeLinear: they move the floats instead, and the pair stands together.

Rounding to one grid keeps the order of values and looks at each alone, so that moving values, or taking the greatest of some, before it
or behind it gives the same codes.
"""

from typing import Final

import onnx_ir as ir

from calibrant.ingest.qdq.editor import GraphEditor
from calibrant.ingest.qdq.grids import QUANTIZE, is_pair_node

_MOVING: Final = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice", "Gather", "Expand", "Tile", "DepthToSpace",
     "SpaceToDepth", "MaxPool"}
)  # fmt: skip


def join_pairs(model: ir.Model) -> None:
    """Put each QuantizeLinear of one scale behind the nodes that only move its codes, in place.

    The graph must be in topological order and its nodes named.
    """
    editor = GraphEditor(model)
    waiting = [node for node in model.graph if is_pair_node(node, QUANTIZE) and _has_one_scale(node)]
    while waiting:
        node = waiting.pop()
        movers = [use.node for use in node.outputs[0].uses() if use.idx == 0 and _moves(use.node, model.graph)]
        waiting += [_put_behind(node, mover, editor) for mover in movers]


def _has_one_scale(node: ir.Node) -> bool:
    scale = node.inputs[1]
    shape = None if scale is None else scale.shape
    return node.inputs[0] is not None and shape is not None and all(size == 1 for size in shape)


def _moves(node: ir.Node, graph: ir.Graph) -> bool:
    return node.op_type in _MOVING and not node.domain and len(node.outputs) == 1 and node.graph is graph


def _put_behind(node: ir.Node, mover: ir.Node, editor: GraphEditor) -> ir.Node:
    """Let a node move floats, and quantize what it makes as `node` does; return that QuantizeLinear."""
    data, moved = node.inputs[0], mover.outputs[0]
    readers = list(moved.uses())
    name, public = editor.names.take(f"{node.name}.behind"), moved.name
    moved.name = editor.names.take(
        f"{public}.moved"
    )  # the codes keep their name: floats under it would be no value of the source
    codes = ir.Value(name=public, shape=moved.shape, type=node.outputs[0].type)
    behind = ir.Node(
        node.domain, node.op_type, [moved, *node.inputs[1:]], list(node.attributes.values()), outputs=[codes], name=name
    )
    for use in readers:
        use.node.replace_input_with(use.idx, codes)
    editor.graph.insert_after(mover, behind)
    for place, output in enumerate(editor.graph.outputs):
        if output is moved:
            editor.graph.outputs[place] = codes
    mover.replace_input_with(0, data)
    moved.type = None if data is None else data.type
    return behind
