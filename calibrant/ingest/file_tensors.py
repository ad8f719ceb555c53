"""Large tensors of an ONNX file stay in the memory that the file was read into; only what is left becomes a message.

protobuf copies each byte of a message into memory of its own. For a model of 20 MB that takes longer than to normalise its graph. So the
values of large tensors are cut out before it parses: lengths of the messages around them are written anew, and a mark in the tensor says
where its values lie. Whatever is not as expected stays as it is, for protobuf to judge.

The encoding: https://protobuf.dev/programming-guides/encoding. The numbers of fields: onnx.proto.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

Buffer = npt.NDArray[np.uint8]
Parts = list[bytes | memoryview]
Change = Callable[[memoryview, int, int], Parts]  # gives a message that lies between two places anew
Changes = Mapping[int, Any]  # number of a field -> a Change, or the Changes of the fields in it

LARGE: Final = 1 << 12  # bytes; of smaller ones there are many, and they cost little
MARK: Final = "\0"  # the location of a tensor that was cut: the name of no file
GRAPH: Final = 7  # field of a model
INITIALIZER: Final = 5  # field of a graph
RAW_DATA: Final = 9  # field of a tensor
BYTES: Final = {
    onnx.TensorProto.FLOAT: 4, onnx.TensorProto.FLOAT16: 2, onnx.TensorProto.DOUBLE: 8, onnx.TensorProto.INT64: 8,
    onnx.TensorProto.INT32: 4, onnx.TensorProto.INT8: 1, onnx.TensorProto.UINT8: 1,
}  # fmt: skip
_SHIFTS: Final = range(0, 64, 7)  # of the parts of a number


class FileTensor(ir.LazyTensor):
    """A tensor whose values are part of a file's bytes, where they need not be aligned.

    Args:
        data: its values.
        like: what else is known of it.
    """

    def __init__(self, data: Buffer, like: ir.ExternalTensor) -> None:
        shape, more = ir.Shape(like.shape.numpy()), dict(like.metadata_props) or None
        super().__init__(
            self._aligned, like.dtype, shape, name=like.name, doc_string=like.doc_string, metadata_props=more
        )
        self._data = data

    def _aligned(self) -> ir.TensorProtocol:
        array = self._data.copy().view(self.dtype.numpy()).reshape(self.shape.numpy())
        array.flags.writeable = False
        return ir.Tensor(array)

    def tobytes(self) -> bytes:
        """Return its values as the file has them."""
        return self._data.tobytes()


def parse_model(data: Buffer) -> onnx.ModelProto:
    """Parse a model; values of large tensors are left out and marked, for `attach` to give them back.

    Raises:
        Exception: of protobuf, where the bytes are no message.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(b"".join(changed(data.data, 0, len(data), _CUTS, LARGE)))
    except Exception:  # a message that cannot be walked, or protobuf's own error, which only the proto room may name
        proto = onnx.ModelProto()
        proto.ParseFromString(data.tobytes())
    return proto


def attach(model: ir.Model, data: Buffer) -> None:
    """Give the tensors that `parse_model` marked their values, which stay part of `data`."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor) and value.const_value.location == MARK:
            value.const_value = _file_tensor(data, value.const_value)
    for node in model.graph:
        for name, attribute in node.attributes.items():
            tensor = attribute.value if attribute.type == ir.AttributeType.TENSOR else None
            if isinstance(tensor, ir.ExternalTensor) and tensor.location == MARK:
                node.attributes[name] = ir.AttrTensor(name, _file_tensor(data, tensor), doc_string=attribute.doc_string)


def _file_tensor(data: Buffer, marked: ir.ExternalTensor) -> FileTensor:
    start = marked.offset or 0
    return FileTensor(data[start : start + (marked.length or 0)], marked)


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Read a number of variable length; return it and where it ends."""
    value = 0
    for shift in _SHIFTS:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError


def _encoded(value: int) -> bytes:
    """Write a number of variable length."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each field with a length (0 for another), where it begins, where its content does, and where it ends."""
    while at < end:
        begin = at
        tag, at = _number(data, at)
        kind, number, content = tag & 7, tag >> 3, at
        if kind == 2:
            length, content = _number(data, at)
            at = content + length
        elif kind == 0:
            number, (_, at) = 0, _number(data, at)
        elif kind in (1, 5):
            number, at = 0, at + (8 if kind == 1 else 4)
        else:
            raise ValueError
        if at > end:
            raise ValueError
        yield number, begin, content, at


def changed(data: memoryview, start: int, end: int, changes: Changes, above: int) -> Iterator[bytes | memoryview]:
    """Yield the parts of a message with some of the messages in it changed.

    Args:
        data: holds the message.
        start: where it begins.
        end: where it ends.
        changes: of its fields.
        above: fields of at most so many bytes stay as they are.

    Raises:
        ValueError, IndexError: it is no message.
    """
    done = start
    for number, begin, content, stop in _fields(data, start, end):
        if stop - content <= above or number not in changes:
            continue
        change = changes[number]
        parts = change(data, content, stop) if callable(change) else list(changed(data, content, stop, change, above))
        yield data[done:begin]
        yield head(number, sum(map(len, parts)))
        yield from parts
        done = stop
    yield data[done:end]


def head(number: int, length: int) -> bytes:
    """Return what stands before a field of this length."""
    return _encoded(number << 3 | 2) + _encoded(length)


def _marked(data: memoryview, start: int, end: int) -> Parts:
    """Return the parts of a tensor: without its values and with a mark of their place, or as it is."""
    whole: Parts = [data[start:end]]
    found = [(begin, content, stop) for number, begin, content, stop in _fields(data, start, end) if number == RAW_DATA]
    if len(found) != 1:
        return whole
    begin, content, stop = found[0]
    tensor = onnx.TensorProto.FromString(bytes(data[start:begin]) + bytes(data[stop:end]))
    is_plain = not tensor.external_data and not tensor.data_location and not tensor.HasField("segment")
    if not is_plain or prod(tensor.dims) * BYTES.get(tensor.data_type, 0) != stop - content or stop == content:
        return whole
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", MARK), ("offset", str(content)), ("length", str(stop - content))):
        tensor.external_data.add(key=key, value=value)
    return [tensor.SerializeToString()]


_CUTS: Final[Changes] = {
    GRAPH: {INITIALIZER: _marked, 1: {5: {5: _marked}}}
}  # initializers, and the tensors of nodes' attributes
