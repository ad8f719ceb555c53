"""Charts out of Unicode block characters, for a terminal or any other plain text."""

from collections.abc import Sequence
from math import isfinite
from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"  # of a cell, from the left
_LEVELS: Final = "▁▂▃▄▅▆▇█"  # of a cell, from below
_FULL: Final = "█"


def bar(share: float, width: int = 20) -> str:
    """Return a bar of `width` cells for a share of 1; anything above 0 shows at least an eighth of a cell.

    Example:
        >>> bar(0.5, 4), bar(0.0, 4), bar(0.001, 4)
        ('██', '', '▏')
    """
    if not isfinite(share) or share <= 0:
        return ""
    eighths = max(1, round(min(share, 1.0) * width * 8))
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def sparkline(values: Sequence[float]) -> str:
    """Return one character a value, from the least (▁) to the greatest (█); what is not finite is a gap.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, float("nan"), 7.0])
        '▁▂▃ █'
    """
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return " " * len(values)
    low, span = min(finite), max(finite) - min(finite)
    last = len(_LEVELS) - 1
    levels = [round((value - low) / span * last) if span and isfinite(value) else 0 for value in values]
    return "".join(_LEVELS[level] if isfinite(value) else " " for value, level in zip(values, levels, strict=True))


def columns(heights: Sequence[float], rows: int) -> list[str]:
    """Return a chart of columns as lines from top to bottom; any height above 0 shows at least an eighth of a cell.

    Args:
        heights: one a column, 1 for the whole height.
        rows: how many lines.

    Example:
        >>> columns([0.0, 0.25, 1.0], 2)
        ['  █', ' ▄█']
    """
    eighths = [0 if height <= 0 else max(1, round(min(height, 1.0) * rows * 8)) for height in heights]
    return ["".join(_cell(one - 8 * row) for one in eighths) for row in reversed(range(rows))]


def _cell(eighths: int) -> str:
    return " " if eighths <= 0 else _LEVELS[min(eighths, 8) - 1]
