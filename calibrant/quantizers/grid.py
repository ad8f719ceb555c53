"""The candidates of IFMR: multiples of the upper end, with the scale and offset that each would give (docs/algorithms.md 2)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrant.errors import RangeError
from calibrant.quantizers.affine import (
    Float32Array,
    Float64Array,
    Int32Array,
    asymmetric_offset,
    code_range,
    floor_scale,
)
from calibrant.quantizers.options import IfmrOptions


class Grid(NamedTuple):
    """The candidates before they are judged; each array has shape (K,)."""

    clip_min: Float32Array
    clip_max: Float32Array
    scale: Float32Array
    offset: Int32Array

    def take(self, chosen: npt.NDArray[np.intp]) -> "Grid":
        """Return these candidates alone."""
        return Grid(self.clip_min[chosen], self.clip_max[chosen], self.scale[chosen], self.offset[chosen])


def candidate_grid(low: np.float32, high: np.float32, options: IfmrOptions) -> Grid:
    """Return the candidates for an initial range that holds zero.

    Multiples are ``float32(start + i * step)`` computed in float64, everything after that is float32, as in AMCT.

    Raises:
        RangeError: a candidate overflows float32.

    Example:
        >>> candidate_grid(np.float32(-1), np.float32(8), IfmrOptions()).clip_max.size
        61
    """
    start, _ = options.search_range
    multiples = (start + np.arange(options.number_of_candidates()) * options.search_step).astype(np.float32)
    with np.errstate(over="ignore"):
        grid = (
            _asymmetric_grid(low, high * multiples, options.bits)
            if options.asymmetric
            else _symmetric_grid(low, high, multiples, options.bits)
        )
    if not np.all(np.isfinite(grid.clip_max)):
        message = f"range [{low}, {high}]: a candidate overflows float32; check the data or lower search_range"
        raise RangeError(message)
    return grid


def _asymmetric_grid(low: np.float32, clip_max: Float32Array, bits: int) -> Grid:
    least, greatest = code_range(bits)
    scale = floor_scale((clip_max - low) / np.float32(greatest - least))
    clip_min = np.full(clip_max.size, low, np.float32)
    return Grid(clip_min, clip_max, scale, asymmetric_offset(clip_min, scale, bits))


def _symmetric_grid(low: np.float32, high: np.float32, multiples: Float32Array, bits: int) -> Grid:
    least, greatest = code_range(bits)
    steps = -least if abs(high) < abs(low) else greatest
    clip_max = multiples * max(abs(low), abs(high))
    scale = floor_scale(clip_max / np.float32(steps))
    return Grid(-clip_max, clip_max, scale, np.zeros(scale.size, np.int32))


def code_limits(grid: Grid) -> tuple[Float64Array, Float64Array]:
    """Return the multiples of its scale to which each candidate rounds its ends; rounding is monotone, so they clip as the ends do."""
    lowest, highest = np.rint(grid.clip_min / grid.scale), np.rint(grid.clip_max / grid.scale)
    return lowest.astype(np.float64), highest.astype(np.float64)
