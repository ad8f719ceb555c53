"""A page put together from a run's tables."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final

import polars as pl

from calibrant.layer_page.advice import advice_for
from calibrant.layer_page.page import Decision, LayerPage, Measured, Note
from calibrant.layer_page.ranges import data_range, histogram, search, weight_range
from calibrant.layer_page.rows import LayerRows, Row, read_layer
from calibrant.layer_page.standouts import channel_notes, sample_notes
from calibrant.sensitivity import measurements, worst_first
from calibrant.stats.plan_groups import PLAN_GROUPS
from calibrant.stats.run import Run

_ELSEWHERE: Final = ("reason", "batch_num")  # columns of a plan that the page tells in other places


def layer_page(run: Run, fit: str, name: str) -> LayerPage:
    """Return the page of a layer.

    Raises:
        LayerNotFoundError: no layer of that name.
    """
    rows = read_layer(run, fit, name)
    layer, (samples, exact) = rows.layer, sample_notes(rows)
    page = LayerPage(
        fit=fit, layer=layer["layer"], op_type=layer["op_type"], layer_id=layer["layer_id"], macs=layer["macs"],
        parameters=layer["parameters"], groups=layer["groups"], quantized=rows.is_quantized, reason=_reason(rows),
        decisions=_decisions(rows.plan), data=data_range(rows), weight=weight_range(rows), histogram=histogram(rows),
        search=search(rows), samples=samples, exact_samples=exact, channels=channel_notes(rows), measured=_measured(rows),
        events=_events(rows), advice=(),
    )  # fmt: skip
    return replace(page, advice=advice_for(page, rows))


def _reason(rows: LayerRows) -> str | None:
    """Return why the layer stays in float."""
    if rows.is_quantized:
        return None
    told = None if rows.plan is None else rows.plan["reason"]
    return str(told or rows.layer["reason"] or "the fit leaves it in float")


def _decisions(plan: Row | None) -> tuple[Decision, ...]:
    found = []
    for group, decided_by, columns in PLAN_GROUPS:
        shown = [] if plan is None else [name for name in columns if name not in _ELSEWHERE and plan[name] is not None]
        if shown and plan is not None:
            settings = [_setting(name, plan[name]) for name in shown]
            found.append(Decision(group, ", ".join(settings), plan[decided_by] or ""))
    return tuple(found)


def _setting(name: str, value: Any) -> str:
    text = (
        "yes"
        if value is True
        else "no"
        if value is False
        else f"{value:.10g}"
        if isinstance(value, float)
        else str(value)
    )
    return f"{name} {text}"


def _measured(rows: LayerRows) -> tuple[Measured, ...]:
    everything = measurements(rows.run, rows.fit)
    own = everything.filter(layer_id=rows.layer["layer_id"])
    found = []
    for row in own.iter_rows(named=True):
        ranked = worst_first(everything.filter(view=row["view"]), row["metric"])["value"].to_list()
        values = {name: row[name] for name in ("view", "metric", "value", "low", "high", "samples")}
        found.append(Measured(**values, rank=_place(ranked, row["value"]), of=len(ranked)))
    return tuple(found)


def _place(ranked: Sequence[float], value: float) -> int:
    """Return the place of a value, 1 for the first; NaN, which equals nothing, is ranked before all."""
    return 1 if isnan(value) else ranked.index(value) + 1


def _events(rows: LayerRows) -> tuple[Note, ...]:
    """Return the events of this fit, or of the run, that name the layer, its tensor or its parameters."""
    names = {
        rows.layer["layer"],
        rows.layer["weight"],
        rows.layer["bias"],
        None if rows.tensor is None else rows.tensor["tensor"],
    }
    events = rows.run.read("events").filter(pl.col("fit").is_null() | (pl.col("fit") == rows.fit))
    found = events.filter(pl.col("layer").is_in([name for name in names if name]))
    return tuple(Note(*row) for row in found.select("stage", "severity", "message").iter_rows())
