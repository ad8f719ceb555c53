"""The fold that takes all values for finite, and what makes it be redone: every kind of value at every place, in runs and in blocks."""

from collections.abc import Sequence
from fractions import Fraction

import naive
import numpy as np
import polars as pl
import pytest

from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import CountScratch

F32 = np.float32
GREATEST, DENORMAL = float(np.finfo(F32).max), float(F32(1e-45))
SPECIAL = (np.nan, np.inf, -np.inf, DENORMAL, -DENORMAL, -0.0, GREATEST, -GREATEST)
NEGATIVE_NAN = np.uint32(0xFFC00001).view(F32)
SIGNALLING_NAN = np.uint32(0x7F800001).view(F32)

SAMPLE_COLUMNS = ("n", "n_zero", "n_nan", "n_inf", "min", "max", "sum", "sum_sq")
CHANNEL_COLUMNS = ("n", "min", "max", "abs_max", "sum", "sum_sq")


def wild(seed: int, *shape: int) -> np.ndarray:
    """Values of very different size, so that another order of addition is seen."""
    return np.random.default_rng(seed).standard_cauchy(shape).astype(F32)


def ordinary(blocked: np.ndarray) -> np.ndarray:
    """The values of a batch (N, 1, blocks, inner, width) as (N, 1, C, inner), put there one by one."""
    samples, _, blocks, inner, width = blocked.shape
    batch = np.empty((samples, 1, blocks * width, inner), F32)
    for channel in range(blocks * width):
        batch[:, :, channel] = blocked[:, :, channel // width, :, channel % width]
    return batch


def written(row: Sequence[object]) -> list[str]:
    """Numbers to the last bit and with the sign of zero; what is missing is NaN."""
    return [repr(float("nan") if value is None else float(value)) for value in row]  # type: ignore[arg-type]


def assert_samples_are(frame: pl.DataFrame, samples: Sequence[np.ndarray], axis: int | None) -> None:
    for row, sample in zip(frame.select(SAMPLE_COLUMNS).rows(), samples, strict=True):
        assert written(row) == written(naive.moments(sample, axis))


def channels_of(samples: Sequence[np.ndarray], axis: int) -> list[list[str]]:
    """The channels of samples that may have different numbers of them, each over the samples that have it."""
    sums = [[naive.channel_sums(sample, axis, power) for power in (1, 2)] for sample in samples]
    rows = []
    for channel in range(max(sample.shape[axis] for sample in samples)):
        having = [n for n, sample in enumerate(samples) if sample.shape[axis] > channel]
        values = [np.take(samples[n], channel, axis=axis) for n in having]
        finite = [value for part in values for value in naive.finite_values(part)]
        low, high = min(finite, default=np.nan), max(finite, default=np.nan)
        totals = (float(sum(Fraction(sums[n][power][channel]) for n in having)) for power in (0, 1))
        rows.append(written([sum(v.size for v in values), low, high, max(abs(low), abs(high)), *totals]))
    return rows


def assert_channels_are(frame: pl.DataFrame, samples: Sequence[np.ndarray], axis: int) -> None:
    assert [written(row) for row in frame.select(CHANNEL_COLUMNS).rows()] == channels_of(samples, axis)


def with_special(batch: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Put one value a sample at its place in memory, all kinds in turn; every other sample stays ordinary."""
    batch = batch.copy()
    for n, place in enumerate(places):
        batch[2 * n].reshape(-1)[place] = SPECIAL[n % len(SPECIAL)]
    return batch


def check_runs(batch: np.ndarray) -> None:
    """Fold samples of shape (C, inner), all at once."""
    statistics = TensorStatistics(0, channel_axis=1)
    assert_samples_are(statistics.update(batch, range(len(batch))), batch, 0)
    assert_channels_are(statistics.channels_frame(), batch, 0)


def check_blocks(batch: np.ndarray) -> None:
    """Fold samples of shape (1, blocks, inner, width), all at once."""
    statistics, samples = TensorStatistics(0, channel_axis=2), ordinary(batch)
    assert_samples_are(statistics.update(batch, range(len(batch)), is_blocked=True), samples, 1)
    assert_channels_are(statistics.channels_frame(), samples, 1)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 15, 16, 17, 18, 31, 32, 33])
def test_every_place_of_a_run_and_every_kind_of_value(length: int) -> None:
    places = np.repeat(np.arange(length), len(SPECIAL)).tolist()
    check_runs(with_special(wild(length, 2 * len(places), 1, length), places))


@pytest.mark.parametrize("length", [160, 1025, 4097])
def test_places_of_long_runs(length: int) -> None:
    places = [p for p in (0, 7, 16, length // 2, length - 17, length - 2, length - 1) for _ in range(3)]
    check_runs(with_special(wild(length, 2 * len(places), 2, length), places))
    shifted = [length + place for place in places]  # in the second channel: the first keeps what it has
    check_runs(with_special(wild(length, 2 * len(places), 2, length), shifted))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("inner", [1, 2, 3, 17])
def test_every_place_of_a_block(width: int, inner: int) -> None:
    size = width * inner
    places = [p for p in range(size) for _ in range(len(SPECIAL) if size < 20 else 1)]
    check_blocks(with_special(wild(size, 2 * len(places), 1, 1, inner, width), places))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("value", [*SPECIAL, NEGATIVE_NAN, SIGNALLING_NAN])
def test_a_block_keeps_nothing_of_its_neighbours(width: int, value: float) -> None:
    batch = wild(width, 4, 1, 3, 9, width)
    batch[1, 0, 1, 8, width - 1] = batch[2, 0, 0, 0, 0] = batch[2, 0, 2, 4] = value
    check_blocks(batch)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("value", [*SPECIAL, NEGATIVE_NAN, SIGNALLING_NAN])
def test_blocks_and_runs_of_one_value_alone(width: int, value: float) -> None:
    batch = np.full((2, 1, 2, 19, width), value, F32)
    check_blocks(batch)
    check_runs(ordinary(batch)[:, 0])


@pytest.mark.parametrize("inner", [1, 16, 19])
def test_infinities_that_cancel_and_nan_after_infinities(inner: int) -> None:
    batch = wild(inner, 6, 1, 2, inner, 8)
    for n, pair in enumerate([(np.inf, -np.inf), (np.inf, np.nan), (NEGATIVE_NAN, -np.inf), (GREATEST, np.inf)]):
        batch[n, 0, 1, 0, :2] = pair
        batch[n, 0, 0, inner - 1, 3:5] = pair[::-1]
    check_blocks(batch)
    check_runs(ordinary(batch)[:, 0])


def test_squares_of_many_greatest_values_are_finite_and_added_once() -> None:
    batch = np.full((2, 1, 2, 640, 8), GREATEST, F32)
    batch[1, 0, 0, ::2] *= -1
    check_blocks(batch)
    check_runs(ordinary(batch)[:, 0])


def test_outer_runs_are_redone_one_by_one() -> None:
    batch = wild(3, 8, 5, 3, 18)  # the channels in the middle: five runs each
    for n, value in enumerate(SPECIAL):
        batch[n, n % 5, n % 3, (5 * n) % 18] = value
        batch[n, 4, 2, 17] = SPECIAL[n - 1]
    statistics = TensorStatistics(0, channel_axis=2)
    assert_samples_are(statistics.update(batch, range(8)), batch, 1)
    assert_channels_are(statistics.channels_frame(), batch, 1)


@pytest.mark.parametrize("length", [1, 16, 33])
def test_a_sample_without_channels_is_one_run(length: int) -> None:
    batch = with_special(wild(length, 2 * len(SPECIAL), length), [length // 2] * len(SPECIAL))
    frame = TensorStatistics(0, channel_axis=None).update(batch, range(len(batch)))
    assert_samples_are(frame, batch, None)


def batches_of(widths: Sequence[int], sizes: Sequence[int], rows: int) -> list[np.ndarray]:
    """Batches of samples (rows, width), some values of every kind among them."""
    found = []
    for seed, (width, size) in enumerate(zip(widths, sizes, strict=True)):
        batch = wild(seed, size, rows, width)
        batch.reshape(-1)[seed % 3 :: 7] = np.resize(SPECIAL, batch.size)[: len(batch.reshape(-1)[seed % 3 :: 7])]
        found.append(batch)
    return found


DYNAMIC = {
    "growing": ([1, 3, 5, 8], [2, 3, 1, 2]),
    "shrinking": ([8, 5, 3, 1], [2, 3, 1, 2]),
    "to and fro": ([4, 2, 4, 6, 2, 6, 4], [1, 1, 1, 1, 1, 1, 1]),
    "one sample at a time, more than wait together": ([3] * 35, [1] * 35),
    "more than wait together at once": ([3, 3, 5], [17, 40, 16]),
    "just as many as wait": ([3, 3, 3, 2], [15, 1, 16, 16]),
    "a large batch between small ones": ([3, 3, 3, 4], [1, 33, 1, 20]),
    "none": ([2, 2, 2], [0, 3, 0]),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", DYNAMIC)
def test_channels_of_a_dynamic_last_axis(name: str, rows: int) -> None:
    batches = batches_of(*DYNAMIC[name], rows)
    samples = [sample for batch in batches for sample in batch]
    statistics, scratch, first = TensorStatistics(0, channel_axis=-1), CountScratch(), 0
    for n, batch in enumerate(batches):
        frame = statistics.update(batch, range(first, first + len(batch)), scratch=scratch)
        assert_samples_are(frame, batch, 1)
        first += len(batch)
        if n % 3 == 1:  # somebody reads in between
            assert_channels_are(statistics.channels_frame(), samples[:first], 1)
    assert_channels_are(statistics.channels_frame(), samples, 1)


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("name", ["growing", "shrinking", "to and fro", "more than wait together at once"])
def test_merges_of_a_dynamic_last_axis_leave_both_usable(name: str, cut: int) -> None:
    batches = batches_of(*DYNAMIC[name], 2)
    samples = [sample for batch in batches for sample in batch]
    one, two = (TensorStatistics(0, channel_axis=-1) for _ in range(2))
    for part, chosen in ((one, batches[:cut]), (two, batches[cut:])):
        for batch in chosen:
            part.update(batch, range(len(batch)))
    merged = one.merge(two)
    assert_channels_are(merged.channels_frame(), samples, 1)
    assert_channels_are(two.merge(one).channels_frame(), samples, 1)
    merged.update(batches[0], range(len(batches[0])))
    one.update(batches[-1], range(len(batches[-1])))
    assert_channels_are(merged.channels_frame(), [*samples, *batches[0]], 1)
    assert_channels_are(one.channels_frame(), [s for batch in [*batches[:cut], batches[-1]] for s in batch], 1)
    if two_samples := [s for batch in batches[cut:] for s in batch]:
        assert_channels_are(two.channels_frame(), two_samples, 1)


def test_channels_whose_first_values_are_not_finite_get_their_range_later() -> None:
    batches = [np.full((2, 1, 3), np.nan, F32), F32([[[np.inf, -0.0, 2]]]), F32([[[-5, np.nan, -np.inf, 1]]])]
    statistics = TensorStatistics(0, channel_axis=-1)
    for count in range(1, 4):
        statistics.update(batches[count - 1], range(len(batches[count - 1])))
        seen = [sample for batch in batches[:count] for sample in batch]
        assert_channels_are(statistics.channels_frame(), seen, 1)
