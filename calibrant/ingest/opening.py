"""The first samples of a stream, tried alone and together, and the runner that follows from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from calibrant.ingest.batches import can_join
from calibrant.ingest.blocked import BlockedSession
from calibrant.ingest.model import ModelInput, PreparedModel
from calibrant.ingest.runner import BatchRunner, refused
from calibrant.ingest.sample_axis import PROBE_SAMPLES, Probe, probe
from calibrant.ingest.samples import Sample
from calibrant.ingest.session import ActivationSession, InferenceError


@dataclass(frozen=True)
class Opened:
    """A model that is ready to run over a stream of samples.

    Attributes:
        runner: runs batches.
        found: where each tensor holds its samples, and what the first samples gave.
        tried: these first samples.
        samples: the whole stream, those that were tried included.
    """

    runner: BatchRunner
    found: Probe
    tried: tuple[Sample, ...]
    samples: Iterator[Sample]


def open_runner(
    session: ActivationSession | BlockedSession, samples: Iterator[Sample], prepared: PreparedModel
) -> Opened:
    """Try the first samples, whatever the batch size will be.

    Raises:
        DataError: onnxruntime refuses them.
    """
    leading, stream = leading_samples(samples, prepared.inputs)
    try:
        found = probe(session.run, leading, prepared.inputs, prepared.tensors)
    except InferenceError as error:
        raise refused(error, 0, leading) from error
    if isinstance(session, BlockedSession):
        found = found.in_blocks(session.widths)
    return Opened(BatchRunner(session.run, prepared.inputs, prepared.tensors, found), found, tuple(leading), stream)


def leading_samples(samples: Iterator[Sample], inputs: Sequence[ModelInput]) -> tuple[list[Sample], Iterator[Sample]]:
    """Return up to 3 first samples that can be joined, whatever the batch size, and all samples again."""
    read: list[Sample] = []
    for sample in samples:
        read.append(sample)
        if len(read) == PROBE_SAMPLES or not can_join(read[0], sample, inputs):
            break
    return [s for s in read if can_join(read[0], s, inputs)], chain(read, samples)
