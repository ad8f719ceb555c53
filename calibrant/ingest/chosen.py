"""The samples whose activations are kept by ``--keep raw:N``: those of the N least content keys.

Which they are is known when all samples have passed. Their inputs wait in files until then, and the model runs them once more: its bits
do not depend on the batch (decision 0004), so that batch size, order and shards leave no trace, and nothing written is taken back.
"""

import shutil
from bisect import insort
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrant.ingest.batches import Batch
from calibrant.ingest.samples import Sample
from calibrant.ingest.writer import writing


class _Waiting(NamedTuple):
    """Ordered by key; of equal samples the first."""

    key: str
    number: int
    source: str
    position: int


class ChosenSamples:
    """Chooses while all samples pass by; holds at most N of them, in files.

    Args:
        folder: where inputs may wait; it is made, and goes with `discard`.
        count: N.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._waiting: list[_Waiting] = []

    def offer(self, batch: Batch) -> None:
        """Look at the samples of a batch.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        for number, sample in zip(batch.numbers, batch.samples, strict=True):
            found = _Waiting(sample.key, number, sample.source, sample.position)
            if len(self._waiting) < self._count or found < self._waiting[-1]:
                self._save(number, sample)
                insort(self._waiting, found)
            for displaced in self._waiting[self._count :]:
                self._path(displaced.number).unlink()
            del self._waiting[self._count :]

    def batches(self) -> Iterator[Batch]:
        """Yield the chosen samples in order, each by itself."""
        for key, number, source, position in sorted(self._waiting, key=lambda one: one.number):
            with np.load(self._path(number), allow_pickle=False) as arrays:
                names = [str(name) for name in arrays["names"]]
                values = {name: arrays[f"value{index}"] for index, name in enumerate(names)}
            yield Batch(number, (Sample(values, key, source, position),))

    def discard(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.npz"

    def _save(self, number: int, sample: Sample) -> None:
        """Write the inputs; their names are values, since not every name can be a file's."""
        values = {f"value{index}": value for index, value in enumerate(sample.values.values())}
        with writing(self._folder.parent):
            self._folder.mkdir(parents=True, exist_ok=True)
            np.savez(self._path(number), allow_pickle=False, names=np.array(list(sample.values)), **values)
