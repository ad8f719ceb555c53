"""The mergeable statistic of a tensor: a log-linear histogram of float32 bit patterns, with exact extremes.

A bin is the top ``9 + mantissa_bits`` bits of the IEEE-754 pattern (sign, exponent, leading mantissa bits), so a bin is
``2**-mantissa_bits`` of its own magnitude wide and no range has to be known beforehand. Everything inside is an
integer count or a multiset, so merging is exactly associative and commutative: grouping never changes a table.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import ConfigError, EmptyDataError, MergeError, SchemaError
from calibrant.stats import _kernels

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint32]
OrderArray = npt.NDArray[np.int32]
Side = Literal["max", "min"]

MANTISSA_BITS = 13  # 22-bit keys: 8-bit IFMR choices equal AMCT's on all 120 vectors
EXTREMES_KEPT = 4096  # AMCT's default percentile 0.999999 stays exact up to 4 billion values
FLOAT32_MANTISSA_BITS = 23
DENSE_SIZE = 1 << 16  # from here on counting in a table beats sorting (measured)
DENSE_CHUNK = 1 << 26  # values between two drains of the tables; far below 2**32, where a lane would wrap
NARROW_MANTISSA_BITS = 12  # coarser keys gather more than 65535 values each in a chunk
FLT_EPSILON = 1.192092896e-7  # AMCT takes a percentile nearer to 1 than this as 1 (docs/algorithms.md 2)


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


class Bins(NamedTuple):
    """The occupied bins as intervals, ascending in value; zero is a bin [0, 0] of its own.

    Attributes:
        lower: shape (B,), least value that the bin can hold.
        upper: shape (B,), greatest; the outermost bins end at the exact minimum and maximum.
        count: shape (B,), how many values lie in it.
    """

    lower: Float64Array
    upper: Float64Array
    count: Int64Array  # type: ignore[assignment]  # the tables' word; hides tuple.count, which nobody needs here


class _Counted(NamedTuple):
    """What one array adds to a histogram; `top` and `bottom` are descending orders (of x and of -x), zeros left out."""

    keys: KeyArray
    counts: Int64Array
    top: tuple[OrderArray, Int64Array]
    bottom: tuple[OrderArray, Int64Array]
    n: int
    n_zero: int
    n_nan: int
    n_inf: int


class CountScratch:
    """The dense tables that counting needs (72 MB of address space, touched only where keys occur).

    Reused by one thread for all its tensors; never shared between two threads. Always left empty but for the spare
    counters at the end.
    """

    def __init__(self) -> None:
        self.table = np.zeros(_kernels.TABLE_SIZE + _kernels.SPARE, np.uint16)
        self.lanes = np.zeros((_kernels.TABLE_SIZE + 1, _kernels.LANES), np.uint32)


# Tables that nobody counts in. Mapping fresh ones makes the kernel clear huge pages, which cost a third of a count with two threads.
_IDLE: Final[SimpleQueue[CountScratch]] = SimpleQueue()
_MOST_IDLE: Final = 2


@contextmanager
def _lent(scratch: CountScratch | None) -> Iterator[CountScratch]:
    """Lend the caller's tables, idle ones, or new ones; what an error may have left dirty is not lent again."""
    if scratch is not None:
        yield scratch
        return
    try:
        found = _IDLE.get_nowait()
    except Empty:
        found = CountScratch()
    yield found
    if _IDLE.qsize() < _MOST_IDLE:
        _IDLE.put(found)


def _no_runs() -> tuple[OrderArray, Int64Array]:
    return np.empty(0, np.int32), np.empty(0, np.int64)


def _as_bits(array: npt.ArrayLike) -> KeyArray:
    """Return the float32 bit patterns of an array, flat."""
    values = np.asarray(array)
    if values.dtype not in (np.float32, np.float16):
        message = f"histogram: values are {values.dtype}; expected float32 or float16; convert them first"
        raise SchemaError(message)
    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)


def _count_by_sorting(bits: KeyArray, shift: int, keep: int) -> _Counted:
    orders = _kernels.value_orders(bits)
    orders.sort()
    keys, counts, n_zero, n_nan, first, last = _kernels.count_sorted(orders, shift)
    top = _kernels.top_runs(orders[first:], last - first, keep)
    bottom = _kernels.top_runs(np.invert(orders[:last])[::-1].copy(), last - first, keep)
    n_inf = orders.size - (last - first) - n_nan
    return _Counted(keys, counts, top, bottom, orders.size, int(n_zero), int(n_nan), int(n_inf))


def _count_by_table(
    bits: KeyArray, mantissa_bits: int, keep: int, floors: OrderArray, scratch: CountScratch
) -> _Counted:
    """Count at most DENSE_CHUNK patterns; once more in the wide table alone where the narrow one wrapped."""
    if mantissa_bits >= NARROW_MANTISSA_BITS:
        counted, total = _count_dense(bits, mantissa_bits, keep, floors, scratch, careful=False)
        if total == bits.size:
            return counted
    return _count_dense(bits, mantissa_bits, keep, floors, scratch, careful=True)[0]


def _count_dense(
    bits: KeyArray, mantissa_bits: int, keep: int, floors: OrderArray, scratch: CountScratch, *, careful: bool
) -> tuple[_Counted, int]:
    """Return what was counted and how many values that is: fewer than there are where a 16-bit count wrapped."""
    shift = np.uint32(FLOAT32_MANTISSA_BITS - mantissa_bits)
    maxima, minima = (np.empty(-(-bits.size // _kernels.BLOCK), np.int32) for _ in range(2))
    n_zero, n_inf, low, high, spread = _kernels.count_dense(
        bits, shift, scratch.table, scratch.lanes, careful, maxima, minima
    )
    keys, counts, n_infinite = _drain(scratch, spread, low, high, mantissa_bits)
    total = int(counts.sum()) + n_zero + n_infinite
    if total != bits.size:
        return _Counted(keys, counts, _no_runs(), _no_runs(), bits.size, n_zero, n_infinite - n_inf, n_inf), total
    found = _floors_from_bins(keys, counts, n_zero, mantissa_bits, keep)
    top = _collect(bits, maxima, 0, max(floors[0], found[0]), keep)
    bottom = _collect(bits, ~minima, -1, max(floors[1], found[1]), keep)
    return _Counted(keys, counts, top, bottom, bits.size, n_zero, n_infinite - n_inf, n_inf), total


def _floors_from_bins(
    keys: KeyArray, counts: Int64Array, n_zero: int, mantissa_bits: int, keep: int
) -> tuple[int, int]:
    """Return what the orders of x and of -x must exceed to be among the `keep` greatest."""
    sign, shift = np.uint32(1 << (8 + mantissa_bits)), FLOAT32_MANTISSA_BITS - mantissa_bits
    split = int(np.searchsorted(keys, sign))
    above, below = (keys[:split], counts[:split]), (keys[split:] - sign, counts[split:])
    top = _kernels.floor_order(*above, n_zero, *below, shift, keep)
    return top, _kernels.floor_order(*below, n_zero, *above, shift, keep)


def _collect(bits: KeyArray, maxima: OrderArray, flip: int, floor: int, keep: int) -> tuple[OrderArray, Int64Array]:
    buffer = np.empty(2 * keep + 4 * _kernels.BLOCK, np.int32)
    used = _kernels.collect_top(bits, maxima, np.int32(flip), np.int32(floor), keep, buffer)
    return _kernels.top_runs(np.sort(buffer[:used]), used, keep)


def _drain(
    scratch: CountScratch, spread: bool, low: int, high: int, mantissa_bits: int
) -> tuple[KeyArray, Int64Array, int]:
    """Empty the tables; return keys and counts of the finite values and the number of the others."""
    sign, infinite = 1 << (8 + mantissa_bits), 255 << mantissa_bits
    finite, others = [], 0
    for base in (0, sign):
        keys, counts = _kernels.drain(scratch.table, scratch.lanes, spread, base + low, base + high)
        end = int(np.searchsorted(keys, np.uint32(base + infinite)))
        finite.append((keys[:end], counts[:end]))
        others += int(counts[end:].sum())
    keys, counts = (np.concatenate(parts) for parts in zip(*finite, strict=True))
    return keys, counts, others


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
        self._keys: KeyArray = np.empty(0, np.uint32)
        self._counts: Int64Array = np.empty(0, np.int64)
        self._top, self._bottom = _no_runs(), _no_runs()
        self._n = self._n_zero = self._n_nan = self._n_inf = 0

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
        bits = _as_bits(array)
        if bits.size < DENSE_SIZE:
            self._absorb(_count_by_sorting(bits, self._shift, self._extremes_kept))
            return
        parts = np.array_split(bits, min(threads, bits.size // DENSE_SIZE))
        if len(parts) == 1:
            self._update_part(bits, scratch)
            return
        others = [type(self)(self._mantissa_bits, self._extremes_kept) for _ in parts[1:]]
        scratches = [scratch, *(None for _ in others)]
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(type(self)._update_part, [self, *others], parts, scratches))
        for other in others:
            self._absorb(other._counted())

    def _update_part(self, bits: KeyArray, scratch: CountScratch | None) -> None:
        """Count patterns of one thread, a chunk at a time."""
        with _lent(scratch) as tables:
            for start in range(0, bits.size, DENSE_CHUNK):
                chunk = bits[start : start + DENSE_CHUNK]
                self._absorb(_count_by_table(chunk, self._mantissa_bits, self._extremes_kept, self._floors(), tables))

    def _floors(self) -> OrderArray:
        """Return the orders of x and of -x that a value must exceed to change the extremes."""
        lowest = ~_kernels.INFINITY_ORDER
        sides = (self._top, self._bottom)
        return np.array([v[-1] if int(c.sum()) == self._extremes_kept else lowest for v, c in sides], np.int32)

    def _absorb(self, counted: _Counted) -> None:
        keep = self._extremes_kept
        if self._keys.size:
            self._keys, self._counts = _kernels.merge_pairs(self._keys, self._counts, counted.keys, counted.counts)
        else:
            self._keys, self._counts = counted.keys, counted.counts
        self._top = _kernels.merge_top(*self._top, *counted.top, keep)
        self._bottom = _kernels.merge_top(*self._bottom, *counted.bottom, keep)
        self._n += counted.n
        self._n_zero += counted.n_zero
        self._n_nan += counted.n_nan
        self._n_inf += counted.n_inf

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
        merged._absorb(self._counted())
        merged._absorb(other._counted())
        return merged

    def _counted(self) -> _Counted:
        return _Counted(
            self._keys, self._counts, self._top, self._bottom, self._n, self._n_zero, self._n_nan, self._n_inf
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same tables."""
        if not isinstance(other, LogLinearHistogram):
            return NotImplemented
        mine, theirs = self.to_tables(), other.to_tables()
        return all(a.equals(b) for a, b in zip(mine, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"LogLinearHistogram(n={self.n}, minimum={self.minimum}, maximum={self.maximum}, bins={self._keys.size})"

    @property
    def _shift(self) -> int:
        return FLOAT32_MANTISSA_BITS - self._mantissa_bits

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
        return self._n

    @property
    def n_zero(self) -> int:
        """Number of zeros of either sign."""
        return self._n_zero

    @property
    def n_nan(self) -> int:
        """Number of NaN."""
        return self._n_nan

    @property
    def n_inf(self) -> int:
        """Number of infinities of either sign."""
        return self._n_inf

    @property
    def n_finite(self) -> int:
        """Number of finite values, zeros included."""
        return self._n - self._n_nan - self._n_inf

    @property
    def minimum(self) -> float:
        """Least finite value, exact; NaN where there is none."""
        return float(self.smallest[0][0]) if self.n_finite else math.nan

    @property
    def maximum(self) -> float:
        """Greatest finite value, exact; NaN where there is none."""
        return float(self.largest[0][0]) if self.n_finite else math.nan

    @property
    def keys(self) -> KeyArray:
        """Keys of the occupied bins, shape (B,), ascending: ``bits >> (23 - mantissa_bits)``; zero has none."""
        return self._keys

    @property
    def counts(self) -> Int64Array:
        """Counts of the occupied bins, shape (B,)."""
        return self._counts

    @property
    def largest(self) -> tuple[Float32Array, Int64Array]:
        """The K greatest finite values, descending, with their counts; the last count is cut so that they sum to K."""
        orders, counts = self._with_zeros(self._top)
        return _kernels.order_values(orders), counts

    @property
    def smallest(self) -> tuple[Float32Array, Int64Array]:
        """The K least finite values, ascending, with their counts; the last count is cut so that they sum to K."""
        orders, counts = self._with_zeros(self._bottom)
        return _kernels.order_values(~orders), counts

    def _with_zeros(self, runs: tuple[OrderArray, Int64Array]) -> tuple[OrderArray, Int64Array]:
        if self._n_zero == 0:
            return runs
        zeros = np.zeros(1, np.int32), np.array([self._n_zero], np.int64)
        return _kernels.merge_top(*runs, *zeros, self._extremes_kept)

    def to_tables(self) -> HistogramTables:
        """Return the histogram as three frames; nothing is lost.

        `extremes_kept` is implied wherever values were left out.
        """
        largest, smallest = self.largest, self.smallest
        extremes = pl.DataFrame(
            {
                "side": ["max"] * largest[0].size + ["min"] * smallest[0].size,
                "value": np.concatenate([largest[0], smallest[0]]),
                "count": np.concatenate([largest[1], smallest[1]]),
            },
            schema={"side": pl.String, "value": pl.Float32, "count": pl.Int64},
        )
        histogram = pl.DataFrame({"key": self._keys, "count": self._counts})
        return HistogramTables(histogram, extremes, pl.DataFrame([self.counters()], schema=_COUNTERS))

    def counters(self) -> dict[str, int | float | None]:
        """Return n, n_zero, n_nan, n_inf, min, max (None where no value is finite) and mantissa_bits."""
        finite = self.n_finite > 0
        return {
            "n": self._n,
            "n_zero": self._n_zero,
            "n_nan": self._n_nan,
            "n_inf": self._n_inf,
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
        row = _counters_row(counters)
        _require_columns("histogram", histogram, ("key", "count"))
        _require_columns("extremes", extremes, ("side", "value", "count"))
        finite = row["n"] - row["n_nan"] - row["n_inf"]
        result = cls(row["mantissa_bits"], extremes_kept or _implied_extremes(extremes, finite))
        pairs = histogram.sort("key")
        result._absorb(
            _Counted(
                pairs["key"].cast(pl.UInt32).to_numpy(),
                pairs["count"].cast(pl.Int64).to_numpy(),
                _top_from_table(extremes, "max"),
                _top_from_table(extremes, "min"),
                row["n"],
                row["n_zero"],
                row["n_nan"],
                row["n_inf"],
            )
        )
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
            return _ranked(self.largest if side == "max" else self.smallest, rank)
        if opposite <= self._extremes_kept:
            return _ranked(self.smallest if side == "max" else self.largest, opposite)
        return self._binned_percentile(rank, side)

    def percentile_is_exact(self, p: float, side: Side = "max") -> bool:
        """Return whether `percentile` is the exact order statistic: among the K extremes of a side, or zero."""
        rank = self._rank(p, side)
        held = min(rank, self.n_finite + 1 - rank) <= self._extremes_kept
        return held or self._binned_percentile(rank, side) == 0.0

    def _rank(self, p: float, side: Side) -> int:
        if side not in ("max", "min"):
            message = f"percentile: side is {side!r}; expected 'max' or 'min'"
            raise ConfigError(message)
        if not 0.0 <= p <= 1.0:
            message = f"percentile: p is {p}; expected 0 to 1"
            raise ConfigError(message)
        self._require_finite("percentile")
        if 1.0 - p < FLT_EPSILON:
            return 1
        return max(1, self.n_finite - math.floor(p * self.n_finite))

    def _binned_percentile(self, rank: int, side: Side) -> float:
        keys, counts = self._keys_by_value()
        if side == "max":
            keys, counts = keys[::-1], counts[::-1]
        key = keys[np.searchsorted(np.cumsum(counts), rank)]
        if key < 0:
            return 0.0
        middle = np.array([(int(key) << self._shift) | (1 << self._shift >> 1)], np.uint32).view(np.float32)
        return min(max(float(middle[0]), self.minimum), self.maximum)

    def _keys_by_value(self) -> tuple[Int64Array, Int64Array]:
        """Return keys and counts ascending in value; the zeros have key -1."""
        split = int(np.searchsorted(self._keys, np.uint32(1 << (8 + self._mantissa_bits))))
        zero = np.full(1 if self._n_zero else 0, -1, np.int64)
        keys = np.concatenate([self._keys[split:][::-1].astype(np.int64), zero, self._keys[:split].astype(np.int64)])
        zeros = np.full(zero.size, self._n_zero, np.int64)
        return keys, np.concatenate([self._counts[split:][::-1], zeros, self._counts[:split]])

    def bins(self) -> Bins:
        """Return the occupied bins as intervals ``lower <= x <= upper``, ascending in value.

        The zeros are one bin [0, 0]; the outermost bins end at the exact minimum and maximum. Neighbouring bins share
        their edge; the edge belongs to the bin of greater magnitude.

        Example:
            >>> LogLinearHistogram.from_values(np.float32([0, 1.5, -1])).bins().upper.tolist()
            [-1.0, 0.0, 1.5]
        """
        sign_bit = np.uint32(1 << (8 + self._mantissa_bits))
        split = int(np.searchsorted(self._keys, sign_bit))
        ahead, behind = self._keys[:split], self._keys[split:][::-1] ^ sign_bit
        zero = np.zeros(1 if self._n_zero else 0, np.float32)
        lower = np.concatenate([-self._edge(behind + np.uint32(1)), zero, self._edge(ahead)], dtype=np.float64)
        upper = np.concatenate([-self._edge(behind), zero, self._edge(ahead + np.uint32(1))], dtype=np.float64)
        zeros = np.full(zero.size, self._n_zero, np.int64)
        if lower.size:
            lower[0], upper[-1] = self.minimum, self.maximum
        return Bins(lower, upper, np.concatenate([self._counts[split:][::-1], zeros, self._counts[:split]]))

    def _edge(self, magnitude: KeyArray) -> npt.NDArray[np.float32]:
        """Return the value at the lower end of bins of positive sign.

        Above the last finite bin it is infinite; that bin is an outermost one, whose end is an exact extreme instead.
        """
        edges: npt.NDArray[np.float32] = (magnitude << np.uint32(self._shift)).view(np.float32)
        return edges

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
        low, high = self.minimum, self.maximum
        if low == high:
            result = np.zeros(num_of_bins, np.int64)
            result[num_of_bins // 2] = self.n_finite
            return result
        edges = low + np.arange(1, num_of_bins, dtype=np.float64) * ((high - low) / num_of_bins)
        below = _counts_below(self.bins(), edges)
        return np.diff(below, prepend=0, append=self.n_finite)

    def _require_finite(self, what: str) -> None:
        if self.n_finite == 0:
            message = f"{what}: the histogram holds no finite value (n {self._n}, NaN {self._n_nan}, inf {self._n_inf})"
            raise EmptyDataError(message)


_COUNTERS = pl.Schema(
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


def _counts_below(bins: Bins, edges: Float64Array) -> Int64Array:
    """Return how many values lie below each edge, under uniform density inside a bin."""
    before = np.concatenate([[0], np.cumsum(bins.count)])
    cut = np.searchsorted(bins.upper, edges, side="left")
    cut = np.minimum(cut, bins.count.size - 1)
    lower, width = bins.lower[cut], bins.upper[cut] - bins.lower[cut]
    share = np.clip((edges - lower) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, (edges > lower).astype(np.float64))
    return (before[cut] + np.rint(share * bins.count[cut]).astype(np.int64)).astype(np.int64)


def _ranked(extremes: tuple[Float32Array, Int64Array], rank: int) -> float:
    """Return the value at a rank (from 1) of a multiset."""
    values, counts = extremes
    return float(values[np.searchsorted(np.cumsum(counts), rank)])


def _require_columns(table: str, frame: pl.DataFrame, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        message = f"table {table}: columns missing {missing}, found {frame.columns}"
        raise SchemaError(message)


def _counters_row(counters: pl.DataFrame) -> dict[str, int]:
    names = ("n", "n_zero", "n_nan", "n_inf", "mantissa_bits")
    _require_columns("counters", counters, names)
    if counters.height != 1:
        message = f"table counters: {counters.height} rows; expected one"
        raise SchemaError(message)
    row = counters.select(names).row(0)
    return dict(zip(names, map(int, row), strict=True))


def _implied_extremes(extremes: pl.DataFrame, finite: int) -> int:
    held = int(extremes.filter(pl.col("side") == "max")["count"].sum())
    return held if 0 < held < finite else max(held, EXTREMES_KEPT)


def _top_from_table(extremes: pl.DataFrame, side: Side) -> tuple[OrderArray, Int64Array]:
    """Return one side of an extremes table as descending orders (of -x for the minimum), zeros left out."""
    rows = extremes.filter((pl.col("side") == side) & (pl.col("value") != 0))
    bits = rows["value"].cast(pl.Float32).to_numpy().view(np.int32)
    orders = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    orders = orders if side == "max" else ~orders
    position = np.argsort(~orders, kind="stable")
    return orders[position], rows["count"].cast(pl.Int64).to_numpy()[position]
