"""What was measured of a step, against the goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from calibrant.export.partial import QuantizedParts


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a model with some layers quantized fares.

    Attributes:
        metric: what the goal is about.
        value: of the metric.
        low, high: its 95 % bootstrap interval over samples, or None.
        ok: whether the goal is reached.
        loss: what a greedy search makes smaller: noise over signal of the outputs, or the loss of an evaluator.
        higher_is_better: whether a greater value is better.
        scores: rows of the table `evaluation` (metric, value, low, high, …) that were measured as well.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    ok: bool
    loss: float
    higher_is_better: bool
    scores: tuple[dict[str, Any], ...] = ()

    def score(self, metric: str) -> dict[str, Any] | None:
        """Return the worst row of another metric that was measured, or None."""
        rows = [row for row in self.scores if row["metric"] == metric]
        return min(rows, key=lambda row: float(row["value"]), default=None)


class Judge(Protocol):
    """Measures models of one run against a goal."""

    def original(self) -> Judgement:
        """Return the judgement of the float model against itself: that of everything rolled back.

        Raises:
            ConfigError: the float model itself does not reach the goal.
        """

    def judge(self, fit: str, parts: QuantizedParts, chosen: Sequence[str]) -> Judgement:
        """Return the judgement of the model with these parts quantized; its rows belong to that fit."""
