"""The few levels that NUQ leaves of a quantized weight: fitted, judged, and as rows of the tables of a fit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.quantizers.affine import Fit, FloatArray, quantize
from calibrant.quantizers.nuq import NuqFit, fit_nuq, to_centres
from calibrant.quantizers.part_plans import WeightPlan
from calibrant.quantizers.quality import WeightQuality, code_quality


@dataclass(frozen=True, eq=False)
class Levels:
    """The centres of a weight and how well they represent it.

    Attributes:
        fit: the centres and both losses.
        quality: of the weight with its codes replaced.
    """

    fit: NuqFit
    quality: WeightQuality


def fit_levels(rows: FloatArray, fit: Fit, plan: WeightPlan) -> Levels | None:
    """Choose the levels of a weight whose plan asks for NUQ; None for any other.

    Args:
        rows: the weight, shape (C, ...), output channel on axis 0.
        fit: by ARQ.
        plan: of the weight.
    """
    options = plan.nuq_options()
    if options is None:
        return None
    codes = quantize(rows, fit)
    found = fit_nuq(codes, options)
    return Levels(found, code_quality(rows, to_centres(codes, found.centres), fit))


def of_levels(fit: Fit, quality: WeightQuality, levels: Levels | None) -> tuple[Fit, WeightQuality]:
    """Return a weight's fit and quality as NUQ leaves them; unchanged without it."""
    return (fit, quality) if levels is None else (replace(fit, algorithm="nuq"), levels.quality)


def search_columns(levels: Levels) -> dict[str, Any]:
    """Return what the table `search` says of both ways to choose centres: by quantiles, then the best ones."""
    losses = np.array([levels.fit.seeded_loss, levels.fit.optimal_loss], np.float64)
    return {
        "algorithm": "nuq", "candidate": np.arange(2), "clip_min": None, "clip_max": None, "scale": None, "offset": None,
        "loss": losses, "is_best": np.arange(2) == int(levels.fit.optimal), "exact": True,
    }  # fmt: skip


def centre_columns(levels: Levels) -> Mapping[str, Any]:
    """Return what `quant_params` says of the centres, one row each: the code in `offset`."""
    centres = levels.fit.centres
    return {
        "role": "cluster", "channel": np.arange(centres.size), "bits": 8, "scale": None, "offset": centres, "clip_min": None,
        "clip_max": None, "algorithm": "nuq", "mse": None, "sqnr_db": None, "clip_rate": None, "decided_by": None,
    }  # fmt: skip
