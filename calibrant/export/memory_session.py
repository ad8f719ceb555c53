"""Sessions of models that were built in memory, with graph optimizations off; nothing stays on disk."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort

from calibrant.errors import ExportError, first_line
from calibrant.export.evaluate import open_session
from calibrant.export.files import needs_external_data, write_model
from calibrant.export.proto_graph import session_of


@contextmanager
def session_source(model: ir.Model) -> Iterator[bytes | Path]:
    """Give a model as onnxruntime takes it: bytes, or a file in a temporary folder where no protobuf holds its weights.

    Raises:
        ExportError: the temporary folder has no space.
    """
    if not needs_external_data(model):
        yield ir.to_proto(model).SerializeToString()
        return
    with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
        path = Path(folder) / "model.onnx"
        write_model(model, path)
        yield path


def open_model(model: ir.Model) -> ort.InferenceSession:
    """Open a model in memory as `open_session` opens a file.

    Raises:
        ExportError: onnxruntime refuses it.
    """
    with session_source(model) as source:
        if isinstance(source, bytes):
            return session_of(source)
        try:
            return open_session(source)
        except Exception as error:  # onnxruntime's exceptions have no common base
            message = f"onnxruntime cannot open the model: {first_line(error)}"
            raise ExportError(message) from error
