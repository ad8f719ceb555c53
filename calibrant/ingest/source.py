"""Read an ONNX file: one clear error for whatever is no model, external data by path, a hash of everything read."""

import hashlib
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from calibrant.errors import ModelError, nearest

_PROTOBUF_LIMIT: Final = 2**31  # bytes; protobuf reads no larger message
_CHUNK: Final = 1 << 20


def read_model(path: Path) -> ir.Model:
    """Read a model; weights in external files stay there and are mapped when used.

    Raises:
        ModelError: no such file, unreadable, not an ONNX model, truncated, without nodes, or external data that is missing.
    """
    data = _read_bytes(path)
    model = _deserialize(path, _parse(path, data))
    _check_values(path, model)
    _external_files(path, model)
    return model


def hash_model(path: Path, model: ir.Model) -> str:
    """Return the sha256 of the model's file and of its external data, as they were read."""
    digest = hashlib.sha256()
    for file in [path, *_external_files(path, model)]:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _read_bytes(path: Path) -> bytes:
    if not path.exists():
        siblings = [p.name for p in path.parent.glob("*.onnx")] if path.parent.is_dir() else []
        message = f"model {path}: no such file{nearest(path.name, siblings)}"
        raise ModelError(message)
    if path.is_dir():
        message = f"model {path}: is a folder; name the .onnx file in it"
        raise ModelError(message)
    if path.stat().st_size >= _PROTOBUF_LIMIT:
        message = f"model {path}: larger than 2 GB in one file, which protobuf cannot read; save it with external data"
        raise ModelError(message)
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"model {path}: cannot be read ({error.strerror}); check its permissions"
        raise ModelError(message) from error


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    if not data:
        message = f"model {path}: the file is empty"
        raise ModelError(message)
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError; only the proto room may import protobuf to name it
        raise _not_onnx(path, data) from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise _not_onnx(path, data)
    if not proto.graph.node:
        message = f"model {path}: the graph has no nodes, so there is nothing to quantize"
        raise ModelError(message)
    return proto


def _not_onnx(path: Path, data: bytes) -> ModelError:
    is_text = all(byte in b"\t\n\r" or byte >= 32 for byte in data[:256])
    if is_text:
        return ModelError(f"model {path}: not an ONNX model but a text file; expected a binary .onnx file")
    return ModelError(
        f"model {path}: not an ONNX model, or truncated ({len(data)} bytes); expected a binary .onnx file, whole"
    )


def _deserialize(path: Path, proto: onnx.ModelProto) -> ir.Model:
    try:
        model = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        message = f"model {path}: the ONNX graph is malformed ({_first_line(error)}); check it with onnx.checker"
        raise ModelError(message) from error
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    return (str(cause) or type(cause).__name__).splitlines()[0]


def _external_files(path: Path, model: ir.Model) -> list[Path]:
    tensors = [t for graph in model.graphs() for t in graph.initializers.tensors() if isinstance(t, ir.ExternalTensor)]
    for tensor in tensors:
        _check_external(path, tensor)
    return sorted({Path(tensor.path) for tensor in tensors})


def _check_external(path: Path, tensor: ir.ExternalTensor) -> None:
    file = Path(tensor.path)
    if not file.is_file():
        message = f"model {path}: its external data {file.name} is missing; put the file beside the model"
        raise ModelError(message)
    end = (tensor.offset or 0) + tensor.nbytes
    if file.stat().st_size < end:
        size = file.stat().st_size
        message = (
            f"model {path}: its external data {file.name} is too short ({size} bytes; '{tensor.name}' ends at {end})"
        )
        raise ModelError(message)


def _check_values(path: Path, model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            for value in node.inputs:
                if (
                    value is not None
                    and value.producer() is None
                    and not (value.is_graph_input() or value.is_initializer())
                ):
                    message = (
                        f"model {path}: node '{node.name}' ({node.op_type}) uses '{value.name}', which nothing produces"
                    )
                    raise ModelError(message)
