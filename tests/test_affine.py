"""The affine map: worked numbers, the half-step law, per-channel shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.errors import DataError, RangeError, ShapeError
from calibrant.quantizers import dequantize, quantize
from calibrant.quantizers.affine import code_dtype, code_range, floor_scale, make_fit, range_parameters

F32 = np.float32
BITS = st.sampled_from([4, 6, 7, 8, 16])
ENDS = st.floats(-1e6, 1e6, width=32)


def fit_of(scale, offset, bits=8, axis=None):
    return make_fit(np.asarray(scale, F32), np.asarray(offset, np.int32), bits, axis=axis)


def test_code_ranges_and_dtypes():
    assert [code_range(bits) for bits in (4, 8, 16)] == [(-8, 7), (-128, 127), (-32768, 32767)]
    assert [code_dtype(bits) for bits in (4, 8, 16)] == [np.int8, np.int8, np.int16]


def test_ties_round_to_even_before_the_offset_is_added():
    fit = fit_of(1, 3)
    assert quantize(F32([0.5, 1.5, 2.5, -0.5, -1.5]), fit).tolist() == [3, 5, 5, 3, 1]


def test_values_outside_saturate():
    assert quantize(F32([1e30, -1e30, 127.5, -128.5]), fit_of(1, 0)).tolist() == [127, -128, 127, -128]


def test_fit_knows_what_is_representable():
    fit = fit_of(0.5, -28)
    assert (float(fit.clip_min), float(fit.clip_max)) == (-50.0, 77.5)


def test_sixteen_bits_use_int16():
    assert quantize(F32([40000, -1]), fit_of(1, 0, 16)).tolist() == [32767, -1]
    assert quantize(F32([0]), fit_of(1, 0, 16)).dtype == np.int16


def test_half_precision_is_widened():
    assert quantize(np.float16([0.5, 65504]), fit_of(0.25, 0)).tolist() == [2, 127]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_each_channel_has_its_scale(axis):
    values = np.arange(27, dtype=F32).reshape(3, 3, 3) - 13
    scales, offsets = F32([0.5, 1, 2]), [1, 0, -4]
    fit = fit_of(scales, offsets, axis=axis)
    codes = quantize(values, fit)
    for channel in range(3):
        one = fit_of(scales[channel], offsets[channel])
        np.testing.assert_array_equal(codes.take(channel, axis), quantize(values.take(channel, axis), one))
    np.testing.assert_array_equal(dequantize(codes, fit).take(2, axis), dequantize(codes.take(2, axis), fit_of(2, -4)))


def test_another_number_of_channels_is_refused():
    with pytest.raises(ShapeError, match="4 channels on axis 0, but the fit has 3 scales"):
        quantize(np.zeros((4, 2), F32), fit_of([1, 1, 1], [0, 0, 0], axis=0))


def test_infinity_saturates_and_nan_is_refused():
    assert quantize(F32([np.inf, -np.inf, 3e38]), fit_of(1e-3, 5)).tolist() == [127, -128, 127]
    with pytest.raises(DataError, match="1 of 2 values are NaN, which no code represents"):
        quantize(F32([np.nan, 0]), fit_of(1, 0))


def test_tiny_scales_become_one():
    assert floor_scale(F32([1.192092e-7, 1.192092896e-7, 0])).tolist() == [1.0, float(F32(1.192092896e-7)), 1.0]


def test_a_range_beyond_float32_is_refused():
    with pytest.raises(RangeError, match="overflows float32"):
        range_parameters(F32(-3e38), F32(3e38), 8, asymmetric=True)


@pytest.mark.parametrize(
    ("low", "high", "bits", "asymmetric", "scale", "offset"),
    [
        (-1, 8, 8, True, 9 / 255, -100),  # -128 - rint(-28.33)
        (2, 8, 8, True, 8 / 255, -128),  # zero is forced inside
        (-8, -2, 8, True, 8 / 255, 127),
        (-1, 1, 8, False, 1 / 127, 0),  # a tie takes the positive end
        (-2, 1, 8, False, 2 / 128, 0),
        (-1, 2, 4, False, 2 / 7, 0),
        (0, 0, 8, True, 1, -128),
        (0, 0, 16, True, 1, -32768),
        (0, 0, 8, False, 1, 0),
    ],
)
def test_ranges_follow_the_spec(low, high, bits, asymmetric, scale, offset):
    got = range_parameters(F32(low), F32(high), bits, asymmetric=asymmetric)
    assert float(got[0]) == pytest.approx(scale, rel=1e-6)
    assert int(got[1]) == offset


@given(ENDS, ENDS, BITS, st.booleans())
def test_scales_are_positive_and_offsets_are_codes(a, b, bits, asymmetric):
    scale, offset = range_parameters(F32(min(a, b)), F32(max(a, b)), bits, asymmetric=asymmetric)
    least, greatest = code_range(bits)
    assert scale > 0
    assert least <= offset <= greatest


@given(arrays(F32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32)), BITS, st.booleans())
def test_values_inside_come_back_within_half_a_step(values, bits, asymmetric):
    fit = make_fit(*range_parameters(values.min(), values.max(), bits, asymmetric=asymmetric), bits)
    inside = values[(values >= fit.clip_min) & (values <= fit.clip_max)].astype(np.float64)
    back = dequantize(quantize(inside.astype(F32), fit), fit)
    slack = np.abs(inside) * 2.0**-22
    assert np.all(np.abs(back - inside) <= float(fit.scale) * 0.5 + slack)


@given(st.integers(-128, 127), st.integers(-128, 127), st.floats(2.0**-20, 2.0**20, width=32))
def test_codes_survive_the_way_there_and_back(code, offset, scale):
    fit = fit_of(scale, offset)
    codes = np.array([code], np.int8)
    assert quantize(dequantize(codes, fit), fit).tolist() == [code]
