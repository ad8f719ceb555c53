"""TensorStatistics: the tables depend on the samples alone, bit for bit."""

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import MergeError, SchemaError, ShapeError
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import CountScratch
from calibrant.stats.tables import SCHEMAS

F32 = np.float32


def samples_of(seed: int, n: int = 6, shape: tuple[int, ...] = (3, 4, 5)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, *shape), dtype=F32) * F32(10) ** rng.integers(-8, 8, (n, *shape)).astype(F32)
    values[rng.random(values.shape) < 0.2] = F32(-0.0)
    values[rng.random(values.shape) < 0.1] = F32(0.0)
    return values


def folded(groups: list[tuple[np.ndarray, list[int]]], channel_axis: int | None = 1) -> tuple[pl.DataFrame, ...]:
    statistics = TensorStatistics(4, channel_axis=channel_axis)
    rows = [statistics.update(batch, ids) for batch, ids in groups]
    return (pl.concat(rows).sort("sample"), *tables(statistics))


def tables(statistics: TensorStatistics) -> tuple[pl.DataFrame, ...]:
    counters = pl.DataFrame([statistics.counters()])
    return statistics.channels_frame(), statistics.histogram_frame(), statistics.extremes_frame(), counters


def identical(one: tuple[pl.DataFrame, ...], two: tuple[pl.DataFrame, ...]) -> bool:
    """Bit for bit: the sign of zero included."""
    same = all(a.equals(b) and a.schema == b.schema for a, b in zip(one, two, strict=True))
    return same and all(a.write_csv() == b.write_csv() for a, b in zip(one, two, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.permutations(range(6)), st.integers(1, 6), st.sampled_from([1, 2, -1, None]))
def test_batch_size_and_order_change_nothing(seed, order, size, channel_axis):
    values = samples_of(seed)
    whole = folded([(values, list(range(6)))], channel_axis)
    groups = [order[start : start + size] for start in range(0, 6, size)]
    assert identical(folded([(values[group], list(group)) for group in groups], channel_axis), whole)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 6), st.integers(0, 6))
def test_merge_trees_change_nothing(seed, first, second):
    values = samples_of(seed)
    cuts = sorted((first, second))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, 6], strict=True):
        part = TensorStatistics(4, channel_axis=1)
        part.update(values[start:stop], list(range(start, stop)))
        parts.append(part)
    a, b, c = parts
    whole = tables(parts[0].merge(parts[1]).merge(parts[2]))
    assert identical(tables(c.merge(b.merge(a))), whole)
    assert identical(whole, folded([(values, list(range(6)))])[1:])


def test_sample_rows_are_sums_over_the_finite_values():
    values = F32([[1e8, 1, -1e8, 0.1], [3, np.nan, -np.inf, -0.0]])
    rows = TensorStatistics(2, channel_axis=None).update(values, [7, 8])
    one, two, three, four = values[0].astype(np.float64).tolist()
    total = (one + three) + (two + four)  # by halves of the lanes
    squares = (one * one + three * three) + (two * two + four * four)
    assert rows.schema == SCHEMAS["samples"]
    assert rows.row(0) == (2, 7, 4, 0, 0, 0, F32(-1e8), F32(1e8), total, squares)
    assert rows.row(1) == (2, 8, 4, 1, 1, 1, 0.0, 3.0, 3.0, 9.0)


def test_channels_add_the_samples_exactly():
    values = samples_of(1)
    frame = folded([(values, list(range(6)))])[1]
    assert frame.schema == SCHEMAS["channels"]
    for channel, row in enumerate(frame.iter_rows(named=True)):
        part = values[:, channel].reshape(6, -1).astype(np.float64)
        lanes = [np.pad(sample, (0, 12)).reshape(2, 16).sum(axis=0) for sample in part]  # 20 values: two rounds
        for half in (8, 4, 2, 1):
            lanes = [lane[:half] + lane[half:] for lane in lanes]
        ordered = [float(lane[0]) for lane in lanes]
        assert row["n"] == part.size
        assert row["sum"] == float(sum(map(Fraction, ordered)))
        assert (row["min"], row["max"]) == (part.min(), part.max())
        assert row["abs_max"] == np.abs(part).max()


@pytest.mark.parametrize(("channel_axis", "channels"), [(1, 3), (2, 4), (3, 5), (-1, 5), (-3, 3), (None, 0), (4, 0)])
def test_channel_axis_counts_from_either_end(channel_axis, channels):
    assert folded([(samples_of(2), list(range(6)))], channel_axis)[1].height == channels


def test_the_sample_axis_is_no_channel_axis():
    assert folded([(F32([1, 2]), [0, 1])], -1)[1].height == 0


def test_channels_that_only_some_samples_have():
    long, short = F32([[1, 2, 3]]), F32([[10, 20]])
    one = folded([(long, [0]), (short, [1])], -1)
    two = folded([(short, [1]), (long, [0])], -1)
    assert identical(one, two)
    assert one[1].select("n", "sum").rows() == [(2, 11.0), (2, 22.0), (1, 3.0)]


def test_channels_without_a_finite_value_have_no_range():
    row = folded([(F32([[np.nan, 1], [np.inf, 2]]), [0, 1])])[1].row(0, named=True)
    assert (row["n"], row["min"], row["max"], row["abs_max"], row["sum"]) == (2, None, None, None, 0.0)


def test_samples_without_a_finite_value_have_no_range():
    row = TensorStatistics(0, channel_axis=None).update(F32([[np.nan]]), [0]).row(0, named=True)
    assert (row["min"], row["max"], row["sum"]) == (None, None, 0.0)


def test_half_precision_and_views_count_as_their_values():
    halves = np.clip(samples_of(3), -60000, 60000).astype(np.float16)
    wide = halves.astype(F32)
    ids = list(range(6))
    assert identical(folded([(halves, ids)]), folded([(wide, ids)]))
    assert identical(folded([(np.asfortranarray(wide), ids)]), folded([(wide, ids)]))


def test_squares_of_the_greatest_values_do_not_overflow():
    big = np.full((2, 3), np.finfo(F32).max, F32)
    frame = folded([(big, [0, 1])])[1]
    assert frame["sum_sq"].to_list() == [2 * float(big[0, 0]) ** 2] * 3


def test_large_batches_use_the_scratch_and_agree():
    values = np.random.default_rng(4).standard_normal((4, 8, 80, 80), dtype=F32)
    statistics, scratch = TensorStatistics(4, channel_axis=1), CountScratch()
    statistics.update(values, range(4), scratch=scratch)
    assert identical(tables(statistics), folded([(values[i : i + 1], [i]) for i in range(4)])[1:])


def test_an_empty_batch_adds_nothing():
    statistics = TensorStatistics(0, channel_axis=1)
    assert statistics.update(np.empty((0, 3), F32), []).height == 0
    assert statistics.counters()["n"] == 0
    assert statistics.counters()["min"] is None


def test_wrong_batches_are_refused():
    statistics = TensorStatistics(5, channel_axis=1)
    with pytest.raises(SchemaError, match="tensor 5: activations are int64; expected float32 or float16"):
        statistics.update(np.zeros((1, 2), np.int64), [0])
    with pytest.raises(ShapeError, match=r"tensor 5: a batch of shape \(2, 3\) for 1 samples"):
        statistics.update(np.zeros((2, 3), F32), [0])


def test_only_like_statistics_merge():
    one = TensorStatistics(0, channel_axis=1)
    with pytest.raises(MergeError, match="statistics of tensor 0 and 1 cannot be merged"):
        one.merge(TensorStatistics(1, channel_axis=1))
    with pytest.raises(MergeError, match="statistics of channel axis 1 and None cannot be merged"):
        one.merge(TensorStatistics(0, channel_axis=None))
    with pytest.raises(MergeError, match="13 and 8 mantissa bits"):
        one.merge(TensorStatistics(0, channel_axis=1, mantissa_bits=8))
