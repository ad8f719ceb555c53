"""Spans of one value or two are counted at once, others value by value; only pages of signs that occurred are looked at."""

import numpy as np
import pytest

from calibrant.stats._chunk_kernels import page_ranges
from calibrant.stats._count_kernels import (
    ABOVE,
    BELOW,
    BLOCK,
    INFINITIES,
    LEAST,
    NANS,
    NO_FACTS,
    SPAN,
    SPARE,
    TABLE_SIZE,
    ZEROS,
    count_dense,
)
from calibrant.stats._page_kernels import ABSENT, NARROW_MOST, PAGE, PAGE_BITS, PAGES, WIDE
from calibrant.stats.counting import CountScratch
from calibrant.stats.histogram import LogLinearHistogram
from calibrant.stats.paged_counts import PagedCounts

F32 = np.float32
PAIRS = [(1.5, 2.5), (-1.5, 2.5), (0.0, 6.0), (-0.0, 0.0), (-3.0, -0.0), (1e-45, -1e-45), (3.4e38, 1.0), (1.0, 1.0)]


def counted(values: np.ndarray, shift: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """The table, without its spare counters, and the facts."""
    table, facts = np.zeros(TABLE_SIZE + SPARE, np.uint16), np.array(NO_FACTS, np.int64)
    maxima, minima = (np.empty(-(-values.size // SPAN), np.int32) for _ in range(2))
    bits = values.astype(F32).view(np.uint32)
    bits.flags.writeable = False
    count_dense(bits, np.uint32(shift), table, facts, maxima, minima)
    return table[:TABLE_SIZE], facts


def expected(values: np.ndarray, shift: int = 10) -> np.ndarray:
    """The same, value by value."""
    bits = values.astype(F32).view(np.uint32)
    return np.bincount(bits[(bits & 0x7FFFFFFF) != 0] >> shift, minlength=TABLE_SIZE)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("size", [SPAN - 1, SPAN, BLOCK, BLOCK + SPAN + 1, 3 * BLOCK - 7])
@pytest.mark.parametrize("order", ["alternating", "random", "one odd"])
def test_two_values(pair, size, order):
    rng = np.random.default_rng(size)
    places = np.arange(size) % 2 if order != "random" else rng.integers(0, 2, size)
    values = np.asarray(pair, F32)[places]
    if order == "one odd":
        values[size // 2 :: SPAN] = np.sum(pair, dtype=F32) / 2
    table, facts = counted(values)
    assert np.array_equal(table, expected(values))
    assert facts[ZEROS] == (values == 0).sum()


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf])
def test_two_values_one_of_which_is_not_finite(special):
    values = np.tile(F32([1.5, special]), BLOCK)
    table, facts = counted(values)
    assert np.array_equal(table, expected(values))
    assert (facts[NANS], facts[INFINITIES]) == ((BLOCK, 0) if np.isnan(special) else (0, BLOCK))


@pytest.mark.parametrize("shape", ["few of many", "many zeros", "levels"])
def test_any_values(shape):
    rng = np.random.default_rng(3)
    values = rng.standard_normal(5 * BLOCK + 13).astype(F32)
    if shape == "few of many":
        values[BLOCK : 2 * BLOCK] = np.where(rng.random(BLOCK) < 0.5, F32(2), F32(-7))
    elif shape == "many zeros":
        values = np.maximum(values, 0)
    else:
        values = np.rint(values * 4)
    table, _ = counted(values)
    assert np.array_equal(table, expected(values))


def pages_of(values: np.ndarray, mantissa_bits: int) -> set[int]:
    """The pages of the keys of values that are not zero."""
    bits = values.astype(F32).view(np.uint32)
    keys = bits[(bits & 0x7FFFFFFF) != 0] >> (23 - mantissa_bits)
    return set((keys >> PAGE_BITS).tolist())


@pytest.mark.parametrize("mantissa_bits", [1, 3, 4, 5, 8, 13])
@pytest.mark.parametrize(
    "values",
    [[1.0, 7.0], [-1.0, -7.0], [0.25, -9.0], [0.0, 0.0], [-0.0, 1e-45], [-1e-45, 0.0], [np.inf, 1.0], [np.nan, -1.0]],
)
def test_pages_that_are_looked_at(values, mantissa_bits):
    values = np.resize(F32(values), 2 * BLOCK)
    shift, sign = np.uint32(23 - mantissa_bits), 1 << (8 + mantissa_bits)
    _, facts = counted(values, int(shift))
    first, last, first_below, last_below = page_ranges(facts, shift, sign)
    looked_at = [*range(first, last + 1), *range(first_below, last_below + 1)]
    assert len(looked_at) == len(set(looked_at))
    assert pages_of(values, mantissa_bits) <= set(looked_at) <= set(range(PAGES))
    signs = {np.signbit(value) for value in values[values != 0]}
    if mantissa_bits == 13:
        assert {page >= PAGES // 2 for page in looked_at} == signs


def test_facts_are_magnitudes_of_each_sign():
    _, facts = counted(np.resize(F32([0.5, -0.25, 0.0, -8.0]), BLOCK))
    above, below, least = (int(F32(value).view(np.uint32)) for value in (0.5, 8.0, 0.25))
    assert (facts[ABOVE], facts[BELOW], facts[LEAST]) == (above, below, least)


def assert_tops_hold(counts: PagedCounts) -> None:
    """No count of a narrow page exceeds what is noted for it."""
    for page in np.flatnonzero((counts._slots[:PAGES] != ABSENT) & (counts._slots[:PAGES] < WIDE)):
        slot = int(counts._slots[page])
        assert counts._pool[slot * PAGE : (slot + 1) * PAGE].max() <= counts._tops[page] <= NARROW_MOST


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6])
def test_counts_that_come_near_the_width_of_a_page(share):
    """A value that takes a share of each chunk passes 65,535 after a few; its neighbours stay far below."""
    rng = np.random.default_rng(7)
    histogram, scratch, parts = LogLinearHistogram(), CountScratch(), []
    for size in (131_072, 140_000, 200_001, 131_072, 7_000, 150_000):
        part = rng.uniform(1, 4, size).astype(F32)
        part[rng.random(size) < share] = F32(1.5)
        histogram.update(part, scratch=scratch)
        parts.append(part)
        assert_tops_hold(histogram._tally.bins.pages(0))
    other = LogLinearHistogram.from_values(parts[0])
    merged = histogram.merge(other)
    assert_tops_hold(merged._tally.bins.pages(0))
    bits = np.concatenate([*parts, parts[0]]).view(np.uint32)
    keys, counts = np.unique(bits >> 10, return_counts=True)
    assert np.array_equal(merged.keys, keys)
    assert np.array_equal(merged.counts, counts)
