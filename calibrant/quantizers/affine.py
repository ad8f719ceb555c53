"""The affine map between real values and integer codes, and the result type of every fit.

One convention everywhere (AMCT's): ``code = clip(rint(value / scale) + offset, low, high)`` and
``value = (code - offset) * scale`` with ``low = -2**(bits - 1)`` and ``high = 2**(bits - 1) - 1``; rounding is half to even.
The offset of an int8 fit is an ONNX int8 zero point.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, RangeError, ShapeError

FLT_EPSILON = np.float32(1.192092896e-7)  # C's FLT_EPSILON: the least scale that AMCT keeps

FloatArray = npt.NDArray[np.floating]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
CodeArray = npt.NDArray[np.int8] | npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Every candidate that a search weighed, in its order.

    Attributes:
        clip_min: shape (K,), lower end of the candidate's range.
        clip_max: shape (K,), upper end.
        scale: shape (K,), float32.
        offset: shape (K,), int32.
        loss: shape (K,), float64.
        best: index of the chosen one, the first of the least losses.
        evaluated: shape (K,), which losses come from raw values rather than from histogram bins; None where none was to.
    """

    clip_min: Float64Array
    clip_max: Float64Array
    scale: Float32Array
    offset: Int32Array
    loss: Float64Array
    best: int
    evaluated: npt.NDArray[np.bool_] | None = None

    @property
    def exact(self) -> bool:
        """Whether the choice was made on raw values."""
        return self.evaluated is not None

    @property
    def survivors(self) -> int:
        """How many candidates were evaluated on raw values: those that nothing cheaper proved worse than another."""
        return 0 if self.evaluated is None else int(np.count_nonzero(self.evaluated))


@dataclass(frozen=True, eq=False)
class Fit:
    """Scale and offset that a quantizer chose.

    Attributes:
        scale: float32, shape () per tensor or (C,) per channel; the step between codes, in the unit of the values.
        offset: int32, same shape; added after scaling.
        clip_min: float32, same shape; the least value that is representable, ``scale * (low - offset)``.
        clip_max: float32, same shape; the greatest, ``scale * (high - offset)``.
        bits: width of a code.
        axis: the channel axis of the values where scales are per channel, else None.
        loss: the chosen candidate's loss; 0 where nothing was searched.
        algorithm: ``ifmr``, ``hfmg`` or ``arq``.
        candidates: all candidates, or None where nothing was searched.
    """

    scale: Float32Array
    offset: Int32Array
    clip_min: Float32Array
    clip_max: Float32Array
    bits: int
    axis: int | None = None
    loss: float = 0.0
    algorithm: str = ""
    candidates: Candidates | None = field(default=None, repr=False)


def code_range(bits: int) -> tuple[int, int]:
    """Return the least and greatest signed code of `bits` bits.

    Example:
        >>> code_range(8)
        (-128, 127)
    """
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def code_dtype(bits: int) -> type[np.int8] | type[np.int16]:
    """Return int8 for codes of up to 8 bits and int16 for wider ones."""
    return np.int8 if bits <= 8 else np.int16


def make_fit(
    scale: Float32Array,
    offset: Int32Array,
    bits: int,
    *,
    axis: int | None = None,
    loss: float = 0.0,
    algorithm: str = "",
    candidates: Candidates | None = None,
) -> Fit:
    """Build a fit and its representable range from scale and offset.

    Args:
        scale: shape () for one scale, or (C,) for one a channel.
        offset: of the same shape; added after scaling.
        bits: of the codes.
        axis: of the channels in the values, or None for one scale.
        loss: of the chosen candidate.
        algorithm: which quantizer chose it.
        candidates: what else was tried, or None.
    """
    low, high = code_range(bits)
    scale32, offset32 = np.asarray(scale, np.float32), np.asarray(offset, np.int32)
    clip_min = (scale32 * (low - offset32).astype(np.float32)).astype(np.float32)
    clip_max = (scale32 * (high - offset32).astype(np.float32)).astype(np.float32)
    return Fit(scale32, offset32, clip_min, clip_max, bits, axis, float(loss), algorithm, candidates)


def floor_scale(scale: Float32Array) -> Float32Array:
    """Replace scales below FLT_EPSILON by 1, as AMCT does (docs/algorithms.md 0.2), and refuse infinite ones; any shape.

    Raises:
        RangeError: a scale is not finite: the values span more than float32 can hold.

    Example:
        >>> floor_scale(np.array([0.5, 1e-9], np.float32)).tolist()
        [0.5, 1.0]
    """
    floored = np.where(scale < FLT_EPSILON, np.float32(1), scale).astype(np.float32)
    if not np.all(np.isfinite(floored)):
        message = "scale: the range of the values overflows float32; check the data for values near 3e38"
        raise RangeError(message)
    return floored


def asymmetric_offset(low: Float32Array, scale: Float32Array, bits: int) -> Int32Array:
    """Return the offset that maps `low` to the least code: ``-2**(bits - 1) - rint(low / scale)`` in float32, of their shape."""
    offset: Int32Array = (np.float32(code_range(bits)[0]) - np.rint(low / scale)).astype(np.int32)
    return offset


def range_parameters(
    low: Float32Array, high: Float32Array, bits: int, *, asymmetric: bool
) -> tuple[Float32Array, Int32Array]:
    """Turn ranges into scales and offsets (docs/algorithms.md 0.1, 1.1), in float32.

    Asymmetric ranges are widened to hold zero. A symmetric range divides its larger end by ``2**(bits - 1)`` where that end is
    the lower one and by ``2**(bits - 1) - 1`` otherwise; a tie takes the latter.

    Args:
        low: float32, shape () or (C,), the least value of each range.
        high: same shape, the greatest.
        bits: width of a code.
        asymmetric: whether codes have an offset.

    Raises:
        RangeError: a range overflows float32.

    Example:
        >>> scale, offset = range_parameters(np.float32([-2, 0]), np.float32([1, 0]), 8, asymmetric=False)
        >>> scale.tolist(), offset.tolist()
        ([0.015625, 1.0], [0, 0])
    """
    least, greatest = code_range(bits)
    low32, high32 = np.asarray(low, np.float32), np.asarray(high, np.float32)
    with np.errstate(over="ignore"):
        if asymmetric:
            low32, high32 = np.minimum(low32, np.float32(0)), np.maximum(high32, np.float32(0))
            scale = floor_scale(np.asarray((high32 - low32) / np.float32(greatest - least)))
            return scale, asymmetric_offset(low32, scale, bits)
    steps = np.where(np.abs(high32) < np.abs(low32), np.float32(-least), np.float32(greatest))
    scale = floor_scale(np.asarray(np.maximum(np.abs(low32), np.abs(high32)) / steps))
    return scale, np.zeros(scale.shape, np.int32)


def _along(parameter: npt.NDArray[np.generic], fit: Fit, rank: int, length: int) -> npt.NDArray[np.generic]:
    """Reshape a per-channel parameter so that it broadcasts along the fit's axis."""
    if fit.axis is None or parameter.ndim == 0:
        return parameter
    if parameter.size != length:
        message = f"{length} channels on axis {fit.axis}, but the fit has {parameter.size} scales"
        raise ShapeError(message)
    shape = [1] * rank
    shape[fit.axis] = parameter.size
    return parameter.reshape(shape)


def _parameters(values: npt.NDArray[np.generic], fit: Fit) -> tuple[Float32Array, Float32Array]:
    length = values.shape[fit.axis] if fit.axis is not None and values.ndim else 1
    scale = _along(fit.scale, fit, values.ndim, length)
    offset = _along(fit.offset, fit, values.ndim, length)
    return scale.astype(np.float32), offset.astype(np.float32)


def quantize(values: FloatArray, fit: Fit) -> CodeArray:
    """Turn values into codes: ``clip(rint(values / scale) + offset)`` in float32, half to even (docs/algorithms.md 0.1, 1.2).

    Args:
        values: float32 or float16, any shape; with a per-channel fit, axis `fit.axis` has one entry a scale.
        fit: scale and offset.

    Returns:
        int8 up to 8 bits, else int16; same shape.

    Raises:
        ShapeError: the channel axis does not match the fit.
        DataError: a value is NaN, which no code represents; infinity saturates.

    Example:
        >>> fit = make_fit(np.float32(0.5), np.int32(1), 8)
        >>> quantize(np.array([-1.0, 0.25, 100.0], np.float32), fit).tolist()
        [-1, 1, 127]
    """
    array = np.asarray(values, np.float32)
    scale, offset = _parameters(array, fit)
    low, high = code_range(fit.bits)
    # one array for all steps: weights may be large
    codes: npt.NDArray[Any] = np.empty(np.broadcast_shapes(array.shape, scale.shape), np.float32)
    with np.errstate(over="ignore"):  # a quotient beyond float32 saturates as it should
        np.rint(np.divide(array, scale, out=codes), out=codes)
        np.clip(np.add(codes, offset, out=codes), np.float32(low), np.float32(high), out=codes)
    if np.isnan(codes).any():
        message = (
            f"{int(np.isnan(codes).sum())} of {codes.size} values are NaN, which no code represents; remove them first"
        )
        raise DataError(message)
    narrow: npt.NDArray[Any] = codes.astype(code_dtype(fit.bits))
    return narrow


def dequantize(codes: CodeArray, fit: Fit) -> Float32Array:
    """Turn codes back into values: ``(codes - offset) * scale`` in float32.

    Args:
        codes: any shape; channels on `fit.axis` where the fit has one scale a channel.
        fit: what they were quantized with.

    Raises:
        ShapeError: the channel axis does not match the fit.

    Example:
        >>> fit = make_fit(np.float32(0.5), np.int32(1), 8)
        >>> dequantize(np.array([-1, 1], np.int8), fit).tolist()
        [-1.0, 0.0]
    """
    array = np.asarray(codes)
    scale, offset = _parameters(array, fit)
    return ((array.astype(np.float32) - offset) * scale).astype(np.float32)
