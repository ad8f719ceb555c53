"""ARQ: the spec's worked weights, AMCT's own unit test, ties, dead channels, bad input."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.errors import ConfigError, DataError, EmptyDataError, RangeError, SchemaError, ShapeError
from calibrant.quantizers import ArqOptions, dequantize, fit_arq, quantize

F32 = np.float32
W = np.array([[-1, 0.5, 0.25], [0, 0, 0], [0.3, 1.27, -0.64], [-2, -1, -0.5]], F32)
ROWS = np.array([[-1] * 12, [0] * 12, [1] * 12, [-1, 0, 1] * 4], F32)


@pytest.mark.parametrize(
    ("bits", "asymmetric", "scale", "offset", "codes"),
    [
        (
            8,
            False,
            [0.0078125, 1, 0.01, 0.015625],
            [0] * 4,
            [[-128, 64, 32], [0, 0, 0], [30, 127, -64], [-128, -64, -32]],
        ),
        (
            8,
            True,
            [0.005882353, 1, 0.007490196, 0.007843138],
            [42, -128, -43, 127],
            [[-128, 127, 84], [-128, -128, -128], [-3, 127, -128], [-128, 0, 63]],
        ),
        (4, False, [0.125, 1, 0.18142857, 0.25], [0] * 4, [[-8, 4, 2], [0, 0, 0], [2, 7, -4], [-8, -4, -2]]),
    ],
)
def test_worked_example_per_channel(bits, asymmetric, scale, offset, codes):
    fit = fit_arq(W, ArqOptions(bits=bits, asymmetric=asymmetric))
    np.testing.assert_allclose(fit.scale, scale, rtol=1e-6)
    assert fit.offset.tolist() == offset
    assert quantize(W, fit).tolist() == codes
    assert (fit.axis, fit.bits, fit.algorithm, fit.candidates) == (0, bits, "arq", None)


@pytest.mark.parametrize(
    ("bits", "scale"), [(6, [0.03125, 1, 0.04096774, 0.0625]), (7, [0.015625, 1, 0.02015873, 0.03125])]
)
def test_worked_scales_of_odd_widths(bits, scale):
    np.testing.assert_allclose(fit_arq(W, ArqOptions(bits=bits)).scale, scale, rtol=1e-6)


def test_worked_example_per_tensor():
    fit = fit_arq(W, ArqOptions(channel_wise=False))
    assert fit.scale.shape == fit.offset.shape == ()
    assert fit.axis is None
    assert float(fit.scale) == 0.015625
    assert quantize(W, fit).tolist() == [[-64, 32, 16], [0, 0, 0], [19, 81, -41], [-128, -64, -32]]


def test_amct_unit_test_turns_on_float32():
    fit = fit_arq(ROWS, ArqOptions(asymmetric=True))
    np.testing.assert_allclose(fit.scale, [1 / 255, 1, 1 / 255, 2 / 255], rtol=1e-6)
    assert fit.offset.tolist() == [127, -128, -128, -1]  # -128 + 127.49999 in float32, not -128 + 127.5
    codes = quantize(ROWS, fit)
    assert [sorted(set(row)) for row in codes.tolist()] == [[-128], [-128], [127], [-128, -1, 126]]


def test_a_tie_of_both_ends_takes_127_steps():
    assert float(fit_arq(F32([[1, -1]]), ArqOptions()).scale[0]) == float(F32(1) / F32(127))


def test_the_negative_end_may_saturate_the_positive_one():
    weight = F32([[-1, 0.999]])
    fit = fit_arq(weight, ArqOptions())
    assert float(fit.scale[0]) == 1 / 128
    assert quantize(weight, fit).tolist() == [[-128, 127]]


def test_channels_without_range_get_scale_one():
    weight = F32([[0, 0], [1e-8, -1e-8], [0, 1.5e-5], [0, 1.52e-5]])
    scale = fit_arq(weight, ArqOptions()).scale
    assert scale[:3].tolist() == [1.0, 1.0, 1.0]  # 127 * FLT_EPSILON is 1.514e-5
    assert scale[3] == F32(1.52e-5) / F32(127)


def test_views_and_half_precision_give_the_same():
    weight = np.random.default_rng(3).standard_normal((6, 4, 5)).astype(np.float16)
    wide = weight.astype(F32)
    strided = np.asfortranarray(wide)
    expected = fit_arq(wide, ArqOptions()).scale.tolist()
    assert fit_arq(weight, ArqOptions()).scale.tolist() == expected
    assert fit_arq(strided, ArqOptions()).scale.tolist() == expected


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_names_its_channel(bad):
    weight = np.ones((5, 7), F32)
    weight[3, 6] = bad
    with pytest.raises(DataError, match="weight, channel 3: NaN or infinity; a finite value was expected"):
        fit_arq(weight, ArqOptions())
    with pytest.raises(DataError, match="weight: NaN or infinity"):
        fit_arq(weight, ArqOptions(channel_wise=False))


def test_several_bad_channels_are_counted():
    weight = np.full((4, 2), np.nan, F32)
    weight[0] = 1
    with pytest.raises(DataError, match=r"channel 1: NaN or infinity \(and 2 more channels\)"):
        fit_arq(weight, ArqOptions())


def test_other_arrays_are_refused():
    with pytest.raises(SchemaError, match="weight of dtype float64: float32 or float16 was expected"):
        fit_arq(np.ones((2, 2)), ArqOptions())
    with pytest.raises(EmptyDataError, match=r"weight of shape \(0, 3\) has no elements"):
        fit_arq(np.ones((0, 3), F32), ArqOptions())
    with pytest.raises(ShapeError, match="without axes has no channels"):
        fit_arq(np.array(1, F32), ArqOptions())
    with pytest.raises(RangeError, match="overflows float32"):
        fit_arq(F32([[3e38, -3e38]]), ArqOptions(asymmetric=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "bits is 5, but must be one of 4, 6, 7, 8"),
        ({"bits": True}, "bits is True, but must be one of 4, 6, 7, 8"),
        ({"bits": 16}, "bits is 16, but must be one of 4, 6, 7, 8"),
        ({"channel_wise": None}, "channel_wise is None, but must be True or False"),
        ({"asymmetric": 1}, "asymmetric is 1, but must be True or False"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ArqOptions(**options)


FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


@given(arrays(F32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FINITE), st.booleans())
@settings(deadline=None)  # the first example compiles
def test_any_weight_equals_its_twin(weight, asymmetric):
    fit = fit_arq(weight, ArqOptions(asymmetric=asymmetric))
    expected = naive.arq(weight, 8, True, asymmetric)
    assert fit.scale.tolist() == [float(affine.scale) for affine in expected]
    assert fit.offset.tolist() == [affine.offset for affine in expected]


@given(arrays(F32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-100, 100, width=32)))
@settings(deadline=None)  # the first example compiles
def test_weights_come_back_within_a_step(weight):
    fit = fit_arq(weight, ArqOptions())
    error = np.abs(dequantize(quantize(weight, fit), fit) - weight)
    assert np.all(error <= fit.scale.reshape(-1, 1) * F32(1.0001))  # a whole step where 127 saturates below 128
