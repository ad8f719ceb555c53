"""The activations of a run once more, from its model and its data: for statistics of what was captured without raw values."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from calibrant.errors import DataError
from calibrant.ingest.batches import fixed_batch, make_batches
from calibrant.ingest.capture_plan import share_cores
from calibrant.ingest.data import DataSource
from calibrant.ingest.exposing import ExposedModel
from calibrant.ingest.fold import TensorFold
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.opening import open_runner
from calibrant.ingest.samples import Array, Sample, fingerprint_of_keys
from calibrant.stats.events import Progress
from calibrant.stats.run import prepared_file


@dataclass(frozen=True)
class SecondPass:
    """A run's samples through its model again, as often as it is called.

    The graph is optimized as the capture's, the batches are the capture's, and as many threads share a run: every value has the
    same bits.

    Attributes:
        folder: the run folder.
        prepared: its model.
        source: its data, which can be read again.
        samples: how many of them the capture used.
        batch_size: of the capture.
        fingerprint: of the samples that the capture used.
        progress: told after each batch.
    """

    folder: Path
    prepared: PreparedModel
    source: DataSource
    samples: int
    batch_size: int
    fingerprint: str | None
    progress: Progress

    def __call__(self, tensor_ids: Collection[int]) -> Iterator[tuple[int, Array]]:
        """Yield (tensor_id, samples stacked on axis 0) of these tensors, batch by batch; nothing is kept.

        Raises:
            DataError: the data cannot be read again, or is not that of the capture.
        """
        keys: list[str] = []
        tensors = tuple(tensor for tensor in self.prepared.tensors if tensor.tensor_id in tensor_ids)
        path, count = prepared_file(self.folder), None if self.source.count is None else self.samples
        _, threads = share_cores(count, fixed_batch(self.prepared.inputs) or 1)
        with ExposedModel(path, self.prepared.tensors, path.parent, threads=threads) as model:
            session = model.session(tensors)
            opened = open_runner(session.run, self._read(keys), replace(self.prepared, tensors=tensors))
            axes = [layout.axis for layout in opened.found.layouts]
            folds = {one.tensor_id: TensorFold(one, axis) for one, axis in zip(tensors, axes, strict=True)}
            for batch in make_batches(opened.samples, self.prepared.inputs, self.batch_size):
                rows = opened.runner.rows_by_tensor(batch)
                yield from ((t, part.values) for t, fold in folds.items() for part in rows[t] if fold.is_new(part))
                self.progress("fit", len(keys), self.samples)
        if fingerprint_of_keys(keys) != self.fingerprint:
            message = (
                f"{self.source.name}: gives other samples when it is read a second time; give data that stays the same"
            )
            raise DataError(message)

    def _read(self, keys: list[str]) -> Iterator[Sample]:
        for sample in islice(iter(self.source), self.samples):
            keys.append(sample.key)
            yield sample
