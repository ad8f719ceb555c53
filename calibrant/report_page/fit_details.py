"""What a sheet shows of a layer in one fit: its plan and who decided, its scales, and the loss curve of the search."""

from typing import Any, Final

import polars as pl

from calibrant.report_page.numbers import short, shorts
from calibrant.stats.plan_groups import PLAN_GROUPS
from calibrant.stats.run import Run

CANDIDATES: Final = 120  # points of a loss curve; a longer search is thinned, its best candidate kept


class FitDetails:
    """Plans, scales and searches of a run by fit and layer, as the page carries them.

    Args:
        run: a complete run.
    """

    def __init__(self, run: Run) -> None:
        self._plan = {(row["fit"], row["layer_id"]): row for row in run.read("plan").iter_rows(named=True)}
        parameters = run.read("quant_params").filter(pl.col("layer_id").is_not_null())
        data = parameters.filter(role="data")
        self._data = {(row["fit"], row["layer_id"]): row for row in data.iter_rows(named=True)}
        self._weights = _by_fit_and_layer(parameters.filter(role="weight"))
        self._search = _by_fit_and_layer(run.read("search").filter(pl.col("clip_min").is_not_null()))
        self._sensitivity = _by_fit_and_layer(run.read("sensitivity"))

    def of(self, fit: str, layer_id: int) -> dict[str, Any]:
        """Return what there is to show of a layer in a fit; parts that do not exist are left out."""
        key = (fit, layer_id)
        parts = {
            "plan": _plan_rows(self._plan[key]) if key in self._plan else None,
            "data": _data_columns(self._data[key]) if key in self._data else None,
            "weight": _weight_columns(self._weights[key]) if key in self._weights else None,
            "loss": _curve(self._search[key]) if key in self._search else None,
            "measured": _measured(self._sensitivity[key]) if key in self._sensitivity else None,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _by_fit_and_layer(frame: pl.DataFrame) -> dict[tuple[str, int], pl.DataFrame]:
    parts = frame.partition_by("fit", "layer_id", as_dict=True, maintain_order=True)
    return {(str(fit), int(layer)): part for (fit, layer), part in parts.items() if layer is not None}


def _plan_rows(row: dict[str, Any]) -> list[list[Any]]:
    """Return (group, settings as text, who decided) of what the plan says."""
    found = []
    for group, decided_by, columns in PLAN_GROUPS:
        settings = [_setting(name, row[name]) for name in columns if row.get(name) is not None]
        if settings:
            found.append([group, ", ".join(settings), row.get(decided_by)])
    return found


def _setting(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{name} {'yes' if value else 'no'}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _data_columns(row: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: row[name] for name in ("scale", "clip_min", "clip_max", "mse", "sqnr_db", "clip_rate")}
    exact = {name: row[name] for name in ("algorithm", "bits", "offset", "decided_by")}
    return {**exact, **{name: short(value, 6) for name, value in numbers.items()}}


def _weight_columns(rows: pl.DataFrame) -> dict[str, Any]:
    return {
        "algorithm": rows["algorithm"][0],
        "bits": rows["bits"][0],
        "scales": rows.height,
        "least": short(rows["scale"].min()),  # type: ignore[arg-type]  # of a column of Float32
        "greatest": short(rows["scale"].max()),  # type: ignore[arg-type]  # the same
        "decided_by": ", ".join(rows["decided_by"].drop_nulls().unique(maintain_order=True)),
    }


def _curve(rows: pl.DataFrame) -> dict[str, Any] | None:
    """Return the loss of each candidate over that of the best, by the width of its clip range."""
    thinned = rows.filter(pl.col("is_best") | (pl.int_range(pl.len()) % -(-rows.height // CANDIDATES) == 0))
    best = rows.filter(pl.col("is_best"))["loss"]
    if best.is_empty() or not best[0] > 0:
        return None
    ordered = thinned.with_columns(width=pl.col("clip_max") - pl.col("clip_min")).sort("width")
    return {
        "algorithm": ordered["algorithm"][0],
        "width": shorts(ordered["width"]),
        "ratio": shorts(ordered["loss"] / best[0]),
        "best": int(ordered["is_best"].arg_max() or 0),
        "exact": bool(ordered["exact"][0]),
    }


def _measured(rows: pl.DataFrame) -> list[list[Any]]:
    columns = ("view", "metric", "value", "low", "high", "samples")
    return [
        [view, metric, *shorts((value, low, high)), samples]
        for view, metric, value, low, high, samples in rows.select(columns).iter_rows()
    ]
