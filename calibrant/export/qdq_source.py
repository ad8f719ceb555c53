"""A converted model beside its source: samples to run both on, and how near the outputs are."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from calibrant.errors import DataError, ExportError
from calibrant.export.evaluate import open_session
from calibrant.export.external_data import load_model
from calibrant.export.isolated import IsolatedLayer, open_isolated
from calibrant.export.partial import encode_parts
from calibrant.export.proto_graph import run_session, session_of
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.ingest.passes.fix_input import parse_value
from calibrant.ingest.prepared import ModelInput, PreparedModel
from calibrant.ingest.qdq.grids import DataGrid
from calibrant.ingest.qdq.prepare import QdqModel
from calibrant.ingest.source import read_model

Array = npt.NDArray[Any]
Feeds = Sequence[Mapping[str, Array]]
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


@dataclass(frozen=True)
class SourceDistance:
    """How near a converted model is to its source, onnxruntime's optimizations off; infinite where nothing differs.

    Attributes:
        sqnr_db: least SQNR of an output of the whole models.
        layers: SQNR of each quantized layer alone on the source's own data, by name; without those whose data or output the source
            does not hold under that name.
    """

    sqnr_db: float
    layers: Mapping[str, float]


def distance_from_source(
    source: Path,
    fixed: Mapping[str, str],
    model: QdqModel,
    layers: Sequence[QuantizedLayer],
    fake_quant: Path,
    feeds: Feeds,
) -> SourceDistance:
    """Run a model with QuantizeLinear and DequantizeLinear and what was made of it on the same samples.

    Args:
        source: the model.
        fixed: its inputs that were turned into constants, as texts.
        model: the model without its pairs.
        layers: the layers that were quantized.
        fake_quant: the fake-quant model.
        feeds: samples.

    Raises:
        ExportError: onnxruntime cannot run the source.
    """
    values = {str(value.name): value for value in read_model(source).graph.inputs}
    constants = {name: parse_value(values[name], text) for name, text in fixed.items() if name in values}
    proto = load_model(source)
    outputs = [value.name for value in proto.graph.output]
    alone = _isolated(model.prepared, layers, {name for node in proto.graph.node for name in node.output} | set(values))
    wanted = sorted({name for one in alone for name in (one.layer.tensor, _output(one))} - set(outputs) - set(values))
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    whole, single = np.zeros((len(outputs), 2)), {one.layer.name: np.zeros(2) for one in alone}
    first, second = _sessions(proto, fake_quant)
    for feed in feeds:
        found = dict(zip([*outputs, *wanted], _run(first, [*outputs, *wanted], {**feed, **constants}), strict=True))
        got = run_session(second, outputs, feed)
        whole += [_power(found[name], other) for name, other in zip(outputs, got, strict=True)]
        for one in alone:
            data = feed if one.layer.tensor in feed else found
            _, other = one.outputs((data[one.layer.tensor],))
            single[one.layer.name] += _power(found[_output(one)], other)
    return SourceDistance(
        min((_decibels(*row) for row in whole), default=inf), {name: _decibels(*sums) for name, sums in single.items()}
    )


def _isolated(prepared: PreparedModel, layers: Sequence[QuantizedLayer], known: Collection[str]) -> list[IsolatedLayer]:
    """Cut out the layers whose data and output the source holds."""
    parts = encode_parts(prepared, layers)
    cut = [open_isolated(prepared, parts, one.layer) for one in layers if one.layer.tensor in known]
    return [one for one in cut if _output(one) in known]


def _output(one: IsolatedLayer) -> str:
    return str(one.quantized.get_outputs()[0].name)


def _sessions(proto: onnx.ModelProto, fake_quant: Path) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    try:
        return session_of(proto), open_session(fake_quant)
    except ExportError as error:
        message = f"{error} (the source model, so that it is not compared)"
        raise ExportError(message) from error


def _run(session: ort.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    try:
        return run_session(session, outputs, feeds)
    except DataError as error:
        message = f"{error} (the source model, so that it is not compared)"
        raise ExportError(message) from error


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
