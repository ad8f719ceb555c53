"""What a capture must write, from the outputs of one plain session of onnxruntime and naive arithmetic.

A twin of a tensor holds its samples as onnxruntime gives them, one at a time, in the model's own layout; the expected tables are
those of `naive`. Nothing here calls what captures.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import naive
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import polars as pl
from capturing import captured, table

from calibrant.ingest.session import session_options

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]

SECOND_AXIS = ("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool")
COUNTS = ("n", "n_zero", "n_nan", "n_inf")


def bits(value: float | None) -> int | None:
    """The pattern of a float64, so that zeros of both signs differ; nothing (None or NaN) equals nothing."""
    return None if value is None or math.isnan(value) else int(struct.unpack("<Q", struct.pack("<d", value))[0])


def all_bits(values: Sequence[float | None]) -> list[int | None]:
    return [bits(value) for value in values]


class TensorTwin:
    """A captured tensor: its samples, and what the tables say of them.

    Args:
        name: of the value.
        samples: one array each, as the model computes them alone.
        channel_axis: of the arrays.
        is_constant: the same for every sample, counted once.
    """

    def __init__(self, name: str, samples: Sequence[Array], channel_axis: int, *, is_constant: bool) -> None:
        self.name = name
        self.samples = [samples[0]] if is_constant else list(samples)
        self.channel_axis = channel_axis
        self.is_constant = is_constant

    @cached_property
    def histogram(self) -> naive.Histogram:
        return naive.histogram(np.concatenate([sample.ravel() for sample in self.samples]))

    @cached_property
    def moments(self) -> list[naive.Moments]:
        return [naive.moments(sample, self.channel_axis) for sample in self.samples]

    @cached_property
    def channels(self) -> list[naive.Moments]:
        return naive.channel_moments(self.samples, self.channel_axis)

    def in_order(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of a sample's number in a run and here."""
        return [(-1, 0)] if self.is_constant else list(enumerate(order))


# --- the plain session -------------------------------------------------------------------------------------------


def values_read(node: onnx.NodeProto) -> set[str]:
    """The inputs of a node and of all nodes in its branches."""
    branches = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return set(node.input).union(*(values_read(inner) for branch in branches for inner in branch.node))


def exposing(prepared: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The prepared model with these outputs alone, and no node that they do not need."""
    wanted, kept = set(names), []
    for node in reversed(prepared.graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= values_read(node)
    copy = onnx.ModelProto()
    copy.CopyFrom(prepared)
    for values in (copy.graph.node, copy.graph.output, copy.graph.initializer):
        del values[:]
    copy.graph.node.extend(kept[::-1])
    copy.graph.initializer.extend(one for one in prepared.graph.initializer if one.name in wanted)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


def plain_session(proto: onnx.ModelProto, names: Sequence[str]) -> ort.InferenceSession:
    options = session_options()
    options.intra_op_num_threads = 1
    source = exposing(proto, names).SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def fixed_batch(proto: onnx.ModelProto) -> int:
    """The number that stands for the batch, or 1 where it is free."""
    return proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1


def one_at_a_time(proto: onnx.ModelProto, names: Sequence[str], feeds: Sequence[Feed]) -> dict[str, list[Array]]:
    """Every tensor of every sample; a model of a fixed batch sees the sample repeated."""
    inputs = {value.name for value in proto.graph.input}
    exposed, batch = [name for name in names if name not in inputs], fixed_batch(proto)
    session = plain_session(proto, exposed) if exposed else None
    found: dict[str, list[Array]] = {name: [] for name in names}
    for feed in feeds:
        repeated = {name: np.repeat(array, batch, axis=0) if batch > 1 else array for name, array in feed.items()}
        outputs = session.run(exposed, repeated) if session else []
        for name, array in [*feed.items(), *zip(exposed, outputs, strict=True)]:
            if name in found:
                found[name].append(array[: len(array) // batch] if batch > 1 and name in exposed else array)
    return found


def channel_axis_of(proto: onnx.ModelProto, name: str, rank: int) -> int:
    """Axis 1 or the last, as the first layer that reads the tensor has it; 1 where none does."""
    layers = (*SECOND_AXIS, "Gemm", "MatMul")
    readers = [node.op_type for node in proto.graph.node if node.op_type in layers and node.input[0] == name]
    return rank - 1 if readers and readers[0] not in SECOND_AXIS else 1


def twins(
    prepared: Path, names: Sequence[str], feeds: Sequence[Feed], constant: Sequence[str] = ()
) -> list[TensorTwin]:
    """Twins of these tensors of a prepared model."""
    proto = onnx.load(prepared)
    arrays = one_at_a_time(proto, names, feeds)
    return [
        TensorTwin(name, arrays[name], channel_axis_of(proto, name, arrays[name][0].ndim), is_constant=name in constant)
        for name in names
    ]


# --- the comparison ----------------------------------------------------------------------------------------------


def assert_tables_are(folder: Path, expected: Sequence[TensorTwin], order: Sequence[int]) -> None:
    """Compare tensors, histograms, extremes, channels and samples of a run, whose samples are the twins' in this order."""
    names = ("tensors", "histograms", "extremes", "channels", "samples")
    frames = {name: table(folder, name) for name in names}
    assert frames["tensors"]["tensor"].to_list() == [twin.name for twin in expected]
    for name, frame in frames.items():
        assert frame["tensor_id"].is_sorted(), name
    for tensor_id, twin in enumerate(expected):
        own = {name: frame.filter(tensor_id=tensor_id) for name, frame in frames.items()}
        assert_tensor(own["tensors"].row(0, named=True), twin)
        assert_histogram(own["histograms"], own["extremes"], twin)
        assert_channels(own["channels"], twin)
        assert_samples(own["samples"], twin, order)


def assert_tensor(row: Mapping[str, Any], twin: TensorTwin) -> None:
    whole, first = twin.histogram, twin.samples[0]
    assert [row[column] for column in COUNTS] == [whole.n, whole.n_zero, whole.n_nan, whole.n_inf], twin.name
    assert all_bits([row["min"], row["max"]]) == all_bits([whole.minimum, whole.maximum]), twin.name
    assert (row["dtype"], row["rank"], row["channel_axis"]) == (str(first.dtype), first.ndim, twin.channel_axis), (
        twin.name
    )
    assert row["sample_axis"] is None or not twin.is_constant, twin.name


def assert_histogram(bins: pl.DataFrame, extremes: pl.DataFrame, twin: TensorTwin) -> None:
    assert bins.select("key", "count").rows() == list(twin.histogram.counts.items()), twin.name
    for side, truth in (("max", twin.histogram.largest), ("min", twin.histogram.smallest)):
        rows = extremes.filter(side=side).select("value", "count").rows()
        assert [(bits(value), count) for value, count in rows] == [(bits(value), count) for value, count in truth], (
            twin.name
        )


def assert_channels(frame: pl.DataFrame, twin: TensorTwin) -> None:
    assert frame["channel"].to_list() == list(range(len(twin.channels))), twin.name
    for row, truth in zip(frame.iter_rows(named=True), twin.channels, strict=True):
        reach = max(abs(truth.minimum), abs(truth.maximum))
        found = [row[column] for column in ("min", "max", "abs_max", "sum", "sum_sq")]
        assert row["n"] == truth.n, twin.name
        told = [truth.minimum, truth.maximum, reach, truth.total, truth.total_squares]
        assert all_bits(found) == all_bits(told), (twin.name, row, truth)


def assert_samples(frame: pl.DataFrame, twin: TensorTwin, order: Sequence[int]) -> None:
    pairs = twin.in_order(order)
    assert frame["sample"].to_list() == [number for number, _ in pairs], twin.name
    for row, (_, index) in zip(frame.iter_rows(named=True), pairs, strict=True):
        truth = twin.moments[index]
        assert [row[column] for column in COUNTS] == list(truth[:4]), (twin.name, row)
        found = [row[column] for column in ("min", "max", "sum", "sum_sq")]
        assert all_bits(found) == all_bits(truth[4:]), (twin.name, row, truth)


def assert_activations_are(
    folder: Path, expected: Sequence[TensorTwin], order: Sequence[int], kept: int | None
) -> None:
    """Compare the raw files: all samples, or the `kept` of least content key, in the model's own layout."""
    keys = table(folder, "inputs").sort("key", "sample")["sample"].to_list()
    numbers = sorted(keys if kept is None else keys[:kept])
    for tensor_id, twin in enumerate(expected):
        wanted = [(number, index) for number, index in twin.in_order(order) if number in (-1, *numbers)]
        rows = captured(folder, tensor_id)
        assert list(rows) == [number for number, _ in wanted], twin.name
        for number, index in wanted:
            sample = twin.samples[index]
            assert (rows[number].shape, rows[number].dtype) == (sample.shape, sample.dtype), twin.name
            assert rows[number].tobytes() == sample.tobytes(), (twin.name, number)


# --- many values -------------------------------------------------------------------------------------------------


def lane_sums(runs: Array) -> Array:
    """The sums of runs along the last axis in sixteen lanes, as `naive.run_sum`, for many runs at once."""
    missing = -runs.shape[-1] % 16
    padded = np.pad(runs.astype(np.float64), [(0, 0)] * (runs.ndim - 1) + [(0, missing)])
    lanes = np.zeros((*runs.shape[:-1], 16))
    for start in range(0, padded.shape[-1], 16):
        lanes = lanes + padded[..., start : start + 16]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


class WideTwin(TensorTwin):
    """A twin of finite images with many values, whose arithmetic is numpy's, in the order that `naive` has."""

    @cached_property
    def histogram(self) -> naive.Histogram:
        values = np.concatenate([sample.ravel() for sample in self.samples]) + np.float32(0)
        counts = np.bincount(values[values != 0].view(np.uint32) >> 10)
        largest = np.sort(np.partition(values, -4096)[-4096:])[::-1]
        smallest = np.sort(np.partition(values, 4095)[:4096])
        return naive.Histogram(
            {int(key): int(counts[key]) for key in np.flatnonzero(counts)},
            values.size, int(np.count_nonzero(values == 0)), 0, 0, float(smallest[0]), float(largest[0]),
            naive.multiset(largest.tolist(), 4096), naive.multiset(smallest.tolist(), 4096),
        )  # fmt: skip

    @cached_property
    def channel_sums(self) -> Array:
        """Sums and sums of squares of [sample, power, channel]."""
        runs = np.stack([sample.reshape(sample.shape[1], -1) for sample in self.samples])
        return np.stack([lane_sums(runs), lane_sums(runs.astype(np.float64) ** 2)], axis=1)

    @cached_property
    def moments(self) -> list[naive.Moments]:
        sums = [[naive.ordered_sum(power.tolist()) for power in sample] for sample in self.channel_sums]
        return [_moments(sample, *told) for sample, told in zip(self.samples, sums, strict=True)]

    @cached_property
    def channels(self) -> list[naive.Moments]:
        whole = np.stack(self.samples)[:, 0]
        return [
            _moments(whole[:, c], *(naive.exact_sum(self.channel_sums[:, power, c].tolist()) for power in (0, 1)))
            for c in range(whole.shape[1])
        ]


def _moments(values: Array, total: float, squares: float) -> naive.Moments:
    least, greatest = float(values.min()) + 0.0, float(values.max()) + 0.0
    return naive.Moments(values.size, int(np.count_nonzero(values == 0)), 0, 0, least, greatest, total, squares)


def wide(found: Sequence[TensorTwin]) -> list[TensorTwin]:
    """The same twins for many values."""
    return [WideTwin(twin.name, twin.samples, twin.channel_axis, is_constant=False) for twin in found]
