"""Biases as int32 in units of scale_d * scale_w (docs/algorithms.md 10)."""

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, RangeError, ShapeError
from calibrant.quantizers.affine import Float32Array, FloatArray, Int32Array

LIMIT = np.float32(2**31)  # int32 holds [-LIMIT, LIMIT); float32 has no value between LIMIT - 128 and LIMIT


def quantize_bias(
    bias: FloatArray, scale_d: np.float32 | float | Float32Array, scale_w: np.float32 | float | Float32Array
) -> Int32Array:
    """Return ``rint(bias / (scale_d * scale_w))`` in float32, half to even, as int32.

    Args:
        bias: shape (C,), one entry an output channel.
        scale_d: the activation's scale.
        scale_w: the weight's scale: one, or shape (C,).

    Returns:
        shape (C,), int32.

    Raises:
        ShapeError: `scale_w` fits neither one nor all channels.
        DataError: NaN or infinity, with its channel.
        RangeError: a channel's bias leaves int32; AMCT refuses the layer, a fit raises the weight scale (`bias_range`).

    Example:
        >>> quantize_bias(np.float32([1.0, -0.25]), np.float32(0.5), np.float32([0.5, 0.25])).tolist()
        [4, -2]
    """
    values, scales = np.asarray(bias, np.float32), np.asarray(scale_w, np.float32).reshape(-1)
    if values.ndim != 1 or scales.size not in (1, values.size):
        message = f"bias of shape {values.shape} with {scales.size} weight scales: one scale in all or one a channel was expected"
        raise ShapeError(message)
    _require_finite(values)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        codes = np.rint(values / (np.float32(scale_d) * scales))
    _require_int32(codes, values)
    return codes.astype(np.int32)


def _require_finite(values: Float32Array) -> None:
    wrong: npt.NDArray[np.intp] = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        message = f"bias, channel {wrong[0]}: {values[wrong[0]]}; a finite value was expected; check the model's bias"
        raise DataError(message)


def fits_int32(codes: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which whole numbers in a float type lie in int32, in the shape of `codes`; a NaN does not.

    Example:
        >>> fits_int32(np.array([-(2.0**31), 2.0**31])).tolist()
        [True, False]
    """
    inside: npt.NDArray[np.bool_] = (codes >= -LIMIT) & (codes < LIMIT)
    return inside


def _require_int32(codes: Float32Array, values: Float32Array) -> None:
    wrong: npt.NDArray[np.intp] = np.flatnonzero(~fits_int32(codes))
    if wrong.size:
        message = (
            f"bias, channel {wrong[0]}: {values[wrong[0]]} becomes {codes[wrong[0]]:.0f}, outside int32 "
            f"[{-(2**31)}, {2**31 - 1}]; its scales are too small: leave the layer in float (skip_layers)"
        )
        raise RangeError(message)
