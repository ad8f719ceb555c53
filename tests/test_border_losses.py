"""Squared errors by the borders between codes: against pieces cut by hand, whatever the bins and the candidates."""

import naive
import numpy as np
import pytest

from calibrant.quantizers import IfmrOptions, fit_ifmr
from calibrant.quantizers._border_kernels import CHUNK
from calibrant.quantizers.integrals import BINS_A_BORDER, _has_few_codes, squared_errors
from calibrant.stats import LogLinearHistogram
from calibrant.stats.histogram import Bins

F32 = np.float32


def made(lower, upper, seed=1):
    count = np.random.default_rng(seed).integers(1, 1000, len(lower))
    return Bins(np.asarray(lower, float), np.asarray(upper, float), count)


def side_by_side(edges):
    return made(edges[:-1], edges[1:])


def by_hand(bins, scale, lowest, highest):
    rows = zip(*(column.tolist() for column in bins), strict=True)
    ends = lowest * scale, highest * scale
    return sum(count * naive.bin_loss(low, high, scale, *ends) for low, high, count in rows)


def losses(bins, *candidates):
    scale, lowest, highest = (np.array(column, float) for column in zip(*candidates, strict=True))
    assert _has_few_codes(bins, lowest, highest).all()
    return squared_errors(bins, scale, lowest, highest).tolist()


def check(bins, *candidates, rel=1e-11):
    expected = [by_hand(bins, *candidate) for candidate in candidates]
    assert losses(bins, *candidates) == pytest.approx(expected, rel=rel, abs=1e-300)


MANY = 5 * CHUNK + 3
CANDIDATES = [(0.4, -2, 3), (0.37, -3, 2), (1.0, 0, 5), (0.25, -5, 0), (2.0, -1, 1), (1e-3, -4, 4), (50.0, -1, 1)]


@pytest.mark.parametrize("bins", [MANY, MANY + 1, 4 * CHUNK, 4 * CHUNK - 1, 4 * CHUNK + 1])
def test_bins_of_any_width(bins):
    edges = np.sort(np.random.default_rng(bins).normal(size=bins + 1))
    edges[np.abs(edges).argmin()] = 0.0
    check(side_by_side(edges), *CANDIDATES)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_sign_only(sign):
    edges = np.sort(sign * np.random.default_rng(4).gamma(1.0, size=MANY))
    check(side_by_side(edges), *CANDIDATES)


def test_gaps_hold_nothing():
    edges = np.sort(np.random.default_rng(5).normal(size=2 * MANY))
    lower, upper = edges[::2], edges[1::2]
    apart = (lower >= 0) | (upper <= 0)
    bins = made(lower[apart], upper[apart])
    check(bins, *CANDIDATES)
    width = bins.upper - bins.lower  # borders in gaps, on edges and inside bins
    for border in (bins.upper[-9], bins.lower[-9], bins.upper[-9] + 1e-7, bins.lower[-9] + width[-9] / 3):
        check(bins, (2 * border, -1, 1), (2 * border / 3, -2, 2))
        check(bins, (-2 * bins.lower[9], -1, 1))


def test_zeros_and_points_count_as_they_are():
    edges = np.linspace(1, 9, MANY)
    lower = np.concatenate([[-12.0], -edges[:0:-1], [0.0], edges[:-1], [9.0, 11.5]])
    upper = np.concatenate([[-12.0], -edges[-2::-1], [0.0], edges[1:], [9.0, 11.5]])
    bins = made(lower, upper)
    check(bins, *CANDIDATES)
    alone = Bins(bins.lower, bins.upper, np.where(lower == upper, bins.count, 0))
    assert by_hand(alone, 0.4, -2, 3) > 0  # the points are a part of what is compared


def test_all_values_below_the_first_border():
    bins = side_by_side(np.linspace(0.0, 0.25, MANY))
    (found,) = losses(bins, (0.5, -1, 1))
    assert found == pytest.approx(by_hand(bins, 1.0, 0, 0), rel=1e-13)  # the sum of x**2


def test_no_code_but_zero():
    check(side_by_side(np.linspace(-3.0, -1.0, MANY)), (0.5, 0, 0))


def test_a_bin_with_zero_inside_is_cut_at_its_edges():
    bins = side_by_side(np.sort(np.random.default_rng(7).normal(size=MANY)))
    assert not _has_few_codes(bins, np.array([-1.0]), np.array([1.0])).any()
    found = squared_errors(bins, np.array([0.7]), np.array([-1.0]), np.array([1.0]))[0]
    assert found == pytest.approx(by_hand(bins, 0.7, -1, 1), rel=1e-11)


def test_codes_that_leave_out_zero_are_judged_at_the_edges():
    bins = side_by_side(np.linspace(1.0, 3.0, MANY))
    lowest, highest = np.array([2.0, -3.0]), np.array([4.0, -1.0])
    assert not _has_few_codes(bins, lowest, highest).any()
    found = squared_errors(bins, np.array([0.5, 0.5]), lowest, highest)
    assert found.tolist() == pytest.approx([by_hand(bins, 0.5, 2, 4), by_hand(bins, 0.5, -3, -1)], rel=1e-11)


def test_each_candidate_is_judged_alone_whatever_form_it_takes():
    bins = side_by_side(np.concatenate([-np.geomspace(9, 1e-3, MANY), [0.0], np.geomspace(1e-3, 7, MANY)]))
    scales = np.array([3.0, 0.01, 1.5, 0.02, 1e-9])
    lowest, highest = np.array([-2.0, -300, -5, -128, -1]), np.array([3.0, 300, 4, 127, 1])
    assert _has_few_codes(bins, lowest, highest).tolist() == [True, False, True, False, True]
    together = squared_errors(bins, scales, lowest, highest)
    alone = [squared_errors(bins, *(column[i : i + 1] for column in (scales, lowest, highest)))[0] for i in range(5)]
    assert together.tolist() == alone


@pytest.mark.parametrize("reach", [1e-38, 1e-3, 1.0, 1e38])
@pytest.mark.parametrize("name", ["normal", "relu", "outlier", "far from zero"])
def test_eight_bits_over_a_real_histogram(name, reach):
    draw = np.random.default_rng(11).standard_normal(200_000)
    values = {
        "normal": draw / 6,
        "relu": np.maximum(draw, 0) / 6,
        "outlier": np.append(draw / 6e3, 1.0),
        "far from zero": np.random.default_rng(2).uniform(1 / 32, 1, 200_000),
    }[name]
    histogram = LogLinearHistogram.from_values((values * reach).astype(F32))
    bins = histogram.bins()
    fit = fit_ifmr(histogram, IfmrOptions(max_percentile=1.0, min_percentile=1.0))
    for i in (0, 30, 60):
        scale = float(fit.candidates.scale[i])
        ends = float(np.rint(fit.candidates.clip_min[i] / scale)), float(np.rint(fit.candidates.clip_max[i] / scale))
        assert bins.count.size > BINS_A_BORDER * (ends[1] - ends[0])
        assert fit.candidates.loss[i] * histogram.n == pytest.approx(by_hand(bins, scale, *ends), rel=1e-8)
