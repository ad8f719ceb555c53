"""The goal of a fallback: how much of a metric may be lost, or its least value."""

from dataclasses import dataclass
from math import inf, isnan
from typing import Final

from calibrant.errors import ConfigError
from calibrant.export.metrics import METRICS, Metric, find_metric

_PERFECT: Final = {"agreement": 1.0, "cosine": 1.0, "amct_similarity": 1.0, "sqnr_db": inf}  # of a model against itself
_WHOLE: Final = 100.0  # percent


@dataclass(frozen=True, slots=True)
class Drop:
    """How much may be lost.

    Attributes:
        amount: in the unit of the metric, or a share for a percentage.
        is_percent: whether it was written with a percent sign.
    """

    amount: float
    is_percent: bool = False


DEFAULT_DROP: Final = Drop(0.005, is_percent=True)


def parse_drop(given: str | float) -> Drop:
    """Read ``0.5%`` or ``0.005``.

    Raises:
        ConfigError: it is no number of at least 0.

    Example:
        >>> parse_drop("0.5%"), parse_drop(0.005)
        (Drop(amount=0.005, is_percent=True), Drop(amount=0.005, is_percent=False))
    """
    number, percent, rest = str(given).strip().partition("%")
    try:
        amount = float(number) / (_WHOLE if percent else 1)
    except ValueError:
        amount = -1.0
    if rest or not 0 <= amount < inf:
        message = f"--max-drop '{given}': expected a number of at least 0 in the unit of the metric, or a percentage, e.g. 0.005 or 0.5%"
        raise ConfigError(message)
    return Drop(amount, bool(percent))


@dataclass(frozen=True, slots=True)
class Goal:
    """What a step must reach.

    Attributes:
        metric: name of the metric, or None: top1 with labels, else agreement where outputs are scores of classes, else cosine.
        drop: how much worse than the float model the metric may be.
        least: its least value, in the place of `drop`.
    """

    metric: str | None = None
    drop: Drop = DEFAULT_DROP
    least: float | None = None

    def is_reached(self, metric: str, value: float, float_value: float) -> bool:
        """Return whether a value of the metric reaches the goal, given what the float model has; NaN never does.

        A percentage means percentage points of metrics that are shares or cosines, else that part of the float model's value.

        Example:
            >>> Goal(drop=Drop(0.01)).is_reached("top1", 0.90, 0.91), Goal("sqnr_db", least=24).is_reached("sqnr_db", 23.9, inf)
            (True, False)
        """
        if isnan(value):
            return False
        if self.least is not None:
            return value >= self.least
        lost = float_value - value if higher_is_better(metric) else value - float_value
        return lost <= self._allowed(metric, float_value) * (1 + 1e-12)  # 0.91 - 0.90 is more than 0.01 in float64

    def _allowed(self, metric: str, float_value: float) -> float:
        relative = self.drop.is_percent and metric not in METRICS
        return self.drop.amount * abs(float_value) if relative else self.drop.amount

    def words(self, metric: str) -> str:
        """Say the goal, e.g. ``sqnr_db of at least 24``."""
        if self.least is not None:
            return f"{metric} of at least {self.least:g}"
        amount = f"{self.drop.amount * _WHOLE:g} %" if self.drop.is_percent else f"{self.drop.amount:g}"
        return f"{metric} at most {amount} worse than the float model"


def checked_goal(metric: str | None, max_drop: str | float | None, least: float | None) -> Goal:
    """Return the goal of these options.

    Args:
        metric: a name out of docs/evaluation.md, ``module:function``, or None.
        max_drop: how much may be lost; None: 0.5 % where `least` is None as well.
        least: the least value.

    Raises:
        ConfigError: both or contradicting options, or a metric that has no such bound; the message says which to take.

    Example:
        >>> checked_goal("sqnr", None, 24.0).words("sqnr_db")
        'sqnr_db of at least 24'
    """
    if max_drop is not None and least is not None:
        message = "--max-drop and --min: two goals; give one of them"
        raise ConfigError(message)
    found = None if metric is None or ":" in metric else find_metric(metric)
    name = metric if found is None else found.name
    if least is not None:
        _check_least(found, metric, least)
        return Goal(name, least=least)
    drop = DEFAULT_DROP if max_drop is None else parse_drop(max_drop)
    if found is not None:
        _check_drop(found, drop, given=max_drop is not None)
    return Goal(name, drop)


def _check_least(found: Metric | None, metric: str | None, least: float) -> None:
    if metric is None:
        message = f"--min {least:g}: of which metric? pass --metric as well, e.g. --metric sqnr"
        raise ConfigError(message)
    if isnan(least):
        message = "--min nan: expected a number in the unit of the metric"
        raise ConfigError(message)
    if found is not None and not found.higher_is_better:
        message = (
            f"--min {least:g}: {found.name} is better the smaller it is; pass --max-drop, which bounds it from above"
        )
        raise ConfigError(message)


def _check_drop(found: Metric, drop: Drop, *, given: bool) -> None:
    if found.name == "sqnr_db":
        message = "--metric sqnr: the float model has no noise, so that nothing drops from it; pass --min, in dB, e.g. --min 24"
        raise ConfigError(message)
    if not found.higher_is_better and (drop.is_percent or not given):
        message = (
            f"--metric {found.name}: is 0 for the float model, which has no percentage; pass --max-drop in its own unit"
        )
        raise ConfigError(message)


def higher_is_better(metric: str) -> bool:
    """Return whether a greater value is better; of a metric of the user's own it is taken to be.

    Example:
        >>> higher_is_better("kl"), higher_is_better("lines:exact")
        (False, True)
    """
    return metric not in METRICS or METRICS[metric].higher_is_better


def value_of_itself(metric: str) -> float:
    """Return the value of a metric that holds a model against the float model, for the float model.

    Example:
        >>> value_of_itself("agreement"), value_of_itself("mse")
        (1.0, 0.0)
    """
    return _PERFECT.get(metric, 0.0)
