"""NUQ against brute force on small histograms, and the rules of its centres."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import ConfigError, EmptyDataError, SchemaError
from calibrant.quantizers import NuqOptions, fit_nuq
from calibrant.quantizers._kernels import best_intervals
from calibrant.quantizers.nuq import to_centres

SMALL = st.lists(st.integers(-6, 6), min_size=1, max_size=40)
LARGE = st.lists(st.integers(-128, 127), min_size=1, max_size=300)


@given(SMALL, st.integers(1, 4))
def test_the_intervals_are_the_best_of_all_choices_of_centres(codes, parts):
    levels, counts = np.unique(np.array(codes), return_counts=True)
    centres = best_intervals(levels.astype(np.int64), counts.astype(np.int64), min(parts, levels.size))
    assert naive.nuq_loss(codes, centres.tolist()) == naive.nuq_best_loss(codes, parts)


@pytest.mark.parametrize("seed", range(3))
def test_sixteen_centres_of_nineteen_levels_are_the_best_of_all(seed):
    random = np.random.default_rng(seed)
    levels = np.repeat(np.arange(-9, 10), random.integers(1, 30, 19)).astype(np.int8)
    fit = fit_nuq(levels, NuqOptions(num_steps=16))
    assert fit.loss == fit.optimal_loss == naive.nuq_best_loss(levels.tolist(), 16)


@given(LARGE, st.sampled_from([16, 32]), st.integers(0, 5))
def test_centres_are_ascending_levels_with_the_losses_they_claim(codes, steps, rounds):
    array = np.array(codes, np.int8)
    fit = fit_nuq(array, NuqOptions(num_steps=steps, num_of_iteration=rounds))
    centres = fit.centres.tolist()
    assert fit.centres.dtype == np.int8
    assert len(centres) == steps
    assert centres == sorted(centres)
    assert fit.loss == naive.nuq_loss(codes, centres)
    assert fit.optimal_loss <= fit.seeded_loss
    assert fit.loss == (fit.optimal_loss if rounds else fit.seeded_loss)
    assert to_centres(array, fit.centres).tolist() == [naive.nearest_centre(code, centres) for code in codes]


@given(LARGE, st.sampled_from([16, 32]))
def test_without_iterations_centres_are_quantiles_after_one_pass(codes, steps):
    fit = fit_nuq(np.array(codes, np.int8), NuqOptions(num_steps=steps, num_of_iteration=0))
    assert sorted(set(fit.centres.tolist())) == naive.nuq_seeded_centres(codes, steps)


def test_fewer_levels_than_centres_are_kept_and_the_last_is_repeated():
    fit = fit_nuq(np.int8([[3, -7], [3, 120]]), NuqOptions(num_steps=16))
    assert fit.centres.tolist() == [-7, 3, *[120] * 14]
    assert fit.loss == 0


def test_every_iteration_beyond_the_first_finds_the_same():
    codes = np.random.default_rng(0).normal(0, 40, 5000).clip(-128, 127).astype(np.int8)
    found = [fit_nuq(codes, NuqOptions(num_of_iteration=rounds)).centres.tolist() for rounds in range(1, 6)]
    assert found == [found[0]] * 5


@pytest.mark.parametrize("codes", [np.zeros(3, np.int16), np.zeros(3, np.float32)])
def test_other_types_than_int8_are_refused(codes):
    with pytest.raises(SchemaError, match="int8 was expected"):
        fit_nuq(codes, NuqOptions())


def test_no_codes_are_refused():
    with pytest.raises(EmptyDataError, match="there are none"):
        fit_nuq(np.zeros((0, 3), np.int8), NuqOptions())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_steps": 8}, "num_steps is 8"),
        ({"num_of_iteration": 6}, "num_of_iteration is 6"),
        ({"num_steps": True}, "num_steps is True"),
    ],
)
def test_options_outside_their_range_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        NuqOptions(**given)
