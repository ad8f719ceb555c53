"""What the bench prints and keeps: a Markdown table, a results file without host names or paths, and the table of the documentation."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.contest import Outcome, spread

HEADER: Final = "| case | figure | measured | bar | met | calibrant | against | floor | threads |\n|---|---|---|---|---|---|---|---|---|"
SHORT: Final = "| case | figure | measured | bar | met |\n|---|---|---|---|---|"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PACKAGES: Final = ("numpy", "numba", "onnxruntime", "polars", "pyarrow", "duckdb")


def rows(outcome: Outcome) -> Iterator[str]:
    """Return the rows of an outcome, one a figure."""
    ours, *others = outcome.readings.items()
    against = ", ".join(f"{name} {_time(readings)}" for name, readings in others) or "-"
    floor = "-" if outcome.floor_ms is None else f"{outcome.floor_ms:.2f} ms ({outcome.moved / 1e6:.0f} MB)"
    for index in range(len(outcome.figures)):
        yield f"{_short_cells(outcome, index)} {_time(ours[1])} | {against} | {floor} | {outcome.threads} |"


def short_rows(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Return the rows of figures that have a bar, as the documentation shows them."""
    for outcome in outcomes:
        for index, figure in enumerate(outcome.figures):
            if figure.bar is not None:
                yield _short_cells(outcome, index)


def _short_cells(outcome: Outcome, index: int) -> str:
    figure, values = outcome.figures[index], outcome.values[index]
    middle = statistics.median(values)
    measured = "unknown" if math.isnan(middle) else f"{middle:.3g} {figure.unit}".rstrip() + f" ± {spread(values):.0%}"
    bar, met = ("-", "-") if figure.bar is None else (str(figure.bar), "NO" if index in outcome.missed() else "yes")
    return f"| {outcome.name} | {figure.name} | {measured} | {bar} | {met} |"


def _time(readings: Sequence[float]) -> str:
    return f"{statistics.median(readings):.3g} ± {spread(readings):.0%}"


def missed(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each bar that is missed."""
    return [
        f"bar missed: {outcome.name}: {outcome.median(i):.3g} {outcome.figures[i].unit} ({outcome.figures[i].name}), "
        f"bar {outcome.figures[i].bar}"
        for outcome in outcomes
        for i in outcome.missed()
    ]


def record(outcomes: Sequence[Outcome], size: float) -> dict[str, Any]:
    """Return everything as plain data."""
    return {"machine": machine(), "size": size, "cases": [_case(outcome) for outcome in outcomes]}


def machine() -> dict[str, Any]:
    """Return what the figures depend on; no host name."""
    versions = {name: version(name) for name in PACKAGES}
    load = round(os.getloadavg()[0], 1)  # above the bench's own two threads, others took their share
    cores = len(os.sched_getaffinity(0))
    return {"cpu": _cpu(), "cores": cores, "load": load, "python": platform.python_version(), **versions}


def _cpu() -> str:
    """Return what tells processors of one name apart: their family and model, the vector units that kernels ask for, the last cache."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    pairs = (line.partition(":") for line in reversed(lines))
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if "model name" not in found:
        return platform.machine()
    units = [unit for unit in ("fma", "avx2", "avx512f") if unit in found.get("flags", "").split()]
    place = f"family {found.get('cpu family', '?')} model {found.get('model', '?')}"
    return f"{found['model name']} ({place}, {' '.join(units) or 'no vector unit of these'}{_last_cache()})"


def _last_cache() -> str:
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return f", last cache {sizes[-1].read_text().strip()}" if sizes else ""


def _case(outcome: Outcome) -> dict[str, Any]:
    figures = [
        {
            "name": figure.name,
            "unit": figure.unit,
            "median": _or_null(outcome.median(index)),
            "spread": _or_null(spread(outcome.values[index])),
            "bar": None if figure.bar is None else figure.bar.limit,
            "at_most": None if figure.bar is None else figure.bar.at_most,
            "met": None if figure.bar is None else index not in outcome.missed(),
        }
        for index, figure in enumerate(outcome.figures)
    ]
    readings = {name: list(values) for name, values in outcome.readings.items()}
    return {
        "name": outcome.name,
        "figures": figures,
        "readings": readings,
        "bytes_moved": outcome.moved,
        "floor_ms": outcome.floor_ms,
        "threads": outcome.threads,
    }


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def save(outcomes: Sequence[Outcome], size: float, folder: Path) -> Path:
    """Write the results file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("bench-%Y%m%dT%H%M%S.json")
    path.write_text(json.dumps(record(outcomes, size), indent=2) + "\n")
    return path


def refresh(outcomes: Sequence[Outcome], path: Path) -> None:
    """Put the figures that have a bar between the two marks of a document; rows of cases that were not measured stay.

    Raises:
        ValueError: it has no marks.
    """
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        message = f"{path.name}: no lines '{BEGIN}' and '{END}' to put the table between"
        raise ValueError(message)
    kept = {_key(row): row for row in old.splitlines() if row.startswith("| ") and row not in SHORT}
    kept |= {_key(row): row for row in short_rows(outcomes)}
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    table = "\n".join([SHORT, *kept.values()])
    path.write_text(f"{before}{BEGIN}\n{about}\n\n{table}\n{END}{after}", encoding="utf-8")


def _key(row: str) -> tuple[str, ...]:
    """Return case and figure of a row."""
    return tuple(row.split(" | ")[:2])
