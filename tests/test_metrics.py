"""Metrics of outputs against plain Python twins and arithmetic; bootstrap intervals against every resample there is."""

from math import inf, isnan, log10, nan

import naive_metrics as naive
import numpy as np
import pytest

from calibrant.errors import ConfigError, EmptyDataError
from calibrant.export.metrics import (
    METRICS,
    amct_similarity,
    cosine,
    decibels,
    find_metric,
    has_classes,
    kl_divergence,
    power_and_noise,
    predicted_class,
    rank_of,
    score,
)
from calibrant.stats.bootstrap import interval


@pytest.fixture
def pair():
    draw = np.random.default_rng(3)
    references = [draw.normal(size=(1, 10)).astype(np.float32) for _ in range(40)]
    return references, [x + draw.normal(scale=0.5, size=x.shape).astype(np.float32) for x in references]


@pytest.mark.parametrize("first", [1, 5])
def test_top_agrees_with_sorting(pair, first):
    labels = np.random.default_rng(4).integers(0, 10, 40)
    expected = naive.top(pair[1], labels, first)
    assert 0 < expected < 1
    assert score(METRICS[f"top{first}"], *pair, labels) == pytest.approx(expected, abs=1e-15)


def test_of_equal_scores_the_first_wins():
    assert [rank_of(np.array([2.0, 5.0, 5.0, 1.0]), label) for label in range(4)] == [2, 0, 1, 3]
    assert predicted_class(np.array([[0.0, 3.0, 3.0]])) == 1


def test_a_class_is_never_right_where_the_output_is_nan():
    broken = np.array([1.0, nan])
    assert rank_of(broken, 0) == inf
    assert predicted_class(broken) == -1
    assert score(METRICS["agreement"], [np.array([1.0, 0.0])], [broken]) == 0


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("agreement", naive.agreement),
        ("sqnr_db", naive.sqnr_db),
        ("max_abs", naive.max_abs),
        ("cosine", lambda x, y: naive.mean([naive.cosine(a, b) for a, b in zip(x, y, strict=True)])),
        (
            "amct_similarity",
            lambda x, y: naive.mean([0.5 + 0.5 * naive.cosine(a, b) for a, b in zip(x, y, strict=True)]),
        ),
        ("mse", lambda x, y: naive.mean([naive.mse(a, b) for a, b in zip(x, y, strict=True)])),
        (
            "kl",
            lambda x, y: naive.mean(
                [
                    naive.kl(naive.softmax(naive.flat(a)), naive.softmax(naive.flat(b)))
                    for a, b in zip(x, y, strict=True)
                ]
            ),
        ),
    ],
)
def test_metrics_agree_with_their_twins(pair, name, twin):
    expected = twin(*pair)
    assert expected not in (0, 1)
    assert score(METRICS[name], *pair) == pytest.approx(expected, rel=1e-9)


def test_sqnr_is_a_ratio_of_sums_and_no_mean_of_ratios():
    references, outputs = [np.array([10.0]), np.array([1.0])], [np.array([11.0]), np.array([1.1])]
    assert score(METRICS["sqnr_db"], references, outputs) == pytest.approx(10 * log10((100 + 1) / (1 + 0.01)))


def test_equal_outputs_have_no_noise_and_noise_alone_no_signal():
    assert decibels(*power_and_noise(np.ones(3), np.ones(3))) == inf
    assert decibels(*power_and_noise(np.zeros(3), np.ones(3))) == -inf


def test_infinities_and_nan_at_equal_places_are_no_noise():
    x = np.array([inf, -inf, nan, 3.0])
    assert power_and_noise(x, np.array([inf, -inf, nan, 1.0])) == (9, 4)
    assert isnan(power_and_noise(np.ones(2), np.array([1.0, nan]))[1])
    assert power_and_noise(np.ones(2), np.array([1.0, inf]))[1] == inf
    assert isnan(score(METRICS["sqnr_db"], [np.ones(2)], [np.array([1.0, nan])]))
    assert score(METRICS["sqnr_db"], [np.ones(2)], [np.array([1.0, inf])]) == -inf


def test_zero_outputs_have_a_similarity():
    zero, one = np.zeros(2), np.array([1.0, 0.0])
    assert (cosine(zero, zero), cosine(zero, one), cosine(one, zero), cosine(one, -one)) == (1, 0, 0, -1)
    assert (amct_similarity(zero, one), amct_similarity(one, zero), amct_similarity(one, -one)) == (1, 0, 0)


def test_probabilities_are_taken_as_they_are():
    p, q = np.array([[0.5, 0.5, 0.0]]), np.array([[0.25, 0.5, 0.25]])
    assert kl_divergence(p, q) == pytest.approx(naive.kl([0.5, 0.5, 0.0], [0.25, 0.5, 0.25]))
    assert kl_divergence(p, 2 * q) == pytest.approx(kl_divergence(p, q))  # q is scaled to a sum of 1
    never = kl_divergence(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    assert never == pytest.approx(-np.log(1e-12))


def test_kl_of_a_sequence_is_the_mean_over_its_steps():
    x, y = np.random.default_rng(0).normal(size=(2, 1, 3, 4))
    steps = [naive.kl(naive.softmax(list(a)), naive.softmax(list(b))) for a, b in zip(x[0], y[0], strict=True)]
    assert kl_divergence(x, y) == pytest.approx(naive.mean(steps))


def test_kl_of_nan_is_nan():
    assert isnan(kl_divergence(np.array([1.0, 2.0]), np.array([1.0, nan])))
    assert isnan(kl_divergence(np.array([1.0, nan]), np.array([1.0, 2.0])))
    assert isnan(kl_divergence(np.array([1.0, -inf, inf]), np.array([1.0, 2.0, 3.0])))


@pytest.mark.parametrize("shape", [(1, 0), (0, 5), (2, 0, 3)])
def test_outputs_without_values_differ_in_nothing(shape):
    empty = np.zeros(shape, np.float32)
    assert {name: score(metric, [empty], [empty], [0]) for name, metric in METRICS.items() if name not in ("top1", "top5")} == {
        "agreement": 1, "cosine": 1, "amct_similarity": 1, "sqnr_db": inf, "kl": 0, "mse": 0, "max_abs": 0
    }  # fmt: skip


def test_float64_outputs_beyond_the_range_of_powers_have_a_ratio():
    assert score(METRICS["sqnr_db"], [np.array([1e-160])], [np.array([1e5])]) == -inf
    assert score(METRICS["sqnr_db"], [np.array([1.0])], [np.array([1e200])]) == -inf


def test_scores_of_classes_are_one_vector_a_sample():
    shapes = [(1, 5), (5,), (1, 5, 1, 1), (1, 5, 2), (), (1, 1)]
    assert [has_classes(np.zeros(shape)) for shape in shapes] == [True, True, True, False, False, False]


@pytest.mark.parametrize("count", [2, 129, 70_000])
def test_an_interval_is_the_same_however_many_resamples_are_drawn_at_a_time(count):
    values = np.random.default_rng(count).normal(size=count)
    one_by_one = interval(values[:, None], lambda part: float(part[:, 0].mean()), resamples=20)
    assert interval(values, resamples=20) == pytest.approx(one_by_one, rel=1e-12)


def test_a_wrong_name_has_the_nearest_one():
    assert find_metric("sqnr") is METRICS["sqnr_db"]
    with pytest.raises(ConfigError, match=r"no metric 'agrement'; did you mean 'agreement'.*module:function"):
        find_metric("agrement")


def test_the_interval_is_that_of_all_resamples_there_are():
    values = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    every = naive.all_resamples(values)  # 3,125
    low, high = interval(values, resamples=20_000)
    rank = [np.searchsorted(every, end, side=side) / len(every) for end, side in ((low, "right"), (high, "left"))]
    assert rank[0] == pytest.approx(0.025, abs=0.01)
    assert rank[1] == pytest.approx(0.975, abs=0.01)


def test_the_interval_agrees_with_plain_resampling():
    values = list(np.random.default_rng(5).exponential(size=50))
    expected = naive.bootstrap(values, naive.mean)
    assert interval(np.array(values), resamples=2000) == pytest.approx(expected, rel=0.05)


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    draw = np.random.default_rng(0)
    held = 0
    for number in range(300):
        low, high = interval(draw.normal(2.0, 1.0, 60), resamples=200, seed=number)
        held += low <= 2.0 <= high
    assert 0.90 <= held / 300 <= 0.98


def test_power_and_noise_are_drawn_together():
    power = np.array([1.0, 10.0, 100.0, 1000.0])
    terms = np.stack([power, power / 100], axis=1)  # 20 dB in each sample, so 20 dB in each resample
    assert interval(terms, METRICS["sqnr_db"].combine) == pytest.approx((20, 20))


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(1).normal(size=30)
    assert interval(values) == interval(values)
    assert interval(values) != interval(values, seed=1)


def test_intervals_at_the_edges():
    assert interval(np.ones(5)) == (1, 1)
    assert all(isnan(end) for end in interval(np.array([3.0])))
    assert all(isnan(end) for end in interval(np.array([1.0, nan, 2.0])))
    terms = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    low, high = interval(terms, METRICS["sqnr_db"].combine)
    assert (low, high) == (0, inf)  # some resamples have the noise in each draw, some nowhere
    with pytest.raises(EmptyDataError, match="no samples"):
        interval(np.array([]))
    with pytest.raises(ConfigError, match=r"level 1\.5"):
        interval(np.ones(3), level=1.5)
