"""How many bytes each value of a model takes for one sample, told by shape inference on the sample's own shapes."""

import math
from collections.abc import Mapping

import onnx

from calibrant.ingest.model_message import is_marked, skeleton_of
from calibrant.ingest.prepared import PreparedModel
from calibrant.ingest.samples import Sample


def _without_weights(prepared: PreparedModel) -> onnx.ModelProto:
    """Return a copy in which large weights are inputs, so that nothing large is copied."""
    source = skeleton_of(prepared.model) if prepared.message is None else prepared.message.proto
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    proto.graph.ClearField("initializer")
    for tensor in source.graph.initializer:
        if is_marked(tensor):
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.input.append(info)
        else:
            proto.graph.initializer.append(tensor)
    return proto


def _fix_shape(info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = info.type.tensor_type.shape
    dims.ClearField("dim")
    for size in shape:
        dims.dim.add().dim_value = size


def _inferred(prepared: PreparedModel, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    proto = _without_weights(prepared)
    for info in proto.graph.input:
        if info.name in shapes:
            _fix_shape(info, shapes[info.name])
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    proto.graph.ClearField("value_info")
    try:
        inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError:  # an estimate is no reason to refuse what onnxruntime may run
        return proto
    return inferred


def value_bytes(prepared: PreparedModel, sample: Sample, fixed_batch: int) -> dict[str, int]:
    """Return value name -> bytes for one sample; values whose shapes cannot be told are left out.

    Args:
        prepared: the model.
        sample: whose shapes the inputs get.
        fixed_batch: samples in the model's own batch; 1 where it takes any.
    """
    given = {name: array.shape for name, array in sample.values.items()}
    batched = {
        spec.name: tuple(
            size * (fixed_batch if axis == spec.batch_axis else 1) for axis, size in enumerate(given[spec.name])
        )
        for spec in prepared.inputs
    }
    graph = _inferred(prepared, batched).graph
    found = {name: array.nbytes for name, array in sample.values.items()}
    for info in (*graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            items = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize if kind.elem_type else 4
            found[info.name] = math.ceil(math.prod(dim.dim_value for dim in kind.shape.dim) * items / fixed_batch)
    return found
