"""How kernels are compiled: one policy, in one place, for the whole package.

Kernels are serial and release the GIL; threads are the caller's. There is no ``parallel=True`` (two Python threads in one
parallel kernel abort the process under numba's workqueue layer) and no fastmath (the order of float additions is part of the result).
Compiled code is cached on disk where a place is writable. ``NUMBA_DISABLE_JIT=1`` runs every kernel as plain Python.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, ships no types
from numba.core import cgutils
from numba.extending import intrinsic

types: Any = numba.types
P = ParamSpec("P")
R = TypeVar("R")


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "numba"


def _cache_folders() -> tuple[Path, ...]:
    """Return the places that numba tries for compiled code, in its order."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured:
        return (Path(configured),)
    return (Path(__file__).parent / "__pycache__", _user_cache())


@cache
def cache_is_writable() -> bool:
    """Return whether compiled kernels can be kept on disk; where not, each process compiles them anew.

    Example:
        >>> cache_is_writable() in (True, False)
        True
    """
    return any(_is_writable(folder) for folder in _cache_folders())


@cache
def sources_stamp() -> str:
    """Return a hash of all modules of kernels; nothing where the package does not lie in a folder.

    numba tells whether compiled code is up to date by the module that it comes from, but what it calls from other modules is
    compiled into it: after an update it would go on with the old ones.

    Example:
        >>> len(sources_stamp())
        12
    """
    package = Path(__file__).parent.parent
    sources = sorted(path for room in ("quantizers", "stats") for path in (package / room).glob("_[a-z]*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12] if sources else ""


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on first use: nogil, serial, IEEE float order, cached where possible until any kernel's source changes.

    Args:
        function: module-level; takes plain arrays and scalars.

    Example:
        >>> @kernel
        ... def twice(x):
        ...     return 2 * x
        >>> twice(4)
        8
    """
    if cache_is_writable():
        function.__qualname__ += f"-{sources_stamp()}"  # part of the name of the cache's files
        try:
            return cast("Callable[P, R]", numba.njit(nogil=True, cache=True, error_model="numpy")(function))
        except RuntimeError:  # numba found no place after all: source in a zip, or a console
            pass
    return cast("Callable[P, R]", numba.njit(nogil=True, error_model="numpy")(function))


def _emit_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit ``llvm.prefetch`` (read, keep in all caches, data) of one array element."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    address = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte)
    function = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    instruction = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, function, "llvm.prefetch.p0"
    )
    builder.call(instruction, [address, number(0), number(3), number(1)])
    return context.get_dummy_value()


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Describe `prefetch` to numba: ``(array, index) -> None``."""
    return numba.types.void(array, numba.types.int64), _emit_prefetch


def _no_prefetch(array: Any, index: Any) -> None:
    """Stand in for `prefetch` where kernels run as plain Python."""


def emitted(describe: Callable[..., Any], plain: Callable[..., Any]) -> Any:
    """Return a function for kernels whose machine code is written out, since no loop would compile to it.

    Args:
        describe: as numba's `intrinsic` takes it: ``(typing context, argument types) -> (signature, emitter)``.
        plain: the same in Python, used where kernels run as plain Python.
    """
    return plain if numba.config.DISABLE_JIT else intrinsic(describe)  # type: ignore[attr-defined]


# Within kernels: prefetch(array, index) asks for the memory of an element of a contiguous array before it is needed.
prefetch: Any = emitted(_prefetch, _no_prefetch)


def _emit_fused(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit ``llvm.fma``: one instruction where the machine has it, a library call elsewhere; rounded once either way."""
    return builder.fma(*arguments)


def _fused(typing_context: Any, factor: Any, other: Any, addend: Any) -> Any:
    """Describe `fused_multiply_add` to numba: three numbers of one float type -> one of it."""
    return factor(factor, factor, factor), _emit_fused


def _fused_in_python(factor: Any, other: Any, addend: Any) -> Any:
    """Stand in for `fused_multiply_add` on float32, whose products are exact in float64."""
    return type(factor)(float(factor) * float(other) + float(addend))


# Within kernels: factor * other + addend, rounded once, for three numbers of one float type.
fused_multiply_add: Any = emitted(_fused, _fused_in_python)
