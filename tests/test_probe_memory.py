"""What the probe of a capture gave is recorded and let go of: nothing holds it once its samples are finished."""

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from blocked_models import CASES

import calibrant
from calibrant.ingest import capture_plan, exposed_passes
from calibrant.ingest.capture_pass import Task
from calibrant.ingest.opening import Opened


def root_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory, as far as arrays go."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Arrays:
    """Arrays that may be alive; those that are the samples themselves left out.

    Args:
        arrays: held by others now.
        opened: knows the samples.
    """

    def __init__(self, arrays: Iterable[np.ndarray], opened: Opened) -> None:
        given = [own for sample in opened.leading for own in sample.values.values()]
        apart = (array for array in arrays if not any(np.shares_memory(array, own) for own in given))
        self._roots = [weakref.ref(root_of(array)) for array in apart]

    def __len__(self) -> int:
        return len(self._roots)

    def alive(self) -> int:
        return sum(root() is not None for root in self._roots)


@dataclass
class Watched:
    """What a capture holds of its probe.

    Attributes:
        alone: what samples gave alone.
        together: what two gave in a batch.
        at_first: how many of each are alive when the first batch is given out.
        after: samples done and how many arrays are alive then, batch by batch.
    """

    alone: Arrays | None = None
    together: Arrays | None = None
    at_first: tuple[int, int] = (-1, -1)
    after: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, opened: Opened) -> None:
        self.alone = Arrays([array for arrays in opened.found.alone for array in arrays], opened)
        self.together = Arrays(opened.found.together, opened)

    def alive(self) -> tuple[int, int]:
        assert self.alone is not None
        assert self.together is not None
        return self.alone.alive(), self.together.alive()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Capture on one thread, and look for no garbage: a cycle would hold an array for long."""
    tasks_of, found = exposed_passes.tasks_of, Watched()

    def watching(opened: Opened, *arguments: Any) -> Iterator[Task]:
        found.begin(opened)
        for number, task in enumerate(tasks_of(opened, *arguments)):
            if number == 0:
                found.at_first = found.alive()
            yield task

    monkeypatch.setattr(capture_plan, "core_count", lambda: 1)
    monkeypatch.setattr(exposed_passes, "tasks_of", watching)
    gc.disable()
    yield found
    gc.enable()


def capture(name: str, chosen: Sequence[int], folder: Path, watched: Watched, **options: Any) -> None:
    """Capture samples of a case; note what is alive after each batch."""
    found = CASES[name]()

    def progress(stage: str, done: int, _: int) -> None:
        if stage == "capture" and watched.alone is not None:
            watched.after.append((done, sum(watched.alive())))

    path, feeds = models.save(found.proto, folder / "m.onnx"), [found.feeds[n] for n in chosen]
    calibrant.capture(path, feeds, run=folder / "run", progress=progress, **options)


@pytest.mark.parametrize("keep", ["stats", "raw", "raw:1"])
@pytest.mark.parametrize("name", ["residuals in a row", "dense block", "attention", "a batch changes last bits"])
@pytest.mark.parametrize("chosen", [(0,), (0, 1), (0, 0, 1), (0, 1, 2)])
def test_nothing_of_the_probe_outlives_its_samples(
    name: str, keep: str, chosen: tuple[int, ...], tmp_path: Path, watched: Watched
) -> None:
    capture(name, chosen, tmp_path, watched, keep=keep, batch_size=8)
    assert watched.alone  # there was something to let go of
    assert watched.after[-1] == (len(chosen), 0)


@pytest.mark.parametrize("keep", ["stats", "raw"])
def test_samples_alone_go_before_those_together_are_recorded(keep: str, tmp_path: Path, watched: Watched) -> None:
    capture("residuals in a row", (0, 1, 2, 3), tmp_path, watched, keep=keep, batch_size=8)
    assert watched.alone
    assert watched.together
    assert watched.at_first == (0, len(watched.together))
    assert dict(watched.after) == {2: 0, 4: 0}


@pytest.mark.parametrize(("chosen", "batch_size"), [((0, 1, 2), 1), ((0, 0, 1), 8), ((0,), 8)])
def test_those_together_go_where_they_are_no_batch(
    chosen: tuple[int, ...], batch_size: int, tmp_path: Path, watched: Watched
) -> None:
    capture("residuals in a row", chosen, tmp_path, watched, keep="stats", batch_size=batch_size)
    assert watched.alone
    assert watched.together
    assert watched.at_first == (len(watched.alone), 0)
    assert watched.after[-1][1] == 0
