"""What the vector unit chooses: values other than zero, counted under their keys, and orders above a floor, whatever their places."""

import numpy as np
import pytest

from calibrant.stats._chosen_values import _plain_keys, _plain_orders
from calibrant.stats._count_kernels import BLOCK, NO_FACTS, SPAN, SPARE, TABLE_SIZE, ZEROS, count_dense
from calibrant.stats._extreme_kernels import collect_top


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


def naive_orders(values: np.ndarray, flip: int, floor: int) -> list[int]:
    """Orders of x, or of -x, that are finite and above a floor, value by value."""
    found = []
    for bits in values.view(np.int32).tolist():
        order = bits if bits >= 0 else bits ^ 0x7FFFFFFF
        order = ~order if flip else order
        found += [order] if floor < order < 0x7F800000 else []
    return found


@pytest.mark.parametrize("size", [SPAN, 5 * SPAN, 5 * SPAN + 17, SPAN - 1])
@pytest.mark.parametrize("flip", [0, -1])
@pytest.mark.parametrize("floor", [0.5, 0.0, -0.25, -np.inf])
def test_orders_above_a_floor_are_gathered_in_order(size, flip, floor):
    rng = np.random.default_rng(size)
    values = rng.standard_normal(size).astype(np.float32)
    for special in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, floor, -floor):
        values[rng.random(size) < 0.02] = special
    bound = np.float32(floor).view(np.int32).item()
    bound = bound if bound >= 0 else bound ^ 0x7FFFFFFF
    buffer, maxima = np.zeros(size + 2 * SPAN, np.int32), np.full(-(-size // SPAN), 0x7F7FFFFF, np.int32)
    bits = values.view(np.uint32)
    bits.flags.writeable = False
    spans, used = collect_top(bits, maxima, 0, np.int32(flip), np.int32(bound), buffer, 0)
    assert spans == maxima.size
    assert buffer[:used].tolist() == naive_orders(values, flip, bound)


def test_a_plain_twin_gathers_orders_behind_what_is_there():
    values = np.float32([1.0, -2.0, np.nan, 3.0] * 4)
    orders = np.full(40, 7, np.int32)
    assert _plain_orders(values.view(np.uint32), 0, 1, 0, 0, orders, 2) == 8
    assert orders[:10].tolist() == [7, 7, *np.float32([1.0, 3.0] * 4).view(np.int32).tolist()]
