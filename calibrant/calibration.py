"""One calibration of a run: plan the layers and fit scales on the statistics.

No inference: everything comes from the run's tables and from the weights of its prepared model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ConfigError, EmptyDataError, RangeError, RunError
from calibrant.fitting.balancing import (
    Activations,
    BalancedLayer,
    balance_events,
    balance_frame,
    balance_layers,
    is_balanced,
)
from calibrant.fitting.captured_tensors import tensor_columns, tensor_ids, with_products
from calibrant.fitting.joint import joint_tensors, with_shifts
from calibrant.fitting.levels import Levels, centre_columns, fit_levels, of_levels, search_columns
from calibrant.fitting.weight_range import dead_channels, floored_data, weight_in_range
from calibrant.ingest.parameters import Parameters
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.affine import Fit
from calibrant.quantizers.arq import fit_arq
from calibrant.quantizers.bias import quantize_bias
from calibrant.quantizers.half_factors import half_fit
from calibrant.quantizers.hfmg import HfmgOptions, fit_hfmg
from calibrant.quantizers.ifmr import fit_ifmr
from calibrant.quantizers.plan import DataPlan, LayerPlan, Plan, TensorPlan, resolve_plan
from calibrant.quantizers.quality import DataQuality, WeightQuality, data_quality
from calibrant.stats.events import Event, Progress
from calibrant.stats.histogram import LogLinearHistogram
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS, LayerRow, layer_rows
from calibrant.stats.weights import channels_first

FloatArray = npt.NDArray[np.floating]
# tensor, settings, and: the layer where the data is balanced for it alone, or the Add whose branches share a scale
DataKey = tuple[int, DataPlan, int | str | None]

_THREADS = 2  # the kernels release the interpreter lock


@dataclass(frozen=True)
class Calibration:
    """Tables and events of one fit.

    Attributes:
        frames: the rows of `plan`, `search` and `quant_params`.
        events: warnings and decisions.
    """

    frames: Mapping[str, pl.DataFrame]
    events: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class _DataFit:
    fit: Fit
    quality: DataQuality
    events: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class _WeightFit:
    fit: Fit
    quality: WeightQuality
    bias: "npt.NDArray[np.float32] | None"
    decided_by: tuple[str, ...]
    events: tuple[Event, ...]
    levels: Levels | None


class _Statistics:
    """The histograms of a run, each read when a layer asks for it."""

    def __init__(self, run: Run, balanced: Mapping[int, BalancedLayer], joint: Mapping[str, tuple[int, ...]]) -> None:
        self._run = run
        self._balanced = balanced
        self._joint = joint
        _require_tables(run, "tensors", "histograms", "extremes")
        self._tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
        self._bins = _by_tensor(run.read("histograms"))
        self._extremes = _by_tensor(run.read("extremes"))

    def name(self, tensor_id: int) -> str:
        return str(self._tensors[tensor_id]["tensor"])

    def searched(self, tensor_id: int, owner: int | str | None) -> LogLinearHistogram:
        """Return what a scale is searched on: the tensor's histogram, or that of all tensors which share it."""
        tensors = self._joint[owner] if isinstance(owner, str) else (tensor_id,)
        return reduce(LogLinearHistogram.merge, (self.histogram(one, owner) for one in tensors))

    def histogram(self, tensor_id: int, owner: int | str | None = None) -> LogLinearHistogram:
        if isinstance(owner, int):
            return self._balanced[owner].histogram
        counters = pl.DataFrame([self._tensors[tensor_id]], schema=SCHEMAS["tensors"])
        names = ("n", "n_zero", "n_nan", "n_inf", "min", "max", "mantissa_bits")
        bins = self._bins.get(tensor_id, pl.DataFrame(schema=SCHEMAS["histograms"])).drop("tensor_id")
        extremes = self._extremes.get(tensor_id, pl.DataFrame(schema=SCHEMAS["extremes"])).drop("tensor_id")
        return LogLinearHistogram.from_tables(bins, extremes, counters.select(names))

    def values(self, tensor_id: int, owner: int | str | None = None) -> "_RawValues":
        tensors = self._joint[owner] if isinstance(owner, str) else (tensor_id,)
        balanced = self._balanced[owner] if isinstance(owner, int) else None
        return _RawValues(self._run, [self.name(one) for one in tensors], balanced)


class _RawValues:
    """The captured activations of tensors, maybe balanced, read again by each iteration, never all at once."""

    def __init__(self, run: Run, tensors: Sequence[str], balanced: BalancedLayer | None) -> None:
        self._run, self._tensors, self._balanced = run, tensors, balanced

    def __iter__(self) -> Iterator[FloatArray]:
        arrays = (np.asarray(array) for tensor in self._tensors for _, array in self._run.captures(tensor))
        return arrays if self._balanced is None else map(self._balanced.data, arrays)


def _require_tables(run: Run, *tables: str) -> None:
    for table in tables:
        if not run.table_files(table):
            message = f"{run.path}: the table '{table}' is gone; make it again with calibrant stats, or capture with --restart"
            raise RunError(message)


def _by_tensor(frame: pl.DataFrame) -> dict[int, pl.DataFrame]:
    parts = frame.partition_by("tensor_id", as_dict=True, maintain_order=True)
    return {int(key[0]): part for key, part in parts.items()}


def calibrate(
    run: Run,
    config: QuantConfig,
    name: str,
    *,
    exact: bool,
    progress: Progress,
    strict_amct: bool = False,
    again: Activations | None = None,
) -> Calibration:
    """Fit every layer of the plan.

    Args:
        run: a complete run.
        config: what to quantize and how.
        name: name of the fit, for the rows.
        exact: search on raw values.
        progress: called as ``progress("fit", done, total)``.
        strict_amct: refuse a bias outside int32, as AMCT does, instead of raising the weight's scale.
        again: gives activations of a run that kept only statistics, for layers that are balanced.

    Raises:
        ConfigError: the configuration names what the model does not have, or leaves no layer to quantize.
        RangeError: `strict_amct` and a bias leaves int32.
        RunError: `exact` without raw captures; layers to balance without them and without `again`.
    """
    parameters = Parameters(run.model_folder)
    layers = {row.layer_id: row for row in layer_rows(run.read("layers"))}
    plan = resolve_plan(config, list(layers.values()), other_nodes=parameters.nodes)
    plan = with_products(run, plan)
    enabled = plan.enabled
    measured = [row for row in enabled if not row.applied.weight_only]
    balanced = balance_layers(run, enabled, layers, parameters, again)
    inputs = {one: (found, one.data, None) for one, found in tensor_ids(run, plan.enabled_tensors).items()}
    seconds = {row.layer_id: (row.tensor_id_b, row.data, None) for row in enabled if row.tensor_id_b is not None}
    keys = [*map(_data_key, measured), *inputs.values(), *seconds.values()]
    statistics = _Statistics(run, balanced, joint_tensors(measured))
    data = _fit_all_data(statistics, keys, exact=exact, progress=progress)
    weights = {
        row.layer_id: _fit_weight(
            parameters,
            layers[row.layer_id],
            row,
            _data_of(row, data),
            balanced.get(row.layer_id),
            strict=strict_amct,
        )
        for row in enabled
    }
    _require_a_layer(plan)
    frames = {
        "plan": plan.frame(name),
        "search": pl.concat(
            [
                _search_frame(name, enabled, data, weights),
                *_tensor_searches(name, inputs, data),
                *_second_searches(name, seconds, data),
            ]
        ),
        "quant_params": pl.concat(
            [
                _parameter_frame(name, enabled, data, weights),
                *_tensor_rows(name, inputs, data),
                *_second_rows(name, seconds, data),
            ]
        ),
        "balance": balance_frame(name, balanced),
    }
    told = [*(part.events for part in data.values()), *(part.events for part in weights.values() if part is not None)]
    found = (event for events in told for event in events)
    frames = with_shifts(run, measured, frames, again)
    return Calibration(frames, (*plan.events, *balance_events(run, balanced), *found))


def _data_key(row: LayerPlan) -> DataKey:
    if row.tensor_id is None:
        message = f"layer '{row.layer}' has no captured input; capture the run again"
        raise ConfigError(message)
    return row.tensor_id, row.applied.data, row.joint or (row.layer_id if is_balanced(row) else None)


def _data_of(row: LayerPlan, data: Mapping[DataKey, _DataFit]) -> _DataFit | None:
    """Return the fit of a layer's data; None where its weight alone is quantized."""
    return None if row.applied.weight_only else data[_data_key(row)]


def _fit_all_data(
    statistics: _Statistics, asked: Sequence[DataKey], *, exact: bool, progress: Progress
) -> dict[DataKey, _DataFit]:
    """Fit each distinct (tensor, settings) once: layers and inputs that share both share the quantizer, unless they are balanced."""
    keys = list(dict.fromkeys(asked))
    results: dict[DataKey, _DataFit] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for key, result in zip(keys, pool.map(_data_fitter(statistics, exact=exact), keys), strict=True):
            results[key] = result
            progress("fit", len(results), len(keys))
    return results


def _data_fitter(statistics: _Statistics, *, exact: bool) -> Callable[[DataKey], _DataFit]:
    def fit_one(key: DataKey) -> _DataFit:
        tensor_id, plan, owner = key
        histogram, searched, options = (
            statistics.histogram(tensor_id, owner),
            statistics.searched(tensor_id, owner),
            plan.options(),
        )
        with _naming(f"tensor '{statistics.name(tensor_id)}'"):
            if isinstance(options, HfmgOptions):
                fit = fit_hfmg(searched, options)
            else:
                fit = fit_ifmr(searched, options, statistics.values(tensor_id, owner) if exact else None)
            fit = half_fit(fit) if plan.half else fit
            return _DataFit(fit, data_quality(histogram, fit), floored_data(statistics.name(tensor_id), histogram, fit))

    return fit_one


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say where the values lie that a quantizer refuses."""
    try:
        yield
    except (EmptyDataError, RangeError) as error:
        message = f"{where}: {error}"
        raise type(error)(message) from error


def _fit_weight(
    parameters: Parameters,
    layer: LayerRow,
    row: LayerPlan,
    measured: _DataFit | None,
    balanced: BalancedLayer | None,
    *,
    strict: bool,
) -> _WeightFit | None:
    if layer.weight is None:
        return None
    value = parameters.value(layer.weight)
    weight = channels_first(value if balanced is None else balanced.weight(value), layer.op_type, layer.groups)
    with _naming(f"weight of layer '{row.layer}'"):
        fit = fit_arq(weight, row.applied.weight.options())
    data = None if measured is None else measured.fit
    bias = None if layer.bias is None or data is None else np.asarray(parameters.value(layer.bias), np.float32)
    found = weight_in_range(row.layer, weight, fit, bias, data, strict=strict)
    events = (*dead_channels(row.layer, weight, fit), *found.events)
    levels = fit_levels(weight, found.fit, row.applied.weight)
    return _WeightFit(*of_levels(found.fit, found.quality, levels), bias, found.decided_by, events, levels)


def _require_a_layer(plan: Plan) -> None:
    if not plan.enabled and not plan.enabled_tensors:
        message = "no layer left to quantize: every layer is skipped; change the configuration"
        raise ConfigError(message)


def _search_frame(
    name: str,
    rows: Sequence[LayerPlan],
    data: Mapping[DataKey, _DataFit],
    weights: Mapping[int, _WeightFit | None],
) -> pl.DataFrame:
    parts = []
    for row in rows:
        if (found := _data_of(row, data)) is not None:
            parts.append(_search_rows(name, row.layer_id, row.tensor_id, found.fit))
        if (weight := weights[row.layer_id]) is not None and weight.levels is not None:
            of_row = {"fit": name, "layer_id": row.layer_id, "tensor_id": None}
            parts.append(_rows("search", {**of_row, **search_columns(weight.levels)}, 2))
    return pl.concat([pl.DataFrame(schema=SCHEMAS["search"]), *parts])


def _tensor_searches(
    name: str, inputs: Mapping[TensorPlan, DataKey], data: Mapping[DataKey, _DataFit]
) -> list[pl.DataFrame]:
    """Rows of the inputs of other nodes, those of a tensor and its settings once."""
    return [_search_rows(name, None, key[0], data[key].fit) for key in dict.fromkeys(inputs.values())]


def _search_rows(name: str, layer_id: int | None, tensor_id: int | None, fit: Fit) -> pl.DataFrame:
    found = fit.candidates
    if found is None:
        return pl.DataFrame(schema=SCHEMAS["search"])
    index = np.arange(found.loss.size)
    columns = {
        "fit": name, "layer_id": layer_id, "tensor_id": tensor_id, "algorithm": fit.algorithm,
        "candidate": index, "clip_min": found.clip_min, "clip_max": found.clip_max, "scale": found.scale,
        "offset": found.offset, "loss": found.loss, "is_best": index == found.best, "exact": found.exact,
    }  # fmt: skip
    return _rows("search", columns, index.size)


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


def _parameter_frame(
    name: str,
    rows: Sequence[LayerPlan],
    data: Mapping[DataKey, _DataFit],
    weights: Mapping[int, _WeightFit | None],
) -> pl.DataFrame:
    parts = [pl.DataFrame(schema=SCHEMAS["quant_params"])]
    for row in rows:
        found, weight = _data_of(row, data), weights[row.layer_id]
        if found is not None:
            of_data = {"layer_id": row.layer_id, "tensor_id": row.tensor_id, "role": "data"}
            parts.append(_data_row(name, of_data, found))
        if weight is not None:
            parts.append(_weight_rows(name, row, weight))
        if weight is not None and weight.levels is not None:
            of_row = {"fit": name, "layer_id": row.layer_id, "tensor_id": row.tensor_id}
            parts.append(
                _rows("quant_params", {**of_row, **centre_columns(weight.levels)}, weight.levels.fit.centres.size)
            )
        if found is not None and weight is not None and weight.bias is not None:
            parts.append(_bias_rows(name, row, weight.bias, found.fit, weight.fit))
    return pl.concat(parts)


def _second_searches(name: str, seconds: Mapping[int, DataKey], data: Mapping[DataKey, _DataFit]) -> list[pl.DataFrame]:
    return [_search_rows(name, layer_id, key[0], data[key].fit) for layer_id, key in seconds.items()]


def _second_rows(name: str, seconds: Mapping[int, DataKey], data: Mapping[DataKey, _DataFit]) -> list[pl.DataFrame]:
    """Rows of the second inputs of products: they take the place of a weight."""
    return [
        _data_row(name, {"layer_id": layer_id, "tensor_id": key[0], "role": "weight"}, data[key])
        for layer_id, key in seconds.items()
    ]


def _tensor_rows(
    name: str, inputs: Mapping[TensorPlan, DataKey], data: Mapping[DataKey, _DataFit]
) -> list[pl.DataFrame]:
    return [_data_row(name, tensor_columns(one, key[0]), data[key]) for one, key in inputs.items()]


def _data_row(name: str, of_row: Mapping[str, Any], found: _DataFit) -> pl.DataFrame:
    fit, quality = found.fit, found.quality
    columns = {
        "fit": name, **of_row, "channel": None, "bits": fit.bits, "scale": float(fit.scale), "offset": int(fit.offset),
        "clip_min": float(fit.clip_min), "clip_max": float(fit.clip_max), "algorithm": fit.algorithm,
        "mse": quality.mse, "sqnr_db": quality.sqnr_db, "clip_rate": quality.clip_rate, "decided_by": fit.algorithm,
    }  # fmt: skip
    return _rows("quant_params", columns, 1)


def _weight_rows(name: str, row: LayerPlan, weight: _WeightFit) -> pl.DataFrame:
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
    """Rows of the bias: its scale is the accumulator's, scale_d * scale_w in float32 (spec algorithms 10)."""
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
