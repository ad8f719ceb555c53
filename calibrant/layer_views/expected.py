"""The SQNR of a layer's output as the moments of its input channels and its weight let expect it: no inference.

Output channel o is sum over c, t of w_oct x_c + b_o. With mean m_c and power p_c of input channel c, and channels and positions taken as
independent, its power is (sum_c m_c sum_t w_oct + b_o)^2 + sum_c (p_c - m_c^2) sum_t w_oct^2; the weight's error d_oct makes noise of the
same form, and the data's mean squared error e makes e sum w_oct^2.
"""

from dataclasses import dataclass
from math import inf, log10

import numpy as np
import numpy.typing as npt

from calibrant.export.quantized_layer import EncodedLayer
from calibrant.export.weight_only import EncodedWeight
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, initializer_value
from calibrant.stats.input_channels import multiplied
from calibrant.stats.weights import channels_first

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.floating]

_BLOCK = 1 << 22  # elements of a weight that are worked on at a time, in float64 32 MB


@dataclass(frozen=True, slots=True)
class OutputPower:
    """Expected powers at a layer's output, summed over its channels.

    Attributes:
        signal: of the float output.
        data_noise: from quantizing the data.
        weight_noise: from quantizing the weight.
    """

    signal: float
    data_noise: float
    weight_noise: float

    def sqnr_db(self, ratio: float = 1.0) -> float:
        """Return the SQNR in dB where the data's power is `ratio` times what it was; the step of the data stays as it is.

        Example:
            >>> OutputPower(100.0, 1.0, 0.0).sqnr_db(), round(OutputPower(100.0, 1.0, 1.0).sqnr_db(2.0), 3)
            (20.0, 18.239)
        """
        noise, signal = self.data_noise + ratio * self.weight_noise, ratio * self.signal
        return inf if noise == 0 else -inf if signal == 0 else 10 * log10(signal / noise)


def expected_power(
    prepared: PreparedModel, encoded: EncodedLayer | EncodedWeight, mean: Floats, power: Floats, mse: float
) -> OutputPower | None:
    """Return the expected powers at a layer's output; None where it has no weight, or the channels are not its own.

    Args:
        prepared: the float model.
        encoded: the layer, quantized with its data or its weight alone.
        mean: of each input channel of the data as it is quantized, shape (Cin,).
        power: mean square of each, shape (Cin,).
        mse: mean squared error of the data; 0 where it stays in float.
    """
    layer = encoded.layer
    if layer.weight is None or mean.size != layer.channels_in:
        return None
    weight, error = _weight_and_error(prepared, layer, encoded)
    bias = np.zeros(len(weight)) if layer.bias is None else _tiled(initializer_value(prepared, layer.bias), len(weight))
    groups = np.arange(layer.channels_in).reshape(layer.groups, -1)
    inputs = np.repeat(
        groups, len(weight) // layer.groups, axis=0
    )  # of each output channel, the channels that it reads
    sums, step = np.zeros(3), max(1, _BLOCK // max(1, weight[0].size))
    for start in range(0, len(weight), step):
        block = slice(start, start + step)
        m, p = mean[inputs[block]], power[inputs[block]]
        w, d = weight[block].astype(np.float64), error[block].astype(np.float64)
        sums += [_power(w, m, p, bias[block]), mse * float((w**2).sum()), _power(d, m, p, np.zeros(len(d)))]
    return OutputPower(*sums.tolist())


def _power(weight: Floats, mean: Floats, power: Floats, bias: Floats) -> float:
    """Return the expected power of outputs; `weight` has shape (O, C, T), `mean` and `power` (O, C), `bias` (O,)."""
    level = (mean * weight.sum(axis=2)).sum(axis=1) + bias
    spread = (np.maximum(power - mean**2, 0) * (weight**2).sum(axis=2)).sum()
    return float((level**2).sum() + spread)


def _weight_and_error(
    prepared: PreparedModel, layer: Layer, encoded: EncodedLayer | EncodedWeight
) -> tuple[Array, Array]:
    """Return a layer's weight, multiplied where it is balanced, and what quantizing takes from it; shape (O, C, T) each."""
    value = np.asarray(initializer_value(prepared, layer.weight or ""), np.float32)
    if isinstance(encoded, EncodedWeight):
        quantized = encoded.quantized
        steps = np.asarray(encoded.along(quantized.scale_w), np.float32)
        offsets = np.asarray(encoded.along(quantized.offset_w), np.float32)
        made = (encoded.codes.astype(np.float32) - offsets) * steps
        return _by_channels(value, layer), _by_channels(value - made, layer)
    factors = encoded.quantized.balance
    if factors is not None:
        value = multiplied(value, factors, layer.op_type, layer.groups)
    rows, codes = _by_channels(value, layer), _by_channels(np.asarray(encoded.weight), layer)
    scales = encoded.quantized.scale_w
    return rows, rows - codes.astype(np.float32) * _tiled(scales, len(rows)).astype(np.float32)[:, None, None]


def _by_channels(weight: Array, layer: Layer) -> Array:
    """Return a weight as (output channels, input channels of its group, taps); of a matrix a head, the heads' outputs in a row."""
    if layer.op_type in {"Conv", "ConvTranspose"}:
        rows = channels_first(weight, layer.op_type, layer.groups)
        return rows.reshape(len(rows), (layer.channels_in or 1) // layer.groups, -1)
    return np.swapaxes(weight, -1, -2).reshape(-1, weight.shape[-2], 1)


def _tiled(values: npt.NDArray[np.generic], count: int) -> Floats:
    """Repeat one value, or one a channel, for all outputs of a layer."""
    flat = np.asarray(values, np.float64).ravel()
    return np.tile(flat, count // flat.size)
