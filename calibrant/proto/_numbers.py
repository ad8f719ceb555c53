"""Numbers of a section, each checked against what it may be; a wrong one is a `ConfigError` at its line and column."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.proto._document import Section


def shortest_float(value: float) -> float:
    """Return the float64 that is written like the float32 `value`: 0.7 instead of 0.699999988.

    Example:
        >>> shortest_float(0.699999988079071)
        0.7
    """
    return float(str(np.float32(value)))


def number(section: Section, name: str) -> float:
    """Return a finite number as its shortest decimal."""
    value = float(section.value(name))
    if not math.isfinite(value):
        section.reject(name, f"{name} is {value}; a finite number is expected")
    return shortest_float(value)


def positive(section: Section, name: str) -> float:
    """Return a number above 0."""
    value = number(section, name)
    if value <= 0:
        section.reject(name, f"{name} is {value}; a number above 0 is expected")
    return value


def percentile(section: Section, name: str) -> float:
    """Return a number above 0.5 and at most 1."""
    value = number(section, name)
    if not 0.5 < value <= 1:
        section.reject(name, f"{name} is {value}; a number above 0.5 and at most 1 is expected")
    return value


def within(section: Section, name: str, low: float, high: float) -> float:
    """Return a number from `low` to `high`, both allowed."""
    value = number(section, name)
    if not low <= value <= high:
        section.reject(name, f"{name} is {value}; a number from {low} to {high} is expected")
    return value


def inside(section: Section, name: str, low: float, high: float) -> float:
    """Return a number between `low` and `high`, neither allowed."""
    value = number(section, name)
    if not low < value < high:
        section.reject(name, f"{name} is {value}; a number between {low} and {high} is expected")
    return value


def one_of(section: Section, name: str, allowed: Sequence[int]) -> int:
    """Return a whole number that is one of a few."""
    value: Any = section.value(name)
    if value not in allowed:
        section.reject(name, f"{name} is {value}; one of {', '.join(map(str, allowed))} is expected")
    return int(value)
