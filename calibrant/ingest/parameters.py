"""Weights and biases of a prepared model, read one at a time without building its graph.

A fit needs nothing else of the model, and building the graph would cost it more than the search.
"""

from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from calibrant.errors import LayerNotFoundError, ModelError, nearest
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.run import PREPARED_FILE

_FLOATS = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def _model_nodes(graph: onnx.GraphProto) -> dict[str, ModelNode]:
    constants = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    makers = {name: _op_type(node) for node in graph.node for name in node.output}
    others = {
        value.name for value in (*graph.input, *graph.value_info) if value.type.tensor_type.elem_type not in _FLOATS
    }
    named = [node for node in graph.node if node.name]
    types = [value.type.tensor_type.elem_type for value in graph.input] + [one.data_type for one in graph.initializer]
    half = onnx.TensorProto.FLOAT16 in types
    return {node.name: _model_node(node, constants | {""}, makers, others)._replace(half=half) for node in named}


def _model_node(
    node: onnx.NodeProto, constants: Container[str], makers: Mapping[str, str], others: Container[str]
) -> ModelNode:
    fixed = frozenset(index for index, name in enumerate(node.input) if name in constants)
    dilations = next((attribute.ints for attribute in node.attribute if attribute.name == "dilations"), ())
    dilated, producer = any(value != 1 for value in dilations), next((makers.get(name, "") for name in node.input), "")
    not_float = frozenset(index for index, name in enumerate(node.input) if name in others)
    return ModelNode(
        _op_type(node), len(node.input), fixed, dilated, producer, tuple(node.input), not_float, tuple(node.output)
    )


def _op_type(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


class Parameters:
    """The initializers of a prepared model.

    Args:
        folder: where `save_prepared` wrote it.

    Raises:
        ModelError: the file is missing or damaged.

    Attributes:
        nodes: the named nodes of the model, in their order.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / PREPARED_FILE
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception as error:  # protobuf raises its own DecodeError, which only `proto` may name
            message = f"{path}: the prepared model cannot be read ({error}); run again with --restart"
            raise ModelError(message) from error
        self._folder = folder
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes = _model_nodes(model.graph)

    def value(self, name: str) -> npt.NDArray[np.floating]:
        """Return an initializer.

        Raises:
            LayerNotFoundError: there is none of that name.
        """
        if name not in self._tensors:
            message = f"{self._folder / PREPARED_FILE}: no initializer '{name}'{nearest(name, self._tensors)}"
            raise LayerNotFoundError(message)
        tensor = self._tensors[name]
        if tensor.data_location == onnx.TensorProto.EXTERNAL:  # mapped; onnx would keep a copy in the proto
            import onnx_ir as ir  # slow to load, and only large models need it

            return np.asarray(ir.serde.deserialize_tensor(tensor, str(self._folder)).numpy())
        return np.asarray(numpy_helper.to_array(tensor))
