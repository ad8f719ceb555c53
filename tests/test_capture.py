"""Capture: the right values in the right rows, whatever the grouping, and no wrong value in silence."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from capturing import assert_same_tables, capture, captured, feeds_of, keyed_samples, nothing_left, prepare, table
from shared_material import needs_shared, shared_inputs, shared_model

from calibrant.errors import ConfigError, DataError, EmptyDataError, ModelError, RunError
from calibrant.ingest import capture_plan, writer
from calibrant.ingest import session as session_module
from calibrant.ingest.capture import CaptureOptions, capture_activations
from calibrant.ingest.cores import core_count
from calibrant.ingest.data import open_data
from calibrant.ingest.fold import TensorFold
from calibrant.ingest.model import load_prepared
from calibrant.ingest.recorder import Recorder
from calibrant.ingest.samples import fingerprint_of_keys
from calibrant.ingest.scratch_pool import ScratchPool
from calibrant.ingest.second_pass import SecondPass
from calibrant.ingest.session import ActivationSession
from calibrant.ingest.verify_inputs import load_verify_inputs
from calibrant.ingest.writer import CaptureWriter
from calibrant.stats.captures import CaptureInfo
from calibrant.stats.extremes import TopOrders
from calibrant.stats.keep import Keep

Array = npt.NDArray[Any]


def images(count: int, *shape: int, seed: int = 0) -> Array:
    shape = shape or (3, 8, 8)
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def npz(path: Path, **arrays: Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def exposed(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with one more output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.graph.output.append(onnx.ValueInfoProto(name=name))
    return copy


# --- values -------------------------------------------------------------------------------------------------------


def test_rows_hold_what_onnxruntime_computes(tmp_path: Path) -> None:
    proto, x = models.depthwise(3), images(5)
    capture(proto, npz(tmp_path / "x.npz", x=x), tmp_path / "run", batch_size=2)
    first, second = captured(tmp_path / "run", 0), captured(tmp_path / "run", 1)
    assert list(first) == list(second) == list(range(5))
    for i in range(5):
        np.testing.assert_array_equal(first[i], x[i : i + 1])
        (expected,) = models.run(exposed(proto, "r"), {"x": x[i : i + 1]}, ["r"])
        assert second[i].shape == expected.shape
        np.testing.assert_allclose(second[i], expected, rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_the_rows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    capture(models.depthwise(3), npz(tmp_path / "x.npz", x=images(5)), folder, batch_size=2)
    for row in table(folder, "tensors").iter_rows(named=True):
        values = np.stack(list(captured(folder, row["tensor_id"]).values()))
        assert row["n"] == values.size
        assert row["n_zero"] == np.count_nonzero(values == 0)
        assert (row["min"], row["max"]) == (values.min(), values.max())
        counts = table(folder, "histograms").filter(tensor_id=row["tensor_id"])
        keys, expected = np.unique(values[values != 0].view(np.uint32) >> 10, return_counts=True)
        assert counts["key"].to_list() == keys.tolist()
        assert counts["count"].to_list() == expected.tolist()


def test_samples_table_has_a_row_for_each_sample_of_each_tensor(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    capture(models.depthwise(3), npz(tmp_path / "x.npz", x=images(5)), folder, batch_size=2)
    rows = table(folder, "samples")
    assert rows.select("tensor_id", "sample").rows() == [(t, s) for t in range(2) for s in range(5)]
    for tensor_id, sample, low, total in rows.select("tensor_id", "sample", "min", "sum").iter_rows():
        values = captured(folder, tensor_id)[sample]
        assert low == values.min()
        assert total == pytest.approx(values.sum(dtype=np.float64), abs=1e-9)


def test_descriptions_of_tensors_and_layers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = capture(models.depthwise(3), npz(tmp_path / "x.npz", x=images(5)), folder)
    described = table(folder, "tensors").select(
        "tensor_id", "tensor", "dtype", "rank", "sample_axis", "channel_axis", "producer", "is_input"
    )
    assert described.rows() == [
        (0, "x", "float32", 4, 0, 1, "", True),
        (1, "r", "float32", 4, 0, 1, "relu", False),
    ]
    assert result.input_shapes == {"x": (1, 3, 8, 8), "r": (1, 3, 8, 8)}
    # a depthwise 3x3 and a pointwise 3 -> 6 on 8x8
    assert table(folder, "layers").select("layer", "macs").rows() == [("dw", 64 * 3 * 9), ("pw", 64 * 3 * 6)]
    assert table(folder, "weights").select("layer_id", "channel", "n").rows() == [
        *((0, c, 9) for c in range(3)),
        *((1, c, 3) for c in range(6)),
    ]


def test_inputs_table_names_the_samples(tmp_path: Path) -> None:
    folder, x = tmp_path / "run", images(3)
    result = capture(models.conv_relu(), npz(tmp_path / "x.npz", x=x), folder)
    rows = table(folder, "inputs")
    assert rows.select("sample", "source", "position").rows() == [(i, "x.npz", i) for i in range(3)]
    assert rows["key"].n_unique() == 3
    assert result.data_fingerprint == fingerprint_of_keys(rows["key"])
    assert (result.samples, result.batch_size, result.one_by_one, result.events) == (3, 8, False, ())


def test_verify_inputs_are_samples_of_least_key(tmp_path: Path) -> None:
    folder, x = tmp_path / "run", images(9)
    capture(models.conv_relu(), npz(tmp_path / "x.npz", x=x), folder, batch_size=2)
    least = table(folder, "inputs").sort("key")["sample"][:4].to_list()
    for feed, sample in zip(load_verify_inputs(folder), least, strict=True):
        np.testing.assert_array_equal(feed["x"], x[sample : sample + 1])


def test_verify_inputs_of_a_fixed_batch_fill_it(tmp_path: Path) -> None:
    capture(models.fixed_batch(3), [{"x": images(3)}, {"x": images(3, seed=1)}], tmp_path)
    assert [feed["x"].shape for feed in load_verify_inputs(tmp_path)] == [(3, 3, 8, 8)] * 2


def test_captures_survive_a_caller_that_reuses_its_array(tmp_path: Path) -> None:
    """The captured input, and a tensor that onnxruntime may alias to it, keep their values (field problem 7)."""
    nodes = [
        models.node("Conv", ["x", "w"], "c", "conv"),
        models.node("Flatten", ["x"], "f", "flatten"),
        models.node("Gemm", ["f", "v"], "g", "gemm"),
    ]
    weights = {"w": models.normal(2, 3, 3, 3), "v": models.normal(192, 4)}
    outputs = [models.value("c", ["N", 2, 6, 6]), models.value("g", ["N", 4])]
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], outputs, weights)
    x, buffer = images(7), np.empty((1, 3, 8, 8), np.float32)

    def feeds() -> Iterator[dict[str, Array]]:
        for one in x:
            buffer[0] = one
            yield {"x": buffer}
        buffer[:] = np.nan

    capture(proto, feeds(), tmp_path, batch_size=2)
    for tensor_id in (0, 1):
        rows = captured(tmp_path, tensor_id)
        np.testing.assert_array_equal(np.stack([rows[i].ravel() for i in range(7)]), x.reshape(7, -1))


# --- Parquet ------------------------------------------------------------------------------------------------------


def parquet(folder: Path, tensor_id: int = 0) -> pq.ParquetFile:
    return pq.ParquetFile(folder / f"captures/tensor_id={tensor_id}/part-00000.parquet")


def test_static_shapes_are_fixed_size_lists(tmp_path: Path) -> None:
    capture(models.conv_relu(), npz(tmp_path / "x.npz", x=images(3)), tmp_path / "run")
    with parquet(tmp_path / "run") as file:
        assert file.schema_arrow.names == ["sample", "values"]
        assert file.schema_arrow.field("sample").type == pa.int64()
        kind = file.schema_arrow.field("values").type
        assert pa.types.is_fixed_size_list(kind)
        assert (kind.list_size, kind.value_type) == (192, pa.float32())
        assert file.metadata.row_group(0).column(1).compression == "UNCOMPRESSED"


def test_varying_shapes_are_large_lists_with_their_shape(tmp_path: Path) -> None:
    data = [{"x": images(1, 3, size, 6)} for size in (5, 5, 8, 5)]
    capture(models.dynamic_shapes(), data, tmp_path)
    with parquet(tmp_path) as file:
        assert file.schema_arrow.names == ["sample", "values", "shape"]
        assert pa.types.is_large_list(file.schema_arrow.field("values").type)
        assert file.read(["shape"])["shape"].to_pylist() == [[1, 3, s, 6] for s in (5, 5, 8, 5)]
    for sample, row in captured(tmp_path, 0).items():
        np.testing.assert_array_equal(row, data[sample]["x"])


@pytest.mark.parametrize("shape", [(1, 2, 3), None])
def test_float16_rows_are_kept_as_they_are(tmp_path: Path, shape: tuple[int, ...] | None) -> None:
    x = images(5, 1, 2, 3).astype(np.float16)
    file = CaptureWriter(tmp_path, 3, CaptureInfo("t", "float16", 3, 0, shape))
    file.append(range(2), x[:2])
    file.append(range(2, 5), x[2:])
    file.close()
    rows = captured(tmp_path, 3)
    assert rows[0].dtype == np.float16
    np.testing.assert_array_equal(np.stack([rows[i] for i in range(5)]), x)


def test_a_shape_that_the_model_does_not_declare(tmp_path: Path) -> None:
    file = CaptureWriter(tmp_path, 0, CaptureInfo("t", "float32", 2, 0, (1, 4)))
    with pytest.raises(ModelError, match=r"tensor 't': a sample has shape \[1, 5\], the model declares \[1, 4\]"):
        file.append([0], images(1, 1, 5))


def test_other_tools_read_the_captures(tmp_path: Path) -> None:
    x = images(3)
    capture(models.conv_relu(), npz(tmp_path / "x.npz", x=x), tmp_path / "run")
    frame = pl.read_parquet(tmp_path / "run/captures/tensor_id=0/part-00000.parquet")
    np.testing.assert_array_equal(frame["values"].to_numpy(), x.reshape(3, -1))


def test_row_groups_fill_over_batches_and_split_when_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(folder: Path, group_bytes: int) -> list[int]:
        monkeypatch.setattr(writer, "ROW_GROUP_BYTES", group_bytes)
        capture(models.conv_relu(), [{"x": images(20)}], folder, batch_size=4)
        with parquet(folder) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]

    row = 3 * 8 * 8 * 4
    assert groups(tmp_path / "a", 8 * row) == [10, 8, 2]  # two were tried together, then come batches of four
    assert groups(tmp_path / "b", row // 2) == [2] * 10
    assert groups(tmp_path / "c", 100 * row) == [20]


def test_keep_stats_writes_no_activations(tmp_path: Path) -> None:
    raw, stats = tmp_path / "raw", tmp_path / "stats"
    for folder, keep in ((raw, "raw"), (stats, "stats")):
        capture(models.depthwise(3), [{"x": images(5)}], folder, keep=keep)
    assert not list(stats.glob("captures/**/*.parquet"))
    assert_same_tables(raw, stats)
    with pytest.raises(RunError, match="only statistics were kept, capture again with --keep raw"):
        captured(stats, 0)


# --- grouping -----------------------------------------------------------------------------------------------------


def ragged(count: int) -> list[dict[str, Array]]:
    return [{"x": images(1, 3, 5 + i % 3, 6, seed=i)} for i in range(count)]


def state_feeds(count: int) -> list[dict[str, Array]]:
    return [{"x": images(1, 4, seed=i), "state": images(2, 1, 6, seed=99 + i)} for i in range(count)]


GROUPED: list[tuple[str, onnx.ModelProto, list[dict[str, Array]]]] = [
    ("conv", models.depthwise(3), feeds_of({"x": images(9)[:, None]})),
    ("merged axes", models.merged_axes(), feeds_of({"x": images(9, 1, 5, 4)})),
    ("sample axis 1", models.sample_axis_1(), state_feeds(9)),
    ("constant", models.constant_activation(), feeds_of({"x": images(9)[:, None]})),
    ("ragged", models.dynamic_shapes(), ragged(9)),
    ("integers", models.integer_input(), feeds_of({"ids": np.arange(45).reshape(9, 1, 5) % 7})),
    ("attention", models.attention(), feeds_of({"x": images(9, 1, 5, 4)})),
    ("two inputs", models.two_inputs(), feeds_of({"x": images(9)[:, None], "z": images(9, seed=1)[:, None]})),
]


@pytest.mark.parametrize(("proto", "feeds"), [case[1:] for case in GROUPED], ids=[case[0] for case in GROUPED])
def test_grouping_changes_nothing(tmp_path: Path, proto: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    shuffled = [feeds[i] for i in (4, 0, 8, 2, 6, 1, 7, 3, 5)]
    groupings = {"1": (1, feeds), "9": (9, feeds), "reversed 2": (2, feeds[::-1]), "shuffled 4": (4, shuffled)}
    for name, (size, data) in groupings.items():
        result = capture(proto, data, tmp_path / name, batch_size=size)
        assert_same_tables(tmp_path / "1", tmp_path / name)
        assert result.samples == 9
    keys = {name: table(tmp_path / name, "inputs")["key"].sort().to_list() for name in groupings}
    assert all(found == keys["1"] for found in keys.values())


def test_a_fixed_batch_is_filled_and_the_filler_dropped(tmp_path: Path) -> None:
    x = images(5)
    dynamic = capture(models.conv_relu(batch="N"), [{"x": x}], tmp_path / "dynamic")
    fixed = capture(models.fixed_batch(2), npz(tmp_path / "x.npz", x=x), tmp_path / "fixed")
    assert (dynamic.batch_size, fixed.batch_size) == (8, 2)
    for name in ("tensors", "histograms", "extremes", "channels"):
        assert table(tmp_path / "fixed", name).equals(table(tmp_path / "dynamic", name)), name
    assert keyed_samples(tmp_path / "fixed").equals(keyed_samples(tmp_path / "dynamic"))
    messages = [e.message for e in fixed.events]
    assert any("the model takes batches of 2 only" in m for m in messages)
    assert any("5 samples do not fill batches of 2" in m for m in messages)
    with pytest.raises(ConfigError, match="the model takes batches of 2 only"):
        capture(models.fixed_batch(2), [{"x": x}], tmp_path / "other", batch_size=3)


def test_a_model_of_batch_one(tmp_path: Path) -> None:
    x = images(3)
    result = capture(models.fixed_batch(1), npz(tmp_path / "x.npz", x=x), tmp_path / "run")
    assert (result.batch_size, result.one_by_one, result.events) == (1, False, ())
    np.testing.assert_array_equal(np.concatenate(list(captured(tmp_path / "run", 0).values())), x)


def test_a_constant_tensor_is_counted_once(tmp_path: Path) -> None:
    result = capture(models.constant_activation(), [{"x": images(7)}], tmp_path, batch_size=2)
    tensors = {row["tensor"]: row for row in table(tmp_path, "tensors").iter_rows(named=True)}
    assert tensors["rows"]["n"] == 3
    assert tensors["rows"]["sample_axis"] is None
    assert [e.message for e in result.events if e.layer == "rows"] == [
        "tensor 'rows': no sample axis, and equal alone and in a batch of 2: constant, counted once"
    ]
    tensor_id = tensors["rows"]["tensor_id"]
    assert list(captured(tmp_path, tensor_id)) == [-1]
    assert table(tmp_path, "samples").filter(tensor_id=tensor_id)["sample"].to_list() == [-1]


def test_a_model_that_keeps_its_samples_together_runs_one_at_a_time(tmp_path: Path) -> None:
    nodes = [
        models.node("ReduceMean", ["x"], "m", "mean", axes=[0], keepdims=1),
        models.node("Sub", ["x", "m"], "d", "sub"),
        models.node("Conv", ["d", "w"], "y", "conv"),
    ]
    proto = models.model(
        nodes,
        [models.value("x", ["N", 3, 8, 8])],
        [models.value("y", ["N", 4, 6, 6])],
        {"w": models.normal(4, 3, 3, 3)},
    )
    for size in (1, 4):
        result = capture(proto, [{"x": images(6)}], tmp_path / str(size), batch_size=size)
        assert result.one_by_one
        assert [e.severity for e in result.events] == ["warn"]
    assert_same_tables(tmp_path / "1", tmp_path / "4")


def test_a_model_that_refuses_batches_runs_one_at_a_time(tmp_path: Path) -> None:
    nodes = [models.node("Reshape", ["x", "shape"], "r", "reshape"), models.node("Conv", ["r", "w"], "y", "conv")]
    weights = {"w": models.normal(4, 3, 3, 3), "shape": np.array([1, 3, 8, 8])}
    proto = models.model(nodes, [models.value("x", ["N", 192])], [models.value("y", [1, 4, 6, 6])], weights)
    x = images(5, 192)
    result = capture(proto, npz(tmp_path / "x.npz", x=x), tmp_path / "run")
    assert result.one_by_one
    assert "onnxruntime refuses a batch of 2" in result.events[0].message
    np.testing.assert_array_equal(np.stack([v.ravel() for v in captured(tmp_path / "run", 0).values()]), x)


@needs_shared
@pytest.mark.slow
def test_mnist_vit_differs_by_batch_and_its_tables_do_not(tmp_path: Path) -> None:
    with np.load(shared_inputs(tmp_path / "inputs") / "mnist_vit.npz") as arrays:
        x = arrays["input"][:12]
    orders = {"12": (12, np.arange(12)), "1": (1, np.arange(12)), "5": (5, np.arange(12)[::-1])}
    for name, (size, order) in orders.items():
        data = npz(tmp_path / f"{name}.npz", input=x[order])
        result = capture(shared_model("mnist_vit"), data, tmp_path / name, batch_size=size, keep="stats")
        assert result.one_by_one
        assert any("values differ alone and in a batch" in e.message for e in result.events)
        assert_same_tables(tmp_path / "12", tmp_path / name)


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_resnet", "mnist_dwnet"])
def test_convolutional_models_do_not_differ_by_batch(tmp_path: Path, name: str) -> None:
    data = shared_inputs(tmp_path / "inputs") / f"{name}.npz"
    assert not capture(shared_model(name), data, tmp_path / "run", keep="stats").one_by_one


# --- the session --------------------------------------------------------------------------------------------------


def test_only_what_is_needed_is_computed(tmp_path: Path) -> None:
    """The model's own output would fail in onnxruntime; nothing that is captured depends on it (field problem 21)."""
    proto = models.depthwise(3)
    proto.graph.node.append(models.node("Reshape", ["y", "impossible"], "z", "never"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 11]), "impossible"))
    proto.graph.output.append(models.value("z", [7, 11]))
    capture(proto, [{"x": images(3)}], tmp_path)
    assert len(captured(tmp_path, 1)) == 3


def test_a_model_with_external_data(tmp_path: Path) -> None:
    proto, data = models.depthwise(3), [{"x": images(3)}]
    capture(proto, data, tmp_path / "inside")
    prepared = prepare(proto, tmp_path / "outside")
    model = tmp_path / "outside" / "model" / "prepared.onnx"
    ir.save(ir.load(model), model, external_data="prepared.onnx.data", size_threshold_bytes=0)
    files = sorted(p.name for p in model.parent.iterdir())
    source = open_data(data, prepared.inputs)
    capture_activations(prepared, source, tmp_path / "outside", CaptureOptions(), lambda *_: None)
    assert_same_tables(tmp_path / "inside", tmp_path / "outside")
    assert sorted(p.name for p in model.parent.iterdir()) == files


def test_captured_inputs_need_no_session(tmp_path: Path) -> None:
    prepared = prepare(models.conv_relu(), tmp_path)
    session = ActivationSession(tmp_path / "missing.onnx", prepared.tensors)
    x = images(1)
    assert session.run({"x": x})[0] is x


def test_a_prepared_model_that_onnxruntime_cannot_load(tmp_path: Path) -> None:
    prepared = prepare(models.depthwise(3), tmp_path)
    path = tmp_path / "model" / "prepared.onnx"
    proto = onnx.load(path)
    proto.graph.node[1].op_type = "NoSuchOperator"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"prepared\.onnx: onnxruntime cannot load the prepared model.*NoSuchOperator"):
        ActivationSession(path, prepared.tensors)


# --- limits and streams -------------------------------------------------------------------------------------------


def test_batch_num_limits_the_samples(tmp_path: Path) -> None:
    result = capture(models.conv_relu(), [{"x": images(20)}], tmp_path, batch_size=3, batch_num=2)
    assert result.samples == 6
    assert table(tmp_path, "inputs").height == 6
    assert result.events[0].message == "batch_num 2 x batch size 3: more than 6 samples given, 6 used"


def test_too_few_samples_for_batch_num(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="asks for 24 samples, the data has 20"):
        capture(models.conv_relu(), [{"x": images(20)}], tmp_path, batch_num=3)
    assert not list((tmp_path / "captures").rglob("*.parquet"))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="batch_num: 0 is no number of batches"):
        CaptureOptions(batch_num=0)
    for text in ("all", "raw:", "raw:-1", "raw:1.5", "Raw", "stats:3"):
        with pytest.raises(ConfigError, match=f"keep: '{text}' is not one of raw, raw:N, stats"):
            Keep.parse(text)
    with pytest.raises(ConfigError, match="keep: 'raw:0' keeps no sample; expected raw:1 or more, or stats"):
        Keep.parse("raw:0")


def test_progress_counts_samples(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    data = npz(tmp_path / "x.npz", x=images(5))
    capture(models.conv_relu(), data, tmp_path / "run", batch_size=2, progress=lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == [2, 4, 5]  # two were tried together
    assert {(stage, count) for stage, _, count in seen} == {("capture", 5)}


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_threads_hold_what_they_run_and_one_batch_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    read, folded, ahead = [0], [0], [0]

    def feeds() -> Iterator[dict[str, Array]]:
        for x in images(40)[:, None]:
            read[0] += 1
            ahead[0] = max(ahead[0], read[0] - folded[0])
            yield {"x": x}

    fold = TensorFold.fold

    def slow(self: TensorFold, rows: Any, scratch: Any) -> pl.DataFrame:
        time.sleep(0.005)
        frame = fold(self, rows, scratch)
        folded[0] += len(rows.samples)
        return frame

    monkeypatch.setattr(TensorFold, "fold", slow)
    monkeypatch.setattr(capture_plan, "core_count", lambda: cores)
    capture(models.conv_relu(), feeds(), tmp_path, batch_size=4, keep="stats")
    assert ahead[0] <= (cores + 1) * 4 + 1  # and the sample that tells where the last batch ends


# --- wrong values and failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("keep", ["raw", "stats"])
def test_nan_is_named(tmp_path: Path, size: int, keep: str) -> None:
    x = np.abs(images(7)) + 1
    x[5, 0, 0, :3] = -1
    x[5, 1, 1, 1] = 0
    with pytest.raises(
        DataError,
        match=r"tensor 'l' of node 'log': 3 NaN and 1 infinity in sample 5 \(x\.npz\[5\]\); no scale can hold that: remove the sample",
    ):
        capture(models.nan_maker(), npz(tmp_path / "x.npz", x=x), tmp_path / "run", batch_size=size, keep=keep)
    assert nothing_left(tmp_path / "run")


def test_nan_in_the_input_names_the_input_first(tmp_path: Path) -> None:
    x = images(4)
    x[2, 0, 0, 0] = np.inf
    with pytest.raises(DataError, match=r"tensor 'x' \(a model input\): 1 infinity in sample 2 \(feed 0\[2\]\)"):
        capture(models.depthwise(3), [{"x": x}], tmp_path)


def test_the_earliest_sample_with_nan_is_named(tmp_path: Path) -> None:
    x = np.abs(images(8)) + 1
    x[6, 0, 0, 0] = x[3, 0, 0, 0] = -1
    with pytest.raises(DataError, match="in sample 3 "):
        capture(models.nan_maker(), [{"x": x}], tmp_path)


def test_empty_data(tmp_path: Path) -> None:
    with pytest.raises(EmptyDataError, match="no samples"):
        capture(models.conv_relu(), [], tmp_path)


def test_a_sample_that_onnxruntime_cannot_run(tmp_path: Path) -> None:
    proto = models.conv_relu(pads=[0, 0, 0, 0])
    proto.graph.input[0].CopyFrom(models.value("x", ["N", 3, "H", "W"]))
    nodes = [models.node("Conv", ["y", "w2"], "z", "second")]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(models.normal(2, 4, 3, 3), "w2"))
    del proto.graph.output[:]
    proto.graph.output.append(models.value("z", ["N", 2, None, None]))
    feeds = [{"x": images(1, 3, size, 8)} for size in (8, 8, 2)]
    with pytest.raises(DataError, match=r"sample 2 \(feed 2\[0\]\): onnxruntime cannot run the model on it"):
        capture(proto, feeds, tmp_path / "a")
    with pytest.raises(DataError, match=r"sample 2 \(feed 2\[0\]\): onnxruntime cannot run the model on it"):
        capture(proto, feeds, tmp_path / "c", batch_size=1)
    with pytest.raises(DataError, match=r"sample 0 \(feed 0\[0\]\): onnxruntime cannot run the model on it"):
        capture(proto, feeds[::-1], tmp_path / "b")
    assert nothing_left(tmp_path / "a")


def test_an_error_in_a_thread_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def broken(*_: object) -> pl.DataFrame:
        calls[0] += 1
        message = "disk gone"
        raise OSError(message)

    monkeypatch.setattr(TensorFold, "fold", broken)
    with pytest.raises(RunError, match="cannot be written: disk gone; free space or choose another --run folder"):
        capture(models.depthwise(3), [{"x": images(40)}], tmp_path, batch_size=2)
    assert calls[0] <= core_count() + 1  # one a thread, and what a thread began before the error was told
    assert nothing_left(tmp_path)
    assert not [t for t in threading.enumerate() if t.name.startswith("calibrant")]


def test_an_interrupt_stops_the_threads_and_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(models.depthwise(3), [{"x": images(40)}], tmp_path, batch_size=2, progress=interrupt)
    assert nothing_left(tmp_path)
    assert not [t for t in threading.enumerate() if t.name.startswith("calibrant")]


def test_raw_activations_that_would_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 40 * 2 * 3 * 8 * 8 * 4  # samples, tensors, elements, bytes

    def capture_with(free: int, data: Any, **options: Any) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        capture(models.depthwise(3), data, tmp_path / "run", batch_size=2, **options)

    data = npz(tmp_path / "x.npz", x=images(40))
    with pytest.raises(RunError, match=r"of 40 samples will take 0\.1 MB, and 0\.1 MB are free.*pass --keep stats"):
        capture_with(2 * needed - 2, data)
    assert nothing_left(tmp_path / "run")
    with pytest.raises(RunError, match=r"raw activations of \d+ samples already take"):
        capture_with(needed, [{"x": images(40)}])
    capture_with(2 * needed, data)
    capture_with(0, data, keep="stats")


def test_a_recorder_that_fails_removes_its_files(tmp_path: Path) -> None:
    prepared = prepare(models.conv_relu(), tmp_path)

    def fail() -> None:
        with Recorder(tmp_path, prepared.tensors, [], keep_raw=True):
            pass

    with pytest.raises(ValueError, match="zip"):
        fail()


def test_samples_rows_go_to_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture(models.depthwise(3), [{"x": images(12)}], tmp_path / "one", batch_size=2)
    monkeypatch.setattr(writer, "SAMPLE_ROWS", 7)
    monkeypatch.setattr(writer, "SAMPLE_BATCHES", 2)
    capture(models.depthwise(3), [{"x": images(12)}], tmp_path / "parts", batch_size=2)
    parts = sorted((tmp_path / "parts/tables/samples").iterdir())
    assert [p.name for p in parts] == [f"part-{i:05d}.parquet" for i in range(3)]
    order = ["tensor_id", "sample"]
    assert table(tmp_path / "parts", "samples").sort(order).equals(table(tmp_path / "one", "samples"))


def test_one_thread_makes_the_tables_of_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extremes wait unsorted until somebody asks; two threads that merged them at once would lose some."""
    merge, offer = TopOrders._settle, TopOrders.offer
    large = np.random.default_rng(5).normal(size=(12, 3, 160, 160)).astype(np.float32)
    waited = set[int]()
    inside, crowded = dict[int, int](), list[int]()

    def noted(self: TopOrders, orders: Any) -> None:
        offer(self, orders)
        waited.add(self._waiting_size)

    def merged(self: TopOrders) -> None:
        if inside.setdefault(id(self), threading.get_ident()) != threading.get_ident():
            crowded.append(id(self))
        time.sleep(0.01)
        merge(self)
        del inside[id(self)]

    monkeypatch.setattr(TopOrders, "offer", noted)
    monkeypatch.setattr(TopOrders, "_settle", merged)
    capture(models.dynamic_shapes(), [{"x": large}], tmp_path, keep="stats")
    assert max(waited) > 0
    assert crowded == []
    values = table(tmp_path, "extremes").filter(side="max", tensor_id=0)["value"].to_numpy()
    np.testing.assert_array_equal(values, np.unique(large)[::-1][: values.size])


@pytest.mark.parametrize(("cores", "samples", "shared"), [(2, 5, 1), (2, 1, 2), (20, 9, 2)])
def test_a_second_pass_shares_runs_among_as_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, samples: int, shared: int
) -> None:
    """Last bits may depend on that."""
    options, threads = session_module.session_options, list[int]()

    def noted(**given: Any) -> Any:
        threads.append(given["threads"])
        return options(**given)

    monkeypatch.setattr(session_module, "session_options", noted)
    monkeypatch.setattr(capture_plan, "core_count", lambda: cores)
    data = npz(tmp_path / "x.npz", x=images(samples))
    result = capture(models.depthwise(3), data, tmp_path / "run", keep="stats")
    assert set(threads) == {shared}
    threads.clear()
    prepared = load_prepared(tmp_path / "run/model")
    source = open_data(data, prepared.inputs)
    again = SecondPass(
        tmp_path / "run", prepared, source, samples, result.batch_size, result.data_fingerprint, lambda *_: None
    )
    assert sum(len(values) for tensor_id, values in again([1]) if tensor_id == 1) == samples
    assert set(threads) == {shared}


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_first_sample_that_is_refused_is_named_though_it_was_tried_with_others(tmp_path: Path, bad: int) -> None:
    feeds = [{"ids": np.full((1, 5), 77 if n == bad else n, np.int64)} for n in range(3)]
    with pytest.raises(DataError, match=rf"sample {bad} \(feed {bad}\[0\]\): onnxruntime cannot run the model on it"):
        capture(models.integer_input(), feeds, tmp_path / "run")


def test_a_table_that_an_error_left_dirty_is_not_lent_again() -> None:
    pool = ScratchPool(1)
    with pytest.raises(MemoryError), pool.lent() as dirty:
        raise MemoryError
    with pool.lent() as scratch:
        assert scratch is not dirty
    with pool.lent() as again:
        assert again is scratch
