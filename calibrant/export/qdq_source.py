"""A converted model beside its source: samples to run both on, and how near the outputs are."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from calibrant.errors import ExportError, first_line
from calibrant.export.evaluate import open_session
from calibrant.ingest.passes.fix_input import parse_value
from calibrant.ingest.prepared import ModelInput
from calibrant.ingest.qdq.grids import DataGrid
from calibrant.ingest.qdq.prepare import QdqModel
from calibrant.ingest.source import read_model

Array = npt.NDArray[Any]
Feeds = Sequence[Mapping[str, Array]]
_FAILURES = (
    ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph, ort_errors.NotImplemented, ort_errors.RuntimeException,
)  # fmt: skip
_SEED = 20
_CODES = (np.int8, np.uint8)


def random_feeds(model: QdqModel, count: int) -> list[dict[str, Array]]:
    """Make samples that reach the whole range of the model's input scales.

    Returns:
        `count` feeds of one sample; none where a size besides the batch is unknown, or an input holds numbers that mean something
        (whole numbers other than 8-bit codes).
    """
    grids = _input_grids(model)
    draw = np.random.default_rng(_SEED)
    shapes = {one.name: _shape(one) for one in model.prepared.inputs}
    drawable = all(np.issubdtype(one.dtype, np.floating) or one.dtype in _CODES for one in model.prepared.inputs)
    if not drawable or any(shape is None for shape in shapes.values()):
        return []
    return [
        {one.name: _drawn(one, shapes[one.name] or (), grids.get(one.name), draw) for one in model.prepared.inputs}
        for _ in range(count)
    ]


def _shape(one: ModelInput) -> tuple[int, ...] | None:
    sizes = [1 if axis == one.batch_axis and not isinstance(size, int) else size for axis, size in enumerate(one.shape)]
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def _drawn(one: ModelInput, shape: tuple[int, ...], grid: DataGrid | None, draw: np.random.Generator) -> Array:
    if one.dtype in _CODES:
        ends = np.iinfo(np.int8 if one.dtype == np.int8 else np.uint8)
        return draw.integers(ends.min, ends.max, shape, endpoint=True).astype(one.dtype)
    low, high = grid.ends if grid is not None else (np.float32(-1), np.float32(1))
    return draw.uniform(float(low), float(high), shape).astype(one.dtype)


def _input_grids(model: QdqModel) -> dict[str, DataGrid]:
    """Return the grid of each graph input that a pair stands on."""
    graph = model.prepared.model.graph
    uses = [(value, use) for value in graph.inputs for use in value.uses()]
    found = {str(value.name): model.stripped.data.get((str(use.node.name), use.idx)) for value, use in reversed(uses)}
    return {name: grid for name, grid in found.items() if grid is not None}


def source_sqnr_db(source: Path, fixed: Mapping[str, str], fake_quant: Path, feeds: Feeds) -> float:
    """Return the least SQNR of an output of a fake-quant model against its source over all feeds, optimizations off.

    Args:
        source: the model with QuantizeLinear and DequantizeLinear.
        fixed: its inputs that were turned into constants, as texts.
        fake_quant: the model made of it.
        feeds: samples.

    Raises:
        ExportError: onnxruntime cannot run the source.
    """
    values = {str(value.name): value for value in read_model(source).graph.inputs}
    constants = {name: parse_value(values[name], text) for name, text in fixed.items() if name in values}
    try:
        first, second = open_session(source), open_session(fake_quant)
        pairs = [(first.run(None, {**feed, **constants}), second.run(None, dict(feed))) for feed in feeds]
    except _FAILURES as error:
        message = f"onnxruntime cannot run the source model, so that it is not compared: {first_line(error)}"
        raise ExportError(message) from error
    sums = np.zeros((len(pairs[0][0]), 2))
    for wanted, got in pairs:
        sums += [_power(one, other) for one, other in zip(wanted, got, strict=True)]
    return min((_decibels(*row) for row in sums), default=inf)


def _power(wanted: Array, got: Array) -> tuple[float, float]:
    """Return the signal of an output and its noise; uint8 codes become int8 codes in both models."""
    x, y = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    if np.asarray(wanted).dtype == np.uint8 and np.asarray(got).dtype == np.int8:
        x = x - 128
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    noise = np.subtract(x, y, out=np.zeros_like(x), where=~same)
    return float((x[np.isfinite(x)] ** 2).sum()), float((noise**2).sum())


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    return -inf if signal == 0 else float(10 * np.log10(signal / noise))
