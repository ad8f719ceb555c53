"""Weights and biases of a prepared model, read one at a time without building its graph.

A fit needs nothing else of the model, and building the graph would cost it more than the search.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from calibrant.errors import LayerNotFoundError, ModelError, nearest

_FILE = "prepared.onnx"


class Parameters:
    """The initializers of a prepared model.

    Args:
        folder: where `save_prepared` wrote it.

    Raises:
        ModelError: the file is missing or damaged.

    Attributes:
        node_names: names of the nodes, in their order.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _FILE
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception as error:  # protobuf raises its own DecodeError, which only `proto` may name
            message = f"{path}: the prepared model cannot be read ({error}); run again with --restart"
            raise ModelError(message) from error
        self.node_names = tuple(node.name for node in model.graph.node if node.name)
        self._folder = folder
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def value(self, name: str) -> npt.NDArray[np.floating]:
        """Return an initializer.

        Raises:
            LayerNotFoundError: there is none of that name.
        """
        if name not in self._tensors:
            message = f"{self._folder / _FILE}: no initializer '{name}'{nearest(name, self._tensors)}"
            raise LayerNotFoundError(message)
        return np.asarray(numpy_helper.to_array(self._tensors[name], base_dir=str(self._folder)))
