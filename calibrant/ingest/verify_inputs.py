"""The few model inputs that a capture keeps so that an export can be verified without the data."""

import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from calibrant.errors import RunError
from calibrant.ingest.samples import Array, Sample

KEPT_SAMPLES = 4
KEPT_BYTES = 64 * 2**20


def _size(sample: Sample) -> int:
    return sum(value.nbytes for value in sample.values.values())


class VerifyInputs:
    """Chooses the samples of least content key while all pass by, so that the choice does not depend on their order."""

    def __init__(self) -> None:
        self._least: dict[str, Sample] = {}

    def offer(self, samples: Iterable[Sample]) -> None:
        """Look at more samples; at most four are held."""
        for sample in samples:
            self._least.setdefault(sample.key, sample)
        self._least = dict(heapq.nsmallest(KEPT_SAMPLES, self._least.items()))

    def chosen(self) -> list[Sample]:
        """Return up to four different samples of at most 64 MB in all, but at least one."""
        kept: list[Sample] = []
        left = KEPT_BYTES
        for _, sample in sorted(self._least.items()):
            left -= _size(sample)
            if left < 0 and kept:
                break
            kept.append(sample)
        return kept


def _path(folder: Path) -> Path:
    return folder / "verify" / "inputs.npz"


def save_verify_inputs(folder: Path, feeds: Iterable[Mapping[str, Array]]) -> None:
    """Write feeds into the run folder; arrays are named ``<number>/<input>``."""
    path = _path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{number}/{name}": value for number, feed in enumerate(feeds) for name, value in feed.items()}
    np.savez(path, allow_pickle=False, **arrays)


def load_verify_inputs(folder: Path) -> list[dict[str, Array]]:
    """Return the feeds that `save_verify_inputs` wrote: one sample each, or a batch where the model's is fixed.

    Raises:
        RunError: the file is missing or damaged.
    """
    path = _path(folder)
    feeds: dict[int, dict[str, Array]] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for member in arrays.files:
                number, _, name = member.partition("/")
                feeds.setdefault(int(number), {})[name] = arrays[member]
    except (OSError, ValueError, BadZipFile) as error:
        message = (
            f"{path}: the kept model inputs cannot be read ({error}); capture the run again, or verify with --data"
        )
        raise RunError(message) from error
    return [feeds[number] for number in sorted(feeds)]
