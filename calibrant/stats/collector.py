"""Everything that is folded for one captured tensor while the model runs.

The tables that come out depend on the samples alone: not on batch size, order, shards or the merge tree, bit for bit.
"""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import SchemaError, ShapeError
from calibrant.stats.channels import (
    FOLDED_WIDTHS,
    ChannelRows,
    ChannelStatistics,
    SampleFold,
    fold_blocked,
    fold_samples,
    require_equal,
)
from calibrant.stats.held_values import HeldValues
from calibrant.stats.histogram import MANTISSA_BITS, CountScratch, LogLinearHistogram
from calibrant.stats.parquet_columns import Part
from calibrant.stats.percentiles import Side
from calibrant.stats.sample_rows import SampleRows, sample_frame
from calibrant.stats.tables import frame_of

FloatArray = npt.NDArray[np.floating]
Float32Array = npt.NDArray[np.float32]


class TensorStatistics:
    """Histogram, channels and samples of one tensor.

    Args:
        tensor_id: the tensor's number in the run.
        channel_axis: which axis of a batch (sample axis 0 included) counts channels; negative from the end; None for none.
        mantissa_bits: of the histogram.

    Example:
        >>> statistics = TensorStatistics(0, channel_axis=1)
        >>> rows = statistics.update(np.float32([[1, 2], [3, -4]]), [10, 11])
        >>> rows["sum"].to_list(), statistics.channels_frame()["sum"].to_list()
        ([3.0, -1.0], [4.0, -2.0])
    """

    def __init__(self, tensor_id: int, *, channel_axis: int | None, mantissa_bits: int = MANTISSA_BITS) -> None:
        self._tensor_id = tensor_id
        self._channel_axis = channel_axis
        self._channels = ChannelStatistics()
        self._histogram = LogLinearHistogram(mantissa_bits)
        self._held = HeldValues()

    @property
    def histogram(self) -> LogLinearHistogram:
        """The tensor's histogram so far."""
        self.settle()
        return self._histogram

    def settle(self, scratch: CountScratch | None = None) -> None:
        """Count what waits, so that several threads may read what is folded; done by itself when one reads."""
        waiting = self._held.taken()
        if waiting.size:
            self._histogram.update(waiting, scratch=scratch)
        self._histogram.settle()
        self._channels.settle()

    def update(
        self,
        batch: FloatArray,
        sample_ids: Sequence[int],
        *,
        scratch: CountScratch | None = None,
        is_blocked: bool = False,
    ) -> pl.DataFrame:
        """Fold a batch, in place.

        Args:
            batch: shape (N, ...), float32 or float16 (widened); sample i is ``batch[i]``. Where the channel axis is the
                sample axis or beyond the rank, no channels are counted.
            sample_ids: N numbers.
            scratch: the calling thread's counting table; made when needed.
            is_blocked: the batch lies in memory as convolutions compute it, b channels side by side: C-contiguous, of shape
                (N, 1, C / b, *spatial, b); channel c is ``batch[:, :, c // b, ..., c % b]``. The channel axis stays that of
                (N, 1, C, *spatial), and so does all that is folded, bit for bit.

        Returns:
            The rows of the `samples` table for these samples. Sums are float64 over finite values, in the order of `fold_samples`;
            min and max are null where no value is finite.

        Raises:
            SchemaError: another dtype.
            ShapeError: the batch has no sample axis or not as many samples as numbers, or is not of a blocked shape.
        """
        return sample_frame([self.fold(batch, sample_ids, scratch=scratch, is_blocked=is_blocked)])

    def fold(
        self,
        batch: FloatArray,
        sample_ids: Sequence[int],
        *,
        scratch: CountScratch | None = None,
        is_blocked: bool = False,
    ) -> SampleRows:
        """Do what `update` does, and return the rows as arrays, for `sample_frame`."""
        values = self._checked(batch, sample_ids)
        n = math.prod(values.shape[1:])
        fold = self._fold_blocked(values) if is_blocked else self._fold_ordered(values)
        for part in self._held.add(values.reshape(-1)):
            self._histogram.update(part, scratch=scratch)
        return SampleRows(self._tensor_id, sample_ids, n, fold)

    def _fold_ordered(self, values: Float32Array) -> SampleFold:
        shape = self._block_shape(values.shape)
        if shape is None:
            samples = values.shape[0]
            return fold_samples(values.reshape(samples, 1, 1, math.prod(values.shape[1:])), ChannelRows.of(samples, 1))
        rows = self._channels.rows(shape[0], shape[2])
        fold = fold_samples(values.reshape(shape), rows)
        self._channels.add(rows, shape[1] * shape[3])
        return fold

    def _fold_blocked(self, values: Float32Array) -> SampleFold:
        """Fold channels where they lie, as far as sixteen neighbours are of a few channels; else put them in order first."""
        if values.ndim < 4 or values.shape[1] != 1:
            message = f"tensor {self._tensor_id}: a blocked batch of shape {values.shape}; expected (N, 1, C / b, *spatial, b)"
            raise ShapeError(message)
        samples, _, blocks, *spatial, width = values.shape
        if self._channel_axis != 2 or width not in FOLDED_WIDTHS:
            moved = np.ascontiguousarray(np.moveaxis(values, -1, 3))
            return self._fold_ordered(moved.reshape(samples, 1, blocks * width, *spatial))
        inner, rows = math.prod(spatial), self._channels.rows(samples, blocks * width)
        fold = fold_blocked(values.reshape(samples, blocks, inner, width), rows)
        self._channels.add(rows, inner)
        return fold

    def merge(self, other: Self) -> Self:
        """Return the statistics of both together; neither operand changes.

        Raises:
            MergeError: the operands describe different tensors, or differ in channel axis or bin width.
        """
        require_equal("tensor", self._tensor_id, other._tensor_id)
        require_equal("channel axis", self._channel_axis, other._channel_axis)
        merged = type(self)(self._tensor_id, channel_axis=self._channel_axis)
        merged._histogram = self.histogram.merge(other.histogram)
        merged._channels = self._channels.merge(other._channels)
        return merged

    def counters(self) -> dict[str, int | float | None]:
        """Return n, n_zero, n_nan, n_inf, min, max (None where no value is finite) and mantissa_bits."""
        return self.histogram.counters()

    def channels_frame(self) -> pl.DataFrame:
        """Return the tensor's rows of the `channels` table, by channel."""
        return frame_of("channels", self._channels.columns(), tensor_id=self._tensor_id)

    def histogram_frame(self) -> pl.DataFrame:
        """Return the tensor's rows of the `histograms` table, by key."""
        return frame_of("histograms", self.histogram.bin_columns(), tensor_id=self._tensor_id)

    def extremes_frame(self) -> pl.DataFrame:
        """Return the tensor's rows of the `extremes` table: side max descending, then side min ascending."""
        return self.histogram.extremes_frame().select(pl.lit(self._tensor_id, pl.Int32).alias("tensor_id"), pl.all())

    def histogram_part(self) -> Part:
        """Return the tensor's rows of the `histograms` table for its file, by key."""
        return {"tensor_id": self._tensor_id, **self.histogram.bin_columns(keep=False)}

    def extremes_part(self, side: Side) -> Part:
        """Return the rows of one side of the `extremes` table for its file, in the order of `extremes_frame`."""
        values, counts = self.histogram.largest if side == "max" else self.histogram.smallest
        return {"tensor_id": self._tensor_id, "side": side, "value": values, "count": counts}

    def channels_part(self) -> Part:
        """Return the tensor's rows of the `channels` table for its file, by channel."""
        return {"tensor_id": self._tensor_id, **self._channels.columns()}

    def _checked(self, batch: FloatArray, sample_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        array = np.asarray(batch)
        if array.dtype not in (np.float32, np.float16):
            message = f"tensor {self._tensor_id}: activations are {array.dtype}; expected float32 or float16"
            raise SchemaError(message)
        if array.ndim == 0 or array.shape[0] != len(sample_ids):
            message = (
                f"tensor {self._tensor_id}: a batch of shape {array.shape} for {len(sample_ids)} samples; "
                "expected the samples on axis 0"
            )
            raise ShapeError(message)
        return np.ascontiguousarray(array, np.float32)

    def _block_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
        """Return (N, outer, C, inner), or None where there is no channel axis."""
        if self._channel_axis is None:
            return None
        axis = self._channel_axis + len(shape) if self._channel_axis < 0 else self._channel_axis
        if not 1 <= axis < len(shape):
            return None
        return shape[0], math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 :])
