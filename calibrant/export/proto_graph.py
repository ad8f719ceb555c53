"""Reading ONNX protos: attributes as Python values, outer-scope names of subgraphs, a float session on part of a graph."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from calibrant.errors import DataError, ExportError, first_line
from calibrant.export.external_data import beside_its_data
from calibrant.ingest.session import plain_options

Array = npt.NDArray[Any]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes; strings are decoded."""
    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def default_opset(model: onnx.ModelProto) -> int:
    """Return the version of the default domain, or 0 where it is not imported."""
    return max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=0)


def values_read(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those that its subgraphs take from the outer scope included."""
    names = {name for name in node.input if name}
    for graph in _subgraphs(node):
        names |= _free_names(graph)
    return names


def _free_names(graph: onnx.GraphProto) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in values_read(node)} | {value.name for value in graph.output}
    return read - own


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def session_of(model: onnx.ModelProto | bytes, folder: str | None = None) -> ort.InferenceSession:
    """Open a model in onnxruntime with graph optimizations off: the arithmetic of the file, nothing else.

    Args:
        model: the model or its serialized form.
        folder: where the model's external data stands, or None; a model of `load_model` knows that itself.

    Raises:
        ExportError: onnxruntime cannot open it.
    """
    if folder is None and isinstance(model, onnx.ModelProto):
        model, folder = beside_its_data(model)
    options = plain_options()
    options.enable_cpu_mem_arena = False  # an arena keeps its peak, and there is one a session
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    data = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base
        message = f"onnxruntime cannot open the model: {first_line(error)}"
        raise ExportError(message) from error


def run_session(session: ort.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """Run a session.

    Raises:
        DataError: onnxruntime refuses the inputs or fails on them.
    """
    try:
        found: list[Any] = session.run(list(outputs), dict(feeds))
    except Exception as error:  # as above
        message = f"onnxruntime fails on this sample: {first_line(error)}"
        raise DataError(message) from error
    return found


def part_of(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    initializers: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """Build a model of some nodes of another one.

    Args:
        model: where opsets and local functions come from.
        nodes: in topological order.
        inputs: values from outside, by name; only their types are used.
        outputs: names to return.
        initializers: constants that the nodes read.
    """
    graph = onnx.helper.make_graph(
        nodes, "part", [_typed(name, value) for name, value in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs], initializers,
    )  # fmt: skip
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    part.ir_version = max(model.ir_version, 4)  # from 4 on initializers need not be graph inputs
    return part


def _typed(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        element = onnx.helper.make_tensor_type_proto(_element_type(np.asarray(value[0])), None)
        return onnx.helper.make_value_info(name, onnx.helper.make_sequence_type_proto(element))
    return onnx.helper.make_tensor_value_info(name, _element_type(value), None)


def _element_type(value: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype))
