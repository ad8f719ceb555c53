"""The layers of a fit as a plain-text bar table, worst first: what `calibrant report RUN` prints."""

from typing import Final

import polars as pl

from calibrant.console import table_lines
from calibrant.text_charts import bar

_LONGEST_BAR: Final = 40
_SHORTEST_BAR: Final = 8
_LONGEST_NAME: Final = 48
_LEAST_NAME: Final = 20  # characters that still tell layers apart
_NUMBERS: Final = {
    "error_percent": 2,
    "data_db": 1,
    "weight_db": 1,
    "statistics_db": 1,
    "isolated_db": 1,
    "whole_db": 1,
}
_HEADINGS: Final = {"error_percent": "error %"}
BAR_HEADINGS: Final = {
    "data and weight": "noise over signal",
    "statistics": "noise expected of the layer",
    "isolated": "noise of the layer alone",
    "whole": "noise at the output",
}


def bar_table(ranked: pl.DataFrame, width: int, *, ascii_only: bool = False) -> list[str]:
    """Return the lines of a bar table.

    Args:
        ranked: rows of the report `ranking`, of one fit.
        width: columns of the terminal; names are shortened in the middle and bars scaled to fit it.
        ascii_only: draw with ``#`` and ``~`` where the output takes no other characters.
    """
    numbers = {
        _HEADINGS.get(name, name): _fixed(ranked[name], digits)
        for name, digits in _NUMBERS.items()
        if _known(ranked, name)
    }
    taken = sum(max(map(len, [heading, *cells])) + 2 for heading, cells in numbers.items())
    names = ranked["layer"].to_list()
    longest = max([len("layer"), *map(len, names)])
    name_width = max(_LEAST_NAME, min(longest, _LONGEST_NAME, width - taken - _SHORTEST_BAR - 2))
    bar_width = max(_SHORTEST_BAR, min(_LONGEST_BAR, width - taken - min(longest, name_width) - 2))
    heading = BAR_HEADINGS[ranked["ranked_by"][0] if ranked.height else "data and weight"]
    columns = {
        "layer": [_shortened(name, name_width, "~" if ascii_only else "…") for name in names],
        **{heading: _right(heading, cells) for heading, cells in numbers.items()},
        heading[:bar_width]: _bars(ranked["ranked_percent"], bar_width, ascii_only=ascii_only),
    }
    return table_lines(pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)))


def _known(ranked: pl.DataFrame, name: str) -> bool:
    """Return whether a column is worth its place; what statistics expect is, where nothing better was measured."""
    if name == "statistics_db" and not (ranked["ranked_by"] == "statistics").any():
        return False
    return name in ranked.columns and (ranked[name].is_not_null().any() or name in ("error_percent", "data_db"))


def _fixed(values: pl.Series, digits: int) -> list[str]:
    return ["" if value is None else f"{value:.{digits}f}" for value in values]


def _right(heading: str, cells: list[str]) -> list[str]:
    size = max(map(len, [heading, *cells]))
    return [cell.rjust(size) for cell in cells]


def _bars(errors: pl.Series, width: int, *, ascii_only: bool) -> list[str]:
    greatest = max((error for error in errors if error is not None and error != float("inf")), default=0.0) or 1.0
    shares = [min(1.0, (error or 0.0) / greatest) for error in errors]
    if ascii_only:
        return ["#" * max(1 if share else 0, round(share * width)) for share in shares]
    return [bar(share, width) for share in shares]


def _shortened(name: str, size: int, mark: str) -> str:
    if len(name) <= size:
        return name
    half = (size - 1) // 2
    return f"{name[: size - 1 - half]}{mark}{name[len(name) - half :]}"
