"""A trained model as ONNX: its layers found again by their weights and named as in PyTorch."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from calibrant.errors import ExportError

Array = npt.NDArray[Any]
_LAYERS: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PASSING: Final = ("Transpose", "Identity", "Cast")


def name_layers(path: Path, weights: Mapping[str, Array], others: Mapping[str, Array] | None = None) -> None:
    """Give the nodes of an ONNX file the names that their layers have in PyTorch.

    A node is found by its weight: the initializer ``<layer>.weight``, maybe transposed on the way, or else one of equal values.
    Exporters keep one initializer for equal weights; as many nodes as layers that read it are told apart by their order.

    Args:
        path: the file; it is written again.
        weights: layer -> its weight as PyTorch has it, in the order in which the layers run.
        others: the same for layers that may be missing.

    Raises:
        ExportError: the exported model has no node, or several, for a layer; names it.
    """
    model = onnx.load(path)
    nodes = _told_apart({layer: _readers_of(model.graph, layer, weight) for layer, weight in weights.items()})
    for layer, weight in (others or {}).items():
        free = [place for place in _readers_of(model.graph, layer, weight) if place not in nodes.values()]
        if len(free) == 1:
            nodes[layer] = free[0]
    for node in model.graph.node:
        if node.name in nodes:
            node.name = f"{node.name}_{node.op_type}"
    for layer, position in nodes.items():
        model.graph.node[position].name = layer
    onnx.save(model, path)


def _readers_of(graph: onnx.GraphProto, layer: str, weight: Array) -> tuple[int, ...]:
    return tuple(_readers(graph, [f"{layer}.weight"])) or tuple(_readers(graph, _equal(graph, weight)))


def _told_apart(readers: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the position of each layer's node: what only one layer can be first, then equals by their order."""
    found: dict[str, int] = {}
    left = dict(readers)
    while layer := next((one for one, positions in left.items() if len(positions) == 1), None):
        (found[layer],) = taken = left.pop(layer)
        left = {one: tuple(place for place in positions if place not in taken) for one, positions in left.items()}
    for positions in dict.fromkeys(left.values()):
        layers = [one for one, others in left.items() if others == positions]
        if len(positions) != len(layers):
            count = len(readers[layers[0]])
            message = f"layer '{layers[0]}': {count} nodes of the exported ONNX model read its weight, 1 expected; leave it in float"
            raise ExportError(message)
        found |= dict(zip(layers, positions, strict=True))
    return found


def _readers(graph: onnx.GraphProto, names: Iterable[str]) -> Iterator[int]:
    """Yield the positions of the layers that read one of these values as their weight, through nodes that pass it on."""
    pending = set(names)
    for position, node in enumerate(graph.node):
        if node.op_type in _PASSING and node.input[0] in pending:
            pending.update(node.output)
        elif node.op_type in _LAYERS and len(node.input) > 1 and node.input[1] in pending:
            yield position


def _equal(graph: onnx.GraphProto, weight: Array) -> list[str]:
    """Return the initializers that hold a weight, as it is or transposed."""
    shapes = {weight.shape, weight.shape[::-1]}
    candidates = [one for one in graph.initializer if tuple(one.dims) in shapes]
    return [one.name for one in candidates if _holds(numpy_helper.to_array(one), weight)]


def _holds(array: Array, weight: Array) -> bool:
    return np.array_equal(array, weight) or (array.ndim == 2 and np.array_equal(array, weight.T))
