"""Where a tensor holds its samples, found by running samples alone and together and comparing every bit.

A sample's *own array* is what the model gives for it alone: the model's rank, the batch axis of size 1. Rows are own arrays
stacked on a new first axis.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

import numpy as np

from calibrant.ingest.batches import fixed_batch, join
from calibrant.ingest.model import CapturedTensor, ModelInput
from calibrant.ingest.samples import Array, Sample
from calibrant.ingest.session import InferenceError
from calibrant.stats.events import Event, Severity

PROBE_SAMPLES = 3  # that are looked at
JOINED_SAMPLES = 2  # that run together
ROUNDING = 1e-3  # a larger difference, relative to the largest value, is no matter of rounding

Item = TypeVar("Item")
RunModel = Callable[[Mapping[str, Array]], list[Array]]


class Kind(Enum):
    """How a tensor depends on the samples of a batch."""

    SPLIT = "split"  # one axis holds the samples, possibly merged with an axis of the tensor
    CONSTANT = "constant"  # no sample axis, and equal whatever is fed
    WHOLE = "whole"  # neither: only a run of one sample at a time tells samples apart


@dataclass(frozen=True, slots=True)
class Layout:
    """How to take samples out of a tensor.

    Attributes:
        kind: split, constant or whole.
        axis: the axis that holds the samples, or None.
        is_inner: on a merged axis of N * T entries, whether the sample is the faster index (T outer, N inner).
        is_blocked: whether the tensor comes in blocks of channels.
    """

    kind: Kind
    axis: int | None = None
    is_inner: bool = False
    is_blocked: bool = False

    def can_split(self, shape: Sequence[int], count: int) -> bool:
        """Return whether a tensor of this shape divides into `count` samples."""
        return self.axis is not None and self.axis < len(shape) and shape[self.axis] % count == 0

    def split(self, array: Array, count: int) -> Array:
        """Return the rows of a batch of `count` samples, contiguous, each of its own array's shape.

        Example:
            >>> Layout(Kind.SPLIT, 0).split(np.arange(6).reshape(6, 1), 2).tolist()
            [[[0], [1], [2]], [[3], [4], [5]]]
        """
        if self.axis is None:
            message = "only a tensor with a sample axis can be split"
            raise ValueError(message)
        return np.ascontiguousarray(self._apart(array, count))

    def first(self, array: Array, count: int) -> Array:
        """Return the first sample's own array of a batch of `count`."""
        return array if self.kind is Kind.CONSTANT else np.ascontiguousarray(self._apart(array, count)[0])

    def _apart(self, array: Array, count: int) -> Array:
        axis = 0 if self.axis is None else self.axis
        before, size, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
        parts = (size // count, count) if self.is_inner else (count, size // count)
        apart = array.reshape(*before, *parts, *after)
        place = axis + self.is_inner
        return np.moveaxis(apart, place, 0) if place else apart


@dataclass(frozen=True)
class Probe:
    """What the probe found.

    Attributes:
        layouts: by tensor_id.
        one_by_one: whether the model has to run one sample at a time.
        events: what a person should know.
        alone: what the first samples gave alone, where they ran so; whoever takes the arrays empties the lists.
        together: what two of them gave in a batch whose rows have the bits of `alone`, likewise; else nothing.
    """

    layouts: tuple[Layout, ...]
    one_by_one: bool
    events: tuple[Event, ...]
    alone: tuple[list[Array], ...] = ()
    together: list[Array] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Verdict:
    layout: Layout
    has_equal_bits: bool
    difference: float = 0.0


def equal_bits(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same shape and the same bits, NaN and signed zeros included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    return np.array_equal(np.ascontiguousarray(one).view(bits), np.ascontiguousarray(other).view(bits))


def _relative_difference(one: Array, other: Array) -> float:
    """The largest difference, relative to the largest magnitude."""
    if one.shape != other.shape or not one.size:
        return np.inf
    with np.errstate(all="ignore"):
        distance = np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))
        return float(distance / max(float(np.max(np.abs(one))), np.finfo(np.float32).tiny))


def _grown_axes(alone: Sequence[int], together: Sequence[int], count: int) -> list[int]:
    """The axes that could hold the samples: just one is `count` times as long as for one sample."""
    if len(alone) != len(together):
        return []
    grown = [axis for axis in range(len(alone)) if together[axis] == alone[axis] * count]
    return [a for a in grown if all(together[k] == alone[k] for k in range(len(alone)) if k != a)]


def _judge_rows(candidates: Sequence[Layout], together: Array, expected: Sequence[Array]) -> _Verdict:
    """Choose the layout whose rows are the expected ones, bit for bit, else the nearest."""
    verdicts = []
    for layout in candidates:
        rows = layout.split(together, len(expected))
        if all(map(equal_bits, rows, expected)):
            return _Verdict(layout, has_equal_bits=True)
        difference = _relative_difference(rows, np.stack(expected))
        verdicts.append(_Verdict(layout, has_equal_bits=False, difference=difference))
    return min(verdicts, key=lambda verdict: verdict.difference)


def _judge(alone: Sequence[Array], together: Array) -> _Verdict:
    """Compare a tensor of samples alone with that of the first two together."""
    count = JOINED_SAMPLES
    if all(equal_bits(array, together) for array in alone):
        return _Verdict(Layout(Kind.CONSTANT), has_equal_bits=True)
    joined = _repeated(alone, count)
    if len({array.shape for array in joined}) > 1:
        return _Verdict(Layout(Kind.WHOLE), has_equal_bits=False)
    axes = _grown_axes(alone[0].shape, together.shape, count)
    candidates = [Layout(Kind.SPLIT, axis, inner) for axis in axes for inner in (False, True)]
    if not candidates:
        return _Verdict(Layout(Kind.WHOLE), has_equal_bits=False)
    return _judge_rows(candidates, together, joined)


def _repeated(items: Sequence[Item], count: int) -> list[Item]:
    return [items[i % len(items)] for i in range(count)]


def probe_alone(
    run: RunModel,
    samples: Sequence[Sample],
    inputs: Sequence[ModelInput],
    tensors: Sequence[CapturedTensor],
    *,
    threads: int = 1,
) -> Probe:
    """Probe a model that takes any batch size: samples alone against two in one batch.

    Args:
        run: gives the captured tensors of a feed.
        samples: one or two that can be joined; one is repeated.
        inputs: of the model.
        tensors: for names in events.
        threads: how many run at the same time.
    """
    with ThreadPoolExecutor(threads) as pool:
        joined = pool.submit(run, join(_repeated(samples, JOINED_SAMPLES), inputs))
        alone = list(pool.map(run, (sample.values for sample in samples)))
        by_tensor = [[arrays[t] for arrays in alone] for t in range(len(tensors))]
        try:
            together = joined.result()
        except InferenceError as error:
            return replace(_refused(error, by_tensor), alone=tuple(alone))
        verdicts = list(pool.map(_judge, by_tensor, together))
    events = tuple(_events(tensors, verdicts, f"alone and in a batch of {JOINED_SAMPLES}"))
    one_by_one = not all(v.has_equal_bits for v in verdicts)
    return Probe(tuple(v.layout for v in verdicts), one_by_one, events, tuple(alone), [] if one_by_one else together)


def _refused(error: InferenceError, by_tensor: Sequence[Sequence[Array]]) -> Probe:
    """The model runs single samples but no batch, whatever its input shapes say."""
    message = f"the model runs one sample at a time: onnxruntime refuses a batch of {JOINED_SAMPLES}: {error}"
    return Probe(tuple(Layout(Kind.WHOLE) for _ in by_tensor), True, (Event("capture", "warn", message),))


def _position_candidates(shape: Sequence[int], size: int) -> list[Layout]:
    """Layouts by which a tensor could hold a batch of `size`: axes of just that length first."""
    exact = [Layout(Kind.SPLIT, axis) for axis, length in enumerate(shape) if length == size]
    merged = [axis for axis, length in enumerate(shape) if length > size and length % size == 0]
    return exact + [Layout(Kind.SPLIT, axis, inner) for axis in merged for inner in (False, True)]


def _judge_positions(first: Array, second: Array, size: int, period: int) -> _Verdict:
    """Compare a batch with the same batch moved on by one position.

    Position p of `second` holds the sample that position p + 1 of `first` holds, and each sample comes again after `period` positions.
    """
    verdicts = []
    for layout in _position_candidates(first.shape, size):
        rows, moved = layout.split(first, size), layout.split(second, size)
        expected = np.concatenate([rows[1:], moved[period:]])
        found = np.concatenate([moved[:-1], moved[: size - period]])
        if equal_bits(found, expected):
            return _Verdict(layout, has_equal_bits=True)
        verdicts.append(_Verdict(layout, has_equal_bits=False, difference=_relative_difference(found, expected)))
    if equal_bits(first, second):
        return _Verdict(Layout(Kind.CONSTANT), has_equal_bits=True)
    near = [verdict for verdict in verdicts if verdict.difference <= ROUNDING]
    return min(near, key=lambda v: v.difference, default=_Verdict(Layout(Kind.WHOLE), has_equal_bits=False))


def probe_positions(
    run: RunModel,
    samples: Sequence[Sample],
    inputs: Sequence[ModelInput],
    tensors: Sequence[CapturedTensor],
    size: int,
) -> Probe:
    """Probe a model of a fixed batch size, where no sample runs alone: the same samples at other positions."""
    period = min(len(samples), size)
    order = _repeated(samples[:period], size + 1)
    first, second = run(join(order[:size], inputs)), run(join(order[1:], inputs))
    verdicts = [_judge_positions(*pair, size, period) for pair in zip(first, second, strict=True)]
    checked = (
        f"the model takes batches of {size} only: its samples were compared at two positions of a batch, none ran alone"
    )
    events = [Event("capture", "info", checked), *_events(tensors, verdicts, f"at two positions of a batch of {size}")]
    return Probe(tuple(v.layout for v in verdicts), not all(v.has_equal_bits for v in verdicts), tuple(events))


def _single_layout(tensor: CapturedTensor) -> Layout:
    """The layout where every batch is one sample: nothing to find, the first axis by convention."""
    is_batched = tensor.shape is None or (
        len(tensor.shape) > 0 and (tensor.shape[0] == 1 or not isinstance(tensor.shape[0], int))
    )
    return Layout(Kind.SPLIT, 0) if is_batched else Layout(Kind.WHOLE)


def probe(
    run: RunModel,
    samples: Sequence[Sample],
    inputs: Sequence[ModelInput],
    tensors: Sequence[CapturedTensor],
    *,
    threads: int = 1,
) -> Probe:
    """Find the sample axis of every tensor, and whether the batch size changes any bit.

    Args:
        run: gives the captured tensors of a feed, by tensor_id.
        samples: 1 to 3 samples that can be joined, the first of the data.
        inputs: of the model.
        tensors: what is captured.
        threads: how many run at the same time.
    """
    size = fixed_batch(inputs)
    if size == 1:
        return Probe(tuple(_single_layout(tensor) for tensor in tensors), False, ())
    if size is not None:
        return probe_positions(run, samples, inputs, tensors, size)
    return probe_alone(run, samples, inputs, tensors, threads=threads)


def _named(tensors: Sequence[CapturedTensor]) -> str:
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f"tensor '{tensors[0].name}'{more}"


def _events(tensors: Sequence[CapturedTensor], verdicts: Sequence[_Verdict], compared: str) -> Iterator[Event]:
    def where(kind: Kind, *, is_equal: bool) -> list[CapturedTensor]:
        pairs = zip(tensors, verdicts, strict=True)
        return [t for t, v in pairs if v.layout.kind is kind and v.has_equal_bits is is_equal]

    def event(severity: Severity, found: Sequence[CapturedTensor], text: str) -> Event:
        return Event("capture", severity, f"{_named(found)}: {text}", layer=found[0].name)

    for tensor in where(Kind.CONSTANT, is_equal=True):
        yield event("info", [tensor], f"no sample axis, and equal {compared}: constant, counted once")
    if unlike := where(Kind.SPLIT, is_equal=False):
        worst = max(v.difference for v in verdicts if v.layout.kind is Kind.SPLIT)
        severity: Severity = "info" if worst <= ROUNDING else "warn"
        text = f"values differ {compared} by up to {worst:.1g} of the largest one"
        yield event(
            severity, unlike, f"{text}: the model runs one sample at a time, so that the batch size changes nothing"
        )
    if whole := where(Kind.WHOLE, is_equal=False):
        yield event(
            "warn", whole,
            f"no axis holds the samples, yet values differ {compared}: the model runs one sample at a time; "
            "check that the model keeps its samples apart",
        )  # fmt: skip
