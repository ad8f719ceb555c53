"""Arrays of the kinds that activations are, and of those that a counting kernel may stumble over."""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

F32 = np.float32
Array = npt.NDArray[np.floating]


@lru_cache(maxsize=2)
def values_of(kind: str, count: int) -> Array:
    """Return `count` values of a kind; equal calls give equal arrays."""
    return KINDS[kind](np.random.default_rng(7), count)


def _gaussian(draw: np.random.Generator, count: int) -> Array:
    return draw.standard_normal(count, dtype=F32)


def _relu(draw: np.random.Generator, count: int) -> Array:
    values = _gaussian(draw, count)
    values[draw.random(count, dtype=F32) < F32(0.9)] = F32(0)
    return np.abs(values, out=values)


def _blocks(draw: np.random.Generator, count: int) -> Array:
    return np.repeat(draw.standard_normal(-(-count // 1000), dtype=F32), 1000)[:count]


KINDS: Final = {
    "gaussian": _gaussian,
    "uniform": lambda draw, count: draw.random(count, dtype=F32),
    "uniform bits": lambda draw, count: draw.integers(0, 1 << 32, count, np.uint32).view(F32),
    "one constant": lambda draw, count: np.full(count, 2.5, F32),
    "two alternating constants": lambda draw, count: np.resize(np.array([1.5, -0.25], F32), count),
    "blocks of constants": _blocks,
    "relu, 90 % zeros": _relu,
    "float16": lambda draw, count: _gaussian(draw, count).astype(np.float16),
}
