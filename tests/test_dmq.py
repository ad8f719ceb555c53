"""DMQ: the spec's worked channels and its rules for dead ones."""

import numpy as np
import pytest

from calibrant.errors import ConfigError, DataError, EmptyDataError, RangeError, ShapeError
from calibrant.quantizers import DmqOptions, fit_dmq

F32 = np.float32
DATA, WEIGHT = F32([2, 0, 16, 0, 1]), F32([0.5, 0.2, 0.25, 0, 0])


@pytest.mark.parametrize(
    ("strength", "factors"),
    [
        (0.5, [2, 10, 8, 1, 0.5]),
        (0.2, [2, 6.59754, 5.278032, 1, 0.329877]),
        (0.8, [2, 15.1571665, 12.125733, 1, 0.75785834]),
    ],
)
def test_worked_channels(strength, factors):
    got = fit_dmq(DATA, WEIGHT, DmqOptions(migration_strength=strength))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, factors, rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "weight"),
    [([0, 0], [1, 2]), ([3, 4], [0, 0]), ([0, 3], [2, 0]), ([0, 0], [0, 0]), ([1e-8, 0], [5, 5])],
)
def test_without_a_channel_that_is_alive_in_both_nothing_is_balanced(data, weight):
    assert fit_dmq(F32(data), F32(weight), DmqOptions()).tolist() == [1.0, 1.0]


def test_balancing_keeps_the_product():
    data, weight = F32([0.3, 7, 120]), F32([2, 0.01, 0.4])
    factors = fit_dmq(data, weight, DmqOptions())
    np.testing.assert_allclose(data / factors, weight * factors, rtol=1e-5)  # at 0.5 both sides are equally hard


@pytest.mark.parametrize(
    ("data", "weight", "error", "message"),
    [
        ([1, 2], [1], ShapeError, r"shapes \(2,\) and \(1,\)"),
        ([[1]], [[1]], ShapeError, "two vectors with one entry an input channel"),
        ([], [], EmptyDataError, "no input channel"),
        ([1, np.nan], [1, 1], DataError, "data_abs_max, channel 1: nan is no magnitude"),
        ([1, 1], [np.inf, 1], DataError, "weight_abs_max, channel 0: inf is no magnitude"),
        ([1, 1], [1, -1], DataError, "weight_abs_max, channel 1: -1.0 is no magnitude; a finite value >= 0"),
        ([1, 1e30], [1, 1e-6], RangeError, "balance factor of input channel 1: .* is outside"),
    ],
)
def test_bad_input_is_named(data, weight, error, message):
    with pytest.raises(error, match=message):
        fit_dmq(F32(data), F32(weight), DmqOptions())


@pytest.mark.parametrize("strength", [0.1999, 0.81, 1, "0.5", float("nan")])
def test_wrong_strengths_are_refused(strength):
    with pytest.raises(ConfigError, match=r"migration_strength is .*, but must be a float from 0.2 to 0.8"):
        DmqOptions(migration_strength=strength)


def test_the_ends_of_the_strength_are_valid():
    assert [DmqOptions(m).migration_strength for m in (0.2, 0.8)] == [0.2, 0.8]
