"""Exact sums: rounded once, whatever the order."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import MergeError, RangeError, ShapeError
from calibrant.stats.exact_sums import ExactSums

finite = st.floats(allow_nan=False, allow_infinity=False)
lists = st.lists(finite, max_size=12)


def exact(values: list[float]) -> float:
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def added(values: list[float]) -> ExactSums:
    sums = ExactSums(1)
    for value in values:
        sums.add(np.array([value]))
    return sums


@given(lists)
def test_sums_are_rounded_once(values):
    assert added(values).values()[0] == exact(values)


@given(lists, st.randoms())
def test_order_changes_nothing(values, random):
    shuffled = random.sample(values, len(values))
    assert added(values).values().tobytes() == added(shuffled).values().tobytes()


@given(lists, lists, lists)
def test_merging_is_adding(one, two, three):
    whole = added(one + two + three).values()
    a, b, c = added(one), added(two), added(three)
    assert a.merge(b).merge(c).values() == whole
    assert c.merge(b.merge(a)).values() == whole


@given(st.lists(st.tuples(finite, finite, finite), max_size=6))
def test_rows_at_once_are_added_as_one_by_one(rows):
    together, apart = ExactSums(3), ExactSums(3)
    together.add(np.array(rows).reshape(-1, 3))
    for row in rows:
        apart.add(np.array(row))
    assert together.values().tobytes() == apart.values().tobytes()


@given(st.lists(st.integers(-(2**53), 2**53), max_size=8), st.integers(0, 1060))
def test_sums_among_the_denormals_are_rounded_once(numerators, reach):
    """Multiples of a very small power of two, at the end of float64's range, where fewer bits are left."""
    sums, values = (
        ExactSums(1),
        [number * 2.0**-1074 if reach % 2 else number * 2.0 ** (reach - 1074) for number in numerators],
    )
    for value in values:
        sums.add(np.array([value]))
    assert sums.values()[0] == exact(values)


def test_sums_between_denormals_round_to_even():
    """A sum of finer bits than float64 has: the range of this sum ends below the least denormal."""
    sums = ExactSums(1, -1074 - 2, 1024)
    sums._limbs[0, 0] = 0b110  # one and a half of the least denormal
    assert sums.values()[0] == 2 * 5e-324
    sums._limbs[0, 0] = 0b1010  # two and a half
    assert sums.values()[0] == 2 * 5e-324


def test_cancellation_and_ties():
    assert added([1e308, 1e308, -1e308, 1.0, -1e308]).values()[0] == 1.0
    assert added([2.0**53, 1.0]).values()[0] == 2.0**53  # half to even
    assert added([2.0**53, 1.0, 5e-324]).values()[0] == 2.0**53 + 2  # beyond the half, by the least denormal
    assert added([1.7e308, 1.7e308]).values()[0] == np.inf


def test_channels_are_apart_and_short_rows_leave_the_rest():
    sums = ExactSums(3)
    sums.add(np.array([1.0, 2.0, 3.0]))
    sums.add(np.array([0.5]))
    assert sums.values().tolist() == [1.5, 2.0, 3.0]
    assert sums.merge(ExactSums(5)).values().tolist() == [1.5, 2.0, 3.0, 0.0, 0.0]


def test_many_additions_carry(monkeypatch):
    monkeypatch.setattr("calibrant.stats.exact_sums.ADDITIONS", 3)
    values = [2.0**40 - 1, -(2.0**33), 3.0, 2.0**52 + 1] * 9
    assert added(values).values()[0] == exact(values)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**200, 2.0**-151, 1 + 2.0**-52])
def test_values_outside_the_range_are_refused_whole(value):
    sums = ExactSums(2, -50, 200)
    with pytest.raises(RangeError, match="of channel 1 is outside the range"):
        sums.add(np.array([1.0, value]))
    assert sums.values().tolist() == [0.0, 0.0]


def test_ranges_and_sizes_must_fit():
    with pytest.raises(MergeError, match="different ranges"):
        ExactSums(1).merge(ExactSums(1, -10))
    with pytest.raises(ShapeError, match="2 values for 1 channels"):
        ExactSums(1).add(np.zeros(2))
