"""The affine map between real values and integer codes, and the result type of every fit.

One convention everywhere (AMCT's): ``code = clip(rint(value / scale) + offset, low, high)`` and
``value = (code - offset) * scale`` with ``low = -2**(bits - 1)`` and ``high = 2**(bits - 1) - 1``; rounding is half to even.
The offset of an int8 fit is an ONNX int8 zero point.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibrant.errors import ShapeError

FLT_EPSILON = np.float32(1.192092896e-7)  # C's FLT_EPSILON: the least scale that AMCT keeps

FloatArray = npt.NDArray[np.floating]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
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
        exact: whether the losses come from raw values rather than from histogram bins.
    """

    clip_min: Float64Array
    clip_max: Float64Array
    scale: Float32Array
    offset: Int32Array
    loss: Float64Array
    best: int
    exact: bool = False


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
    """Build a fit and its representable range from scale and offset."""
    low, high = code_range(bits)
    scale32, offset32 = np.asarray(scale, np.float32), np.asarray(offset, np.int32)
    clip_min = (scale32 * (low - offset32).astype(np.float32)).astype(np.float32)
    clip_max = (scale32 * (high - offset32).astype(np.float32)).astype(np.float32)
    return Fit(scale32, offset32, clip_min, clip_max, bits, axis, float(loss), algorithm, candidates)


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
    """Turn values into codes: ``clip(rint(values / scale) + offset)`` in float32, half to even (spec algorithms 0.1, 1.2).

    Args:
        values: float32 or float16, any shape; with a per-channel fit, axis `fit.axis` has one entry a scale.
        fit: scale and offset.

    Returns:
        int8 up to 8 bits, else int16; same shape.

    Raises:
        ShapeError: the channel axis does not match the fit.

    Example:
        >>> fit = make_fit(np.float32(0.5), np.int32(1), 8)
        >>> quantize(np.array([-1.0, 0.25, 100.0], np.float32), fit).tolist()
        [-1, 1, 127]
    """
    array = np.asarray(values, np.float32)
    scale, offset = _parameters(array, fit)
    low, high = code_range(fit.bits)
    codes = np.clip(np.rint(array / scale) + offset, np.float32(low), np.float32(high))
    return codes.astype(code_dtype(fit.bits))


def dequantize(codes: CodeArray, fit: Fit) -> Float32Array:
    """Turn codes back into values: ``(codes - offset) * scale`` in float32.

    Example:
        >>> fit = make_fit(np.float32(0.5), np.int32(1), 8)
        >>> dequantize(np.array([-1, 1], np.int8), fit).tolist()
        [-1.0, 0.0]
    """
    array = np.asarray(codes)
    scale, offset = _parameters(array, fit)
    return ((array.astype(np.float32) - offset) * scale).astype(np.float32)
