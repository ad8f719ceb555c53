"""Biases: float32, half to even, int32 or an error that names the channel."""

import numpy as np
import pytest

from calibrant.errors import DataError, RangeError, ShapeError
from calibrant.quantizers import quantize_bias

F32 = np.float32


def test_ties_round_to_even():
    assert quantize_bias(F32([0.25, 0.75, -0.25, -0.75, 1.25]), F32(0.5), F32([1.0])).tolist() == [0, 2, 0, -2, 2]


def test_each_channel_uses_its_scale():
    got = quantize_bias(F32([1, 1, -3]), F32(0.5), F32([0.5, 0.25, 1]))
    assert got.dtype == np.int32
    assert got.tolist() == [4, 8, -6]


def test_one_scale_serves_all_channels_as_a_scalar_too():
    assert quantize_bias(F32([1, -2]), 0.5, F32(0.5)).tolist() == [4, -8]


def test_the_product_of_scales_is_float32():
    bias, data, weight = F32(0.123456), F32(3.1e-4), F32(7.7e-4)
    expected = round(float(bias / (data * weight)))
    assert quantize_bias(np.array([bias]), data, np.array([weight])).tolist() == [expected]


@pytest.mark.parametrize("value", [2.0**31, -(2.0**31) - 256, 1e30])
def test_what_leaves_int32_names_its_channel(value):
    with pytest.raises(RangeError, match=r"bias, channel 2: .* outside int32 \[-2147483648, 2147483647\]"):
        quantize_bias(F32([0, 1, value]), F32(1), F32([1]))


def test_scales_whose_product_vanishes_are_a_range_error():
    with pytest.raises(RangeError, match="bias, channel 0"):
        quantize_bias(F32([1]), F32(1e-30), F32([1e-30]))


def test_the_ends_of_int32_are_kept():
    assert quantize_bias(F32([-(2.0**31), 2.0**31 - 128]), F32(1), F32([1])).tolist() == [-(2**31), 2**31 - 128]


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(ShapeError, match=r"bias of shape \(3,\) with 2 weight scales"):
        quantize_bias(np.zeros(3, F32), F32(1), F32([1, 1]))
    with pytest.raises(ShapeError, match=r"bias of shape \(1, 3\)"):
        quantize_bias(np.zeros((1, 3), F32), F32(1), F32([1]))
    with pytest.raises(DataError, match="bias, channel 1: nan; a finite value was expected"):
        quantize_bias(F32([0, np.nan]), F32(1), F32([1]))
