"""Exact mode is brute force on every bit width; what it leaves out is proven, and what it evaluated is told."""

import naive
import numpy as np
import pytest
from datasets import FINITE, dataset

from calibrant.quantizers import IfmrOptions, fit_ifmr
from calibrant.quantizers import exact_search as exact
from calibrant.quantizers.grid import Grid
from calibrant.quantizers.ifmr import histogram_losses
from calibrant.stats import LogLinearHistogram

F32 = np.float32
TENSORS = 2000  # for each bit width
PARTS = 4
SHAPES = {
    "gaussian": lambda draw, n: draw.standard_normal(n),
    "relu": lambda draw, n: np.maximum(draw.standard_normal(n), 0),
    "mostly zeros": lambda draw, n: np.where(draw.random(n) < 0.9, 0, draw.standard_normal(n)),
    "uniform": lambda draw, n: draw.uniform(-1, 3, n),
    "laplace": lambda draw, n: draw.laplace(size=n),
    "log-normal": lambda draw, n: draw.lognormal(0, 1.5, n),
    "outliers": lambda draw, n: draw.standard_normal(n) * np.where(draw.random(n) < 0.02, 50, 1),
    "whole numbers": lambda draw, n: draw.integers(-40, 90, n),
    "two constants": lambda draw, n: draw.choice([-0.25, 1.5], n),
    "half": lambda draw, n: draw.standard_normal(n).astype(np.float16),
    "negative": lambda draw, n: -np.abs(draw.standard_normal(n)) - 0.01,
    "tiny": lambda draw, n: draw.standard_normal(n) * 1e-5,
    "one constant": lambda draw, n: np.full(n, draw.standard_normal()),
    "huge": lambda draw, n: draw.standard_normal(n) * 1e25,
}


def tensors(part, bits):
    """A share of the random tensors of a bit width: (values, asymmetric), of 1 to 200 values, one in a hundred of thousands."""
    draw = np.random.default_rng([part, bits])
    names = list(SHAPES)
    for number in range(TENSORS // PARTS):
        n = int(draw.integers(4000, 9000)) if number % 100 == 0 else int(draw.integers(1, 200))
        yield SHAPES[names[number % len(names)]](draw, n).astype(F32), bool(number // len(names) % 2)


def search_of(values, bits, asymmetric):
    return naive.ifmr_search(float(values.max()), float(values.min()), bits, asymmetric)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_the_choice_is_that_of_brute_force_on_two_thousand_tensors(bits, part):
    for values, asymmetric in tensors(part, bits):
        options = IfmrOptions(bits, asymmetric, max_percentile=1.0, min_percentile=1.0)
        found = fit_ifmr(LogLinearHistogram.from_values(values), options, values=values)
        losses = naive.ifmr_losses(values, search_of(values, bits, asymmetric))
        assert found.candidates.best == losses.index(min(losses))
        assert found.loss == pytest.approx(min(losses), rel=1e-14)
        evaluated = found.candidates.evaluated
        np.testing.assert_allclose(found.candidates.loss[evaluated], np.array(losses)[evaluated], rtol=1e-14)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("bits", [5, 6, 7])
def test_the_search_is_brute_force_on_widths_that_no_configuration_asks_for(bits, part):
    for values, asymmetric in tensors(part, bits):
        search = search_of(values, bits, asymmetric)
        ends = np.array([naive.ifmr_bounds(search, index) for index in range(61)], F32).T
        grid = Grid(*ends, np.array(search.scales, F32), np.zeros(61, np.int32))
        histogram = LogLinearHistogram.from_values(values)
        bins = histogram.bins()
        judged = exact.raw_losses(histogram, bins, grid, histogram_losses(bins, grid), [values])
        losses = naive.ifmr_losses(values, search)
        assert int(np.argmin(judged.losses)) == losses.index(min(losses))


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", FINITE)
def test_a_sum_in_float32_is_as_near_as_promised(name, bits):
    values = dataset(name).ravel()
    histogram = LogLinearHistogram.from_values(values)
    if max(histogram.maximum, -histogram.minimum) >= exact.ROUGH_REACH:
        return  # squares leave float32: nothing is promised
    search = naive.ifmr_search(histogram.maximum, histogram.minimum, bits, False)
    ends = np.array([naive.ifmr_bounds(search, index) for index in range(61)], F32).T
    grid = Grid(*ends, np.array(search.scales, F32), np.zeros(61, np.int32))
    sums = np.array(naive.ifmr_losses(values, search)) * values.size
    np.testing.assert_array_less(
        np.abs(exact.rough_losses(histogram, grid, [values]) - sums), sums * exact.ROUGH + values.size * exact.TINY
    )


def test_a_quotient_by_newton_is_the_correctly_rounded_one():
    """Values at and beside the midpoints between codes of 16 bits, where one wrong last place would change a code."""
    draw, codes = np.random.default_rng(8), np.arange(-32768, 32767, dtype=np.float64) + 0.5
    for scale in draw.uniform(1e-4, 1, 20).astype(F32):
        middle = (codes * float(scale)).astype(F32)
        values = np.concatenate([middle, np.nextafter(middle, F32(0)), np.nextafter(middle, F32(np.copysign(9e9, 1)))])
        top = F32(40000) * scale
        grid = Grid(np.array([-top]), np.array([top]), np.array([scale]), np.zeros(1, np.int32))
        errors = np.rint(values / scale) * scale - values
        expected = float(np.sum(errors.astype(np.float64) ** 2))
        found = exact.value_losses(LogLinearHistogram.from_values(values), grid, [values])
        assert found[0] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", ["gaussian", "relu", "laplace", "log-normal", "uniform"])
def test_eight_bits_leave_few_candidates_of_many_values(name):
    values = SHAPES[name](np.random.default_rng(5), 300_000).astype(F32)
    histogram = LogLinearHistogram.from_values(values)
    found = fit_ifmr(histogram, IfmrOptions(), values=values).candidates
    assert 1 <= found.survivors <= exact.FEW
    assert found.evaluated[found.best]
    assert found.loss[~found.evaluated].min() > found.loss[found.best]


def test_equal_candidates_are_summed_once_and_all_told():
    values = np.zeros(50, F32)
    found = fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions(), values=values).candidates
    assert (found.best, found.survivors, found.loss.tolist()) == (0, 61, [0.0] * 61)


def test_nothing_is_evaluated_without_values():
    found = fit_ifmr(LogLinearHistogram.from_values(dataset("gaussian")), IfmrOptions()).candidates
    assert (found.exact, found.evaluated, found.survivors) == (False, None, 0)
