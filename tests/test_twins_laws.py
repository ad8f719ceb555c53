"""Laws of the statistics over any bit pattern: equal to the twin, split equals whole, merge in any order, tables round trip."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import LogLinearHistogram

KEPT = 6  # few extremes, so that truncation takes part


def patterns(dtype: type, *, finite: bool = False) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any float bit patterns: NaN payloads, infinities, denormals and both zeros among them."""
    unsigned, bits = (np.uint32, 32) if dtype is np.float32 else (np.uint16, 16)
    special = [0, 1 << (bits - 1), 1, (1 << (bits - 1)) | 1]
    words = st.one_of(st.integers(0, (1 << bits) - 1), st.sampled_from(special))

    def view(values: list[int]) -> np.ndarray:
        array = np.array(values, unsigned).view(dtype)
        return np.where(np.isfinite(array), array, dtype(1)) if finite else array

    return st.lists(words, max_size=40).map(view)


ANY = st.one_of(patterns(np.float32), patterns(np.float16))
quick = settings(max_examples=60, deadline=None, derandomize=True)


def counted(*arrays: np.ndarray) -> LogLinearHistogram:
    histogram = LogLinearHistogram(extremes_kept=KEPT)
    for array in arrays:
        histogram.update(array)
    return histogram


def content(histogram: LogLinearHistogram) -> list[str]:
    """Everything that the tables hold, as text, so that NaN equals NaN and zeros keep their sign."""
    return [repr(frame.rows()) for frame in histogram.to_tables()]


@quick
@given(ANY)
def test_any_pattern_is_counted_as_the_twin_counts(array):
    got, expected = counted(array), naive.histogram(array, kept=KEPT)
    assert dict(zip(got.keys.tolist(), got.counts.tolist(), strict=True)) == expected.counts
    assert (got.n, got.n_zero, got.n_nan, got.n_inf) == expected[1:5]
    assert list(zip(*(column.tolist() for column in got.largest), strict=True)) == expected.largest
    assert list(zip(*(column.tolist() for column in got.smallest), strict=True)) == expected.smallest


@quick
@given(ANY, st.integers(0, 40))
def test_split_equals_whole(array, cut):
    assert content(counted(array[:cut], array[cut:])) == content(counted(array))


@quick
@given(ANY, ANY, ANY)
def test_merge_is_associative_and_commutative_and_has_an_identity(first, second, third):
    a, b, c = counted(first), counted(second), counted(third)
    assert content(a.merge(b).merge(c)) == content(a.merge(b.merge(c)))
    assert content(a.merge(b)) == content(b.merge(a))
    assert content(a.merge(counted())) == content(counted().merge(a)) == content(a)
    assert content(a.merge(b)) == content(counted(first, second))


@quick
@given(ANY)
def test_tables_round_trip(array):
    histogram = counted(array)
    again = LogLinearHistogram.from_tables(*histogram.to_tables())
    assert content(again) == content(histogram)
    assert content(again.merge(histogram)) == content(histogram.merge(histogram))


@quick
@given(st.one_of(patterns(np.float32, finite=True), patterns(np.float16, finite=True)), st.floats(0.51, 1.0))
def test_percentiles_are_order_statistics(array, p):
    if not array.size:
        return
    histogram = LogLinearHistogram.from_values(array)
    assert histogram.percentile(p, "max") == naive.percentile(array, p, "max")
    assert histogram.percentile(p, "min") == naive.percentile(array, p, "min")


@quick
@given(patterns(np.float32, finite=True), st.sampled_from([1, 2, 8, 1024]))
def test_equal_width_bins_hold_every_value(array, num_of_bins):
    if not array.size:
        return
    got = LogLinearHistogram.from_values(array).rebin(num_of_bins)
    assert got.shape == (num_of_bins,)
    assert got.min() >= 0
    assert got.sum() == array.size


def samples_of(array: np.ndarray) -> np.ndarray:
    """Samples of shape (2, 2) from the front of an array."""
    return array[: array.size // 4 * 4].reshape(-1, 2, 2)


def folded(samples: np.ndarray, order: list[int], step: int) -> TensorStatistics:
    statistics = TensorStatistics(0, channel_axis=1)
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        statistics.update(samples[chosen], chosen)
    return statistics


@quick
@given(ANY, st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 10))
def test_grouping_changes_nothing(array, random, step, cut):
    samples = samples_of(array)
    if not len(samples):
        return
    order = list(range(len(samples)))
    whole = folded(samples, order, len(order))
    random.shuffle(order)
    merged = folded(samples, order[cut:], step).merge(folded(samples, order[:cut], 1))
    for got in (folded(samples, order, step), merged):
        assert repr(got.channels_frame().rows()) == repr(whole.channels_frame().rows())
        assert got.histogram_frame().equals(whole.histogram_frame())
        assert got.extremes_frame().equals(whole.extremes_frame())
        assert repr(got.counters()) == repr(whole.counters())


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF])
def test_every_nan_is_a_nan(bits):
    histogram = LogLinearHistogram.from_values(np.array([bits], np.uint32).view(np.float32))
    assert (histogram.n, histogram.n_nan, histogram.keys.size) == (1, 1, 0)
