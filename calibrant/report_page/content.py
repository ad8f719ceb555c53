"""Everything that the page knows: summary, ranked rows of each fit, events, and the sheet of each layer."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibrant.report_page.distributions import Distributions
from calibrant.report_page.fit_details import FitDetails
from calibrant.report_page.measured import fallback_steps, worst_classes
from calibrant.report_page.numbers import short, shorts
from calibrant.report_page.summary import run_events, run_summary
from calibrant.stats.report import run_report
from calibrant.stats.run import Run

_LAYER_COLUMNS = (
    "op_type", "tensor_id", "channels_out", "channels_in", "groups", "macs", "parameters", "quantizable", "reason",
)  # fmt: skip
_RANKING_COLUMNS = (
    "error_percent", "sqnr_db", "data_db", "weight_db", "clip_rate", "isolated_db", "whole_db", "ranked_by", "ranked_percent",
    "algorithm", "bits",
)  # fmt: skip


def page_content(run: Run, against: Run | None) -> dict[str, Any]:
    """Return what the page needs before any layer is opened.

    Args:
        run: a complete run.
        against: the run to compare it with, or None.
    """
    return {"run": _overview(run), "against": None if against is None else _overview(against)}


def layer_sheets(run: Run, against: Run | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (layer, what its sheet shows) of every layer, those that only the other run has last."""
    sheets = _Sheets(run)
    others = None if against is None else _Sheets(against)
    for name in sheets.ids:
        beside = {} if others is None or name not in others.ids else {"against": others.sheet(name)}
        yield name, {**sheets.sheet(name), **beside}
    for name in () if others is None else others.ids:
        if name not in sheets.ids:
            yield name, {"fits": {}, "against": others.sheet(name) if others is not None else {}}


def _overview(run: Run) -> dict[str, Any]:
    return {
        **run_summary(run),
        "layers": {row["layer"]: {name: row[name] for name in _LAYER_COLUMNS} for row in _layers(run)},
        "rows": _ranked(run),
        "inputs": _quantized_inputs(run),
        "steps": fallback_steps(run),
        "classes": worst_classes(run),
        "events": run_events(run),
    }


def _layers(run: Run) -> list[dict[str, Any]]:
    return run.read("layers").to_dicts()


def _ranked(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the report `ranking` by fit, in its order."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in run.info.fits}
    for row in run_report(run, "ranking").iter_rows(named=True):
        numbers = {name: short(row[name]) if isinstance(row[name], float) else row[name] for name in _RANKING_COLUMNS}
        found.setdefault(row["fit"], []).append({"layer": row["layer"], **numbers})
    return found


def _quantized_inputs(run: Run) -> list[list[Any]]:
    """Return what `tensor_quantize` quantizes: fit, node, which input, algorithm, bits, scale, offset, clip range, SQNR."""
    rows = run.read("quant_params").filter(role="tensor").sort("fit", "node", "input_index")
    exact = rows.select("fit", "node", "input_index", "algorithm", "bits").rows()
    numbers = rows.select("scale", "offset", "clip_min", "clip_max", "sqnr_db").rows()
    return [[*names, *shorts(values)] for names, values in zip(exact, numbers, strict=True)]


class _Sheets:
    """The sheets of one run's layers."""

    def __init__(self, run: Run) -> None:
        self.ids: Mapping[str, dict[str, Any]] = {row["layer"]: row for row in _layers(run)}
        self._fits = tuple(run.info.fits)
        self._details = FitDetails(run)
        self._distributions = Distributions(run)
        self._tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
        self._balanced = set(run.read("balance").select("fit", "layer_id").unique().iter_rows())

    def sheet(self, name: str) -> dict[str, Any]:
        """Return what there is of a layer."""
        layer_id, tensor_id = self.ids[name]["layer_id"], self.ids[name]["tensor_id"]
        parts: dict[str, Any] = {"fits": {fit: self._fit(fit, layer_id) for fit in self._fits}}
        if tensor_id in self._tensors:
            parts["tensor"] = self._tensors[tensor_id]["tensor"]
            parts["histogram"] = self._distributions.histogram(tensor_id)
            parts["data_channels"] = self._distributions.data_channels(tensor_id)
        parts["weight_channels"] = self._distributions.weight_channels(layer_id)
        return {key: part for key, part in parts.items() if part is not None}

    def _fit(self, fit: str, layer_id: int) -> dict[str, Any]:
        balanced = {"balanced": True} if (fit, layer_id) in self._balanced else {}
        return {**self._details.of(fit, layer_id), **balanced}
