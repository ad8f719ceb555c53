"""How near the outputs of a model are to those of the float model, sample by sample: pure functions of arrays.

A metric has *terms*, a few numbers of each sample, and a combination of them over samples; SQNR is a ratio of sums and no mean.
Formulas and their sources: docs/evaluation.md.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, log10
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibrant.errors import ConfigError, nearest

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Terms = tuple[float, ...]

_TINY: Final = 1e-12  # the least probability that a logarithm sees
_SUM_TOLERANCE: Final = 1e-3  # how far from 1 the sum of float16 probabilities may be
_TOP: Final = 5


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of outputs against those of the float model, or against labels.

    Attributes:
        name: as in the table `evaluation`.
        per_sample: (reference, output, label) of one sample, the arrays of equal shape -> its terms.
        combine: terms of all samples, shape (N, K) -> value.
        unit: dB, nat, "share of samples", or that of the output.
        higher_is_better: whether a greater value is nearer to the reference.
        needs_labels: whether it compares with labels instead of the reference.
        needs_classes: whether it means something for an output of one vector a sample only.
        needs_vectors: whether it says nothing of one number but its sign.
    """

    name: str
    per_sample: Callable[[Array, Array, int | None], Terms]
    combine: Callable[[Floats], float]
    unit: str
    higher_is_better: bool
    needs_labels: bool = False
    needs_classes: bool = False
    needs_vectors: bool = False


def power_and_noise(reference: Array, output: Array) -> tuple[float, float]:
    """Return sum x^2 and sum (x - y)^2 in float64; equal infinities and NaN at equal places are no noise, infinities no power.

    Example:
        >>> power_and_noise(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
        (25.0, 0.25)
    """
    x, y = np.asarray(reference, np.float64), np.asarray(output, np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):  # float64 outputs may have powers that it has not
        difference = np.subtract(x, y, out=np.zeros_like(x), where=~same)
        return float(np.sum(x[np.isfinite(x)] ** 2)), float(np.sum(difference**2))


def decibels(power: float, noise: float) -> float:
    """Return 10 log10(power / noise): infinite without noise, -infinite where there is noise alone, or without end.

    Example:
        >>> decibels(25.0, 0.25)
        20.0
    """
    if noise == 0:
        return inf
    ratio = power / noise
    return -inf if ratio == 0 or noise == inf else 10 * log10(ratio)


def cosine(reference: Array, output: Array) -> float:
    """Return the cosine of the angle between two flattened arrays; two zero arrays are alike (1), a zero one is like no other (0).

    Example:
        >>> round(cosine(np.array([1.0, 1.0]), np.array([1.0, 0.0])), 6)
        0.707107
    """
    x, y = _flat(reference), _flat(output)
    with np.errstate(all="ignore"):  # what is not finite gives NaN
        lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
        if lengths == 0:
            return float(not x.any() and not y.any())
        return float(np.clip(x @ y / lengths, -1, 1))


def amct_similarity(reference: Array, output: Array) -> float:
    """Return AMCT's similarity 0.5 + 0.5 cos; 1 for a zero reference, else 0 for a zero output (common/auto_calibration).

    Example:
        >>> amct_similarity(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        0.5
    """
    if not np.any(reference):
        return 1.0
    return 0.5 + 0.5 * cosine(reference, output) if np.any(output) else 0.0


def kl_divergence(reference: Array, output: Array) -> float:
    """Return sum p log(p / q) in nats over the last axis longer than 1, the mean over the other axes.

    p and q are the outputs themselves where those of the reference are probabilities (none negative, sums of 1 up to 1e-3), else
    their softmax. q is scaled to a sum of 1, and no probability counts as less than 1e-12. NaN where either is not finite; 0 of
    outputs without values.

    Example:
        >>> round(kl_divergence(np.array([0.5, 0.5]), np.array([0.25, 0.75])), 6)
        0.143841
    """
    x, y = _rows(reference), _rows(output)
    if not x.size:
        return 0.0
    with np.errstate(invalid="ignore"):  # what is not finite gives NaN
        p, q = (_scaled(x), _scaled(y)) if _are_probabilities(x) else (_softmax(x), _softmax(y))
    terms = np.where(p > 0, p * (np.log(np.maximum(p, _TINY)) - np.log(np.maximum(q, _TINY))), 0)
    return float(terms.sum(axis=1).mean()) if np.isfinite(p).all() and np.isfinite(q).all() else float("nan")


def rank_of(output: Array, label: int) -> float:
    """Return how many entries of a flattened output come before the label's: greater ones, and equal ones of lower index.

    An output that is one whole number is the class itself: nothing comes before it, and it before every other.

    Example:
        >>> rank_of(np.array([0.1, 0.7, 0.7]), 2)
        1.0
    """
    y = _flat(output)
    if is_class(output):
        return 0.0 if y[0] == label else inf
    if not 0 <= label < len(y) or np.isnan(y).any():
        return inf
    return float(np.count_nonzero(y > y[label]) + np.count_nonzero(y[:label] == y[label]))


def predicted_class(output: Array) -> int:
    """Return the index of the greatest entry of a flattened output (the first of equal ones), or -1 where it holds NaN.

    An output that is one whole number is the class itself.

    Example:
        >>> predicted_class(np.array([[0.1, 0.9]]))
        1
    """
    if is_class(output):
        return int(np.asarray(output).reshape(-1)[0])
    y = _flat(output)
    return -1 if not y.size or np.isnan(y).any() else int(y.argmax())


def has_classes(output: Array) -> bool:
    """Return whether an output of one sample is one vector of scores (one axis longer than 1), or the class itself.

    Example:
        >>> has_classes(np.zeros((1, 10, 1, 1))), has_classes(np.zeros((1, 40, 97))), has_classes(np.zeros((1, 1)))
        (True, False, False)
    """
    return len([size for size in np.shape(output) if size > 1]) == 1 or is_class(output)


def is_class(output: Array) -> bool:
    """Return whether an output of one sample is one whole number, such as ArgMax at the end of a model gives.

    Example:
        >>> is_class(np.array([3])), is_class(np.array([3.0]))
        (True, False)
    """
    return np.size(output) == 1 and np.asarray(output).dtype.kind in "iu"


def _flat(array: Array) -> Floats:
    return np.asarray(array, np.float64).ravel()


def _rows(array: Array) -> Floats:
    """Return the array as rows along its last axis longer than 1."""
    values = np.asarray(array, np.float64)
    long = [size for size in values.shape if size > 1]
    return values.reshape(-1, long[-1] if long else 1)


def _are_probabilities(x: Floats) -> bool:
    near_one: npt.NDArray[np.bool_] = np.abs(x.sum(axis=1) - 1) <= _SUM_TOLERANCE
    return bool((x >= 0).all()) and bool(near_one.all())


def _scaled(x: Floats) -> Floats:
    positive = np.maximum(x, 0)  # keeps NaN
    return np.asarray(positive / np.maximum(positive.sum(axis=1, keepdims=True), _TINY))


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _mean(terms: Floats) -> float:
    return float(terms.mean())


def _greatest(terms: Floats) -> float:
    return float(terms.max())


def _ratio_db(terms: Floats) -> float:
    power, noise = terms.sum(axis=0)
    return decibels(float(power), float(noise))


def _squared_error(x: Array, y: Array) -> float:
    return power_and_noise(x, y)[1] / max(np.size(x), 1)


def _largest_error(x: Array, y: Array) -> float:
    a, b = _flat(x), _flat(y)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same)).max(initial=0))


def _agrees(x: Array, y: Array) -> float:
    return float(predicted_class(x) == predicted_class(y))


def _is_among(output: Array, label: int | None, first: int) -> float:
    return float(label is not None and rank_of(output, label) < first)


_SHARE: Final = "share of samples"
_METRICS: Final = (
    Metric("top1", lambda _, y, c: (_is_among(y, c, 1),), _mean, _SHARE, higher_is_better=True, needs_labels=True),
    Metric("top5", lambda _, y, c: (_is_among(y, c, _TOP),), _mean, _SHARE, higher_is_better=True, needs_labels=True),
    Metric("agreement", lambda x, y, _: (_agrees(x, y),), _mean, _SHARE, higher_is_better=True, needs_classes=True),
    Metric("cosine", lambda x, y, _: (cosine(x, y),), _mean, "", higher_is_better=True, needs_vectors=True),
    Metric(
        "amct_similarity",
        lambda x, y, _: (amct_similarity(x, y),),
        _mean,
        "",
        higher_is_better=True,
        needs_vectors=True,
    ),
    Metric("sqnr_db", lambda x, y, _: power_and_noise(x, y), _ratio_db, "dB", higher_is_better=True),
    Metric("kl", lambda x, y, _: (kl_divergence(x, y),), _mean, "nat", higher_is_better=False),
    Metric("mse", lambda x, y, _: (_squared_error(x, y),), _mean, "output squared", higher_is_better=False),
    Metric("max_abs", lambda x, y, _: (_largest_error(x, y),), _greatest, "output", higher_is_better=False),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _METRICS}
_ALIASES: Final = {"sqnr": "sqnr_db", "amct": "amct_similarity", "cos": "cosine"}


def find_metric(name: str) -> Metric:
    """Return the metric of a name; ``sqnr`` is ``sqnr_db``.

    Raises:
        ConfigError: there is none; the message has the nearest name and all names.

    Example:
        >>> find_metric("sqnr").name
        'sqnr_db'
    """
    found = METRICS.get(_ALIASES.get(name, name))
    if found is None:
        message = (
            f"--metric: no metric '{name}'{nearest(name, [*METRICS, *_ALIASES])}; "
            f"metrics: {', '.join(METRICS)}, or module:function of your own"
        )
        raise ConfigError(message)
    return found


def score(
    metric: Metric, reference: Iterable[Array], outputs: Iterable[Array], labels: Iterable[int] | None = None
) -> float:
    """Return a metric's value over samples.

    Example:
        >>> score(METRICS["sqnr_db"], [np.array([3.0]), np.array([4.0])], [np.array([3.0]), np.array([4.5])])
        20.0
    """
    pairs = list(zip(reference, outputs, strict=True))
    chosen = list(labels) if labels is not None else [None] * len(pairs)
    terms = [metric.per_sample(x, y, label) for (x, y), label in zip(pairs, chosen, strict=True)]
    return metric.combine(np.asarray(terms, np.float64))
