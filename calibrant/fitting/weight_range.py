"""What a layer's scales are changed to after or by their fit, and what the user is told of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrant.errors import RangeError
from calibrant.quantizers.affine import FLT_EPSILON, Fit, Float32Array, FloatArray
from calibrant.quantizers.bias import quantize_bias
from calibrant.quantizers.bias_range import channels_out_of_range, raise_weight_scales
from calibrant.quantizers.quality import WeightQuality, weight_quality
from calibrant.stats.events import Event
from calibrant.stats.histogram import LogLinearHistogram

BIAS_RANGE = "bias range"  # `decided_by` of a scale that the bias decided


@dataclass(frozen=True, eq=False)
class WeightInRange:
    """A weight's fit with which its bias fits int32.

    Attributes:
        fit: the weight's fit, raised where it had to be.
        quality: of that fit.
        decided_by: what decided each scale, the weight's algorithm or ``bias range``; as many as scales.
        events: what was raised.
    """

    fit: Fit
    quality: WeightQuality
    decided_by: tuple[str, ...]
    events: tuple[Event, ...]


def weight_in_range(
    layer: str, rows: FloatArray, fit: Fit, bias: Float32Array | None, data: Fit | None, *, strict: bool
) -> WeightInRange:
    """Raise the weight scales at which the bias leaves int32.

    Args:
        layer: its name, for events and errors.
        rows: the weight as it is quantized, shape (C, ...).
        fit: the weight's fit.
        bias: of the layer, or None.
        data: the fit of the layer's activation, or None where the bias stays in float.
        strict: raise the error that AMCT has instead.

    Raises:
        RangeError: `strict` and a bias leaves int32, or no scale is large enough; names layer and channel.
    """
    before = weight_quality(rows, fit)
    raised = fit if bias is None or data is None else _raised(layer, rows, fit, np.ravel(bias), data, strict=strict)
    if raised is fit or bias is None or data is None:
        return WeightInRange(fit, before, (fit.algorithm,) * fit.scale.size, ())
    after = weight_quality(rows, raised)
    changed = np.ravel(raised.scale > fit.scale)
    decided = tuple(BIAS_RANGE if flag else fit.algorithm for flag in changed)
    channels = channels_out_of_range(np.ravel(bias), data, fit)
    text = f"{_what(channels, changed)}; SQNR of the weight {_sqnr(rows, before):.1f} -> {_sqnr(rows, after):.1f} dB"
    return WeightInRange(raised, after, decided, (Event("fit", "warn", text, layer=layer),))


def _raised(layer: str, rows: FloatArray, fit: Fit, bias: Float32Array, data: Fit, *, strict: bool) -> Fit:
    try:
        if strict:
            quantize_bias(bias, data.scale, fit.scale)
        return raise_weight_scales(rows, fit, bias, data)
    except RangeError as error:
        message = f"layer '{layer}': {error}"
        raise RangeError(message) from error


def _what(channels: npt.NDArray[np.bool_], changed: npt.NDArray[np.bool_]) -> str:
    scales = "their weight scales are" if changed.size == channels.size > 1 else "the weight's scale is"
    return f"the bias of {int(channels.sum())} of {channels.size} channels leaves int32; {scales} raised just enough"


def _sqnr(rows: FloatArray, quality: WeightQuality) -> float:
    """Return the SQNR of the whole weight; each channel has as many elements."""
    noise = float(np.mean(quality.mse))
    signal = float(np.mean(np.square(np.asarray(rows, np.float64))))
    if noise == 0:
        return np.inf
    return 10 * float(np.log10(signal / noise)) if signal else -np.inf


def dead_channels(layer: str, rows: FloatArray, fit: Fit) -> tuple[Event, ...]:
    """Say how many output channels are so small that their scale was floored to 1 and all their codes are 0 (spec algorithms 1.1)."""
    floored = np.flatnonzero(np.ravel(fit.scale) == 1)
    peaks = np.abs(np.asarray(rows.reshape(fit.scale.size, -1)[floored], np.float32)).max(axis=1, initial=0)
    dead = int(np.count_nonzero(peaks < FLT_EPSILON * 2.0 ** (fit.bits - 1)))
    if not dead:
        return ()
    count = len(rows)
    what = f"{dead} of {count} output channels are" if fit.scale.size == count else f"all {count} output channels are"
    text = f"{what} dead: weights below FLT_EPSILON * {2 ** (fit.bits - 1) - 1}, scale floored to 1, every code 0"
    return (Event("fit", "info", text, layer=layer),)


def floored_data(tensor: str, histogram: LogLinearHistogram, fit: Fit) -> tuple[Event, ...]:
    """Warn of a tensor whose values are so small that its scale was floored to 1: its layers see zeros (spec algorithms 0.2)."""
    peak = max(abs(histogram.minimum), abs(histogram.maximum))
    if float(fit.scale) != 1 or not peak < FLT_EPSILON * 2.0**fit.bits:
        return ()
    what = "is zero in all samples" if peak == 0 else f"has no value beyond {peak:.3g}"
    return (Event("fit", "warn", f"tensor '{tensor}' {what}: its scale is 1, and its layers see zeros"),)


__all__ = ["BIAS_RANGE", "WeightInRange", "dead_channels", "floored_data", "weight_in_range"]
