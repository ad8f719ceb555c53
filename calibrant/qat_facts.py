"""What a run knows of the layers of a configuration of retraining: extremes, producers, weights and their rank."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from calibrant.errors import nearest
from calibrant.quantizers.retrain_advice import LayerFacts
from calibrant.stats.events import Event
from calibrant.stats.run import Run
from calibrant.stats.tables import LayerRow, layer_rows

if TYPE_CHECKING:
    from calibrant.ingest.layers import Layer
    from calibrant.ingest.model import PreparedModel
    from calibrant.stats.model_nodes import ModelNode


class RunFacts(NamedTuple):
    """What a run knows, in the names of the configuration."""

    facts: list[LayerFacts]
    rows: list[LayerRow]
    nodes: "dict[str, ModelNode]"
    events: list[Event]


def run_facts(run: Run, fit: str, names: Sequence[str]) -> RunFacts:
    """Gather what a run knows of each layer.

    Args:
        run: a run.
        fit: the fit whose sensitivities rank the layers; measured by statistics where nothing was.
        names: what a configuration calls its layers: node names, or PyTorch's module names.
    """
    from calibrant.ingest.model import load_prepared
    from calibrant.ingest.nodes import model_nodes

    prepared = load_prepared(run.model_folder)
    rows = layer_rows(run.read("layers"))
    called, events = _called(rows, names)
    ranks, more = _ranks(run, fit)
    extremes, spreads = _extremes(run)
    nodes, weights = model_nodes(prepared.model.graph), _Weights(prepared)
    facts = [
        LayerFacts(
            layer=called[row.layer], op_type=row.op_type, reason=row.reason if not row.quantizable else None,
            low=extremes.get(row.tensor_id, (None, None))[0], high=extremes.get(row.tensor_id, (None, None))[1],
            producer=nodes[row.layer].producer, spread=spreads.get(row.tensor_id),
            **ranks.get(row.layer, {}), **weights.of(row.layer, called),
        )
        for row in rows
    ]  # fmt: skip
    renamed = {called.get(name, name): node for name, node in nodes.items()}
    return RunFacts(facts, [replace(row, layer=called[row.layer]) for row in rows], renamed, [*events, *more])


def _called(rows: Sequence[LayerRow], names: Sequence[str]) -> tuple[dict[str, str], list[Event]]:
    """Return what a configuration calls each layer: its node name, or PyTorch's module name where the file uses those."""
    own = {row.layer for row in rows}
    strangers = [name for name in names if name not in own]
    modules: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for name in {module_of(row.layer), _module_of_weight(row.weight)} - {None}:
            modules[str(name)].append(row.layer)
    found = {modules[name][0]: name for name in strangers if len(modules.get(name, ())) == 1}
    events = []
    if found:
        layer, name = next(iter(found.items()))
        text = f"{len(found)} layers are matched by the names of their PyTorch modules (first '{name}': '{layer}')"
        events.append(Event("fit", "info", text))
    return {row.layer: found.get(row.layer, row.layer) for row in rows}, events


def module_of(node: str) -> str | None:
    """Return the PyTorch module that an exporter named a node after, or None.

    Example:
        >>> module_of("/layer1/layer1.0/conv1/Conv"), module_of("Conv_0")
        ('layer1.0.conv1', None)
    """
    parts = node.strip("/").split("/")[:-1]
    if not node.startswith("/") or not parts:
        return None
    name = last = parts[0]
    for part in parts[1:]:
        name = f"{name.removesuffix(last)}{part}" if part.startswith(f"{last}.") else f"{name}.{part}"
        last = part
    return name


def _module_of_weight(weight: str | None) -> str | None:
    return weight.removesuffix(".weight") if weight is not None and weight.endswith(".weight") else None


def _ranks(run: Run, fit: str) -> tuple[dict[str, dict[str, Any]], list[Event]]:
    """Return the place of each layer by what was measured; without measurements, by the statistics of the fit."""
    from calibrant.sensitivity import RANKING_METRIC, best_view, measurements, sensitivity, worst_first

    if fit not in run.info.fits:
        others = (
            f"{nearest(fit, run.info.fits)}; fits: {', '.join(run.info.fits)}"
            if run.info.fits
            else "; run calibrant fit"
        )
        text = f"{run.path}: no fit '{fit}', so that layers are not ranked{others}"
        return {}, [Event("fit", "warn", text)]
    if measurements(run, fit).is_empty():
        sensitivity(run, fit=fit, views=["statistics"])
    rows = measurements(run, fit)
    view = best_view(rows)
    ranked = worst_first(rows.filter(view=view), RANKING_METRIC)
    found = {
        row["layer"]: {"rank": place + 1, "measured": f"{row['value']:.1f} dB SQNR in view {view}"}
        for place, row in enumerate(ranked.iter_rows(named=True))
    }
    hint = (
        []
        if view != "statistics"
        else [Event("fit", "info", f"ranked by statistics alone; calibrant sensitivity {run.path} measures")]
    )
    return found, hint


def _extremes(run: Run) -> tuple[dict[int | None, tuple[float, float]], dict[int | None, float]]:
    """Return least and greatest value of each tensor, and how much the extremes of its samples spread."""
    tensors = run.read("tensors").filter(pl.col("min").is_not_null())
    ends = {row["tensor_id"]: (row["min"], row["max"]) for row in tensors.iter_rows(named=True)}
    reach = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()).cast(pl.Float64)
    by_tensor = run.read("samples").with_columns(reach=reach).group_by("tensor_id")
    spread = by_tensor.agg(mean=pl.col("reach").mean(), std=pl.col("reach").std(ddof=1))
    known = spread.filter(pl.col("std").is_finite() & (pl.col("mean") > 0))
    return ends, {row["tensor_id"]: row["std"] / row["mean"] for row in known.iter_rows(named=True)}


class _Weights:
    """SQNR of each weight both ways, and which layers have the same one."""

    def __init__(self, prepared: "PreparedModel") -> None:
        from calibrant.ingest.model import initializer_value

        self._quality: dict[str, tuple[float, float]] = {}
        same: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for layer in prepared.layers:
            if layer.quantizable and layer.weight is not None:
                weight = initializer_value(prepared, layer.weight)
                self._quality[layer.name] = _both_ways(layer, weight)
                same[layer.op_type, weight.shape, hashlib.sha256(weight.tobytes()).digest()].append(layer.name)
        self._same = {name: [one for one in group if one != name] for group in same.values() for name in group}

    def of(self, layer: str, called: Mapping[str, str]) -> dict[str, Any]:
        if layer not in self._quality:
            return {}
        by_channel, by_tensor = self._quality[layer]
        reused = tuple(called[one] for one in self._same[layer])
        return {"by_channel_db": by_channel, "by_tensor_db": by_tensor, "reused": reused}


def _both_ways(layer: "Layer", weight: Any) -> tuple[float, float]:
    """Return the SQNR of a weight with one scale an output channel, and with one in all."""
    from calibrant.quantizers import ArqOptions, fit_arq
    from calibrant.quantizers.quality import weight_quality
    from calibrant.stats.weights import channels_first

    rows = channels_first(weight, layer.op_type, layer.groups)
    signal = float((rows.astype(np.float64) ** 2).sum())
    noise = [
        float(weight_quality(rows, fit_arq(rows, ArqOptions(channel_wise=wise))).mse.mean()) * rows.size
        for wise in (True, False)
    ]
    first, second = (float("inf") if one == 0 else 10 * float(np.log10(signal / one)) for one in noise)
    return first, second


__all__ = ["RunFacts", "module_of", "run_facts"]
