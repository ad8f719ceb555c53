"""Scales that were floored to 1 because their values are too small: what the user is told of them."""

import numpy as np

from calibrant.quantizers.affine import FLT_EPSILON, Fit, FloatArray
from calibrant.stats.events import Event
from calibrant.stats.histogram import LogLinearHistogram


def dead_channels(layer: str, rows: FloatArray, fit: Fit) -> tuple[Event, ...]:
    """Say how many output channels are so small that their scale was floored to 1 and all their codes are 0 (docs/algorithms.md 1.1).

    Args:
        layer: its name.
        rows: the weight, shape (C, ...).
        fit: of the weight, with one scale or C of them.
    """
    floored = np.flatnonzero(np.ravel(fit.scale) == 1)
    peaks = np.abs(np.asarray(rows.reshape(fit.scale.size, -1)[floored], np.float32)).max(axis=1, initial=0)
    dead = int(np.count_nonzero(peaks < FLT_EPSILON * 2.0 ** (fit.bits - 1)))
    if not dead:
        return ()
    count = len(rows)
    what = f"{dead} of {count} output channels are" if fit.scale.size == count else f"all {count} output channels are"
    text = f"{what} dead: weights below FLT_EPSILON * {2 ** (fit.bits - 1) - 1}, scale floored to 1, every code 0"
    return (Event("fit", "info", text, layer=layer),)


def floored_data(tensor: str, histogram: LogLinearHistogram, fit: Fit) -> tuple[Event, ...]:
    """Warn of a tensor whose values are so small that its scale was floored to 1: its layers see zeros (docs/algorithms.md 0.2)."""
    peak = max(abs(histogram.minimum), abs(histogram.maximum))
    if float(fit.scale) != 1 or not peak < FLT_EPSILON * 2.0**fit.bits:
        return ()
    what = "is zero in all samples" if peak == 0 else f"has no value beyond {peak:.3g}"
    return (Event("fit", "warn", f"tensor '{tensor}' {what}: its scale is 1, and its layers see zeros"),)
