"""The keys of the values of a block that are not zero, side by side: zeros then cost no counting."""

from typing import Any, Final

import llvmlite.binding as llvm  # type: ignore[import-untyped]  # comes with numba, ships no types
from llvmlite import ir

from calibrant.stats._jit import emitted, types
from calibrant.stats._lanes import I64, INTEGERS, LANES
from calibrant.stats._orders import Keys, Number

# Elsewhere the compiler takes a value at a time, which is slower than counting zeros.
HAS_COMPRESSION: Final = bool(llvm.get_host_cpu_features().get("avx512f", False))
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)
_MAGNITUDE: Final = 0x7FFFFFFF


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


def _emit_keys(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loop over vectors of sixteen."""
    source, target = (
        context.make_array(signature.args[place])(context, builder, arguments[place]).data for place in (0, 3)
    )
    shift = _spread(builder, builder.trunc(arguments[2], ir.IntType(32)))
    before = builder.basic_block
    head, body, done = (builder.append_basic_block(f"keys.{part}") for part in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, end = builder.phi(I64), builder.phi(I64)
    builder.cbranch(builder.icmp_signed("<", index, arguments[1]), body, done)
    builder.position_at_end(body)
    place = builder.gep(source, [builder.mul(index, ir.Constant(I64, LANES))])
    bits = builder.load(builder.bitcast(place, INTEGERS.as_pointer()), align=4)
    chosen = builder.icmp_signed("!=", builder.and_(bits, _repeated(_MAGNITUDE)), _repeated(0))
    keys = _compressed(builder, builder.lshr(bits, shift), chosen)
    builder.store(keys, builder.bitcast(builder.gep(target, [end]), INTEGERS.as_pointer()), align=4)
    found = builder.zext(builder.ctpop(builder.bitcast(chosen, ir.IntType(LANES))), I64)
    following = builder.add(index, ir.Constant(I64, 1)), builder.add(end, found)
    builder.branch(head)
    for phi, next_one in zip((index, end), following, strict=True):
        phi.add_incoming(ir.Constant(I64, 0), before)
        phi.add_incoming(next_one, body)
    builder.position_at_end(done)
    return end


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
