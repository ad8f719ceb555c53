"""Ranges, histogram and search of a layer's data and weight."""

from typing import Any, Final

import numpy as np
import polars as pl

from calibrant.fitting.run_statistics import RunStatistics
from calibrant.layer_page.page import Candidate, DataRange, Histogram, Search, WeightRange
from calibrant.layer_page.rows import LayerRows
from calibrant.layer_views.statistics import weight_sqnr_db
from calibrant.stats.histogram import Bins

BINS: Final = 64
CANDIDATES: Final = 120

_CHOSEN: Final = ("scale", "offset", "bits", "clip_min", "clip_max", "clip_rate", "sqnr_db")


def data_range(rows: LayerRows) -> DataRange | None:
    """Return the range of a layer's data, with its quantizer where it has one."""
    tensor = rows.tensor
    if tensor is None:
        return None
    chosen = {} if rows.data is None else {name: rows.data[name] for name in _CHOSEN}
    share = tensor["n_zero"] / tensor["n"] if tensor["n"] else 0.0
    return DataRange(
        tensor["tensor"], tensor["n"], tensor["min"], tensor["max"], share, **chosen, balanced=rows.factors.size > 0
    )


def weight_range(rows: LayerRows) -> WeightRange | None:
    """Return the range of a layer's weight; of a product of two variables, the scale of the second one."""
    weights, scales = rows.weights, rows.weight
    if not weights.height and not scales.height:
        return None
    decided = scales["decided_by"].drop_nulls().unique(maintain_order=True).to_list()
    return WeightRange(
        channels_out=rows.layer["channels_out"], channels_in=rows.layer["channels_in"],
        minimum=_real(weights["min"].min()), maximum=_real(weights["max"].max()), scales=scales.height,
        least_scale=_real(scales["scale"].min()), greatest_scale=_real(scales["scale"].max()),
        bits=scales["bits"][0] if scales.height else None, sqnr_db=weight_sqnr_db(scales, weights),
        decided_by=", ".join(decided) or None,
    )  # fmt: skip


def histogram(rows: LayerRows, bins: int = BINS) -> Histogram | None:
    """Return the histogram of a layer's data over its range and that of its quantizer; None without finite values."""
    tensor, chosen = rows.tensor, rows.data
    if tensor is None or tensor["min"] is None:
        return None
    plain = chosen is not None and not rows.factors.size
    ends = [tensor["min"], tensor["max"], *([chosen["clip_min"], chosen["clip_max"]] if plain and chosen else [])]
    low, high = float(min(ends)), float(max(ends))
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    counts = np.diff(cumulated(RunStatistics(rows.run, {}, {}).histogram(tensor["tensor_id"]).bins(), edges))
    return Histogram(low, high, tuple(counts.tolist()))


def cumulated(bins: Bins, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how many values lie below each edge; a bin that an edge cuts gives its part by proportion.

    A bin without width lies below an edge above it, and below the last edge where it stands on it.

    Example:
        >>> bins = Bins(np.array([0.0, 0.0]), np.array([0.0, 4.0]), np.array([3, 8]))
        >>> cumulated(bins, np.array([0.0, 1.0, 4.0])).tolist()
        [0.0, 5.0, 11.0]
    """
    width = np.where(bins.upper > bins.lower, bins.upper - bins.lower, 1.0)
    point = bins.upper <= bins.lower
    found = []
    for edge in edges:
        part = np.where(point, bins.lower < edge, np.clip((edge - bins.lower) / width, 0.0, 1.0))
        found.append(float(part @ bins.count))
    found[-1] = float(bins.count[bins.upper <= edges[-1]].sum()) if len(found) else 0.0
    return np.asarray(found)


def search(rows: LayerRows) -> Search | None:
    """Return the losses of the search behind a layer's data; of its weight's levels where only they were searched."""
    found = rows.run.read("search").filter(fit=rows.fit, layer_id=rows.layer["layer_id"])
    of_data = found.filter(pl.col("clip_min").is_not_null())
    chosen = (of_data if of_data.height else found).sort("candidate")
    best = chosen["is_best"].arg_max()
    if best is None or not chosen["is_best"].any():
        return None
    every = -(-chosen.height // CANDIDATES)
    kept = chosen.filter((pl.int_range(pl.len()) % every == 0) | pl.col("is_best"))
    candidates = tuple(Candidate(*row) for row in kept.select("clip_min", "clip_max", "loss").iter_rows())
    return Search(chosen["algorithm"][0], candidates, int(kept["is_best"].arg_max() or 0), chosen.height)


def _real(value: Any) -> float | None:
    return None if value is None else float(value)
