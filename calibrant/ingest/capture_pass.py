"""One pass of the model over the data: batches run, their tensors handed to the recorder, samples noted."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock

import polars as pl

from calibrant.ingest.batches import Batch, fixed_batch, make_batches
from calibrant.ingest.chosen import ChosenSamples
from calibrant.ingest.memory_plan import RunSize
from calibrant.ingest.model import ModelInput
from calibrant.ingest.opening import Opened
from calibrant.ingest.recorder import Recorder
from calibrant.ingest.runner import BatchRunner, Rows
from calibrant.ingest.sample_axis import JOINED_SAMPLES
from calibrant.ingest.samples import Array, fingerprint_of_keys
from calibrant.ingest.verify_inputs import VerifyInputs
from calibrant.ingest.workers import Turn, Workers
from calibrant.ingest.writer import check_disk
from calibrant.stats.events import Progress
from calibrant.stats.keep import Keep
from calibrant.stats.sample_rows import SampleRows
from calibrant.stats.tables import SCHEMAS


class Clock:
    """Seconds by part of the work.

    Attributes:
        seconds: ``capture.<part>`` -> how long it took, summed over threads.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = Lock()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add what the block takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            name, taken = f"capture.{part}", time.perf_counter() - started
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + taken


@dataclass
class SamplesSeen:
    """The `inputs` table and what else is chosen from the samples while they pass by.

    Attributes:
        chosen: the samples whose activations are kept, where that is a part of them.
        verify: the inputs that verify uses.
        rows: of the `inputs` table.
    """

    chosen: ChosenSamples | None = None
    verify: VerifyInputs = field(default_factory=VerifyInputs)
    rows: list[tuple[int, str, str, int]] = field(default_factory=list)

    def see(self, batch: Batch) -> None:
        """Note the samples of a batch."""
        self.rows += [(n, s.key, s.source, s.position) for n, s in zip(batch.numbers, batch.samples, strict=True)]
        self.verify.offer(batch.samples)
        if self.chosen is not None:
            self.chosen.offer(batch)

    def inputs_table(self) -> pl.DataFrame:
        """Return the `inputs` table."""
        return pl.DataFrame(self.rows, schema=SCHEMAS["inputs"], orient="row")

    def fingerprint(self) -> str:
        """Return the fingerprint of the data."""
        return fingerprint_of_keys(key for _, key, _, _ in self.rows)


@dataclass(frozen=True, slots=True)
class DiskGuard:
    """Stops a capture whose activations would fill the disk.

    Attributes:
        folder: where they go.
        keep: whose are kept.
        count: how many samples there will be, or None.
    """

    folder: Path
    keep: Keep
    count: int | None

    def look(self, stored: int, done: int) -> None:
        """Estimate from the first batch; where nobody knows how many samples come, look at what was written.

        Args:
            stored: bytes of the activations so far.
            done: of how many samples.

        Raises:
            RunError: more than half of the free disk.
        """
        wanted = self.keep.samples if self.count is None else min(self.count, self.keep.samples or self.count)
        if wanted is None:
            check_disk(self.folder, stored, f"of {done} samples already take")
        else:
            check_disk(self.folder, stored * wanted // done, f"of {wanted} samples will take")


def stored_bytes(rows: Mapping[int, Sequence[Rows]]) -> int:
    """Return how many bytes the rows of a batch take on disk; constants, which are kept once, left out."""
    return sum(part.values.nbytes for parts in rows.values() for part in parts if part.samples[0] >= 0)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A batch to record.

    Attributes:
        batch: the batch.
        arrays: what the session gave for it, where it ran before.
    """

    batch: Batch
    arrays: list[Array] | None = None


def tasks_of(opened: Opened, inputs: Sequence[ModelInput], size: RunSize, count: int | None = None) -> Iterator[Task]:
    """Yield the batches of a stream; the samples that were tried need not run again.

    Args:
        opened: the stream.
        inputs: of the model.
        size: samples that run at once, and threads.
        count: how many samples there are, or None where nobody knows.
    """
    first, alone, together = len(opened.leading), opened.found.alone, opened.found.together
    if together and size.at_once > 1 and opened.ran == tuple(range(JOINED_SAMPLES)):
        for arrays in alone:
            arrays.clear()
        yield Task(Batch(0, opened.leading), together)
    else:
        together.clear()
        ran = dict(zip(opened.ran, alone, strict=True))
        for number, sample in enumerate(opened.leading):
            yield Task(Batch(number, (sample,)), ran.get(number))
    singly_from = None if count is None or fixed_batch(inputs) is not None else singles_after(first, count, size)
    rest = islice(opened.samples, first, None)
    yield from map(Task, make_batches(rest, inputs, size.at_once, first=first, singly_from=singly_from))


def singles_after(first: int, count: int, size: RunSize) -> int | None:
    """Return from which sample on each runs alone: those left after whole rounds of all threads, where there are enough threads.

    Together they would keep one thread busy and the others idle.

    Args:
        first: number of the first sample that runs.
        count: of all samples.
        size: samples that run at once, and threads.

    Example:
        >>> singles_after(2, 64, RunSize(at_once=6, threads=2)), singles_after(2, 67, RunSize(at_once=6, threads=2))
        (62, None)
    """
    left = (count - first) % (size.at_once * size.threads)
    return count - left if left <= size.threads else None


class CapturePass:
    """Runs the batches of one pass on threads, each of which records what it ran.

    Args:
        runner: runs a batch.
        recorder: folds and writes what comes out.
        seen: notes the samples.
        guard: looks at the disk where activations are kept, else None.
        threads: how many.
        clock: of the capture.
    """

    def __init__(
        self,
        runner: BatchRunner,
        recorder: Recorder,
        seen: SamplesSeen,
        guard: DiskGuard | None,
        threads: int,
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._recorder = recorder
        self._seen = seen
        self._guard = guard
        self._threads = threads
        self._clock = clock
        self._stored = 0

    def run(self, tasks: Iterator[Task], count: int | None, progress: Progress) -> None:
        """Run all batches.

        Args:
            tasks: at least one.
            count: how many samples there will be, or None.
            progress: called after each batch.
        """
        workers: Workers[Task, list[SampleRows]] = Workers(
            self._threads, lambda task, turn: self._work(task, turn, count), self._runner.stop
        )
        with closing(workers.results(self._read(tasks))) as results:
            for task, folded in results:
                self._recorder.finish(task.batch, folded)
                self._seen.see(task.batch)
                progress("capture", task.batch.numbers[-1] + 1, count or 0)
        if count is None:
            progress("capture", len(self._seen.rows), len(self._seen.rows))

    def keep(self, batches: Iterable[Batch]) -> None:
        """Write the activations of chosen samples, which were folded before."""
        for batch in batches:
            with self._clock("kept"):
                self._recorder.write(self._runner.rows_by_tensor(batch))

    def _read(self, tasks: Iterator[Task]) -> Iterator[Task]:
        while True:
            with self._clock("read"):
                task = next(tasks, None)
            if task is None:
                return
            if task.arrays is None:
                self._runner.claim(task.batch)
            yield task

    def _work(self, task: Task, turn: Turn, count: int | None) -> list[SampleRows]:
        with self._clock("inference"):
            rows = self._rows(task)
        if self._guard is not None:
            self._look(self._guard, task.batch, rows, turn, count)
        with self._clock("fold"):
            return self._recorder.record(rows)

    def _look(
        self, guard: DiskGuard, batch: Batch, rows: Mapping[int, Sequence[Rows]], turn: Turn, count: int | None
    ) -> None:
        if guard.keep.has_all:
            turn.wait()  # rows are written in order
            self._stored += stored_bytes(rows)
        if batch.first == 0 or (count is None and guard.keep.has_all):
            guard.look(self._stored or stored_bytes(rows), batch.numbers[-1] + 1)

    def _rows(self, task: Task) -> dict[int, list[Rows]]:
        if task.arrays is None:
            return self._runner.rows_by_tensor(task.batch)
        arrays, task.arrays[:] = list(task.arrays), []
        return self._runner.rows_of(task.batch, arrays)
