"""Numbers as the page carries them: short, and null where they are not finite."""

import math
from collections.abc import Iterable
from typing import Final

_DIGITS: Final = 4  # significant; a chart shows fewer


def short(value: float | None, digits: int = _DIGITS) -> float | int | None:
    """Return a number with so many significant digits, or None for what JSON has no number for.

    Example:
        >>> short(0.123456), short(1234567), short(float("nan")), short(2.0)
        (0.1235, 1234567, None, 2)
    """
    if value is None or not math.isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def shorts(values: Iterable[float | None]) -> list[float | int | None]:
    """Return each number as `short` does."""
    return [short(value) for value in values]
