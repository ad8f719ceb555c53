"""The run of the model over the data: activations out, statistics folded in the same pass.

Grouping changes nothing: whatever the batch size and the order of the samples, the tables (but `inputs` and the sample numbers) are equal
bit for bit. Memory does not grow with the number of batches.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from calibrant.errors import ConfigError
from calibrant.ingest.batches import (
    Batch,
    Limit,
    LimitedSamples,
    fixed_batch,
    make_batches,
    model_feeds,
    resolve_batch_size,
)
from calibrant.ingest.data import DataSource
from calibrant.ingest.fold import TensorFold, statistics_tables, write_tables
from calibrant.ingest.layers import layer_rows_of
from calibrant.ingest.model import ModelInput, PreparedModel
from calibrant.ingest.opening import open_runner
from calibrant.ingest.recompute import recompute_statistics
from calibrant.ingest.recorder import InFlight, Recorder
from calibrant.ingest.runner import BatchRunner, Rows
from calibrant.ingest.samples import fingerprint_of_keys
from calibrant.ingest.session import ActivationSession
from calibrant.ingest.verify_inputs import VerifyInputs, save_verify_inputs
from calibrant.ingest.writer import check_disk, writing
from calibrant.stats.events import Event, Progress
from calibrant.stats.keep import KEEP_ALL, Keep
from calibrant.stats.run import prepared_file
from calibrant.stats.tables import SCHEMAS, layers_frame

__all__ = ["CaptureOptions", "CaptureResult", "capture_activations", "recompute_statistics"]


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What a capture is asked for.

    Attributes:
        batch_size: samples a batch; None for the model's fixed batch, else 8.
        keep: which activations are written beside the statistics.
        batch_num: use the first batch_num * batch_size samples; None for all.
    """

    batch_size: int | None = None
    keep: Keep = KEEP_ALL
    batch_num: int | None = None

    def __post_init__(self) -> None:
        if self.batch_num is not None and self.batch_num < 1:
            message = f"batch_num: {self.batch_num} is no number of batches; expected at least 1"
            raise ConfigError(message)


@dataclass(frozen=True)
class CaptureResult:
    """What a capture did.

    Attributes:
        samples: how many were used.
        batch_size: as resolved.
        one_by_one: whether samples ran one at a time because the bits depend on the batch.
        data_fingerprint: hash of the sorted sample keys.
        events: decisions and warnings.
        seconds: part of the work -> how long it took; ``capture.fold`` sums over threads.
        input_shapes: captured tensor -> its largest shape for one sample.
    """

    samples: int
    batch_size: int
    one_by_one: bool
    data_fingerprint: str
    events: tuple[Event, ...]
    seconds: Mapping[str, float]
    input_shapes: Mapping[str, tuple[int, ...]]


class _Clock:
    """Seconds by part of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            name = f"capture.{part}"
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass
class _SamplesSeen:
    """The `inputs` table and the inputs for verify, collected while samples pass by."""

    verify: VerifyInputs = field(default_factory=VerifyInputs)
    rows: list[tuple[int, str, str, int]] = field(default_factory=list)

    def see(self, batch: Batch) -> None:
        """Note the samples of a batch."""
        self.rows += [(n, s.key, s.source, s.position) for n, s in zip(batch.numbers, batch.samples, strict=True)]
        self.verify.offer(batch.samples)

    def inputs_table(self) -> pl.DataFrame:
        """Return the `inputs` table."""
        return pl.DataFrame(self.rows, schema=SCHEMAS["inputs"], orient="row")

    def fingerprint(self) -> str:
        """Return the fingerprint of the data."""
        return fingerprint_of_keys(key for _, key, _, _ in self.rows)


class _Capture:
    """One pass over the data."""

    def __init__(self, runner: BatchRunner, recorder: Recorder, clock: _Clock, progress: Progress) -> None:
        self.seen = _SamplesSeen()
        self._runner = runner
        self._recorder = recorder
        self._clock = clock
        self._progress = progress

    def run(self, batches: Iterator[Batch], count: int | None, folder: Path | None) -> None:
        """Run all batches, folding each beside the inference of the next.

        Args:
            batches: at least one.
            count: how many samples there will be, or None.
            folder: where raw activations go, or None.
        """
        flight: InFlight | None = None
        stored = 0
        for batch in self._read(batches):
            with self._clock("inference"):
                rows = self._runner.rows(batch)
            stored += _stored_bytes(rows)
            if folder is not None and (batch.first == 0 or count is None):
                _check_disk(folder, stored, batch.numbers[-1] + 1, count)
            self._finish(flight)
            flight = self._recorder.start(batch, rows)
            self.seen.see(batch)
            self._progress("capture", batch.numbers[-1] + 1, count or 0)
        self._finish(flight)
        with self._clock("write"):
            self._recorder.close()
        if count is None:
            self._progress("capture", len(self.seen.rows), len(self.seen.rows))

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


def _stored_bytes(rows: Sequence[Sequence[Rows]]) -> int:
    return sum(part.values.nbytes for parts in rows for part in parts if part.samples[0] >= 0)


def _check_disk(folder: Path, stored: int, done: int, count: int | None) -> None:
    """Estimate from the first batch; where nobody knows how many samples come, look at what was written."""
    if count is None:
        check_disk(folder, stored, f"of {done} samples already take")
    else:
        check_disk(folder, stored * count // done, f"of {count} samples will take")


def _constant_events(folds: Sequence[TensorFold]) -> Iterator[Event]:
    for fold in folds:
        if fold.constant_values > 1:
            name = fold.tensor.name
            text = f"tensor '{name}': no sample axis, and {fold.constant_values} values over the batches; each was counted once"
            yield Event("capture", "warn", text, layer=name)


def capture_activations(
    prepared: PreparedModel, source: DataSource, folder: Path, options: CaptureOptions, progress: Progress
) -> CaptureResult:
    """Run the prepared model over the data and write captures and tables into the run folder.

    Args:
        prepared: the model; ``folder/model/prepared.onnx`` holds it already.
        source: the data, read once.
        folder: the run folder. Written: ``captures/`` (keep raw), ``tables/{inputs, tensors, histograms, extremes, channels,
            layers, weights}.parquet``, ``tables/samples/``, ``verify/inputs.npz``.
        options: batch size, what to keep, how much data.
        progress: called after each batch with the samples done and the samples known.

    Raises:
        DataError: a sample does not fit, cannot be run, or gives NaN or infinity; too few samples for batch_num.
        EmptyDataError: no sample.
        ConfigError: the batch size is not the model's.
        RunError: the raw activations would fill the disk.
        ModelError: onnxruntime cannot load the model.
    """
    clock, inputs = _Clock(), prepared.inputs
    size = resolve_batch_size(inputs, options.batch_size)
    samples = LimitedSamples(source, None if options.batch_num is None else Limit(options.batch_num, size))
    with clock("session"):
        session = ActivationSession(prepared_file(folder), prepared.tensors)
    with clock("probe"):
        opened = open_runner(session, iter(samples), prepared)
    runner, found = opened.runner, opened.found
    with Recorder(folder, prepared.tensors, found.layouts, keep_raw=options.keep.has_raw) as recorder:
        capture = _Capture(runner, recorder, clock, progress)
        batches = make_batches(opened.samples, inputs, size)
        capture.run(batches, samples.count, folder if options.keep.has_raw else None)
        shapes = {fold.tensor.name: fold.largest_shape for fold in recorder.folds}
        with clock("tables"), writing(folder):
            _write(capture.seen, recorder.folds, prepared, shapes, folder)
    events = [
        *samples.events,
        *found.events,
        *runner.events,
        *_constant_events(recorder.folds),
        *_fill_events(inputs, capture),
    ]
    seconds = {**clock.seconds, "capture.fold": recorder.seconds}
    seen = capture.seen
    return CaptureResult(len(seen.rows), size, runner.one_by_one, seen.fingerprint(), tuple(events), seconds, shapes)


def _fill_events(inputs: Sequence[ModelInput], capture: _Capture) -> Iterator[Event]:
    size, count = fixed_batch(inputs), len(capture.seen.rows)
    if size is not None and count % size:
        text = (
            f"{count} samples do not fill batches of {size}: short batches repeat a sample, whose results are dropped"
        )
        yield Event("capture", "info", text)


def _write(
    seen: _SamplesSeen,
    folds: Sequence[TensorFold],
    prepared: PreparedModel,
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> None:
    layers = layers_frame(layer_rows_of(prepared, shapes))
    write_tables({"inputs": seen.inputs_table(), "layers": layers, **statistics_tables(folds, prepared)}, folder)
    save_verify_inputs(folder, model_feeds(seen.verify.chosen(), prepared.inputs))
