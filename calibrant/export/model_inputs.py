"""Compare a sample with the inputs that a model declares, before onnxruntime meets it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from calibrant.errors import DataError, nearest

Array = npt.NDArray[Any]


def check_feeds(graph: onnx.GraphProto, feeds: Mapping[str, Array]) -> None:
    """Compare names, types and shapes of a sample with a model's inputs.

    Args:
        graph: the model's graph.
        feeds: input name -> array.

    Raises:
        DataError: an input is missing or unknown, or has another type or shape than the model declares.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    for name in inputs:
        if name not in feeds:
            message = f"input '{name}' is missing; the data has {sorted(feeds)}{nearest(name, feeds)}"
            raise DataError(message)
    for name in feeds:
        if name not in inputs:
            message = f"the model has no input '{name}'{nearest(name, inputs)}"
            raise DataError(message)
    for name, value in inputs.items():
        if value.type.HasField("tensor_type"):
            _check_tensor(name, value.type.tensor_type, np.asarray(feeds[name]))


def _check_tensor(name: str, declared: onnx.TypeProto.Tensor, array: Array) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
    lengths = [_length(dim) for dim in declared.shape.dim] if declared.HasField("shape") else None
    text = dtype == np.object_ and array.dtype.kind in "OSU"
    if (text or array.dtype == dtype) and (lengths is None or _fits(lengths, array.shape)):
        return
    shape = "any shape" if lengths is None else f"shape {_text(lengths)}"
    message = f"input '{name}' takes {dtype} of {shape}, got {array.dtype} of shape {_text(array.shape)}"
    raise DataError(message)


def _fits(lengths: list[int | str], shape: tuple[int, ...]) -> bool:
    """Whether a shape has these lengths; a text stands for any."""
    return len(lengths) == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(lengths, shape, strict=True)
    )


def _length(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    return int(dim.dim_value) if dim.dim_value > 0 else str(dim.dim_param or "?")


def _text(lengths: list[int | str] | tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, lengths))}]"
