"""The first samples of a stream, tried alone and together, and the runner that follows from it."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from calibrant.errors import DataError
from calibrant.ingest.batches import can_join, fixed_batch, join
from calibrant.ingest.blocked import in_blocks, proven_width
from calibrant.ingest.exposing import BlockedSession
from calibrant.ingest.model import ModelInput, PreparedModel
from calibrant.ingest.runner import BatchRunner, refused
from calibrant.ingest.sample_axis import PROBE_SAMPLES, Probe, RunModel, probe
from calibrant.ingest.samples import Array, Sample
from calibrant.ingest.session import InferenceError


@dataclass(frozen=True)
class Opened:
    """A model that is ready to run over a stream of samples.

    Attributes:
        runner: runs batches.
        found: where each tensor holds its samples, and what the samples that were tried gave.
        leading: the first samples, up to the last that was tried.
        ran: which of them were.
        samples: the whole stream, these included.
    """

    runner: BatchRunner
    found: Probe
    leading: tuple[Sample, ...]
    ran: tuple[int, ...]
    samples: Iterator[Sample]


def open_runner(run: RunModel, samples: Iterator[Sample], prepared: PreparedModel, *, threads: int = 1) -> Opened:
    """Try the first samples, whatever the batch size will be.

    Args:
        run: gives the captured tensors of a feed.
        samples: of the data.
        prepared: the model.
        threads: how many run samples at the same time.

    Raises:
        DataError: onnxruntime refuses them.
    """
    leading, stream = leading_samples(samples, prepared.inputs)
    return _opened(run, leading, stream, prepared, threads)


def open_blocked(
    blocked: BlockedSession, samples: Iterator[Sample], prepared: PreparedModel, threads: int
) -> tuple[Opened | None, Iterator[Sample]]:
    """Do the same with tensors that come in blocks of channels.

    Returns:
        None where the first sample does not prove that they do; and the samples, which are all there again.

    Raises:
        DataError: onnxruntime refuses the first samples.
    """
    leading, stream = leading_samples(samples, prepared.inputs)
    feed = join(leading[:1], prepared.inputs, fixed_batch(prepared.inputs))
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(blocked.ordered.run, feed)
        opened = _opened(blocked.session.run, leading, stream, prepared, threads)
        arrays = opened.found.alone[0] if opened.found.alone else blocked.session.run(feed)
        found = {tensor.name: array for tensor, array in zip(prepared.tensors, arrays, strict=True)}
        pairs = zip(blocked.compared, expected.result(), strict=True)
        width = proven_width((found[name], array) for name, array in pairs)
    if width is None:
        return None, stream
    widths = [width if tensor.name in blocked.names else None for tensor in prepared.tensors]
    return _in_blocks(opened, blocked.session.run, widths, prepared), stream


def _opened(
    run: RunModel, leading: list[Sample], stream: Iterator[Sample], prepared: PreparedModel, threads: int
) -> Opened:
    ran = _unlike(leading)
    tried = [leading[n] for n in ran] if fixed_batch(prepared.inputs) is None else leading
    try:
        found = probe(run, tried, prepared.inputs, prepared.tensors, threads=threads)
    except InferenceError as error:
        raise _refusal(error, run, leading, prepared.inputs) from error
    if not found.alone:
        leading, ran = [], ()
    runner = BatchRunner(run, prepared.inputs, prepared.tensors, found, tried)
    return Opened(runner, found, tuple(leading[: ran[-1] + 1] if ran else ()), ran, stream)


def _refusal(
    error: InferenceError, run: RunModel, samples: Sequence[Sample], inputs: Sequence[ModelInput]
) -> DataError:
    """Return the error of the first sample that cannot be run alone, or of all where none runs alone."""
    for number, sample in enumerate(samples if fixed_batch(inputs) is None else ()):
        try:
            run(sample.values)
        except InferenceError as own:
            return refused(own, number, [sample])
    return refused(error, 0, samples)


def _unlike(samples: Sequence[Sample]) -> tuple[int, ...]:
    """Return the first sample and one unlike it, if there is: equal ones would make every tensor look constant."""
    others = range(1, len(samples))
    unlike = next((n for n in others if samples[n].key != samples[0].key), None)
    return (0,) if unlike is None and not others else (0, unlike or 1)


def _in_blocks(opened: Opened, run: RunModel, widths: Sequence[int | None], prepared: PreparedModel) -> Opened:
    """Return the same with a runner that gives tensors in the shapes that they have in memory."""

    def shaped(arrays: Sequence[Array]) -> list[Array]:
        pairs = zip(arrays, widths, strict=True)
        return [array if width is None else in_blocks(array, width) for array, width in pairs]

    def run_in_blocks(feed: Mapping[str, Array]) -> list[Array]:
        return shaped(run(feed))

    layouts = tuple(
        replace(layout, is_blocked=width is not None)
        for layout, width in zip(opened.found.layouts, widths, strict=True)
    )
    alone, together = tuple(map(shaped, opened.found.alone)), opened.found.together
    found = replace(opened.found, layouts=layouts, alone=alone, together=shaped(together) if together else [])
    runner = BatchRunner(run_in_blocks, prepared.inputs, prepared.tensors, found, opened.leading)
    return replace(opened, runner=runner, found=found)


def leading_samples(samples: Iterator[Sample], inputs: Sequence[ModelInput]) -> tuple[list[Sample], Iterator[Sample]]:
    """Return up to 3 first samples that can be joined, whatever the batch size, and all samples again."""
    read: list[Sample] = []
    for sample in samples:
        read.append(sample)
        if len(read) == PROBE_SAMPLES or not can_join(read[0], sample, inputs):
            break
    return [s for s in read if can_join(read[0], s, inputs)], chain(read, samples)
