"""IFMR: the spec's worked vectors, the integral loss, exact mode against brute force, bad input."""

import naive
import numpy as np
import pytest
from datasets import FINITE, dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.errors import ConfigError, DataError, EmptyDataError, RangeError, SchemaError
from calibrant.quantizers import IfmrOptions, dequantize, fit_ifmr, quantize
from calibrant.quantizers import exact_search as exact
from calibrant.quantizers.grid import candidate_grid
from calibrant.quantizers.ifmr import histogram_losses
from calibrant.stats import LogLinearHistogram

F32 = np.float32
X = F32([-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 8])


def options(bits=8, asymmetric=True, p=1.0, **more):
    return IfmrOptions(bits=bits, asymmetric=asymmetric, max_percentile=p, min_percentile=p, **more)


def fit_values(values, chosen):
    return fit_ifmr(LogLinearHistogram.from_values(values), chosen, values=values)


@pytest.mark.parametrize(
    ("bits", "asymmetric", "best", "scale", "offset", "clip_min", "clip_max", "loss"),
    [
        (8, True, 31, 0.035607845, -100, -0.99701965, 8.082981, 2.21700575e-5),
        (8, False, 30, 0.062992126, 0, -8.062992, 8.0, 5.8125061e-5),
        (4, True, 33, 0.616, -6, -1.232, 8.008, 0.0310007988),
        (4, False, 29, 1.1314286, 0, -9.051429, 7.92, 0.0953873502),
    ],
)
def test_worked_vector(bits, asymmetric, best, scale, offset, clip_min, clip_max, loss):
    fit = fit_values(X, options(bits, asymmetric))
    assert (fit.candidates.best, int(fit.offset), fit.bits, fit.axis) == (best, offset, bits, None)
    assert float(fit.scale) == pytest.approx(scale, rel=1e-6)
    assert (float(fit.clip_min), float(fit.clip_max)) == pytest.approx((clip_min, clip_max), rel=1e-6)
    assert fit.loss == pytest.approx(loss, rel=1e-5)  # the vector's is summed in float32
    assert fit.candidates.exact


@pytest.mark.parametrize(
    ("values", "chosen", "best", "scale", "offset"),
    [
        (-X, options(), 41, 0.03572549, 96),
        (-X, options(asymmetric=False), 30, 0.0625, 0),  # the larger end is negative: 128 steps
        (X, options(16), 35, 1.434348e-4, -25796),
        (np.linspace(-1, 3, 17, dtype=F32), options(asymmetric=False, p=0.9), 58, 0.027716536, 0),
        (np.linspace(-1, 3, 17, dtype=F32), options(4, p=0.9), 40, 0.25166667, -5),
        (np.full(6, -2, F32), options(), 0, 2 / 255, 127),
    ],
)
def test_other_worked_vectors(values, chosen, best, scale, offset):
    fit = fit_values(values, chosen)
    assert (fit.candidates.best, int(fit.offset)) == (best, offset)
    assert float(fit.scale) == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(("asymmetric", "offset", "ends"), [(True, -128, (0, 255)), (False, 0, (-128, 127))])
def test_zeros_get_scale_one(asymmetric, offset, ends):
    fit = fit_ifmr(LogLinearHistogram.from_values(np.zeros(5, F32)), options(asymmetric=asymmetric))
    assert (float(fit.scale), int(fit.offset), fit.loss, fit.candidates.best) == (1.0, offset, 0.0, 0)
    assert (float(fit.clip_min), float(fit.clip_max)) == ends


def test_candidates_are_multiples_as_numpy_arange_counts_them():
    grid = candidate_grid(F32(0), F32(1), IfmrOptions())
    assert grid.clip_max.tolist() == [float(F32(0.7 + i * 0.01)) for i in range(61)]
    assert candidate_grid(F32(0), F32(1), IfmrOptions(search_range=(0.8, 1.2), search_step=0.02)).clip_max.size == 20


def test_only_the_upper_end_moves():
    grid = candidate_grid(F32(-3), F32(2), IfmrOptions())
    assert set(grid.clip_min.tolist()) == {-3.0}
    symmetric = candidate_grid(F32(-3), F32(2), IfmrOptions(asymmetric=False))
    assert symmetric.clip_min.tolist() == (-symmetric.clip_max).tolist()
    assert symmetric.scale[30] == F32(3) / F32(128)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("asymmetric", [True, False])
def test_histogram_losses_are_integrals_over_bins(bits, asymmetric):
    values = dataset("heavy tail")[:300]
    histogram = LogLinearHistogram.from_values(values)
    fit = fit_ifmr(histogram, options(bits, asymmetric, 0.95))
    bins = list(zip(*(column.tolist() for column in histogram.bins()), strict=True))
    for index in (0, 30, 60):
        found = fit.candidates
        ends = float(found.clip_min[index]), float(found.clip_max[index])
        expected = naive.loss_from_bins(bins, float(found.scale[index]), *ends)
        assert found.loss[index] == pytest.approx(expected, rel=1e-6)
    assert not found.exact
    assert found.best == int(np.argmin(found.loss))


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", [name for name in FINITE if name != "largest floats"])
def test_bounds_hold_and_drop_no_winner(name, bits):
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    for asymmetric in (True, False):
        chosen = options(bits, asymmetric, 0.999)
        grid = candidate_grid(
            F32(min(histogram.percentile(0.999, "min"), 0)), F32(max(histogram.percentile(0.999), 0)), chosen
        )
        everything = exact.value_losses(histogram, grid, [values])
        least, greatest = exact.bounds(
            exact.Spread.of(histogram.bins()), grid, histogram_losses(histogram.bins(), grid)
        )
        slack = 1e-12 * everything + 1e-300
        assert np.all(least <= everything + slack)
        assert np.all(everything <= greatest + slack)
        fit = fit_ifmr(histogram, chosen, values=values)
        assert fit.candidates.best == int(np.argmin(everything))
        assert fit.loss == everything.min() / values.size
        assert fit.candidates.best == int(np.argmin(fit.candidates.loss))


def test_most_candidates_drop_out():
    values = np.random.default_rng(0).standard_normal(300_000).astype(F32)
    histogram = LogLinearHistogram.from_values(values)
    grid = candidate_grid(F32(histogram.minimum), F32(histogram.maximum), IfmrOptions())
    assert exact.survivors(histogram.bins(), grid, histogram_losses(histogram.bins(), grid)).size < 15


@given(
    arrays(F32, st.integers(1, 60), elements=st.floats(-1000, 1000, width=32)),
    st.sampled_from([4, 8, 16]),
    st.booleans(),
    st.sampled_from([0.6, 0.9, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_exact_mode_is_brute_force(values, bits, asymmetric, p):
    fit = fit_values(values, options(bits, asymmetric, p))
    _, losses, best = naive.ifmr(values, bits, asymmetric, (p, p))
    finest = 2.0**-90 * float(np.abs(values).max()) ** 2  # what the exact sums resolve
    assert fit.loss == pytest.approx(losses[best], rel=1e-12, abs=finest)
    assert losses[fit.candidates.best] == pytest.approx(losses[best], rel=1e-12, abs=finest)
    assert fit.scale > 0


@given(arrays(F32, st.integers(1, 200), elements=st.floats(-50, 50, width=32)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_values_inside_come_back_within_half_a_step(values, asymmetric):
    fit = fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions(asymmetric=asymmetric))
    inside = values[(values >= fit.clip_min) & (values <= fit.clip_max)]
    error = np.abs(dequantize(quantize(inside, fit), fit).astype(np.float64) - inside)
    assert np.all(error <= float(fit.scale) * 0.5 + np.abs(inside) * 2.0**-22)


def test_exact_losses_do_not_depend_on_order_or_blocks():
    values = dataset("heavy tail")
    histogram = LogLinearHistogram.from_values(values)
    whole = fit_ifmr(histogram, IfmrOptions(), values=values)
    shuffled = np.random.default_rng(1).permutation(values)
    pieces = [shuffled[:7].reshape(7, 1), shuffled[7:1000], shuffled[1000:]]
    for other in (shuffled, pieces, tuple(reversed(pieces))):
        fit = fit_ifmr(histogram, IfmrOptions(), values=other)
        assert fit.candidates.loss.tolist() == whole.candidates.loss.tolist()


def test_an_exact_percentile_beyond_the_kept_extremes_is_selected_from_the_values():
    values = np.random.default_rng(2).standard_normal(60_000).astype(F32)
    histogram = LogLinearHistogram.from_values(values)
    assert not histogram.percentile_is_exact(0.9, "max")
    fit = fit_ifmr(histogram, options(p=0.9), values=[values[:100], values[100:]])
    ordered = np.sort(values)
    high, low = ordered[60_000 - (60_000 - 54_000)], ordered[6_000 - 1]
    grid = candidate_grid(low, high, options(p=0.9))
    assert fit.candidates.clip_max.tolist() == grid.clip_max.tolist()
    assert fit.candidates.clip_min.tolist() == grid.clip_min.tolist()


def test_half_precision_values_are_widened():
    values = dataset("float16 gaussian")
    assert float(fit_values(values, options()).scale) == float(fit_values(values.astype(F32), options()).scale)


def test_histograms_without_numbers_are_refused():
    with pytest.raises(EmptyDataError, match="histogram holds no values; capture at least one sample"):
        fit_ifmr(LogLinearHistogram(), IfmrOptions())
    with pytest.raises(DataError, match="histogram counted 2 NaN and 1 infinite of 4 values"):
        fit_ifmr(LogLinearHistogram.from_values(F32([np.nan, np.nan, np.inf, 1])), IfmrOptions())
    with pytest.raises(RangeError, match="overflows float32"):
        fit_ifmr(LogLinearHistogram.from_values(F32([3.3e38, -3.3e38])), IfmrOptions())


def test_other_values_than_those_counted_are_refused():
    histogram = LogLinearHistogram.from_values(X)
    with pytest.raises(DataError, match="values: 9 given, but the histogram counted 10"):
        fit_ifmr(histogram, IfmrOptions(), values=X[:9])
    with pytest.raises(SchemaError, match="values of dtype float64: float32 or float16 was expected"):
        fit_ifmr(histogram, IfmrOptions(), values=X.astype(np.float64))


def test_values_that_can_be_read_only_once_are_refused_where_twice_is_needed():
    values = np.random.default_rng(2).standard_normal(60_000).astype(F32)
    histogram = LogLinearHistogram.from_values(values)
    with pytest.raises(DataError, match="iterated more than once"):
        fit_ifmr(histogram, options(p=0.9), values=iter([values]))


def test_other_values_of_equal_number_are_refused_where_the_percentile_shows_it():
    values = np.random.default_rng(2).standard_normal(60_000).astype(F32)
    with pytest.raises(DataError, match=r"not those that the histogram counted, by their 0\.9 percentile"):
        fit_ifmr(LogLinearHistogram.from_values(values), options(p=0.9), values=values * 0 + 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits": 6}, "bits is 6, but must be one of 4, 8, 16"),
        ({"asymmetric": None}, "asymmetric is None, but must be True or False"),
        ({"max_percentile": 0.5}, "max_percentile is 0.5, but must be greater than 0.5 and at most 1.0"),
        ({"min_percentile": 1.01}, "min_percentile is 1.01, but must be greater than 0.5"),
        ({"max_percentile": float("nan")}, "max_percentile is nan"),
        ({"search_range": (0, 1.3)}, r"search_range is \(0, 1.3\), but must be a tuple of two numbers"),
        ({"search_range": (1.3, 0.7)}, "0 < first < second"),
        ({"search_range": [0.7, 1.3]}, "a tuple of two numbers"),
        ({"search_range": (0.7, 1.0, 1.3)}, "a tuple of two numbers"),
        ({"search_step": 0}, "search_step is 0, but must be above 0 and at most the width of search_range, 0.6"),
        ({"search_step": 0.61}, "search_step is 0.61, but must be above 0 and at most the width"),
        ({"search_step": float("inf")}, "search_step is inf, but must be a number"),
        ({"search_step": 1e-9}, "search_step is 1e-09, but must be wide enough for at most 100000 candidates"),
    ],
)
def test_wrong_options_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        IfmrOptions(**wrong)


def test_a_step_as_wide_as_the_range_is_valid_in_decimal():
    assert IfmrOptions(search_step=0.6).number_of_candidates() == 2  # 1.3 - 0.7 is 0.6000000000000001 in binary
