"""How many bytes each value of a model takes for one sample, told by shape inference on the sample's own shapes."""

import math
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from calibrant.ingest.prepared import PreparedModel
from calibrant.ingest.samples import Sample

_SMALL = 1024  # elements of a constant that shapes may depend on; larger ones are left out of the copy


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return a copy in which large weights are inputs, so that nothing large is copied."""
    initializers = model.graph.initializers
    every = dict(initializers)
    constants = {name: value.const_value for name, value in every.items() if value.const_value is not None}
    large = {name: constant for name, constant in constants.items() if constant.size > _SMALL}
    try:
        for name in large:
            del initializers[name]
        proto = ir.to_proto(model)
    finally:
        initializers.clear()
        initializers.update(every)  # in their order
    proto.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, constant.dtype.value, constant.shape.numpy())
        for name, constant in large.items()
    )
    return proto


def _fix_shape(info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = info.type.tensor_type.shape
    dims.ClearField("dim")
    for size in shape:
        dims.dim.add().dim_value = size


def _inferred(prepared: PreparedModel, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    proto = _without_weights(prepared.model)
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
