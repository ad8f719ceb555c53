"""``joint_quant`` in a fit: the shifts of the accumulators of layers that meet at an Add.

The accumulators are those of the deploy model: the exact integers of each layer on the codes of its data, from the run's raw captures or
from a second pass of the model over the data.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from calibrant.fitting.balancing import Activations, activations_of
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.stats.run import Run


def joint_tensors(rows: Sequence[LayerPlan]) -> dict[str, tuple[int, ...]]:
    """Return the tensors whose data share a scale, by the Add that names their group."""
    found: dict[str, set[int]] = {}
    for row in rows:
        if row.joint is not None and row.tensor_id is not None:
            found.setdefault(row.joint, set()).add(row.tensor_id)
    return {add: tuple(sorted(tensors)) for add, tensors in found.items()}


def with_shifts(
    run: Run, rows: Sequence[LayerPlan], frames: Mapping[str, pl.DataFrame], again: Activations | None
) -> dict[str, pl.DataFrame]:
    """Return the tables of a fit with the shifts of its jointly quantized layers in `quant_params` (role ``shift``).

    Args:
        run: a complete run.
        rows: the plans of the quantized layers.
        frames: the tables of the fit.
        again: gives activations of a run that kept only statistics.

    Raises:
        RunError: only statistics were kept, and `again` is not given.
    """
    joint = [row for row in rows if row.joint is not None]
    if not joint:
        return dict(frames)
    # here: these load the graph library, which other fits do not need
    from calibrant.fitting.fitted_layers import fitted_layers
    from calibrant.fitting.joint_search import LayerSearch
    from calibrant.ingest.model import load_prepared

    activations = activations_of(run, "joint_quant", joint[0].layer, again)
    prepared, names = load_prepared(run.model_folder), {row.layer for row in joint}
    layers = fitted_layers(prepared, frames["quant_params"], frames["balance"])
    searches = [LayerSearch(prepared, layer) for layer in layers if layer.layer.name in names]
    for tensor_id, values in activations({search.tensor_id for search in searches}):
        for search in searches:
            if search.tensor_id == tensor_id:
                search.update(values)
    shifts = pl.concat([search.frame(frames["quant_params"]["fit"][0]) for search in searches])
    return {**frames, "quant_params": pl.concat([frames["quant_params"], shifts])}
