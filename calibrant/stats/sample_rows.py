"""Rows of the `samples` table: as arrays while a batch is folded, as one frame for all tensors of the batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
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


def sample_frame(rows: Sequence[SampleRows]) -> pl.DataFrame:
    """Return rows of the `samples` table, in the order given; min and max are null where no value is finite."""
    if not rows:
        return empty_frame("samples")
    sizes = [len(part.samples) for part in rows]
    folds = [part.fold for part in rows]
    columns = {
        "tensor_id": np.repeat(np.array([part.tensor_id for part in rows], np.int32), sizes),
        "sample": np.concatenate([np.asarray(part.samples, np.int64) for part in rows]),
        "n": np.repeat(np.array([part.n for part in rows], np.int64), sizes),
        "n_zero": np.concatenate([fold.n_zero for fold in folds]),
        "n_nan": np.concatenate([fold.n_nan for fold in folds]),
        "n_inf": np.concatenate([fold.n_inf for fold in folds]),
        "min": np.concatenate([fold.minimum for fold in folds]),
        "max": np.concatenate([fold.maximum for fold in folds]),
        "sum": np.concatenate([fold.total for fold in folds]),
        "sum_sq": np.concatenate([fold.total_squares for fold in folds]),
    }
    return frame_of("samples", columns)
