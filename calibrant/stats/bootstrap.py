"""Confidence intervals over samples by the percentile bootstrap (Efron 1979): draw as many samples again, with replacement."""

from collections.abc import Callable, Iterator
from math import ceil, floor, nan
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from calibrant.errors import ConfigError, EmptyDataError

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], float]

LEVEL: Final = 0.95
RESAMPLES: Final = 1000
_BLOCK: Final = 1 << 16  # places that are drawn at a time


def interval(
    values: npt.NDArray[Any],
    statistic: Literal["mean"] | Statistic = "mean",
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the bootstrap interval of a statistic of independent samples.

    Deterministic: equal values, seed and numpy give equal intervals. The ends are order statistics of the resampled values, so that
    infinite ones stay what they are. Where all samples are equal the interval is one point, which says that the data shows no
    spread, not that there is none.

    Args:
        values: shape (N,), or (N, K) where a statistic needs K numbers a sample, which are drawn together.
        statistic: ``mean``, or a function of a resample, of the shape of `values`, to a number.
        level: share of intervals that hold the true value, between 0 and 1.
        resamples: how many times the samples are drawn again, at least 1.
        seed: of the random draws.

    Returns:
        (low, high); both NaN where one sample tells nothing of the spread, or where a resample gives NaN.

    Raises:
        EmptyDataError: no values.
        ConfigError: `level` or `resamples` out of range.

    Cost: O(N resamples).

    Example:
        >>> interval(np.arange(100.0))
        (43.79, 54.97)
    """
    if not len(values):
        message = "bootstrap: no samples; an interval needs at least two"
        raise EmptyDataError(message)
    if not 0 < level < 1 or resamples < 1:
        message = (
            f"bootstrap: level {level}, resamples {resamples}; expected a level between 0 and 1 and at least 1 resample"
        )
        raise ConfigError(message)
    if len(values) == 1:
        return nan, nan
    return _percentiles(_resampled(np.asarray(values, np.float64), statistic, resamples, seed), level)


def _resampled(values: Floats, statistic: Literal["mean"] | Statistic, resamples: int, seed: int) -> Floats:
    draws = _draws(len(values), resamples, seed)
    with np.errstate(all="ignore"):  # infinite values are allowed, and show in the interval
        if statistic == "mean" and values.ndim == 1:
            return np.sort(np.concatenate([values[block].mean(axis=1) for block in draws]))
        compute: Statistic = (lambda part: float(np.mean(part))) if statistic == "mean" else statistic
        return np.sort([compute(values[draw]) for block in draws for draw in block])


def _draws(count: int, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the places of the samples of each resample, many resamples at a time while they are short."""
    generator, rows = np.random.default_rng(seed), max(1, _BLOCK // count)
    for start in range(0, resamples, rows):
        yield generator.integers(0, count, (min(rows, resamples - start), count))


def _percentiles(found: Floats, level: float) -> tuple[float, float]:
    if np.isnan(found).any():
        return nan, nan
    tail, last = (1 - level) / 2, len(found) - 1
    return float(found[floor(tail * last)]), float(found[ceil((1 - tail) * last)])
