"""Turn an input into a constant, compute what follows from it, and inline the branch of an If that becomes certain."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ModelError, nearest
from calibrant.ingest.passes.cleanup import sort_nodes
from calibrant.ingest.passes.constants import ConstantValues, set_initializer
from calibrant.ingest.passes.inline_if import inline_branch
from calibrant.stats.events import Event

Array = npt.NDArray[Any]


def fix_inputs(model: ir.Model, values: Mapping[str, str]) -> list[Event]:
    """Fix the named inputs at these values (text, read by the input's own type and shape).

    Raises:
        ModelError: an unknown input name, or a value that is not of the input's type or shape.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    fixed = {_input(inputs, name): text for name, text in values.items()}
    arrays = {value: parse_value(value, text) for value, text in fixed.items()}
    for value, array in arrays.items():
        model.graph.inputs.remove(value)
        set_initializer(value, array)
        model.graph.register_initializer(value)
    events = [_decision(str(v.name), f"input '{v.name}' is fixed at {a.tolist()}") for v, a in arrays.items()]
    return events + _fold_and_inline(model, set(arrays))


def _input(inputs: Mapping[str, ir.Value], name: str) -> ir.Value:
    if name not in inputs:
        message = (
            f"--fix-input {name}: the model has no input of that name, only {sorted(inputs)}{nearest(name, inputs)}"
        )
        raise ModelError(message)
    return inputs[name]


def _fold_and_inline(model: ir.Model, fixed: set[ir.Value]) -> list[Event]:
    events: list[Event] = []
    while True:
        sort_nodes(model)
        constants = ConstantValues(model.graph)
        _fold_descendants(model.graph, constants, fixed)
        certain = next(
            ((node, taken) for node in model.graph if (taken := _certain(node, constants)) is not None), None
        )
        if certain is None:
            return events
        node, taken = certain
        message = f"If '{node.name}': the condition is always {str(taken).lower()}; its {'then' if taken else 'else'} branch was inlined"
        events.append(_decision(str(node.name), message))
        inline_branch(model, node, taken=taken)


def _fold_descendants(graph: ir.Graph, constants: ConstantValues, fixed: set[ir.Value]) -> None:
    for node in list(graph):
        if any(value in fixed for value in node.inputs):
            fixed.update(constants.fold(node))


def _certain(node: ir.Node, constants: ConstantValues) -> bool | None:
    """Return the condition of an If where it is certain, else None."""
    if node.op_type != "If" or node.domain or node.inputs[0] is None:
        return None
    array = constants.array(node.inputs[0])
    return None if array is None or array.size != 1 else bool(array.item())


def _decision(layer: str, message: str) -> Event:
    return Event("ingest", "info", message, layer)


def parse_value(value: ir.Value, text: str) -> Array:
    """Read the text of a fixed input: a number, true or false, or a JSON list of them.

    A single number fills an input whose shape is static.

    Raises:
        ModelError: the text is not of the input's type or shape.
    """
    dtype = _dtype(value)
    shape = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    where = f"--fix-input {value.name}={text}: input '{value.name}' is {dtype} of shape {_written(shape)}"
    array = _typed(_json(text, where), dtype, where)
    if shape is None or _fits(array.shape, shape):
        return array
    static = [size for size in shape if isinstance(size, int)]
    if array.ndim == 0 and len(static) == len(shape):
        return np.full(static, array)
    message = f"{where}, the value has shape {list(array.shape)}; write a list of that shape"
    raise ModelError(message)


def _dtype(value: ir.Value) -> np.dtype[Any]:
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        message = (
            f"--fix-input {value.name}: an input of type {value.dtype} cannot be fixed; only numbers and booleans can"
        )
        raise ModelError(message)
    return np.dtype(value.dtype.numpy())


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text.strip().lower())
    except ValueError as error:
        message = f"{where}; the value is neither a number, true, false nor a list of them"
        raise ModelError(message) from error


def _typed(parsed: Any, dtype: np.dtype[Any], where: str) -> Array:
    try:
        array = np.asarray(parsed)
        with np.errstate(all="ignore"):  # a value that the type cannot hold is found below
            typed = array.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        message = f"{where}; the value cannot be read as {dtype}"
        raise ModelError(message) from error
    exact = array.dtype.kind in "biuf" and (dtype.kind == "f" or np.array_equal(typed, array))
    if not exact:
        message = f"{where}; the value is not a {dtype}"
        raise ModelError(message)
    return typed


def _fits(shape: tuple[int, ...], declared: Sequence[int | str | None]) -> bool:
    return len(shape) == len(declared) and all(
        d == s or not isinstance(d, int) for s, d in zip(shape, declared, strict=True)
    )


def _written(shape: Sequence[int | str | None] | None) -> str:
    return "unknown" if shape is None else str([size if size is not None else "?" for size in shape])
