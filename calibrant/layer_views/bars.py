"""The measurements of a fit as a table for people: a row a layer, worst first, with a bar for its share of the noise."""

from collections.abc import Mapping
from math import isfinite, isnan
from typing import Final

import polars as pl

from calibrant.text_charts import bar

_WIDTH: Final = 20  # cells of the longest bar
_SHOWN: Final = (  # view, metric, heading, digits
    ("whole", "sqnr_db", "whole_db", 1), ("whole", "agreement", "agreement", 3), ("isolated", "sqnr_db", "isolated_db", 1),
    ("statistics", "sqnr_db", "statistics_db", 1), ("statistics", "clip_rate", "clip_rate", 6),
)  # fmt: skip


def bar_frame(ranked: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row a layer, all cells as text.

    Args:
        ranked: the `sqnr_db` rows of the view that ranks, worst first.
        rows: all measurements of these layers.
    """
    shares = noise_shares(ranked["value"].to_list())
    longest = max(shares, default=0.0) or 1.0
    columns = {"layer": ranked["layer"].to_list(), "type": ranked["op_type"].to_list()}
    for view, metric, heading, digits in _SHOWN:
        found = dict(rows.filter(view=view, metric=metric).select("layer_id", "value").iter_rows())
        if found:
            columns[heading] = _column(heading, [_number(found.get(layer), digits) for layer in ranked["layer_id"]])
        if view == ranked["view"][0] and metric == "sqnr_db":
            columns["95 % interval"] = [_interval(row) for row in ranked.iter_rows(named=True)]
    columns["noise"] = _column("noise", [f"{100 * share:.1f} %" for share in shares])
    columns["share of the noise"] = [bar(share / longest, _WIDTH) for share in shares]
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def noise_shares(decibels: list[float]) -> list[float]:
    """Return each layer's share of the summed noise; noises of layers that are quantized one at a time add up nearly.

    Example:
        >>> noise_shares([10.0, 10.0, float("inf")])
        [0.5, 0.5, 0.0]
    """
    noises = [0.0 if isnan(db) else 10 ** (-db / 10) for db in decibels]
    total = sum(noises)
    if not isfinite(total) or total == 0:
        return [0.0] * len(noises)
    return [noise / total for noise in noises]


def _column(heading: str, cells: list[str]) -> list[str]:
    """Return cells set to the right under their heading."""
    width = max(map(len, [heading, *cells]))
    return [cell.rjust(width) for cell in cells]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _interval(row: Mapping[str, float | None]) -> str:
    low, high = row["low"], row["high"]
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"
