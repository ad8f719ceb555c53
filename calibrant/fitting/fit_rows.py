"""The fits of one calibration as rows of the tables `search` and `quant_params`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.fitting.captured_tensors import tensor_columns
from calibrant.fitting.fits import DataFit, Fits, WeightFit, data_of
from calibrant.fitting.levels import centre_columns, search_columns
from calibrant.quantizers.affine import Fit
from calibrant.quantizers.bias import quantize_bias
from calibrant.quantizers.plan import LayerPlan
from calibrant.stats.tables import SCHEMAS


def search_frame(fits: Fits) -> pl.DataFrame:
    """Return the rows of `search`: the candidates of each layer, then of the inputs of other nodes, then of second inputs."""
    parts = [pl.DataFrame(schema=SCHEMAS["search"])]
    for row in fits.rows:
        if (found := data_of(row, fits.data)) is not None:
            parts.append(_search_rows(fits.name, row.layer_id, row.tensor_id, found.fit))
        if (weight := fits.weights[row.layer_id]) is not None and weight.levels is not None:
            of_row = {"fit": fits.name, "layer_id": row.layer_id, "tensor_id": None}
            parts.append(_rows("search", {**of_row, **search_columns(weight.levels)}, 2))
    inputs = dict.fromkeys(fits.inputs.values())  # those of a tensor and its settings once
    parts += [_search_rows(fits.name, None, key[0], fits.data[key].fit) for key in inputs]
    parts += [_search_rows(fits.name, layer, key[0], fits.data[key].fit) for layer, key in fits.seconds.items()]
    return pl.concat(parts)


def parameter_frame(fits: Fits) -> pl.DataFrame:
    """Return the rows of `quant_params`: each layer's, then the inputs of other nodes, then second inputs in a weight's place."""
    parts = [pl.DataFrame(schema=SCHEMAS["quant_params"])]
    for row in fits.rows:
        parts += _layer_parts(fits.name, row, data_of(row, fits.data), fits.weights[row.layer_id])
    parts += [_data_row(fits.name, tensor_columns(one, key[0]), fits.data[key]) for one, key in fits.inputs.items()]
    for layer_id, key in fits.seconds.items():
        of_row = {"layer_id": layer_id, "tensor_id": key[0], "role": "weight"}
        parts.append(_data_row(fits.name, of_row, fits.data[key]))
    return pl.concat(parts)


def _layer_parts(name: str, row: LayerPlan, found: DataFit | None, weight: WeightFit | None) -> list[pl.DataFrame]:
    parts = []
    if found is not None:
        of_data = {"layer_id": row.layer_id, "tensor_id": row.tensor_id, "role": "data"}
        parts.append(_data_row(name, of_data, found))
    if weight is not None:
        parts.append(_weight_rows(name, row, weight))
    if weight is not None and weight.levels is not None:
        columns = {"fit": name, "layer_id": row.layer_id, "tensor_id": row.tensor_id, **centre_columns(weight.levels)}
        parts.append(_rows("quant_params", columns, weight.levels.fit.centres.size))
    if found is not None and weight is not None and weight.bias is not None:
        parts.append(_bias_rows(name, row, weight.bias, found.fit, weight.fit))
    return parts


def _search_rows(name: str, layer_id: int | None, tensor_id: int | None, fit: Fit) -> pl.DataFrame:
    found = fit.candidates
    if found is None:
        return pl.DataFrame(schema=SCHEMAS["search"])
    index = np.arange(found.loss.size)
    columns = {
        "fit": name, "layer_id": layer_id, "tensor_id": tensor_id, "algorithm": fit.algorithm,
        "candidate": index, "clip_min": found.clip_min, "clip_max": found.clip_max, "scale": found.scale,
        "offset": found.offset, "loss": found.loss, "is_best": index == found.best,
        "exact": False if found.evaluated is None else found.evaluated,
    }  # fmt: skip
    return _rows("search", columns, index.size)


def _data_row(name: str, of_row: Mapping[str, Any], found: DataFit) -> pl.DataFrame:
    fit, quality = found.fit, found.quality
    columns = {
        "fit": name, **of_row, "channel": None, "bits": fit.bits, "scale": float(fit.scale), "offset": int(fit.offset),
        "clip_min": float(fit.clip_min), "clip_max": float(fit.clip_max), "algorithm": fit.algorithm,
        "mse": quality.mse, "sqnr_db": quality.sqnr_db, "clip_rate": quality.clip_rate, "decided_by": fit.algorithm,
    }  # fmt: skip
    return _rows("quant_params", columns, 1)


def _weight_rows(name: str, row: LayerPlan, weight: WeightFit) -> pl.DataFrame:
    fit, quality = weight.fit, weight.quality
    count = int(np.size(fit.scale))
    columns = {
        "fit": name, "layer_id": row.layer_id, "tensor_id": row.tensor_id, "role": "weight",
        "channel": None if fit.axis is None else np.arange(count), "bits": fit.bits, "scale": np.ravel(fit.scale),
        "offset": np.ravel(fit.offset), "clip_min": np.ravel(fit.clip_min), "clip_max": np.ravel(fit.clip_max),
        "algorithm": fit.algorithm, "mse": np.ravel(quality.mse), "sqnr_db": np.ravel(quality.sqnr_db),
        "clip_rate": np.ravel(quality.clip_rate), "decided_by": np.array(weight.decided_by),
    }  # fmt: skip
    return _rows("quant_params", columns, count)


def _bias_rows(name: str, row: LayerPlan, bias: "npt.NDArray[np.float32]", data: Fit, weight: Fit) -> pl.DataFrame:
    """Rows of the bias: its scale is the accumulator's, scale_d * scale_w in float32 (docs/algorithms.md 10)."""
    flat = np.ravel(bias)
    scale = np.broadcast_to(np.ravel(np.float32(data.scale) * weight.scale), flat.shape).astype(np.float32)
    codes = quantize_bias(flat, data.scale, weight.scale)
    error = flat.astype(np.float64) - codes.astype(np.float64) * scale.astype(np.float64)
    columns = {
        "fit": name, "layer_id": row.layer_id, "tensor_id": row.tensor_id, "role": "bias",
        "channel": np.arange(flat.size), "bits": 32, "scale": scale, "offset": 0, "clip_min": None, "clip_max": None,
        "algorithm": None, "mse": error**2, "sqnr_db": None, "clip_rate": None, "decided_by": None,
    }  # fmt: skip
    return _rows("quant_params", columns, flat.size)


def _rows(table: str, columns: Mapping[str, Any], length: int) -> pl.DataFrame:
    """Build rows of a table from columns and from scalars that hold for all of them; what is not given is NULL."""
    schema = SCHEMAS[table]
    series = [
        pl.Series(name, columns[name], dtype)
        if isinstance(columns.get(name), np.ndarray)
        else pl.Series(name, [columns.get(name)] * length, dtype)
        for name, dtype in schema.items()
    ]
    return pl.DataFrame(series)
