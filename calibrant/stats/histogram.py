"""The mergeable statistic of a tensor: a log-linear histogram of float32 bit patterns, with exact extremes.

A bin is the top ``9 + mantissa_bits`` bits of the IEEE-754 pattern (sign, exponent, leading mantissa bits), so a bin is
``2**-mantissa_bits`` of its own magnitude wide and no range has to be known beforehand. Everything inside is an
integer count or a multiset, so merging is exactly associative and commutative: grouping never changes a table.
"""

import math
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ConfigError, EmptyDataError, MergeError, SchemaError
from calibrant.stats._orders import order_values
from calibrant.stats.bins import Bins, bins_of, rebinned
from calibrant.stats.counting import CountScratch
from calibrant.stats.extremes import Runs
from calibrant.stats.histogram_tables import (
    COUNTERS,
    HistogramTables,
    counters_row,
    extremes_table,
    require_columns,
    runs_of_table,
)
from calibrant.stats.percentiles import Side, binned, rank_of, ranked
from calibrant.stats.tally import Tally

__all__ = ["MANTISSA_BITS", "Bins", "CountScratch", "HistogramTables", "LogLinearHistogram", "Side"]

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]

MANTISSA_BITS = 13  # 22-bit keys: 8-bit IFMR choices equal AMCT's on all 120 vectors
EXTREMES_KEPT = 4096  # AMCT's default percentile 0.999999 stays exact up to 4 billion values


def _as_bits(array: npt.ArrayLike) -> KeyArray:
    """Return the float32 bit patterns of an array, flat."""
    values = np.asarray(array)
    if values.dtype not in (np.float32, np.float16):
        message = f"histogram: values are {values.dtype}; expected float32 or float16; convert them first"
        raise SchemaError(message)
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    bits.flags.writeable = False  # of the view alone: numba would compile every kernel once more for read-only arrays
    return bits


class LogLinearHistogram:
    """Counts of float32 values in bins of constant relative width, with the exact extremes.

    NaN and infinity are counted apart and appear in no bin and no extreme; denormals are binned; zero of either sign
    is counted apart. Equal multisets of values give equal histograms, however they were grouped.

    Args:
        mantissa_bits: leading mantissa bits of a bin, 1 to 13; a bin is ``2**-mantissa_bits`` of its magnitude wide.
        extremes_kept: how many largest and how many smallest values are held exactly (K), counted with multiplicity.

    Raises:
        ConfigError: a parameter is out of range.

    Example:
        >>> histogram = LogLinearHistogram.from_values(np.array([0.0, 1.0, 1.0, -2.0], np.float32))
        >>> histogram.n, histogram.n_zero, histogram.minimum, histogram.maximum
        (4, 1, -2.0, 1.0)
    """

    def __init__(self, mantissa_bits: int = MANTISSA_BITS, extremes_kept: int = EXTREMES_KEPT) -> None:
        if not 1 <= mantissa_bits <= MANTISSA_BITS:
            message = f"histogram: mantissa_bits is {mantissa_bits}; expected 1 to {MANTISSA_BITS}"
            raise ConfigError(message)
        if extremes_kept < 1:
            message = f"histogram: extremes_kept is {extremes_kept}; expected at least 1"
            raise ConfigError(message)
        self._mantissa_bits = mantissa_bits
        self._extremes_kept = extremes_kept
        self._tally = Tally(mantissa_bits, extremes_kept)

    @classmethod
    def from_values(cls, array: npt.ArrayLike, *, threads: int = 1) -> Self:
        """Count an array of any shape; see `update`."""
        histogram = cls()
        histogram.update(array, threads=threads)
        return histogram

    def update(self, array: npt.ArrayLike, *, scratch: CountScratch | None = None, threads: int = 1) -> None:
        """Count the values of an array, in place.

        Args:
            array: float32 or float16 (widened), any shape; may be empty.
            scratch: tables to count in, reused by one thread; idle ones are lent otherwise.
            threads: how many threads share a large array; the result does not depend on it.

        Raises:
            SchemaError: another dtype.
            ConfigError: fewer than one thread.
        """
        if threads < 1:
            message = f"histogram: threads is {threads}; expected at least 1"
            raise ConfigError(message)
        self._tally.count(_as_bits(array), scratch, threads)

    def settle(self) -> None:
        """Merge extremes that wait, so that several threads may read; done by itself when one reads."""
        self._tally.extremes.top.runs()
        self._tally.extremes.bottom.runs()

    def merge(self, other: Self) -> Self:
        """Return the histogram of both multisets together; neither operand changes.

        The empty histogram is the identity. Of two `extremes_kept` the smaller holds.

        Raises:
            MergeError: the operands have different `mantissa_bits`.

        Example:
            >>> one, two = (LogLinearHistogram.from_values(np.float32([v])) for v in (1, 2))
            >>> one.merge(two).maximum
            2.0
        """
        if other.mantissa_bits != self.mantissa_bits:
            message = (
                f"histograms of {self.mantissa_bits} and {other.mantissa_bits} mantissa bits cannot be merged; "
                "count the values again with equal mantissa_bits"
            )
            raise MergeError(message)
        merged = type(self)(self._mantissa_bits, min(self._extremes_kept, other._extremes_kept))
        merged._tally.add(self._tally)
        merged._tally.add(other._tally)
        return merged

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same tables."""
        if not isinstance(other, LogLinearHistogram):
            return NotImplemented
        mine, theirs = self.to_tables(), other.to_tables()
        return all(a.equals(b) for a, b in zip(mine, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"LogLinearHistogram(n={self.n}, minimum={self.minimum}, maximum={self.maximum}, bins={self.keys.size})"

    @property
    def mantissa_bits(self) -> int:
        """Leading mantissa bits of a bin."""
        return self._mantissa_bits

    @property
    def extremes_kept(self) -> int:
        """How many largest and how many smallest values are held exactly (K)."""
        return self._extremes_kept

    @property
    def n(self) -> int:
        """Number of values, NaN and infinity included."""
        return self._tally.n

    @property
    def n_zero(self) -> int:
        """Number of zeros of either sign."""
        return self._tally.n_zero

    @property
    def n_nan(self) -> int:
        """Number of NaN."""
        return self._tally.n_nan

    @property
    def n_inf(self) -> int:
        """Number of infinities of either sign."""
        return self._tally.n_inf

    @property
    def n_finite(self) -> int:
        """Number of finite values, zeros included."""
        return self._tally.n - self._tally.n_nan - self._tally.n_inf

    @property
    def minimum(self) -> float:
        """Least finite value, exact; NaN where there is none."""
        return -self._greatest_of(self._tally.extremes.bottom.runs()) + 0.0  # no negative zero

    @property
    def maximum(self) -> float:
        """Greatest finite value, exact; NaN where there is none."""
        return self._greatest_of(self._tally.extremes.top.runs())

    @property
    def keys(self) -> KeyArray:
        """Keys of the occupied bins, shape (B,), ascending: ``bits >> (23 - mantissa_bits)``; zero has none."""
        return self._tally.bins.pairs()[0]

    @property
    def counts(self) -> Int64Array:
        """Counts of the occupied bins, shape (B,)."""
        return self._tally.bins.pairs()[1]

    @property
    def largest(self) -> tuple[Float32Array, Int64Array]:
        """The K greatest finite values, descending, with their counts; the last count is cut so that they sum to K."""
        orders, counts = self._with_zeros(self._tally.extremes.top.runs())
        return order_values(orders), counts

    @property
    def smallest(self) -> tuple[Float32Array, Int64Array]:
        """The K least finite values, ascending, with their counts; the last count is cut so that they sum to K."""
        orders, counts = self._with_zeros(self._tally.extremes.bottom.runs())
        return order_values(~orders), counts

    def _greatest_of(self, runs: Runs) -> float:
        """Return the first value of runs, or zero where that is greater and occurred; NaN where there is neither."""
        zero = [0.0] if self._tally.n_zero else []
        return max([*order_values(runs.orders[:1]).tolist(), *zero], default=math.nan)

    def _with_zeros(self, runs: Runs) -> Runs:
        if self._tally.n_zero == 0:
            return runs
        return runs.merged(Runs(np.zeros(1, np.int32), np.array([self._tally.n_zero], np.int64)), self._extremes_kept)

    def to_tables(self) -> HistogramTables:
        """Return the histogram as three frames; nothing is lost.

        `extremes_kept` is implied wherever values were left out.
        """
        counters = pl.DataFrame([self.counters()], schema=COUNTERS)
        return HistogramTables(pl.DataFrame(self.bin_columns()), self.extremes_frame(), counters)

    def bin_columns(self, *, keep: bool = True) -> dict[str, npt.NDArray[np.generic]]:
        """Return the occupied bins as columns: key and count; they are held for the next who asks, unless told otherwise."""
        keys, counts = self._tally.bins.pairs(keep=keep)
        return {"key": keys, "count": counts}

    def extremes_frame(self) -> pl.DataFrame:
        """Return the extremes as rows: side max descending, then side min ascending."""
        return extremes_table(self.largest, self.smallest)

    def counters(self) -> dict[str, int | float | None]:
        """Return n, n_zero, n_nan, n_inf, min, max (None where no value is finite) and mantissa_bits."""
        finite = self.n_finite > 0
        return {
            "n": self._tally.n,
            "n_zero": self._tally.n_zero,
            "n_nan": self._tally.n_nan,
            "n_inf": self._tally.n_inf,
            "min": self.minimum if finite else None,
            "max": self.maximum if finite else None,
            "mantissa_bits": self._mantissa_bits,
        }

    @classmethod
    def from_tables(
        cls,
        histogram: pl.DataFrame,
        extremes: pl.DataFrame,
        counters: pl.DataFrame,
        *,
        extremes_kept: int | None = None,
    ) -> Self:
        """Build a histogram from its tables; columns beyond those of `HistogramTables` are ignored.

        Args:
            histogram: columns key, count.
            extremes: columns side, value, count.
            counters: one row with n, n_zero, n_nan, n_inf, mantissa_bits.
            extremes_kept: K; by default what the tables imply: the number of values held where some were left out,
                otherwise the usual 4096 or more.

        Raises:
            SchemaError: a column is missing, or there is not exactly one row of counters.
        """
        row = counters_row(counters)
        require_columns("histogram", histogram, ("key", "count"))
        require_columns("extremes", extremes, ("side", "value", "count"))
        finite = row["n"] - row["n_nan"] - row["n_inf"]
        result = cls(row["mantissa_bits"], extremes_kept or _implied_extremes(extremes, finite))
        pairs = histogram.sort("key")
        keys, counts = pairs["key"].cast(pl.UInt32), pairs["count"].cast(pl.Int64)
        result._tally.bins.add_pairs(
            keys.to_numpy(writable=True), counts.to_numpy(writable=True)
        )  # kernels compile once
        result._tally.extremes.top.add(runs_of_table(extremes, "max"))
        result._tally.extremes.bottom.add(runs_of_table(extremes, "min"))
        result._tally.add_counters(row["n"], row["n_zero"], row["n_nan"], row["n_inf"])
        return result

    def percentile(self, p: float, side: Side = "max") -> float:
        """Return AMCT's percentile: an order statistic of the finite values, without interpolation (docs/algorithms.md 2).

        With n finite values and ``k = n - floor(p * n)`` (float64; 1 where ``1 - p`` is below FLT_EPSILON; at least 1)
        it is the k-th greatest (side max) or k-th least (side min). It is exact where `percentile_is_exact` says so; beyond, it is
        the middle of the bin that holds it, which is within 2**-(mantissa_bits + 1) of it, relative to its magnitude.

        Args:
            p: 0 to 1.
            side: ``max`` or ``min``.

        Raises:
            ConfigError: `p` or `side` is out of range.
            EmptyDataError: there is no finite value.

        Example:
            >>> values = np.linspace(-1, 3, 17, dtype=np.float32)
            >>> histogram = LogLinearHistogram.from_values(values)
            >>> histogram.percentile(0.9), histogram.percentile(0.9, "min")
            (2.75, -0.75)
        """
        rank = self._rank(p, side)
        opposite = self.n_finite + 1 - rank
        if rank <= self._extremes_kept:
            return ranked(self.largest if side == "max" else self.smallest, rank)
        if opposite <= self._extremes_kept:
            return ranked(self.smallest if side == "max" else self.largest, opposite)
        return self._binned_percentile(rank, side)

    def percentile_is_exact(self, p: float, side: Side = "max") -> bool:
        """Return whether `percentile` is the exact order statistic: among the K extremes of a side, or zero."""
        rank = self._rank(p, side)
        held = min(rank, self.n_finite + 1 - rank) <= self._extremes_kept
        return held or self._binned_percentile(rank, side) == 0.0

    def _rank(self, p: float, side: Side) -> int:
        rank_of(1, p, side)  # what is asked is checked before what is there
        self._require_finite("percentile")
        return rank_of(self.n_finite, p, side)

    def _binned_percentile(self, rank: int, side: Side) -> float:
        middle = binned(self.keys, self.counts, self._tally.n_zero, self._mantissa_bits, rank, side)
        return min(max(middle, self.minimum), self.maximum)

    def bins(self) -> Bins:
        """Return the occupied bins as intervals ``lower <= x <= upper``, ascending in value.

        The zeros are one bin [0, 0]; the outermost bins end at the exact minimum and maximum. Neighbouring bins share
        their edge; the edge belongs to the bin of greater magnitude.

        Example:
            >>> LogLinearHistogram.from_values(np.float32([0, 1.5, -1])).bins().upper.tolist()
            [-1.0, 0.0, 1.5]
        """
        extremes = self.minimum, self.maximum
        return bins_of(self.keys, self.counts, self._tally.n_zero, self._mantissa_bits, extremes)

    def rebin(self, num_of_bins: int) -> Int64Array:
        """Return counts in equal-width bins over the exact range [minimum, maximum].

        A bin of this histogram that an edge cuts gives each side its share by proportion, rounded cumulatively (half to
        even), so that counts stay integers and their sum is the number of finite values. Zero has no width; the maximum lies in the
        last bin; values that are all equal lie in bin ``num_of_bins // 2`` (docs/algorithms.md 3.1).

        Args:
            num_of_bins: at least 1.

        Returns:
            shape (num_of_bins,), int64.

        Raises:
            ConfigError: `num_of_bins` is below 1.
            EmptyDataError: there is no finite value.

        Example:
            >>> LogLinearHistogram.from_values(np.float32([0, 1, 2, 4])).rebin(4).tolist()
            [1, 1, 1, 1]
        """
        if num_of_bins < 1:
            message = f"rebin: num_of_bins is {num_of_bins}; expected at least 1"
            raise ConfigError(message)
        self._require_finite("rebin")
        return rebinned(self.bins(), num_of_bins)

    def _require_finite(self, what: str) -> None:
        if self.n_finite == 0:
            message = f"{what}: the histogram holds no finite value (n {self._tally.n}, NaN {self._tally.n_nan}, inf {self._tally.n_inf})"
            raise EmptyDataError(message)


def _implied_extremes(extremes: pl.DataFrame, finite: int) -> int:
    held = int(extremes.filter(pl.col("side") == "max")["count"].sum())
    return held if 0 < held < finite else max(held, EXTREMES_KEPT)
