"""Rows of the `samples` table: arrays until they are written."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.stats.channels import SampleFold
from calibrant.stats.tables import empty_frame, frame_of


class SampleRows(NamedTuple):
    """What some samples of one tensor hold.

    Attributes:
        tensor_id: the tensor's number in the run.
        samples: N numbers.
        n: values of each sample.
        fold: the folded samples.
    """

    tensor_id: int
    samples: Sequence[int]
    n: int
    fold: SampleFold


SampleColumns = Mapping[str, npt.NDArray[Any]]


def sample_frame(rows: Sequence[SampleRows]) -> pl.DataFrame:
    """Return rows of the `samples` table, in the order given; min and max are null where no value is finite."""
    return frame_of("samples", sample_columns(rows)) if rows else empty_frame("samples")


def sample_columns(rows: Sequence[SampleRows]) -> SampleColumns:
    """Return columns of the `samples` table in the order of the rows, at least one; min and max are NaN where no value is finite."""
    sizes = [len(part.samples) for part in rows]
    counts, ranges, sums = (np.concatenate(parts) for parts in zip(*(part.fold for part in rows), strict=True))
    return {
        "tensor_id": np.repeat(np.array([part.tensor_id for part in rows], np.int32), sizes),
        "sample": np.concatenate([np.asarray(part.samples, np.int64) for part in rows]),
        "n": np.repeat(np.array([part.n for part in rows], np.int64), sizes),
        "n_zero": counts[:, 0],
        "n_nan": counts[:, 1],
        "n_inf": counts[:, 2],
        "min": ranges[:, 0],
        "max": ranges[:, 1],
        "sum": sums[:, 0],
        "sum_sq": sums[:, 1],
    }


def joined_columns(parts: Sequence[SampleColumns]) -> SampleColumns:
    """Return the rows of all parts, at least one, in their order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def sorted_columns(columns: SampleColumns) -> SampleColumns:
    """Return rows by tensor, then by sample; equal ones stay in their order."""
    order = np.lexsort((columns["sample"], columns["tensor_id"]))
    return {name: values[order] for name, values in columns.items()}
