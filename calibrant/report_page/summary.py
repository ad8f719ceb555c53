"""The head of the page: what was calibrated, with what, and how accurate it is before and after."""

import math
from typing import Any, Final

import polars as pl

from calibrant.proto.simple_config import QuantConfig, canonical_text
from calibrant.report_page.numbers import short
from calibrant.stats.run import FitRecord, Run

_PYTHON_TYPES: Final = ("list", "tuple", "dict", "generator", "function", "map", "ndarray")  # in the place of a path


def run_summary(run: Run) -> dict[str, Any]:
    """Return model, data, configuration of each fit, accuracy, versions and counts of a run."""
    info = run.info
    return {
        "name": info.model_name,
        "path": str(run.path),
        "data": None if info.data in _PYTHON_TYPES else info.data,
        "samples": info.samples,
        "facts": _facts(run),
        "fits": {name: _fit_facts(record) for name, record in info.fits.items()},
        "evaluation": _evaluation(run),
        "versions": dict(info.versions),
        "seconds": {name: short(value) for name, value in info.seconds.items() if "." not in name},
    }


def _facts(run: Run) -> list[list[str]]:
    info = run.info
    fixed = ", ".join(f"{name}={value}" for name, value in info.fix_input.items())
    fusion = "fused" if info.do_fusion else "not fused"
    skipped = f", but {', '.join(info.skip_fusion_layers)}" if info.skip_fusion_layers else ""
    facts = [
        ["Model", info.model],
        ["Model hash", info.model_hash],
        ["Data", _origin(info.data)],
        ["Samples", f"{info.samples} in batches of {info.batch_size}{', one at a time' if info.one_by_one else ''}"],
        ["Data fingerprint", info.data_fingerprint or ""],
        ["Activations", "raw values kept" if info.keep != "stats" else "statistics only"],
        ["BatchNormalization", fusion + skipped],
        ["Fixed inputs", fixed],
        ["Processor", info.cpu],
        ["Run", str(run.path)],
    ]
    return [fact for fact in facts if fact[1]]


def _origin(data: str) -> str:
    """Name what a run calls by its Python type; a path stays as it is."""
    return "given in Python" if data in _PYTHON_TYPES else data


def _fit_facts(record: FitRecord) -> dict[str, Any]:
    is_default = record.config_text in ("", canonical_text(QuantConfig()))
    source = record.config_source or ("AMCT's defaults" if is_default else "given in Python")
    return {
        "source": source,
        "text": record.config_text,
        "hash": record.config_hash,
        "exact": record.exact,
        "prefix": record.prefix,
    }


def _evaluation(run: Run) -> list[dict[str, Any]]:
    frame = run.read("evaluation")
    columns = [
        name
        for name in ("fit", "variant", "output", "metric", "value", "low", "high", "samples", "data")
        if name in frame.columns
    ]
    if "data" in columns:
        frame = frame.with_columns(pl.col("data").replace({name: _origin(name) for name in _PYTHON_TYPES}))
    rows = frame.select(columns).sort("fit", "metric", "variant").iter_rows(named=True)
    return [{key: _number(value) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


def _number(value: float) -> float | int | str | None:
    """Say in words what JSON has no number for: an SQNR without noise is infinite, and one of NaN must not look like it."""
    if math.isfinite(value):
        return short(value)
    return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"


def run_events(run: Run) -> list[dict[str, Any]]:
    """Return the events of a run, the gravest first."""
    rank = pl.col("severity").replace_strict({"error": 0, "warn": 1}, default=2, return_dtype=pl.Int8)
    return run.read("events").sort(rank, maintain_order=True).to_dicts()
