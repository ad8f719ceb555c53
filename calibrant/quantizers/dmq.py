"""DMQ: factors that move the difficulty of quantizing from activations to weights, per input channel (docs/algorithms.md 5).

Activations are divided by the factor and weights multiplied, so that the layer computes the same. AMCT takes the maxima of one batch;
here they are those of all batches, which is the same for one.
"""

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, EmptyDataError, RangeError, ShapeError
from calibrant.quantizers.affine import FLT_EPSILON, Float32Array, FloatArray
from calibrant.quantizers.options import DmqOptions

__all__ = ["DmqOptions", "fit_dmq"]


def fit_dmq(data_abs_max: FloatArray, weight_abs_max: FloatArray, options: DmqOptions) -> Float32Array:
    """Return the factor of each input channel: ``data**m / weight**(1 - m)`` with m the migration strength.

    A channel whose data alone are zero (below FLT_EPSILON) gets the factor that brings its weight to the greatest balanced
    weight of the regular channels; one whose weights alone are zero likewise for the data; one that is zero in both gets 1. Without a
    regular channel all are 1.

    Args:
        data_abs_max: shape (C,), greatest magnitude of each input channel's activations.
        weight_abs_max: shape (C,), greatest magnitude of each input channel's weights.
        options: the migration strength.

    Returns:
        shape (C,), float32.

    Raises:
        ShapeError: not two vectors of equal length.
        EmptyDataError: no channel.
        DataError: a maximum is NaN, infinite or negative.
        RangeError: a factor leaves [FLT_EPSILON, 1 / FLT_EPSILON].

    Example:
        >>> fit_dmq(np.float32([2, 16]), np.float32([0.5, 0.25]), DmqOptions()).tolist()
        [2.0, 8.0]
    """
    data, weight = np.asarray(data_abs_max, np.float32), np.asarray(weight_abs_max, np.float32)
    _require_maxima(data, weight)
    data_regular, weight_regular = data >= FLT_EPSILON, weight >= FLT_EPSILON
    regular = data_regular & weight_regular
    factors = np.ones(data.size, np.float32)
    if not regular.any():
        return factors
    factors[regular] = _balance(data[regular], weight[regular], options.migration_strength)
    greatest_data = np.max(data[regular] / factors[regular])
    greatest_weight = np.max(weight[regular] * factors[regular])
    if greatest_data < FLT_EPSILON or greatest_weight < FLT_EPSILON:
        return np.ones(data.size, np.float32)
    only_weight, only_data = weight_regular & ~data_regular, data_regular & ~weight_regular
    factors[only_weight] = greatest_weight / weight[only_weight]
    factors[only_data] = data[only_data] / greatest_data
    _require_range(factors)
    return factors


def _balance(data: Float32Array, weight: Float32Array, strength: float) -> Float32Array:
    factors: Float32Array = data ** np.float32(strength) / weight ** np.float32(1 - strength)
    return factors


def _require_maxima(data: Float32Array, weight: Float32Array) -> None:
    if data.ndim != 1 or data.shape != weight.shape:
        message = f"channel maxima of shapes {data.shape} and {weight.shape}: two vectors with one entry an input channel were expected"
        raise ShapeError(message)
    if data.size == 0:
        message = "channel maxima: no input channel to balance"
        raise EmptyDataError(message)
    for name, maxima in (("data", data), ("weight", weight)):
        wrong: npt.NDArray[np.intp] = np.flatnonzero(~(np.isfinite(maxima) & (maxima >= 0)))
        if wrong.size:
            message = f"{name}_abs_max, channel {wrong[0]}: {maxima[wrong[0]]} is no magnitude; a finite value >= 0 was expected"
            raise DataError(message)


def _require_range(factors: Float32Array) -> None:
    with np.errstate(divide="ignore"):
        wrong: npt.NDArray[np.intp] = np.flatnonzero((factors < FLT_EPSILON) | (factors > 1 / FLT_EPSILON))
    if wrong.size:
        message = (
            f"balance factor of input channel {wrong[0]}: {factors[wrong[0]]} is outside [2**-23, 2**23]; "
            "its activations and weights differ too much in size; leave the layer unbalanced"
        )
        raise RangeError(message)
