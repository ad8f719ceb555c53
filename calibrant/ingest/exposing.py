"""Sessions that expose some of the captured tensors, with the bits that one session of all of them gives.

onnxruntime optimizes what is not exposed: another choice of outputs is another graph, whose last bits may differ. So the graph is optimized
once, with all tensors exposed, and every session of a part is cut from the result without further optimization; so is the session that
gives convolutions' tensors in blocks of channels.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import onnx

from calibrant.ingest.blocked import blocked_values
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.model_message import ModelMessage
from calibrant.ingest.session import ActivationSession, SavedModel


class Sessions(NamedTuple):
    """Two sessions of the same tensors.

    Attributes:
        ordered: gives them as the model says.
        blocked: gives some of them in blocks of channels, or None where none come so.
        names: of these.
    """

    ordered: ActivationSession
    blocked: ActivationSession | None
    names: frozenset[str]


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
        if tuple(tensors) == self._tensors:
            return ActivationSession(self._model, tensors, threads=self._threads)
        if not self._saved.path.exists():
            self._optimizing()
        return self._part(self._saved.path, tensors)

    def sessions(self) -> Sessions:
        """Return a session that gives all tensors, and one that spares convolutions' tensors their reordering.

        Raises:
            ModelError: onnxruntime cannot load the model.
        """
        ordered = self._optimizing()
        if not self._saved.path.exists():
            return Sessions(ordered, None, frozenset())  # all that is captured are inputs
        optimized = onnx.load(self._saved.path, load_external_data=False)
        values = blocked_values(optimized, self._tensors)
        blocked = self._part(self._saved.path, self._tensors, values) if values else None
        return Sessions(ordered, blocked, frozenset(values))

    def _optimizing(self) -> ActivationSession:
        """Open the session of all tensors, and save what it made of the model."""
        return ActivationSession(self._model, self._tensors, threads=self._threads, saves=self._saved)

    def _part(
        self, model: Path, tensors: Sequence[CapturedTensor], blocked: Mapping[str, str] | None = None
    ) -> ActivationSession:
        return ActivationSession(model, tensors, is_optimized=True, threads=self._threads, blocked=blocked)
