"""The run of the model over the data: activations out, statistics folded in the same pass.

Grouping changes nothing: whatever the batch size and the order of the samples, the tables (but `inputs` and the sample numbers) are equal
bit for bit. Memory does not grow with the number of batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from calibrant.ingest.batches import fixed_batch, model_feeds
from calibrant.ingest.capture_pass import Clock, DiskGuard, SamplesSeen
from calibrant.ingest.capture_plan import CaptureOptions, memory_events, plan_capture
from calibrant.ingest.chosen import ChosenSamples
from calibrant.ingest.data import DataSource
from calibrant.ingest.exposed_passes import ExposedPasses
from calibrant.ingest.exposing import ExposedModel
from calibrant.ingest.fold import TensorFold
from calibrant.ingest.layers import layer_rows_of
from calibrant.ingest.model import ModelInput, PreparedModel, prepared_proto
from calibrant.ingest.recompute import recompute_statistics
from calibrant.ingest.recorder import Recorder
from calibrant.ingest.statistics_tables import statistics_written
from calibrant.ingest.verify_inputs import save_verify_inputs
from calibrant.ingest.writer import writing
from calibrant.stats.events import Event, Notice, Progress, no_notice
from calibrant.stats.keep import Keep
from calibrant.stats.run import prepared_file
from calibrant.stats.tables import layers_frame, table_file, write_frame

__all__ = ["CaptureOptions", "CaptureResult", "capture_activations", "recompute_statistics"]


@dataclass(frozen=True)
class CaptureResult:
    """What a capture did.

    Attributes:
        samples: how many were used.
        batch_size: as resolved.
        one_by_one: whether samples ran one at a time because the bits depend on the batch.
        data_fingerprint: hash of the sorted sample keys.
        events: decisions and warnings.
        seconds: part of the work -> how long it took; ``capture.inference`` and ``capture.fold`` are sums over threads.
        input_shapes: captured tensor -> its largest shape for one sample.
    """

    samples: int
    batch_size: int
    one_by_one: bool
    data_fingerprint: str
    events: tuple[Event, ...]
    seconds: Mapping[str, float]
    input_shapes: Mapping[str, tuple[int, ...]]


def _constant_events(folds: Sequence[TensorFold]) -> Iterator[Event]:
    for fold in folds:
        if fold.constant_values > 1:
            name = fold.tensor.name
            text = f"tensor '{name}': no sample axis, and {fold.constant_values} values over the batches; each was counted once"
            yield Event("capture", "warn", text, layer=name)


def capture_activations(
    prepared: PreparedModel,
    source: DataSource,
    folder: Path,
    options: CaptureOptions,
    progress: Progress,
    notice: Notice = no_notice,
) -> CaptureResult:
    """Run the prepared model over the data and write captures and tables into the run folder.

    Args:
        prepared: the model; ``folder/model/prepared.onnx`` holds it already.
        source: the data, read once; once for each group of tensors where memory asks for groups.
        folder: the run folder. Written: ``captures/`` (keep raw), ``tables/{inputs, tensors, histograms, extremes, channels,
            layers}.parquet``, ``tables/samples/``, ``verify/inputs.npz``.
        options: batch size, what to keep, how much data, how much memory.
        progress: called after each batch with the samples done and the samples known.
        notice: told before the model runs what memory that will take, where a limit was given.

    Raises:
        DataError: a sample does not fit, cannot be run, or gives NaN or infinity; too few samples for batch_num.
        EmptyDataError: no sample.
        ConfigError: the batch size is not the model's, or the memory does not suffice; then the message has the least that does.
        RunError: the raw activations would fill the disk.
        ModelError: onnxruntime cannot load the model.
    """
    clock = Clock()
    plan = plan_capture(prepared, source, options, notice)
    path = prepared_file(folder)
    given = prepared_proto(prepared) or path
    with ExposedModel(given, prepared.tensors, path.parent, threads=plan.run_threads) as model:
        passes = ExposedPasses(model, prepared, plan, clock)
        probed = passes.probe()
        keep = plan.keep
        with (
            _chosen(keep, folder) as chosen,
            Recorder(
                folder, prepared.tensors, probed.layouts, keep_raw=keep.has_all, threads=plan.memory.size.threads
            ) as recorder,
        ):
            seen = SamplesSeen(chosen)
            guard = DiskGuard(folder, keep, plan.count) if keep.has_raw else None
            passes.run(recorder, seen, guard, progress)
            with clock("tables"), writing(folder):
                shapes = _write(seen, recorder, prepared, folder)
    count = len(seen.rows)
    events = [
        *plan.events,
        *passes.events,
        *_constant_events(recorder.folds),
        *_fill_events(prepared.inputs, count),
        *_kept_events(options.keep, count),
        *memory_events(options.memory),
    ]
    return CaptureResult(
        count, plan.batch_size, passes.one_by_one, seen.fingerprint(), tuple(events), clock.seconds, shapes
    )


@contextmanager
def _chosen(keep: Keep, folder: Path) -> Iterator[ChosenSamples | None]:
    if not keep.is_part:
        yield None
        return
    chosen = ChosenSamples(folder / "captures" / ".chosen", keep.samples or 0)
    try:
        yield chosen
    finally:
        chosen.discard()


def _kept_events(keep: Keep, count: int) -> Iterator[Event]:
    if keep.is_part:
        kept = min(keep.samples or 0, count)
        text = f"--keep {keep}: the activations of {kept} of {count} samples are kept, those of least content key; statistics are of all"
        yield Event("capture", "info", text)


def _fill_events(inputs: Sequence[ModelInput], count: int) -> Iterator[Event]:
    size = fixed_batch(inputs)
    if size is not None and count % size:
        text = (
            f"{count} samples do not fill batches of {size}: short batches repeat a sample, whose results are dropped"
        )
        yield Event("capture", "info", text)


def _write(
    seen: SamplesSeen, recorder: Recorder, prepared: PreparedModel, folder: Path
) -> Mapping[str, tuple[int, ...]]:
    """Finish all files, and return the largest shape of each tensor."""
    shapes = {fold.tensor.name: fold.largest_shape for fold in recorder.folds}
    with statistics_written(recorder.folds, folder, recorder.scratches):
        recorder.close()
        write_frame("inputs", seen.inputs_table(), table_file(folder, "inputs"))
        write_frame("layers", layers_frame(layer_rows_of(prepared, shapes)), table_file(folder, "layers"))
        save_verify_inputs(folder, model_feeds(seen.verify.chosen(), prepared.inputs))
    return shapes
