"""A histogram as frames, and what is read back from them."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import SchemaError
from calibrant.stats.extremes import Runs
from calibrant.stats.percentiles import Side

Multiset = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

COUNTERS = pl.Schema(
    {
        "n": pl.Int64(),
        "n_zero": pl.Int64(),
        "n_nan": pl.Int64(),
        "n_inf": pl.Int64(),
        "min": pl.Float32(),
        "max": pl.Float32(),
        "mantissa_bits": pl.Int32(),
    }
)


class HistogramTables(NamedTuple):
    """A histogram as three frames; `LogLinearHistogram.from_tables` takes them back without loss.

    Attributes:
        histogram: one row a bin, sorted: key (uint32), count (int64); zero, NaN and infinity have no bin.
        extremes: side ("max" descending, then "min" ascending), value (float32), count (int64).
        counters: one row: n, n_zero, n_nan, n_inf, min, max (null where no value is finite), mantissa_bits.
    """

    histogram: pl.DataFrame
    extremes: pl.DataFrame
    counters: pl.DataFrame


def require_columns(table: str, frame: pl.DataFrame, names: tuple[str, ...]) -> None:
    """Refuse a frame without these columns.

    Raises:
        SchemaError: naming what is missing and what is there.
    """
    missing = [name for name in names if name not in frame.columns]
    if missing:
        message = f"table {table}: columns missing {missing}, found {frame.columns}"
        raise SchemaError(message)


def counters_row(counters: pl.DataFrame) -> dict[str, int]:
    """Return the one row of counters.

    Raises:
        SchemaError: a column is missing, or there is another number of rows.
    """
    names = ("n", "n_zero", "n_nan", "n_inf", "mantissa_bits")
    require_columns("counters", counters, names)
    if counters.height != 1:
        message = f"table counters: {counters.height} rows; expected one"
        raise SchemaError(message)
    row = counters.select(names).row(0)
    return dict(zip(names, map(int, row), strict=True))


def extremes_table(largest: Multiset, smallest: Multiset) -> pl.DataFrame:
    """Return the extremes as rows: side max, then side min, each in the order given."""
    sides = np.repeat(np.array([0, 1], np.uint8), [largest[0].size, smallest[0].size])
    return pl.DataFrame(
        {
            "side": pl.Series(["max", "min"], dtype=pl.String).gather(sides),
            "value": np.concatenate([largest[0], smallest[0]]),
            "count": np.concatenate([largest[1], smallest[1]]),
        },
        schema={"side": pl.String, "value": pl.Float32, "count": pl.Int64},
    )


def runs_of_table(extremes: pl.DataFrame, side: Side) -> Runs:
    """Return one side of an extremes table as descending orders (of -x for the minimum), zeros left out."""
    rows = extremes.filter((pl.col("side") == side) & (pl.col("value") != 0))
    bits = rows["value"].cast(pl.Float32).to_numpy().view(np.int32)
    orders = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    orders = orders if side == "max" else ~orders
    position = np.argsort(~orders, kind="stable")
    return Runs(orders[position], rows["count"].cast(pl.Int64).to_numpy()[position])
