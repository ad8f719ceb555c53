"""Tiny runs written by hand: rows given as dicts, every column that is not given is NULL."""

from pathlib import Path
from typing import Any

import polars as pl

from calibrant.stats.run import FitRecord, Run, RunInfo, create_run
from calibrant.stats.tables import SCHEMAS

Rows = list[dict[str, Any]]


def make_run(path: Path, tables: dict[str, Rows], *, fits: tuple[str, ...] = ("default",), **info: Any) -> Run:
    """Make a complete run of these rows."""
    fields: dict[str, Any] = {
        "model": "/models/m.onnx", "model_name": "m", "model_hash": "ab" * 32, "data": "/data/x.npz", "keep": "stats",
        "do_fusion": True, "skip_fusion_layers": (), "fix_input": {}, "versions": {"calibrant": "0.1.0"}, "cpu": "a processor",
        "complete": True, "samples": 4, "batch_size": 8, "data_fingerprint": "cd" * 16,
        "fits": {fit: FitRecord(None, "", "00", exact=False) for fit in fits},
    }  # fmt: skip
    run = create_run(path, RunInfo(**{**fields, **info}))
    for table, rows in tables.items():
        run.write(table, frame(table, rows))
    return run


def frame(table: str, rows: Rows) -> pl.DataFrame:
    """Rows of a table; unknown columns are errors."""
    empty = dict.fromkeys(SCHEMAS[table])
    assert all(set(row) <= set(empty) for row in rows)
    return pl.DataFrame([{**empty, **row} for row in rows], schema=SCHEMAS[table])


def layer(layer_id: int, name: str, **columns: Any) -> dict[str, Any]:
    defaults = {
        "op_type": "Conv",
        "tensor_id": layer_id,
        "quantizable": True,
        "macs": 100,
        "parameters": 10,
        "groups": 1,
    }
    return {"layer_id": layer_id, "layer": name, **defaults, **columns}


def tensor(tensor_id: int, name: str, least: float, greatest: float, **columns: Any) -> dict[str, Any]:
    return {
        "tensor_id": tensor_id,
        "tensor": name,
        "min": least,
        "max": greatest,
        "n": 100,
        "mantissa_bits": 13,
        **columns,
    }


def data(layer_id: int, fit: str = "default", **columns: Any) -> dict[str, Any]:
    """A row of quant_params for a layer's data."""
    defaults = {"tensor_id": layer_id, "role": "data", "bits": 8, "algorithm": "ifmr", "offset": 0}
    return {"fit": fit, "layer_id": layer_id, **defaults, **columns}
