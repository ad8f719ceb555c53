"""Sessions that expose some of the captured tensors, with the bits that one session of all of them gives.

onnxruntime optimizes what is not exposed: another choice of outputs is another graph, whose last bits may differ. So the graph is optimized
once, with all tensors exposed, and every session of a part is cut from the result without further optimization; so is the session that
gives convolutions' tensors in blocks of channels.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import onnx

from calibrant.ingest.blocked import blocked_values
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.model_message import ModelMessage
from calibrant.ingest.session import ActivationSession, SavedModel

COMPARED: Final = (
    4  # tensors whose blocks are compared with the channels in order: all have one number of channels side by side
)


class BlockedSession(NamedTuple):
    """A session that gives some tensors in blocks of channels, and what proves how they lie.

    Attributes:
        session: gives all tensors.
        names: of those that come in blocks.
        compared: some of these.
        ordered: gives these with their channels in order.
    """

    session: ActivationSession
    names: frozenset[str]
    compared: tuple[str, ...]
    ordered: ActivationSession


class ExposedModel:
    """Opens sessions of one prepared model; used as a context, it takes its file away.

    Args:
        model: the prepared model: in memory, or a file with external data beside it.
        tensors: all that the run captures.
        folder: where the optimized model may lie meanwhile.
        threads: how many share one run; 0 for as many as there are cores.
    """

    def __init__(
        self, model: Path | ModelMessage, tensors: Sequence[CapturedTensor], folder: Path, *, threads: int = 0
    ) -> None:
        self._model = model
        self._tensors = tuple(tensors)
        self._threads = threads
        self._whole: ActivationSession | None = None  # opened already
        optimized = folder / f".prepared.{os.getpid()}.optimized.onnx"
        self._saved = SavedModel(optimized, optimized.with_name(f"{optimized.name}.data"))

    def __enter__(self) -> Self:
        """Start."""
        self._saved.path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the optimized model."""
        for path in (self._saved.path, self._saved.data):
            path.unlink(missing_ok=True)

    def session(self, tensors: Sequence[CapturedTensor]) -> ActivationSession:
        """Return a session that gives these tensors.

        Raises:
            ModelError: onnxruntime cannot load the model.
        """
        if tuple(tensors) == self._tensors and self._whole is not None:
            whole, self._whole = self._whole, None
            return whole
        if tuple(tensors) == self._tensors:
            return ActivationSession(self._model, tensors, threads=self._threads)
        if not self._saved.path.exists():
            self._optimizing()
        return self._part(self._saved.path, tensors)

    def blocked_session(self) -> BlockedSession | None:
        """Return a session that spares convolutions' tensors their reordering; None where there are none.

        Raises:
            ModelError: onnxruntime cannot load the model.
        """
        if not self._has_convolutions():
            return None
        whole = self._optimizing()
        values = self._blocked_values()
        if not values:
            self._whole = whole
            return None
        first = [tensor for tensor in self._tensors if tensor.name in values][:COMPARED]
        blocked = self._part(self._saved.path, self._tensors, values)
        ordered = self._part(self._saved.path, first)
        return BlockedSession(blocked, frozenset(values), tuple(tensor.name for tensor in first), ordered)

    def _has_convolutions(self) -> bool:
        """Only they have blocks; other models need not be written to a file."""
        model = self._model
        graph = (
            model.proto.graph if isinstance(model, ModelMessage) else onnx.load(model, load_external_data=False).graph
        )
        return any(node.op_type == "Conv" for node in graph.node)

    def _blocked_values(self) -> dict[str, str]:
        if not self._saved.path.exists():
            return {}  # all that is captured are inputs
        return blocked_values(onnx.load(self._saved.path, load_external_data=False), self._tensors)

    def _optimizing(self) -> ActivationSession:
        """Open the session of all tensors, and save what it made of the model."""
        return ActivationSession(self._model, self._tensors, threads=self._threads, saves=self._saved)

    def _part(
        self, model: Path, tensors: Sequence[CapturedTensor], blocked: Mapping[str, str] | None = None
    ) -> ActivationSession:
        return ActivationSession(model, tensors, is_optimized=True, threads=self._threads, blocked=blocked)
