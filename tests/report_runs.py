"""Runs for the HTML report, drawn with a fixed seed: as many layers as wanted, two fits, and everything that a sheet shows."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from run_tables import frame, layer, make_run

from calibrant.stats.histogram import LogLinearHistogram
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS

CHANNELS = 24
CANDIDATES = 61


def report_run(
    path: Path, names: list[str], *, seed: int = 0, width: float = 1.0, fits: tuple[str, ...] = ("default", "hfmg")
) -> Run:
    """A run whose layer i has a relative error of about (i + 1) / number of layers percent."""
    draw = np.random.default_rng(seed)
    run = make_run(
        path,
        {"layers": [layer(i, name, channels_out=CHANNELS, channels_in=CHANNELS) for i, name in enumerate(names)]},
        fits=fits,
    )
    histograms = [
        LogLinearHistogram.from_values((draw.standard_normal(4000) * width).astype(np.float32)) for _ in names
    ]
    _write_data(run, names, histograms)
    _write_channels(run, len(names), draw)
    _write_fits(run, histograms, fits)
    run.write(
        "events",
        frame(
            "events",
            [{"stage": "fit", "severity": "warn", "layer": names[0], "message": "<b>not bold</b>", "fit": fits[0]}],
        ),
    )
    rows: list[dict[str, Any]] = [
        {"fit": fits[0], "variant": "fp32", "metric": "top1", "value": 0.95, "samples": 40},
        {
            "fit": fits[0],
            "variant": "fake_quant",
            "metric": "top1",
            "value": 0.925,
            "low": 0.9,
            "high": 0.95,
            "samples": 40,
        },
        {"fit": fits[0], "variant": "fake_quant", "metric": "sqnr_db", "value": 25.5, "samples": 4},
    ]
    run.write("evaluation", frame("evaluation", rows))
    measured = [
        {
            "fit": fits[0],
            "layer_id": i,
            "view": "whole",
            "metric": "sqnr_db",
            "value": 20.0 + i,
            "low": 19.0,
            "high": 21.0,
            "samples": 4,
        }
        for i in range(len(names))
    ]
    run.write("sensitivity", frame("sensitivity", measured))
    return run


def _write_data(run: Run, names: list[str], histograms: list[LogLinearHistogram]) -> None:
    tables = [histogram.to_tables() for histogram in histograms]
    counted = pl.concat([table.counters for table in tables])
    about = {
        "tensor_id": range(len(names)),
        "tensor": [f"into {name}" for name in names],
        "dtype": "float32",
        "rank": 4,
        "is_input": False,
    }
    columns = counted.with_columns(
        *(pl.Series(k, list(v)) if isinstance(v, range | list) else pl.lit(v).alias(k) for k, v in about.items())
    )
    missing = [pl.lit(None).alias(name) for name in SCHEMAS["tensors"] if name not in columns.columns]
    run.write("tensors", columns.with_columns(missing))
    for name, parts in {"histograms": "histogram", "extremes": "extremes"}.items():
        rows = [getattr(table, parts).with_columns(tensor_id=pl.lit(i)) for i, table in enumerate(tables)]
        run.write(name, pl.concat(rows).select(SCHEMAS[name].names()))


def _write_channels(run: Run, count: int, draw: np.random.Generator) -> None:
    for table, key in {"channels": "tensor_id", "weights": "layer_id"}.items():
        tops = (np.abs(draw.standard_normal((count, CHANNELS))) + 0.1).ravel()
        rows = [
            {key: place // CHANNELS, "channel": place % CHANNELS, "n": 9, "min": -top, "max": top, "abs_max": top, "sum": 0.0,
             "sum_sq": 9.0}
            for place, top in enumerate(tops.tolist())
        ]  # fmt: skip
        run.write(table, frame(table, rows))


def _write_fits(run: Run, histograms: list[LogLinearHistogram], fits: tuple[str, ...]) -> None:
    plan, search, chosen = [], [], []
    for place, fit in enumerate(fits):
        algorithm = "hfmg" if place else "ifmr"
        planned = {"enabled": True, "data_algorithm": algorithm, "data_bits": 8, "data_decided_by": "default"}
        for i, histogram in enumerate(histograms):
            of_layer = {"fit": fit, "layer_id": i, "tensor_id": i}
            clip, error = 0.8 * histogram.maximum, 0.01 * (i + 1) / len(histograms) * (1 + place)
            plan.append({"fit": fit, "layer_id": i, **planned})
            search += [{**of_layer, "algorithm": algorithm, **_candidate(number, clip)} for number in range(CANDIDATES)]
            scale = {"bits": 8, "scale": clip / 127, "offset": 0, "clip_min": -clip, "clip_max": clip}
            found = {
                "sqnr_db": float(-20 * np.log10(error)),
                "clip_rate": 0.001,
                "algorithm": algorithm,
                "decided_by": algorithm,
            }
            chosen.append({**of_layer, "role": "data", **scale, **found})
            weight = {"bits": 8, "scale": 0.01, "offset": 0, "algorithm": "arq", "mse": 0.0, "decided_by": "arq"}
            chosen.append({**of_layer, "role": "weight", "channel": 0, **weight})
        node = {
            "fit": fit,
            "tensor_id": 0,
            "role": "tensor",
            "node": "</td>Add",
            "input_index": 1,
            "bits": 8,
            "algorithm": algorithm,
        }
        chosen.append({**node, "scale": 0.125, "offset": -3, "clip_min": -15.625, "clip_max": 16.25, "sqnr_db": 33.25})
    for table, rows in {"plan": plan, "search": search, "quant_params": chosen}.items():
        run.write(table, frame(table, rows))


def _candidate(number: int, clip: float) -> dict[str, Any]:
    reach, loss = clip * (0.7 + number / 100), 1 + ((number - 30) / 30) ** 2
    return {
        "candidate": number, "clip_min": -reach, "clip_max": reach, "scale": reach / 127, "offset": 0, "loss": loss,
        "is_best": number == 30, "exact": False,
    }  # fmt: skip
