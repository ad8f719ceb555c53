"""In what two runs differ: what they were made from, how accurate they are, and each layer; `calibrant diff` is the command."""

import os
from dataclasses import dataclass
from typing import Final

import polars as pl

from calibrant.errors import EmptyDataError
from calibrant.stats.report import check_fit_name, run_report
from calibrant.stats.run import Run, open_run

PathLike = str | os.PathLike[str]

_SETTINGS: Final = (
    "model", "model_hash", "data", "data_fingerprint", "samples", "keep", "do_fusion", "skip_fusion_layers", "fix_input", "cpu",
)  # fmt: skip
_RANKED: Final = ("error_percent", "sqnr_db", "clip_rate", "algorithm", "bits")
_DATA: Final = ("scale", "offset", "clip_min", "clip_max")
_EVALUATED: Final = ("variant", "output", "metric", "data", "data_fingerprint")


@dataclass(frozen=True, eq=False)
class RunDifference:
    """What two runs differ in; ``here`` is the first, ``there`` the second.

    Attributes:
        settings: what they were made from, only where it differs: what, here, there.
        evaluation: metrics that both have on the same data: variant, output, metric, data, here, there, change.
        layers: a row a layer that either quantizes, the greatest loss first: layer, quantized_in, change_db, and the columns of both.
    """

    settings: pl.DataFrame
    evaluation: pl.DataFrame
    layers: pl.DataFrame


def diff(
    run: PathLike | Run, against: PathLike | Run, *, fit: str | None = None, against_fit: str | None = None
) -> RunDifference:
    """Compare two runs, or two fits of one run.

    Args:
        run: a complete run.
        against: the run to compare it with; the same one with another fit compares fits.
        fit: of the first run; by default ``default``, or its first.
        against_fit: of the second run; by default the same name where it has that, else its first.

    Raises:
        RunError: not a complete run.
        LayerNotFoundError: no fit has that name.
        EmptyDataError: a run has no fit.

    Example:
        >>> diff("a.run", "b.run").layers.head(3)  # doctest: +SKIP
    """
    here, there = open_run(run), open_run(against)
    mine = chosen_fit(here, fit)
    theirs = chosen_fit(there, against_fit or (mine if mine in there.info.fits else None))
    return RunDifference(
        _settings(here, mine, there, theirs), _evaluation(here, mine, there, theirs), _layers(here, mine, there, theirs)
    )


def chosen_fit(run: Run, fit: str | None) -> str:
    """Return the fit that is asked for, else ``default``, else the first.

    Raises:
        LayerNotFoundError: no fit has that name.
        EmptyDataError: the run has no fit.
    """
    check_fit_name(run, fit)
    if not run.info.fits:
        message = f"{run.path}: no fit yet; make one with: calibrant fit {run.path}"
        raise EmptyDataError(message)
    return fit or ("default" if "default" in run.info.fits else next(iter(run.info.fits)))


def _settings(here: Run, mine: str, there: Run, theirs: str) -> pl.DataFrame:
    pairs = {name: (getattr(here.info, name), getattr(there.info, name)) for name in _SETTINGS}
    pairs["fit"] = (mine, theirs)
    pairs["config_hash"] = (here.info.fits[mine].config_hash, there.info.fits[theirs].config_hash)
    pairs["exact"] = (here.info.fits[mine].exact, there.info.fits[theirs].exact)
    for name in {**here.info.versions, **there.info.versions}:
        pairs[f"version of {name}"] = (here.info.versions.get(name), there.info.versions.get(name))
    rows = [
        (name, *(None if one is None else str(one) for one in pair))
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    ]
    return pl.DataFrame(rows, schema={"what": pl.String, "here": pl.String, "there": pl.String}, orient="row")


def _evaluation(here: Run, mine: str, there: Run, theirs: str) -> pl.DataFrame:
    """Join metrics of equal name on equal data; what only one run was measured by is left out."""
    a, b = (run.read("evaluation").filter(fit=fit) for run, fit in ((here, mine), (there, theirs)))
    keys = [name for name in _EVALUATED if name in a.columns and name in b.columns]
    joined = a.select(*keys, here="value").join(
        b.select(*keys, there="value"), on=keys, how="inner", nulls_equal=True, maintain_order="left"
    )
    shown = [name for name in ("variant", "output", "metric", "data") if name in keys]
    return joined.select(*shown, "here", "there", change=pl.col("there") - pl.col("here"))


def _layers(here: Run, mine: str, there: Run, theirs: str) -> pl.DataFrame:
    a, b = _side(here, mine, "here"), _side(there, theirs, "there")
    joined = a.join(b, on="layer", how="full", coalesce=True, maintain_order="left_right")
    quantized_in = (
        pl.when(pl.col("in_there").is_null())
        .then(pl.lit("only here"))
        .when(pl.col("in_here").is_null())
        .then(pl.lit("only there"))
        .otherwise(pl.lit("both"))
    )
    columns = [f"{name}_{side}" for name in (*_RANKED, *_DATA) for side in ("here", "there")]
    change = (pl.col("sqnr_db_there") - pl.col("sqnr_db_here")).round(2)
    shown = [pl.col("layer"), quantized_in.alias("quantized_in"), change.alias("change_db"), *map(pl.col, columns)]
    return joined.select(shown).sort("change_db", nulls_last=False, maintain_order=True)


def _side(run: Run, fit: str, side: str) -> pl.DataFrame:
    names = run.read("layers").select("layer_id", "layer")
    data = run.read("quant_params").filter(fit=fit, role="data").join(names, on="layer_id").select("layer", *_DATA)
    ranked = run_report(run, "ranking", fit).select("layer", *_RANKED)
    both = ranked.join(data, on="layer", how="left", maintain_order="left").with_columns(**{"in": pl.lit(value=True)})
    return both.rename({name: f"{name}_{side}" for name in both.columns if name != "layer"})
