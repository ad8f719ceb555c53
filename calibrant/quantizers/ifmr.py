"""IFMR: an activation's range by search, AMCT's default (docs/algorithms.md 2).

The initial ends are order statistics; the upper end is then tried at multiples of itself and the one of least squared
rounding error wins. Only the upper end is searched: AMCT's documentation promises a search of the lower end too, but no
implementation has it. The loss clips values to the candidate's range and rounds them to multiples of its scale; it knows neither
offset nor code range. Losses are float64 and the first of equal ones wins; AMCT sums in float32 and may decide near ties otherwise.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from calibrant.quantizers import exact_search
from calibrant.quantizers.affine import Candidates, Fit, Float64Array, FloatArray, make_fit
from calibrant.quantizers.grid import Grid, candidate_grid, code_limits
from calibrant.quantizers.integrals import require_finite, squared_errors
from calibrant.quantizers.options import IfmrOptions
from calibrant.stats.histogram import Bins, LogLinearHistogram

__all__ = ["IfmrOptions", "fit_ifmr"]


def fit_ifmr(
    histogram: LogLinearHistogram,
    options: IfmrOptions,
    values: FloatArray | Iterable[FloatArray] | None = None,
) -> Fit:
    """Search the range of an activation.

    Without `values` losses are exact integrals over the histogram's bins. With them the answer is the brute-force answer on the
    raw values: candidates that are proven worse than another drop out, the rest are summed exactly (`exact_search`). The losses of
    dropped candidates stay those of the histogram, raised above the best one's where they are not, so `best` is the first minimum of all.

    Args:
        histogram: of all values.
        options: bits, offset, percentiles and search.
        values: the same values, of any shape: one float32 or float16 array, or something that gives such arrays each time it is
            iterated. They are read once or twice, once more for each percentile that the histogram's extremes do not reach.

    Returns:
        `loss` is the mean squared error; `candidates` has every multiple, and which of them were evaluated on `values`.

    Raises:
        EmptyDataError: the histogram is empty.
        DataError: it counted NaN or infinity, or `values` are not the values it counted.
        RangeError: a candidate's range overflows float32.

    Example:
        >>> x = np.float32([-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 8])
        >>> fit = fit_ifmr(LogLinearHistogram.from_values(x), IfmrOptions(max_percentile=1.0, min_percentile=1.0), values=x)
        >>> float(fit.scale), int(fit.offset), fit.candidates.best
        (0.03560784459114075, -100, 31)
    """
    require_finite(histogram)
    blocks = None if values is None else exact_search.blocks_of(values)
    low, high = _initial_range(histogram, options, blocks)
    grid = candidate_grid(low, high, options)
    bins = histogram.bins()
    losses, evaluated = histogram_losses(bins, grid), None
    if blocks is not None:
        losses, evaluated = exact_search.raw_losses(histogram, bins, grid, losses, blocks)
    return _choose(grid, losses / histogram.n, options.bits, evaluated)


def _initial_range(
    histogram: LogLinearHistogram, options: IfmrOptions, blocks: Iterable[FloatArray] | None
) -> tuple[np.float32, np.float32]:
    """Return the percentiles, widened to hold zero."""
    high = histogram.percentile(options.max_percentile, "max")
    low = histogram.percentile(options.min_percentile, "min")
    if blocks is not None and not histogram.percentile_is_exact(options.max_percentile, "max"):
        high = exact_search.order_statistic(histogram, blocks, options.max_percentile, "max")
    if blocks is not None and not histogram.percentile_is_exact(options.min_percentile, "min"):
        low = exact_search.order_statistic(histogram, blocks, options.min_percentile, "min")
    return np.float32(min(low, 0.0)), np.float32(max(high, 0.0))


def histogram_losses(bins: Bins, grid: Grid) -> Float64Array:
    """Return each candidate's summed squared error by integration over the bins."""
    lowest, highest = code_limits(grid)
    return squared_errors(bins, grid.scale.astype(np.float64), lowest, highest)


def _choose(grid: Grid, losses: Float64Array, bits: int, evaluated: npt.NDArray[np.bool_] | None) -> Fit:
    best = int(np.argmin(losses))
    ends = grid.clip_min.astype(np.float64), grid.clip_max.astype(np.float64)
    candidates = Candidates(*ends, grid.scale, grid.offset, losses, best, evaluated)
    return make_fit(
        grid.scale[best], grid.offset[best], bits, loss=losses[best], algorithm="ifmr", candidates=candidates
    )
