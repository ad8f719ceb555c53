"""Batches through the model: each captured tensor comes back as rows, one for each sample."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from calibrant.errors import DataError
from calibrant.ingest.batches import Batch, fixed_batch, join
from calibrant.ingest.blocked import in_order
from calibrant.ingest.model import CapturedTensor, ModelInput
from calibrant.ingest.sample_axis import JOINED_SAMPLES, Kind, Layout, Probe, RunModel, equal_bits
from calibrant.ingest.samples import Array, Sample
from calibrant.ingest.session import InferenceError
from calibrant.stats.captures import CONSTANT_SAMPLE
from calibrant.stats.events import Event

_NOBODY = -1  # no batch begins with this sample
_CHANNELS = 2  # the axis of the channels, or of their blocks, in rows

BatchForm = tuple[tuple[tuple[str, tuple[int, ...]], ...], int]  # shapes of the inputs, and samples in the batch


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Neighbouring samples of one tensor whose own arrays have equal shapes.

    Attributes:
        samples: their numbers, or (-1,) where the tensor is the same for all samples.
        values: shape (n, ...): own arrays (batch axis of size 1 kept), stacked, contiguous.
        is_blocked: whether values have the shape (n, 1, C / b, ..., b): b channels side by side, as convolutions compute them.
    """

    samples: Sequence[int]
    values: Array
    is_blocked: bool = False

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of a sample's own array."""
        shape = self.values.shape[1:]
        return (shape[0], shape[1] * shape[-1], *shape[2:-1]) if self.is_blocked else shape

    def in_order(self) -> "Rows":
        """Return the same rows with their channels in order."""
        return Rows(self.samples, in_order(self.values, _CHANNELS)) if self.is_blocked else self


def _rows(samples: Sequence[int], values: Array, layout: Layout) -> Rows:
    """Return rows as they lie in memory; what is folded by channels needs own arrays of one sample each."""
    rows = Rows(samples, values, layout.is_blocked)
    is_foldable = not layout.is_blocked or (layout.kind is Kind.SPLIT and values.shape[1] == 1)
    return rows if is_foldable else rows.in_order()


def _stacked(first: int, arrays: Sequence[Array], layout: Layout) -> list[Rows]:
    """Stack own arrays as far as neighbours have equal shapes."""
    groups: list[list[Array]] = []
    for array in arrays:
        if groups and groups[-1][0].shape == array.shape:
            groups[-1].append(array)
        else:
            groups.append([array])
    rows = []
    for group in groups:
        values = np.stack(group) if len(group) > 1 else group[0][None]
        rows.append(_rows(range(first, first + len(group)), values, layout))
        first += len(group)
    return rows


def _form(samples: Sequence[Sample]) -> BatchForm:
    return tuple(sorted(samples[0].shapes.items())), len(samples)


class BatchRunner:
    """Runs batches as the probe allows.

    The first batch of every form (input shapes and number of samples) but that of the probe is checked once more against its first
    sample alone, since onnxruntime chooses its kernels by size; a form whose bits differ runs one sample at a time. Threads may
    share a runner: what is claimed in order is checked by the batch that claimed it, and others of its form wait for that.

    Args:
        run: gives the captured tensors of a feed.
        inputs: of the model.
        tensors: what is captured, in the order in which `run` gives it.
        probe: the layouts, and whether samples have to run alone.
        tried: the samples of the probe, where it ran them together with the same `run`.

    Attributes:
        events: what happened beyond the probe.
    """

    def __init__(
        self,
        run: RunModel,
        inputs: Sequence[ModelInput],
        tensors: Sequence[CapturedTensor],
        probe: Probe,
        tried: Sequence[Sample] = (),
    ) -> None:
        self.events: list[Event] = []
        self._run = run
        self._inputs = inputs
        self._tensors = tensors
        self._layouts = probe.layouts
        self._one_by_one = probe.one_by_one
        self._fixed = fixed_batch(inputs)
        self._lock = threading.Lock()
        self._checks: dict[BatchForm, _Check] = {}
        if probe.together and len(tried) >= JOINED_SAMPLES:
            self._checks[_form(tried[:JOINED_SAMPLES])] = _Check.done()
        self._alone: set[BatchForm] = set()

    @property
    def one_by_one(self) -> bool:
        """Whether any samples had to run one at a time."""
        return self._one_by_one or bool(self._alone)

    def rows_by_tensor(self, batch: Batch) -> dict[int, list[Rows]]:
        """Return the rows of every tensor, by the number that it has in the run.

        Raises:
            DataError: onnxruntime refuses the samples.
        """
        return {tensor.tensor_id: rows for tensor, rows in zip(self._tensors, self.rows(batch), strict=True)}

    def rows_of(self, batch: Batch, arrays: Sequence[Array]) -> dict[int, list[Rows]]:
        """Return the rows of every tensor of a batch that ran before.

        Args:
            batch: a sample, or several that may run together.
            arrays: what the session gave for them.
        """
        pairs = zip(self._tensors, self._layouts, arrays, strict=True)
        if len(batch.samples) > 1:
            return {tensor.tensor_id: self._split(layout, array, batch) for tensor, layout, array in pairs}
        return {tensor.tensor_id: self._stack(layout, batch, [array]) for tensor, layout, array in pairs}

    def claim(self, batch: Batch) -> None:
        """Let this batch check its form, unless one before it does; to be called in the order of the batches."""
        form = _form(batch.samples)
        with self._lock:
            self._checks.setdefault(form, _Check(batch.first))

    def stop(self) -> None:
        """Let nothing wait any more for a batch that checks its form, since it may never run."""
        with self._lock:
            for check in self._checks.values():
                check.is_done.set()

    def rows(self, batch: Batch) -> list[list[Rows]]:
        """Return the rows of every tensor that the session gives, in its order.

        Raises:
            DataError: onnxruntime refuses the samples.
        """
        self.claim(batch)
        check = self._checks[_form(batch.samples)]
        if batch.first != check.owner:
            check.is_done.wait()
        try:
            return self._rows_together(batch, check) or self._rows_alone(batch)
        finally:
            if batch.first == check.owner:
                check.is_done.set()

    def _rows_together(self, batch: Batch, check: "_Check") -> list[list[Rows]] | None:
        """Run all samples at once; None where the bits could depend on that."""
        form = _form(batch.samples)
        if self._one_by_one or form in self._alone:
            return None
        try:
            arrays = self._run(join(batch.samples, self._inputs, self._fixed))
        except InferenceError as error:
            if len(batch.samples) == 1:
                raise refused(error, batch.first, batch.samples) from error
            self._leave(form, "onnxruntime refuses to run them together")
            return None
        if not self._can_split(arrays, len(batch.samples)):
            self._leave(form, "a tensor does not divide into the samples of its batch")
            return None
        rows = [self._split(*pair, batch) for pair in zip(self._layouts, arrays, strict=True)]
        if batch.first == check.owner and not self._is_confirmed(batch, arrays):
            self._leave(form, "last bits differ from those of a sample alone")
            return None
        return rows

    def _count(self, samples: int) -> int:
        return self._fixed or samples

    def _can_split(self, arrays: Sequence[Array], samples: int) -> bool:
        count = self._count(samples)
        pairs = zip(self._layouts, arrays, strict=True)
        return count == 1 or all(x.kind is Kind.CONSTANT or x.can_split(a.shape, count) for x, a in pairs)

    def _split(self, layout: Layout, array: Array, batch: Batch) -> list[Rows]:
        if layout.kind is Kind.CONSTANT:
            return [_rows((CONSTANT_SAMPLE,), array[None], layout)]
        count = self._count(len(batch.samples))
        rows = array[None] if count == 1 else layout.split(array, count)[: len(batch.samples)]
        return [_rows(batch.numbers, rows, layout)]

    def _is_confirmed(self, batch: Batch, arrays: Sequence[Array]) -> bool:
        """Compare the first sample with itself alone.

        Raises:
            DataError: onnxruntime refuses it alone.
        """
        if len(batch.samples) == 1 or self._fixed:
            return True
        alone = self._own_arrays(batch.first, batch.samples[0])
        triples = zip(self._layouts, arrays, alone, strict=True)
        return all(equal_bits(layout.first(array, len(batch.samples)), other) for layout, array, other in triples)

    def _leave(self, form: BatchForm, reason: str) -> None:
        with self._lock:
            if not self._alone:
                message = f"batches of {form[1]}: {reason}; their samples run one at a time, so that the batch size changes nothing"
                self.events.append(Event("capture", "info", message))
            self._alone.add(form)

    def _rows_alone(self, batch: Batch) -> list[list[Rows]]:
        arrays = [self._own_arrays(*pair) for pair in zip(batch.numbers, batch.samples, strict=True)]
        return [self._stack(layout, batch, [a[t] for a in arrays]) for t, layout in enumerate(self._layouts)]

    def _own_arrays(self, number: int, sample: Sample) -> list[Array]:
        """Run one sample alone; where the batch is fixed, in a batch of itself."""
        try:
            arrays = self._run(join([sample], self._inputs, self._fixed))
        except InferenceError as error:
            raise refused(error, number, [sample]) from error
        if self._fixed in (None, 1):
            return arrays
        pairs = zip(self._layouts, arrays, strict=True)
        return [x.split(a, self._fixed)[0] if x.can_split(a.shape, self._fixed) else a for x, a in pairs]

    def _stack(self, layout: Layout, batch: Batch, arrays: Sequence[Array]) -> list[Rows]:
        if layout.kind is Kind.CONSTANT:
            return [_rows((CONSTANT_SAMPLE,), array[None], layout) for array in arrays]
        return _stacked(batch.first, arrays, layout)


class _Check:
    """Whether a form of batches was compared with a sample alone.

    Args:
        owner: first sample of the batch that compares.
    """

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.is_done = threading.Event()

    @classmethod
    def done(cls) -> Self:
        """Return the check of a form that was compared already."""
        check = cls(_NOBODY)
        check.is_done.set()
        return check


def refused(error: InferenceError, first: int, samples: Sequence[Sample]) -> DataError:
    """Return the error of samples that onnxruntime refuses to run."""
    which = f"sample {first}" if len(samples) == 1 else f"samples {first} to {first + len(samples) - 1}"
    return DataError(f"{which} ({samples[0].place}): onnxruntime cannot run the model on it: {error}")
