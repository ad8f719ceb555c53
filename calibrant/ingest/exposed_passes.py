"""The passes of a capture: one where all tensors are exposed at once, else one for each group of them."""

from collections.abc import Iterator
from dataclasses import replace

from calibrant.errors import DataError
from calibrant.ingest.capture_pass import CapturePass, Clock, DiskGuard, SamplesSeen, tasks_of
from calibrant.ingest.capture_plan import CapturePlan
from calibrant.ingest.exposing import ExposedModel
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.opening import Opened, open_blocked, open_runner
from calibrant.ingest.recorder import Recorder
from calibrant.ingest.runner import BatchRunner
from calibrant.ingest.sample_axis import Probe
from calibrant.ingest.samples import Sample
from calibrant.stats.events import Event, Progress


class ExposedPasses:
    """Probes every group, then runs the passes; no more than one session is open at a time.

    Whether samples run one at a time is decided for all groups together, so that groups change no batch.

    Args:
        model: opens sessions.
        prepared: the model.
        plan: the groups and the samples.
        clock: of the capture.

    Attributes:
        events: what the probe and the runs found.
        one_by_one: whether any samples ran one at a time.
    """

    def __init__(self, model: ExposedModel, prepared: PreparedModel, plan: CapturePlan, clock: Clock) -> None:
        self.events: list[Event] = []
        self.one_by_one = False
        self._model = model
        self._prepared = prepared
        self._plan = plan
        self._clock = clock
        self._probes: list[Probe] = []
        self._only: Opened | None = None

    def probe(self) -> Probe:
        """Return what the probe found, the layouts in the order of the tensors.

        Raises:
            DataError: onnxruntime refuses the first samples.
            ModelError: it cannot load the model.
        """
        if len(self._plan.groups) == 1:
            self._only = self._open(0, self._plan.stream)
            self._probes = [self._only.found]
        else:
            found = (
                self._open(group, iter(self._plan.samples_again())).found for group in range(len(self._plan.groups))
            )
            self._probes = [
                replace(one, alone=(), together=[]) for one in found
            ]  # what a pass holds is what was planned
        self.one_by_one = any(found.one_by_one for found in self._probes)
        self.events += [event for found in self._probes for event in found.events]
        layouts = tuple(layout for found in self._probes for layout in found.layouts)
        return Probe(layouts, self.one_by_one, tuple(self.events))

    def _open(self, group: int, samples: Iterator[Sample]) -> Opened:
        """Open a session, in blocks of channels where that is faster: not where activations are written, nor for a part."""
        tensors, threads = self._plan.groups[group], self._plan.memory.size.threads
        prepared = replace(self._prepared, tensors=tensors)
        if len(self._plan.groups) == 1 and not self._plan.keep.has_all:
            opened, samples = self._open_blocked(samples, prepared)
            if opened is not None:
                return opened
        with self._clock("session"):
            session = self._model.session(tensors)
        with self._clock("probe"):
            return open_runner(session.run, samples, prepared, threads=threads)

    def _open_blocked(
        self, samples: Iterator[Sample], prepared: PreparedModel
    ) -> tuple[Opened | None, Iterator[Sample]]:
        with self._clock("session"):
            blocked = self._model.blocked_session()
        if blocked is None:
            return None, samples
        with self._clock("probe"):
            return open_blocked(blocked, samples, prepared, self._plan.memory.size.threads)

    def run(self, recorder: Recorder, seen: SamplesSeen, guard: DiskGuard | None, progress: Progress) -> None:
        """Run all passes; the first notes the samples.

        Raises:
            DataError: a sample cannot be run, has values that no scale can hold, or differs from pass to pass.
            RunError: the activations would fill the disk.
        """
        for group in range(len(self._plan.groups)):
            opened = self._opened(group)
            noted = seen if group == 0 else SamplesSeen()
            one = CapturePass(opened.runner, recorder, noted, guard, self._plan.memory.size.threads, self._clock)
            tasks = tasks_of(opened, self._prepared.inputs, self._plan.memory.size, self._plan.count)
            one.run(tasks, self._plan.count, self._progress(group, progress))
            if seen.chosen is not None:
                one.keep(seen.chosen.batches())
            self._require_equal(seen, noted)
            self.events += opened.runner.events
            self.one_by_one |= opened.runner.one_by_one
            self._only = None  # closes the session: its memory serves the tables
            del opened, tasks, one

    def _opened(self, group: int) -> Opened:
        if self._only is not None:
            return self._only
        tensors, found = self._plan.groups[group], replace(self._probes[group], one_by_one=self.one_by_one)
        stream = self._plan.stream if group == 0 else iter(self._plan.samples_again())
        with self._clock("session"):
            session = self._model.session(tensors)
        runner = BatchRunner(session.run, self._prepared.inputs, tensors, found)
        return Opened(runner, found, (), (), stream)

    def _progress(self, group: int, progress: Progress) -> Progress:
        """Count the samples of all passes."""
        groups = len(self._plan.groups)

        def report(stage: str, done: int, total: int) -> None:
            progress(stage, group * total + done, groups * total)

        return report if groups > 1 else progress

    def _require_equal(self, first: SamplesSeen, noted: SamplesSeen) -> None:
        if [row[1] for row in noted.rows] != [row[1] for row in first.rows]:
            message = (
                f"{self._plan.source.name}: gives other samples when it is read again, which --memory needs; "
                "give data that stays the same"
            )
            raise DataError(message)
