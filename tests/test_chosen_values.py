"""Counting in the flat table where blocks hold zeros: every other value once under its key, whatever their places."""

import numpy as np
import pytest

from calibrant.stats._count_kernels import BLOCK, NO_FACTS, SPAN, SPARE, TABLE_SIZE, ZEROS, count_dense
from calibrant.stats._nonzero_keys import _plain_keys


def counted(bits: np.ndarray, shift: int) -> tuple[np.ndarray, int]:
    """The table, without its spare counters, and the zeros."""
    table, facts = np.zeros(TABLE_SIZE + SPARE, np.uint16), np.array(NO_FACTS, np.int64)
    maxima, minima = (np.empty(-(-bits.size // SPAN), np.int32) for _ in range(2))
    bits.flags.writeable = False
    count_dense(bits, np.uint32(shift), table, facts, maxima, minima)
    return table[:TABLE_SIZE], int(facts[ZEROS])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("size", [BLOCK, 3 * BLOCK, 3 * BLOCK + 17, BLOCK - 1])
@pytest.mark.parametrize("shift", [10, 15])
def test_zeros_of_either_sign_leave_no_count(share, size, shift):
    rng = np.random.default_rng(size)
    values = rng.standard_normal(size, dtype=np.float32) * np.float32(10) ** rng.integers(-40, 30, size)
    values[rng.random(size) < 0.01] = np.inf
    values[rng.random(size) < 0.01] = np.nan
    values[rng.random(size) < share] = 0.0
    values[rng.random(size) < share / 2] = -0.0
    bits = values.astype(np.float32).view(np.uint32)
    kept = bits[(bits & 0x7FFFFFFF) != 0]
    table, zeros = counted(bits, shift)
    assert zeros == size - kept.size
    assert np.array_equal(table, np.bincount(kept >> shift, minlength=TABLE_SIZE))


def test_the_plain_twin_keeps_order_and_counts():
    bits = np.uint32([5 << 10, 0, 0x80000000, 7 << 10] * 8)
    keys = np.zeros(48, np.uint32)
    assert _plain_keys(bits, 1, 10, keys) == 8
    assert keys[:8].tolist() == [5, 7] * 4
