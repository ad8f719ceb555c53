"""Statistics against their naive twins over the whole zoo: counts, extremes, percentiles, bins, sums, weight layout."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import naive
import numpy as np
import polars as pl
import pytest
from datasets import ALL, FINITE, LARGE, WEIGHTS, dataset

from calibrant.errors import MergeError, SchemaError
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.exact_sums import ExactSums
from calibrant.stats.histogram import CountScratch, LogLinearHistogram
from calibrant.stats.weights import channels_back, channels_first, weight_frame

F32 = np.float32
PERCENTILES = (1.0, 0.999999, 0.999, 0.99, 0.9, 0.75, 0.50001)


@pytest.fixture(scope="module")
def scratch() -> CountScratch:
    """One table for many tensors, as a thread of the capture uses it."""
    return CountScratch()


def same(got, expected) -> bool:
    """Equal numbers, where nothing (None or NaN) equals nothing."""
    absent = [value is None or math.isnan(value) for value in (got, expected)]
    return all(absent) if any(absent) else got == expected


def assert_histogram_is(got: LogLinearHistogram, expected: naive.Histogram) -> None:
    assert dict(zip(np.asarray(got.keys).tolist(), np.asarray(got.counts).tolist(), strict=True)) == expected.counts
    assert np.asarray(got.keys).tolist() == list(expected.counts)
    assert (got.n, got.n_zero, got.n_nan, got.n_inf) == expected[1:5]
    assert same(got.minimum, expected.minimum)
    assert same(got.maximum, expected.maximum)
    for found, truth in ((got.largest, expected.largest), (got.smallest, expected.smallest)):
        assert list(zip(*(np.asarray(column).tolist() for column in found), strict=True)) == truth


def assert_equal_tables(got: LogLinearHistogram, expected: LogLinearHistogram) -> None:
    for found, truth in zip(got.to_tables(), expected.to_tables(), strict=True):
        assert found.equals(truth, null_equal=True)
        assert found.schema == truth.schema


# -------------------------------------------------------------------------------------------------------- histograms


@pytest.mark.parametrize("name", ALL)
def test_histogram_equals_twin(name):
    values = dataset(name)
    assert_histogram_is(LogLinearHistogram.from_values(values), naive.histogram(values))


@pytest.mark.parametrize("mantissa_bits", [5, 9, 13])
@pytest.mark.parametrize("name", ["gaussian", "denormals", "heavy tail", "all kinds", "largest floats"])
def test_histogram_of_other_widths_and_few_extremes(name, mantissa_bits):
    values = dataset(name)
    got = LogLinearHistogram(mantissa_bits=mantissa_bits, extremes_kept=5)
    got.update(values)
    assert_histogram_is(got, naive.histogram(values, mantissa_bits, kept=5))


@pytest.mark.parametrize("name", ALL)
def test_split_updates_and_merges_equal_the_whole(name, scratch):
    values = dataset(name).ravel()
    expected = naive.histogram(values, kept=7)
    folded, joined = LogLinearHistogram(extremes_kept=7), LogLinearHistogram(extremes_kept=7)
    for part in np.array_split(values, 4):
        folded.update(part, scratch=scratch)
        single = LogLinearHistogram(extremes_kept=7)
        single.update(part)
        joined = single.merge(joined)
    assert_histogram_is(folded, expected)
    assert_histogram_is(joined, expected)


@pytest.mark.parametrize("name", LARGE)
def test_dense_path_equals_sort_path(name, scratch):
    values = dataset(name)
    pieces = LogLinearHistogram()
    for part in np.array_split(values, 70):
        pieces.update(part)
    dense = LogLinearHistogram()
    dense.update(values, scratch=scratch)
    assert_equal_tables(dense, pieces)
    assert_equal_tables(LogLinearHistogram.from_values(values, threads=2), pieces)


def test_dense_path_equals_twin(scratch):
    values = dataset("large relu")
    values[[5, 1 << 20]] = np.nan
    values[77] = -np.inf
    dense = LogLinearHistogram()
    dense.update(values, scratch=scratch)
    assert_histogram_is(dense, naive.histogram(values))


@pytest.mark.parametrize("view", ["strided", "transposed", "read-only", "fortran", "scalar"])
def test_layout_of_the_array_does_not_matter(view):
    values = dataset("per channel")
    if view == "strided":
        values = values[:, ::2, 1:, ::-1]
    elif view == "transposed":
        values = values.transpose(3, 1, 0, 2)
    elif view == "fortran":
        values = np.asfortranarray(values)
    elif view == "scalar":
        values = values[0, 0, 0, 0].reshape(())
    else:
        values.setflags(write=False)
    assert_histogram_is(LogLinearHistogram.from_values(values), naive.histogram(values))


@pytest.mark.parametrize("name", ["gaussian", "float16 gaussian", "large relu"])
def test_the_callers_buffer_is_neither_kept_nor_changed(name, scratch):
    values = dataset(name)
    histogram, statistics = LogLinearHistogram(), TensorStatistics(0, channel_axis=None)
    histogram.update(values, scratch=scratch)
    statistics.update(values[None], [0], scratch=scratch)
    assert values.tobytes() == dataset(name).tobytes()
    values[...] = 77
    fresh = LogLinearHistogram.from_values(dataset(name))
    assert_equal_tables(histogram, fresh)
    assert_equal_tables(statistics.histogram, fresh)


def test_threads_with_a_scratch_each_do_not_disturb_one_another():
    names = ["large gaussian", "large relu", "gaussian", "all kinds", "heavy tail", "integers"] * 2

    def count(part: list[str]) -> list[LogLinearHistogram]:
        own, found = CountScratch(), [LogLinearHistogram() for _ in part]
        for name, histogram in zip(part, found, strict=True):
            histogram.update(dataset(name), scratch=own)
        return found

    with ThreadPoolExecutor(2) as pool:
        together = [histogram for found in pool.map(count, (names[:6], names[6:])) for histogram in found]
    for name, histogram in zip(names, together, strict=True):
        assert_equal_tables(histogram, LogLinearHistogram.from_values(dataset(name)))


@pytest.mark.parametrize("name", ALL)
def test_tables_lose_nothing(name):
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    again = LogLinearHistogram.from_tables(*histogram.to_tables())
    assert_histogram_is(again, naive.histogram(values))
    assert_equal_tables(again, histogram)


def test_tables_hold_what_the_twin_counts():
    values = dataset("all kinds")
    expected = naive.histogram(values)
    histogram, extremes, counters = LogLinearHistogram.from_values(values).to_tables()
    assert histogram.rows() == list(expected.counts.items())
    for side, truth in (("max", expected.largest), ("min", expected.smallest)):
        assert extremes.filter(pl.col("side") == side).select("value", "count").rows() == truth
    row = counters.row(0, named=True)
    assert (row["n"], row["n_zero"], row["n_nan"], row["n_inf"], row["mantissa_bits"]) == (*expected[1:5], 13)
    assert (row["min"], row["max"]) == (expected.minimum, expected.maximum)


def test_empty_is_the_identity_of_merge():
    values = dataset("gaussian")
    whole, empty = LogLinearHistogram.from_values(values), LogLinearHistogram()
    assert_histogram_is(whole.merge(empty), naive.histogram(values))
    assert_histogram_is(empty.merge(whole), naive.histogram(values))
    assert_histogram_is(empty.merge(LogLinearHistogram()), naive.histogram(np.empty(0, F32)))


def test_merge_refuses_other_bin_widths():
    with pytest.raises(MergeError, match="mantissa"):
        LogLinearHistogram(mantissa_bits=13).merge(LogLinearHistogram(mantissa_bits=9))


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int64, np.bool_, np.complex64])
def test_other_types_are_refused(dtype):
    with pytest.raises(SchemaError, match="float32"):
        LogLinearHistogram.from_values(np.ones(3, dtype))


# -------------------------------------------------------------------------------------- percentile, bins, equal width


@pytest.mark.parametrize("side", ["max", "min"])
@pytest.mark.parametrize("name", FINITE)
def test_percentile_equals_twin(name, side):
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    for p in PERCENTILES:
        assert histogram.percentile(p, side) == naive.percentile(values, p, side), p
        assert histogram.percentile_is_exact(p, side)


@pytest.mark.parametrize("side", ["max", "min"])
@pytest.mark.parametrize("name", ["a nan first", "all kinds", "float16 all kinds"])
def test_percentile_counts_finite_values_only(name, side):
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    assert [histogram.percentile(p, side) for p in PERCENTILES] == [
        naive.percentile(values, p, side) for p in PERCENTILES
    ]


@pytest.mark.parametrize("side", ["max", "min"])
@pytest.mark.parametrize("name", FINITE)
def test_percentile_beyond_the_extremes_comes_from_the_bins(name, side):
    values = dataset(name)
    histogram = LogLinearHistogram(extremes_kept=20)
    histogram.update(values)
    for p in PERCENTILES:
        exact = naive.percentile(values, p, side)
        within = naive.percentile_rank(values.size, p) <= 20
        assert histogram.percentile_is_exact(p, side) >= within
        margin = 0.0 if histogram.percentile_is_exact(p, side) else abs(exact) * 2**-13 + 1e-40
        assert abs(histogram.percentile(p, side) - exact) <= margin, p


@pytest.mark.parametrize("name", FINITE)
def test_bins_are_the_twins(name):
    values = dataset(name)
    lower, upper, count = (np.asarray(column).tolist() for column in LogLinearHistogram.from_values(values).bins())
    expected = naive.value_bins(values)
    assert count == [bin_[2] for bin_ in expected]
    for low, high, (nominal_low, nominal_high, _) in zip(lower, upper, expected, strict=True):
        assert nominal_low <= low <= high <= nominal_high
    assert all(before <= after for before, after in itertools.pairwise(lower))
    assert all(before <= after for before, after in zip(upper[:-1], lower[1:], strict=True))
    ordered = iter(sorted(naive.finite_values(values)))
    for low, high, number in zip(lower, upper, count, strict=True):
        assert all(low <= value <= high for value in itertools.islice(ordered, number))


@pytest.mark.parametrize("num_of_bins", [8, 1024])
@pytest.mark.parametrize("name", [name for name in FINITE if name != "largest floats"])
def test_rebin_equals_twin(name, num_of_bins):
    values = dataset(name).ravel()[:400]
    histogram = LogLinearHistogram.from_values(values)
    got = np.asarray(histogram.rebin(num_of_bins))
    assert got.dtype == np.int64
    assert got.sum() == values.size
    assert got.min() >= 0
    bins = list(zip(*(np.asarray(column).tolist() for column in histogram.bins()), strict=True))
    expected = naive.rebin(bins, histogram.minimum, histogram.maximum, num_of_bins)
    assert np.abs(np.cumsum(got) - np.cumsum(expected)).max() <= 1  # halves may round either way


@pytest.mark.parametrize("name", [name for name in FINITE if name != "largest floats"])
def test_rebin_stays_near_the_raw_values(name):
    """An edge can miscount only the values of the one bin that it cuts or touches."""
    values, num_of_bins = dataset(name), 64
    histogram = LogLinearHistogram.from_values(values)
    got, truth = np.cumsum(histogram.rebin(num_of_bins)), np.cumsum(naive.equal_width_counts(values, num_of_bins))
    low, high = histogram.minimum, histogram.maximum
    bins = naive.value_bins(values)
    for index in range(num_of_bins - 1):
        edge = low + (index + 1) * (high - low) / num_of_bins
        slack = abs(edge) * 1e-12
        cut = sum(count for lower, upper, count in bins if lower - slack <= edge <= upper + slack)
        assert abs(int(got[index]) - int(truth[index])) <= cut


# ------------------------------------------------------------------------------------------------ samples and channels


def batch_of(name: str) -> np.ndarray:
    """Six samples of 3 channels and 7 values, from a data set of any size."""
    return np.resize(dataset(name).ravel(), (6, 3, 7))


def sample_rows(frame: pl.DataFrame) -> list[tuple]:
    return frame.select("sample", "n", "n_zero", "n_nan", "n_inf", "min", "max", "sum", "sum_sq").rows()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ALL)
def test_sample_rows_equal_twin(name, axis):
    batch = np.resize(dataset(name).ravel(), (6, 3, 39))  # two whole rounds of the lanes and a rest
    frame = TensorStatistics(4, channel_axis=None if axis is None else axis + 1).update(batch, range(10, 16))
    assert frame["tensor_id"].to_list() == [4] * 6
    for row, sample in zip(sample_rows(frame), batch, strict=True):
        expected = naive.moments(sample, axis)
        assert all(same(got, truth) for got, truth in zip(row[1:], expected, strict=True)), (row, name)
    assert frame["sample"].to_list() == list(range(10, 16))


@pytest.mark.parametrize("count", [*range(1, 36), 159, 160, 161])
def test_runs_of_every_length_fold_as_their_twin(count):
    """Values of very different size, so that another order of addition is seen."""
    values = np.random.default_rng(count).standard_cauchy((2, 2, count)).astype(F32)
    if count > 3:
        values[0, 1, [0, count // 2, count - 1]] = np.nan, np.inf, -np.inf
    frame = TensorStatistics(4, channel_axis=1).update(values, range(2))
    for row, sample in zip(sample_rows(frame), values, strict=True):
        expected = naive.moments(sample, 0)
        assert all(same(got, truth) for got, truth in zip(row[1:], expected, strict=True)), row


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("name", ALL)
def test_channels_equal_twin_in_any_grouping(name, axis):
    batch = batch_of(name)
    expected = naive.channel_moments(list(batch[:, None]), axis)
    whole, parts = (TensorStatistics(0, channel_axis=axis) for _ in range(2))
    whole.update(batch, range(6))
    for index in (3, 0, 5, 1, 4, 2):
        parts.update(batch[index : index + 1], [index])
    other = TensorStatistics(0, channel_axis=axis)
    other.update(batch[4:], [4, 5])
    merged = TensorStatistics(0, channel_axis=axis)
    merged.update(batch[:4], range(4))
    for got in (whole, parts, merged.merge(other), other.merge(merged)):
        frame = got.channels_frame()
        assert frame["channel"].to_list() == list(range(len(expected)))
        columns = frame.select("n", "min", "max", "abs_max", "sum", "sum_sq").rows()
        for row, truth in zip(columns, expected, strict=True):
            reach = max(abs(truth.minimum), abs(truth.maximum))
            expected_row = (truth.n, truth.minimum, truth.maximum, reach, truth.total, truth.total_squares)
            assert all(map(same, row, expected_row)), (row, expected_row)
        assert frame.equals(whole.channels_frame())
        assert_histogram_is(got.histogram, naive.histogram(batch))


@pytest.mark.parametrize("name", ["gaussian", "denormals", "largest floats", "micro", "negative"])
def test_sums_survive_any_number_of_merges(name):
    """Forty doublings stand for a million million samples: only the exponent may change."""
    statistics = TensorStatistics(0, channel_axis=1)
    statistics.update(batch_of(name), range(6))
    expected = naive.channel_moments(list(batch_of(name)[:, None]), 1)
    for _ in range(40):
        statistics = statistics.merge(statistics)
    rows = statistics.channels_frame().select("n", "sum", "sum_sq").rows()
    assert rows == [(row.n << 40, row.total * 2**40, row.total_squares * 2**40) for row in expected]


WIDE = {
    "cancelling": [1e16, 1.0, -1e16, 1e-30, -1.0],
    "all exponents": [math.ldexp(sign * 1.75, e) for e in range(-1060, 1020, 13) for sign in (1, -1, 1)],
    "denormals": [5e-324, 1e-320, -2e-323, 2.2250738585072014e-308],
    "ties": [1.0, 2.0**-53, 2.0**-106],
    "even ties": [1.0, 2.0**-53],
    "many": [0.1] * 1000,
    "beyond float64": [1.7e308, 1.7e308],
    "beyond and back": [1.7e308, 1.7e308, -1.7e308],
    "negative zero": [-0.0, -0.0],
}


@pytest.mark.parametrize("name", WIDE)
def test_exact_sums_equal_fractions_in_any_order(name):
    values = np.array(WIDE[name])
    sums, parts = ExactSums(2), [ExactSums(2) for _ in range(3)]
    for index, value in enumerate(np.random.default_rng(7).permutation(values)):
        sums.add(np.array([value, -value]))
        parts[index % 3].add(np.array([value, -value]))
    expected = naive.exact_sum(values.tolist())
    assert sums.values().tolist() == [expected, -expected]
    assert parts[2].merge(parts[0]).merge(parts[1]).values().tolist() == [expected, -expected]


def test_exact_sums_do_not_lose_what_plain_addition_loses():
    batch = np.array([[[1e16]], [[1.0]], [[-1e16]], [[1.0]]], F32)
    got = TensorStatistics(0, channel_axis=1)
    got.update(batch, range(4))
    assert got.channels_frame()["sum"].to_list() == [naive.exact_sum(batch.ravel().tolist())]


def test_counters_are_the_twins():
    batch = batch_of("all kinds")
    statistics = TensorStatistics(0, channel_axis=1)
    statistics.update(batch, range(6))
    expected, got = naive.histogram(batch), statistics.counters()
    assert (got["n"], got["n_zero"], got["n_nan"], got["n_inf"], got["mantissa_bits"]) == (*expected[1:5], 13)
    assert (got["min"], got["max"]) == (expected.minimum, expected.maximum)


# -------------------------------------------------------------------------------------------------------- weights


LAYOUTS = [
    ("Conv", 1, (6, 4, 3)),
    ("Conv", 3, (6, 4, 3, 2)),
    ("ConvTranspose", 1, (4, 6, 3)),
    ("ConvTranspose", 2, (4, 6, 3, 2)),
    ("ConvTranspose", 4, (4, 1, 2, 2, 2)),
    ("Gemm", 1, (5, 7)),
    ("MatMul", 1, (3, 2)),
    ("MatMul", 1, (2, 3, 4)),
]


@pytest.mark.parametrize(("op_type", "groups", "shape"), LAYOUTS)
def test_channels_first_equals_twin_and_comes_back(op_type, groups, shape):
    weight = np.arange(math.prod(shape), dtype=F32).reshape(shape)
    rows = channels_first(weight, op_type, groups)
    np.testing.assert_array_equal(rows, naive.channels_first(weight, op_type, groups))
    np.testing.assert_array_equal(channels_back(rows, op_type, groups, shape), weight)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_frame_equals_twin(name):
    weight = dataset(name)
    rows = weight.reshape(weight.shape[0], -1)
    frame = weight_frame(3, rows)
    assert frame["layer_id"].to_list() == [3] * len(rows)
    assert frame["channel"].to_list() == list(range(len(rows)))
    for got, row in zip(frame.select("n", "min", "max", "abs_max", "sum", "sum_sq").rows(), rows, strict=True):
        truth = naive.moments(row)
        assert got[:4] == (truth.n, truth.minimum, truth.maximum, max(abs(truth.minimum), abs(truth.maximum)))
        assert got[4:] == (truth.total, truth.total_squares)
