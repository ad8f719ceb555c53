"""Every statistics table of a run again, from its Parquet files and its prepared model, bit for bit the same."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import RunError
from calibrant.ingest.fold import TensorFold
from calibrant.ingest.model import CapturedTensor, PreparedModel
from calibrant.ingest.model_tables import write_model_tables
from calibrant.ingest.runner import Rows
from calibrant.ingest.scratch_pool import ScratchPool
from calibrant.ingest.statistics_tables import THREADS, statistics_written
from calibrant.ingest.writer import SamplesWriter
from calibrant.stats.captures import CaptureInfo, capture_folder, read_capture_info, read_capture_rows
from calibrant.stats.events import Progress
from calibrant.stats.sample_rows import SampleColumns, sample_columns


def recompute_statistics(folder: Path, prepared: PreparedModel, progress: Progress) -> None:
    """Write tensors, histograms, extremes, channels, samples and weights anew; old tables stay until all are computed.

    Memory: 32 MB of activations (or one sample) for each of two threads, the statistics, and a tensor's rows of `samples`.

    Args:
        folder: the run folder, captured with keep raw.
        prepared: its prepared model.
        progress: called after each tensor.

    Raises:
        RunError: only statistics were kept, a file is damaged, or the captures are of another model.
    """
    infos = {tensor.tensor_id: _checked_info(folder, tensor) for tensor in prepared.tensors}
    scratches, folds = ScratchPool(THREADS), []
    with _replaced_folder(folder / "tables" / "samples") as samples_folder, ThreadPoolExecutor(THREADS) as pool:
        tasks = [
            pool.submit(_fold_captures, folder, tensor, infos[tensor.tensor_id], scratches)
            for tensor in prepared.tensors
        ]
        samples = SamplesWriter(samples_folder)
        try:
            for done, task in enumerate(tasks, 1):
                fold, rows = task.result()
                folds.append(fold)
                samples.append(rows)
                progress("stats", done, len(tasks))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        with statistics_written(folds, folder, scratches):
            samples.close()
            write_model_tables(prepared, folder)


def _checked_info(folder: Path, tensor: CapturedTensor) -> CaptureInfo:
    info = read_capture_info(folder, tensor.tensor_id)
    if info.tensor != tensor.name:
        place = capture_folder(folder, tensor.tensor_id)
        message = f"{place}: holds tensor '{info.tensor}', the prepared model has '{tensor.name}' there; capture the run again"
        raise RunError(message)
    return info


def _fold_captures(
    folder: Path, tensor: CapturedTensor, info: CaptureInfo, scratches: ScratchPool
) -> tuple[TensorFold, SampleColumns]:
    """Return the statistics of a tensor and its rows of the `samples` table."""
    fold = TensorFold(tensor, info.sample_axis)
    with scratches.lent() as scratch:
        pages = read_capture_rows(folder, tensor.tensor_id)
        rows = [fold.fold(Rows(numbers.tolist(), values), scratch) for numbers, values in pages]
        fold.statistics.settle(scratch)
    return fold, sample_columns(rows)


@contextmanager
def _replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder for parts that takes the old one's place when everything worked."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        yield partial
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
