"""Weight scales raised just enough where a bias would leave int32, and what the user is told of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrant.errors import RangeError
from calibrant.quantizers.affine import Fit, Float32Array, FloatArray
from calibrant.quantizers.bias import quantize_bias
from calibrant.quantizers.bias_range import channels_out_of_range, raise_weight_scales
from calibrant.quantizers.quality import WeightQuality, weight_quality
from calibrant.stats.events import Event

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
