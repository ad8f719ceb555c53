"""NUQ: the integer levels, of the 256 of int8, that represent a quantized weight best (docs/algorithms.md 4).

AMCT's own search is not published. Here ``num_of_iteration`` 0 places the centres at quantiles and refines them by one pass of
Lloyd's; 1 to 5 find the best centres there are, by dynamic programming over the 256-level histogram: the centres of an optimum
split the levels into intervals, and the best whole number for an interval is its rounded mean.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrant.errors import EmptyDataError, SchemaError
from calibrant.quantizers._kernels import best_intervals
from calibrant.quantizers.affine import Int64Array
from calibrant.quantizers.options import NuqOptions

__all__ = ["NuqFit", "NuqOptions", "fit_nuq", "to_centres"]

Int8Array = npt.NDArray[np.int8]

_LEVELS = np.arange(-128, 128, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class NuqFit:
    """The centres that a weight's codes are replaced by.

    Attributes:
        centres: int8, shape (num_steps,), ascending; the last is repeated where the codes have fewer levels.
        loss: summed squared distance between codes and their centres, in steps of a code.
        seeded_loss: the same of the centres at quantiles after one pass of Lloyd's.
        optimal_loss: the same of the best centres; at most `seeded_loss`.
        optimal: whether `centres` are the best ones.
    """

    centres: Int8Array
    loss: int
    seeded_loss: int
    optimal_loss: int
    optimal: bool


def fit_nuq(codes: npt.NDArray[np.integer], options: NuqOptions) -> NuqFit:
    """Choose the centres of a quantized weight.

    Args:
        codes: int8 codes of any shape, as ARQ gives them.
        options: how many centres, and how they are found.

    Raises:
        SchemaError: another dtype.
        EmptyDataError: no codes.

    Cost: one pass over the codes, then 256 * 256 / 2 * num_steps steps.

    Example:
        >>> codes = np.repeat(np.arange(40, dtype=np.int8), 2)
        >>> fit = fit_nuq(codes, NuqOptions(num_steps=32))
        >>> fit.loss, fit.centres[:4].tolist()
        (16, [0, 1, 2, 3])
    """
    counts = _histogram(codes)
    seeded, optimal = _seeded(counts, options.num_steps), _optimal(counts, options.num_steps)
    losses = _loss(counts, seeded), _loss(counts, optimal)
    best = options.num_of_iteration > 0
    chosen = optimal if best else seeded
    padded = np.pad(chosen, (0, options.num_steps - chosen.size), mode="edge").astype(np.int8)
    return NuqFit(padded, losses[best], *losses, best)


def to_centres(codes: npt.NDArray[np.integer], centres: npt.NDArray[np.integer]) -> Int8Array:
    """Replace codes by their nearest centres, the lower of two that are equally near.

    Args:
        codes: whole numbers of any shape.
        centres: ascending.

    Example:
        >>> to_centres(np.int8([-128, 1, 2, 100]), np.int8([0, 2, 2])).tolist()
        [0, 0, 2, 2]
    """
    own = np.unique(np.asarray(centres, np.int64))
    place = np.searchsorted(own[:-1] + own[1:], 2 * np.asarray(codes, np.int64), side="left")
    return own[place].astype(np.int8)


def _histogram(codes: npt.NDArray[np.integer]) -> Int64Array:
    array = np.asarray(codes)
    if array.dtype != np.int8:
        message = f"codes of dtype {array.dtype}: int8 was expected; quantize the weight first"
        raise SchemaError(message)
    if array.size == 0:
        message = f"codes of shape {array.shape}: there are none"
        raise EmptyDataError(message)
    return np.bincount(array.reshape(-1).view(np.uint8) ^ np.uint8(128), minlength=256).astype(np.int64)


def _seeded(counts: Int64Array, steps: int) -> Int64Array:
    """Centres at the middles of equal shares of the codes, each then moved to the mean of the codes nearest to it."""
    middles = (2 * np.arange(steps) + 1) * counts.sum() / (2 * steps)
    seeds = np.unique(_LEVELS[np.searchsorted(np.cumsum(counts), middles, side="left")])
    place = np.searchsorted(seeds[:-1] + seeds[1:], 2 * _LEVELS, side="left")
    weights = np.bincount(place, counts, seeds.size)
    sums = np.bincount(place, counts * _LEVELS, seeds.size)
    return np.unique(np.rint(sums / weights).astype(np.int64))  # a seed is a level that occurs, so no weight is 0


def _optimal(counts: Int64Array, steps: int) -> Int64Array:
    present = counts > 0
    return best_intervals(_LEVELS[present], counts[present], min(steps, int(present.sum())))


def _loss(counts: Int64Array, centres: Int64Array) -> int:
    distance = _LEVELS - to_centres(_LEVELS, centres)
    return int(counts @ distance**2)
