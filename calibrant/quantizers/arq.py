"""ARQ: weights from their least and greatest value, per output channel or for the whole weight (docs/algorithms.md 1).

Despite AMCT's name for it nothing is searched. A symmetric tie of both ends takes 127 rather than 128 steps, as AMCT's Python
implementation does; its C++ library takes 128.
"""

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, EmptyDataError, SchemaError, ShapeError
from calibrant.quantizers._kernels import row_extremes
from calibrant.quantizers.affine import Fit, Float32Array, FloatArray, Int32Array, make_fit, range_parameters
from calibrant.quantizers.options import ArqOptions

__all__ = ["ArqOptions", "fit_arq"]


def fit_arq(weight: FloatArray, options: ArqOptions) -> Fit:
    """Choose scale and offset of a weight.

    Args:
        weight: float32 or float16, output channel on axis 0; shape (C, ...).
        options: bits, one scale a channel or one in all, with or without offset.

    Returns:
        Per channel: `scale` of shape (C,) and ``axis=0``; otherwise shape (). A channel of zeros gets scale 1.

    Raises:
        SchemaError: another dtype.
        ShapeError: a per-channel fit of an array without axes.
        EmptyDataError: the weight has no elements.
        DataError: NaN or infinity, with its channel.
        RangeError: a range overflows float32.

    Cost: one pass over the weight.

    Example:
        >>> fit_arq(np.array([[-1, 0.5], [0.3, 1.27]], np.float32), ArqOptions()).scale.tolist()
        [0.0078125, 0.009999999776482582]
    """
    rows = weight_rows(weight, channel_wise=options.channel_wise)
    least, greatest = row_extremes(rows.view(np.int32))
    low, high = _values(least), _values(greatest)
    _require_finite(low, high, channel_wise=options.channel_wise)
    scale, offset = range_parameters(low, high, options.bits, asymmetric=options.asymmetric)
    if options.channel_wise:
        return make_fit(scale, offset, options.bits, axis=0, algorithm="arq")
    return make_fit(scale[0], offset[0], options.bits, algorithm="arq")


def weight_rows(weight: FloatArray, *, channel_wise: bool) -> Float32Array:
    """Return the weight as contiguous float32 rows, one for each scale.

    Args:
        weight: any shape, output channel on axis 0; float32 or float16.
        channel_wise: one row an output channel, shape (C, elements), else all in one, shape (1, elements).

    Raises:
        SchemaError: neither float32 nor float16.
        ShapeError: no axis to take channels from.
        EmptyDataError: no elements.
    """
    array = np.asarray(weight)
    if array.dtype not in (np.float32, np.float16):
        message = f"weight of dtype {array.dtype}: float32 or float16 was expected; convert it first"
        raise SchemaError(message)
    if channel_wise and array.ndim == 0:
        message = "weight without axes has no channels; use channel_wise=False"
        raise ShapeError(message)
    if array.size == 0:
        message = f"weight of shape {array.shape} has no elements"
        raise EmptyDataError(message)
    rows = array.reshape(array.shape[0] if channel_wise else 1, -1)
    return np.ascontiguousarray(rows, np.float32)


def _values(orders: Int32Array) -> Float32Array:
    """Turn the kernel's ordered integers back into values; the flip of the magnitude is its own inverse."""
    return np.where(orders < 0, orders ^ np.int32(0x7FFFFFFF), orders).astype(np.int32).view(np.float32)


def _require_finite(low: Float32Array, high: Float32Array, *, channel_wise: bool) -> None:
    wrong: npt.NDArray[np.intp] = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if wrong.size:
        where = f"weight, channel {wrong[0]}" if channel_wise else "weight"
        others = f" (and {wrong.size - 1} more channels)" if wrong.size > 1 else ""
        message = f"{where}: NaN or infinity{others}; a finite value was expected; check the model's weights"
        raise DataError(message)
