"""DMQ on a run: the factor of each input channel of a layer, and the statistics of its balanced data (docs/algorithms.md 5).

A factor comes from the greatest magnitudes of the channel over all samples; data are divided by it and weights multiplied, so that the
layer computes the same. The histogram of the divided data cannot be had from that of the data: it needs the activations, from the
run's raw captures or from a second pass of the model over the data.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import CalibrantError, DataError, RunError
from calibrant.ingest.parameters import Parameters
from calibrant.quantizers.dmq import DmqOptions, fit_dmq
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.stats.captures import read_capture_rows
from calibrant.stats.events import Event
from calibrant.stats.histogram import CountScratch, LogLinearHistogram
from calibrant.stats.input_channels import data_axis, data_maxima, divided, multiplied, weight_maxima
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS, LayerRow

if TYPE_CHECKING:
    from calibrant.ingest.data import DataSource  # loads the graph library, which a fit does not need

Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating]
Activations = Callable[
    [Collection[int]], Iterator[tuple[int, npt.NDArray[Any]]]
]  # samples of these tensors, stacked on axis 0


@dataclass(frozen=True, eq=False)
class BalancedLayer:
    """A layer whose data and weight are balanced.

    Attributes:
        layer: the layer.
        factors: shape (Cin,).
        histogram: of its data, each channel divided by its factor.
    """

    layer: LayerRow
    factors: Float32Array
    histogram: LogLinearHistogram

    def weight(self, weight: FloatArray) -> Float32Array:
        """Return the layer's weight, each input channel multiplied by its factor, in float32."""
        return multiplied(weight, self.factors, self.layer.op_type, self.layer.groups)

    def data(self, values: FloatArray) -> Float32Array:
        """Return one sample of the layer's data, each input channel divided by its factor."""
        return np.asarray(divided(values[None], self.factors, self.layer.op_type)[0], np.float32)


def is_balanced(row: LayerPlan) -> bool:
    """Return whether a layer's data and weight are balanced; where the weight alone is quantized there is nothing to balance."""
    applied = row.applied
    return row.enabled and applied.migration_strength is not None and not applied.weight_only


def balance_layers(
    run: Run,
    rows: Sequence[LayerPlan],
    layers: Mapping[int, LayerRow],
    parameters: Parameters,
    again: Activations | None = None,
) -> dict[int, BalancedLayer]:
    """Balance the layers that the plan asks it for.

    Args:
        run: a complete run.
        rows: the plan.
        layers: the run's layers by their number.
        parameters: the weights of its model.
        again: gives activations of a run that kept only their statistics.

    Returns:
        layer_id -> the balanced layer.

    Raises:
        RunError: only statistics were kept, and `again` is not given.
        RangeError: a factor leaves [2**-23, 2**23]; names the layer.
    """
    wanted = [row for row in rows if is_balanced(row)]
    if not wanted:
        return {}
    activations = activations_of(run, "dmq_balancer", wanted[0].layer, again)
    factors = fit_factors(run, wanted, layers, parameters, activations)
    histograms = _histograms([layers[layer_id] for layer_id in factors], factors, activations)
    return {layer_id: BalancedLayer(layers[layer_id], factors[layer_id], histograms[layer_id]) for layer_id in factors}


def fit_factors(
    run: Run,
    rows: Sequence[LayerPlan],
    layers: Mapping[int, LayerRow],
    parameters: Parameters,
    activations: Activations,
) -> dict[int, Float32Array]:
    """Return the factors of layers that are to be balanced, by layer_id; shape (Cin,) each.

    Args:
        run: a complete run.
        rows: the plans of these layers.
        layers: the run's layers by their number.
        parameters: the weights of its model.
        activations: reads the data of layers whose channel maxima the run has not counted.

    Raises:
        RangeError: a factor leaves [2**-23, 2**23]; names the layer.
    """
    maxima = _maxima_of_data(run, [layers[row.layer_id] for row in rows], activations)
    return {row.layer_id: _factors(row, layers[row.layer_id], maxima[row.layer_id], parameters) for row in rows}


def balance_frame(name: str, balanced: Mapping[int, BalancedLayer]) -> pl.DataFrame:
    """Return the rows of the `balance` table of one fit."""
    parts = [
        pl.DataFrame({"layer_id": layer_id, "channel": np.arange(one.factors.size), "factor": one.factors})
        for layer_id, one in sorted(balanced.items())
    ]
    if not parts:
        return pl.DataFrame(schema=SCHEMAS["balance"])
    rows = pl.concat(parts).with_columns(fit=pl.lit(name))
    return rows.select(pl.col(column).cast(dtype) for column, dtype in SCHEMAS["balance"].items())


def balance_events(run: Run, balanced: Mapping[int, BalancedLayer]) -> list[Event]:
    """Say that a second pass was made."""
    if not balanced or run.info.has_all_activations:
        return []
    count = f"{len(balanced)} layer{'s' if len(balanced) > 1 else ''}"
    text = f"dmq_balancer: the data was read a second time for the statistics of {count}, since {run.info.kept_text}"
    return [Event("fit", "info", text)]


def check_second_pass(rows: Sequence[LayerPlan], source: "DataSource") -> None:
    """Check before a capture of statistics alone that the data can be read a second time, where a layer is to be balanced.

    Raises:
        DataError: it cannot.
    """
    first = next((row.layer for row in rows if is_balanced(row) or row.joint is not None), None)
    if first is not None and source.read_once:
        cause = "dmq_balancer" if any(map(is_balanced, rows)) else "joint_quant"
        message = (
            f"{source.name}: {cause} of layer '{first}' reads it twice where not all activations are kept, and it can be read once; "
            "give a list, an object with __iter__, a reader with rewind() or a file, or keep raw activations"
        )
        raise DataError(message)


def activations_of(run: Run, feature: str, layer: str, again: Activations | None) -> Activations:
    """Return what reads the activations of all samples: from the raw captures, else in a second pass.

    Args:
        run: a complete run.
        feature: what needs them, for the message.
        layer: for which layer, for the message.
        again: gives activations of a run that kept only statistics.

    Raises:
        RunError: not all activations were kept, and `again` is not given.
    """
    if run.info.has_all_activations:
        return partial(_captured, run)
    if again is not None:
        return again
    message = (
        f"{run.path}: {feature} of layer '{layer}' needs the activations, and {run.info.kept_text}; capture again "
        "with --keep raw, or use calibrant run with the data, which then reads it twice"
    )
    raise RunError(message)


def _captured(run: Run, tensor_ids: Collection[int]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    return ((t, values) for t in sorted(tensor_ids) for _, values in read_capture_rows(run.path, t))


def _maxima_of_data(run: Run, layers: Sequence[LayerRow], activations: Activations) -> dict[int, Float32Array]:
    """Return the channel maxima of each layer's data: the run's own, or of a pass where those count along another axis."""
    tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
    channels = run.read("channels").sort("tensor_id", "channel")
    known, others = {}, []
    for layer in layers:
        tensor = tensors[layer.tensor_id]
        axis = data_axis(layer.op_type)
        if tensor["channel_axis"] == (axis if axis >= 0 else tensor["rank"] + axis):
            known[layer.layer_id] = channels.filter(tensor_id=layer.tensor_id)["abs_max"].fill_null(0).to_numpy()
        else:
            others.append(layer)
    return known | _maxima_of_a_pass(others, activations)


def _maxima_of_a_pass(layers: Sequence[LayerRow], activations: Activations) -> dict[int, Float32Array]:
    maxima: dict[int, Float32Array] = {}
    for layer, values in _values_of(layers, activations):
        found = data_maxima(values, layer.op_type)
        maxima[layer.layer_id] = np.maximum(maxima.get(layer.layer_id, found), found)
    return maxima


def _histograms(
    layers: Sequence[LayerRow], factors: Mapping[int, Float32Array], activations: Activations
) -> dict[int, LogLinearHistogram]:
    """Count the divided data of all layers in one pass."""
    histograms, scratch = {layer.layer_id: LogLinearHistogram() for layer in layers}, CountScratch()
    for layer, values in _values_of(layers, activations):
        histograms[layer.layer_id].update(divided(values, factors[layer.layer_id], layer.op_type), scratch=scratch)
    return histograms


def _values_of(layers: Sequence[LayerRow], activations: Activations) -> Iterator[tuple[LayerRow, npt.NDArray[Any]]]:
    """Yield the data of layers, some samples at a time; a tensor that several layers read is read once."""
    readers: dict[int, list[LayerRow]] = {}
    for layer in layers:
        if layer.tensor_id is not None:
            readers.setdefault(layer.tensor_id, []).append(layer)
    if readers:
        yield from ((layer, values) for t, values in activations(readers.keys()) for layer in readers[t])


def _factors(row: LayerPlan, layer: LayerRow, data: Float32Array, parameters: Parameters) -> Float32Array:
    weight = parameters.value(str(layer.weight))
    strength = row.applied.migration_strength
    options = DmqOptions() if strength is None else DmqOptions(strength)
    try:
        return fit_dmq(data, weight_maxima(weight, layer.op_type, layer.groups), options)
    except CalibrantError as error:
        message = f"layer '{row.layer}': {error}"
        raise type(error)(message) from error
