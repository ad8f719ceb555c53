"""Editing a clone of the prepared graph: unique names, initializers in place, values replaced by others."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ExportError
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.passes.names import UniqueNames, names_of_values

_PRIVATE = "calibrant."  # prefix of the notes that ingest keeps in metadata_props


def export_clone(prepared: PreparedModel) -> ir.Model:
    """Return a copy of the prepared model without calibrant's notes and unused constants; the tensors are shared, not copied."""
    model = prepared.model.clone()
    _drop_unused(model.graph)
    _strip_notes(model.metadata_props)
    for graph in model.graphs():
        _strip_notes(graph.metadata_props)
        for value in (*graph.inputs, *graph.initializers.values()):
            _strip_notes(value.metadata_props)
        for node in graph:
            _strip_notes(node.metadata_props)
            for output in node.outputs:
                _strip_notes(output.metadata_props)
    return model


def into_memory(model: ir.Model) -> ir.Model:
    """Turn tensors in external files into plain ones: an exported model must not point to the run directory.

    Their values stay mapped, so that they are read when the model is written and held by neither of the two models.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    return model


def _drop_unused(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def _strip_notes(properties: dict[str, str]) -> None:
    for key in [key for key in properties if key.startswith(_PRIVATE)]:
        del properties[key]


class Names(UniqueNames):
    """All node and value names of a model, its subgraphs included; hands out new ones.

    Example:
        >>> names = Names(["conv.quant"])
        >>> names.fresh("conv.quant"), names.fresh("conv.dequant")
        ('conv.quant_1', 'conv.dequant')
    """

    @classmethod
    def of(cls, model: ir.Model) -> "Names":
        """Collect the names of a model."""
        return cls(names_of_values(model) | {node.name or "" for graph in model.graphs() for node in graph})

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, or with the first free suffix ``_1``, ``_2`` … where it is taken; taken from now on."""
        return self.take(wanted)


def add_initializer(graph: ir.Graph, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
    """Add a constant to a graph and return its value."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def replace_initializer(
    node: ir.Node, slot: int, array: npt.NDArray[np.generic], names: Names, graph: ir.Graph
) -> ir.Value:
    """Put integers into an initializer's place, under its name; a copy under a new name where other nodes use it too.

    Raises:
        ExportError: the input is no initializer.
    """
    value = node.inputs[slot]
    if value is None or value.name is None or not value.is_initializer():
        message = f"node '{node.name}': input {slot} is not an initializer, so it cannot be replaced by codes"
        raise ExportError(message)
    if len(value.uses()) > 1 or value.is_graph_output():
        value = add_initializer(graph, names.fresh(value.name), array)
        node.replace_input_with(slot, value)
        return value
    value.const_value = ir.tensor(array, name=value.name)
    value.type = ir.TensorType(value.const_value.dtype)  # a new object: clones share types with the prepared model
    value.shape = ir.Shape(array.shape)
    return value


def take_over(graph: ir.Graph, old: ir.Value, new: ir.Value, keep: ir.Node, inner_name: str) -> None:
    """Let every consumer of `old` but `keep` read `new`; a graph output keeps its name, on `new`, and `old` becomes `inner_name`."""
    for use in list(old.uses()):
        if use.node is not keep:
            use.node.replace_input_with(use.idx, new)
    if not old.is_graph_output():
        return
    for position, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[position] = new
    public, old.name = old.name, inner_name
    new.name = public
