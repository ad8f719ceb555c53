"""What scales are searched on: the histograms of a run's tensors, and their raw values where they were kept."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import RunError
from calibrant.fitting.balancing import BalancedLayer
from calibrant.stats.histogram import LogLinearHistogram
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS

FloatArray = npt.NDArray[np.floating]


class RunStatistics:
    """The histograms of a run, each built when a layer asks for it.

    An `owner` below is the layer_id of a layer whose data is balanced for it alone, the name of the Add whose branches share a scale,
    or None.

    Args:
        run: a complete run.
        balanced: layer_id -> the balanced layer.
        joint: name of an Add -> the tensors that share a scale.

    Raises:
        RunError: a table is gone.
    """

    def __init__(self, run: Run, balanced: Mapping[int, BalancedLayer], joint: Mapping[str, tuple[int, ...]]) -> None:
        self._run = run
        self._balanced = balanced
        self._joint = joint
        _require_tables(run, "tensors", "histograms", "extremes")
        self._tensors = {row["tensor_id"]: row for row in run.read("tensors").iter_rows(named=True)}
        self._bins = _by_tensor(run.read("histograms"))
        self._extremes = _by_tensor(run.read("extremes"))

    def name(self, tensor_id: int) -> str:
        """Return the name of a tensor in the prepared model."""
        return str(self._tensors[tensor_id]["tensor"])

    def searched(self, tensor_id: int, owner: int | str | None) -> LogLinearHistogram:
        """Return what a scale is searched on: the tensor's histogram, or that of all tensors which share it."""
        tensors = self._joint[owner] if isinstance(owner, str) else (tensor_id,)
        return reduce(LogLinearHistogram.merge, (self.histogram(one, owner) for one in tensors))

    def histogram(self, tensor_id: int, owner: int | str | None = None) -> LogLinearHistogram:
        """Return the histogram of a tensor, balanced where its owner is a layer."""
        if isinstance(owner, int):
            return self._balanced[owner].histogram
        counters = pl.DataFrame([self._tensors[tensor_id]], schema=SCHEMAS["tensors"])
        names = ("n", "n_zero", "n_nan", "n_inf", "min", "max", "mantissa_bits")
        bins = self._bins.get(tensor_id, pl.DataFrame(schema=SCHEMAS["histograms"])).drop("tensor_id")
        extremes = self._extremes.get(tensor_id, pl.DataFrame(schema=SCHEMAS["extremes"])).drop("tensor_id")
        return LogLinearHistogram.from_tables(bins, extremes, counters.select(names))

    def values(self, tensor_id: int, owner: int | str | None = None) -> "RawValues":
        """Return the captured values of what `searched` counts."""
        tensors = self._joint[owner] if isinstance(owner, str) else (tensor_id,)
        balanced = self._balanced[owner] if isinstance(owner, int) else None
        return RawValues(self._run, [self.name(one) for one in tensors], balanced)


class RawValues:
    """The captured activations of tensors, maybe balanced, read again by each iteration, never all at once."""

    def __init__(self, run: Run, tensors: Sequence[str], balanced: BalancedLayer | None) -> None:
        self._run, self._tensors, self._balanced = run, tensors, balanced

    def __iter__(self) -> Iterator[FloatArray]:
        arrays = (np.asarray(array) for tensor in self._tensors for _, array in self._run.captures(tensor))
        return arrays if self._balanced is None else map(self._balanced.data, arrays)


def _require_tables(run: Run, *tables: str) -> None:
    for table in tables:
        if not run.table_files(table):
            message = f"{run.path}: the table '{table}' is gone; make it again with calibrant stats, or capture with --restart"
            raise RunError(message)


def _by_tensor(frame: pl.DataFrame) -> dict[int, pl.DataFrame]:
    parts = frame.partition_by("tensor_id", as_dict=True, maintain_order=True)
    return {int(key[0]): part for key, part in parts.items()}
