"""How well a fit represents its values: mean squared error, SQNR and the share that is clipped."""

from dataclasses import dataclass

import numpy as np

from calibrant.errors import ShapeError
from calibrant.quantizers._kernels import row_errors
from calibrant.quantizers.affine import CodeArray, Fit, Float32Array, Float64Array, FloatArray, code_range, dequantize
from calibrant.quantizers.arq import weight_rows
from calibrant.quantizers.integrals import require_finite, squared_errors, sum_of_squares
from calibrant.stats.histogram import Bins, LogLinearHistogram


@dataclass(frozen=True)
class DataQuality:
    """How well a fit represents an activation.

    Attributes:
        mse: mean of (x - dequantize(quantize(x)))².
        sqnr_db: ``10 * log10(sum x² / sum (x - dequantize(quantize(x)))²)``; infinite where there is no error.
        clip_rate: share of the values that the range clips: more than half a step outside [clip_min, clip_max], since one that is
            nearer rounds to the end as it would to any code.
    """

    mse: float
    sqnr_db: float
    clip_rate: float


@dataclass(frozen=True, eq=False)
class WeightQuality:
    """The same for a weight; each array has one entry a scale, shape (C,) or (1,)."""

    mse: Float64Array
    sqnr_db: Float64Array
    clip_rate: Float64Array


def data_quality(histogram: LogLinearHistogram, fit: Fit) -> DataQuality:
    """Judge a per-tensor fit by exact integrals over the histogram, clipping at the ends of the code range included.

    Raises:
        ShapeError: the fit has a scale for each channel.
        EmptyDataError: the histogram is empty.
        DataError: it counted NaN or infinity.

    Example:
        >>> from calibrant.quantizers.affine import make_fit
        >>> histogram = LogLinearHistogram.from_values(np.float32([0, 100, 254, 0]))
        >>> data_quality(histogram, make_fit(np.float32(1), np.int32(0), 8)).clip_rate
        0.25
    """
    if fit.scale.ndim:
        message = f"data quality of a fit with {fit.scale.size} scales: one scale for the tensor was expected"
        raise ShapeError(message)
    require_finite(histogram)
    bins, low_high = histogram.bins(), np.array(code_range(fit.bits), np.float64) - float(fit.offset)
    noise = squared_errors(bins, np.array([fit.scale], np.float64), low_high[:1], low_high[1:])[0]
    signal = np.array([sum_of_squares(bins)])
    half = float(fit.scale) / 2
    clipped = _share_outside(bins, float(fit.clip_min) - half, float(fit.clip_max) + half)
    return DataQuality(float(noise) / histogram.n, float(_decibels(signal, np.array([noise]))[0]), clipped)


def weight_quality(rows: FloatArray, fit: Fit) -> WeightQuality:
    """Judge a weight's fit on its values.

    Args:
        rows: the weight, shape (C, ...), output channel on axis 0.
        fit: with one scale, or one for each entry of axis 0.

    Returns:
        arrays of shape (C,), or (1,) where the fit has one scale; mse in squared units of the weight.

    Raises:
        ShapeError: another number of scales than channels.
        SchemaError: neither float32 nor float16.
        EmptyDataError: no elements.

    Example:
        >>> from calibrant.quantizers.affine import make_fit
        >>> weight_quality(np.float32([[1, 3]]), make_fit(np.float32(2), np.int32(0), 8)).mse.tolist()
        [1.0]
    """
    array = weight_rows(rows, channel_wise=fit.scale.ndim == 1)
    if fit.scale.size != array.shape[0]:
        message = f"{array.shape[0]} channels on axis 0, but the fit has {fit.scale.size} scales"
        raise ShapeError(message)
    scale, offset = fit.scale.reshape(-1), fit.offset.reshape(-1).astype(np.float32)
    signal, noise = row_errors(array, scale, offset, *map(float, code_range(fit.bits)))
    return WeightQuality(noise / array.shape[1], _decibels(signal, noise), _clip_rates(array, fit))


def code_quality(rows: FloatArray, codes: CodeArray, fit: Fit) -> WeightQuality:
    """Judge a weight's codes, whichever they are: `weight_quality` takes those that the fit itself gives.

    Args:
        rows: the weight, output channel on axis 0.
        codes: of the same shape.
        fit: with one scale, or one for each entry of axis 0.

    Example:
        >>> from calibrant.quantizers.affine import make_fit
        >>> code_quality(np.float32([[1, 3]]), np.int8([[0, 1]]), make_fit(np.float32(2), np.int32(0), 8)).mse.tolist()
        [1.0]
    """
    array = weight_rows(rows, channel_wise=fit.scale.ndim == 1)
    error = array.astype(np.float64) - dequantize(codes, fit).reshape(array.shape)
    signal, noise = (array.astype(np.float64) ** 2).sum(axis=1), (error**2).sum(axis=1)
    return WeightQuality(noise / array.shape[1], _decibels(signal, noise), _clip_rates(array, fit))


def _clip_rates(rows: Float32Array, fit: Fit) -> Float64Array:
    half = fit.scale.reshape(-1, 1) / np.float32(2)
    low, high = fit.clip_min.reshape(-1, 1) - half, fit.clip_max.reshape(-1, 1) + half
    outside = (rows < low) | (rows > high)
    rates: Float64Array = np.count_nonzero(outside, axis=1) / rows.shape[1]
    return rates


def _decibels(signal: Float64Array, noise: Float64Array) -> Float64Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels: Float64Array = np.where(noise == 0.0, np.inf, 10.0 * np.log10(signal / noise))
    return decibels


def _share_outside(bins: Bins, low: float, high: float) -> float:
    """Return the share of values outside the ends; a bin that an end cuts gives its part by proportion."""
    width = bins.upper - bins.lower
    outside = np.maximum(low - bins.lower, 0.0) + np.maximum(bins.upper - high, 0.0)
    cut = np.clip(outside / np.where(width > 0.0, width, 1.0), 0.0, 1.0)
    part = np.where(width > 0.0, cut, (outside > 0.0).astype(np.float64))
    return float(bins.count @ part / bins.count.sum())
