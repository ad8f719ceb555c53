"""Weights as codes in their own layout, and two 4-bit codes in a byte (docs/algorithms.md 1.2, 1.3 and 4)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calibrant.errors import ShapeError
from calibrant.ingest.layers import Layer
from calibrant.quantizers import quantize
from calibrant.quantizers.affine import CodeArray, Float32Array, Int32Array, make_fit
from calibrant.quantizers.nuq import to_centres
from calibrant.stats.weights import channels_back, channels_first

PACKED_BITS = 4  # codes of this width share a byte in the deploy model


def weight_codes(
    layer: Layer,
    weight: npt.NDArray[np.floating],
    scale: Float32Array,
    offset: Int32Array,
    bits: int,
    cluster: Sequence[int] = (),
) -> CodeArray:
    """Quantize a weight, in its own layout.

    Args:
        layer: whose weight it is.
        weight: as the layer reads it.
        scale: shape (1,), or (C,) with one an output channel.
        offset: the same shape; zeros where symmetric.
        bits: width of a code.
        cluster: the centres that replace the codes (NUQ), or nothing.
    """
    if scale.size == 1:
        codes = quantize(weight, make_fit(scale.reshape(()), offset.reshape(()), bits))
    else:
        rows = channels_first(weight, layer.op_type, layer.groups)
        by_row = quantize(rows, make_fit(scale, offset, bits, axis=0))
        back = channels_back(by_row, layer.op_type, layer.groups, weight.shape)
        codes = np.ascontiguousarray(back, np.int8)
    return to_centres(codes, np.array(cluster)) if len(cluster) else codes


def along_channels(
    op_type: str, groups: int, shape: Sequence[int], values: npt.NDArray[np.generic]
) -> npt.NDArray[np.generic]:
    """Shape values, one or one an output channel, so that they broadcast against a weight.

    Args:
        op_type: of the layer.
        groups: of the layer.
        shape: of its weight.
        values: shape (1,) or (C,).

    Example:
        >>> along_channels("Conv", 1, (2, 3, 3, 3), np.float32([1, 2])).shape
        (2, 1, 1, 1)
    """
    if values.size == 1:
        return values.reshape(())
    if op_type == "Conv":
        return values.reshape(-1, *[1] * (len(shape) - 1))
    if op_type != "ConvTranspose":
        return values
    by_group = np.repeat(values.reshape(groups, -1), shape[0] // groups if groups > 1 else 1, axis=0)
    return by_group.reshape(*by_group.shape, *[1] * (len(shape) - 2))


def input_axis(op_type: str, rank: int) -> int:
    """Return the axis of the input channels in a weight: 1 for Conv, 0 for ConvTranspose, the last but one for matrices."""
    return {"Conv": 1, "ConvTranspose": 0}.get(op_type, rank - 2)


def pack_nibbles(codes: CodeArray, axis: int) -> CodeArray:
    """Join neighbours along an axis of even length into bytes: the even one in the low half, the odd one in the high half.

    Args:
        codes: int8 of any shape, each from -8 to 7.
        axis: the axis that halves.

    Raises:
        ShapeError: the axis has odd length.

    Example:
        >>> pack_nibbles(np.int8([1, -1, -8, 7]), 0).tolist()
        [-15, 120]
    """
    if codes.shape[axis] % 2:
        message = f"{codes.shape[axis]} codes of 4 bits along axis {axis}; an even number is needed to pack them"
        raise ShapeError(message)
    even, odd = (np.take(codes, range(start, codes.shape[axis], 2), axis).astype(np.uint8) for start in (0, 1))
    return ((even & np.uint8(15)) | (odd << np.uint8(4))).view(np.int8)


def unpack_nibbles(packed: CodeArray, axis: int) -> CodeArray:
    """Undo `pack_nibbles`: the axis doubles.

    Example:
        >>> unpack_nibbles(np.int8([-15, 120]), 0).tolist()
        [1, -1, -8, 7]
    """
    bytes_ = np.asarray(packed, np.int8)
    low = ((bytes_.view(np.uint8) << np.uint8(4)).view(np.int8)) >> np.int8(4)  # the shift keeps the sign
    pairs = np.stack([low, bytes_ >> np.int8(4)], axis=axis + 1)
    shape = list(bytes_.shape)
    shape[axis] *= 2
    return pairs.reshape(shape)
