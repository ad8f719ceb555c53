"""Weights as rows: one row an output channel, whatever the layer's own layout, and the `weights` table of them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ShapeError
from calibrant.stats.channels import ChannelRows, channel_columns, fold_samples
from calibrant.stats.tables import frame_of

FloatArray = npt.NDArray[np.floating]

_MATRIX = {"Gemm": 2, "MatMul": 3}  # the greatest rank of a weight (rows, columns)


def channels_first(weight: FloatArray, op_type: str, groups: int) -> FloatArray:
    """Bring a weight to one row an output channel (docs/algorithms.md 1).

    Args:
        weight: Conv (Cout, Cin/g, k...); ConvTranspose (Cin, Cout/g, k...); Gemm (K, N); MatMul (K, N) or (B, K, N).
        op_type: the layer's kind.
        groups: g; matters for ConvTranspose only.

    Returns:
        shape (Cout, elements), contiguous; for ConvTranspose the elements are in order input channel of the group, kernel, for a
        MatMul of rank 3 in order batch, input channel.

    Raises:
        ShapeError: the rank is too small, or the groups do not divide the channels.

    Example:
        >>> channels_first(np.float32([[1, 2, 3], [4, 5, 6]]), "MatMul", 1).tolist()
        [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    """
    _check(weight.shape, op_type, groups)
    if op_type in _MATRIX:
        return np.ascontiguousarray(np.moveaxis(weight, -1, 0).reshape(weight.shape[-1], -1))
    if op_type != "ConvTranspose":
        return np.ascontiguousarray(weight).reshape(weight.shape[0], math.prod(weight.shape[1:]))
    inputs, outputs, kernel = _transposed_shape(weight.shape, groups)
    grouped = weight.reshape(groups, inputs, outputs, kernel).swapaxes(1, 2)
    return np.ascontiguousarray(grouped).reshape(groups * outputs, inputs * kernel)


def channels_back(
    rows: npt.NDArray[np.generic], op_type: str, groups: int, shape: Sequence[int]
) -> npt.NDArray[np.generic]:
    """Undo `channels_first`, for any dtype (codes too).

    Args:
        rows: shape (Cout, elements).
        op_type: the layer's kind.
        groups: as given to `channels_first`.
        shape: of the weight.

    Raises:
        ShapeError: the rows do not fill the shape.

    Example:
        >>> weight = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        >>> rows = channels_first(weight, "ConvTranspose", 2)
        >>> bool((channels_back(rows, "ConvTranspose", 2, weight.shape) == weight).all())
        True
    """
    _check(shape, op_type, groups)
    if rows.size != math.prod(shape):
        message = f"weight rows of shape {rows.shape} do not fill {op_type} weight {tuple(shape)}"
        raise ShapeError(message)
    if op_type in _MATRIX:
        return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[-1], *shape[:-1]), 0, -1))
    if op_type != "ConvTranspose":
        return np.ascontiguousarray(rows).reshape(shape)
    inputs, outputs, kernel = _transposed_shape(shape, groups)
    grouped = rows.reshape(groups, outputs, inputs, kernel).swapaxes(1, 2)
    return np.ascontiguousarray(grouped).reshape(shape)


def _transposed_shape(shape: Sequence[int], groups: int) -> tuple[int, int, int]:
    """Return input channels of a group, output channels of a group and kernel elements."""
    return shape[0] // groups, shape[1], math.prod(shape[2:])


def _check(shape: Sequence[int], op_type: str, groups: int) -> None:
    most = _MATRIX.get(op_type)
    if len(shape) < 2 or (most is not None and len(shape) > most):
        ranks = {None: "2 or more", 2: "2", 3: "2 or 3"}[most]
        message = f"{op_type} weight of shape {tuple(shape)}; expected rank {ranks}"
        raise ShapeError(message)
    if groups < 1 or (op_type not in _MATRIX and shape[0] % groups):
        message = f"{op_type} weight of shape {tuple(shape)}: axis 0 cannot be split into {groups} groups"
        raise ShapeError(message)


def weight_frame(layer_id: int, rows: FloatArray) -> pl.DataFrame:
    """Return the rows of the `weights` table for one layer.

    Sums are float64 over finite values, in the order of `fold_samples`.

    Args:
        layer_id: the layer's number in the run.
        rows: shape (Cout, elements), as `channels_first` gives them.

    Raises:
        ShapeError: `rows` is not of rank 2.

    Example:
        >>> weight_frame(3, np.float32([[1, -2]])).row(0)
        (3, 0, 2, -2.0, 1.0, 2.0, -1.0, 5.0)
    """
    return frame_of("weights", weight_columns(layer_id, rows), layer_id=layer_id)


def weight_columns(layer_id: int, rows: FloatArray) -> dict[str, npt.NDArray[Any]]:
    """Return what `weight_frame` returns, but the layer, as arrays; bounds are NaN where no value is finite.

    Raises:
        ShapeError: `rows` is not of rank 2.
    """
    if rows.ndim != 2:
        message = f"layer {layer_id}: weight rows of shape {rows.shape}; expected (channels, elements)"
        raise ShapeError(message)
    channels = ChannelRows.of(1, rows.shape[0])
    fold_samples(np.ascontiguousarray(rows, np.float32)[None, None], channels)
    n = np.full(rows.shape[0], rows.shape[1], np.int64)
    return channel_columns(n, channels.least, channels.greatest, channels.totals[0], channels.squares[0])
