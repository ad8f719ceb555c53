"""Score models on data: outputs with graph optimizations off, accuracy, agreement and SQNR."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from calibrant.errors import ShapeError
from calibrant.ingest.session import plain_options

Array = npt.NDArray[np.generic]


def open_session(model: Path) -> ort.InferenceSession:
    """Open a model with graph optimizations off; see `plain_options` for the reason."""
    return ort.InferenceSession(str(model), plain_options(), providers=["CPUExecutionProvider"])


def first_outputs(model: Path, feeds: Iterable[Mapping[str, Array]]) -> Array:
    """Return the model's first output over all feeds, joined along axis 0: shape (N, ...)."""
    session = open_session(model)
    return np.concatenate([session.run(None, dict(feed))[0] for feed in feeds])


def top1_accuracy(outputs: Array, labels: Sequence[int] | Array) -> float:
    """Return the share of rows whose greatest entry is at the label.

    Args:
        outputs: shape (N, ...), one row a sample.
        labels: shape (N,), positions in a flattened row.

    Raises:
        ShapeError: as many rows as labels are needed.

    Example:
        >>> top1_accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), [1, 1])
        0.5
    """
    rows = np.asarray(outputs).reshape(len(outputs), -1)
    if len(rows) != len(labels):
        message = f"{len(rows)} outputs, but {len(labels)} labels"
        raise ShapeError(message)
    return float((rows.argmax(axis=1) == np.asarray(labels)).mean())


def output_sqnr_db(reference: Array, other: Array) -> float:
    """Return 10 log10(sum x^2 / sum (x - y)^2) in dB; infinite where the two are equal.

    Args:
        reference: x, of any shape, in any float type.
        other: y, of the same shape.

    Example:
        >>> output_sqnr_db(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
        20.0
    """
    x, y = np.asarray(reference, np.float64), np.asarray(other, np.float64)
    noise = float(((x - y) ** 2).sum())
    return float("inf") if noise == 0 else float(10 * np.log10((x**2).sum() / noise))
