"""What a capture will do, decided before the model runs: which samples, how many at once, on which threads, which tensors at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from calibrant.byte_sizes import bytes_text
from calibrant.errors import ConfigError
from calibrant.ingest.batches import Limit, LimitedSamples, fixed_batch, resolve_batch_size
from calibrant.ingest.cores import core_count
from calibrant.ingest.data import DataSource
from calibrant.ingest.memory_plan import (
    MemoryNeed,
    MemoryPlan,
    RunSize,
    least_plan,
    memory_need,
    plan_memory,
    refusal,
    size_text,
)
from calibrant.ingest.model import CapturedTensor, PreparedModel
from calibrant.ingest.process_memory import available_bytes, peak_bytes, resident_bytes
from calibrant.ingest.sample_axis import JOINED_SAMPLES
from calibrant.ingest.samples import Sample
from calibrant.stats.events import Event, Notice
from calibrant.stats.keep import KEEP_ALL, Keep

AT_ONCE: Final = 64 << 20  # bytes of exposed tensors that a thread runs at once (measured: docs/performance.md)
MOST_THREADS: Final = 8  # that run samples; the cores beyond share each run
_SPARED = 0.9  # of what the machine has left, where no limit was given


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What a capture is asked for.

    Attributes:
        batch_size: samples a batch, which batch_num counts; None for the model's fixed batch, else 8.
        keep: which activations are written beside the statistics.
        batch_num: use the first batch_num * batch_size samples; None for all.
        memory: bytes that the process may take; None for what the machine has left.
        verifies: fit, export and verify follow in this process, which memory has to suffice for as well.
    """

    batch_size: int | None = None
    keep: Keep = KEEP_ALL
    batch_num: int | None = None
    memory: int | None = None
    verifies: bool = False

    def __post_init__(self) -> None:
        if self.batch_num is not None and self.batch_num < 1:
            message = f"batch_num: {self.batch_num} is no number of batches; expected at least 1"
            raise ConfigError(message)


@dataclass(frozen=True)
class CapturePlan:
    """What a capture will do.

    Attributes:
        batch_size: samples a batch, as batch_num counts them.
        memory: what runs at the same time, and the tensors that each pass exposes.
        run_threads: how many share one run of the model.
        keep: which activations are written; all, where a part of them is no less.
        limited: the samples of the first pass; their events are complete when they were read.
        stream: the same samples, the first of which was looked at.
        source: for further passes.
        limit: of the samples, or None.
        decisions: what a person should know of the memory.
    """

    batch_size: int
    memory: MemoryPlan
    run_threads: int
    keep: Keep
    limited: LimitedSamples
    stream: Iterator[Sample]
    source: DataSource
    limit: Limit | None
    decisions: tuple[Event, ...]

    @property
    def groups(self) -> tuple[tuple[CapturedTensor, ...], ...]:
        """The tensors that each pass exposes."""
        return self.memory.groups

    @property
    def count(self) -> int | None:
        """How many samples there will be, or None where only reading tells."""
        return self.limited.count

    @property
    def events(self) -> tuple[Event, ...]:
        """What a person should know."""
        return (*self.limited.events, *self.decisions)

    def samples_again(self) -> Iterable[Sample]:
        """Return the samples once more."""
        return LimitedSamples(self.source, self.limit)


def plan_capture(prepared: PreparedModel, source: DataSource, options: CaptureOptions, notice: Notice) -> CapturePlan:
    """Read the first sample and decide.

    Args:
        prepared: the model.
        source: the data.
        options: of the capture.
        notice: told the estimate where a limit of memory was given.

    Raises:
        ConfigError: the batch size is not the model's, or the memory does not suffice.
        DataError: there are fewer samples than asked for, or the first does not fit.
    """
    size = resolve_batch_size(prepared.inputs, options.batch_size)
    limit = None if options.batch_num is None else Limit(options.batch_num, size)
    limited = LimitedSamples(source, limit)
    stream = iter(limited)
    first = next(stream)
    threads, run_threads = share_cores(limited.count, fixed_batch(prepared.inputs) or 1)
    found = _plan_of_memory(prepared, source, options, first, RunSize(size, threads))
    decisions = tuple(_decisions(found, options))
    if options.memory is not None:
        notice(decisions[0])
    keep = _effective(options.keep, limited.count)
    samples = chain([first], stream)
    return CapturePlan(size, found, run_threads, keep, limited, samples, source, limit, decisions)


def _effective(keep: Keep, count: int | None) -> Keep:
    """Return what has to be done: of N samples at most, the N of least key are all."""
    return KEEP_ALL if keep.is_part and count is not None and count <= (keep.samples or 0) else keep


def share_cores(count: int | None, at_least: int) -> tuple[int, int]:
    """Return how many threads run samples, and how many share a run.

    Memory and batch size have no say in the latter, on which last bits may depend (decision 0004).

    Args:
        count: samples, or None where nobody knows.
        at_least: samples of a run: the model's fixed batch, else 1.
    """
    cores = core_count()
    runs = MOST_THREADS if count is None else max(1, -(-count // at_least))
    threads = min(cores, MOST_THREADS, runs)
    return threads, max(1, cores // threads)


def _plan_of_memory(
    prepared: PreparedModel, source: DataSource, options: CaptureOptions, first: Sample, most: RunSize
) -> MemoryPlan:
    fixed, resident = fixed_batch(prepared.inputs), resident_bytes()
    need = memory_need(prepared, first, fixed or 1, resident, verifies=options.verifies)
    probed, is_grouped = fixed or JOINED_SAMPLES, not source.read_once
    usual = _usual(need, most, fixed)
    limit = options.memory if options.memory is not None else _machine_limit(resident)
    if limit is None:
        return MemoryPlan(usual, (prepared.tensors,), need.of(prepared.tensors, usual, probed))
    sizes = list(usual.smaller(is_fixed=fixed is not None))
    found = plan_memory(need, prepared.tensors, sizes, probed, limit, is_grouped=is_grouped)
    if found is not None:
        return found
    least = least_plan(need, prepared.tensors, sizes[-1], probed, is_grouped=is_grouped)
    if options.memory is not None:
        raise refusal(least, limit, is_grouped=is_grouped)
    return least


def _usual(need: MemoryNeed, most: RunSize, fixed: int | None) -> RunSize:
    """Return what runs at the same time where memory is no matter: as many samples as the caches have any use for."""
    if fixed is not None:
        return most
    fitting = AT_ONCE // max(1, sum(need.exposed.values()))
    return RunSize(max(1, min(most.at_once, fitting)), most.threads)


def _machine_limit(resident: int) -> int | None:
    available = available_bytes()
    return None if available is None else int(_SPARED * (available + resident))


def _decisions(found: MemoryPlan, options: CaptureOptions) -> Iterator[Event]:
    passes = (
        f"{len(found.groups)} groups of tensors, each a pass over the data" if len(found.groups) > 1 else "one pass"
    )
    shape = f"{size_text(found.size)}, {passes}"
    if options.memory is not None:
        limit = bytes_text(options.memory)
        what = "run" if options.verifies else "capture"
        text = f"--memory {limit}: the {what} is estimated to take {bytes_text(found.estimate)} at its peak: {shape}"
        yield Event("capture", "info", text)
    elif len(found.groups) > 1:
        text = f"the machine has too little memory left to expose all tensors: {shape}"
        yield Event("capture", "info", text)


def memory_events(limit: int | None) -> Iterator[Event]:
    """Say where a capture took more memory than it was given."""
    peak = peak_bytes()
    if limit is not None and peak > limit:
        text = (
            f"--memory {bytes_text(limit)}: the process has taken {bytes_text(peak)} at its peak; "
            "give a smaller figure, from which it is planned"
        )
        yield Event("capture", "warn", text)
