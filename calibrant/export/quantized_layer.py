"""A layer with its chosen scales, and the integers that both exported models hold for it.

Codes: docs/algorithms.md 1.2 (weights, divided by the scale, half to even) and 10 (bias); the dequant word is the bit pattern of
``float32(scale_d * scale_w)`` in the low half of a uint64 (docs/export.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ExportError, RangeError
from calibrant.export.balance import multipliers
from calibrant.export.weight_codes import PACKED_BITS, input_axis, pack_nibbles, weight_codes
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, initializer_value
from calibrant.quantizers import quantize_bias
from calibrant.quantizers.affine import CodeArray, Float32Array, Int32Array, code_range
from calibrant.quantizers.half_factors import dequant_factors
from calibrant.stats.input_channels import multiplied

WordArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A layer and the scales that a fit chose for it.

    Attributes:
        layer: the node of the prepared model.
        scale_d: step of the data codes.
        offset_d: integer added to the data codes after scaling.
        data_bits: 4, 8 or 16.
        scale_w: steps of the weight codes, shape (1,) per tensor or (C,) per output channel; [1.0] for AveragePool.
        weight_bits: at most 8; the codes are stored as int8.
        cluster: NUQ's centres, which replace the weight codes; empty where they are uniform.
        half_factors: whether the dequant scale has 19 bits (``FORCE_FP16_QUANT``).
        balance: DMQ's factors, shape (Cin,): the data is divided by them, the weight multiplied; None where it is not balanced.
        shift: by how many bits (1 to 16) accumulators are shifted into int16, one for each of `scale_w`; empty: they are not.
        bias_codes: int32 codes of the bias, shape (C,), where the model brings them; None: they are computed from the float bias.

    Raises:
        ExportError: a scale is not positive and finite, the offset leaves the code range, or the number of scales fits no channel count.
    """

    layer: Layer
    scale_d: np.float32
    offset_d: int
    data_bits: int
    scale_w: Float32Array
    weight_bits: int
    cluster: tuple[int, ...] = ()
    balance: Float32Array | None = None
    half_factors: bool = False
    shift: tuple[int, ...] = ()
    bias_codes: Int32Array | None = None

    def __post_init__(self) -> None:
        _check_scales(self)
        _check_offset(self)
        _check_lengths(self)
        _check_factors(self)
        _check_shift(self)

    @property
    def dequant_scale(self) -> Float32Array:
        """What one unit of the accumulator is worth: ``float32(scale_d * scale_w)``, shape of `scale_w`."""
        return dequant_factors(self.scale_d, self.scale_w, half=self.half_factors)

    @property
    def shifted_scale(self) -> Float32Array:
        """What one unit of the shifted accumulator is worth: ``dequant_scale * 2**shift``, which is exact."""
        if not self.shift:
            return self.dequant_scale
        return (self.dequant_scale * np.exp2(np.array(self.shift, np.float32))).astype(np.float32)

    @property
    def reciprocal(self) -> np.float32:
        """``float32(1 / scale_d)``, the factor of AscendQuant and of the fake-quant model."""
        return np.float32(1) / np.float32(self.scale_d)


@dataclass(frozen=True, eq=False)
class EncodedLayer:
    """The integers that both exported models hold for a layer.

    Attributes:
        quantized: the layer and its scales.
        weight: int8 codes in the layout of the float weight, or None for AveragePool.
        bias: int32 codes in the shape of the float bias, or None where the layer has none.
        float_type: numpy name of the float type around the layer, ``float32`` or ``float16``.
    """

    quantized: QuantizedLayer
    weight: CodeArray | None
    bias: Int32Array | None
    float_type: str

    @property
    def layer(self) -> Layer:
        """The node of the prepared model."""
        return self.quantized.layer

    @property
    def multipliers(self) -> npt.NDArray[np.floating] | None:
        """What the data is multiplied by before its quantizer, laid along its channels; None where it is not balanced."""
        factors = self.quantized.balance
        return None if factors is None else multipliers(self.owner, factors, self.layer.kernel_rank, self.float_type)

    @property
    def owner(self) -> str:
        """The node that the added nodes are named after."""
        return self.layer.name

    @property
    def tensor(self) -> str:
        """The value that its quantizer reads."""
        return self.layer.tensor

    @property
    def packed_weight(self) -> CodeArray | None:
        """The weight codes as the deploy model stores them: of 4 bits two in a byte, along the input channels."""
        if self.weight is None or self.quantized.weight_bits != PACKED_BITS:
            return self.weight
        return pack_nibbles(self.weight, input_axis(self.layer.op_type, self.weight.ndim))

    @property
    def words(self) -> WordArray:
        """The AscendDequant parameter, shape of `scale_w`."""
        return dequant_words(self.quantized.dequant_scale, self.quantized.shift)


def dequant_words(dequant_scale: Float32Array, shift: Sequence[int] = ()) -> WordArray:
    """Pack dequant scales into uint64 words: float32 bits below, the shift in bits 39 to 32, weight offset 0 above.

    Args:
        dequant_scale: shape (1,) or (C,); the words have the same.
        shift: by how many bits each accumulator is shifted, one or one a channel; empty: none is.

    Example:
        >>> scale = np.float32(0.0078125) * np.array([0.05], np.float32)
        >>> dequant_words(scale).tolist()
        [969723085]
        >>> hex(dequant_words(scale, [3])[0])
        '0x339cccccd'
    """
    words = np.ascontiguousarray(dequant_scale, np.float32).view(np.uint32).astype(np.uint64)
    return words | (np.array(shift, np.uint64) << np.uint64(32)) if len(shift) else words


def dequant_shifts(words: WordArray) -> npt.NDArray[np.uint8]:
    """Unpack the shifts of uint64 dequant words: 0 where accumulators are not shifted.

    Example:
        >>> dequant_shifts(np.array([0x33F000000], np.uint64)).tolist()
        [3]
    """
    return ((words >> np.uint64(32)) & np.uint64(0xFF)).astype(np.uint8)


def dequant_scales(words: WordArray) -> Float32Array:
    """Unpack the float32 scales of uint64 dequant words; the upper halves are not looked at.

    Example:
        >>> dequant_scales(np.array([0x3F000000], np.uint64)).tolist()
        [0.5]
    """
    return (words & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)


def encode_layer(prepared: PreparedModel, quantized: QuantizedLayer) -> EncodedLayer:
    """Quantize the weight and the bias of a layer.

    Raises:
        ExportError: the bias leaves int32 (such a layer has to stay in float).
    """
    layer = quantized.layer
    weight = None if layer.weight is None else initializer_value(prepared, layer.weight)
    bias = None if layer.bias is None else initializer_value(prepared, layer.bias)
    codes = None if weight is None else _weight_codes(quantized, weight)
    float_type = _float_type(prepared, layer) if weight is None else str(weight.dtype)
    return EncodedLayer(quantized, codes, None if bias is None else _bias_codes(quantized, bias), float_type)


def _float_type(prepared: PreparedModel, layer: Layer) -> str:
    """Return the float type of a layer without weight; float32 where the model does not say."""
    nodes = (node for node in prepared.model.graph if node.name == layer.name)
    data = next((node.inputs[0] for node in nodes), None)
    return "float16" if data is not None and data.dtype == ir.DataType.FLOAT16 else "float32"


def _weight_codes(quantized: QuantizedLayer, weight: npt.NDArray[np.floating]) -> CodeArray:
    scale, zeros = quantized.scale_w, np.zeros(quantized.scale_w.size, np.int32)
    if quantized.balance is not None:
        weight = multiplied(weight, quantized.balance, quantized.layer.op_type, quantized.layer.groups)
    return weight_codes(quantized.layer, weight, scale, zeros, quantized.weight_bits, quantized.cluster)


def _bias_codes(quantized: QuantizedLayer, bias: npt.NDArray[np.floating]) -> Int32Array:
    if quantized.bias_codes is not None:
        return quantized.bias_codes.reshape(bias.shape)
    flat = np.asarray(bias, np.float32).reshape(-1)
    try:
        codes = quantize_bias(flat, quantized.scale_d, quantized.scale_w)
    except RangeError as error:
        message = f"layer '{quantized.layer.name}': {error}"
        raise ExportError(message) from error
    return codes.reshape(bias.shape)


def _check_scales(quantized: QuantizedLayer) -> None:
    scales = np.append(quantized.scale_w, quantized.scale_d)
    if quantized.scale_w.ndim != 1 or not np.all(np.isfinite(scales) & (scales > 0)):
        message = (
            f"layer '{quantized.layer.name}': scales must be positive, finite and of rank 1, "
            f"got scale_d {quantized.scale_d} and scale_w of shape {quantized.scale_w.shape}"
        )
        raise ExportError(message)


def _check_offset(quantized: QuantizedLayer) -> None:
    low, high = code_range(quantized.data_bits)
    if not low <= quantized.offset_d <= high:
        message = f"layer '{quantized.layer.name}': offset {quantized.offset_d} is outside [{low}, {high}]"
        raise ExportError(message)


def _check_factors(quantized: QuantizedLayer) -> None:
    layer, factors = quantized.layer, quantized.balance
    if factors is not None and (layer.weight is None or factors.shape != (layer.channels_in,)):
        message = (
            f"layer '{layer.name}': balance factors of shape {factors.shape} for {layer.channels_in} input channels; "
            "a layer with a weight, and one factor an input channel, are needed"
        )
        raise ExportError(message)


def _check_shift(quantized: QuantizedLayer) -> None:
    layer, shift = quantized.layer, quantized.shift
    if not shift:
        return
    if layer.weight is None or len(shift) != quantized.scale_w.size or not all(1 <= one <= 16 for one in shift):
        message = (
            f"layer '{layer.name}': {len(shift)} shifts for {quantized.scale_w.size} weight scales; a layer with a weight has one "
            "from 1 to 16 for each, or none"
        )
        raise ExportError(message)


def _check_lengths(quantized: QuantizedLayer) -> None:
    if quantized.weight_bits > 8:
        message = f"layer '{quantized.layer.name}': weight codes of {quantized.weight_bits} bits; int8 holds at most 8"
        raise ExportError(message)
    layer, length = quantized.layer, quantized.scale_w.size
    if length not in {1, layer.channels_out}:
        message = (
            f"layer '{layer.name}': {length} weight scales for {layer.channels_out} output channels; "
            "one scale, or one a channel, is needed"
        )
        raise ExportError(message)
