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
    inputs = _inputs(graph)
    for name in inputs:
        if name not in feeds:
            message = f"input '{name}' is missing; the data has {sorted(feeds)}{nearest(name, feeds)}"
            raise DataError(message)
    for name in feeds:
        if name not in inputs:
            message = f"the model has no input '{name}'{nearest(name, inputs)}"
            raise DataError(message)
    for name, declared in _tensors(inputs).items():
        if not _takes(declared, np.asarray(feeds[name])):
            raise DataError(_compared(name, declared, np.asarray(feeds[name])))


def describe_feeds(graph: onnx.GraphProto, feeds: Mapping[str, Array]) -> str:
    """Set what a model declares beside what a sample has, for a sample that passes `check_feeds`.

    Args:
        graph: the model's graph.
        feeds: input name -> array.
    """
    tensors = _tensors(_inputs(graph))
    return ", ".join(_compared(name, declared, np.asarray(feeds[name])) for name, declared in tensors.items())


def _inputs(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    constants = {tensor.name for tensor in graph.initializer}
    return {value.name: value.type for value in graph.input if value.name not in constants}


def _tensors(inputs: Mapping[str, onnx.TypeProto]) -> dict[str, onnx.TypeProto.Tensor]:
    return {name: declared.tensor_type for name, declared in inputs.items() if declared.HasField("tensor_type")}


def _takes(declared: onnx.TypeProto.Tensor, array: Array) -> bool:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
    lengths = _lengths(declared)
    is_text = dtype == np.object_ and array.dtype.kind in "OSU"
    return (is_text or array.dtype == dtype) and (lengths is None or _fits(lengths, array.shape))


def _compared(name: str, declared: onnx.TypeProto.Tensor, array: Array) -> str:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
    wanted = "texts" if dtype == np.object_ else str(dtype)
    lengths = _lengths(declared)
    shape = "any shape" if lengths is None else f"shape {_text(lengths)}"
    return f"input '{name}' takes {wanted} of {shape}, got {array.dtype} of shape {_text(array.shape)}"


def _lengths(declared: onnx.TypeProto.Tensor) -> list[int | str] | None:
    return [_length(dim) for dim in declared.shape.dim] if declared.HasField("shape") else None


def _fits(lengths: list[int | str], shape: tuple[int, ...]) -> bool:
    """Whether a shape has these lengths; a text stands for any."""
    return len(lengths) == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(lengths, shape, strict=True)
    )


def _length(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    return int(dim.dim_value) if dim.dim_value > 0 else str(dim.dim_param or "?")


def _text(lengths: list[int | str] | tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, lengths))}]"
