"""Sessions of onnxruntime: one that exposes the tensors a run observes, and the options of those that judge a model."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from calibrant.errors import ModelError
from calibrant.ingest.exposed_graph import exposing, has_external_data
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.model_message import ModelMessage
from calibrant.ingest.samples import Array
from calibrant.stats.run import PREPARED_FILE

SESSION_ERRORS: Final = (
    state.EPFail, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf, state.NotImplemented,
    state.RuntimeException,
)  # fmt: skip
QUIET: Final = 4  # onnxruntime's log level: its errors come as exceptions, its warnings speak of its own optimizations
CAPTURED_DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float16))


class InferenceError(ModelError):
    """Onnxruntime refused a feed that fits the model's declared inputs."""


@contextmanager
def _session_source(model: onnx.ModelProto, beside: Path | None) -> Iterator[bytes | str]:
    """Give a model as onnxruntime takes it: bytes, or a file beside its external data."""
    if beside is None or not has_external_data(model):
        yield model.SerializeToString()
        return
    path = beside.with_name(f".{beside.stem}.{os.getpid()}.exposing.onnx")
    try:
        path.write_bytes(model.SerializeToString())
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def session_options(*, is_optimized: bool = False, threads: int = 0) -> Any:
    """Return the options of every capture session.

    Serial execution and all optimizations, which halve the CPU time of convolutions (docs/decisions/0004-capture-session.md).

    Args:
        is_optimized: the model is the result of such a session's optimizations, and has to stay as it is.
        threads: how many share one run; 0 for as many as there are cores.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if is_optimized else level.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = (
        False  # each shape of a batch would get a block of its own: a seventh more memory, no faster
    )
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to the fold
    options.log_severity_level = QUIET
    return options


def plain_options() -> Any:
    """Return the options of a session that computes what the file says, with graph optimizations off.

    onnxruntime's fused int8 kernels saturate on CPUs without VNNI, and its fusions move last bits; without them a result says
    something about the model rather than about the machine.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # idle pools would take the cores from BLAS
    options.log_severity_level = QUIET
    return options


def check_loads(path: Path) -> None:
    """Let onnxruntime load the whole model, so that what it refuses behind the last captured tensor costs no capture.

    Raises:
        ModelError: it refuses the model.
    """
    try:
        onnxruntime.InferenceSession(str(path), plain_options(), providers=["CPUExecutionProvider"])
    except SESSION_ERRORS as error:
        message = f"onnxruntime refuses the model: {_one_line(error)}; calibration and verify run it, so mend or cut that node"
        raise ModelError(message) from error


def loads(model: ModelMessage) -> bool:
    """Return whether onnxruntime takes a whole model; `check_loads` says of its file what it does not like."""
    options = plain_options()
    _share(model.outside(model.proto.graph), options)
    try:
        onnxruntime.InferenceSession(model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except SESSION_ERRORS:
        return False
    return True


def _opened(model: Path | ModelMessage, names: Sequence[str], options: Any) -> Any:
    path = model if isinstance(model, Path) else None
    try:
        source = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model.proto
        graph = exposing(source, names)
        if isinstance(model, ModelMessage):
            _share(model.outside(graph.graph), options)
        with _session_source(graph, path) as exposed:
            return onnxruntime.InferenceSession(exposed, options, providers=["CPUExecutionProvider"])
    except SESSION_ERRORS as error:
        message = f"{path or PREPARED_FILE}: onnxruntime cannot load the prepared model: {_one_line(error)}"
        raise ModelError(message) from error


def _share(weights: Mapping[str, Array], options: Any) -> None:
    """Let a session use these arrays as its weights, without a copy: they have to stay as long as it does."""
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """Where a session leaves the model that it optimized.

    Attributes:
        path: the file to write.
        data: beside it, for large weights.
    """

    path: Path
    data: Path

    def add_to(self, options: Any) -> None:
        """Ask for it."""
        options.optimized_model_filepath = str(self.path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", self.data.name)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")


class ActivationSession:
    """Runs the prepared model and returns every captured tensor.

    Args:
        model: the prepared model: a file, with external data beside it, or what lies in memory, which stays as it is.
        tensors: what to return, in this order.
        is_optimized: the model was optimized before, with more tensors exposed.
        threads: how many share one run; 0 for as many as there are cores.
        saves: where to leave the model as this session optimizes it, or None.
        blocked: captured tensor -> the value that holds it in blocks of channels, to be exposed in its place.

    Raises:
        ModelError: onnxruntime cannot load the model.
    """

    def __init__(
        self,
        model: Path | ModelMessage,
        tensors: Sequence[CapturedTensor],
        *,
        is_optimized: bool = False,
        threads: int = 0,
        saves: SavedModel | None = None,
        blocked: Mapping[str, str] | None = None,
    ) -> None:
        self._model = model  # its weights are the session's
        self._tensors = tensors
        self._names = [tensor.name for tensor in tensors if not tensor.is_input]
        self._exposed = [(blocked or {}).get(name, name) for name in self._names]
        options = session_options(is_optimized=is_optimized, threads=threads)
        if saves is not None:
            saves.add_to(options)
        self._session = _opened(model, self._exposed, options) if self._exposed else None

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """Return the tensors of one feed, in their order; graph inputs come from the feed itself.

        Raises:
            InferenceError: onnxruntime refuses the feed.
            ModelError: a captured tensor is neither float32 nor float16.
        """
        outputs = dict(zip(self._names, self._outputs(feed), strict=True))
        arrays = [feed[tensor.name] if tensor.is_input else outputs[tensor.name] for tensor in self._tensors]
        for tensor, array in zip(self._tensors, arrays, strict=True):
            if array.dtype not in CAPTURED_DTYPES:
                message = f"tensor '{tensor.name}' is {array.dtype}, expected float32 or float16; its layer cannot be quantized"
                raise ModelError(message)
        return arrays

    def _outputs(self, feed: Mapping[str, Array]) -> list[Array]:
        if self._session is None:
            return []
        try:
            outputs: list[Array] = self._session.run(self._exposed, dict(feed))
        except SESSION_ERRORS as error:
            raise InferenceError(_one_line(error)) from error
        return outputs


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
