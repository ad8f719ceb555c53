"""What the tables of a run say of each layer of a fit, in the numbers that evidence is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan

import polars as pl

from calibrant.layer_views.statistics import weight_sqnr_db
from calibrant.stats.run import Run


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Numbers about one layer.

    Attributes:
        data_db: SQNR of its data in dB.
        weight_db: SQNR of its weight in dB; infinite where it has none.
        clip_rate: share of the values of its data that are clipped.
        low, high: least and greatest value of its data.
        outliers: greatest channel maximum of its data over the median one; 1 where channels are not told apart.
        weight_spread: the same of its output channels' weights.
        products: products summed for an output: elements of the weight of one output channel.
        macs: multiply-accumulates of a sample, or None.
    """

    data_db: float
    weight_db: float
    clip_rate: float
    low: float
    high: float
    outliers: float
    weight_spread: float
    products: int
    macs: int | None

    @property
    def noise(self) -> float:
        """Noise of data and weight over their signal, together."""
        return _ratio(self.data_db) + _ratio(self.weight_db)


def _ratio(db: float) -> float:
    return 0.0 if db == inf else float(10 ** (-db / 10))


def layer_facts(run: Run, fit: str) -> dict[int, LayerFacts]:
    """Return the facts of each layer whose data a fit quantizes, by layer_id."""
    parameters = run.read("quant_params").filter(fit=fit)
    weights, channels = run.read("weights"), run.read("channels")
    tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
    macs = dict(run.read("layers").select("layer_id", "macs").iter_rows())
    return {
        row["layer_id"]: _facts(row, parameters, weights, channels, tensors[row["tensor_id"]], macs[row["layer_id"]])
        for row in parameters.filter(role="data").unique("layer_id", keep="first").iter_rows(named=True)
    }


def _facts(
    data: Mapping[str, float],
    parameters: pl.DataFrame,
    weights: pl.DataFrame,
    channels: pl.DataFrame,
    tensor: Mapping[str, float | None],
    macs: int | None,
) -> LayerFacts:
    rows = weights.filter(layer_id=data["layer_id"]).sort("channel")
    own = parameters.filter(layer_id=data["layer_id"], role="weight").sort("channel")
    weight_db = weight_sqnr_db(own, rows) if own.height and rows.height else None
    return LayerFacts(
        data_db=_known(data["sqnr_db"], inf),
        weight_db=_known(weight_db, inf),
        clip_rate=_known(data["clip_rate"], 0.0),
        low=_known(tensor["min"], nan),
        high=_known(tensor["max"], nan),
        outliers=spread(channels.filter(tensor_id=data["tensor_id"])["abs_max"]),
        weight_spread=spread(rows["abs_max"]),
        products=int(rows["n"].max() or 0) if rows.height else 0,  # type: ignore[arg-type]  # a column of integers
        macs=macs,
    )


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def spread(maxima: pl.Series) -> float:
    """Return the greatest over the median of those above 0; 1 where there are none.

    Example:
        >>> spread(pl.Series([0.0, 1.0, 2.0, 8.0]))
        4.0
    """
    above = maxima.drop_nulls().filter(maxima.drop_nulls() > 0)
    if above.is_empty():
        return 1.0
    greatest, median = above.max(), above.median()
    return float(greatest) / float(median)  # type: ignore[arg-type]  # a column of floats


__all__ = ["LayerFacts", "layer_facts", "spread"]
