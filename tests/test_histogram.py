"""The histogram: counting paths agree, laws of merging, tables without loss, percentile and rebin."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrant.errors import ConfigError, EmptyDataError, MergeError, SchemaError
from calibrant.stats import paged_counts, tally
from calibrant.stats.histogram import CountScratch, LogLinearHistogram

F32 = np.float32
KEPT = (1, 7, 4096)

any_floats = hnp.arrays(
    np.uint32,
    st.integers(0, 60),
    elements=st.one_of(
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 1 << 31, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0xBF800000]),
    ),
).map(lambda bits: bits.view(F32))


def counted(*parts: np.ndarray, kept: int = 4096, mantissa_bits: int = 13) -> LogLinearHistogram:
    histogram = LogLinearHistogram(mantissa_bits, kept)
    for part in parts:
        histogram.update(part)
    return histogram


def same(one: LogLinearHistogram, two: LogLinearHistogram) -> bool:
    return all(a.equals(b) for a, b in zip(one.to_tables(), two.to_tables(), strict=True))


def held(extremes: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.repeat(*extremes)


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n, dtype=F32)


def shapes_of_trouble(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    base = normal(n, 6)
    sparse = np.where(rng.random(n) < 0.9, F32(0), base)
    return {
        "gaussian": base,
        "sparse": sparse,
        "negative_zeros": np.where(rng.random(n) < 0.5, F32(-0.0), -np.abs(base)),
        "alternating": np.resize(F32([1.5, 2.5]), n),
        "blocks": np.repeat(base[: n // 1000 + 1], 1000)[:n],
        "constant": np.full(n, -3, F32),
        "dead_channels": np.where(np.arange(n) // 500 % 2 == 0, F32(-0.0), np.repeat(base[: n // 250 + 1], 250)[:n]),
        "constant_but_nan": np.where(np.arange(n) % 1000 == 7, F32(np.nan), F32(1.5)),
        "zeros": np.zeros(n, F32),
        "integers": rng.integers(0, 17, n).astype(F32),
        "patterns": rng.integers(0, 2**32, n, dtype=np.uint32).view(F32),
        "denormal": (base * F32(1e-42)).astype(F32),
        "ascending": np.sort(base),
        "infinite": np.where(rng.random(n) < 0.01, F32(np.inf), base),
        "nan": np.full(n, np.nan, F32),
        "narrow_table_wraps": np.where(np.arange(n) % 4 == 0, F32(1.0000001), base),
    }


@pytest.mark.parametrize("name", shapes_of_trouble(1))
@pytest.mark.parametrize(("mantissa_bits", "kept"), [(13, 4096), (8, 10), (12, 1), (1, 7), (4, 100)])
@pytest.mark.parametrize("table_pays", [1, 1 << 62])
def test_table_path_equals_sort_path_with_any_threads(monkeypatch, name, mantissa_bits, kept, table_pays):
    values = shapes_of_trouble(300_001)[name]
    monkeypatch.setattr(tally, "DENSE_SIZE", 1 << 62)
    sorted_path = counted(values, kept=kept, mantissa_bits=mantissa_bits)
    monkeypatch.setattr(tally, "DENSE_SIZE", 1500)
    monkeypatch.setattr(tally, "TABLE_PAYS", table_pays)
    scratch = CountScratch()
    for parts, threads in ((1, 1), (3, 2)):
        dense = LogLinearHistogram(mantissa_bits, kept)
        for part in np.array_split(values, parts):
            dense.update(part, scratch=scratch, threads=threads)
        assert same(dense, sorted_path)
    assert not scratch.narrow[: 1 << 22].any()
    assert not scratch.wide[: 1 << 22].any()


@pytest.mark.parametrize("name", shapes_of_trouble(1))
def test_counts_are_those_of_the_patterns(name):
    values = shapes_of_trouble(200_000)[name]
    histogram = counted(values)
    finite = values[np.isfinite(values)]
    keys, counts = np.unique(finite[finite != 0].view(np.uint32) >> 10, return_counts=True)
    assert np.array_equal(histogram.keys, keys)
    assert np.array_equal(histogram.counts, counts)
    assert histogram.n == values.size
    assert histogram.n_zero == np.count_nonzero(values == 0)
    assert histogram.n_nan == np.count_nonzero(np.isnan(values))
    assert histogram.n_inf == np.count_nonzero(np.isinf(values))
    ordered = np.sort(finite)
    assert np.array_equal(held(histogram.largest), ordered[::-1][:4096])
    assert np.array_equal(held(histogram.smallest), ordered[:4096])


@pytest.mark.parametrize("name", shapes_of_trouble(1))
def test_counts_move_out_of_pages_before_they_could_wrap(monkeypatch, name):
    values = shapes_of_trouble(300_001)[name]
    monkeypatch.setattr(tally, "DENSE_SIZE", 1500)
    expected = counted(values)
    monkeypatch.setattr(paged_counts, "CAPACITY", 150_000)
    assert same(counted(*np.array_split(values, 7)), expected)
    halves = [counted(*np.array_split(half, 2)) for half in np.array_split(values, 3)]
    assert same(halves[0].merge(halves[1]).merge(halves[2]), expected)


def test_counts_beyond_32_bits_are_held():
    histogram = counted(np.full(100_000, 1.5, F32))
    for _ in range(20):
        histogram = histogram.merge(histogram)
    histogram.update(np.full(100_000, 1.5, F32))
    assert histogram.counts.tolist() == [100_000 * (2**20 + 1)]
    assert histogram.n == 100_000 * (2**20 + 1)


def test_a_key_beyond_sixteen_bits_is_counted_whole():
    values = np.concatenate([np.resize(np.concatenate([normal(3), F32([1.25])]), 400_000), normal(100_000)])
    rng = np.random.default_rng(1)
    rng.shuffle(values)
    histogram = counted(values)
    assert histogram.counts[histogram.keys == F32(1.25).view(np.uint32) >> 10] >= 100_000
    assert histogram.counts.sum() == values.size


@given(any_floats, st.sampled_from(KEPT))
def test_small_arrays_hold_what_was_given(values, kept):
    histogram = counted(values, kept=kept)
    finite = values[np.isfinite(values)] + F32(0)
    assert histogram.n == values.size
    assert histogram.n_zero + histogram.counts.sum() == finite.size
    assert held(histogram.largest).tolist() == np.sort(finite)[::-1][:kept].tolist()
    assert held(histogram.smallest).tolist() == np.sort(finite)[:kept].tolist()
    assert not np.signbit(held(histogram.largest)[held(histogram.largest) == 0]).any()


@given(any_floats, any_floats, st.sampled_from(KEPT))
def test_merge_commutes(one, two, kept):
    left, right = counted(one, kept=kept), counted(two, kept=kept)
    assert same(left.merge(right), right.merge(left))


@given(any_floats, any_floats, any_floats, st.sampled_from(KEPT))
def test_merge_associates(one, two, three, kept):
    a, b, c = (counted(part, kept=kept) for part in (one, two, three))
    assert same(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(any_floats, st.integers(0, 60), st.sampled_from(KEPT))
def test_split_equals_whole_merged_or_updated(values, cut, kept):
    whole = counted(values, kept=kept)
    assert same(counted(values[:cut], kept=kept).merge(counted(values[cut:], kept=kept)), whole)
    assert same(counted(values[cut:], values[:cut], kept=kept), whole)


@given(any_floats)
def test_empty_is_the_identity(values):
    whole = counted(values)
    assert same(whole.merge(LogLinearHistogram()), whole)
    assert same(LogLinearHistogram().merge(whole), whole)


@given(any_floats, st.sampled_from(KEPT))
def test_tables_round_trip_without_loss(values, kept):
    whole = counted(values, kept=kept)
    back = LogLinearHistogram.from_tables(*whole.to_tables(), extremes_kept=kept)
    assert same(back, whole)
    assert same(back.merge(counted(values, kept=kept)), whole.merge(whole))


def test_tables_imply_how_many_extremes_were_kept():
    whole = counted(normal(100), kept=7)
    assert LogLinearHistogram.from_tables(*whole.to_tables()).extremes_kept == 7
    assert LogLinearHistogram.from_tables(*counted(normal(5)).to_tables()).extremes_kept == 4096


def test_tables_take_rows_in_any_order_and_ignore_other_columns():
    histogram, extremes, counters = counted(normal(5000)).to_tables()
    shuffled = (histogram.reverse(), extremes.reverse(), counters.with_columns(tensor=pl.lit("x")))
    assert same(LogLinearHistogram.from_tables(*shuffled), counted(normal(5000)))


def test_tables_have_the_documented_columns():
    histogram, extremes, counters = counted(F32([0, 1, 1, np.nan])).to_tables()
    assert histogram.schema == {"key": pl.UInt32, "count": pl.Int64}
    assert extremes.rows() == [("max", 1.0, 2), ("max", 0.0, 1), ("min", 0.0, 1), ("min", 1.0, 2)]
    assert counters.row(0) == (4, 1, 1, 0, 0.0, 1.0, 13)


def test_half_precision_is_widened_exactly():
    halves = np.float16([0.1, -65504, 5.96e-08, 0])
    assert same(counted(halves), counted(halves.astype(F32)))


def test_views_are_counted_as_their_values():
    grid = normal(600).reshape(20, 30)
    assert same(counted(grid.T[::2]), counted(np.ascontiguousarray(grid.T[::2])))


def test_merge_leaves_its_operands_alone():
    one, two = counted(normal(50)), counted(normal(50, 1))
    before = one.to_tables().histogram.clone()
    one.merge(two).update(normal(50, 2))
    assert one.to_tables().histogram.equals(before)
    assert same(two, counted(normal(50, 1)))


def test_ranges_without_finite_values_are_nan():
    histogram = counted(F32([np.nan, np.inf]))
    assert math.isnan(histogram.minimum)
    assert math.isnan(histogram.maximum)
    assert histogram.to_tables().counters.select("min", "max").row(0) == (None, None)
    assert histogram.bins().count.size == 0


# ------------------------------------------------------------------------------------------------------------ percentile


@pytest.mark.parametrize("p", [1.0, 0.99999999, 0.999, 0.9, 0.5, 0.25, 0.0])
@pytest.mark.parametrize("n", [1, 2, 17, 5000])
def test_percentile_is_amcts_order_statistic(n, p):
    values = normal(n)
    rank = 1 if 1 - p < 1.192092896e-7 else max(1, n - math.floor(p * n))
    histogram = counted(values)
    assert histogram.percentile_is_exact(p)
    assert histogram.percentile(p) == np.sort(values)[::-1][rank - 1]
    assert histogram.percentile(p, "min") == np.sort(values)[rank - 1]


@pytest.mark.parametrize("side", ["max", "min"])
@pytest.mark.parametrize("p", [0.999, 0.7, 0.6])
def test_percentile_beyond_the_extremes_is_within_its_bin(side, p):
    values = np.concatenate([normal(3000), np.zeros(10, F32)])
    histogram = counted(values, kept=2)
    rank = values.size - math.floor(p * values.size)
    exact = float((np.sort(values) if side == "min" else np.sort(values)[::-1])[rank - 1])
    assert not histogram.percentile_is_exact(p, side)
    assert abs(histogram.percentile(p, side) - exact) <= abs(exact) * 2**-13


def test_percentile_among_zeros_is_exact():
    histogram = counted(np.concatenate([np.zeros(100, F32), F32([1, 2, 3])]), kept=2)
    assert histogram.percentile_is_exact(0.5)
    assert histogram.percentile(0.5) == 0


# ----------------------------------------------------------------------------------------------------------------- rebin


def test_rebin_of_the_first_worked_example():
    values = np.concatenate([np.arange(0, 7, 0.5), [7, 8], [-8, 0.25, 0.75, 1.25, 1.75, 8]]).astype(F32)
    assert counted(values).rebin(8).tolist() == [1, 0, 0, 0, 8, 4, 4, 5]  # docs/algorithms.md 3.4 A


@pytest.mark.parametrize("num_of_bins", [1, 7, 8, 4096])
@pytest.mark.parametrize("value", [-3.0, 0.0, 5.5])
def test_rebin_of_a_constant_fills_the_middle(num_of_bins, value):
    counts = counted(np.full(9, value, F32)).rebin(num_of_bins)
    assert counts[num_of_bins // 2] == 9
    assert counts.sum() == 9


@pytest.mark.parametrize("num_of_bins", [1, 16, 1024])
def test_rebin_follows_the_raw_histogram(num_of_bins):
    values = np.maximum(normal(100_000), 0)
    counts = counted(values).rebin(num_of_bins)
    raw = np.histogram(values, num_of_bins)[0]
    assert counts.dtype == np.int64
    assert counts.sum() == values.size
    assert np.abs(np.cumsum(counts) - np.cumsum(raw)).max() <= 30  # a cut bin of ours holds fewer
    assert counts[-1] >= 1


@settings(max_examples=60)
@given(any_floats, st.integers(1, 300))
def test_rebin_keeps_every_finite_value(values, num_of_bins):
    histogram = counted(values)
    if histogram.n == histogram.n_nan + histogram.n_inf:
        return
    counts = histogram.rebin(num_of_bins)
    assert counts.shape == (num_of_bins,)
    assert counts.min() >= 0
    assert counts.sum() == histogram.n - histogram.n_nan - histogram.n_inf


@given(any_floats)
def test_bins_enclose_their_values(values):
    histogram = counted(values)
    bins = histogram.bins()
    finite = np.sort(values[np.isfinite(values)].astype(np.float64))
    ends = np.cumsum(bins.count)
    for lower, upper, count, end in zip(*bins, ends, strict=True):
        inside = finite[end - count : end]
        assert (lower <= inside).all()
        assert (inside <= upper).all()
    assert ends.size == 0 or ends[-1] == finite.size


def test_outermost_bins_end_at_the_extremes():
    bins = counted(F32([-1.00001, 0.5, 2.00002])).bins()
    assert bins.lower[0] == F32(-1.00001)
    assert bins.upper[-1] == F32(2.00002)


# ---------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.complex64])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(SchemaError, match=f"values are {np.dtype(dtype)}; expected float32 or float16"):
        counted(np.zeros(3, dtype))


def test_other_bin_widths_do_not_merge():
    with pytest.raises(MergeError, match="13 and 12 mantissa bits cannot be merged"):
        LogLinearHistogram().merge(LogLinearHistogram(12))


@pytest.mark.parametrize("mantissa_bits", [0, 14])
def test_mantissa_bits_have_a_range(mantissa_bits):
    with pytest.raises(ConfigError, match=f"mantissa_bits is {mantissa_bits}; expected 1 to 13"):
        LogLinearHistogram(mantissa_bits)


def test_parameters_out_of_range_are_refused():
    histogram = counted(F32([1]))
    with pytest.raises(ConfigError, match="extremes_kept is 0; expected at least 1"):
        LogLinearHistogram(extremes_kept=0)
    with pytest.raises(ConfigError, match="threads is 0; expected at least 1"):
        histogram.update(F32([1]), threads=0)
    with pytest.raises(ConfigError, match=r"p is 1\.5; expected 0 to 1"):
        histogram.percentile(1.5)
    with pytest.raises(ConfigError, match="side is 'top'; expected 'max' or 'min'"):
        histogram.percentile(0.5, "top")
    with pytest.raises(ConfigError, match="num_of_bins is 0; expected at least 1"):
        histogram.rebin(0)


def test_questions_to_an_empty_histogram_are_errors():
    histogram = counted(F32([np.nan]))
    with pytest.raises(EmptyDataError, match=r"percentile: the histogram holds no finite value \(n 1, NaN 1, inf 0\)"):
        histogram.percentile(0.5)
    with pytest.raises(EmptyDataError, match="rebin: the histogram holds no finite value"):
        histogram.rebin(4)


def test_incomplete_tables_are_refused():
    histogram, extremes, counters = counted(F32([1, 2])).to_tables()
    with pytest.raises(SchemaError, match=r"table histogram: columns missing \['count'\]"):
        LogLinearHistogram.from_tables(histogram.drop("count"), extremes, counters)
    with pytest.raises(SchemaError, match=r"table extremes: columns missing \['side'\]"):
        LogLinearHistogram.from_tables(histogram, extremes.drop("side"), counters)
    with pytest.raises(SchemaError, match="table counters: 2 rows; expected one"):
        LogLinearHistogram.from_tables(histogram, extremes, pl.concat([counters, counters]))


def test_counts_in_many_threads_do_not_share_tables():
    arrays = [np.random.default_rng(seed).standard_normal(100_000).astype(np.float32) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(LogLinearHistogram.from_values, arrays * 3))
    assert together == [LogLinearHistogram.from_values(array) for array in arrays] * 3


def test_tables_that_an_error_left_dirty_are_not_lent_again(monkeypatch):
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    expected = LogLinearHistogram.from_values(values)

    def broken(self: LogLinearHistogram, *_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(paged_counts.PagedCounts, "add_chunk", broken)
        with pytest.raises(MemoryError):
            LogLinearHistogram.from_values(values)
    assert LogLinearHistogram.from_values(values) == expected
