"""Bins of a log-linear histogram as intervals, and their counts shared out over bins of equal width."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrant.stats.paged_counts import FLOAT32_MANTISSA_BITS

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]


class Bins(NamedTuple):
    """The occupied bins as intervals, ascending in value; zero is a bin [0, 0] of its own.

    Attributes:
        lower: shape (B,), least value that the bin can hold.
        upper: shape (B,), greatest; the outermost bins end at the exact minimum and maximum.
        count: shape (B,), how many values lie in it.
    """

    lower: Float64Array
    upper: Float64Array
    count: Int64Array  # type: ignore[assignment]  # the tables' word; hides tuple.count, which nobody needs here


def bins_of(keys: KeyArray, counts: Int64Array, n_zero: int, mantissa_bits: int, extremes: tuple[float, float]) -> Bins:
    """Return occupied bins as intervals, ascending in value; the zeros are one bin [0, 0].

    Args:
        keys: shape (B,), ascending; zero has none.
        counts: shape (B,).
        n_zero: how many zeros.
        mantissa_bits: of the keys.
        extremes: exact minimum and maximum, where the outermost bins end.
    """
    sign = np.uint32(1 << (8 + mantissa_bits))
    split = int(np.searchsorted(keys, sign))
    ahead, behind = keys[:split], keys[split:][::-1] ^ sign
    zero = np.zeros(1 if n_zero else 0, np.float32)
    one = np.uint32(1)
    lower = np.concatenate([-_edge(behind + one, mantissa_bits), zero, _edge(ahead, mantissa_bits)], dtype=np.float64)
    upper = np.concatenate([-_edge(behind, mantissa_bits), zero, _edge(ahead + one, mantissa_bits)], dtype=np.float64)
    if lower.size:
        lower[0], upper[-1] = extremes
    return Bins(
        lower, upper, np.concatenate([counts[split:][::-1], np.full(zero.size, n_zero, np.int64), counts[:split]])
    )


def _edge(magnitude: KeyArray, mantissa_bits: int) -> npt.NDArray[np.float32]:
    """Return the value at the lower end of bins of positive sign.

    Above the last finite bin it is infinite; that bin is an outermost one, whose end is an exact extreme instead.
    """
    edges: npt.NDArray[np.float32] = (magnitude << np.uint32(FLOAT32_MANTISSA_BITS - mantissa_bits)).view(np.float32)
    return edges


def rebinned(bins: Bins, num_of_bins: int) -> Int64Array:
    """Return counts in equal-width bins over the range of these bins, as `LogLinearHistogram.rebin` describes.

    Args:
        bins: at least one.
        num_of_bins: at least 1.
    """
    low, high = float(bins.lower[0]), float(bins.upper[-1])
    n = int(bins.count.sum())
    if low == high:
        result = np.zeros(num_of_bins, np.int64)
        result[num_of_bins // 2] = n
        return result
    edges = low + np.arange(1, num_of_bins, dtype=np.float64) * ((high - low) / num_of_bins)
    return np.diff(_counts_below(bins, edges), prepend=0, append=n)


def _counts_below(bins: Bins, edges: Float64Array) -> Int64Array:
    """Return how many values lie below each edge, under uniform density inside a bin."""
    before = np.concatenate([[0], np.cumsum(bins.count)])
    cut = np.searchsorted(bins.upper, edges, side="left")
    cut = np.minimum(cut, bins.count.size - 1)
    lower, width = bins.lower[cut], bins.upper[cut] - bins.lower[cut]
    share = np.clip((edges - lower) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, (edges > lower).astype(np.float64))
    return (before[cut] + np.rint(share * bins.count[cut]).astype(np.int64)).astype(np.int64)
