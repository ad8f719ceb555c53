"""The quantized layers of a fit from the most sensitive to the least, in the view that can be afforded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Final, cast, get_args

from calibrant.errors import ConfigError, RunError, nearest
from calibrant.ingest.samples import Sample
from calibrant.layer_views.measurement import View
from calibrant.sensitivity import sensitivity, worst_first
from calibrant.stats.events import Progress
from calibrant.stats.run import Run

AFFORDABLE: Final = 1e12  # multiply-accumulates of the whole view: a few minutes on two cores
SIMILARITY: Final = "amct_similarity"


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """What is known of the layers.

    Attributes:
        view: in which view.
        metric: by which metric of it they are ordered.
        values: of that metric, most sensitive layer first.
    """

    view: View
    metric: str
    values: Mapping[str, float]

    @property
    def order(self) -> list[str]:
        """The layers, most sensitive first."""
        return list(self.values)

    def noise(self) -> dict[str, float]:
        """Return noise over signal of each layer, where the metric is in dB; what cannot be compared is endless noise."""
        return {layer: inf if isnan(db) else float(10 ** (-db / 10)) for layer, db in self.values.items()}


def affordable_view(macs: Mapping[str, int], layers: Sequence[str], samples: int) -> View:
    """Return the whole view where running the model once a layer is affordable, else the isolated one.

    Example:
        >>> affordable_view({"a": 10**9, "b": 10**9}, ["a", "b"], 16)
        'whole'
    """
    return "whole" if sum(macs.values()) * len(layers) * samples <= AFFORDABLE else "isolated"


def checked_view(given: str | None) -> View | None:
    """Return the view of that name.

    Raises:
        ConfigError: there is none.
    """
    known = get_args(View)
    if given is not None and given not in known:
        message = f"--view: '{given}' is no view{nearest(given, known)}; views: {', '.join(known)}"
        raise ConfigError(message)
    return cast("View | None", given)


def measure_layers(
    run: Run, fit: str, view: View, metric: str, samples: Sequence[Sample], count: int, progress: Progress
) -> Sensitivities:
    """Measure the quantized layers of a fit, each once; what is known of equal scales is not measured again.

    Args:
        run: the run.
        fit: its fit with everything quantized.
        view: how.
        metric: by which metric of the view to order.
        samples: model inputs; empty for those that the capture kept for verify.
        count: how many samples at most, of the captures as well.
        progress: told of each layer.

    Raises:
        RunError: nothing could be measured in that view; the events say why.
    """
    data = [sample.values for sample in samples] or None
    rows = sensitivity(run, fit=fit, views=(view,), data=data, samples=count, progress=progress)
    if rows.filter(view=view).is_empty():
        message = (
            f"{run.path}: the layers of fit '{fit}' cannot be measured in view {view}; pass another --view "
            "(calibrant report RUN events says why)"
        )
        raise RunError(message)
    found = worst_first(rows.filter(view=view), metric)
    return Sensitivities(view, metric, dict(found.select("layer", "value").iter_rows()))
