"""Channels that lie side by side, folded in the same sixteen lanes as channels that are runs of their own.

With w channels side by side, value p of channel c lies at ``p * w + c``. So sixteen neighbours in memory belong to fixed lanes of fixed
channels (w divides 16), and the sums of all ``16 * w`` lanes are kept in arrays that stay in the first cache.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, ships no types

from calibrant.stats._jit import emitted, types
from calibrant.stats._lanes import (
    DOUBLES,
    I64,
    INTEGERS,
    LANES,
    Step,
    any_step,
    finite_step,
    folded_vectors,
    start_vectors,
)
from calibrant.stats._orders import INFINITY_ORDER, Number, Orders, Reals, Values


class _Block(NamedTuple):
    """What is folded, and where to: pointers to the values and to the lanes' sums and squares; how many channels lie side by side."""

    values: Any
    sums: Any
    squares: Any
    width: Any


def _fold_vector(
    step: Step, builder: Any, block: _Block, index: Any, kept: Sequence[Any], values: Any, valid: Any | None
) -> list[Any]:
    """Add the vector of that index to its lanes; return what stays in registers: least, greatest, zeros, NaN, infinities."""
    lane = builder.mul(builder.and_(index, builder.sub(block.width, ir.Constant(I64, 1))), ir.Constant(I64, LANES))
    addresses = [
        builder.bitcast(builder.gep(base, [lane]), DOUBLES.as_pointer()) for base in (block.sums, block.squares)
    ]
    held = [builder.load(address, align=8) for address in addresses]
    added = step(builder, [*held, *kept], values, valid)
    for address, vector in zip(addresses, added[:2], strict=True):
        builder.store(vector, address, align=8)
    return added[2:]


def _emit_fold(step: Step, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the fold of ``values[start : start + count]``, and store five vectors of sixteen integers."""

    def data(place: int) -> Any:
        return context.make_array(signature.args[place])(context, builder, arguments[place]).data

    count, width = arguments[2:4]
    block = _Block(builder.gep(data(0), [arguments[1]]), data(4), data(5), width)

    def add(index: Any, kept: Sequence[Any], values: Any, valid: Any | None) -> list[Any]:
        return _fold_vector(step, builder, block, index, kept, values, valid)

    kept = folded_vectors(builder, block.values, count, start_vectors()[2:], add)
    for row, vector in enumerate(kept):
        place = builder.gep(data(6), [ir.Constant(I64, row * LANES)])
        builder.store(vector, builder.bitcast(place, INTEGERS.as_pointer()), align=4)
    return context.get_dummy_value()


def _describe_fold(
    typing_context: Any, values: Any, start: Any, count: Any, width: Any, sums: Any, squares: Any, kept: Any
) -> Any:
    """Describe `fold_block` to numba."""
    return types.void(values, types.int64, types.int64, types.int64, sums, squares, kept), partial(_emit_fold, any_step)


def _describe_finite_fold(
    typing_context: Any, values: Any, start: Any, count: Any, width: Any, sums: Any, squares: Any, kept: Any
) -> Any:
    """Describe `fold_finite_block` to numba."""
    described, _ = _describe_fold(typing_context, values, start, count, width, sums, squares, kept)
    return described, partial(_emit_fold, finite_step)


def _plain_fold(
    values: Values, start: Number, count: Number, width: Number, sums: Reals, squares: Reals, kept: Orders
) -> None:
    """Fold a block as plain Python does."""
    run = values[start : start + count]
    bits = run.view(np.int32)
    is_finite = np.isfinite(run)
    wide = np.where(is_finite, run, np.float32(0)).astype(np.float64)
    lanes = np.arange(count) % (LANES * width)
    np.add.at(sums.reshape(-1), lanes, wide)
    np.add.at(squares.reshape(-1), lanes, wide * wide)
    orders = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    for place in range(LANES):
        own, finite = run[place::LANES], is_finite[place::LANES]
        kept[0, place] = orders[place::LANES][finite].min(initial=INFINITY_ORDER)
        kept[1, place] = orders[place::LANES][finite].max(initial=~INFINITY_ORDER)
        kept[2, place], kept[3, place], kept[4, place] = (own == 0).sum(), np.isnan(own).sum(), np.isinf(own).sum()


# Within kernels: fold_block(values, start, count, width, sums, squares, kept) adds count values of contiguous memory with `width` channels
# side by side (1, 2, 4, 8 or 16) to the lanes' sums and squares, each of shape (16, width), and fills kept, int32 of shape (5, 16), with
# the least and greatest finite order, and the zeros, NaN and infinities, of each place modulo 16.
fold_block: Any = emitted(_describe_fold, _plain_fold)

# Within kernels: fold_finite_block does the same in less time where all values are finite; where not, a square that it leaves is not
# finite, and what it does means nothing else.
fold_finite_block: Any = emitted(_describe_finite_fold, _plain_fold)
