"""A histogram as tensors and numbers, which is what a state dict may hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch

from calibrant.stats.histogram import HistogramTables, LogLinearHistogram


def histogram_state(histogram: LogLinearHistogram) -> dict[str, Any]:
    """Return a histogram as tensors and numbers; nothing is lost.

    Example:
        >>> counted = LogLinearHistogram.from_values(np.float32([0.0, 1.5, -2.0]))
        >>> histogram_from_state(histogram_state(counted)) == counted
        True
    """
    tables = histogram.to_tables()
    upper = np.array(tables.extremes["side"] == "max")
    return {
        "keys": torch.from_numpy(tables.histogram["key"].to_numpy().astype(np.int64)),
        "counts": torch.from_numpy(tables.histogram["count"].to_numpy().astype(np.int64)),
        "is_max": torch.from_numpy(upper.astype(bool)),
        "extremes": torch.from_numpy(tables.extremes["value"].to_numpy().astype(np.float32)),
        "extreme_counts": torch.from_numpy(tables.extremes["count"].to_numpy().astype(np.int64)),
        "counters": dict(histogram.counters()),
        "extremes_kept": histogram.extremes_kept,
    }


def histogram_from_state(state: Mapping[str, Any]) -> LogLinearHistogram:
    """Return the histogram that `histogram_state` took apart.

    Args:
        state: as `histogram_state` gives it, on any device.
    """
    arrays = {name: part.cpu().numpy() for name, part in state.items() if isinstance(part, torch.Tensor)}
    sides = pl.Series(arrays["is_max"]).cast(pl.Int8).replace_strict({1: "max", 0: "min"}, return_dtype=pl.String)
    tables = HistogramTables(
        pl.DataFrame({"key": arrays["keys"].astype(np.uint32), "count": arrays["counts"]}),
        pl.DataFrame({"side": sides, "value": arrays["extremes"], "count": arrays["extreme_counts"]}),
        pl.DataFrame([state["counters"]]),
    )
    return LogLinearHistogram.from_tables(*tables, extremes_kept=int(state["extremes_kept"]))
