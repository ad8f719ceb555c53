"""The samples and channels of a layer that stand out."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.export.metrics import decibels, power_and_noise
from calibrant.layer_page.page import ChannelNote, SampleNote
from calibrant.layer_page.rows import LayerRows
from calibrant.quantizers.affine import code_range
from calibrant.stats.captures import read_capture_rows
from calibrant.stats.input_channels import divided
from calibrant.stats.keep import Keep

_SHOWN: Final = 3  # of a kind
_READ: Final = 256  # samples whose raw activations are read for one page


def sample_notes(rows: LayerRows) -> tuple[tuple[SampleNote, ...], bool]:
    """Return the samples that set the range and those of lowest SQNR, and whether these were computed from raw activations."""
    if rows.tensor is None or rows.samples.is_empty():
        return (), False
    exact = _exact_sqnr(rows)
    lowest = exact if exact is not None else _estimated_sqnr(rows)
    how = "" if exact is not None else " (estimated)"
    ranked = sorted(lowest.items(), key=lambda item: (item[1], item[0]))[:_SHOWN]
    found = [*_extremes(rows), *((sample, f"lowest SQNR{how}: {value:.1f} dB") for sample, value in ranked)]
    sources = _sources(rows)
    return tuple(SampleNote(sample, sources.get(sample, ""), why) for sample, why in found), exact is not None


def _extremes(rows: LayerRows) -> Iterator[tuple[int, str]]:
    """Say which sample sets each end of the range, and where the end would be without it."""
    for side, descending in (("max", True), ("min", False)):
        ordered = rows.samples.drop_nulls(side).sort(side, "sample", descending=[descending, False])
        reached = ordered.select("sample", side).head(2).rows()
        if len(reached) == 1:
            yield reached[0][0], f"sets the {side}imum {reached[0][1]:.6g}"
        if len(reached) == 2 and reached[0][1] != reached[1][1]:  # where several reach the same end, no sample sets it
            yield reached[0][0], f"sets the {side}imum {reached[0][1]:.6g}; without it {reached[1][1]:.6g}"


def _sources(rows: LayerRows) -> dict[int, str]:
    inputs = rows.run.read("inputs").select("sample", "source", "position")
    return {sample: f"{source}[{position}]" for sample, source, position in inputs.iter_rows()}


def _estimated_sqnr(rows: LayerRows) -> dict[int, float]:
    """Return each sample's signal over the noise that its values have on average."""
    if rows.data is None or rows.factors.size:
        return {}
    mse = rows.data["mse"]
    return {row["sample"]: decibels(row["sum_sq"], mse * row["n"]) for row in rows.samples.iter_rows(named=True)}


def _exact_sqnr(rows: LayerRows) -> dict[int, float] | None:
    """Return each sample's SQNR from its raw activations; None where they were not kept."""
    if rows.data is None or rows.tensor is None or not Keep.parse(rows.run.info.keep).has_raw:
        return None
    wanted = frozenset(rows.samples["sample"].head(_READ).to_list())
    found: dict[int, float] = {}
    for numbers, values in read_capture_rows(rows.run.path, rows.tensor["tensor_id"], wanted):
        for number, array in zip(numbers, values, strict=True):
            if int(number) in wanted:
                found[int(number)] = decibels(*_noise(rows, array))
    return found or None


def _noise(rows: LayerRows, array: npt.NDArray[np.floating]) -> tuple[float, float]:
    """Return power and noise of one sample after the layer's quantizer."""
    chosen = rows.data or {}
    values = divided(array[None], rows.factors, rows.layer["op_type"])[0] if rows.factors.size else array
    x, (low, high) = np.asarray(values, np.float64), code_range(chosen["bits"])
    codes = np.clip(np.rint(x / chosen["scale"]) + chosen["offset"], low, high)
    return power_and_noise(x, (codes - chosen["offset"]) * chosen["scale"])


def channel_notes(rows: LayerRows) -> tuple[ChannelNote, ...]:
    """Return the channels of data and weight that stand out."""
    return (*_data_channels(rows), *_weight_channels(rows))


def _data_channels(rows: LayerRows) -> Iterator[ChannelNote]:
    """Name the largest input channels, after division where the layer is balanced, and the dead ones."""
    maxima = rows.channels["abs_max"].fill_null(0).to_numpy().astype(np.float64)
    if rows.factors.size == maxima.size and maxima.size:
        maxima = maxima / rows.factors
    alive = maxima[maxima > 0]
    if not alive.size:
        return
    median = float(np.median(alive))
    numbers = rows.channels["channel"].to_list()
    for place in np.argsort(-maxima, kind="stable")[:_SHOWN]:
        if maxima[place] > 0:
            times = maxima[place] / median
            yield ChannelNote(
                "data", numbers[place], f"reaches {maxima[place]:.4g}, {times:.2f} times the median channel"
            )
    dead = [number for number, peak in zip(numbers, maxima, strict=True) if peak == 0]
    if dead:
        more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
        yield ChannelNote("data", dead[0], f"always 0{more}")


def _weight_channels(rows: LayerRows) -> Iterator[ChannelNote]:
    """Name the output channels of lowest SQNR; those whose codes are all 0 are dead, and told in the events."""
    peaks = rows.weights.select("channel", "abs_max")
    alive = rows.weight.join(peaks, on="channel").filter(pl.col("abs_max") > pl.col("scale") / 2)
    ranked = alive.filter(pl.col("sqnr_db").is_finite()).sort("sqnr_db", "channel")
    for row in ranked.head(_SHOWN).iter_rows(named=True):
        yield ChannelNote("weight", row["channel"], f"SQNR {row['sqnr_db']:.1f} dB, scale {row['scale']:.4g}")
