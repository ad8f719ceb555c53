"""Samples joined into the batches that a model takes: neighbours of equal shape, filled where the batch is fixed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from calibrant.errors import ConfigError, DataError, ModelError
from calibrant.ingest.data import DataSource
from calibrant.ingest.model import ModelInput
from calibrant.ingest.samples import Array, Sample, side_by_side
from calibrant.stats.events import Event

DEFAULT_BATCH_SIZE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Neighbouring samples that the model can take together.

    Attributes:
        first: number of its first sample in the run.
        samples: at least one, all of equal shapes.
    """

    first: int
    samples: tuple[Sample, ...]

    @property
    def numbers(self) -> range:
        """The numbers of the samples in the run."""
        return range(self.first, self.first + len(self.samples))


def fixed_batch(inputs: Sequence[ModelInput]) -> int | None:
    """Return the only batch size that the model takes, or None where it takes any.

    Raises:
        ModelError: two inputs have different fixed batch sizes.

    Example:
        >>> fixed_batch([ModelInput("x", np.dtype("float32"), (4, 3), 0)])
        4
    """
    sizes = {spec.name: spec.shape[spec.batch_axis] for spec in inputs if spec.batch_axis is not None}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(set(fixed.values())) > 1:
        listed = ", ".join(f"'{name}' {size}" for name, size in fixed.items())
        message = f"the model's inputs have different fixed batch sizes: {listed}; export it with one batch size"
        raise ModelError(message)
    if not sizes:
        return 1  # nothing to join samples along
    return next(iter(fixed.values()), None)


def resolve_batch_size(inputs: Sequence[ModelInput], requested: int | None) -> int:
    """Return the batch size of a run: as requested, else the model's fixed one, else 8.

    Raises:
        ConfigError: below 1, or the model is fixed to another.

    Example:
        >>> resolve_batch_size([ModelInput("x", np.dtype("float32"), ("N", 3), 0)], None)
        8
    """
    fixed = fixed_batch(inputs)
    if requested is None:
        return fixed or DEFAULT_BATCH_SIZE
    if requested < 1:
        message = f"--batch-size: {requested} is no batch size; expected at least 1"
        raise ConfigError(message)
    if fixed is not None and requested != fixed:
        message = f"--batch-size: {requested}, but the model takes batches of {fixed} only; leave --batch-size out"
        raise ConfigError(message)
    return requested


def _shared_values(sample: Sample, inputs: Sequence[ModelInput]) -> dict[str, Array]:
    return {spec.name: sample.values[spec.name] for spec in inputs if spec.batch_axis is None}


def can_join(one: Sample, other: Sample, inputs: Sequence[ModelInput]) -> bool:
    """Return whether two samples fit into one batch: equal shapes, and equal values where an input has no batch axis."""
    if any(value.shape != other.values[name].shape for name, value in one.values.items()):
        return False
    others = _shared_values(other, inputs)
    return all(_is_same(value, others[name]) for name, value in _shared_values(one, inputs).items())


def _is_same(one: Array, other: Array) -> bool:
    """Return whether two arrays of equal shape have equal bits."""
    return one is other or one.tobytes() == other.tobytes()


def join(samples: Sequence[Sample], inputs: Sequence[ModelInput], size: int | None = None) -> dict[str, Array]:
    """Return the feed of these samples, the last repeated up to `size`.

    Example:
        >>> x = ModelInput("x", np.dtype("float32"), ("N", 2), 0)
        >>> sample = Sample({"x": np.zeros((1, 2), np.float32)}, "", "", 0)
        >>> join([sample], [x], 3)["x"].shape
        (3, 2)
    """
    filled = [*samples, *[samples[-1]] * ((size or 0) - len(samples))]
    return {spec.name: _joined([s.values[spec.name] for s in filled], spec.batch_axis) for spec in inputs}


def _joined(values: list[Array], axis: int | None) -> Array:
    if axis is None or len(values) == 1:
        return values[0]
    joined = side_by_side(values, axis)
    return np.concatenate(values, axis=axis) if joined is None else joined


def make_batches(
    samples: Iterable[Sample],
    inputs: Sequence[ModelInput],
    size: int,
    *,
    first: int = 0,
    singly_from: int | None = None,
) -> Iterator[Batch]:
    """Yield batches of at most `size` neighbours that can be joined, in order.

    Args:
        samples: of the data.
        inputs: of the model.
        size: of a batch.
        first: number of the first sample.
        singly_from: number of the sample from which on each is a batch of its own, or None.
    """
    held: list[Sample] = []
    for sample in samples:
        most = 1 if singly_from is not None and first >= singly_from else size
        if held and (len(held) >= most or not can_join(held[0], sample, inputs)):
            yield Batch(first, tuple(held))
            first += len(held)
            held = []
        held.append(sample)
    if held:
        yield Batch(first, tuple(held))


def model_feeds(samples: Iterable[Sample], inputs: Sequence[ModelInput]) -> Iterator[dict[str, Array]]:
    """Yield feeds that the model takes as they are: one sample each, or full batches where its batch size is fixed.

    Example:
        >>> x = ModelInput("x", np.dtype("float32"), (4, 2), 0)
        >>> sample = Sample({"x": np.zeros((1, 2), np.float32)}, "", "", 0)
        >>> [feed["x"].shape for feed in model_feeds([sample] * 5, [x])]
        [(4, 2), (4, 2)]
    """
    size = fixed_batch(inputs)
    for batch in make_batches(samples, inputs, size or 1):
        yield join(batch.samples, inputs, size)


@dataclass(frozen=True, slots=True)
class Limit:
    """How many samples a configuration allows: batch_num times the batch size.

    Attributes:
        batch_num: as configured, at least 1.
        batch_size: samples a batch.
    """

    batch_num: int
    batch_size: int

    @property
    def samples(self) -> int:
        """The number of samples to use."""
        return self.batch_num * self.batch_size

    def refuse_fewer(self, given: int) -> None:
        """Check that the data suffices.

        Raises:
            DataError: it has fewer samples than the configuration asks for.
        """
        if given < self.samples:
            message = (
                f"batch_num {self.batch_num} x batch size {self.batch_size} asks for {self.samples} samples, the data has {given}; "
                "give more data, or a smaller batch_num or --batch-size"
            )
            raise DataError(message)

    def event(self, given: str) -> Event:
        """Say what was given and what is used."""
        message = (
            f"batch_num {self.batch_num} x batch size {self.batch_size}: {given} samples given, {self.samples} used"
        )
        return Event("capture", "info", message)


class LimitedSamples:
    """The samples that a run uses: the first of a source, as many as the limit says; read once.

    Attributes:
        count: how many there will be, or None where only reading tells.
        events: after reading: what was left out.
    """

    def __init__(self, source: DataSource, limit: Limit | None) -> None:
        self.count = limit.samples if limit else source.count
        self.events: list[Event] = []
        self._source = source
        self._limit = limit
        if limit and source.count is not None:
            limit.refuse_fewer(source.count)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples.

        Raises:
            DataError: there are fewer than the limit asks for.
        """
        if self._limit is None:
            yield from self._source
            return
        samples = iter(self._source)
        used = 0
        for sample in islice(samples, self._limit.samples):
            used += 1
            yield sample
        self._limit.refuse_fewer(used)
        self.events.append(self._limit.event(self._given(samples, used)))

    def _given(self, rest: Iterator[Sample], used: int) -> str:
        if self._source.count is not None:
            return str(self._source.count)
        return str(used) if next(rest, None) is None else f"more than {used}"
