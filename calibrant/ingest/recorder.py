"""What came out of the model, folded into the statistics and written to Parquet by the threads that ran it."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Self

import numpy as np

from calibrant.errors import DataError
from calibrant.ingest.batches import Batch
from calibrant.ingest.fold import TensorFold, digest_of
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.runner import Rows
from calibrant.ingest.sample_axis import Layout
from calibrant.ingest.samples import Sample
from calibrant.ingest.scratch_pool import ScratchPool
from calibrant.ingest.writer import CaptureWriter, SamplesWriter, writing
from calibrant.stats.captures import CONSTANT_SAMPLE, CaptureInfo, capture_folder
from calibrant.stats.histogram import CountScratch
from calibrant.stats.sample_rows import SampleColumns, SampleRows, sample_columns

THREADS: Final = 2
_FIXED_LIST_LIMIT: Final = 2**31 - 1  # Arrow's fixed-size lists count in int32


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
    """Folds and writes the rows of one tensor, one batch after the other.

    Attributes:
        statistics: folded so far.
        lock: held by the thread that records.
    """

    def __init__(self, folder: Path, tensor: CapturedTensor, layout: Layout, *, keep_raw: bool) -> None:
        self.statistics = TensorFold(tensor, layout.axis)
        self._folder = folder
        self._layout = layout
        self._keep_raw = keep_raw
        self.lock = Lock()
        self._writer: CaptureWriter | None = None
        self._written: set[bytes] = set()

    def record(self, parts: Sequence[Rows], scratch: CountScratch) -> list[SampleRows]:
        """Return the tensor's rows of the `samples` table for a batch; those of a constant each time, always the same object."""
        folded = []
        for rows in parts:
            found, is_new = self.statistics.fold_once(rows, scratch)
            folded.append(found)
            if is_new and self._keep_raw:
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
        rows = rows.in_order()
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
    """Records batches on the threads that ran them; used as a context, it leaves no file behind when the capture fails.

    Args:
        folder: the run folder.
        tensors: what is captured.
        layouts: where each tensor holds its samples.
        keep_raw: whether activations are written.
        threads: how many record at once.

    Attributes:
        scratches: the counting tables, one for each thread.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Sequence[CapturedTensor],
        layouts: Sequence[Layout],
        *,
        keep_raw: bool,
        threads: int = THREADS,
    ) -> None:
        self._folder = folder
        self._tensors = {
            tensor.tensor_id: TensorRecorder(folder, tensor, layout, keep_raw=keep_raw)
            for tensor, layout in zip(tensors, layouts, strict=True)
        }
        self._samples_folder = folder / "tables" / "samples"
        self._samples = SamplesWriter(self._samples_folder)
        self.scratches = ScratchPool(threads)
        self._constants: set[int] = set()  # identities of rows that went to the `samples` table

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error or an interrupt leave nothing."""
        if kind is not None:
            for tensor in self._tensors.values():
                tensor.abandon()
            shutil.rmtree(self._samples_folder, ignore_errors=True)

    @property
    def folds(self) -> list[TensorFold]:
        """The statistics, by tensor_id."""
        return [tensor.statistics for tensor in self._tensors.values()]

    def record(self, rows: dict[int, list[Rows]]) -> list[SampleRows]:
        """Fold a batch, and write it where activations are kept; then batches have to come in order.

        Args:
            rows: by tensor_id; emptied, so that each tensor's memory serves the batches that run meanwhile.

        Returns:
            Rows of the `samples` table, for `finish`.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder), self.scratches.lent() as scratch:
            return self._record(rows, scratch)

    def _record(self, rows: dict[int, list[Rows]], scratch: CountScratch) -> list[SampleRows]:
        waiting: list[int] = list(reversed(rows))
        folded: list[SampleRows] = []
        while waiting:
            tensor_id = self._free(waiting)
            tensor = self._tensors[tensor_id]
            try:
                folded += tensor.record(rows.pop(tensor_id), scratch)
            finally:
                tensor.lock.release()
        return folded

    def _free(self, waiting: list[int]) -> int:
        """Take the first tensor that no other thread records, the one that was computed last; where there is none, wait."""
        for place, tensor_id in enumerate(waiting):
            if self._tensors[tensor_id].lock.acquire(blocking=False):
                return waiting.pop(place)
        self._tensors[waiting[0]].lock.acquire()
        return waiting.pop(0)

    def write(self, rows: Mapping[int, Sequence[Rows]]) -> None:
        """Write rows, by tensor_id, of samples that were folded before.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder):
            for tensor_id, parts in rows.items():
                self._tensors[tensor_id].write_chosen(parts)

    def finish(self, batch: Batch, folded: Sequence[SampleRows]) -> None:
        """Take a batch's rows of the `samples` table; batches have to come in order.

        Raises:
            DataError: a value is NaN or infinite.
            RunError: the disk is full or the folder cannot be written.
        """
        new = [rows for rows in folded if self._is_new(rows)]
        if not new:
            return
        rows = sample_columns(new)
        refuse_non_finite(rows, batch, {fold.tensor.tensor_id: fold.tensor for fold in self.folds})
        with writing(self._folder):
            self._samples.append(rows)

    def _is_new(self, rows: SampleRows) -> bool:
        """Return whether rows are of samples, or of a constant for the first time; the tensor's fold holds the latter for good."""
        if rows.samples[0] != CONSTANT_SAMPLE:
            return True
        is_new = id(rows) not in self._constants
        self._constants.add(id(rows))
        return is_new

    def close(self) -> None:
        """Finish all files.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        with writing(self._folder):
            self._samples.close()
            for tensor in self._tensors.values():
                tensor.close()


def refuse_non_finite(rows: SampleColumns, batch: Batch, tensors: Mapping[int, CapturedTensor]) -> None:
    """Refuse the first sample with NaN or infinity, naming its first tensor in topological order.

    Args:
        rows: columns of the `samples` table.
        batch: whose samples they are.
        tensors: by tensor_id.

    Raises:
        DataError: naming tensor, node, sample and count.
    """
    bad = np.flatnonzero(rows["n_nan"] + rows["n_inf"])
    if bad.size:
        first = bad[np.lexsort((rows["tensor_id"][bad], rows["sample"][bad]))[0]]
        number, tensor_id, n_nan, n_inf = (int(rows[name][first]) for name in ("sample", "tensor_id", "n_nan", "n_inf"))
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
