"""What a sheet shows of a layer's data and weight whatever the fit: the histogram in equal bins, and the range of each channel."""

from typing import Any, Final

import numpy as np
import polars as pl

from calibrant.errors import EmptyDataError, ShapeError
from calibrant.fitting.run_statistics import RunStatistics
from calibrant.report_page.numbers import short, shorts
from calibrant.stats.run import Run

BINS: Final = 200
CHANNEL_STRIPS: Final = 160  # more channels than this are shown as strips of neighbours


class Distributions:
    """The histograms and channel ranges of a run, as the page carries them.

    Args:
        run: a complete run.
    """

    def __init__(self, run: Run) -> None:
        self._statistics = RunStatistics(run, {}, {})
        self._data = _by_id(run.read("channels"), "tensor_id")
        self._weights = _by_id(run.read("weights"), "layer_id")

    def histogram(self, tensor_id: int) -> dict[str, Any] | None:
        """Return the counts of equal bins between the extremes, or None where the tensor has no finite value."""
        whole = self._statistics.histogram(tensor_id)
        try:
            counts = whole.rebin(BINS)
        except (EmptyDataError, ShapeError):
            return None
        return {
            "min": short(whole.minimum, 7),
            "max": short(whole.maximum, 7),
            "counts": counts.tolist(),
            "zeros": whole.n_zero,
            "n": whole.n,
        }

    def data_channels(self, tensor_id: int) -> dict[str, Any] | None:
        """Return the range of each channel of a tensor."""
        return _strips(self._data.get(tensor_id))

    def weight_channels(self, layer_id: int) -> dict[str, Any] | None:
        """Return the range of each output channel of a weight."""
        return _strips(self._weights.get(layer_id))


def _by_id(frame: pl.DataFrame, column: str) -> dict[int, pl.DataFrame]:
    parts = frame.partition_by(column, as_dict=True)
    return {int(key[0]): part for key, part in parts.items()}


def _strips(frame: pl.DataFrame | None) -> dict[str, Any] | None:
    """Return least and greatest value of each channel, or of each strip of neighbouring channels."""
    if frame is None or frame.height < 2:
        return None
    ordered = frame.sort("channel").select("channel", "min", "max", "abs_max")
    size = -(-ordered.height // CHANNEL_STRIPS)
    strips = (
        ordered.with_columns(strip=pl.int_range(pl.len()) // size)
        .group_by("strip", maintain_order=True)
        .agg(pl.col("channel").min(), pl.col("min").min(), pl.col("max").max())
    )
    return {
        "channels": ordered.height,
        "size": size,
        "min": shorts(strips["min"]),
        "max": shorts(strips["max"]),
        "imbalance": _imbalance(ordered["abs_max"]),
        "dead": int((ordered["abs_max"] == 0).sum()),
    }


def _imbalance(maxima: pl.Series) -> float | int | None:
    """Return the greatest channel maximum over the median one, as the report channel_imbalance does."""
    known = maxima.drop_nulls().to_numpy().astype(np.float64)
    median = float(np.median(known)) if known.size else 0.0
    return short(float(known.max()) / median) if median > 0 else None
