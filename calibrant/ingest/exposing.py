"""Sessions that expose some of the captured tensors, with the bits that one session of all of them gives.

onnxruntime optimizes what is not exposed: another choice of outputs is another graph, whose last bits may differ. So the graph is optimized
once, with all tensors exposed, and every session of a part is cut from the result without further optimization.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.session import ActivationSession, save_optimized


class ExposedModel:
    """Opens sessions of one prepared model; used as a context, it takes its file away.

    Args:
        path: the prepared model.
        tensors: all that the run captures.
    """

    def __init__(self, path: Path, tensors: Sequence[CapturedTensor]) -> None:
        self._path = path
        self._tensors = tuple(tensors)
        self._optimized = path.with_name(f".{path.stem}.{os.getpid()}.optimized.onnx")

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the optimized model."""
        for path in (self._optimized, self._data):
            path.unlink(missing_ok=True)

    @property
    def _data(self) -> Path:
        return self._optimized.with_name(f"{self._optimized.name}.data")

    def session(self, tensors: Sequence[CapturedTensor]) -> ActivationSession:
        """Return a session that gives these tensors.

        Raises:
            ModelError: onnxruntime cannot load the model.
        """
        if tuple(tensors) == self._tensors:
            return ActivationSession(self._path, tensors)
        if not self._optimized.exists():
            save_optimized(self._path, self._tensors, self._optimized, self._data)
        return ActivationSession(self._optimized, tensors, is_optimized=True)
