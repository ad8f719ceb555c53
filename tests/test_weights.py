"""Weights by output channel: layout there and back, and the table."""

import math

import numpy as np
import pytest

from calibrant.errors import ShapeError
from calibrant.stats.tables import SCHEMAS
from calibrant.stats.weights import channels_back, channels_first, weight_frame

F32 = np.float32

LAYOUTS = [
    ("Conv", 1, (4, 3, 2, 2), 4),
    ("Conv", 4, (4, 1, 3, 3), 4),
    ("Conv", 1, (5, 2, 7), 5),
    ("ConvTranspose", 1, (3, 5, 2, 2), 5),
    ("ConvTranspose", 2, (4, 3, 2), 6),
    ("Gemm", 1, (3, 7), 7),
    ("MatMul", 1, (8, 2), 2),
    ("MatMul", 1, (4, 8, 2), 2),
]


@pytest.mark.parametrize(("op_type", "groups", "shape", "channels"), LAYOUTS)
def test_layout_there_and_back(op_type, groups, shape, channels):
    weight = np.random.default_rng(0).standard_normal(shape).astype(F32)
    rows = channels_first(weight, op_type, groups)
    assert rows.shape == (channels, math.prod(shape) // channels)
    assert rows.flags.c_contiguous
    assert np.array_equal(channels_back(rows, op_type, groups, shape), weight)
    codes = rows.astype(np.int8)
    assert channels_back(codes, op_type, groups, shape).dtype == np.int8


def test_transposed_convolution_keeps_groups_apart():
    weight = np.arange(4 * 3 * 2, dtype=F32).reshape(4, 3, 2)
    rows = channels_first(weight, "ConvTranspose", 2)
    for group in range(2):
        for output in range(3):
            expected = np.concatenate([weight[2 * group + i, output] for i in range(2)])
            assert rows[group * 3 + output].tolist() == expected.tolist()


def test_matrix_rows_are_output_columns():
    weight = F32([[1, 2, 3], [4, 5, 6]])
    assert channels_first(weight, "Gemm", 1).tolist() == [[1, 4], [2, 5], [3, 6]]


def test_weight_frame_has_a_row_a_channel():
    frame = weight_frame(9, F32([[1, -2, 0.5], [0, 0, 0]]))
    assert frame.schema == SCHEMAS["weights"]
    assert frame.rows() == [(9, 0, 3, -2.0, 1.0, 2.0, -0.5, 5.25), (9, 1, 3, 0.0, 0.0, 0.0, 0.0, 0.0)]


def test_wrong_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"Gemm weight of shape \(2, 3, 4\); expected rank 2$"):
        channels_first(np.zeros((2, 3, 4), F32), "Gemm", 1)
    with pytest.raises(ShapeError, match=r"MatMul weight of shape \(1, 2, 3, 4\); expected rank 2 or 3"):
        channels_first(np.zeros((1, 2, 3, 4), F32), "MatMul", 1)
    with pytest.raises(ShapeError, match=r"Conv weight of shape \(3,\); expected rank 2 or more"):
        channels_first(np.zeros(3, F32), "Conv", 1)
    with pytest.raises(ShapeError, match="cannot be split into 2 groups"):
        channels_first(np.zeros((3, 3), F32), "ConvTranspose", 2)
    with pytest.raises(ShapeError, match="do not fill Gemm weight"):
        channels_back(np.zeros((2, 2), F32), "Gemm", 1, (2, 3))
    with pytest.raises(ShapeError, match="layer 1: weight rows of shape"):
        weight_frame(1, np.zeros(3, F32))
