"""The inner loops over bins as intervals: one pass, no array that is not part of the result."""

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]

PART = 256  # edges that are made as patterns before they are read as floats


@kernel
def fill_edges(keys: KeyArray, shift: int, near: Float64Array, far: Float64Array, *, negative: bool) -> None:
    """Write the end towards zero and the other end of bins of one sign; of negative ones in reverse order.

    `keys` are without their sign.
    """
    patterns = np.empty(PART, np.uint32)
    values = patterns.view(np.float32)
    for start in range(0, keys.size, PART):
        part = keys[start : start + PART]
        for beyond in range(2):
            edges = far if beyond else near
            for i in range(part.size):
                patterns[i] = (part[i] + beyond) << shift
            for i in range(part.size):
                if negative:
                    edges[keys.size - 1 - start - i] = -values[i]
                else:
                    edges[start + i] = values[i]


@kernel
def counts_below(lower: Float64Array, upper: Float64Array, count: Int64Array, edges: Float64Array) -> Int64Array:
    """Return how many values lie below each of ascending edges, under uniform density inside a bin, rounded half to even."""
    below, at, before = np.empty(edges.size, np.int64), 0, 0
    for e in range(edges.size):
        while at < lower.size - 1 and upper[at] < edges[e]:
            before += count[at]
            at += 1
        width, past = upper[at] - lower[at], edges[e] - lower[at]
        share = 1.0 if past > 0.0 else 0.0
        if width > 0.0:
            share = min(max(past / width, 0.0), 1.0)
        below[e] = before + np.int64(np.rint(share * count[at]))
    return below
