"""One pass of the model over the data: batches run, their tensors handed to the recorder, samples noted."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from calibrant.ingest.batches import Batch
from calibrant.ingest.chosen import ChosenSamples
from calibrant.ingest.recorder import InFlight, Recorder
from calibrant.ingest.runner import BatchRunner, Rows
from calibrant.ingest.samples import fingerprint_of_keys
from calibrant.ingest.verify_inputs import VerifyInputs
from calibrant.ingest.writer import check_disk
from calibrant.stats.events import Progress
from calibrant.stats.keep import Keep
from calibrant.stats.tables import SCHEMAS


class Clock:
    """Seconds by part of the work.

    Attributes:
        seconds: ``capture.<part>`` -> how long it took.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add what the block takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            name = f"capture.{part}"
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


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


class CapturePass:
    """Runs the batches of one pass.

    Args:
        runner: runs a batch.
        recorder: folds and writes what comes out.
        seen: notes the samples.
        guard: looks at the disk where activations are kept, else None.
        clock: of the capture.
    """

    def __init__(
        self, runner: BatchRunner, recorder: Recorder, seen: SamplesSeen, guard: DiskGuard | None, clock: Clock
    ) -> None:
        self._runner = runner
        self._recorder = recorder
        self._seen = seen
        self._guard = guard
        self._clock = clock

    def run(self, batches: Iterator[Batch], count: int | None, progress: Progress) -> None:
        """Run all batches, folding each beside the inference of the next.

        Args:
            batches: at least one.
            count: how many samples there will be, or None.
            progress: called after each batch.
        """
        flight: InFlight | None = None
        stored = 0
        for batch in self._read(batches):
            with self._clock("inference"):
                rows = self._runner.rows_by_tensor(batch)
            stored += stored_bytes(rows)
            if self._guard is not None and (batch.first == 0 or (count is None and self._guard.keep.has_all)):
                self._guard.look(stored, batch.numbers[-1] + 1)
            self._finish(flight)
            flight = self._recorder.start(batch, rows)
            del rows  # each tensor goes once it is folded, and its memory serves the batch that runs meanwhile
            self._seen.see(batch)
            progress("capture", batch.numbers[-1] + 1, count or 0)
        self._finish(flight)
        if count is None:
            progress("capture", len(self._seen.rows), len(self._seen.rows))

    def keep(self, batches: Iterable[Batch]) -> None:
        """Write the activations of chosen samples, which were folded before."""
        for batch in batches:
            with self._clock("kept"):
                self._recorder.write(self._runner.rows_by_tensor(batch))

    def _read(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            with self._clock("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _finish(self, flight: InFlight | None) -> None:
        if flight is not None:
            with self._clock("wait"):
                self._recorder.finish(flight)
