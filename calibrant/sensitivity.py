"""Which layers hurt: each quantized layer of a fit measured in three views, kept in the table `sensitivity`.

What was measured is measured again only where the layer's scales, the samples or the way of measuring changed.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import polars as pl

from calibrant._room import make_callable
from calibrant.errors import ConfigError, LayerNotFoundError, RunError, nearest
from calibrant.stats.events import Progress, no_progress
from calibrant.stats.run import Run, open_run

if TYPE_CHECKING:
    import os

    from calibrant.ingest.data import Data
    from calibrant.layer_views.measurement import View

VIEWS: "Final[tuple[View, ...]]" = ("statistics", "isolated", "whole")  # from the cheapest to the one that says most
SAMPLES: Final = 16  # enough for an interval that tells layers apart; 50 layers take about a minute
RANKING_METRIC: Final = "sqnr_db"


def sensitivity(
    run: "str | os.PathLike[str] | Run",
    *,
    fit: str = "default",
    views: Collection[str] = VIEWS,
    data: "Data | None" = None,
    samples: int = SAMPLES,
    layers: Collection[str] | None = None,
    progress: Progress = no_progress,
) -> pl.DataFrame:
    """Measure how much each quantized layer of a fit hurts, and keep it in the table `sensitivity`.

    * ``statistics``: from the tables alone, without inference.
    * ``isolated``: each layer alone on its captured data, float against quantized; where a run kept only statistics, the float
      model makes the data from `data`, or from the samples that the capture kept for verify.
    * ``whole``: each layer alone quantized in the whole model, on `data` or on the samples that the capture kept for verify.

    Args:
        run: a run with that fit.
        fit: name of the fit.
        views: which views, out of ``VIEWS``.
        data: evaluation data, as `calibrant.capture` takes it.
        samples: how many samples at most, those of least content key.
        layers: names of layers to measure; None: all that the fit quantizes.
        progress: called as ``progress(view, done, total)``; nothing that is known already counts.

    Returns:
        The rows of these layers and views with the layers' names and types, layers in topological order.

    Raises:
        LayerNotFoundError: no such fit, or the fit quantizes no such layer.
        ConfigError: an unknown view, or `samples` below 1.
        DataError: `data` does not fit the model.
        RunError: the run cannot be written to.

    Example:
        >>> rows = sensitivity("model.run", data="eval.npz", views=["whole"])  # doctest: +SKIP
    """
    from calibrant.layer_views.study import Study

    opened = open_run(run)
    opened.fit_record(fit)
    wanted, chosen = _checked(views), quantized_names(opened, fit, layers)
    if samples < 1:
        message = f"--samples: {samples} is no number of samples; expected at least 1"
        raise ConfigError(message)
    opened.require_writable()
    Study(opened, fit, data, samples, chosen, progress).measure(wanted)
    rows = measurements(opened, fit)
    return rows.filter(pl.col("view").is_in(wanted), pl.col("layer_id").is_in(list(chosen)))


def measurements(run: Run, fit: str) -> pl.DataFrame:
    """Return what is known of a fit's sensitivity, with the names and types of the layers, in topological order."""
    layers = run.read("layers").select("layer_id", "layer", "op_type")
    rows = run.read("sensitivity").filter(fit=fit).join(layers, on="layer_id", maintain_order="left")
    return rows.select("fit", "layer_id", "layer", "op_type", pl.exclude("fit", "layer_id", "layer", "op_type"))


def ranking(
    run: "str | os.PathLike[str] | Run", fit: str = "default", *, view: str | None = None, metric: str = RANKING_METRIC
) -> list[str]:
    """Return the quantized layers of a fit, worst first, by what `sensitivity` measured.

    Args:
        run: a run with that fit.
        fit: name of the fit.
        view: by which view; None: whole if it was measured, else isolated, else statistics.
        metric: by which metric of it.

    Raises:
        RunError: nothing was measured in that view.
        LayerNotFoundError: no such fit.
        ConfigError: an unknown view or metric.

    Example:
        >>> ranking("model.run", view="whole")[:3]  # doctest: +SKIP
        ['/backbone/conv1', '/head/fc', '/backbone/conv7']
    """
    opened = open_run(run)
    opened.fit_record(fit)
    rows = measurements(opened, fit)
    chosen = view or best_view(rows)
    _checked([chosen])
    found = rows.filter(view=chosen)
    if found.is_empty():
        message = (
            f"{opened.path}: no sensitivity of fit '{fit}' in view {chosen}; measure it with calibrant sensitivity"
        )
        raise RunError(message)
    return worst_first(found, metric)["layer"].to_list()


def best_view(rows: pl.DataFrame) -> str:
    """Return the view among these rows that says most: whole, else isolated, else statistics."""
    measured = set(rows["view"])
    return next((view for view in reversed(VIEWS) if view in measured), VIEWS[0])


def worst_first(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return one metric's rows of one view, the layer that hurts most first; NaN before all, equal ones in topological order.

    Raises:
        ConfigError: the rows have no such metric.
    """
    found = rows.filter(metric=metric)
    if found.is_empty():
        known = rows["metric"].unique(maintain_order=True).to_list()
        message = f"no metric '{metric}' in view {rows['view'][0]}{nearest(metric, known)}; metrics: {', '.join(known)}"
        raise ConfigError(message)
    badness = pl.col("value") if metric not in _LESS_IS_BETTER else -pl.col("value")
    return found.sort(pl.col("value").is_not_nan(), badness, "layer_id")


_LESS_IS_BETTER: Final = frozenset({"clip_rate", "channel_spread", "range_spread", "kl", "mse"})


def _checked(views: Collection[str]) -> "list[View]":
    """Return views in the order of `VIEWS`."""
    for view in views:
        if view not in VIEWS:
            message = f"--view: '{view}' is no view{nearest(view, VIEWS)}; views: {', '.join(VIEWS)}"
            raise ConfigError(message)
    if not views:
        message = f"--view: no view given; views: {', '.join(VIEWS)}"
        raise ConfigError(message)
    return [view for view in VIEWS if view in views]


def quantized_names(run: Run, fit: str, names: Collection[str] | None) -> dict[int, str]:
    """Return the layers that a fit quantizes, layer_id -> name in topological order; only those of `names` where given.

    Raises:
        LayerNotFoundError: a name is of no layer, or of one that stays in float; the message says why.
    """
    parameters = run.read("quant_params").filter(fit=fit)
    ids = parameters.filter(pl.col("role").is_in(["data", "weight"]), pl.col("layer_id").is_not_null())["layer_id"]
    layers = run.read("layers").sort("layer_id")
    found = dict(
        layers.filter(pl.col("layer_id").is_in(ids.unique().to_list())).select("layer_id", "layer").iter_rows()
    )
    for name in names or ():
        if name not in found.values():
            raise LayerNotFoundError(_not_quantized(run, fit, name, layers["layer"].to_list()))
    return {layer: name for layer, name in found.items() if names is None or name in names}


def _not_quantized(run: Run, fit: str, name: str, known: list[str]) -> str:
    if name not in known:
        return f"{run.path}: no layer '{name}'{nearest(name, known)}; see the table layers"
    plan = run.read("plan").filter(fit=fit, layer=name)
    reason = plan["reason"][0] if plan.height and plan["reason"][0] else "the configuration leaves it in float"
    return f"{run.path}: layer '{name}' is not quantized in fit '{fit}': {reason}"


make_callable(__name__)
