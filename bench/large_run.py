"""A run of many layers made of drawn rows: what the reports are measured on, without a model that large."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from calibrant.stats.run import FitRecord, Run, RunInfo, create_run
from calibrant.stats.tables import SCHEMAS, conform

LAYERS: Final = 1_000
FITS: Final = 10
SAMPLES: Final = 64
CHANNELS: Final = 64  # of a layer's weight and of its data
BINS: Final = 500
CANDIDATES: Final = 61

Columns = dict[str, Any]


def make_large_run(path: Path, *, layers: int = LAYERS, fits: int = FITS, seed: int = 0) -> Run:
    """Write every table of a run with `layers` layers and `fits` fits."""
    draw = np.random.default_rng(seed)
    names = [f"fit{number}" for number in range(fits)]
    run = create_run(path, _info(names))
    for table, columns in (_of_run(draw, layers) | _of_fits(draw, layers, names)).items():
        run.write(table, _frame(table, columns))
    return run


def _info(fits: list[str]) -> RunInfo:
    record = FitRecord(None, "", "0" * 64, exact=False)
    return RunInfo(
        model="large.onnx", model_name="large", model_hash="0" * 64, data="drawn", keep="stats", do_fusion=True,
        skip_fusion_layers=(), fix_input={}, versions={}, cpu="any", data_fingerprint="0" * 64, samples=SAMPLES,
        batch_size=8, complete=True, fits=dict.fromkeys(fits, record),
    )  # fmt: skip


def _frame(table: str, columns: Columns) -> pl.DataFrame:
    """Fill up with NULL what is not given; scalars hold for all rows."""
    rows = max(len(column) for column in columns.values() if not isinstance(column, str | int | float | bool | None))
    schema = SCHEMAS[table]
    series = [
        pl.Series(name, column, dtype, strict=False)
        if not isinstance(column := columns.get(name), str | int | float | bool | None)
        else pl.Series(name, [column], dtype, strict=False).new_from_index(0, rows)
        for name, dtype in schema.items()
    ]
    return conform(table, pl.DataFrame(series))


def _of_run(draw: np.random.Generator, layers: int) -> dict[str, Columns]:
    ids, high = np.arange(layers), draw.gamma(2, 3, layers)
    by_sample, by_channel = np.repeat(ids, SAMPLES), np.repeat(ids, CHANNELS)
    channel = np.tile(np.arange(CHANNELS), layers)
    names = [f"layer_{i}" for i in ids]
    spread = draw.gamma(2, 3, by_channel.size)
    of_channel = {
        "channel": channel,
        "n": 1_000,
        "min": -spread,
        "max": spread,
        "abs_max": spread,
        "sum": 0.0,
        "sum_sq": spread**2,
    }
    return {
        "inputs": {
            "sample": np.arange(SAMPLES), "key": [f"{i:064x}" for i in range(SAMPLES)], "source": "drawn", "position": np.arange(SAMPLES),
        },
        "tensors": {
            "tensor_id": ids, "tensor": [f"tensor_{i}" for i in ids], "dtype": "float32", "rank": 4, "sample_axis": 0,
            "channel_axis": 1, "producer": [f"layer_{i - 1}" if i else "" for i in ids], "is_input": ids == 0, "n": 100_000,
            "n_zero": 100, "n_nan": 0, "n_inf": 0, "min": -high, "max": high, "mantissa_bits": 13,
        },
        "layers": {
            "layer_id": ids, "layer": names, "op_type": "Conv", "tensor_id": ids, "weight": [f"{name}.weight" for name in names],
            "bias": [f"{name}.bias" for name in names], "channels_out": CHANNELS, "channels_in": CHANNELS, "groups": 1,
            "kernel_rank": 2, "macs": draw.integers(1, 10**9, layers), "parameters": 9 * CHANNELS**2,
            "quantizable": draw.random(layers) < 0.95,
        },
        "samples": {
            "tensor_id": by_sample, "sample": np.tile(np.arange(SAMPLES), layers), "n": 2_000, "n_zero": 2, "n_nan": 0, "n_inf": 0,
            "min": -draw.gamma(2, 3, by_sample.size), "max": draw.gamma(2, 3, by_sample.size), "sum": draw.standard_normal(by_sample.size),
            "sum_sq": draw.gamma(2, 3, by_sample.size),
        },
        "histograms": {"tensor_id": np.repeat(ids, BINS), "key": np.tile(np.arange(BINS) + (127 << 13), layers), "count": 200},
        "extremes": {
            "tensor_id": np.repeat(ids, 200), "side": ["max", "min"] * (100 * layers), "value": draw.standard_normal(200 * layers),
            "count": 1,
        },
        "channels": {"tensor_id": by_channel, **of_channel},
        "weights": {"layer_id": by_channel, **of_channel},
        "biases": {"layer_id": by_channel, "channel": channel, "value": draw.standard_normal(by_channel.size)},
        "joins": _joins(layers),
        "events": {"stage": "capture", "severity": ["info", "warn"] * layers, "layer": names * 2, "message": "a thing happened"},
    }  # fmt: skip


def _joins(layers: int) -> Columns:
    nodes = np.repeat(np.arange(0, layers - 1, 4), 2)
    index = np.tile([0, 1], nodes.size // 2)
    return {
        "node": [f"add_{i}" for i in nodes], "op_type": "Add", "input_index": index, "value": [f"tensor_{i}" for i in nodes + index],
        "tensor_id": nodes + index, "seen": "captured", "first_channel": None, "channels": None,
    }  # fmt: skip


def _of_fits(draw: np.random.Generator, layers: int, fits: list[str]) -> dict[str, Columns]:
    return {
        "plan": {
            "fit": np.repeat(fits, layers), "layer_id": np.tile(np.arange(layers), len(fits)), "op_type": "Conv", "enabled": True,
            "layer": [f"layer_{i}" for i in range(layers)] * len(fits), "data_algorithm": "ifmr", "data_bits": 8, "asymmetric": True,
            "weight_algorithm": "arq", "weight_bits": 8, "channel_wise": True, "data_decided_by": "default",
        },
        "search": _search(draw, layers, fits),
        "quant_params": _quant_params(draw, layers, fits),
        "balance": {"fit": np.repeat(fits[:1], layers), "layer_id": np.arange(layers), "channel": 0, "factor": draw.gamma(2, 1, layers)},
        "sensitivity": {
            "fit": np.repeat(fits, layers), "layer_id": np.tile(np.arange(layers), len(fits)), "view": "statistics", "metric": "sqnr_db",
            "value": draw.normal(30, 9, layers * len(fits)), "low": None, "high": None, "samples": SAMPLES,
        },
        "evaluation": {
            "fit": fits, "variant": "fake_quant", "metric": "sqnr_db", "value": draw.normal(30, 9, len(fits)),
            "samples": SAMPLES,
        },
    }  # fmt: skip


def _search(draw: np.random.Generator, layers: int, fits: list[str]) -> Columns:
    each, total = layers * CANDIDATES, layers * CANDIDATES * len(fits)
    ids = np.tile(np.repeat(np.arange(layers), CANDIDATES), len(fits))
    scale = draw.gamma(2, 0.01, total)
    return {
        "fit": np.repeat(fits, each), "layer_id": ids, "tensor_id": ids, "algorithm": "ifmr",
        "candidate": np.tile(np.arange(CANDIDATES), layers * len(fits)), "clip_min": -128 * scale, "clip_max": 127 * scale,
        "scale": scale, "offset": 0, "loss": scale**2, "is_best": np.tile(np.arange(CANDIDATES) == 30, layers * len(fits)), "exact": False,
    }  # fmt: skip


def _quant_params(draw: np.random.Generator, layers: int, fits: list[str]) -> Columns:
    """One row for the data of a layer, then one a channel for its weight, then one a channel for its bias."""
    roles = np.array(["data"] + ["weight"] * CHANNELS + ["bias"] * CHANNELS)
    channels = np.array([-1, *range(CHANNELS), *range(CHANNELS)])
    each = roles.size * layers
    ids, number = np.tile(np.repeat(np.arange(layers), roles.size), len(fits)), each * len(fits)
    scale = draw.gamma(2, 0.01, number)
    channel = pl.Series(np.tile(channels, layers * len(fits)))
    return {
        "fit": np.repeat(fits, each), "layer_id": ids, "tensor_id": ids, "role": np.tile(roles, layers * len(fits)),
        "channel": pl.select(pl.when(channel >= 0).then(channel)).to_series(), "bits": 8, "scale": scale, "offset": 0,
        "clip_min": -128 * scale, "clip_max": 127 * scale,
        "algorithm": np.tile(np.where(roles == "data", "ifmr", "arq"), layers * len(fits)),
        "mse": scale**2 / 12, "sqnr_db": draw.normal(35, 6, number), "clip_rate": draw.gamma(1, 1e-4, number), "decided_by": "default",
    }  # fmt: skip
