"""How a capture fits into the memory that it may take: samples at once, threads, and which tensors are exposed at once.

The need is estimated before anything runs, from the shapes that the first sample's give. What is measured stands in
docs/performance.md: each thread holds the exposed tensors of what it runs and what onnxruntime's arena rounds up; the probe holds two
samples alone and together.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from calibrant.byte_sizes import bytes_text
from calibrant.errors import ConfigError
from calibrant.ingest.model import CapturedTensor, PreparedModel
from calibrant.ingest.samples import Sample
from calibrant.ingest.value_sizes import value_bytes

MIB: Final = 2**20
HELD: Final = 1.2  # what a thread runs and then folds, and what the arena rounds up
PROBED: Final = 2.2  # each sample of the probe's batch together and alone, and what the arena rounds up
WORKING_VALUES: Final = 3  # values of the largest kind that a run holds beside those that are exposed
WEIGHT_COPIES: Final = 3  # the file's, onnxruntime's and its packed one
COMMON: Final = 96 * MIB  # compiled code, counting tables, buffers of Parquet
LATER: Final = 150 * MIB  # libraries and results of the stages after the capture
VERIFIED_SAMPLES: Final = 12  # what verify holds of one sample: float and quantized values and their exact integers
TENSOR_STATE: Final = 2 * MIB  # bins of a tensor, and its rows of the tables when they are written


@dataclass(frozen=True, slots=True)
class RunSize:
    """What runs at the same time.

    Attributes:
        at_once: samples that a thread runs together.
        threads: how many.
    """

    at_once: int
    threads: int

    def smaller(self, *, is_fixed: bool) -> Iterator["RunSize"]:
        """Yield this and what takes less memory: fewer samples at once, unless the model fixes that, then fewer threads.

        Example:
            >>> [(size.at_once, size.threads) for size in RunSize(4, 2).smaller(is_fixed=False)]
            [(4, 2), (2, 2), (1, 2), (1, 1)]
        """
        least = self.at_once if is_fixed else 1
        at_once, threads = self.at_once, self.threads
        while True:
            yield RunSize(at_once, threads)
            if at_once > least:
                at_once //= 2
            elif threads > 1:
                threads //= 2
            else:
                return


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a capture does to stay within its memory.

    Attributes:
        size: what runs at the same time.
        groups: the tensors that are exposed at once; each group is a pass over the data.
        estimate: bytes that the run is expected to take at its peak.
    """

    size: RunSize
    groups: tuple[tuple[CapturedTensor, ...], ...]
    estimate: int


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a capture takes of one sample and of all, in bytes.

    Attributes:
        exposed: tensor_id -> one sample of the tensor.
        working: what a run of one sample holds besides.
        fixed: whatever does not depend on the batch.
        later: what the stages after the capture hold in its place; 0 where none follow in this process.
    """

    exposed: Mapping[int, int]
    working: int
    fixed: int
    later: int = 0

    def of(self, tensors: Sequence[CapturedTensor], size: RunSize, probed: int) -> int:
        """Return the estimated peak where these tensors are exposed at once.

        Args:
            tensors: a group.
            size: what runs at the same time.
            probed: samples in the probe's batch.
        """
        sample = sum(self.exposed[tensor.tensor_id] for tensor in tensors)
        running = (HELD * sample + self.working) * size.at_once * size.threads
        probing = (PROBED * sample + self.working) * probed
        return self.fixed + math.ceil(max(running, probing, self.later))


def memory_need(
    prepared: PreparedModel, sample: Sample, fixed_batch: int, resident: int, *, verifies: bool = False
) -> MemoryNeed:
    """Estimate what a capture takes.

    A value whose shape cannot be told is taken to be as large as the largest that it tells.

    Args:
        prepared: the model.
        sample: the first sample.
        fixed_batch: the model's own batch size; 1 where it takes any.
        resident: bytes that the process holds already.
        verifies: fit, export and verify follow in this process.
    """
    sizes = value_bytes(prepared, sample, fixed_batch)
    largest = max(sizes.values(), default=0)
    exposed = {tensor.tensor_id: sizes.get(tensor.name, largest) for tensor in prepared.tensors}
    constants = [value.const_value for value in prepared.model.graph.initializers.values()]
    weights = sum(constant.nbytes for constant in constants if constant is not None)
    fixed = resident + WEIGHT_COPIES * weights + COMMON + TENSOR_STATE * len(prepared.tensors)
    later = LATER + VERIFIED_SAMPLES * fixed_batch * sum(exposed.values()) if verifies else 0
    return MemoryNeed(exposed, WORKING_VALUES * largest, fixed, later)


def _packed(
    tensors: Sequence[CapturedTensor], need: MemoryNeed, size: RunSize, probed: int, limit: int
) -> list[tuple[CapturedTensor, ...]] | None:
    """Put tensors into as few groups as their order allows; None where one alone is too large."""
    groups: list[tuple[CapturedTensor, ...]] = []
    for tensor in tensors:
        if need.of([tensor], size, probed) > limit:
            return None
        grown = (*groups[-1], tensor) if groups else (tensor,)
        if groups and need.of(grown, size, probed) <= limit:
            groups[-1] = grown
        else:
            groups.append((tensor,))
    return groups


def plan_memory(
    need: MemoryNeed,
    tensors: Sequence[CapturedTensor],
    sizes: Sequence[RunSize],
    probed: int,
    limit: int,
    *,
    is_grouped: bool,
) -> MemoryPlan | None:
    """Choose the first size that needs one group, else the last size and as few groups as it needs.

    Args:
        need: of the capture.
        tensors: what is captured, in the order of the graph.
        sizes: to choose from, the best first.
        probed: samples in the probe's batch.
        limit: bytes.
        is_grouped: whether the data can be read more than once, which groups need.

    Returns:
        None where even the least is too much.
    """
    for size in sizes:
        if need.of(tensors, size, probed) <= limit:
            return MemoryPlan(size, (tuple(tensors),), need.of(tensors, size, probed))
    groups = _packed(tensors, need, sizes[-1], probed, limit) if is_grouped else None
    if groups is None:
        return None
    return MemoryPlan(sizes[-1], tuple(groups), max(need.of(group, sizes[-1], probed) for group in groups))


def least_plan(
    need: MemoryNeed, tensors: Sequence[CapturedTensor], size: RunSize, probed: int, *, is_grouped: bool
) -> MemoryPlan:
    """Return the plan that takes as little memory as there can be."""
    single = [(tensor,) for tensor in tensors] if is_grouped else [tuple(tensors)]
    least = max(need.of(group, size, probed) for group in single)
    groups = _packed(tensors, need, size, probed, least) if is_grouped else None
    return MemoryPlan(size, tuple(groups or single), least)


def refusal(least: MemoryPlan, limit: int, *, is_grouped: bool) -> ConfigError:
    """Return the error of a capture that cannot fit."""
    shown = 10 * math.ceil(1.02 * least.estimate / 1e7)  # what the process holds beforehand varies by a few MB
    advice = "" if is_grouped else "; data that can be read more than once (a file, a folder, a list) may take less"
    return ConfigError(
        f"--memory: {bytes_text(limit)} do not suffice; the smallest possible figure is {shown}MB "
        f"({size_text(least.size)}, {len(least.groups)} group{'s' if len(least.groups) > 1 else ''} of tensors){advice}"
    )


def size_text(size: RunSize) -> str:
    """Say what runs at the same time.

    Example:
        >>> size_text(RunSize(1, 2)), size_text(RunSize(4, 1))
        ('1 sample at once on each of 2 threads', '4 samples at once on one thread')
    """
    samples = f"{size.at_once} sample{'s' if size.at_once > 1 else ''} at once"
    return f"{samples} on one thread" if size.threads == 1 else f"{samples} on each of {size.threads} threads"
