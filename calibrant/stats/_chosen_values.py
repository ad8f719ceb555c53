"""What is chosen of a block's values, side by side: the vector unit moves sixteen at once, without a branch for each."""

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding as llvm  # type: ignore[import-untyped]  # comes with numba, ships no types
import numpy as np
from llvmlite import ir

from calibrant.stats._jit import emitted, types
from calibrant.stats._lanes import I64, INTEGERS, LANES
from calibrant.stats._orders import INFINITY_ORDER, Keys, Number, Orders

# Elsewhere the compiler takes a value at a time, which is slower than an ordinary loop.
HAS_COMPRESSION: Final = bool(llvm.get_host_cpu_features().get("avx512f", False))
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)
_MAGNITUDE: Final = 0x7FFFFFFF

Choose = Callable[[Any], tuple[Any, Any]]  # sixteen patterns: what is written for each, and which are chosen


def _repeated(value: int) -> Any:
    return ir.Constant(INTEGERS, [value] * LANES)


def _spread(builder: Any, value: Any) -> Any:
    """Return a vector of one number."""
    undefined = ir.Constant(INTEGERS, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, _repeated(0))


def _compressed(builder: Any, keys: Any, chosen: Any) -> Any:
    """Move the chosen ones of sixteen to the front."""
    name = f"llvm.experimental.vector.compress.v{LANES}i32"
    kind = ir.FunctionType(INTEGERS, [INTEGERS, _MASK, INTEGERS])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [keys, chosen, ir.Constant(INTEGERS, ir.Undefined)])


def _emit_chosen(builder: Any, source: Any, vectors: Any, target: Any, choose: Choose) -> Any:
    """Emit the loop over vectors of sixteen; return how many were chosen."""
    before = builder.basic_block
    head, body, done = (builder.append_basic_block(f"chosen.{part}") for part in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, end = builder.phi(I64), builder.phi(I64)
    builder.cbranch(builder.icmp_signed("<", index, vectors), body, done)
    builder.position_at_end(body)
    place = builder.gep(source, [builder.mul(index, ir.Constant(I64, LANES))])
    written, chosen = choose(builder.load(builder.bitcast(place, INTEGERS.as_pointer()), align=4))
    address = builder.bitcast(builder.gep(target, [end]), INTEGERS.as_pointer())
    builder.store(_compressed(builder, written, chosen), address, align=4)
    found = builder.zext(builder.ctpop(builder.bitcast(chosen, ir.IntType(LANES))), I64)
    following = builder.add(index, ir.Constant(I64, 1)), builder.add(end, found)
    builder.branch(head)
    for phi, next_one in zip((index, end), following, strict=True):
        phi.add_incoming(ir.Constant(I64, 0), before)
        phi.add_incoming(next_one, body)
    builder.position_at_end(done)
    return end


def _data(context: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    return context.make_array(signature.args[place])(context, builder, arguments[place]).data


def _narrowed(builder: Any, value: Any) -> Any:
    return _spread(builder, builder.trunc(value, ir.IntType(32)))


def _emit_keys(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    shift = _narrowed(builder, arguments[2])

    def choose(bits: Any) -> tuple[Any, Any]:
        magnitude = builder.and_(bits, _repeated(_MAGNITUDE))
        return builder.lshr(bits, shift), builder.icmp_signed("!=", magnitude, _repeated(0))

    source, target = (_data(context, builder, signature, arguments, place) for place in (0, 3))
    return _emit_chosen(builder, source, arguments[1], target, choose)


def _describe_keys(typing_context: Any, bits: Any, vectors: Any, shift: Any, keys: Any) -> Any:
    """Describe `nonzero_keys` to numba."""
    return types.int64(bits, types.int64, types.int64, keys), _emit_keys


def _plain_keys(bits: Keys, vectors: Number, shift: Number, keys: Keys) -> Number:
    """Do the same in Python."""
    block = bits[: vectors * LANES]
    found = block[block & _MAGNITUDE != 0] >> shift
    keys[: found.size] = found
    return found.size


# Within kernels: nonzero_keys(bits, vectors, shift, keys) fills in ``bits >> shift`` of those of the first 16 * vectors patterns that are
# not zero, in order, and returns how many they are; it may write over up to 15 entries beyond.
nonzero_keys: Any = emitted(_describe_keys, _plain_keys)


def _emit_orders(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    flip, floor = (_narrowed(builder, value) for value in arguments[3:5])

    def choose(bits: Any) -> tuple[Any, Any]:
        inverted = builder.and_(builder.ashr(bits, _repeated(31)), _repeated(_MAGNITUDE))
        order = builder.xor(builder.xor(bits, inverted), flip)
        above = builder.icmp_signed(">", order, floor)
        return order, builder.and_(above, builder.icmp_signed("<", order, _repeated(INFINITY_ORDER)))

    source = builder.gep(_data(context, builder, signature, arguments, 0), [arguments[1]])
    target = builder.gep(_data(context, builder, signature, arguments, 5), [arguments[6]])
    return _emit_chosen(builder, source, arguments[2], target, choose)


def _describe_orders(
    typing_context: Any, bits: Any, start: Any, vectors: Any, flip: Any, floor: Any, orders: Any, used: Any
) -> Any:
    """Describe `orders_above` to numba."""
    numbers = types.int64, types.int64, types.int64, types.int64
    return types.int64(bits, *numbers, orders, types.int64), _emit_orders


def _plain_orders(
    bits: Keys, start: Number, vectors: Number, flip: Number, floor: Number, orders: Orders, used: Number
) -> Number:
    """Do the same in Python."""
    signed = bits[start : start + vectors * LANES].view(np.int32)
    own = signed ^ ((signed >> 31) & np.int32(_MAGNITUDE)) ^ np.int32(flip)
    found = own[(own > floor) & (own < INFINITY_ORDER)]
    orders[used : used + found.size] = found
    return found.size


# Within kernels: orders_above(bits, start, vectors, flip, floor, orders, used) appends the orders (inverted where flip is -1) of those of
# 16 * vectors patterns that are above a floor and finite, from entry `used` on, and returns how many they are; it may write over up to 15
# entries beyond.
orders_above: Any = emitted(_describe_orders, _plain_orders)
