"""MSE, SQNR and clip rate: arithmetic by hand, raw values, and integrals bin by bin."""

import math

import naive
import numpy as np
import pytest

from calibrant.errors import DataError, EmptyDataError, SchemaError, ShapeError
from calibrant.quantizers import data_quality, dequantize, quantize, weight_quality
from calibrant.quantizers._kernels import EDGES, integral_losses
from calibrant.quantizers.affine import make_fit
from calibrant.quantizers.integrals import squared_errors, sum_of_squares
from calibrant.stats import LogLinearHistogram
from calibrant.stats.histogram import Bins

F32 = np.float32


def fit_of(scale, offset=0, bits=8, axis=None):
    return make_fit(np.asarray(scale, F32), np.asarray(offset, np.int32), bits, axis=axis)


def bins_of(*rows):
    lower, upper, count = zip(*rows, strict=True)
    return Bins(np.array(lower, float), np.array(upper, float), np.array(count))


def loss(bins, scale, lowest=-128, highest=127):
    return float(
        squared_errors(bins, np.array([scale], float), np.array([lowest], float), np.array([highest], float))[0]
    )


@pytest.mark.parametrize(
    ("row", "scale", "expected"),
    [
        ((0.1, 0.3, 1), 1.0, 0.2**2 + 0.2**2 / 12),  # inside one cell: centre and width
        ((-0.5, 0.5, 6), 1.0, 6 / 12),  # exactly one cell
        ((0.0, 10.0, 5), 1.0, 5 / 12),  # many cells
        ((0.5, 1.5, 1), 1.0, 1 / 12),
        ((0.25, 0.75, 4), 1.0, 4 * 2 * (0.5**3 - 0.25**3) / 3 / 0.5),  # cut by the border of two cells
        ((3.0, 3.0, 2), 2.0, 2.0),  # a point: half a step away, twice
        ((1.0, 1 + 2.0**-20, 6), 1.0, 6 * 2.0**-40 / 3),  # narrow beside its distance from zero
        ((0.5 - 2.0**-22, 0.5 + 2.0**-22, 1), 1.0, 0.25 - 2.0**-23 + 2.0**-44 / 3),  # narrow, on a border
        ((126.5, 127.5, 1), 1.0, 1 / 12),
        ((127.0, 129.0, 1), 1.0, 2.0**3 / 3 / 2),  # the last code reaches to the end
        ((127.5, 130.5, 1), 1.0, (3.5**3 - 0.5**3) / 3 / 3),  # wholly outside
        ((-131.0, -129.0, 3), 1.0, 3 * (3**3 - 1) / 3 / 2),
    ],
)
def test_integral_of_one_bin(row, scale, expected):
    assert loss(bins_of(row), scale) == pytest.approx(expected, rel=1e-12)


def test_integrals_equal_the_pieces_cut_by_hand():
    rng = np.random.default_rng(8)
    edges = np.sort(rng.normal(size=81))
    rows = list(zip(edges[:-1], edges[1:], rng.integers(1, 99, 80).tolist(), strict=True))
    for scale, lowest, highest in ((0.013, -100, 90), (0.3, -3, 2), (5.0, -1, 1), (1e-4, -32768, 32767)):
        ends = (lowest * scale, highest * scale)
        expected = sum(row[2] * naive.bin_loss(row[0], row[1], scale, *ends) for row in rows)
        assert loss(bins_of(*rows), scale, lowest, highest) == pytest.approx(expected, rel=1e-9)


def test_gaps_between_bins_hold_nothing_and_points_are_listed():
    lower, upper, count = (
        np.array([-3.0, -2.0, 1.0, 2.0, 4.0]),
        np.array([-2.0, -1.0, 2.0, 2.0, 5.0]),
        np.array([5, 4, 3, 7, 1]),
    )
    scale = np.array([0.3])
    units, narrow = integral_losses(lower, upper, count, 1 / scale, np.array([-8.0]), np.array([9.0]))
    rows = zip(lower.tolist(), upper.tolist(), count.tolist(), strict=True)
    expected = sum(count * naive.bin_loss(low, high, 0.3, -2.4, 2.7) for low, high, count in rows if low != high)
    assert units[0] * 0.3**3 / 12 == pytest.approx(expected, rel=1e-12)
    assert narrow.tolist() == [3]


@pytest.mark.parametrize("bins", [EDGES - 1, EDGES, EDGES + 1, 3 * EDGES + 2])
def test_any_number_of_bins_is_summed(bins):
    lower = np.arange(bins) * 1.0
    units, _ = integral_losses(lower, lower + 1, np.full(bins, 2), np.array([0.5]), np.array([0.0]), np.array([1e9]))
    assert units[0] * 8 / 12 == pytest.approx(
        bins * 2 / 3
    )  # all bins alike: (x - q)**2 from 0 to 1 about a multiple of 2


@pytest.mark.parametrize("number", [1, 31, 32, 33, 64, 100])
def test_each_candidate_is_judged_alone(number):
    bins = LogLinearHistogram.from_values(np.random.default_rng(6).standard_normal(500).astype(F32)).bins()
    scales, ends = np.linspace(0.01, 0.5, number), np.full(number, 100.0)
    together = squared_errors(bins, scales, -ends, ends)
    assert together.tolist() == [loss(bins, scale, -100, 100) for scale in scales]


def test_sum_of_squares_by_hand():
    assert sum_of_squares(bins_of((-1, 1, 3), (2, 2, 2))) == pytest.approx(3 / 3 + 8)


def test_data_quality_is_near_the_raw_values():
    values = np.random.default_rng(1).standard_normal(200_000).astype(F32)
    fit = fit_of(0.02, 11)
    got = data_quality(LogLinearHistogram.from_values(values), fit)
    error = (dequantize(quantize(values, fit), fit) - values).astype(np.float64)
    mse, energy = float(np.mean(error**2)), float(np.mean(values.astype(np.float64) ** 2))
    assert got.mse == pytest.approx(mse, rel=1e-3)
    assert got.sqnr_db == pytest.approx(10 * math.log10(energy / mse), abs=0.01)
    outside = np.mean((values < 0.02 * (-128 - 11 - 0.5)) | (values > 0.02 * (127 - 11 + 0.5)))
    assert got.clip_rate == pytest.approx(outside, abs=1e-4)


def test_data_that_is_represented_exactly_has_no_noise():
    got = data_quality(LogLinearHistogram.from_values(np.zeros(5, F32)), fit_of(1, -128))
    assert (got.mse, got.sqnr_db, got.clip_rate) == (0.0, math.inf, 0.0)


def test_clip_rate_cuts_a_bin_by_proportion():
    values = np.linspace(1, 1 + 2**-13, 1025, dtype=F32)[:-1]  # one bin
    fit = fit_of((1 + 2**-15) / 127.5)  # the range ends half a step beyond 127 steps
    clipped = data_quality(LogLinearHistogram.from_values(np.concatenate([values, F32([3])])), fit).clip_rate
    assert clipped == pytest.approx((0.75 * 1024 + 1) / 1025, abs=2e-3)


def test_the_maximum_that_gave_the_scale_is_not_clipped():
    values = np.random.default_rng(2).random(4000, dtype=F32)
    rounded_down = values[(values / F32(127)) * F32(127) < values]
    assert rounded_down.size
    for value in rounded_down[:5]:
        fit = fit_of(value / F32(127))
        assert data_quality(LogLinearHistogram.from_values(np.full(3, value)), fit).clip_rate == 0.0
        assert weight_quality(np.full((1, 3), value), fit).clip_rate.tolist() == [0.0]


def test_a_value_that_rounds_to_the_end_is_not_clipped():
    fit = fit_of(0.5, -115)  # codes reach (-128 + 115) * 0.5 = -6.5
    clip_rate = data_quality(LogLinearHistogram.from_values(F32([-6.7, -6.5, 0, 1])), fit).clip_rate
    assert clip_rate == 0.0
    assert data_quality(LogLinearHistogram.from_values(F32([-6.8, -6.5, 0, 1])), fit).clip_rate == 0.25


def test_weight_quality_by_hand():
    weight = F32([[1, 3], [300, 0]])
    got = weight_quality(weight, fit_of([2, 1], [0, 0], axis=0))
    assert got.mse.tolist() == [1.0, 173**2 / 2]  # 1 -> 0, 3 -> 4; 300 -> 127
    np.testing.assert_allclose(got.sqnr_db, [10 * math.log10(5), 20 * math.log10(300 / 173)])
    assert got.clip_rate.tolist() == [0.0, 0.5]


def test_one_scale_gives_one_row():
    got = weight_quality(F32([[1, 3], [5, 7]]), fit_of(2))
    assert got.mse.shape == got.sqnr_db.shape == got.clip_rate.shape == (1,)
    assert got.mse.tolist() == [1.0]


def test_offsets_take_part():
    weight = np.random.default_rng(4).uniform(0, 1, (3, 50)).astype(F32)
    fit = fit_of([1 / 255] * 3, [-128] * 3, axis=0)
    error = (dequantize(quantize(weight, fit), fit) - weight).astype(np.float64)
    np.testing.assert_allclose(weight_quality(weight, fit).mse, np.mean(error**2, axis=1), rtol=1e-12)


def test_bad_input_is_refused():
    histogram = LogLinearHistogram.from_values(F32([1]))
    with pytest.raises(ShapeError, match="fit with 2 scales: one scale for the tensor was expected"):
        data_quality(histogram, fit_of([1, 1], [0, 0], axis=0))
    with pytest.raises(EmptyDataError, match="histogram holds no values"):
        data_quality(LogLinearHistogram(), fit_of(1))
    with pytest.raises(DataError, match="1 NaN"):
        data_quality(LogLinearHistogram.from_values(F32([np.nan])), fit_of(1))
    with pytest.raises(ShapeError, match="3 channels on axis 0, but the fit has 2 scales"):
        weight_quality(np.ones((3, 2), F32), fit_of([1, 1], [0, 0], axis=0))
    with pytest.raises(SchemaError, match="dtype int64"):
        weight_quality(np.ones((3, 2), np.int64), fit_of(1))
