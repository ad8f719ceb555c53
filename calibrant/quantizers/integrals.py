"""Squared rounding errors from a histogram: exact integrals, given that values spread evenly inside a bin.

A bin whose centre lies d from its code's value and whose width w fits one cell contributes ``d**2 + w**2 / 12`` a value; one
that spans many cells tends to ``scale**2 / 12``; one that a clip end cuts is split there. All three are one antiderivative (`_kernels`).
"""

import numpy as np

from calibrant.errors import DataError, EmptyDataError
from calibrant.quantizers._kernels import integral_losses
from calibrant.quantizers.affine import Float64Array
from calibrant.stats.histogram import Bins, LogLinearHistogram

VECTORS = 32  # candidates that the compiled loop takes at a time


def require_finite(histogram: LogLinearHistogram) -> None:
    """Refuse a histogram without values or with NaN or infinity.

    Raises:
        EmptyDataError: it counted no value.
        DataError: it counted NaN or infinity.
    """
    if histogram.n == 0:
        message = "histogram holds no values; capture at least one sample before fitting"
        raise EmptyDataError(message)
    if histogram.n_nan or histogram.n_inf:
        message = (
            f"histogram counted {histogram.n_nan} NaN and {histogram.n_inf} infinite of {histogram.n} values; "
            "only finite values can be fitted; check the model and its data"
        )
        raise DataError(message)


def squared_errors(bins: Bins, scale: Float64Array, lowest: Float64Array, highest: Float64Array) -> Float64Array:
    """Return the sum over all values of (x - q(x))² where ``q(x) = clip(rint(x / scale), lowest, highest) * scale``.

    Args:
        bins: of a histogram.
        scale: shape (K,), above 0.
        lowest: shape (K,), the least code before the offset.
        highest: shape (K,), the greatest.

    Returns:
        shape (K,).

    Cost: about half a nanosecond a bin and candidate.

    Example:
        >>> bins = LogLinearHistogram.from_values(np.float32([0, 1])).bins()
        >>> squared_errors(bins, np.array([0.75]), np.array([-2.0]), np.array([1.0])).tolist()
        [0.0625]
    """
    units, narrow = integral_losses(*bins, *map(_fill, (1.0 / scale, lowest, highest)))
    within = units[: scale.size] * scale**3 / 12.0
    few = Bins(bins.lower[narrow], bins.upper[narrow], bins.count[narrow])
    losses: Float64Array = within + few.count @ _mean_errors(few, scale, lowest, highest)
    return losses


def _fill(values: Float64Array) -> Float64Array:
    """Repeat the last candidate up to whole vectors: the compiler's loop for the rest costs more than they do."""
    return np.pad(values, (0, -values.size % VECTORS), mode="edge")


def _mean_errors(bins: Bins, scale: Float64Array, lowest: Float64Array, highest: Float64Array) -> Float64Array:
    """Return the mean squared error in each bin for each candidate, shape (B, K), exact for bins of any width, 0 included."""
    lower, upper = bins.lower[:, None], bins.upper[:, None]
    first, last = (np.clip(np.rint(end / scale), lowest, highest) for end in (lower, upper))
    inside = ((lower + upper) / 2 - first * scale) ** 2 + (upper - lower) ** 2 / 12
    cubes = (upper - last * scale) ** 3 - (lower - first * scale) ** 3
    across = ((last - first) * scale**3 / 12 + cubes / 3) / np.where(first == last, 1.0, upper - lower)
    means: Float64Array = np.where(first == last, inside, across)
    return means


def sum_of_squares(bins: Bins) -> float:
    """Return the sum over all values of x²."""
    centre, width = (bins.lower + bins.upper) / 2, bins.upper - bins.lower
    return float(bins.count @ (centre**2 + width**2 / 12))
