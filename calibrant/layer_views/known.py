"""What a run knows already about layers with equal scales on equal samples, whichever fit it was measured for."""

from collections.abc import Mapping

import polars as pl

from calibrant.layer_views.measurement import View
from calibrant.stats.run import Run


def reuse_known(run: Run, fit: str, view: View, hashes: Mapping[int, str], data_hash: str) -> list[int]:
    """Give a fit what was measured of equal layers in other fits, and return the layers that have to be measured.

    Args:
        run: the run.
        fit: name of the fit.
        view: which view.
        hashes: of the scales of its layers, by layer_id.
        data_hash: of what they are to be measured on.

    Returns:
        layer_ids, in the order of `hashes`.
    """
    wanted = pl.DataFrame(list(hashes.items()), schema={"layer_id": pl.Int32, "scales_hash": pl.String}, orient="row")
    rows = run.read("sensitivity").filter(view=view, data_hash=data_hash)
    known = rows.join(wanted, on=["layer_id", "scales_hash"], how="semi")
    own = set(known.filter(fit=fit)["layer_id"])
    others = known.filter(~pl.col("layer_id").is_in(list(own))).unique(["layer_id", "metric"], maintain_order=True)
    if others.height:
        run.replace_sensitivity(others.with_columns(fit=pl.lit(fit)))
    found = set(known["layer_id"])
    return [layer for layer in hashes if layer not in found]
