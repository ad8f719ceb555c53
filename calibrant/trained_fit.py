"""What training found, as a fit of a run: the same rows that a calibration writes, with algorithm ``ulq`` and those of its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ExportError
from calibrant.fitting.balancing import balance_frame
from calibrant.fitting.fit_rows import parameter_frame, search_frame
from calibrant.fitting.fits import DataFit, DataKey, Fits, WeightFit, data_key
from calibrant.fitting.floored_scales import dead_channels, floored_data
from calibrant.fitting.run_statistics import RunStatistics
from calibrant.fitting.weight_range import weight_in_range
from calibrant.ingest.parameters import Parameters
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.affine import Fit, code_range, make_fit
from calibrant.quantizers.half_factors import half_fit
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.quantizers.part_plans import DataPlan, WeightPlan
from calibrant.quantizers.plan import resolve_plan
from calibrant.quantizers.quality import data_quality
from calibrant.stats.events import Event
from calibrant.stats.run import Run
from calibrant.stats.tables import LayerRow, layer_rows
from calibrant.stats.weights import channels_first

if TYPE_CHECKING:
    from calibrant.quantizers.qat.trained import TrainedLayer

FloatArray = npt.NDArray[np.floating]
_RULE = "retrain config.json"
_ROUNDINGS = 16  # how many last places the exporter or the fusion may round a folded weight by


@dataclass(frozen=True, eq=False)
class TrainedFit:
    """A fit of trained layers.

    Attributes:
        frames: rows for the tables of a fit.
        events: what a person should know.
    """

    frames: Mapping[str, pl.DataFrame]
    events: tuple[Event, ...]


def trained_fit(run: Run, name: str, trained: Sequence["TrainedLayer"], *, half: bool = False) -> TrainedFit:
    """Write what training found as rows of a run.

    A BatchNormalization that was folded into a weight, by the exporter or by this package, multiplies its scales by
    ``|gamma| / sqrt(var + eps)``; one scale becomes one an output channel then (docs/algorithms.md 7). The factor is read off the
    weight, so that it does not matter who folded.

    Args:
        run: a run of the trained model in float.
        name: of the fit.
        trained: the layers by their names in the run.
        half: whether the steps of the data are rounded to float16 (``FORCE_FP16_QUANT``).

    Raises:
        ExportError: none of the layers can be quantized in the exported model, or the exporter changed a weight; says why.
        RangeError: a bias leaves int32 at every scale; names the layer.
    """
    rows = {row.layer: row for row in layer_rows(run.read("layers"))}
    by_name = {one.settings.layer: one for one in trained}
    possible = [one for name, one in by_name.items() if name in rows and rows[name].quantizable]
    left = tuple(
        _left(name, rows.get(name)) for name in by_name if name not in {one.settings.layer for one in possible}
    )
    if not possible:
        message = f"no trained layer can be quantized in the exported model; {left[0].message}"
        raise ExportError(message)
    plan = resolve_plan(QuantConfig(), list(rows.values()))
    plans = tuple(_planned(row, by_name.get(row.layer), rows[row.layer]) for row in plan.rows)
    fits, events = _fits(run, name, [row for row in plans if row.enabled], by_name, rows, half=half)
    frames = {
        "plan": replace(plan, rows=plans).frame(name),
        "search": search_frame(fits),
        "quant_params": parameter_frame(fits),
        "balance": balance_frame(name, {}),
    }
    return TrainedFit(frames, (*left, *events, *fits.events()))


def _left(layer: str, row: LayerRow | None) -> Event:
    reason = "the exported model has no such layer" if row is None else row.reason
    return Event("fit", "warn", f"trained layer '{layer}' stays in float: {reason}", layer)


def _planned(row: LayerPlan, trained: "TrainedLayer | None", layer: LayerRow) -> LayerPlan:
    if trained is None or not layer.quantizable:
        reason = layer.reason or "it was not trained for quantization"
        return replace(row, enabled=False, reason=reason, enabled_decided_by=_RULE)
    data, weight = trained.settings.data, trained.settings.weight
    return replace(
        row,
        enabled=True,
        reason=None,
        data=DataPlan("ulq", data.bits, data.asymmetric),
        weight=WeightPlan(weight.algorithm, weight.bits, weight.channel_wise),
        enabled_decided_by=_RULE,
        data_decided_by=_RULE,
        asymmetric_decided_by=_RULE,
        weight_decided_by=_RULE,
    )


def _fits(
    run: Run,
    name: str,
    plans: Sequence[LayerPlan],
    trained: Mapping[str, "TrainedLayer"],
    rows: Mapping[str, LayerRow],
    *,
    half: bool,
) -> tuple[Fits, list[Event]]:
    statistics, parameters = RunStatistics(run, {}, {}), Parameters(run.model_folder)
    data: dict[DataKey, DataFit] = {}
    weights: dict[int, WeightFit | None] = {}
    events: list[Event] = []
    apart = [
        replace(plan, joint=plan.layer) for plan in plans
    ]  # layers that read one tensor may have ranges of their own
    for plan in apart:
        key, learned = data_key(plan), trained[plan.layer].data
        data[key] = _data_fit(statistics, key[0], half_fit(learned) if half else learned)
        weight, before = _weight_rows(parameters, rows[plan.layer], trained[plan.layer].values)
        fit, turned = folded_fit(trained[plan.layer].weight, weight, folded_factor(plan.layer, before, weight))
        events += [Event("fit", "warn", turned, plan.layer)] if turned else []
        weights[plan.layer_id] = _weight_fit(parameters, rows[plan.layer], weight, fit, data[key].fit)
    return Fits(name, apart, {}, {}, data, weights), events


def _data_fit(statistics: RunStatistics, tensor_id: int, fit: Fit) -> DataFit:
    histogram = statistics.histogram(tensor_id)
    return DataFit(fit, data_quality(histogram, fit), floored_data(statistics.name(tensor_id), histogram, fit))


def _weight_rows(parameters: Parameters, row: LayerRow, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the exported weight and the trained one, both with one row an output channel."""
    kind = "ConvTranspose" if row.op_type == "ConvTranspose" else "Conv"  # PyTorch lays a Linear out as a convolution
    return channels_first(parameters.value(row.weight or ""), row.op_type, row.groups), channels_first(
        values, kind, row.groups
    )


def folded_factor(layer: str, before: FloatArray, after: FloatArray) -> FloatArray | None:
    """Return what each output channel of a weight was multiplied by, float64 of shape (C,); None where nothing changed.

    Args:
        layer: its name, for the error.
        before: the weight as it was trained, one row an output channel.
        after: the same as it was exported.

    Raises:
        ExportError: it was changed by more than a factor a channel.

    Example:
        >>> folded_factor("conv", np.float32([[1, 2], [0, 0]]), np.float32([[-2, -4], [0, 0]])).tolist()
        [-2.0, 1.0]
    """
    if np.array_equal(before, after):
        return None
    if before.shape == after.shape:
        first, second = before.astype(np.float64), after.astype(np.float64)
        size = (first**2).sum(axis=1)
        factor: FloatArray = np.where(size > 0, (first * second).sum(axis=1) / np.where(size > 0, size, 1), 1)
        off = np.abs(second - first * factor[:, np.newaxis]).max(axis=1)
        if np.all(off <= _ROUNDINGS * np.finfo(after.dtype).eps * np.abs(second).max(axis=1)):
            return factor
    message = f"layer '{layer}': its exported weight is no multiple of the trained one, channel by channel; leave the layer in float"
    raise ExportError(message)


def _weight_fit(parameters: Parameters, row: LayerRow, weight: FloatArray, fit: Fit, data: Fit) -> WeightFit:
    bias = None if row.bias is None else np.asarray(parameters.value(row.bias), np.float32)
    found = weight_in_range(row.layer, weight, fit, bias, data, strict=False)
    events = (*dead_channels(row.layer, weight, fit), *found.events)
    return WeightFit(found.fit, found.quality, bias, found.decided_by, events, None)


def folded_fit(fit: Fit, rows: FloatArray, factor: FloatArray | None) -> tuple[Fit, str]:
    """Return the scales of a weight after something was folded into it, and what was lost thereby, in words or empty.

    A channel whose sign was turned cannot hold the least code any more: ``-2**(b-1)`` becomes ``2**(b-1)``, one step too far.

    Args:
        fit: of the weight as it was trained.
        rows: the folded weight, one row an output channel.
        factor: what each output channel was multiplied by, or None.

    Example:
        >>> folded_fit(make_fit(np.float32(0.5), np.int32(0), 8), np.float32([[1], [1]]), np.float64([2, -1]))[0].scale.tolist()
        [1.0, 0.5]
    """
    if factor is None:
        return fit, ""
    size = np.abs(factor)
    scale = (np.broadcast_to(fit.scale, size.shape) * np.where(size > 0, size, 1)).astype(np.float32)
    folded = make_fit(scale, np.zeros(scale.shape, np.int32), fit.bits, axis=0, algorithm=fit.algorithm)
    beyond = np.rint(rows / scale[:, np.newaxis]) > code_range(fit.bits)[1]
    turned = beyond & (factor < 0)[:, np.newaxis]
    if not turned.any():
        return folded, ""
    count, channels = int(turned.sum()), int(turned.any(axis=1).sum())
    text = f"{count} weights of {channels} output channels lose one step: a BatchNormalization with negative gamma turns their sign"
    return folded, text
