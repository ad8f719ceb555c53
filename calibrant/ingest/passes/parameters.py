"""Give every layer parameters of its own: constants folded to initializers, shared ones copied, Gemm and MatMul in one form."""

from collections import defaultdict
from typing import Final

import numpy as np
import onnx_ir as ir

from calibrant.ingest.nodes import LAYER_TYPES
from calibrant.ingest.passes.constants import (
    Array,
    ConstantValues,
    initializer_tensor,
    make_initializer,
    set_initializer,
)
from calibrant.ingest.passes.names import UniqueNames, value_names
from calibrant.ingest.passes.norm_chain import CONSTANT_TYPES
from calibrant.ingest.refusals import matmul_bias, refusal
from calibrant.stats.events import Event

_PARAMETER_NAMES: Final = {1: "weight", 2: "bias"}  # by input position of a layer
_BATCH_NORM_PARAMETERS: Final = 5
_STRIP: Final = 64  # rows


def fold_parameters(graph: ir.Graph) -> None:
    """Fold what leads to a weight, a bias or a BatchNormalization parameter (Identity, Cast, Transpose, ... of a constant).

    The graph must be in topological order.
    """
    constants = ConstantValues(graph)
    for value in _parameters(graph):
        producer = value.producer()
        if producer is not None and producer.graph is graph:
            constants.fold(producer)


def _parameters(graph: ir.Graph) -> list[ir.Value]:
    found: list[ir.Value | None] = []
    for node in graph:
        if node.op_type in LAYER_TYPES:
            found += node.inputs[0 if node.op_type == "MatMul" else 1 :]
        elif node.op_type == "BatchNormalization":
            found += node.inputs[1:_BATCH_NORM_PARAMETERS]
        elif node.op_type in CONSTANT_TYPES and (_is_behind_matmul(node) or _is_beside_norm(node)):
            found += node.inputs
    return [value for value in found if value is not None]


def _is_behind_matmul(node: ir.Node) -> bool:
    makers = [value.producer() for value in node.inputs if value is not None]
    return node.op_type == "Add" and any(maker is not None and maker.op_type == "MatMul" for maker in makers)


def _is_beside_norm(node: ir.Node) -> bool:
    """Whether a BatchNormalization follows a Mul or Add, or stands before it with others of the kind between."""
    if any(use.node.op_type == "BatchNormalization" for use in node.outputs[0].uses()):
        return True
    makers = [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]
    while makers:
        maker = makers.pop()
        if maker.op_type == "BatchNormalization":
            return True
        if maker.op_type in CONSTANT_TYPES and len(maker.outputs[0].uses()) == 1:
            makers += [
                before for value in maker.inputs if value is not None and (before := value.producer()) is not None
            ]
    return False


def own_parameters(model: ir.Model) -> list[Event]:
    """Copy each weight and bias that a layer shares; the first layer keeps it unless another kind of node needs it as well."""
    names = value_names(model)
    slots: dict[ir.Value, list[tuple[ir.Node, int]]] = defaultdict(list)
    for node in model.graph:
        for position, value in _shared(node):
            slots[value].append((node, position))
    events = []
    for value, users in slots.items():
        copied = users[1:] if len(users) == len(value.uses()) and not value.is_graph_output() else users
        for node, position in copied:
            _copy(model.graph, node, position, names)
        if copied:
            events.append(_copied(value, [str(node.name) for node, _ in copied]))
    return events


def _shared(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return the constants that a layer which can be quantized reads and somebody else needs as well, with their positions."""
    if node.op_type not in LAYER_TYPES or node.domain:
        return []
    inputs = ((at, node.inputs[at]) for at in _PARAMETER_NAMES if at < len(node.inputs))
    found = [(at, value) for at, value in inputs if value is not None and _is_shared(value)]
    return found if found and refusal(node) is None else []  # a refusal looks at all values of a weight


def _is_shared(value: ir.Value) -> bool:
    return initializer_tensor(value) is not None and (len(value.uses()) > 1 or value.is_graph_output())


def _copy(graph: ir.Graph, node: ir.Node, position: int, names: UniqueNames) -> None:
    tensor = initializer_tensor(node.inputs[position])
    if tensor is not None:
        copy = make_initializer(graph, names.take(f"{node.name}.{_PARAMETER_NAMES[position]}"), tensor.numpy())
        node.replace_input_with(position, copy)


def _copied(value: ir.Value, layers: list[str]) -> Event:
    count = "1 layer got a copy of its own" if len(layers) == 1 else f"{len(layers)} layers got copies of their own"
    names = ", ".join(layers[:3]) + (", ..." if len(layers) > 3 else "")
    return Event("ingest", "info", f"'{value.name}' is shared; {count}: {names}", layers[0])


def normalise_products(model: ir.Model) -> None:
    """Bring every Gemm that can be quantized to transB = 0 with a bias [N], and every bias that is added to a MatMul to [N]."""
    names = value_names(model)
    for node in model.graph:
        if node.op_type == "Gemm" and not node.domain and refusal(node) is None:
            _transpose_weight(node)
            _flatten_gemm_bias(node)
        elif node.op_type == "MatMul" and not node.domain and refusal(node) is None:
            _flatten_matmul_bias(model.graph, node, names)


def _transpose_weight(node: ir.Node) -> None:
    weight = node.inputs[1]
    tensor = initializer_tensor(weight)
    if weight is None or tensor is None or not node.attributes.get_int("transB", 0):
        return
    set_initializer(weight, _transposed(tensor.numpy()))
    node.attributes.add(ir.AttrInt64("transB", 0))


def _transposed(matrix: Array) -> Array:
    """Return a transposed copy, made in strips whose source and target fit the cache: three times as fast as numpy's."""
    found = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), _STRIP):
        found[:, start : start + _STRIP] = matrix[start : start + _STRIP].T
    return found


def _flatten_gemm_bias(node: ir.Node) -> None:
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    tensor = initializer_tensor(bias)
    if weight is None or weight.shape is None or bias is None or tensor is None:
        return
    columns = int(weight.shape.numpy()[1])
    if tuple(tensor.shape.numpy()) != (columns,):
        set_initializer(bias, np.ascontiguousarray(np.broadcast_to(tensor.numpy().reshape(-1), (columns,))))


def _flatten_matmul_bias(graph: ir.Graph, node: ir.Node, names: UniqueNames) -> None:
    found = matmul_bias(node)
    if found is None:
        return
    add, bias, array = found
    flat = np.ascontiguousarray(array.reshape(-1))
    if len(bias.uses()) > 1 or bias.is_graph_output():
        bias = make_initializer(graph, names.take(f"{add.name}.bias"), flat)
    elif array.ndim != 1:
        set_initializer(bias, flat)
    add.replace_input_with(1 if add.inputs[0] is node.outputs[0] else 0, bias)
