"""The plan of a configuration as a table for people: a row a layer, settings in words, and the rules that decided."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from calibrant.console import print_frame, print_note

_COLUMNS: Final = ("layer", "op_type", "enabled", "data", "weight", "decided_by", "reason")
_DECIDED: Final = ("enabled", "data", "asymmetric", "weight", "weight_asymmetric", "weight_only", "balancer", "fusion")


def print_plan(plan: pl.DataFrame, form: str, output: Path | None) -> None:
    """Print a plan: on stdout as a table in few columns; in other formats, and in a file, with every value.

    Args:
        plan: rows of the table `plan`; those of retraining have other columns and are printed as they are.
        form: as `print_frame` takes it.
        output: the file to write, else stdout.

    Raises:
        ConfigError, ExportError: as `print_frame` raises them.
    """
    if form != "table" or output is not None or not {*_COLUMNS[:3], "weight_only"} <= set(plan.columns):
        print_frame(plan, form, output)
        return
    print_frame(plan_frame(plan), form, None)
    print_note("info", None, "every value, and the rule of each: --format csv or json")


def plan_frame(plan: pl.DataFrame) -> pl.DataFrame:
    """Return one row a layer, all cells as text.

    Args:
        plan: rows of the table `plan`.

    Returns:
        layer, op_type, enabled, data, weight, decided_by (the rules other than the default), and reason where a layer has one.
    """
    rows = [
        {
            "layer": _name(row),
            "op_type": row["op_type"],
            "enabled": "yes" if row["enabled"] else "no",
            "data": _data(row),
            "weight": _weight(row),
            "decided_by": ", ".join(_rules(row)) or "default",
            "reason": row["reason"] or "",
        }
        for row in plan.iter_rows(named=True)
    ]
    found = pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String))
    return found if found["reason"].str.len_chars().sum() else found.drop("reason")


def _name(row: Mapping[str, object]) -> str:
    index = row["tensor_index"]
    return str(row["layer"]) if index is None else f"{row['layer']} input {index}"


def _data(row: Mapping[str, object]) -> str:
    if not row["enabled"] or row["weight_only"] or row["data_algorithm"] is None:
        return ""
    offset = ", offset" if row["asymmetric"] else ""
    balanced = "" if row["migration_strength"] is None else f", balanced {row['migration_strength']:g}"
    joint = "" if row["joint"] is None else ", joint"
    return f"{row['data_algorithm']} {row['data_bits']} bits{offset}{balanced}{joint}"


def _weight(row: Mapping[str, object]) -> str:
    if not row["enabled"] or row["weight_algorithm"] is None:
        return ""
    channels = " a channel" if row["channel_wise"] else ""
    offset = ", offset" if row["weight_asymmetric"] else ""
    alone = ", alone" if row["weight_only"] else ""
    return f"{row['weight_algorithm']} {row['weight_bits']} bits{channels}{offset}{alone}"


def _rules(row: Mapping[str, object]) -> list[str]:
    """Return the rules that decided something, each once, without the default."""
    decided = [row[f"{what}_decided_by"] for what in (_DECIDED if row["enabled"] else _DECIDED[:1])]
    return list(dict.fromkeys(str(rule) for rule in decided if rule not in (None, "default")))
