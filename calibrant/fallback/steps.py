"""The steps of a search: each set of layers in float is judged once, and stands in the run as a fit of its own."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import polars as pl

from calibrant.fallback.judgement import Judge, Judgement
from calibrant.fallback.step_fits import StepFits, step_name
from calibrant.stats.events import Event, Notice
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS

_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One choice of layers, judged.

    Attributes:
        number: 1 is everything quantized; 0 is everything in float, which is no fit.
        fit: its fit in the run, or None.
        fallen: names of the layers that are rolled back to float.
        macs_float: share of the multiply-accumulates in float, of all layers that could be quantized.
        judgement: what was measured.
    """

    number: int
    fit: str | None
    fallen: frozenset[str]
    macs_float: float
    judgement: Judgement


class Steps:
    """Takes steps and remembers them.

    Args:
        run: the run.
        fits: makes the steps' fits.
        judge: measures them.
        original: the judgement of everything in float.
        notice: told of each step.
    """

    def __init__(self, run: Run, fits: StepFits, judge: Judge, original: Judgement, notice: Notice) -> None:
        self._run, self._fits, self._judge, self._notice = run, fits, judge, notice
        self._all = frozenset(fits.layers)
        self._total = sum(fits.macs.values())
        self._taken: dict[frozenset[str], Step] = {}
        self._float = Step(0, None, self._all, self.share(self._all), original)

    @property
    def taken(self) -> list[Step]:
        """The steps in the order in which they were taken."""
        return list(self._taken.values())

    def cost(self, layer: str) -> float:
        """Return a layer's share of the multiply-accumulates; 0 where none are known."""
        return self._fits.macs.get(layer, 0) / self._total if self._total else 0.0

    def share(self, fallen: Collection[str]) -> float:
        """Return the share of the multiply-accumulates in float with these layers rolled back, those that were never quantized included."""
        out = sum(macs for layer, macs in self._fits.macs.items() if layer in fallen or layer not in self._all)
        return out / self._total if self._total else 0.0

    def take(self, fallen: Collection[str]) -> Step:
        """Judge a choice of layers, unless that was done before; with every layer in float it is the float model, and known."""
        wanted = frozenset(fallen)
        if wanted == self._all:
            return self._float
        if wanted not in self._taken:
            self._taken[wanted] = self._judged(wanted)
        return self._taken[wanted]

    def _judged(self, fallen: frozenset[str]) -> Step:
        number = len(self._taken) + 1
        name = step_name(number)
        parts = self._fits.make(name, fallen) if fallen else self._fits.parts()
        step = Step(number, name, fallen, self.share(fallen), self._judge.judge(name, parts, parts.names))
        self._notice(Event("auto", "info", step_words(step)))
        return step


def step_words(step: Step) -> str:
    """Say in one line what a step is and found."""
    found = step.judgement
    count = len(step.fallen)
    what = "everything quantized" if not count else f"{count} {'layer' if count == 1 else 'layers'} in float"
    verdict = "reaches the goal" if found.ok else "does not reach the goal"
    return f"step {step.number}: {what}, {_PERCENT * step.macs_float:.1f} % of the MACs: {found.metric} {found.value:.5g} {verdict}"


def steps_frame(steps: Collection[Step], chosen: Step) -> pl.DataFrame:
    """Return the rows of the table `auto_steps`."""
    rows = [
        {
            "step": one.number, "fit": one.fit, "layers_float": len(one.fallen), "macs_float": one.macs_float,
            "metric": one.judgement.metric, "value": one.judgement.value, "low": one.judgement.low,
            "high": one.judgement.high, "higher_is_better": one.judgement.higher_is_better, "ok": one.judgement.ok,
            "chosen": one == chosen,
        }
        for one in steps
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMAS["auto_steps"])
