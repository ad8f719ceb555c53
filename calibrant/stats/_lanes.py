"""A run of float32 values folded in sixteen lanes: sums whose order is fixed and that a vector unit adds.

Value i of a run goes to lane ``i % 16``; a lane adds in order, in float64; then the upper half of the lanes is added to the lower half
until one is left. The loop is written out, because compilers keep the order of additions and so cannot make vectors of an ordinary one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import llvmlite.binding as llvm  # type: ignore[import-untyped]  # comes with numba, ships no types
import numpy as np
from llvmlite import ir

from calibrant.stats._jit import emitted, types
from calibrant.stats._orders import INFINITY_ORDER, Number, Values

LANES: Final = 16
_FEATURES: Final = llvm.get_host_cpu_features()
# Elsewhere it would be a call of the C library.
_HAS_FUSED: Final = any(_FEATURES.get(unit, False) for unit in ("fma", "neon"))
_MAGNITUDE: Final = 0x7FFFFFFF
_F32, _F64, _I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_SINGLES, DOUBLES, INTEGERS = (ir.VectorType(kind, LANES) for kind in (_F32, _F64, _I32))
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)

Combine = Callable[[Any, Any], Any]
Add = Callable[
    [Any, Sequence[Any], Any, Any | None], list[Any]
]  # a vector's number, what is folded, its values, which are valid

Step = Callable[
    [Any, Sequence[Any], Any, Any | None], list[Any]
]  # the function's builder, what is folded, values, which are valid


def repeated(value: int) -> Any:
    return ir.Constant(INTEGERS, [value] * LANES)


def start_vectors() -> list[Any]:
    zero = ir.Constant(DOUBLES, [0.0] * LANES)
    return [zero, zero, repeated(INFINITY_ORDER), repeated(~INFINITY_ORDER), *(repeated(0),) * 3]


def with_square(builder: Any, sums: Any, wide: Any) -> Any:
    """Add the squares of float32 values, which are exact in float64: fused or not, the sum is the same."""
    if not _HAS_FUSED:
        return builder.fadd(sums, builder.fmul(wide, wide))
    name, kind = f"llvm.fma.v{LANES}f64", ir.FunctionType(DOUBLES, [DOUBLES] * 3)
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [wide, wide, sums])


def any_step(builder: Any, folded: Sequence[Any], values: Any, valid: Any | None) -> list[Any]:
    """Add sixteen values, or the valid ones of them; what is not finite counts for no sum and no extreme."""
    magnitude, order = _magnitude_and_order(builder, values)
    finite = builder.icmp_signed("<", magnitude, repeated(INFINITY_ORDER))
    tests = [builder.icmp_signed(sign, magnitude, repeated(bound)) for sign, bound in _COUNTED]
    if valid is not None:
        finite, tests = builder.and_(finite, valid), [builder.and_(test, valid) for test in tests]
    wide = builder.fpext(builder.select(finite, values, ir.Constant(_SINGLES, [0.0] * LANES)), DOUBLES)
    below = builder.and_(finite, builder.icmp_signed("<", order, folded[2]))
    above = builder.and_(finite, builder.icmp_signed(">", order, folded[3]))
    return [
        builder.fadd(folded[0], wide),
        with_square(builder, folded[1], wide),
        builder.select(below, order, folded[2]),
        builder.select(above, order, folded[3]),
        *(builder.sub(old, builder.sext(test, INTEGERS)) for old, test in zip(folded[4:], tests, strict=True)),
    ]


def finite_step(builder: Any, folded: Sequence[Any], values: Any, valid: Any | None) -> list[Any]:
    """Do the same with half the work where all values are finite; else a square is not finite, and then never again."""
    magnitude, order = _magnitude_and_order(builder, values)
    tests = [
        builder.icmp_signed("<", order, folded[2]),
        builder.icmp_signed(">", order, folded[3]),
        builder.icmp_signed("==", magnitude, repeated(0)),
    ]
    below, above, zero = tests if valid is None else [builder.and_(test, valid) for test in tests]
    wide = builder.fpext(values, DOUBLES)
    return [
        builder.fadd(folded[0], wide),
        with_square(builder, folded[1], wide),
        builder.select(below, order, folded[2]),
        builder.select(above, order, folded[3]),
        builder.sub(folded[4], builder.sext(zero, INTEGERS)),
        *folded[5:],
    ]


def _magnitude_and_order(builder: Any, values: Any) -> tuple[Any, Any]:
    bits = builder.bitcast(values, INTEGERS)
    magnitude = builder.and_(bits, repeated(_MAGNITUDE))
    return magnitude, builder.xor(bits, builder.and_(builder.ashr(bits, repeated(31)), repeated(_MAGNITUDE)))


_COUNTED: Final = (("==", 0), (">", INFINITY_ORDER), ("==", INFINITY_ORDER))  # tests of zero, NaN, infinity


def _load_whole(builder: Any, address: Any) -> Any:
    loaded = builder.load(builder.bitcast(address, _SINGLES.as_pointer()))
    loaded.align = 4
    return loaded


def _load_some(builder: Any, address: Any, count: Any) -> tuple[Any, Any]:
    """Load the first `count` of sixteen values without touching the memory of the others."""
    positions = ir.Constant(INTEGERS, list(range(LANES)))
    first = builder.insert_element(
        ir.Constant(INTEGERS, ir.Undefined), builder.trunc(count, _I32), ir.Constant(_I32, 0)
    )
    spread = builder.shuffle_vector(first, ir.Constant(INTEGERS, ir.Undefined), repeated(0))
    valid = builder.icmp_signed("<", positions, spread)
    pointer = _SINGLES.as_pointer()
    function = ir.FunctionType(_SINGLES, [pointer, _I32, _MASK, _SINGLES])
    name = f"llvm.masked.load.v{LANES}f32.p0"
    load = builder.module.globals.get(name) or ir.Function(builder.module, function, name)
    zero = ir.Constant(_SINGLES, [0.0] * LANES)
    return builder.call(load, [builder.bitcast(address, pointer), ir.Constant(_I32, 4), valid, zero]), valid


def folded_vectors(builder: Any, base: Any, count: Any, starts: Sequence[Any], add: Add) -> list[Any]:
    """Emit the fold of `count` values: a loop over whole vectors, and the last, shorter one, where there is one.

    Args:
        builder: of the function.
        base: pointer to the values.
        count: of values.
        starts: what the fold carries in registers, before the first vector.
        add: emits the addition of a vector: takes its number, what is carried, the values and which of them are valid (None for
            all); returns what is carried on.
    """
    whole, rest = (op(count, ir.Constant(I64, LANES)) for op in (builder.sdiv, builder.srem))
    return _with_rest(builder, base, whole, rest, _looped(builder, base, whole, starts, add), add)


def _looped(builder: Any, base: Any, whole: Any, starts: Sequence[Any], add: Add) -> list[Any]:
    """Emit the loop over whole vectors; return what it folded."""
    before = builder.basic_block
    head, body, done = (builder.append_basic_block(f"lanes.{part}") for part in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, folded = builder.phi(I64), [builder.phi(start.type) for start in starts]
    builder.cbranch(builder.icmp_signed("<", index, whole), body, done)
    builder.position_at_end(body)
    values = _load_whole(builder, _vector(builder, base, index))
    added = add(index, folded, values, None)
    following = builder.add(index, ir.Constant(I64, 1))
    builder.branch(head)
    for phi, first, next_one in zip((index, *folded), (ir.Constant(I64, 0), *starts), (following, *added), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_one, body)
    builder.position_at_end(done)
    return folded


def _with_rest(builder: Any, base: Any, whole: Any, rest: Any, folded: Sequence[Any], add: Add) -> list[Any]:
    """Emit the last, shorter vector, where there is one."""
    before = builder.basic_block
    tail, done = (builder.append_basic_block(f"lanes.{part}") for part in ("tail", "end"))
    builder.cbranch(builder.icmp_signed(">", rest, ir.Constant(I64, 0)), tail, done)
    builder.position_at_end(tail)
    added = add(whole, folded, *_load_some(builder, _vector(builder, base, whole), rest))
    builder.branch(done)
    builder.position_at_end(done)
    result = [builder.phi(old.type) for old in folded]
    for phi, old, new in zip(result, folded, added, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(new, tail)
    return result


def _vector(builder: Any, base: Any, index: Any) -> Any:
    return builder.gep(base, [builder.mul(index, ir.Constant(I64, LANES))])


def _halved(builder: Any, lanes: Any, combine: Combine) -> Any:
    """Combine the upper half of the lanes with the lower half until one is left."""
    width = LANES // 2
    while width:
        chosen = [ir.Constant(ir.VectorType(_I32, width), list(range(start, start + width))) for start in (0, width)]
        lower, upper = (builder.shuffle_vector(lanes, ir.Constant(lanes.type, ir.Undefined), part) for part in chosen)
        lanes = combine(lower, upper)
        width //= 2
    return builder.extract_element(lanes, ir.Constant(_I32, 0))


def _emit_fold(step: Step, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the fold of ``values[start : start + count]``."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    base, count = builder.gep(array.data, [arguments[1]]), arguments[2]

    def add(_: Any, folded: Sequence[Any], values: Any, valid: Any | None) -> list[Any]:
        return step(builder, folded, values, valid)

    folded = folded_vectors(builder, base, count, start_vectors(), add)

    def chosen(sign: str) -> Combine:
        return lambda one, two: builder.select(builder.icmp_signed(sign, one, two), one, two)

    combines = (builder.fadd, builder.fadd, chosen("<"), chosen(">"), *(builder.add,) * 3)
    results = [_halved(builder, lanes, combine) for lanes, combine in zip(folded, combines, strict=True)]
    return context.make_tuple(builder, signature.return_type, results)


def _describe_fold(typing_context: Any, values: Any, start: Any, count: Any) -> Any:
    """Describe `fold_run` to numba."""
    return _signature(values), partial(_emit_fold, any_step)


def _describe_finite_fold(typing_context: Any, values: Any, start: Any, count: Any) -> Any:
    """Describe `fold_finite_run` to numba."""
    return _signature(values), partial(_emit_fold, finite_step)


def _signature(values: Any) -> Any:
    result = types.Tuple((types.float64, types.float64, *(types.int32,) * 5))
    return result(values, types.int64, types.int64)


def _plain_fold(values: Values, start: int, count: int) -> tuple[Number, ...]:
    """Fold a run as plain Python does."""
    run = values[start : start + count]
    bits = run.view(np.int32)
    orders = (bits ^ ((bits >> 31) & np.int32(_MAGNITUDE)))[np.isfinite(run)]
    padded = np.zeros((-(-count // LANES), LANES))
    padded.reshape(-1)[:count] = np.where(np.isfinite(run), run, np.float32(0))
    sums, squares = np.zeros(LANES), np.zeros(LANES)
    for row in padded:
        sums, squares = sums + row, squares + row * row
    while sums.size > 1:
        half = sums.size // 2
        sums, squares = sums[:half] + sums[half:], squares[:half] + squares[half:]
    least, greatest = orders.min(initial=INFINITY_ORDER), orders.max(initial=~INFINITY_ORDER)
    counts = (run == 0).sum(), np.isnan(run).sum(), np.isinf(run).sum()
    return sums[0], squares[0], np.int32(least), np.int32(greatest), *(np.int32(count) for count in counts)


# Within kernels: fold_run(values, start, count) of a contiguous flat array returns the sum and sum of squares of the finite values,
# their least and greatest order (those of +inf and -inf where there is none), and the zeros, NaN and infinities; fewer than 2**31 of each.
fold_run: Any = emitted(_describe_fold, _plain_fold)

# Within kernels: fold_finite_run does the same in less time where all values are finite; where the sum of squares that it returns is not
# finite, what it returns means nothing else.
fold_finite_run: Any = emitted(_describe_finite_fold, _plain_fold)
