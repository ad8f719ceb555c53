"""Sessions that expose some of the captured tensors, with the bits that one session of all of them gives.

onnxruntime optimizes what is not exposed: another choice of outputs is another graph, whose last bits may differ. So the graph is optimized
once, with all tensors exposed, and every session of a part is cut from the result without further optimization; so is the session that
gives convolutions' tensors in blocks of channels.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from calibrant.ingest.blocked import BlockedSession, blocked_values, proven_blocks
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.samples import Array
from calibrant.ingest.session import ActivationSession, SavedModel

Session = ActivationSession | BlockedSession


class ExposedModel:
    """Opens sessions of one prepared model; used as a context, it takes its file away.

    Args:
        path: the prepared model.
        tensors: all that the run captures.
        threads: how many share one run; 0 for as many as there are cores.
    """

    def __init__(self, path: Path, tensors: Sequence[CapturedTensor], *, threads: int = 0) -> None:
        self._path = path
        self._tensors = tuple(tensors)
        self._threads = threads
        optimized = path.with_name(f".{path.stem}.{os.getpid()}.optimized.onnx")
        self._saved = SavedModel(optimized, optimized.with_name(f"{optimized.name}.data"))

    def __enter__(self) -> Self:
        """Start."""
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
            return ActivationSession(self._path, tensors, threads=self._threads)
        if not self._saved.path.exists():
            self._whole()
        return self._part(tensors)

    def fast_session(self, tensors: Sequence[CapturedTensor], feed: Mapping[str, Array]) -> Session:
        """Return a session that gives these tensors, in blocks of channels where that can be proven and saves time.

        Args:
            tensors: what to give.
            feed: of the first sample.

        Raises:
            ModelError: onnxruntime cannot load the model.
        """
        whole = None if self._saved.path.exists() else self._whole()
        if not self._saved.path.exists():
            return self.session(tensors)
        names = blocked_values(self._saved.path, tensors)
        ordered = whole if whole is not None and tuple(tensors) == self._tensors else self._part(tensors)
        if not names:
            return ordered
        return proven_blocks(self._part(tensors, names), ordered, tensors, names, feed) or ordered

    def _whole(self) -> ActivationSession:
        """Open the session of all tensors, and save what it made of the model."""
        return ActivationSession(self._path, self._tensors, threads=self._threads, saves=self._saved)

    def _part(self, tensors: Sequence[CapturedTensor], blocked: Mapping[str, str] | None = None) -> ActivationSession:
        return ActivationSession(self._saved.path, tensors, is_optimized=True, threads=self._threads, blocked=blocked)
