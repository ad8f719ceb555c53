"""Statistics and Parquet writing on threads beside the inference, at most two batches in flight."""

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final, Self

import numpy as np
import polars as pl

from calibrant.errors import DataError
from calibrant.ingest.batches import Batch
from calibrant.ingest.fold import TensorFold, digest_of
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.runner import Rows
from calibrant.ingest.sample_axis import Layout
from calibrant.ingest.samples import Sample
from calibrant.ingest.writer import CaptureWriter, SamplesWriter, writing
from calibrant.stats.captures import CaptureInfo, capture_folder
from calibrant.stats.histogram import CountScratch
from calibrant.stats.sample_rows import SampleRows, sample_frame

THREADS: Final = 2
_FIXED_LIST_LIMIT: Final = 2**31 - 1  # Arrow's fixed-size lists count in int32


@dataclass(frozen=True, slots=True)
class InFlight:
    """A batch whose statistics are being folded.

    Attributes:
        batch: the batch.
        tasks: tensor_id -> what gives the tensor's rows of the `samples` table.
    """

    batch: Batch
    tasks: Mapping[int, "Future[list[SampleRows]]"]


class ScratchPool:
    """Hands each thread a counting table of its own."""

    def __init__(self, size: int) -> None:
        self._free: SimpleQueue[CountScratch] = SimpleQueue()
        for _ in range(size):
            self._free.put(CountScratch())

    def take(self) -> CountScratch:
        """Take a table; there is one for every thread."""
        return self._free.get()

    def give_back(self, scratch: CountScratch) -> None:
        """Return it."""
        self._free.put(scratch)


def static_shape(tensor: CapturedTensor, layout: Layout, own: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of every sample where the model fixes all axes but the batch axis, else None.

    Example:
        >>> from calibrant.ingest.sample_axis import Kind
        >>> tensor = CapturedTensor(0, "x", "", True, 1, ("N", 3, 8))
        >>> static_shape(tensor, Layout(Kind.SPLIT, 0), (1, 3, 8))
        (1, 3, 8)
    """
    declared = tensor.shape
    if declared is None or len(declared) != len(own):
        return None
    is_merged = layout.axis is not None and own[layout.axis] != 1
    others = [size for axis, size in enumerate(declared) if axis != layout.axis]
    is_static = all(isinstance(size, int) for size in others) and not is_merged
    return own if is_static and np.prod(own, dtype=np.int64) <= _FIXED_LIST_LIMIT else None


class TensorRecorder:
    """Folds and writes the rows of one tensor, one batch after the other."""

    def __init__(self, folder: Path, tensor: CapturedTensor, layout: Layout, *, keep_raw: bool) -> None:
        self.statistics = TensorFold(tensor, layout.axis)
        self._folder = folder
        self._layout = layout
        self._keep_raw = keep_raw
        self._writer: CaptureWriter | None = None
        self._written: set[bytes] = set()

    def record(self, parts: Sequence[Rows], scratch: CountScratch) -> list[SampleRows]:
        """Return the tensor's rows of the `samples` table for a batch."""
        folded = []
        for rows in parts:
            if not self.statistics.is_new(rows):
                continue
            folded.append(self.statistics.fold(rows, scratch))
            if self._keep_raw:
                self.write(rows)
        return folded

    def write_chosen(self, parts: Sequence[Rows]) -> None:
        """Append rows of chosen samples, which were folded before; a value of a constant tensor once."""
        for rows in parts:
            digest = digest_of(rows)
            if digest is None or digest not in self._written:
                self.write(rows)
                self._written |= {digest} if digest else set()

    def write(self, rows: Rows) -> None:
        """Append rows to the tensor's Parquet file."""
        if self._writer is None:
            self._writer = CaptureWriter(self._folder, self.statistics.tensor.tensor_id, self._info(rows))
        self._writer.append(rows.samples, rows.values)

    def _info(self, rows: Rows) -> CaptureInfo:
        tensor, own = self.statistics.tensor, rows.values.shape[1:]
        shape = static_shape(tensor, self._layout, own)
        return CaptureInfo(tensor.name, rows.values.dtype.name, len(own), self._layout.axis, shape)

    def close(self) -> None:
        """Finish the Parquet file."""
        if self._writer:
            self._writer.close()

    def abandon(self) -> None:
        """Drop the Parquet file."""
        shutil.rmtree(capture_folder(self._folder, self.statistics.tensor.tensor_id), ignore_errors=True)


class Recorder:
    """Folds batches on two threads; used as a context, it leaves no file behind when the capture fails.

    Args:
        folder: the run folder.
        tensors: what is captured.
        layouts: where each tensor holds its samples.
        keep_raw: whether activations are written.

    Attributes:
        seconds: what the threads spent, summed.
    """

    def __init__(
        self, folder: Path, tensors: Sequence[CapturedTensor], layouts: Sequence[Layout], *, keep_raw: bool
    ) -> None:
        self.seconds = 0.0
        self._folder = folder
        self._tensors = {
            tensor.tensor_id: TensorRecorder(folder, tensor, layout, keep_raw=keep_raw)
            for tensor, layout in zip(tensors, layouts, strict=True)
        }
        self._samples_folder = folder / "tables" / "samples"
        self._samples = SamplesWriter(self._samples_folder)
        self._scratches = ScratchPool(THREADS)
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="calibrant-fold")

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the threads; after an error or an interrupt nothing stays."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if kind is not None:
            for tensor in self._tensors.values():
                tensor.abandon()
            shutil.rmtree(self._samples_folder, ignore_errors=True)

    @property
    def folds(self) -> list[TensorFold]:
        """The statistics, by tensor_id."""
        return [tensor.statistics for tensor in self._tensors.values()]

    def start(self, batch: Batch, rows: Mapping[int, Sequence[Rows]]) -> InFlight:
        """Begin to fold a batch; the batch before it must be finished, since a tensor's rows go in order.

        Args:
            batch: whose rows they are.
            rows: by tensor_id.
        """
        work = sorted(rows, key=lambda t: -sum(part.values.nbytes for part in rows[t]))
        tasks = {
            t: self._pool.submit(self._record, t, rows[t]) for t in work
        }  # largest first: both threads end together
        return InFlight(batch, {t: tasks[t] for t in rows})

    def write(self, rows: Mapping[int, Sequence[Rows]]) -> None:
        """Write rows, by tensor_id, of samples that were folded before.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder):
            list(self._pool.map(lambda t: self._tensors[t].write_chosen(rows[t]), rows))

    def _record(self, tensor_id: int, parts: Sequence[Rows]) -> list[SampleRows]:
        started, scratch = time.perf_counter(), self._scratches.take()
        try:
            return self._tensors[tensor_id].record(parts, scratch)
        finally:
            self._scratches.give_back(scratch)
            with self._lock:
                self.seconds += time.perf_counter() - started

    def finish(self, flight: InFlight) -> None:
        """Wait for a batch.

        Raises:
            DataError: a value is NaN or infinite.
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder):
            folded = [rows for _, task in sorted(flight.tasks.items()) for rows in task.result()]
        frame = sample_frame(folded)
        refuse_non_finite(frame, flight.batch, {fold.tensor.tensor_id: fold.tensor for fold in self.folds})
        with writing(self._folder):
            self._samples.append([frame])

    def close(self) -> None:
        """Finish all files.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder):
            self._samples.close()
            for tensor in self._tensors.values():
                tensor.close()


def refuse_non_finite(frame: pl.DataFrame, batch: Batch, tensors: Mapping[int, CapturedTensor]) -> None:
    """Refuse the first sample with NaN or infinity, naming its first tensor in topological order.

    Args:
        frame: rows of the `samples` table.
        batch: whose samples they are.
        tensors: by tensor_id.

    Raises:
        DataError: naming tensor, node, sample and count.
    """
    bad = frame.filter(pl.col("n_nan") + pl.col("n_inf") > 0).sort("sample", "tensor_id")
    if bad.height:
        number, tensor_id, n_nan, n_inf = bad.select("sample", "tensor_id", "n_nan", "n_inf").row(0)
        sample = batch.samples[max(number - batch.first, 0)]
        raise _non_finite(tensors[tensor_id], number, sample, n_nan, n_inf)


def _non_finite(tensor: CapturedTensor, number: int, sample: Sample, n_nan: int, n_inf: int) -> DataError:
    node = "(a model input)" if tensor.is_input else f"of node '{tensor.producer}'"
    counts = [f"{n_nan} NaN"] * (n_nan > 0) + [f"{n_inf} infinit{'y' if n_inf == 1 else 'ies'}"] * (n_inf > 0)
    where = f"in sample {number} ({sample.place})" if number >= 0 else "in all samples"
    advice = (
        "remove the sample, or correct it"
        if tensor.is_input
        else "remove the sample, or change the model before this node"
    )
    return DataError(f"tensor '{tensor.name}' {node}: {' and '.join(counts)} {where}; no scale can hold that: {advice}")
