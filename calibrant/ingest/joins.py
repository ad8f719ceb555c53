"""Nodes that join variables, and which captured tensor tells the range of each value that they join.

A run observes the inputs of layers only. What a Concat or an Add reads is such a tensor, or one a few nodes away that hold its
range, or some channels of a captured Concat; nothing is captured for a join alone.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import onnx_ir as ir
import polars as pl

from calibrant.ingest.passes.constants import initializer_tensor
from calibrant.ingest.prepared import CapturedTensor, PreparedModel
from calibrant.stats.tables import SCHEMAS

_JOINS: Final = ("Concat", "Add")
_KEEP_RANGE: Final = frozenset({"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
_CHANNEL_AXIS: Final = 1  # of the captured inputs of convolutions, whose parts a Concat joins


class _Sight(NamedTuple):
    """How the range of a value is seen in a captured tensor."""

    tensor_id: int
    seen: str
    first_channel: int | None = None
    channels: int | None = None


def joins_table(prepared: PreparedModel) -> pl.DataFrame:
    """Return the `joins` table: the inputs and the output of every Concat and Add of two or more variables."""
    captured = {tensor.name: tensor for tensor in prepared.tensors}
    rows = [row for node in prepared.model.graph if _is_join(node) for row in _rows(node, captured)]
    return pl.DataFrame(rows, schema=SCHEMAS["joins"], orient="row")


def _is_join(node: ir.Node) -> bool:
    return node.op_type in _JOINS and not node.domain and len(_variables(node)) > 1


def _variables(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return the inputs that depend on the model's inputs, as far as a glance tells."""
    return [
        (index, value)
        for index, value in enumerate(node.inputs)
        if value is not None and initializer_tensor(value) is None
    ]


def _rows(node: ir.Node, captured: Mapping[str, CapturedTensor]) -> Iterator[tuple[object, ...]]:
    parts = _parts(node, captured)
    for index, value in _variables(node):
        yield _row(node, index, value, _sight(value, captured) or parts.get(index))
    yield _row(node, None, node.outputs[0], _sight(node.outputs[0], captured))


def _row(node: ir.Node, index: int | None, value: ir.Value, sight: _Sight | None) -> tuple[object, ...]:
    seen = (None, None, None, None) if sight is None else tuple(sight)
    return (str(node.name), node.op_type, index, str(value.name), *seen)


def _sight(value: ir.Value, captured: Mapping[str, CapturedTensor]) -> _Sight | None:
    """Look at the value itself, then up to the Relu that makes it, then down to those who read it."""
    if found := _same_range(value, captured):
        return _Sight(found.tensor_id, "itself")
    producer = value.producer()
    if producer is not None and producer.op_type == "Relu" and producer.inputs[0] is not None:
        above = _same_range(producer.inputs[0], captured)
        if above is not None:
            return _Sight(above.tensor_id, "before Relu")
    below = _behind_relu(value, captured)
    return None if below is None else _Sight(below.tensor_id, "behind Relu")


def _behind_relu(value: ir.Value, captured: Mapping[str, CapturedTensor]) -> CapturedTensor | None:
    outputs = [node.outputs[0] for node in value.consumers() if node.op_type == "Relu"]
    return next((found for output in outputs if (found := _same_range(output, captured))), None)


def _same_range(value: ir.Value, captured: Mapping[str, CapturedTensor]) -> CapturedTensor | None:
    """Return the captured tensor of the same elements: the value, what it was laid out from, or what it is laid out to."""
    return _upwards(value, captured) or _downwards(value, captured)


def _upwards(value: ir.Value | None, captured: Mapping[str, CapturedTensor]) -> CapturedTensor | None:
    while value is not None and str(value.name) not in captured:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and producer.op_type in _KEEP_RANGE else None
    return None if value is None else captured[str(value.name)]


def _downwards(value: ir.Value, captured: Mapping[str, CapturedTensor]) -> CapturedTensor | None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if str(one.name) in captured:
            return captured[str(one.name)]
        waiting += [
            node.outputs[0] for node in one.consumers() if node.op_type in _KEEP_RANGE and node.inputs[0] is one
        ]
    return None


def _parts(node: ir.Node, captured: Mapping[str, CapturedTensor]) -> dict[int, _Sight]:
    """Return the inputs of a Concat as channels of its captured output."""
    if node.op_type != "Concat" or node.attributes.get_int("axis", 0) != _CHANNEL_AXIS:
        return {}
    output = _channels_seen(node.outputs[0], captured)
    sizes = [_channels(value) for value in node.inputs]
    if output is None:
        return {}
    found, first = {}, 0
    for index, size in enumerate(sizes):
        if size is None:
            break  # where the next parts begin is unknown
        found[index] = _Sight(output[0].tensor_id, output[1], first, size)
        first += size
    return found


def _channels_seen(value: ir.Value, captured: Mapping[str, CapturedTensor]) -> tuple[CapturedTensor, str] | None:
    """Return the captured tensor whose channels are the value's, itself or behind a Relu."""
    behind = [node.outputs[0] for node in value.consumers() if node.op_type == "Relu"]
    for one, seen in [(value, "itself"), *((output, "behind Relu") for output in behind)]:
        tensor = captured.get(str(one.name))
        if tensor is not None and tensor.channel_axis == _CHANNEL_AXIS:
            return tensor, seen
    return None


def _channels(value: ir.Value | None) -> int | None:
    if value is None or value.shape is None or len(value.shape) <= _CHANNEL_AXIS:
        return None
    size = value.shape[_CHANNEL_AXIS]
    return size if isinstance(size, int) else None
