"""Exported models over 2 GB: their large weights stay in the file beside the model, since no protobuf holds them.

A tensor that stays there carries the absolute path of its file in memory, so that any part of the model can be run by itself.
"""

from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

_SMALL: Final = 1 << 20  # bytes; such tensors may be shapes and limits, which shape inference and lint read
_CODES: Final = frozenset(
    {TensorProto.INT4, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.UINT64}
)


def load_model(path: Path) -> onnx.ModelProto:
    """Load an exported model; codes and small tensors come into memory, large float weights stay in their file."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            _resolve(tensor, path.parent.resolve())
    return model


def _resolve(tensor: onnx.TensorProto, folder: Path) -> None:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_type in _CODES or int(facts.get("length", 0)) < _SMALL:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    else:
        _put_location(tensor, str(folder / facts["location"]))


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _put_location(tensor: onnx.TensorProto, location: str) -> None:
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = location


def beside_its_data(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str | None]:
    """Return a model as onnxruntime takes it, and the folder of its external data; None where it has none of `load_model`."""
    outside = [tensor for tensor in model.graph.initializer if Path(_location(tensor)).is_absolute()]
    if not outside:
        return model, None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if uses_external_data(tensor):
            _put_location(tensor, Path(_location(tensor)).name)
    return copy, str(Path(_location(outside[0])).parent)


def constant_array(tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Return the values of a tensor of a model that `load_model` loaded; those in a file are mapped."""
    if not uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    location = Path(_location(tensor))
    copy = TensorProto()
    copy.CopyFrom(tensor)
    _put_location(copy, location.name)
    found: npt.NDArray[Any] = ir.serde.deserialize_tensor(copy, str(location.parent)).numpy()
    return found
