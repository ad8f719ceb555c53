"""One calibration of a run: plan the layers and fit scales on the statistics.

No inference: everything comes from the run's tables and from the weights of its prepared model.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ConfigError, EmptyDataError, RangeError
from calibrant.fitting.balancing import (
    Activations,
    BalancedLayer,
    balance_events,
    balance_frame,
    balance_layers,
)
from calibrant.fitting.captured_tensors import tensor_ids, with_products
from calibrant.fitting.exact_candidates import exact_events
from calibrant.fitting.fit_rows import parameter_frame, search_frame
from calibrant.fitting.fits import DataFit, DataKey, Fits, WeightFit, data_key, data_of
from calibrant.fitting.floored_scales import dead_channels, floored_data
from calibrant.fitting.joint import joint_tensors, with_shifts
from calibrant.fitting.levels import fit_levels, of_levels
from calibrant.fitting.run_statistics import RunStatistics
from calibrant.fitting.weight_range import weight_in_range
from calibrant.ingest.parameters import Parameters
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.arq import fit_arq
from calibrant.quantizers.half_factors import half_fit
from calibrant.quantizers.hfmg import HfmgOptions, fit_hfmg
from calibrant.quantizers.ifmr import fit_ifmr
from calibrant.quantizers.plan import LayerPlan, Plan, TensorPlan, resolve_plan
from calibrant.quantizers.quality import data_quality
from calibrant.stats.events import Event, Progress
from calibrant.stats.run import Run
from calibrant.stats.tables import LayerRow, layer_rows
from calibrant.stats.weights import channels_first

FloatArray = npt.NDArray[np.floating]

_THREADS = 2  # the kernels release the interpreter lock


@dataclass(frozen=True)
class Calibration:
    """Tables and events of one fit.

    Attributes:
        frames: the rows of `plan`, `search`, `quant_params` and `balance`, by table.
        events: warnings and decisions.
    """

    frames: Mapping[str, pl.DataFrame]
    events: tuple[Event, ...]


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
    plan = with_products(run, resolve_plan(config, list(layers.values()), other_nodes=parameters.nodes))
    _require_a_layer(plan)
    measured = [row for row in plan.enabled if not row.applied.weight_only]
    balanced = balance_layers(run, plan.enabled, layers, parameters, again)
    statistics = RunStatistics(run, balanced, joint_tensors(measured))
    inputs, seconds = _input_keys(run, plan), _second_keys(plan)
    keys = [*map(data_key, measured), *inputs.values(), *seconds.values()]
    data = _fit_all_data(statistics, keys, exact=exact, progress=progress)
    weights = {
        row.layer_id: _fit_weight(
            parameters,
            layers[row.layer_id],
            row,
            data_of(row, data),
            balanced.get(row.layer_id),
            strict=strict_amct,
        )
        for row in plan.enabled
    }
    fits = Fits(name, plan.enabled, inputs, seconds, data, weights)
    frames = {
        "plan": plan.frame(name),
        "search": search_frame(fits),
        "quant_params": parameter_frame(fits),
        "balance": balance_frame(name, balanced),
    }
    searches = [(statistics.name(key[0]), found.fit.candidates) for key, found in data.items()]
    events = (*plan.events, *balance_events(run, balanced), *fits.events(), *exact_events(searches))
    return Calibration(with_shifts(run, measured, frames, again), events)


def _input_keys(run: Run, plan: Plan) -> dict[TensorPlan, DataKey]:
    return {one: (found, one.data, None) for one, found in tensor_ids(run, plan.enabled_tensors).items()}


def _second_keys(plan: Plan) -> dict[int, DataKey]:
    """Return the second inputs of products of two variables: they take the place of a weight."""
    return {row.layer_id: (row.tensor_id_b, row.data, None) for row in plan.enabled if row.tensor_id_b is not None}


def _fit_all_data(
    statistics: RunStatistics, asked: Sequence[DataKey], *, exact: bool, progress: Progress
) -> dict[DataKey, DataFit]:
    """Fit each distinct (tensor, settings) once: layers and inputs that share both share the quantizer, unless they are balanced."""
    keys = list(dict.fromkeys(asked))
    results: dict[DataKey, DataFit] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for key, result in zip(keys, pool.map(partial(_fit_data, statistics, exact), keys), strict=True):
            results[key] = result
            progress("fit", len(results), len(keys))
    return results


def _fit_data(statistics: RunStatistics, exact: bool, key: DataKey) -> DataFit:
    tensor_id, plan, owner = key
    name, options = statistics.name(tensor_id), plan.options()
    histogram, searched = statistics.histogram(tensor_id, owner), statistics.searched(tensor_id, owner)
    with _naming(f"tensor '{name}'"):
        if isinstance(options, HfmgOptions):
            fit = fit_hfmg(searched, options)
        else:
            fit = fit_ifmr(searched, options, statistics.values(tensor_id, owner) if exact else None)
        fit = half_fit(fit) if plan.half else fit
        return DataFit(fit, data_quality(histogram, fit), floored_data(name, histogram, fit))


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
    measured: DataFit | None,
    balanced: BalancedLayer | None,
    *,
    strict: bool,
) -> WeightFit | None:
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
    return WeightFit(*of_levels(found.fit, found.quality, levels), bias, found.decided_by, events, levels)


def _require_a_layer(plan: Plan) -> None:
    if not plan.enabled and not plan.enabled_tensors:
        message = "no layer left to quantize: every layer is skipped; change the configuration"
        raise ConfigError(message)
