"""Bins of a log-linear histogram as intervals, and their counts shared out over bins of equal width."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrant.stats._bin_kernels import counts_below, fill_edges
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
    sign, shift = np.uint32(1 << (8 + mantissa_bits)), FLOAT32_MANTISSA_BITS - mantissa_bits
    split = int(np.searchsorted(keys, sign))
    negative, zeros = keys.size - split, 1 if n_zero else 0
    lower, upper = np.zeros(keys.size + zeros), np.zeros(keys.size + zeros)
    # Above the last finite bin the edge is infinite; that bin is an outermost one, whose end is an exact extreme instead.
    fill_edges(keys[split:] ^ sign, shift, upper[:negative], lower[:negative], negative=True)
    fill_edges(keys[:split], shift, lower[negative + zeros :], upper[negative + zeros :], negative=False)
    if lower.size:
        lower[0], upper[-1] = extremes
    counted = np.concatenate([counts[split:][::-1], np.full(zeros, n_zero, np.int64), counts[:split]])
    return Bins(lower, upper, counted)


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
    return np.diff(counts_below(*bins, edges), prepend=0, append=n)
