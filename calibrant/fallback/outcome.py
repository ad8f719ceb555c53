"""What an automatic fallback found."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from calibrant.fallback.ranked_layers import Sensitivities
from calibrant.fallback.steps import Step
from calibrant.stats.run import Run

Strategy = Literal["binary", "greedy"]


@dataclass(frozen=True)
class AutoCalibration:
    """What `calibrant.auto_calibrate` found.

    Attributes:
        run: the run, whose tables hold every step (`auto_steps`, `evaluation`, `plan`).
        fit: the fit that was exported, or None where every layer had to be rolled back.
        reached: whether the chosen step reaches the goal.
        goal: the goal in words.
        layers: the layers that stay in float, in topological order.
        macs_float: share of the multiply-accumulates in float.
        before: the step with everything quantized.
        after: the chosen step.
        steps: all steps, in the order in which they were taken.
        sensitivity: how sensitive the layers are, or None where nothing had to be ranked.
        config: the quant.cfg that gives the chosen fit, or None.
    """

    run: Run
    fit: str | None
    reached: bool
    goal: str
    layers: tuple[str, ...]
    macs_float: float
    before: Step
    after: Step
    steps: tuple[Step, ...]
    sensitivity: Sensitivities | None
    config: Path | None

    @property
    def prefix(self) -> str | None:
        """Where the chosen fit was exported, or None."""
        return None if self.fit is None else self.run.info.fits[self.fit].prefix

    def pareto(self) -> pl.DataFrame:
        """Return the steps by the share of MACs in int8, and which of them no other beats."""
        from calibrant.stats.report import run_report

        return run_report(self.run, "pareto")

    def stays_quantized(self, step: Step) -> Mapping[str, bool]:
        """Return each layer of the search, and whether a step keeps it quantized, as AMCT's files say it."""
        names = self.sensitivity.order if self.sensitivity else sorted(self.after.fallen)
        return {layer: layer not in step.fallen for layer in names}
