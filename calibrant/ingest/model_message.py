"""A model as a message whose large weights lie beside it, so that nobody has to copy them: not the file, not a session."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from calibrant.ingest.file_tensors import BYTES, GRAPH, INITIALIZER, LARGE, MARK, RAW_DATA, Parts, changed, head

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class ModelMessage:
    """A model in memory.

    Attributes:
        proto: the model; a large initializer has the location `MARK` instead of its values.
        weights: name of each of those -> its values.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, Array]

    def save(self, path: Path) -> None:
        """Write the model to one file.

        Raises:
            OSError: it cannot be written.
        """
        with path.open("wb") as stream:
            stream.writelines(self._parts())

    def outside(self, graph: onnx.GraphProto) -> dict[str, Array]:
        """Return the values of those initializers of a graph, made of this model's, that lie outside."""
        names = [tensor.name for tensor in graph.initializer if is_marked(tensor)]
        return {name: self.weights[name] for name in names}

    def _parts(self) -> Iterator[bytes | memoryview]:
        data = memoryview(self.proto.SerializeToString())
        return changed(data, 0, len(data), {GRAPH: {INITIALIZER: self._filled}}, 0)

    def _filled(self, data: memoryview, start: int, end: int) -> Parts:
        tensor = onnx.TensorProto.FromString(bytes(data[start:end]))
        if not is_marked(tensor):
            return [data[start:end]]
        values = self.weights[tensor.name].reshape(-1).view(np.uint8)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        return [tensor.SerializeToString(), head(RAW_DATA, len(values)), values.data]


def is_marked(tensor: onnx.TensorProto) -> bool:
    """Return whether the values of an initializer lie outside of its message."""
    return any(entry.key == "location" and entry.value == MARK for entry in tensor.external_data)


def message_of(model: ir.Model) -> ModelMessage:
    """Return a model as a message; no weight of it may lie in a file."""
    proto, initializers = skeleton_of(model), model.graph.initializers
    outside = ((one.name, initializers[one.name].const_value) for one in proto.graph.initializer if is_marked(one))
    return ModelMessage(proto, {name: np.ascontiguousarray(held.numpy()) for name, held in outside if held is not None})


def skeleton_of(model: ir.Model) -> onnx.ModelProto:
    """Return a model without the values of its large initializers, which have the location `MARK` instead."""
    held = {value: value.const_value for value in model.graph.initializers.values()}
    try:
        for value, tensor in held.items():
            if tensor is not None and tensor.nbytes > LARGE and tensor.dtype.value in BYTES:
                value.const_value = _mark(str(value.name), tensor)
        proto: onnx.ModelProto = ir.to_proto(model)
    finally:
        for value, tensor in held.items():
            value.const_value = tensor
    return proto


def _mark(name: str, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        MARK,
        offset=None,
        length=None,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props) or None,
    )
