"""Sessions of models that were built in memory, with graph optimizations off; nothing stays on disk."""

import tempfile
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort

from calibrant.errors import ExportError, first_line
from calibrant.export.evaluate import open_session
from calibrant.export.files import needs_external_data, write_model
from calibrant.export.proto_graph import session_of


def open_model(model: ir.Model) -> ort.InferenceSession:
    """Open a model in memory as `open_session` opens a file; one that no protobuf holds goes through a temporary folder.

    Raises:
        ExportError: onnxruntime refuses it.
    """
    if not needs_external_data(model):
        return session_of(ir.to_proto(model).SerializeToString())
    with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
        path = Path(folder) / "model.onnx"
        write_model(model, path)
        try:
            return open_session(path)
        except Exception as error:  # onnxruntime's exceptions have no common base
            message = f"onnxruntime cannot open the model: {first_line(error)}"
            raise ExportError(message) from error
