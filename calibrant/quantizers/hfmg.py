"""HFMG: an activation's range from a histogram of equal bins (docs/algorithms.md 3).

Both ends walk inwards, and each position is judged by the squared distance to the cell centres, bins outside included. There is one
histogram over the exact range of all data, cut from the log-linear one: AMCT's batch-by-batch merge depends on the path. Index
arithmetic is signed: AMCT's C++ library lets it wrap, which makes clipping on the left free.
"""

from dataclasses import dataclass

import numpy as np

from calibrant.errors import EmptyDataError
from calibrant.quantizers._kernels import LANES, narrow_cell_losses, shrinking_ranges, wide_cell_losses
from calibrant.quantizers.affine import (
    FLT_EPSILON,
    Candidates,
    Fit,
    Float64Array,
    Int64Array,
    make_fit,
    range_parameters,
)
from calibrant.quantizers.integrals import require_finite
from calibrant.quantizers.options import HfmgOptions
from calibrant.stats.histogram import LogLinearHistogram

__all__ = ["HfmgOptions", "fit_hfmg"]

STEPS = 100_000  # the walk gathers at least total / STEPS values a turn


@dataclass(frozen=True, eq=False)
class EqualBins:
    """Counts in bins of equal width.

    Attributes:
        counts: shape (B,), int64; bin j covers ``[low + j * width, low + (j + 1) * width)``.
        low: lower end of the first bin.
        width: of each bin; 0 where all values are equal.
    """

    counts: Int64Array
    low: float
    width: float


def fit_hfmg(histogram: LogLinearHistogram, options: HfmgOptions) -> Fit:
    """Choose an activation's range by the walk over equal bins.

    Returns:
        `loss` is the summed squared error; `candidates` has every position of the walk.

    Raises:
        EmptyDataError: the histogram is empty.
        DataError: it counted NaN or infinity.
        RangeError: a candidate's range overflows float32.

    Cost: a few milliseconds.

    Example:
        >>> fit = fit_hfmg(LogLinearHistogram.from_values(np.full(9, 2, np.float32)), HfmgOptions())
        >>> round(float(fit.scale) * 255, 6), int(fit.offset)
        (2.0, -128)
    """
    require_finite(histogram)
    low, high = histogram.minimum, histogram.maximum
    bins = EqualBins(histogram.rebin(options.num_of_bins), low, (high - low) / options.num_of_bins)
    return fit_equal_bins(bins, options.bits, asymmetric=options.asymmetric)


def fit_equal_bins(bins: EqualBins, bits: int, *, asymmetric: bool) -> Fit:
    """Choose the range of a histogram that has equal bins already, with any number of them.

    Raises:
        EmptyDataError: no bin, or no count in any.
        RangeError: a candidate's range overflows float32.

    Example:
        >>> counts = np.array([1, 0, 0, 0, 8, 4, 4, 5])
        >>> fit = fit_equal_bins(EqualBins(counts, -8.0, 2.0), 8, asymmetric=True)
        >>> fit.candidates.clip_max.tolist(), round(fit.loss, 6), int(fit.offset)
        ([6.0, 4.0, 2.0, 0.0, -4.0], 6.948065, 18)
    """
    lefts, rights = walk(bins.counts)
    losses = range_losses(bins, lefts, rights, bits)
    clip_min = np.asarray(bins.low + lefts * bins.width, np.float64)
    clip_max = np.asarray(bins.low + (rights + 1) * bins.width, np.float64)
    scale, offset = range_parameters(
        clip_min.astype(np.float32), clip_max.astype(np.float32), bits, asymmetric=asymmetric
    )
    best = int(np.argmin(losses))
    candidates = Candidates(clip_min, clip_max, scale, offset, losses, best)
    return make_fit(scale[best], offset[best], bits, loss=losses[best], algorithm="hfmg", candidates=candidates)


def walk(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the first and last bin of every candidate, in order.

    Each turn both ends look inwards until they have gathered ``ceil(total / 100000)`` values; the end that has to go further
    moves there, the right one on ties, until a quarter of the bins is left. As in AMCT, the full range is never among them.

    Raises:
        EmptyDataError: no bin, or no count in any.

    Example:
        >>> lefts, rights = walk(np.array([1, 1, 1, 60000, 100000, 80000, 59000, 2]))
        >>> lefts.tolist(), rights.tolist()
        ([3, 3], [7, 5])
    """
    prefix = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    total = int(prefix[-1])
    if total == 0:
        message = f"histogram of {len(counts)} equal bins holds no values; nothing to fit"
        raise EmptyDataError(message)
    return shrinking_ranges(prefix, max(-(-total // STEPS), 1), -(-len(counts) // 4))


def range_losses(bins: EqualBins, lefts: Int64Array, rights: Int64Array, bits: int) -> Float64Array:
    """Return each candidate's summed squared distance to the centre of the nearest of ``2**bits`` cells over its bins.

    Values spread evenly inside a bin; those outside the range count towards its outermost cells. A candidate whose cells
    are narrower than FLT_EPSILON has loss 0, as in AMCT.
    """
    cells = 1 << bits
    counts = bins.counts.astype(np.float64)
    if cells <= counts.size:
        losses = wide_cell_losses(counts, _moments(counts), lefts, rights, cells)
    else:
        losses = narrow_cell_losses(_drops(counts), lefts, rights, cells)
    cell_width = bins.width * (rights - lefts + 1) / cells
    scaled: Float64Array = np.where(cell_width < FLT_EPSILON, 0.0, losses * bins.width**2)
    return scaled


def _moments(counts: Float64Array) -> Float64Array:
    """Return, at each bin border, the integrals of p, t p and t² p and the second integral of p (shape (B + 1, 4))."""
    j = np.arange(counts.size, dtype=np.float64)
    before = np.cumsum(counts) - counts
    pieces = np.stack([counts, counts * (j + 0.5), counts * (j * j + j + 1 / 3), before + counts / 2], axis=1)
    return np.concatenate([np.zeros((1, 4)), np.cumsum(pieces, axis=0)])


def _drops(counts: Float64Array) -> Float64Array:
    """Return how much the density falls at each bin border, filled up with zeros for the kernel."""
    drops = -np.diff(counts, prepend=0.0, append=0.0)
    return np.concatenate([drops, np.zeros(-drops.size % LANES)])
