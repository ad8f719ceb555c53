"""One number about one layer in one view, with its interval over samples; and the rows of the table `sensitivity`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.export.metrics import Metric, Terms
from calibrant.stats.bootstrap import interval
from calibrant.stats.tables import SCHEMAS

View = Literal["statistics", "isolated", "whole"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A metric of a layer.

    Attributes:
        metric: its name.
        value: over all samples.
        low, high: 95 % bootstrap interval over samples, or None where samples have no value of their own.
        samples: how many samples it is about.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    samples: int


def over_samples(metric: str, terms: Floats, combine: Callable[[Floats], float]) -> Measurement:
    """Combine the terms of samples, shape (N, K), to a value and its interval."""
    low, high = interval(terms, combine)
    return Measurement(metric, combine(terms), _known(low), _known(high), len(terms))


def of_metric(metric: Metric, terms: Sequence[Terms]) -> Measurement:
    """Return a metric's value over samples with its interval."""
    return over_samples(metric.name, np.asarray(terms, np.float64), metric.combine)


def worst(metric: Metric, found: Iterable[Measurement]) -> Measurement:
    """Return the measurement of the output that fares worst; NaN is worse than any number."""
    sign = 1 if metric.higher_is_better else -1
    return min(found, key=lambda one: -np.inf if isnan(one.value) else sign * one.value)


def measurement_frame(
    fit: str, view: View, found: Mapping[int, Sequence[Measurement]], hashes: Mapping[int, str], data_hash: str
) -> pl.DataFrame:
    """Return rows of `sensitivity`.

    Args:
        fit: name of the fit.
        view: in which view they were measured.
        found: measurements by layer_id.
        hashes: of the scales, by layer_id.
        data_hash: of what they were measured on.
    """
    rows = [
        {
            "fit": fit,
            "layer_id": layer,
            "view": view,
            **asdict(one),
            "scales_hash": hashes[layer],
            "data_hash": data_hash,
        }
        for layer, measurements in found.items()
        for one in measurements
    ]
    return pl.DataFrame(rows, schema=SCHEMAS["sensitivity"])


def _known(end: float) -> float | None:
    return None if isnan(end) else end
