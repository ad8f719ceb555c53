"""What happened during a run that a person should know: warnings and decisions, one row each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warn", "error"]
Stage = Literal["ingest", "capture", "stats", "fit", "export", "verify", "evaluate", "sensitivity", "auto"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``; total is 0 where it is unknown."""


@dataclass(frozen=True, slots=True)
class Event:
    """One warning or decision.

    Attributes:
        stage: where in the pipeline it happened.
        severity: ``info`` (a decision), ``warn`` (probably not what was meant) or ``error``.
        message: one line: what, where, what to do.
        layer: the layer or tensor concerned, or None.
        sample: position of the sample concerned, or None.
    """

    stage: Stage
    severity: Severity
    message: str
    layer: str | None = None
    sample: int | None = None


Notice = Callable[[Event], None]
"""Called at once with what a person should know before the work goes on."""


def no_notice(event: Event) -> None:
    """Ignore what is told; the default where nobody listens. It is in the table `events` as well."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress; the default where nobody watches."""
