"""What a run's tables alone say of each quantized layer: no inference (formulas: docs/sensitivity.md)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import inf, log10
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.export.metrics import decibels
from calibrant.export.partial import QuantizedParts
from calibrant.export.quantized_layer import EncodedLayer
from calibrant.export.weight_only import EncodedWeight
from calibrant.fitting.run_statistics import RunStatistics
from calibrant.ingest.model import PreparedModel
from calibrant.layer_views.expected import OutputPower, expected_power
from calibrant.layer_views.measurement import Floats, Measurement, over_samples
from calibrant.stats.bootstrap import interval
from calibrant.stats.histogram import Bins
from calibrant.stats.input_channels import data_axis
from calibrant.stats.run import Run

QUANTILE: Final = 0.999  # of the magnitudes, against which the greatest one is held
_NONE: Final = -1  # no tensor has that number


@dataclass(frozen=True)
class LayerTables:
    """What the tables say of one layer.

    Attributes:
        data: its row of `quant_params` with role data, or None where the weight alone is quantized.
        weight: its rows with role weight.
        weight_rows: its rows of `weights`.
        samples: rows of `samples` of the tensor that it quantizes; empty where that is divided by balance factors.
        channels: rows of `channels` of the tensor that it reads; empty where they count another axis.
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


def measure_statistics(
    run: Run, fit: str, layers: Collection[int], prepared: PreparedModel, parts: QuantizedParts
) -> dict[int, list[Measurement]]:
    """Return the measurements of layers, by layer_id.

    Args:
        run: a complete run.
        fit: name of the fit.
        layers: their layer_ids.
        prepared: the run's model.
        parts: what the fit quantizes of it.
    """
    reader = _Reader(run, fit)
    quantized: list[EncodedLayer | EncodedWeight] = [*parts.layers, *parts.weights]
    encoded = {one.layer.layer_id: one for one in quantized}
    found = {}
    for layer in layers:
        tables = reader.tables(layer)
        found[layer] = list(_measured(tables, _expected(prepared, encoded[layer], tables)))
    return found


class _Cut:
    """A table cut by the numbers in a column, once for all of them."""

    def __init__(self, table: pl.DataFrame, column: str) -> None:
        self._none = table.clear()
        self._parts = table.partition_by(column, as_dict=True, maintain_order=True)

    def __getitem__(self, number: int | None) -> pl.DataFrame:
        """Return the rows of a number; of one that the table has not, none."""
        return self._parts.get((number,), self._none)


class _Reader:
    """The tables of a run, cut by layer."""

    def __init__(self, run: Run, fit: str) -> None:
        self._run = run
        self._parameters = _Cut(run.read("quant_params").filter(fit=fit), "layer_id")
        self._balance = _Cut(run.read("balance").filter(fit=fit).sort("channel"), "layer_id")
        self._weights, self._channels = _Cut(run.read("weights"), "layer_id"), _Cut(run.read("channels"), "tensor_id")
        self._samples = _Cut(run.read("samples"), "tensor_id")
        self._layers = {row["layer_id"]: row for row in run.read("layers").iter_rows(named=True)}
        self._tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
        self._statistics = RunStatistics(run, {}, {})

    def tables(self, layer: int) -> LayerTables:
        rows = self._parameters[layer]
        data = rows.filter(role="data")
        factors = self._balance[layer]["factor"].to_numpy()
        tensor = data["tensor_id"][0] if data.height else self._layers[layer]["tensor_id"]
        plain = data.height > 0 and not factors.size
        counted = tensor if self._counts_inputs(layer, tensor) else _NONE
        return LayerTables(
            data=data.row(0, named=True) if data.height else None,
            weight=rows.filter(role="weight").sort("channel"),
            weight_rows=self._weights[layer].sort("channel"),
            samples=self._samples[tensor if plain else _NONE],
            channels=self._channels[counted].sort("channel"),
            factors=factors,
            quantile=magnitude_quantile(self._statistics.histogram(tensor).bins()) if plain else None,
            count=self._run.info.samples,
        )

    def _counts_inputs(self, layer: int, tensor: int | None) -> bool:
        """Return whether the channels of a tensor are the layer's: a tensor counts those of its first consumer."""
        row = self._tensors.get(_NONE if tensor is None else tensor)
        if row is None or row["channel_axis"] is None or not row["rank"]:
            return False
        return bool((row["channel_axis"] - data_axis(self._layers[layer]["op_type"])) % row["rank"] == 0)


def _expected(
    prepared: PreparedModel, encoded: EncodedLayer | EncodedWeight, tables: LayerTables
) -> OutputPower | None:
    """Return what the output is expected to be, from the moments of the channels as they are quantized."""
    n, total, squares = (tables.channels[name].to_numpy().astype(np.float64) for name in ("n", "sum", "sum_sq"))
    if not n.all():
        return None
    factors = tables.factors if tables.factors.size == n.size else np.ones(n.size)
    mse = 0.0 if tables.data is None else tables.data["mse"]
    return expected_power(prepared, encoded, total / n / factors, squares / n / factors**2, mse)


def _measured(tables: LayerTables, expected: OutputPower | None) -> Iterator[Measurement]:
    ratios = _power_ratios(tables)
    data, weight = _data_sqnr(tables, ratios), weight_sqnr_db(tables.weight, tables.weight_rows)
    combined = _combined(tables, data, weight)
    if expected is None:
        yield replace(combined, metric="sqnr_db")
    else:
        yield Measurement("sqnr_db", expected.sqnr_db(), *_ends(expected, ratios), tables.count)
    yield combined
    if data is not None and tables.data is not None:
        yield data
        yield Measurement("clip_rate", tables.data["clip_rate"], None, None, tables.count)
    if weight is not None:
        yield Measurement("weight_sqnr_db", weight, None, None, tables.count)
    yield from _spreads(tables)


def _combined(tables: LayerTables, data: Measurement | None, weight: float | None) -> Measurement:
    rest = [] if weight is None else [weight]
    if data is None:
        return Measurement("combined_sqnr_db", combined_db(rest), None, None, tables.count)
    low, high = (None if end is None else combined_db([end, *rest]) for end in (data.low, data.high))
    return Measurement("combined_sqnr_db", combined_db([data.value, *rest]), low, high, tables.count)


def _ends(expected: OutputPower, ratios: tuple[float, float] | None) -> tuple[float | None, float | None]:
    return (None, None) if ratios is None else (expected.sqnr_db(ratios[0]), expected.sqnr_db(ratios[1]))


def _power_ratios(tables: LayerTables) -> tuple[float, float] | None:
    """Return the interval of the data's power over samples, as ratios to what it is; None where it is not known."""
    terms = tables.samples.filter(pl.col("sample") >= 0).select("sum_sq", "n").to_numpy().astype(np.float64)
    if len(terms) < 2 or not terms[:, 0].any() or tables.data is None or not tables.data["mse"]:
        return None
    whole = terms[:, 0].sum() / terms[:, 1].sum()
    return interval(terms, lambda part: float(part[:, 0].sum() / part[:, 1].sum() / whole))


def _data_sqnr(tables: LayerTables, ratios: tuple[float, float] | None) -> Measurement | None:
    """Return the SQNR of the data; over samples their power varies, and noise is shared out evenly over values."""
    if tables.data is None:
        return None
    value = tables.data["sqnr_db"]
    low, high = (None, None) if ratios is None else (value + decibels(ratio, 1.0) for ratio in ratios)
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
