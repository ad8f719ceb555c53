"""Input channels of a layer: their axis in the data and in the weight, their maxima, and factors laid along them.

In a grouped convolution the input channels of all groups count: channel j of the data meets the weights of its own group.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from calibrant.errors import ShapeError

Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating]

_CONVOLUTIONS: Final = ("Conv", "ConvTranspose")


def data_axis(op_type: str) -> int:
    """Return the axis of the input channels in a layer's data: 1 for convolutions, the last for matrices."""
    return 1 if op_type in _CONVOLUTIONS else -1


def along_data(values: Float32Array, kernel_rank: int) -> Float32Array:
    """Lay one value an input channel along a layer's data, as AMCT shapes its factors.

    Returns:
        shape [1, C, 1, …] of the weight's rank for a convolution, [1, C] for a matrix, whose kernel has rank 0.

    Example:
        >>> along_data(np.ones(3, np.float32), 2).shape, along_data(np.ones(3, np.float32), 0).shape
        ((1, 3, 1, 1), (1, 3))
    """
    return values.reshape(1, -1, *[1] * kernel_rank)


def along_weight(values: Float32Array, op_type: str, groups: int, shape: Sequence[int]) -> Float32Array:
    """Lay one value an input channel along a weight, so that it multiplies the weights that the channel meets.

    Args:
        values: shape (Cin,), the channels of all groups.
        op_type: the layer's kind.
        groups: of a convolution, else 1.
        shape: of the weight: Conv (Cout, Cin/g, k…), ConvTranspose (Cin, Cout/g, k…), Gemm and MatMul (…, K, N).

    Raises:
        ShapeError: not one value an input channel.

    Example:
        >>> along_weight(np.float32([1, 2, 3, 4]), "Conv", 2, (6, 2, 3, 3))[:, :, 0, 0].tolist()
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]
    """
    expected = _input_channels(op_type, groups, shape)
    if values.shape != (expected,):
        message = f"{op_type} weight of shape {tuple(shape)}: {values.size} values for {expected} input channels"
        raise ShapeError(message)
    if op_type == "Conv":
        grouped = np.repeat(values.reshape(groups, -1), shape[0] // groups, axis=0)
        return grouped.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))
    return values.reshape(-1, *[1] * (len(shape) - 1 if op_type == "ConvTranspose" else 1))


def multiplied(weight: FloatArray, factors: Float32Array, op_type: str, groups: int) -> Float32Array:
    """Multiply a weight, in its own layout, by the factor of each input channel, in float32.

    Args:
        weight: as for `along_weight`.
        factors: shape (Cin,), the channels of all groups.
        op_type: the layer's kind.
        groups: of a convolution, else 1.

    Raises:
        ShapeError: another number of factors than input channels.

    Example:
        >>> multiplied(np.float32([[1, -5], [2, 3]]), np.float32([2, 3]), "MatMul", 1).tolist()
        [[2.0, -10.0], [6.0, 9.0]]
    """
    return np.asarray(np.asarray(weight, np.float32) * along_weight(factors, op_type, groups, weight.shape), np.float32)


def weight_maxima(weight: FloatArray, op_type: str, groups: int) -> Float32Array:
    """Return the greatest magnitude of the weights that each input channel meets.

    Args:
        weight: as for `along_weight`.
        op_type: the layer's kind.
        groups: of a convolution, else 1.

    Returns:
        shape (Cin,), the channels of all groups.

    Example:
        >>> weight_maxima(np.float32([[1, -5], [2, 3]]), "MatMul", 1).tolist()
        [5.0, 3.0]
    """
    sizes = np.abs(np.asarray(weight, np.float32))
    channels = _input_channels(op_type, groups, sizes.shape)
    if op_type == "Conv":
        grouped = sizes.reshape(groups, sizes.shape[0] // groups, sizes.shape[1], -1)
        return np.asarray(grouped.max(axis=(1, 3), initial=0).reshape(channels), np.float32)
    if op_type == "ConvTranspose":
        return np.asarray(sizes.reshape(channels, -1).max(axis=1, initial=0), np.float32)
    others = tuple(axis for axis in range(sizes.ndim) if axis != sizes.ndim - 2)
    return np.asarray(sizes.max(axis=others, initial=0), np.float32)


def data_maxima(values: FloatArray, op_type: str) -> Float32Array:
    """Return the greatest magnitude of each input channel in a layer's data, of any number of samples.

    Args:
        values: samples stacked on axis 0, each of the layer's own rank.
        op_type: the layer's kind.

    Returns:
        shape (Cin,).

    Example:
        >>> data_maxima(np.float32([[[1, -5]], [[2, 3]]]), "MatMul").tolist()
        [2.0, 5.0]
    """
    axis = _stacked_axis(op_type, values.ndim)
    others = tuple(other for other in range(values.ndim) if other != axis)
    return np.asarray(np.abs(np.asarray(values, np.float32)).max(axis=others, initial=0), np.float32)


def divided(values: FloatArray, factors: Float32Array, op_type: str) -> Float32Array:
    """Divide a layer's data, samples stacked on axis 0, by the factor of each input channel, in float32.

    Args:
        values: as for `data_maxima`; the result has its shape.
        factors: shape (Cin,).
        op_type: the layer's kind.

    Example:
        >>> divided(np.float32([[[1, -6]]]), np.float32([2, 3]), "MatMul").tolist()
        [[[0.5, -2.0]]]
    """
    after = values.ndim - 1 - _stacked_axis(op_type, values.ndim)
    return np.asarray(np.asarray(values, np.float32) / factors.reshape(-1, *[1] * after), np.float32)


def _stacked_axis(op_type: str, rank: int) -> int:
    axis = data_axis(op_type)
    return rank + axis if axis < 0 else axis + 1


def _input_channels(op_type: str, groups: int, shape: Sequence[int]) -> int:
    if op_type == "Conv":
        return shape[1] * groups
    return shape[0 if op_type == "ConvTranspose" else -2]
