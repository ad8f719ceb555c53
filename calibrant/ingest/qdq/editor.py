"""Changes of a graph while its pairs are taken out: values handed over, nodes added, all names unique."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.passes.constants import make_initializer
from calibrant.ingest.passes.names import UniqueNames, names_of_values


class GraphEditor:
    """Edits the main graph of a model in place.

    Attributes:
        graph: the graph.
        names: all names of its nodes and values.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        nodes = {str(node.name) for graph in model.graphs() for node in graph}
        self.names = UniqueNames(names_of_values(model) | nodes)

    def identity(self, data: ir.Value, name: str, old: ir.Value) -> ir.Node:
        """Add an Identity for what has no node of the main graph to stand before; it takes the rest of `old` over."""
        output = ir.Value(name=self.names.take(f"{name}.carried"), shape=old.shape, type=old.type)
        node = ir.Node("", "Identity", [data], outputs=[output], name=self.names.take(f"{name}.carrier"))
        self.graph.insert_before(_maker(old), node)
        self.replace(old, output, name)
        return node

    def replace(self, old: ir.Value, new: ir.Value, name: str) -> None:
        """Let every reader of a value read another; an output of the model keeps its name."""
        for use in list(old.uses()):
            use.node.replace_input_with(use.idx, new)
        if not old.is_graph_output():
            return
        if new.producer() is None or new.is_graph_output():
            carrier = ir.Value(name=self.names.take(f"{name}.carried"), shape=old.shape, type=old.type)
            self.graph.append(
                ir.Node("", "Identity", [new], outputs=[carrier], name=self.names.take(f"{name}.carrier"))
            )
            new = carrier
        for position, output in enumerate(self.graph.outputs):
            if output is old:
                self.graph.outputs[position] = new
        public, old.name = old.name, self.names.take(f"{name}.replaced")
        new.name = public

    def remove(self, node: ir.Node) -> None:
        """Remove a node that nothing reads any more."""
        if not node.outputs[0].uses():
            self.graph.remove(node, safe=True)

    def chain(
        self, prefix: str, data: ir.Value, steps: Sequence[tuple[str, Sequence[object]]], before: ir.Node
    ) -> ir.Value:
        """Add a chain of operators with constant operands of the type of `data`; return what it makes."""
        dtype = np.float32 if data.dtype is None else data.dtype.numpy()
        for op_type, operands in steps:
            name = self.names.take(f"{prefix}.{op_type.lower()}")
            inputs = [
                make_initializer(self.graph, self.names.take(f"{name}.{slot}"), np.asarray(one, dtype))
                for slot, one in enumerate(operands)
            ]
            output = ir.Value(name=self.names.take(f"{name}.output"), shape=data.shape, type=data.type)
            node = ir.Node("", op_type, [data, *inputs], outputs=[output], name=name)
            self.graph.insert_before(before, node)
            data = output
        return data


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        message = f"value '{value.name}' is made by no node"
        raise ModelError(message)
    return node
