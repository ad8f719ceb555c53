"""Tensors that stay in the bytes of their file: the model is the one that protobuf reads from the whole file, damaged or not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from calibrant.ingest.file_tensors import FileTensor, attach, parse_model
from calibrant.ingest.source import read_model
from tests import models

Array = npt.NDArray[Any]


def large(shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> Array:
    """Return other values in each place."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def model_of(*tensors: onnx.TensorProto, value: onnx.TensorProto | None = None) -> onnx.ModelProto:
    """Return a model with these initializers, and a Constant of a value."""
    proto = models.conv_relu()
    proto.graph.initializer.extend(tensors)
    if value is not None:
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["constant"], "constant", value=value))
    return proto


def as_bytes(content: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def restored(proto: onnx.ModelProto, content: bytes) -> tuple[onnx.ModelProto, int]:
    """Put the values that were left out back, as the marks say; return how many there were."""
    marked = [tensor for tensor in tensors_of(proto) if any(entry.value == "\0" for entry in tensor.external_data)]
    for tensor in marked:
        places = {entry.key: entry.value for entry in tensor.external_data}
        start = int(places["offset"])
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = content[start : start + int(places["length"])]
    return proto, len(marked)


def both(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    content = proto.SerializeToString()
    return restored(parse_model(as_bytes(content)), content)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.int32, np.int8, np.uint8])
def test_large_tensors_are_left_out_and_the_rest_is_as_it_was(dtype: type[np.generic]) -> None:
    tensor = numpy_helper.from_array(large((9, 700), dtype), "large")
    proto = model_of(tensor, value=numpy_helper.from_array(large((5000,), dtype), "value"))
    assert both(proto) == (proto, 2)


def test_small_tensors_stay_in_the_message() -> None:
    proto = model_of(numpy_helper.from_array(large((10,)), "small"))
    assert both(proto) == (proto, 0)


def both_kinds_of_data(tensor: onnx.TensorProto) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL


def fewer_values_than_its_sizes_say(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] += 1


def segments(tensor: onnx.TensorProto) -> None:
    tensor.segment.begin = 0


def half_bytes(tensor: onnx.TensorProto) -> None:
    tensor.data_type = onnx.TensorProto.UINT4


def no_type(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("data_type")


@pytest.mark.parametrize("change", [both_kinds_of_data, fewer_values_than_its_sizes_say, segments, half_bytes, no_type])
def test_a_tensor_that_is_unlike_others_stays_in_the_message(change: Callable[[onnx.TensorProto], None]) -> None:
    tensor = numpy_helper.from_array(large((9, 700)), "large")
    change(tensor)
    proto = model_of(tensor)
    assert both(proto) == (proto, 0)


def test_of_values_given_twice_protobuf_takes_the_last() -> None:
    first, last = (onnx.TensorProto(raw_data=large((5000,)).tobytes()[start:]) for start in (0, 8))
    head = onnx.TensorProto(name="twice", data_type=1, dims=[4998])
    tensor = b"".join(part.SerializeToString() for part in (head, first, last))
    graph = onnx.GraphProto(initializer=[onnx.TensorProto.FromString(tensor)])
    content = model_of().SerializeToString() + onnx.ModelProto(graph=graph).SerializeToString()
    found, _ = restored(parse_model(as_bytes(content)), content)
    assert found == onnx.ModelProto.FromString(content)


def test_values_are_read_only_and_aligned_wherever_they_lie() -> None:
    wanted = large((5000,))
    for name in ("n", "na", "nam", "name"):  # moves the values by a byte
        content = as_bytes(model_of(numpy_helper.from_array(wanted, name)).SerializeToString())
        model = ir.from_proto(parse_model(content))
        attach(model, content)
        tensor = model.graph.initializers[name].const_value
        assert isinstance(tensor, FileTensor)
        array = tensor.numpy()
        assert (array.flags.aligned, array.flags.writeable, str(array.dtype), array.shape) == (
            True,
            False,
            "float32",
            (5000,),
        )
        np.testing.assert_array_equal(array, wanted)
        assert tensor.tobytes() == wanted.tobytes()


def test_a_model_that_is_read_becomes_the_message_it_was(tmp_path: Path) -> None:
    proto = model_of(
        numpy_helper.from_array(large((9, 700)), "large"), value=numpy_helper.from_array(large((5000,)), "v")
    )
    proto.graph.initializer[-1].doc_string = "said of it"
    found = ir.to_proto(read_model(models.save(proto, tmp_path / "m.onnx")))
    (expected,) = (tensor for tensor in proto.graph.initializer if tensor.name == "large")
    assert next(tensor for tensor in found.graph.initializer if tensor.name == "large") == expected
    assert found.graph.node[0] == proto.graph.node[0]


CONTENT = model_of(
    numpy_helper.from_array(large((3, 700)), "large"), value=numpy_helper.from_array(large((2000,)), "value")
).SerializeToString()
HEADS = [at for at in range(len(CONTENT)) if CONTENT[at : at + 1].isalpha() or at < 600]


def parsed(parse: Callable[[], onnx.ModelProto]) -> onnx.ModelProto | None:
    """Return a message; None where it is refused."""
    try:
        return parse()
    except Exception:
        return None


@given(st.lists(st.tuples(st.sampled_from(HEADS), st.integers(0, 255)), max_size=4), st.integers(0, len(CONTENT)))
def test_damaged_bytes_are_what_protobuf_makes_of_them(changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(CONTENT)
    for at, byte in changes:
        damaged[at] = byte
    content = bytes(damaged if length % 2 else damaged[:length])
    expected = parsed(lambda: onnx.ModelProto.FromString(content))
    found = parsed(lambda: restored(parse_model(as_bytes(content)), content)[0])
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
