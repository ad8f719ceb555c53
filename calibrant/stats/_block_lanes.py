"""Channels that lie side by side, folded in the same sixteen lanes as channels that are runs of their own.

With w channels side by side, value p of channel c lies at ``p * w + c``. So sixteen neighbours in memory belong to fixed lanes of fixed
channels (w divides 16), and the sums of all ``16 * w`` lanes are kept in arrays that stay in the first cache.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, ships no types

from calibrant.stats._jit import emitted, types
from calibrant.stats._lanes import DOUBLES, I64, INTEGERS, LANES, load_some, load_whole, start_vectors, step
from calibrant.stats._orders import INFINITY_ORDER, Number, Orders, Reals, Values

_KEPT: Final = 5  # vectors that stay in registers: least, greatest, zeros, NaN, infinities


class _Block(NamedTuple):
    """What is folded, and where to: pointers to the values and to the lanes' sums and squares; how many channels lie side by side."""

    values: Any
    sums: Any
    squares: Any
    width: Any


def _fold_vector(
    builder: Any, block: _Block, index: Any, kept: Sequence[Any], valid: Any | None, values: Any
) -> list[Any]:
    """Add the vector of that index to its lanes; return what stays in registers."""
    lane = builder.mul(builder.and_(index, builder.sub(block.width, ir.Constant(I64, 1))), ir.Constant(I64, LANES))
    addresses = [
        builder.bitcast(builder.gep(base, [lane]), DOUBLES.as_pointer()) for base in (block.sums, block.squares)
    ]
    held = [builder.load(address, align=8) for address in addresses]
    added = step(builder, [*held, *kept], values, valid)
    for address, vector in zip(addresses, added[:2], strict=True):
        builder.store(vector, address, align=8)
    return added[2:]


def _address(builder: Any, block: _Block, index: Any) -> Any:
    return builder.gep(block.values, [builder.mul(index, ir.Constant(I64, LANES))])


def _looped(builder: Any, block: _Block, whole: Any) -> list[Any]:
    """Emit the loop over whole vectors."""
    before, first = builder.basic_block, start_vectors()[2:]
    head, body, done = (builder.append_basic_block(f"blocks.{part}") for part in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, kept = builder.phi(I64), [builder.phi(INTEGERS) for _ in range(_KEPT)]
    builder.cbranch(builder.icmp_signed("<", index, whole), body, done)
    builder.position_at_end(body)
    values = load_whole(builder, _address(builder, block, index))
    added = _fold_vector(builder, block, index, kept, None, values)
    following = builder.add(index, ir.Constant(I64, 1))
    builder.branch(head)
    for phi, start, next_one in zip((index, *kept), (ir.Constant(I64, 0), *first), (following, *added), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(next_one, body)
    builder.position_at_end(done)
    return kept


def _with_rest(builder: Any, block: _Block, whole: Any, rest: Any, kept: Sequence[Any]) -> list[Any]:
    """Emit the last, shorter vector, where there is one."""
    before = builder.basic_block
    tail, done = (builder.append_basic_block(f"blocks.{part}") for part in ("tail", "end"))
    builder.cbranch(builder.icmp_signed(">", rest, ir.Constant(I64, 0)), tail, done)
    builder.position_at_end(tail)
    values, valid = load_some(builder, _address(builder, block, whole), rest)
    added = _fold_vector(builder, block, whole, kept, valid, values)
    builder.branch(done)
    builder.position_at_end(done)
    result = [builder.phi(INTEGERS) for _ in kept]
    for phi, old, new in zip(result, kept, added, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(new, tail)
    return result


def _emit_fold(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the fold of ``values[start : start + count]``, and store five vectors of sixteen integers."""

    def data(place: int) -> Any:
        return context.make_array(signature.args[place])(context, builder, arguments[place]).data

    count, width = arguments[2:4]
    block = _Block(builder.gep(data(0), [arguments[1]]), data(4), data(5), width)
    whole, rest = (op(count, ir.Constant(I64, LANES)) for op in (builder.sdiv, builder.srem))
    kept = _with_rest(builder, block, whole, rest, _looped(builder, block, whole))
    for row, vector in enumerate(kept):
        place = builder.gep(data(6), [ir.Constant(I64, row * LANES)])
        builder.store(vector, builder.bitcast(place, INTEGERS.as_pointer()), align=4)
    return context.get_dummy_value()


def _describe_fold(
    typing_context: Any, values: Any, start: Any, count: Any, width: Any, sums: Any, squares: Any, kept: Any
) -> Any:
    """Describe `fold_block` to numba."""
    return types.void(values, types.int64, types.int64, types.int64, sums, squares, kept), _emit_fold


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
