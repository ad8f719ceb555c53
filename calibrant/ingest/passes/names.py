"""Unique names for nodes and values, and the memory of what each node was called in the source model."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

import onnx_ir as ir

ORIGINAL_NODES: Final = (
    "calibrant.original_nodes"  # key in a node's metadata_props; value: JSON list of source node names
)


class UniqueNames:
    """Names that are taken, and new ones that are not.

    Example:
        >>> names = UniqueNames(["conv.bias"])
        >>> names.take("conv.bias"), names.take("conv.bias"), names.take("other")
        ('conv.bias_1', 'conv.bias_2', 'other')
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def take(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with ``_1``, ``_2``, ... where it is taken; the answer is taken from now on."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def value_names(model: ir.Model) -> UniqueNames:
    """Return the value names of a model as taken, ready to hand out new ones."""
    return UniqueNames(names_of_values(model))


def names_of_values(model: ir.Model) -> set[str]:
    """Collect every value name of the model: inputs, initializers and node outputs of all graphs, subgraphs included."""
    taken: set[str] = set()
    for graph in model.graphs():
        taken.update(name for name in graph.initializers if name)
        taken.update(value.name for value in graph.inputs if value.name)
        taken.update(value.name for node in graph for value in node.outputs if value.name)
    return taken


def name_nodes(model: ir.Model) -> None:
    """Give every node of every graph a name that is unique in its graph, and record its name in the source.

    Nameless nodes become ``<OpType>_<position>``; of equal names the first stays and the next become ``<name>_1``, ``<name>_2``.
    """
    for graph in model.graphs():
        _name_graph(graph)


def _name_graph(graph: ir.Graph) -> None:
    given = {node.name for node in graph if node.name}
    names, seen = UniqueNames(given), set[str]()
    for position, node in enumerate(graph):
        source = node.name
        if not source:
            node.name = names.take(f"{node.op_type}_{position}")
        elif source in seen:
            node.name = names.take(source)
        seen.add(source or "")
        set_original_nodes(node, [source or str(node.name)])


def set_original_nodes(node: ir.Node, names: Sequence[str]) -> None:
    """Record the names of the source nodes that `node` stands for."""
    node.metadata_props[ORIGINAL_NODES] = json.dumps(list(names), ensure_ascii=False)


def original_nodes(node: ir.Node) -> tuple[str, ...]:
    """Return the names of the source nodes that `node` stands for; its own name where nothing was recorded."""
    recorded = node.metadata_props.get(ORIGINAL_NODES)
    return (str(node.name),) if recorded is None else tuple(json.loads(recorded))
