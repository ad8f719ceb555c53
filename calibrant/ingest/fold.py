"""Rows of a tensor folded into its statistics; capture and recomputation share this."""

import hashlib

import numpy as np

from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.runner import Rows
from calibrant.stats.captures import CONSTANT_SAMPLE
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import CountScratch
from calibrant.stats.sample_rows import SampleRows


def digest_of(rows: Rows) -> bytes | None:
    """Return the hash of a constant tensor's value; None for rows of samples."""
    if rows.samples[0] != CONSTANT_SAMPLE:
        return None
    flat = np.ascontiguousarray(rows.values).reshape(-1).view(np.uint8)
    return hashlib.blake2b(flat.data, digest_size=16).digest()


class TensorFold:
    """What a run knows of one captured tensor: its statistics, its type and its largest shape.

    A tensor without a sample axis is counted once for each value that it takes, so that grouping changes nothing.

    Args:
        tensor: what is observed.
        sample_axis: the model's axis that holds the samples, or None.

    Attributes:
        statistics: folded so far.
        dtype: name, once rows came.
        rank: of a sample's own array.
        largest_shape: the largest own array's shape.
    """

    def __init__(self, tensor: CapturedTensor, sample_axis: int | None) -> None:
        self.tensor = tensor
        self.sample_axis = sample_axis
        self.dtype = "float32"
        self.rank = 0
        self.largest_shape: tuple[int, ...] = ()
        axis = tensor.channel_axis
        self.statistics = TensorStatistics(tensor.tensor_id, channel_axis=axis + 1 if axis >= 0 else axis)
        self._constants: dict[bytes, SampleRows | None] = {}

    @property
    def constant_values(self) -> int:
        """How many different values a tensor without sample axis took."""
        return len(self._constants)

    def fold(self, rows: Rows, scratch: CountScratch) -> SampleRows:
        """Fold rows in and return their rows of the `samples` table."""
        values, shape = rows.values, rows.own_shape
        if values.dtype != self.dtype:
            self.dtype = values.dtype.name
        self.rank = len(shape)
        if shape != self.largest_shape:
            self.largest_shape = max(self.largest_shape, shape, key=_by_size)
        return self.statistics.fold(values, rows.samples, scratch=scratch, is_blocked=rows.is_blocked)

    def fold_once(self, rows: Rows, scratch: CountScratch) -> tuple[SampleRows, bool]:
        """Fold rows in, but for a constant that was before; return their rows of the `samples` table, and whether they were new.

        Batches may come in any order, and the first in the order of the samples needs the rows, whichever of them was folded.
        """
        digest = digest_of(rows)
        before = None if digest is None else self._constants.get(digest)
        if before is not None:
            return before, False
        folded = self.fold(rows, scratch)
        if digest is not None:
            self._constants[digest] = folded
        return folded, True

    def is_new(self, rows: Rows) -> bool:
        """Return whether rows have to be counted: always, but for a constant that was counted before."""
        digest = digest_of(rows)
        if digest is None:
            return True
        is_new = digest not in self._constants
        self._constants.setdefault(digest, None)
        return is_new

    def _channel_axis(self) -> int | None:
        axis = self.tensor.channel_axis
        resolved = axis if axis >= 0 else self.rank + axis
        return resolved if 0 <= resolved < self.rank else None

    def table_row(self) -> dict[str, object]:
        """Return the tensor's row of the `tensors` table."""
        tensor = self.tensor
        return {
            "tensor_id": tensor.tensor_id, "tensor": tensor.name, "dtype": self.dtype, "rank": self.rank,
            "sample_axis": self.sample_axis, "channel_axis": self._channel_axis(), "producer": tensor.producer,
            "is_input": tensor.is_input, **self.statistics.counters(),
        }  # fmt: skip


def _by_size(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return (int(np.prod(shape, dtype=np.int64)) if shape else -1), shape
