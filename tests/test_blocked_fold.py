"""Batches that lie in memory with channels side by side: the same statistics, bit for bit, as of the ordinary layout."""

import naive
import numpy as np
import polars as pl
import pytest
from datasets import ALL, dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ShapeError
from calibrant.stats.collector import TensorStatistics

F32 = np.float32


def ordinary(blocked: np.ndarray) -> np.ndarray:
    """The values of a blocked batch as (N, 1, C, *spatial), put there one by one."""
    samples, one, blocks, *spatial, width = blocked.shape
    batch = np.empty((samples, one, blocks * width, *spatial), blocked.dtype)
    for channel in range(blocks * width):
        batch[:, :, channel] = blocked[:, :, channel // width, ..., channel % width]
    return batch


def tables(parts: list[np.ndarray], axis: int | None, *, is_blocked: bool) -> list[pl.DataFrame]:
    """All that a tensor's batches leave behind."""
    statistics, first, rows = TensorStatistics(3, channel_axis=axis), 0, []
    for part in parts:
        rows.append(statistics.update(part, range(first, first + len(part)), is_blocked=is_blocked))
        first += len(part)
    frames = [statistics.channels_frame(), statistics.histogram_frame(), statistics.extremes_frame()]
    return [pl.concat(rows), *frames, pl.DataFrame([statistics.counters()])]


def assert_identical(parts: list[np.ndarray], axis: int | None = 2) -> None:
    got = tables(parts, axis, is_blocked=True)
    expected = tables([ordinary(part) for part in parts], axis, is_blocked=False)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.schema == theirs.schema
        assert mine.equals(theirs)
        assert mine.write_csv() == theirs.write_csv()  # the sign of zero as well


def wild(seed: int, *shape: int) -> np.ndarray:
    """Values of very different size, so that another order of addition is seen."""
    values = np.random.default_rng(seed).standard_cauchy(shape).astype(F32)
    values[np.random.default_rng(seed + 1).random(shape) < 0.3] = 0
    return values


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.sampled_from([1, 2, 3, 5, 8, 16, 17]),
)  # fmt: skip
def test_any_shape_folds_as_the_ordinary_layout(seed, samples, blocks, spatial, width):
    assert_identical([wild(seed, samples, 1, blocks, *spatial, width)])


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("positions", [1, 2, 15, 16, 17, 31, 32, 33, 49, 255, 256, 257, 1024, 3137])
def test_every_length_of_a_run(positions, width):
    assert_identical([wild(positions, 1, 1, 2, positions, 1, width)])


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("name", ALL)
def test_every_kind_of_value_folds_as_its_twin(name, width):
    batch = np.resize(dataset(name).ravel(), (2, 1, 2, 5, 4, width))
    frame = TensorStatistics(3, channel_axis=2).update(batch, range(2), is_blocked=True)
    columns = frame.select("n", "n_zero", "n_nan", "n_inf", "min", "max", "sum", "sum_sq").rows()
    for row, sample in zip(columns, ordinary(batch), strict=True):
        expected = [None if np.isnan(value) else value for value in naive.moments(sample, 1)]
        got = [None if value is not None and np.isnan(value) else value for value in row]
        assert got == expected
    assert_identical([batch])


@pytest.mark.parametrize("name", ["gaussian", "relu6", "all kinds"])
def test_channels_equal_their_twin(name):
    batch = np.resize(dataset(name).ravel(), (3, 1, 2, 7, 3, 8))
    statistics = TensorStatistics(3, channel_axis=2)
    statistics.update(batch, range(3), is_blocked=True)
    expected = naive.channel_moments(list(ordinary(batch)), 1)
    rows = statistics.channels_frame().select("n", "min", "max", "sum", "sum_sq").rows()
    assert rows == [(t.n, t.minimum, t.maximum, t.total, t.total_squares) for t in expected]


def test_large_batches_in_any_grouping():
    values = wild(5, 5, 1, 6, 40, 41, 16)
    values[1, 0, 2, 3, 4] = [np.nan, np.inf, -np.inf, -0.0] * 4
    assert_identical([values])
    whole = tables([values], 2, is_blocked=True)
    for cuts in ([1, 2, 3, 4], [2, 4], [4]):
        parts = tables(np.split(values, cuts), 2, is_blocked=True)
        assert all(one.equals(two) for one, two in zip(parts, whole, strict=True))


def test_both_layouts_share_one_statistic():
    values = wild(6, 4, 1, 2, 30, 30, 16)
    statistics = TensorStatistics(3, channel_axis=2)
    statistics.update(values[:2], [0, 1], is_blocked=True)
    statistics.update(ordinary(values[2:]), [2, 3])
    expected = tables([ordinary(values)], 2, is_blocked=False)
    assert statistics.channels_frame().equals(expected[1])
    assert statistics.histogram_frame().equals(expected[2])


@pytest.mark.parametrize("axis", [None, 1, 3, -1, 7])
def test_other_channel_axes_are_those_of_the_ordinary_layout(axis):
    assert_identical([wild(7, 2, 1, 2, 3, 4, 8)], axis)


def test_half_precision_and_views():
    values = np.clip(wild(8, 2, 1, 2, 3, 4, 8), -60000, 60000)
    assert_identical([values.astype(np.float16)])
    assert_identical([np.asfortranarray(values)])


@pytest.mark.parametrize("shape", [(2, 8), (2, 1, 8), (2, 3, 4, 5, 8)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(
        ShapeError, match=r"tensor 3: a blocked batch of shape .*; expected \(N, 1, C / b, \*spatial, b\)"
    ):
        TensorStatistics(3, channel_axis=2).update(np.zeros(shape, F32), range(2), is_blocked=True)
