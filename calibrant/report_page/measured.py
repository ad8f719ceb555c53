"""What was measured of whole models beyond single scores: the steps of automatic fallback, and agreement within classes."""

from typing import Any, Final

import polars as pl

from calibrant.report_page.numbers import short
from calibrant.stats.report import run_report
from calibrant.stats.run import Run

WORST_CLASSES: Final = 20  # of each output that the page shows
_STEP_COLUMNS: Final = (
    "step", "fit", "layers_float", "macs_int8_percent", "metric", "value", "low", "high", "ok", "on_front", "chosen",
)  # fmt: skip
_CLASS_COLUMNS: Final = (
    "fit",
    "variant",
    "output",
    "data",
    "class_id",
    "samples",
    "agreement",
    "low",
    "high",
    "confused_with",
)
_GROUP: Final = ("fit", "variant", "output", "data")


def fallback_steps(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the report `pareto`: accuracy against the share of MACs in int8, most MACs in float last.

    Args:
        run: a complete run.
    """
    return _rows(run_report(run, "pareto").select(_STEP_COLUMNS))


def worst_classes(run: Run) -> list[dict[str, Any]]:
    """Return the classes in which each variant agrees least with the float model, with the number of all ``classes``.

    Args:
        run: a complete run.
    """
    counted = run.read("class_agreement").with_columns(classes=pl.len().over(_GROUP))
    ordered = counted.sort(*_GROUP, "agreement", "class_id", nulls_last=True)
    return _rows(ordered.group_by(_GROUP, maintain_order=True).head(WORST_CLASSES).select(*_CLASS_COLUMNS, "classes"))


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {name: short(value) if isinstance(value, float) else value for name, value in row.items()}
        for row in frame.iter_rows(named=True)
    ]
