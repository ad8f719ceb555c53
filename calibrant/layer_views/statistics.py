"""What a run's tables alone say of each quantized layer: no inference (formulas: docs/sensitivity.md)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf, log10
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.export.metrics import decibels
from calibrant.fitting.run_statistics import RunStatistics
from calibrant.layer_views.measurement import Floats, Measurement, over_samples
from calibrant.stats.histogram import Bins
from calibrant.stats.run import Run

QUANTILE: Final = 0.999  # of the magnitudes, against which the greatest one is held
_NONE: Final = -1  # no tensor has that number


@dataclass(frozen=True)
class LayerTables:
    """The rows that speak of one layer.

    Attributes:
        data: its row of `quant_params` with role data, or None where the weight alone is quantized.
        weight: its rows with role weight.
        weight_rows: its rows of `weights`.
        samples: rows of `samples` of the tensor that it reads.
        channels: rows of `channels` of that tensor.
        factors: of its balancing, shape (Cin,); empty where it is not balanced.
        quantile: what 99.9 % of the magnitudes of its data above 0 do not exceed; None where there are none, or it is not known.
        count: samples of the run.
    """

    data: dict[str, float] | None
    weight: pl.DataFrame
    weight_rows: pl.DataFrame
    samples: pl.DataFrame
    channels: pl.DataFrame
    factors: npt.NDArray[np.float32]
    quantile: float | None
    count: int


def measure_statistics(run: Run, fit: str, layers: Collection[int]) -> dict[int, list[Measurement]]:
    """Return the measurements of layers, by layer_id.

    Args:
        run: a complete run.
        fit: name of the fit.
        layers: their layer_ids.
    """
    reader = _Reader(run, fit)
    return {layer: list(_measured(reader.tables(layer))) for layer in layers}


class _Reader:
    """The tables of a run, cut by layer."""

    def __init__(self, run: Run, fit: str) -> None:
        self._run = run
        self._parameters = run.read("quant_params").filter(fit=fit)
        self._balance = run.read("balance").filter(fit=fit).sort("channel")
        self._weights, self._channels = run.read("weights"), run.read("channels")
        self._samples = run.read("samples")
        self._statistics = RunStatistics(run, {}, {})

    def tables(self, layer: int) -> LayerTables:
        rows = self._parameters.filter(layer_id=layer)
        data = rows.filter(role="data")
        factors = self._balance.filter(layer_id=layer)["factor"].to_numpy()
        tensor = int(data["tensor_id"][0]) if data.height else _NONE
        plain = data.height > 0 and not factors.size
        return LayerTables(
            data=data.row(0, named=True) if data.height else None,
            weight=rows.filter(role="weight").sort("channel"),
            weight_rows=self._weights.filter(layer_id=layer).sort("channel"),
            samples=self._samples.filter(tensor_id=tensor if plain else _NONE),
            channels=self._channels.filter(tensor_id=tensor).sort("channel"),
            factors=factors,
            quantile=magnitude_quantile(self._statistics.histogram(tensor).bins())
            if plain and tensor is not None
            else None,
            count=self._run.info.samples,
        )


def _measured(tables: LayerTables) -> Iterator[Measurement]:
    data, weight = _data_sqnr(tables), weight_sqnr_db(tables.weight, tables.weight_rows)
    both = [one for one in (None if data is None else data.value, weight) if one is not None]
    low, high = (None, None) if data is None else (data.low, data.high)
    rest = [] if weight is None else [weight]
    yield Measurement(
        "sqnr_db",
        combined_db(both),
        None if low is None else combined_db([low, *rest]),
        None if high is None else combined_db([high, *rest]),
        tables.count,
    )
    if data is not None and tables.data is not None:
        yield data
        yield Measurement("clip_rate", tables.data["clip_rate"], None, None, tables.count)
    if weight is not None:
        yield Measurement("weight_sqnr_db", weight, None, None, tables.count)
    yield from _spreads(tables)


def _data_sqnr(tables: LayerTables) -> Measurement | None:
    """Return the SQNR of the data; over samples their signal varies, and noise is shared out evenly over values."""
    if tables.data is None:
        return None
    value, mse = tables.data["sqnr_db"], tables.data["mse"]
    terms = tables.samples.filter(pl.col("sample") >= 0).select("sum_sq", "n").to_numpy().astype(np.float64)
    low = high = None
    if len(terms) > 1 and mse > 0:
        found = over_samples("", terms, lambda part: decibels(part[:, 0].sum(), mse * part[:, 1].sum()))
        low, high = found.low, found.high
    return Measurement("data_sqnr_db", value, low, high, tables.count)


def weight_sqnr_db(parameters: pl.DataFrame, weights: pl.DataFrame) -> float | None:
    """Return the SQNR of a layer's weight, or of the second input of a product; None where it has neither.

    Args:
        parameters: its rows of `quant_params` with role weight, by channel.
        weights: its rows of `weights`, by channel.
    """
    if not parameters.height:
        return None
    if parameters.height == 1:
        return float(parameters["sqnr_db"][0])
    noise = parameters["mse"].to_numpy() * weights["n"].to_numpy()
    ratio = np.power(10.0, parameters["sqnr_db"].to_numpy() / 10)
    signal = np.where(noise > 0, noise * np.where(np.isfinite(ratio), ratio, 0), weights["sum_sq"].to_numpy())
    return decibels(float(signal.sum()), float(noise.sum()))


def combined_db(parts: list[float]) -> float:
    """Return the SQNR of several independent noises: their noise-to-signal ratios add up.

    Example:
        >>> round(combined_db([20.0, 20.0]), 3)
        16.99
    """
    ratio = sum(10 ** (-db / 10) for db in parts)
    return inf if ratio == 0 else -10 * log10(ratio)


def _spreads(tables: LayerTables) -> Iterator[Measurement]:
    spread = channel_spread(tables.channels["abs_max"].to_numpy(), tables.factors)
    if spread is not None:
        yield Measurement("channel_spread", spread, None, None, tables.count)
    peaks = _peaks(tables.samples)
    if tables.quantile and peaks.size:
        found = over_samples("range_spread", peaks / tables.quantile, lambda part: float(part.max()))
        yield Measurement("range_spread", found.value, found.low, found.high, tables.count)


def channel_spread(maxima: npt.NDArray[np.floating], factors: npt.NDArray[np.floating]) -> float | None:
    """Return the greatest channel maximum over the median of those that are not 0; None where all are.

    Args:
        maxima: greatest magnitude of each input channel, shape (C,).
        factors: what the data is divided by, shape (C,), or empty.

    Example:
        >>> channel_spread(np.array([1.0, 2.0, 0.0, 30.0]), np.array([]))
        15.0
    """
    divided = maxima / factors if factors.size == maxima.size else maxima
    alive = divided[divided > 0]
    return float(alive.max() / np.median(alive)) if alive.size else None


def magnitude_quantile(bins: Bins, quantile: float = QUANTILE) -> float | None:
    """Return what this share of the magnitudes above 0 do not exceed, to a bin's width; None where all are 0.

    Example:
        >>> from calibrant.stats.histogram import LogLinearHistogram
        >>> round(magnitude_quantile(LogLinearHistogram.from_values(np.float32([0, 0, 1, -1, 1, 4])).bins(), 0.5), 3)
        1.0
    """
    magnitudes = np.maximum(np.abs(bins.lower), np.abs(bins.upper))
    order = np.argsort(magnitudes, kind="stable")
    sizes, counts = magnitudes[order], bins.count[order] * (magnitudes[order] > 0)
    total = int(counts.sum())
    if not total:
        return None
    return float(sizes[np.searchsorted(np.cumsum(counts), quantile * total)])


def _peaks(samples: pl.DataFrame) -> Floats:
    """Return the greatest magnitude of each sample."""
    found = samples.select(pl.max_horizontal(pl.col("max").abs(), pl.col("min").abs())).to_series().drop_nulls()
    return found.to_numpy().astype(np.float64)
