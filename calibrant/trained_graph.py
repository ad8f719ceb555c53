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


def name_layers(path: Path, weights: Mapping[str, Array]) -> None:
    """Give the nodes of an ONNX file the names that their layers have in PyTorch.

    A node is found by its weight: the initializer ``<layer>.weight``, maybe transposed on the way, or else the only one of equal
    values.

    Args:
        path: the file; it is written again.
        weights: layer -> its weight as PyTorch has it.

    Raises:
        ExportError: the exported model has no node, or several, for a layer; names it.
    """
    model = onnx.load(path)
    nodes = {layer: _node(model.graph, layer, weight) for layer, weight in weights.items()}
    for node in model.graph.node:
        if node.name in weights:
            node.name = f"{node.name}_{node.op_type}"
    for layer, node in nodes.items():
        node.name = layer
    onnx.save(model, path)


def _node(graph: onnx.GraphProto, layer: str, weight: Array) -> onnx.NodeProto:
    found = list(_readers(graph, [f"{layer}.weight"])) or list(_readers(graph, _equal(graph, weight)))
    if len(found) == 1:
        return found[0]
    message = f"layer '{layer}': {len(found)} nodes of the exported ONNX model read its weight, one was expected; leave it in float"
    raise ExportError(message)


def _readers(graph: onnx.GraphProto, names: Iterable[str]) -> Iterator[onnx.NodeProto]:
    """Yield the layers that read one of these values as their weight, through nodes that pass it on."""
    pending = set(names)
    for node in graph.node:
        if node.op_type in _PASSING and node.input[0] in pending:
            pending.update(node.output)
        elif node.op_type in _LAYERS and len(node.input) > 1 and node.input[1] in pending:
            yield node


def _equal(graph: onnx.GraphProto, weight: Array) -> list[str]:
    """Return the initializers that hold a weight, as it is or transposed."""
    shapes = {weight.shape, weight.shape[::-1]}
    candidates = [one for one in graph.initializer if tuple(one.dims) in shapes]
    return [one.name for one in candidates if _holds(numpy_helper.to_array(one), weight)]


def _holds(array: Array, weight: Array) -> bool:
    return np.array_equal(array, weight) or (array.ndim == 2 and np.array_equal(array, weight.T))
