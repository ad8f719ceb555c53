"""Weight scales raised just enough where a bias would leave int32.

AMCT refuses such a layer (docs/algorithms.md 10). A scale raised further would only cost weight codes, so the smallest float32 is
searched at which the bias code fits int32 together with every sum of products that the data codes can make.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from calibrant.errors import RangeError
from calibrant.quantizers.affine import Fit, Float32Array, Float64Array, FloatArray, code_range, make_fit
from calibrant.quantizers.bias import fits_int32

Mask = npt.NDArray[np.bool_]

_FLOAT32_BITS: Final = 31  # positive floats are ordered as their bits are, so that so many halvings find the smallest


def channels_out_of_range(bias: Float32Array, data: Fit, weight: Fit) -> Mask:
    """Return which channels' biases leave int32 at these scales; shape (C,)."""
    scale = np.broadcast_to(weight.scale.reshape(-1), bias.shape)
    mask: Mask = ~fits_int32(_bias_codes(bias, data, scale))
    return mask


def raise_weight_scales(rows: FloatArray, weight: Fit, bias: Float32Array, data: Fit) -> Fit:
    """Return the weight's fit with the scales raised at which the bias leaves int32; the same fit where none does.

    Args:
        rows: the weight, shape (C, ...), output channel on axis 0.
        weight: its fit, with one scale or one a channel. One scale in all is raised to what its worst channel needs.
        bias: shape (C,), finite.
        data: the fit of the activation; its scale and codes make the accumulator.

    Raises:
        RangeError: no float32 scale is large enough, with the channel.

    Example:
        >>> one, data = np.zeros(1, np.int32), make_fit(np.float32(2**-20), np.int32(0), 8)
        >>> weight = make_fit(np.float32([2**-20]), one, 8, axis=0)
        >>> raised = raise_weight_scales(np.float32([[0]]), weight, np.float32([1]), data)
        >>> bool(raised.scale[0] * np.float32(2**-20) * 2**31 > 1)
        True
    """
    channels = np.flatnonzero(channels_out_of_range(bias, data, weight))
    if not channels.size:
        return weight
    flat = np.asarray(rows, np.float32).reshape(bias.size, -1)[channels]
    start = np.broadcast_to(weight.scale.reshape(-1), bias.shape)[channels]
    found = _smallest_that_fit(_fit_test(flat, weight, bias[channels], data), start, channels)
    scale = weight.scale.reshape(-1).copy()
    if weight.scale.size == bias.size:
        scale[channels] = found
    else:
        scale[:] = found.max()
    shaped = scale.reshape(weight.scale.shape)
    return make_fit(shaped, weight.offset, weight.bits, axis=weight.axis, algorithm=weight.algorithm)


def _bias_codes(bias: Float32Array, data: Fit, scale: Float32Array) -> Float32Array:
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        codes: Float32Array = np.rint(bias / (data.scale * scale))
    return codes


def _fit_test(rows: Float32Array, weight: Fit, bias: Float32Array, data: Fit) -> Callable[[Float32Array], Mask]:
    low, high = code_range(data.bits)
    reach = max(high - int(data.offset), int(data.offset) - low)  # the largest data code without its offset
    least, greatest = code_range(weight.bits)

    def fits(scale: Float32Array) -> Mask:
        codes = _bias_codes(bias, data, scale).astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            weights = np.clip(np.rint(rows / scale[:, None]), np.float32(least), np.float32(greatest))
        room: Float64Array = reach * np.abs(weights).sum(axis=1, dtype=np.float64)
        mask: Mask = fits_int32(codes + room) & fits_int32(codes - room)
        return mask

    return fits


def _smallest_that_fit(
    fits: Callable[[Float32Array], Mask], start: Float32Array, channels: npt.NDArray[np.intp]
) -> Float32Array:
    """Halve the range between a scale that is too small and the greatest float32 until they are neighbours."""
    low = np.ascontiguousarray(start, np.float32).view(np.int32).astype(np.int64)
    high = np.full_like(low, int(np.float32(np.finfo(np.float32).max).view(np.int32)))
    if not (possible := fits(_floats(high))).all():
        channel = channels[np.flatnonzero(~possible)[0]]
        message = f"bias, channel {channel}: no weight scale is large enough for int32; leave the layer in float (skip_layers)"
        raise RangeError(message)
    for _ in range(_FLOAT32_BITS):
        middle = (low + high) // 2
        inside = fits(_floats(middle))
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
    return _floats(high)


def _floats(bits: npt.NDArray[np.int64]) -> Float32Array:
    return bits.astype(np.int32).view(np.float32)


__all__ = ["channels_out_of_range", "raise_weight_scales"]
