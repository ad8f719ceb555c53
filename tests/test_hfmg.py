"""HFMG: the spec's worked histograms, the walk, the loss against piecewise sums, edge cases."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ConfigError, DataError, EmptyDataError
from calibrant.quantizers import HfmgOptions, fit_hfmg
from calibrant.quantizers.hfmg import EqualBins, fit_equal_bins, range_losses, walk
from calibrant.stats import LogLinearHistogram

F32 = np.float32
A = EqualBins(np.array([1, 0, 0, 0, 8, 4, 4, 5]), -8.0, 2.0)
B = EqualBins(np.array([1, 1, 1, 60000, 100000, 80000, 59000, 2]), -8.0, 2.0)


def pairs(counts):
    return [tuple(map(int, pair)) for pair in zip(*walk(np.asarray(counts)), strict=True)]


def test_worked_walks():
    assert pairs(A.counts) == [(0, 6), (0, 5), (0, 4), (0, 3), (0, 1)]  # ties move the right end
    assert pairs(B.counts) == [(3, 7), (3, 5)]  # total 299005: a step of 3


@pytest.mark.parametrize(
    ("bins", "bits", "losses"),
    [
        (A, 8, [6.94806465, 52.8979562, 170.941004, 398.348958, 1334.48568]),
        (A, 2, [52.9583333, 140.833333, 295.708333, 567.333333, 1496.33333]),
        (B, 8, [74.325333, 80123.582059]),
    ],
)
def test_worked_losses(bins, bits, losses):
    np.testing.assert_allclose(range_losses(bins, *walk(bins.counts), bits), losses, rtol=1e-8)


@pytest.mark.parametrize(
    ("bins", "bits", "asymmetric", "clip", "scale", "offset"),
    [
        (A, 8, True, (-8, 6), 14 / 255, 18),
        (A, 8, False, (-8, 6), 0.0625, 0),
        (A, 4, True, (-8, 6), 0.93333334, 1),
        (B, 8, True, (-2, 8), 0.039215688, -77),
        (B, 4, True, (-2, 8), 0.66666669, -5),
    ],
)
def test_worked_choices(bins, bits, asymmetric, clip, scale, offset):
    fit = fit_equal_bins(bins, bits, asymmetric=asymmetric)
    best = fit.candidates.best
    assert (fit.candidates.clip_min[best], fit.candidates.clip_max[best]) == clip
    assert float(fit.scale) == pytest.approx(scale, rel=1e-6)
    assert int(fit.offset) == offset
    assert (fit.algorithm, fit.bits, fit.axis) == ("hfmg", bits, None)


def test_worked_loss_of_four_bits():
    assert fit_equal_bins(B, 4, asymmetric=True).loss == pytest.approx(9580.72396, rel=1e-8)


def test_bins_left_of_a_candidate_cost():
    only_left = EqualBins(np.array([1000, 0, 0, 0, 0, 0, 0, 1]), 0.0, 1.0)
    loss = range_losses(only_left, np.array([4]), np.array([7]), 8)[0]
    assert loss > 1000 * 3.0**2  # AMCT's C++ library lets the index wrap and counts nothing there


@given(st.lists(st.integers(0, 9), min_size=3, max_size=24).filter(any), st.sampled_from([2, 3, 4, 6]))
@settings(deadline=None)  # the first example compiles
def test_walk_and_losses_equal_the_twin(counts, bits):
    lefts, rights = walk(np.array(counts))
    found = list(zip(lefts.tolist(), rights.tolist(), strict=True))
    assert found == naive.hfmg_candidates(counts)
    losses = range_losses(EqualBins(np.array(counts), -1.0, 0.25), lefts, rights, bits)
    expected = [naive.hfmg_loss(counts, 0.25, left, right, bits) for left, right in found]
    np.testing.assert_allclose(losses, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_wide_and_narrow_cells_equal_the_closed_form(bits):
    counts = np.random.default_rng(5).integers(0, 1000, 1024)
    lefts, rights = np.array([0, 13, 500]), np.array([1022, 800, 777])
    losses = range_losses(EqualBins(counts, -3.0, 0.01), lefts, rights, bits)
    expected = [naive.hfmg_loss_by_formula(counts, 0.01, *pair, bits) for pair in zip(lefts, rights, strict=True)]
    np.testing.assert_allclose(losses, expected, rtol=1e-8)


def test_cells_below_the_least_scale_cost_nothing():
    tiny = EqualBins(A.counts, 0.0, 1e-9)
    assert range_losses(tiny, *walk(tiny.counts), 8).tolist() == [0.0] * 5


@pytest.mark.parametrize(("value", "offset"), [(3.0, -128), (-3.0, 127), (0.0, -128)])
def test_constants_follow_the_spec(value, offset):
    fit = fit_hfmg(LogLinearHistogram.from_values(np.full(77, value, F32)), HfmgOptions())
    assert (float(fit.scale), int(fit.offset)) == (float(F32(3) / F32(255)) if value else 1.0, offset)


def test_the_first_of_equal_losses_wins():
    fit = fit_hfmg(LogLinearHistogram.from_values(np.full(9, 1, F32)), HfmgOptions())
    assert fit.candidates.best == 0
    assert set(fit.candidates.loss.tolist()) == {0.0}


def test_integers_fall_into_their_own_bins():
    values = np.repeat(np.arange(1024, dtype=F32), 3)
    fit = fit_hfmg(LogLinearHistogram.from_values(values), HfmgOptions(num_of_bins=1024))
    assert float(fit.candidates.clip_max[0]) == pytest.approx(1023 * 1023 / 1024)
    assert fit.candidates.exact is False


def test_histograms_without_numbers_are_refused():
    with pytest.raises(EmptyDataError, match="histogram holds no values"):
        fit_hfmg(LogLinearHistogram(), HfmgOptions())
    with pytest.raises(DataError, match="histogram counted 1 NaN and 2 infinite of 4 values"):
        fit_hfmg(LogLinearHistogram.from_values(F32([np.nan, np.inf, -np.inf, 1])), HfmgOptions())
    with pytest.raises(EmptyDataError, match="histogram of 8 equal bins holds no values"):
        fit_equal_bins(EqualBins(np.zeros(8, np.int64), 0.0, 1.0), 8, asymmetric=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_of_bins": 1000}, "num_of_bins is 1000, but must be one of 1024, 2048, 4096, 8192"),
        ({"bits": 7}, "bits is 7, but must be one of 4, 8, 16"),
        ({"asymmetric": "yes"}, "asymmetric is 'yes', but must be True or False"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        HfmgOptions(**options)
