"""A session that judges a model, and the SQNR of two arrays."""

from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from calibrant.export.metrics import decibels, power_and_noise
from calibrant.ingest.session import plain_options

Array = npt.NDArray[Any]


def open_session(model: Path) -> ort.InferenceSession:
    """Open a model with graph optimizations off; see `plain_options` for the reason."""
    return ort.InferenceSession(str(model), plain_options(), providers=["CPUExecutionProvider"])


def output_sqnr_db(reference: Array, other: Array) -> float:
    """Return 10 log10(sum x^2 / sum (x - y)^2) in dB; infinite where the two are equal.

    Args:
        reference: x, of any shape, in any float type.
        other: y, of the same shape.

    Example:
        >>> import numpy as np
        >>> output_sqnr_db(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
        20.0
    """
    return decibels(*power_and_noise(reference, other))
