"""Read an ONNX file: one clear error for whatever is no model, external data by path, a hash of everything read."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir

from calibrant.errors import CalibrantError, ModelError, first_line, nearest
from calibrant.ingest.file_tensors import Buffer, attach, parse_model

_PROTOBUF_LIMIT: Final = 2**31  # bytes; protobuf reads no larger message
_CHUNK: Final = 1 << 20
_SURPRISES: Final = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    RuntimeError,
)  # what libraries raise on a broken graph


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the surprise of a library about a broken model into one error; keep the libraries' own log lines quiet.

    An error of a model that onnx's checker accepts is not the model's fault and passes through.

    Raises:
        ModelError: onnx's checker finds the model invalid as well.
    """
    library = logging.getLogger("onnx_ir")
    level = library.level
    library.setLevel(logging.CRITICAL + 1)  # it logs what becomes one error here, and each failed shape inference
    try:
        yield
    except CalibrantError:
        raise
    except _SURPRISES as error:
        complaint = _complaint(path)
        if not complaint:
            raise
        message = f"model {path}: not a valid ONNX model ({complaint}); check it with onnx.checker"
        raise ModelError(message) from error
    finally:
        library.setLevel(level)


def _complaint(path: Path) -> str:
    """Return the first line of what onnx's checker says against a model, or an empty string."""
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, *_SURPRISES) as error:
        return first_line(error)
    return ""


def read_model(path: Path) -> ir.Model:
    """Read a model; weights in external files stay there and are mapped when used.

    Raises:
        ModelError: no such file, unreadable, not an ONNX model, truncated, without nodes, or external data that is missing.
    """
    model, _ = _model_of(path, _read_bytes(path))
    return model


@contextmanager
def hashed_model(path: Path) -> Iterator[tuple[ir.Model, Callable[[], str]]]:
    """Read a model; a thread hashes what was read while the block goes on.

    Yields:
        the model, and what returns the sha256 of the file and of its external data, once it is known.

    Raises:
        ModelError: as `read_model`.
    """
    data, digest = _read_bytes(path), hashlib.sha256()
    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        hashing = [pool.submit(digest.update, data.data)]
        model, files = _model_of(path, data)
        del data  # the file's bytes go as soon as they are hashed
        hashing += [pool.submit(_add_file, digest, file) for file in files]

        def source_hash() -> str:
            for part in hashing:
                part.result()
            return digest.hexdigest()

        yield model, source_hash


def _add_file(digest: "hashlib._Hash", file: Path) -> None:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)


def _model_of(path: Path, data: Buffer) -> tuple[ir.Model, list[Path]]:
    """Return the model that a file holds, and the files of its external data."""
    model = _deserialize(path, _parse(path, data))
    attach(model, data)
    _check_values(path, model)
    return model, _external_files(path, model)


def _read_bytes(path: Path) -> Buffer:
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
        return np.frombuffer(
            path.read_bytes(), np.uint8
        )  # large arrays of numpy's own lie in large pages, slow on some machines
    except OSError as error:
        message = f"model {path}: cannot be read ({error.strerror}); check its permissions"
        raise ModelError(message) from error


def _parse(path: Path, data: Buffer) -> onnx.ModelProto:
    if not len(data):
        message = f"model {path}: the file is empty"
        raise ModelError(message)
    try:
        proto = parse_model(data)
    except Exception as error:  # protobuf's DecodeError; only the proto room may import protobuf to name it
        raise _not_onnx(path, data) from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise _not_onnx(path, data)
    if not proto.graph.node:
        message = f"model {path}: the graph has no nodes, so there is nothing to quantize"
        raise ModelError(message)
    if not proto.graph.output:
        message = f"model {path}: the graph has no outputs, so that nothing in it is used"
        raise ModelError(message)
    return proto


def _not_onnx(path: Path, data: Buffer) -> ModelError:
    is_text = all(byte in b"\t\n\r" or byte >= 32 for byte in data[:256].tobytes())
    if is_text:
        return ModelError(f"model {path}: not an ONNX model but a text file; expected a binary .onnx file")
    return ModelError(
        f"model {path}: not an ONNX model, or truncated ({len(data)} bytes); expected a binary .onnx file, whole"
    )


def _deserialize(path: Path, proto: onnx.ModelProto) -> ir.Model:
    try:
        model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        message = f"model {path}: the ONNX graph is malformed ({_root_cause(error)}); check it with onnx.checker"
        raise ModelError(message) from error
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


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
    for output in model.graph.outputs:
        if output.producer() is None and not (output.is_graph_input() or output.is_initializer()):
            message = f"model {path}: nothing produces its output '{output.name}'; the file is damaged"
            raise ModelError(message)
    for graph in model.graphs():
        for node in graph:
            if not all(isinstance(text, str) for text in (node.name or "", node.op_type, node.domain)):
                message = f"model {path}: the name of node {node.name!r} is not UTF-8 text; the file is damaged"
                raise ModelError(message)
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
