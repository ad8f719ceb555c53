"""Counts around the widths of a page: 16 bits, 32 bits where a count would wrap, and a pool that grows in the middle."""

from collections.abc import Sequence

import numpy as np
import pytest

from calibrant.stats import tally
from calibrant.stats._page_kernels import ABSENT, PAGES, WIDE
from calibrant.stats.histogram import CountScratch, LogLinearHistogram
from calibrant.stats.paged_counts import PagedCounts

F32 = np.float32
MOST = 2**16 - 1  # of a narrow count
AROUND = (MOST - 1, MOST, MOST + 1, MOST + 2, 2 * MOST, 2 * MOST + 1, 2 * MOST + 2, 3 * MOST + 5)
NEIGHBOUR = F32(1.25) + F32(2) ** F32(-12)  # of another bin, in the page of 1.25
EDGES = F32([1e-45, 1.1754944e-38, 1.0, -1.0, 3.4028235e38, -3.4028235e38, np.nan, np.inf, -np.inf, 0.0, -0.0])

Pairs = tuple[list[int], list[int]]


def pattern_counts(values: np.ndarray, mantissa_bits: int = 13) -> Pairs:
    """The bins of the finite values other than zero, from the patterns alone."""
    chosen = values[np.isfinite(values) & (values != 0)]
    keys, counts = np.unique(chosen.view(np.uint32) >> (23 - mantissa_bits), return_counts=True)
    return keys.tolist(), counts.tolist()


def assert_holds(histogram: LogLinearHistogram, values: np.ndarray) -> None:
    """Compare everything that a histogram knows with the values themselves."""
    assert (histogram.keys.tolist(), histogram.counts.tolist()) == pattern_counts(values, histogram.mantissa_bits)
    finite, kept = np.sort(values[np.isfinite(values)]) + F32(0), histogram.extremes_kept
    found = histogram.n, histogram.n_zero, histogram.n_nan, histogram.n_inf
    assert found == (values.size, (values == 0).sum(), np.isnan(values).sum(), np.isinf(values).sum())
    assert np.array_equal(np.repeat(*histogram.largest), finite[::-1][:kept])
    assert np.array_equal(np.repeat(*histogram.smallest), finite[:kept])
    assert (histogram.minimum, histogram.maximum) == (finite[0], finite[-1])


def pages_by_width(counts: PagedCounts) -> tuple[int, int]:
    """How many pages are narrow, and how many are wide."""
    slots = counts._slots[:PAGES]
    return int(((slots != ABSENT) & (slots < WIDE)).sum()), int((slots >= WIDE).sum())


def paged(*parts: np.ndarray, mantissa_bits: int = 13) -> PagedCounts:
    counts = PagedCounts(mantissa_bits)
    for part in parts:
        counts.count(part.view(np.uint32))
    return counts


def pairs_of(counts: PagedCounts) -> Pairs:
    keys, found = counts.pairs()
    return keys.tolist(), found.tolist()


def repeated(value: float, count: int) -> np.ndarray:
    return np.full(count, value, F32)


def crowd(pages: int, count: int) -> np.ndarray:
    """So many of one value in each of so many pages, of either sign in turn."""
    return np.repeat([F32(2.0) ** F32(p // 2 - 30) * F32((-1) ** p) for p in range(pages)], count).astype(F32)


def patterns(n: int, seed: int) -> np.ndarray:
    """Any patterns: nearly every page is met."""
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32).view(F32)


@pytest.fixture(params=["pages", "tables"])
def always_dense(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Count in pages at once, or in tables that are poured into them; sort nothing."""
    monkeypatch.setattr(tally, "DENSE_SIZE", 1)
    monkeypatch.setattr(tally, "TABLE_PAYS", 1 if request.param == "tables" else 1 << 62)
    return str(request.param)


@pytest.mark.parametrize("count", AROUND)
def test_a_page_widens_exactly_where_a_count_would_wrap(count: int) -> None:
    values = repeated(1.25, count)
    for parts in ([values], np.array_split(values, 3), [values[:MOST], values[MOST:]], [values[:-1], values[-1:]]):
        counts = paged(*parts)
        assert pairs_of(counts) == pattern_counts(values)
        assert pages_by_width(counts) == ((1, 0) if count <= MOST else (0, 1))


@pytest.mark.parametrize("count", AROUND)
@pytest.mark.parametrize("chunk", [1 << 24, 50_000, MOST, MOST + 1])
def test_any_path_counts_a_crowded_bin(
    always_dense: str, monkeypatch: pytest.MonkeyPatch, count: int, chunk: int
) -> None:
    monkeypatch.setattr(tally, "DENSE_CHUNK", chunk)
    values = np.concatenate([repeated(1.25, count), repeated(NEIGHBOUR, 3), repeated(-1.25, 7), EDGES])
    np.random.default_rng(count).shuffle(values)
    histogram, scratch = LogLinearHistogram(extremes_kept=9), CountScratch()
    histogram.update(values, scratch=scratch)
    assert_holds(histogram, values)
    assert not scratch.narrow[: 1 << 22].any()
    assert not scratch.wide[: 1 << 22].any()
    histogram.update(values[::-1], scratch=scratch)
    assert_holds(histogram, np.concatenate([values, values]))


def test_what_was_counted_survives_the_copy_into_wide_counts(always_dense: str) -> None:
    whole_page = np.arange(0x3F800000 >> 10, (0x3F800000 >> 10) + 5000, dtype=np.uint32)
    page = np.repeat(
        (whole_page << np.uint32(10)).view(F32), 20
    )  # every bin from 1.0 to the end of its page and beyond
    parts = [page, repeated(1.25, 65_000), page, repeated(1.25, 2000), page, repeated(NEIGHBOUR, 70_000)]
    histogram = LogLinearHistogram(extremes_kept=5)
    for part in parts:
        histogram.update(part)
    assert_holds(histogram, np.concatenate(parts))


@pytest.mark.parametrize("one", [1, 40_000, MOST, MOST + 1, 100_000])
@pytest.mark.parametrize("two", [1, 25_535, 25_536, MOST, MOST + 1, 100_000])
def test_pages_of_any_two_widths_add_up(one: int, two: int) -> None:
    values = [np.concatenate([repeated(1.25, n), repeated(NEIGHBOUR, 11)]) for n in (one, two)]
    mine, theirs = map(paged, values)
    before = pairs_of(theirs)
    assert [pages_by_width(counts) for counts in (mine, theirs)] == [
        (1, 0) if n <= MOST else (0, 1) for n in (one, two)
    ]
    mine.add(theirs)
    assert pairs_of(mine) == pattern_counts(np.concatenate(values))
    assert pages_by_width(mine) == ((1, 0) if one + two <= MOST else (0, 1))
    assert pairs_of(theirs) == before
    mine.count(repeated(NEIGHBOUR, MOST).view(np.uint32))
    assert pairs_of(mine) == pattern_counts(np.concatenate([*values, repeated(NEIGHBOUR, MOST)]))


def test_many_pages_of_all_widths_merge_into_a_pool_that_is_too_small() -> None:
    shares = ([0, 40_000, 70_000, 0, 65_535, 1], [30_000, 40_000, 10, 70_000, 1, 65_535])
    one, two = (np.concatenate([repeated(2.0**p, count) for p, count in enumerate(share * 2, -6)]) for share in shares)
    everything = patterns(30_000, 1)
    for first, second in ((one, two), (two, one), (one, everything), (everything, one)):
        mine, theirs = paged(first), paged(second)
        mine.add(theirs)
        assert pairs_of(mine) == pattern_counts(np.concatenate([first, second]))


@pytest.mark.parametrize("mantissa_bits", [1, 2, 3, 4, 5, 8, 12])
def test_signs_that_share_a_page(always_dense: str, mantissa_bits: int) -> None:
    values = np.concatenate([repeated(1.5, MOST), repeated(-1.5, MOST + 1), repeated(-3, 9), repeated(0, 999), EDGES])
    np.random.default_rng(mantissa_bits).shuffle(values)
    parts = [values[:90_000], values[90_000:], values]
    histogram = LogLinearHistogram(mantissa_bits, 20)
    for part in parts:
        histogram.update(part)
    assert_holds(histogram, np.concatenate(parts))
    assert_holds(histogram.merge(histogram), np.concatenate(parts * 2))


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_many_new_pages_in_one_chunk(always_dense: str, count: int) -> None:
    values = np.concatenate([crowd(30, count), patterns(40_000, 2)])
    np.random.default_rng(3).shuffle(values)
    histogram = LogLinearHistogram(extremes_kept=50)
    histogram.update(values)
    assert_holds(histogram, values)


def test_many_pages_widen_in_one_chunk(always_dense: str) -> None:
    few, many = patterns(3000, 4), crowd(40, 40_000)
    parts = [few, many, many, patterns(40_000, 5), many[:500_000]]  # no part wraps a narrow count, two do
    histogram, scratch = LogLinearHistogram(extremes_kept=50), CountScratch()
    for part in parts:
        histogram.update(part, scratch=scratch)
    assert_holds(histogram, np.concatenate(parts))
    assert not scratch.narrow[: 1 << 22].any()


def test_threads_share_crowded_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "DENSE_SIZE", 1000)
    values = np.concatenate([crowd(6, 70_000), patterns(50_000, 6), repeated(-0.0, 70_000)])
    np.random.default_rng(7).shuffle(values)
    for threads in (1, 2, 3):
        histogram = LogLinearHistogram(extremes_kept=50)
        histogram.update(values, threads=threads)
        histogram.update(values[:150_000], threads=threads)
        assert_holds(histogram, np.concatenate([values, values[:150_000]]))


def pieces(seed: int) -> Sequence[np.ndarray]:
    """Parts of very different size and crowding, in any order."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(6):
        sizes = rng.integers(0, [3000, 70_000, 70_000, 40_000])
        crowded = [
            repeated(2.0 ** int(rng.integers(-2, 3)), sizes[1]),
            repeated(-1.0, sizes[2]),
            repeated(0.0, sizes[3]),
        ]
        part = np.concatenate([patterns(sizes[0], seed), *crowded])
        rng.shuffle(part)
        found.append(part)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mantissa_bits", [3, 13])
def test_any_mixture_of_paths_and_merges(monkeypatch: pytest.MonkeyPatch, seed: int, mantissa_bits: int) -> None:
    rng, parts, kept = np.random.default_rng(seed), pieces(seed), int(1 + 40 * (seed % 3))
    histograms = [LogLinearHistogram(mantissa_bits, kept) for _ in range(2)]
    monkeypatch.setattr(tally, "DENSE_SIZE", 2000)
    monkeypatch.setattr(tally, "DENSE_CHUNK", 60_000)
    for part in parts:
        monkeypatch.setattr(tally, "TABLE_PAYS", int(rng.choice([1, 1 << 62])))
        histograms[int(rng.integers(2))].update(part)
    whole = np.concatenate(parts)
    assert_holds(histograms[0].merge(histograms[1]), whole)
    assert_holds(histograms[1].merge(histograms[0]), whole)
