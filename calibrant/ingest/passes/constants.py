"""Constant values: which values do not depend on the inputs, what they are, and turning them into initializers.

Expressions are evaluated by onnxruntime itself, one node at a time, so that a folded value is the value the model computed.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

Array = npt.NDArray[Any]

_RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
_GROWTH_LIMIT: Final = 1 << 20  # elements; a larger result is kept as an expression unless its inputs were as large
_FAILURES: Final = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
    KeyError,  # a dtype that onnx cannot name
    TypeError,
    ValueError,
    RuntimeError,  # a dtype that onnxruntime cannot take from numpy
)


def initializer_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer that no caller can override, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def make_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add an initializer; the name must be free."""
    value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
    value.dtype = ir.DataType.from_numpy(array.dtype)
    value.shape = ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def set_initializer(value: ir.Value, array: Array) -> None:
    """Give an initializer other contents under its own name."""
    value.const_value = ir.Tensor(array, name=value.name)
    value.dtype = ir.DataType.from_numpy(array.dtype)
    value.shape = ir.Shape(array.shape)


class ConstantValues:
    """The values of one graph that do not depend on its inputs.

    The graph must be in topological order. Nodes with subgraphs and random nodes are never constant.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._known: dict[ir.Value, Array | None] = {}
        self._constant: set[ir.Value] = set()
        for node in graph:
            if _is_deterministic(node) and all(v is None or v in self for v in node.inputs):
                self._constant.update(node.outputs)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._constant or initializer_tensor(value) is not None

    def array(self, value: ir.Value) -> Array | None:
        """Return what `value` is; None where it depends on the inputs or cannot be evaluated."""
        tensor = initializer_tensor(value)
        if tensor is not None:
            return tensor.numpy()
        if value not in self._constant:
            return None
        if value not in self._known:
            self._evaluate(value.producer())
        return self._known.get(value)

    def know(self, value: ir.Value, array: Array) -> None:
        """Take a constant value from somebody who has computed it."""
        self._known[value] = array

    def fold(self, node: ir.Node) -> list[ir.Value]:
        """Replace a constant node by initializers of its outputs' names and return those; none where it has to stay."""
        outputs = [value for value in node.outputs if value.uses()]
        if not outputs or not all(v in self._constant and not v.is_graph_output() for v in node.outputs):
            return []
        arrays = [self.array(value) for value in outputs]
        known = [array for array in arrays if array is not None]
        if len(known) < len(arrays) or not _is_cheap(known, node):
            return []
        folded = [make_initializer(self._graph, str(v.name), a) for v, a in zip(outputs, known, strict=True)]
        for value, initializer in zip(outputs, folded, strict=True):
            value.replace_all_uses_with(initializer)
        self._graph.remove(node, safe=True)
        return folded

    def _evaluate(self, node: ir.Node | None) -> None:
        if node is None:
            return
        inputs = [None if value is None else self.array(value) for value in node.inputs]
        missing = any(v is not None and a is None for v, a in zip(node.inputs, inputs, strict=True))
        arrays = None if missing else evaluate_node(node, inputs, self._graph.opset_imports.get(node.domain, 1))
        for position, output in enumerate(node.outputs):
            self._known[output] = None if arrays is None else arrays[position]


def evaluate_node(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
    """Run one node in onnxruntime under this version of its operator set; None where it cannot be run alone."""
    proto: onnx.NodeProto = ir.to_proto(node)
    names = ["" if array is None else f"input_{i}" for i, array in enumerate(inputs)]
    outputs = [f"output_{i}" for i in range(len(node.outputs))]
    del proto.input[:], proto.output[:], proto.metadata_props[:]
    proto.input.extend(names)
    proto.output.extend(outputs)
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    try:
        return _run(proto, feeds, outputs, opset)
    except _FAILURES:
        return None


def _run(node: onnx.NodeProto, feeds: dict[str, Array], outputs: list[str], opset: int) -> list[Array]:
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph([node], "constant", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    imports = [helper.make_opsetid(node.domain, opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # a failure is no news here: the expression then stays
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(outputs, feeds)]


def _is_deterministic(node: ir.Node) -> bool:
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return node.op_type not in _RANDOM and not any(a.type in graphs for a in node.attributes.values())


def _is_cheap(arrays: Sequence[Array], node: ir.Node) -> bool:
    size = sum(array.size for array in arrays)
    sources = [0 if (tensor := initializer_tensor(value)) is None else tensor.size for value in node.inputs]
    return size <= max(_GROWTH_LIMIT, sum(sources))
