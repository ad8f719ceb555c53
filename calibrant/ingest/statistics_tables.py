"""The tables of everything folded: made and encoded on threads, a tensor at a time, beside what else there is to write."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from calibrant.ingest.fold import TensorFold
from calibrant.ingest.scratch_pool import ScratchPool
from calibrant.stats.parquet_columns import Pages, Part, pages_of
from calibrant.stats.percentiles import SIDES
from calibrant.stats.tables import SCHEMAS, pages_together, plain_columns, table_file, write_frame, write_parts

THREADS: Final = 2  # that make and encode rows of tables
_TASKS: Final = 64  # for all tensors, at most: each waits for the interpreter


class _TensorRows(NamedTuple):
    """What the tables hold of one tensor."""

    tensor: dict[str, object]
    histogram: Pages
    extremes: tuple[Pages, ...]
    channels: Part


@contextmanager
def statistics_written(folds: Sequence[TensorFold], folder: Path, scratches: ScratchPool) -> Iterator[None]:
    """Make the tables of everything folded, beside what the caller does meanwhile, and write them; each whole or not at all.

    Written: tensors, histograms, extremes, channels; `samples` is written as it comes.

    Args:
        folds: nobody else looks at their statistics meanwhile.
        folder: of the run.
        scratches: one for each of THREADS at least.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    size = max(1, -(-len(folds) // _TASKS))
    groups = [folds[start : start + size] for start in range(0, len(folds), size)]
    pool = ThreadPoolExecutor(THREADS)
    try:
        made = [pool.submit(_rows_of, group, scratches) for group in groups]
        yield
        _write_tensors(made, folder)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _write_tensors(made: Sequence[Future[list[_TensorRows]]], folder: Path) -> None:
    rows = [one for task in made for one in task.result()]
    write_parts("histograms", (one.histogram for one in rows), table_file(folder, "histograms"))
    write_parts("extremes", (pages for one in rows for pages in one.extremes), table_file(folder, "extremes"))
    write_parts("channels", pages_together("channels", [one.channels for one in rows]), table_file(folder, "channels"))
    tensors = pl.DataFrame([one.tensor for one in rows], schema=SCHEMAS["tensors"])
    write_frame("tensors", tensors, table_file(folder, "tensors"))


def _rows_of(folds: Sequence[TensorFold], scratches: ScratchPool) -> list[_TensorRows]:
    return [_rows_of_tensor(fold, scratches) for fold in folds]


def _rows_of_tensor(fold: TensorFold, scratches: ScratchPool) -> _TensorRows:
    statistics = fold.statistics
    with scratches.lent() as scratch:
        statistics.settle(scratch)
    extremes = tuple(pages_of(statistics.extremes_part(side), plain_columns("extremes")) for side in SIDES)
    histogram = pages_of(statistics.histogram_part(), plain_columns("histograms"))
    return _TensorRows(fold.table_row(), histogram, extremes, statistics.channels_part())
