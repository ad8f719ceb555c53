"""What a capture writes is what a plain session computes, bit for bit, however onnxruntime lays out its channels."""

import os
import platform
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import models
import naive
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from blocked_models import CASES, Case, Graph, chain, images, stacked, with_batch
from capture_twins import (
    TensorTwin,
    WideTwin,
    assert_activations_are,
    assert_tables_are,
    exposing,
    lane_sums,
    one_at_a_time,
    twins,
    wide,
)
from capturing import table
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant
from calibrant.ingest.session import session_options

CONSTANT = {"a value that no sample changes": ("fixed", "gate")}
Way = tuple[str, int | None, int, str]  # what is kept, batch size, cores, order of the samples
WAYS: tuple[Way, ...] = (("raw", None, 2, "given"), ("stats", 1, 1, "reversed"), ("raw:3", 3, 5, "shuffled"))


@cache
def built(name: str) -> Case:
    return CASES[name]()


def order_of(kind: str, count: int) -> list[int]:
    if kind == "shuffled":
        order: list[int] = np.random.default_rng(count).permutation(count).tolist()
        return order
    return list(range(count))[:: -1 if kind == "reversed" else 1]


def with_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the machine have so many cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)


def capture_case(found: Case, folder: Path, way: Way) -> list[int]:
    """Capture a case and return the order of its samples."""
    keep, batch_size, _, kind = way
    order, is_fixed = (
        order_of(kind, len(found.feeds)),
        found.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value,
    )
    path, feeds = models.save(found.proto, folder / "m.onnx"), [found.feeds[i] for i in order]
    size = None if is_fixed else batch_size
    calibrant.capture(path, feeds, run=folder / "run", keep=keep, batch_size=size, restart=True)
    return order


def check(
    found: Case, folder: Path, way: Way, expected: Sequence[TensorTwin] = (), constant: Sequence[str] = ()
) -> list[TensorTwin]:
    """Capture a case and compare everything that was written; return the twins for the next time."""
    order, run = capture_case(found, folder, way), folder / "run"
    expected = list(expected) or twins(run / "model/prepared.onnx", found.observed, found.feeds, constant)
    assert_tables_are(run, expected, order)
    if way[0] != "stats":
        assert_activations_are(run, expected, order, None if way[0] == "raw" else int(way[0].split(":")[1]))
    return expected


@pytest.mark.parametrize("name", CASES)
def test_everything_is_that_of_a_plain_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[TensorTwin] = []
    for way in WAYS:
        with_cores(monkeypatch, way[2])
        expected = check(built(name), tmp_path, way, expected, CONSTANT.get(name, ()))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 17])
def test_any_number_of_samples(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = chain(24, (5, 3), count), list[TensorTwin]()
    for way in [("raw", 8, 2, "given"), ("raw:2", 4, 3, "reversed"), ("stats", 16, 2, "shuffled"), *WAYS[1:2]]:
        with_cores(monkeypatch, way[2])
        expected = check(found, tmp_path, way, expected)


@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_any_number_of_samples_in_batches_of_four(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = with_batch(4, count), list[TensorTwin]()
    for way in [("raw", None, 2, "given"), ("raw:2", None, 3, "reversed"), ("stats", None, 1, "shuffled")]:
        with_cores(monkeypatch, way[2])
        expected = check(found, tmp_path, way, expected)


def test_a_batch_that_changes_last_bits_is_seen(tmp_path: Path) -> None:
    found = built("a batch changes last bits")
    path = models.save(found.proto, tmp_path / "m.onnx")
    run = calibrant.capture(path, found.feeds, run=tmp_path / "run", keep="stats")
    assert run.info.one_by_one
    assert any("values differ alone and in a batch" in message for message in run.read("events")["message"])


def test_every_source_of_data(tmp_path: Path) -> None:
    """One array of all samples, an .npz, an iterator of single samples and one of uneven groups."""
    found = chain(16, (5, 3), 7)
    whole = stacked(found.feeds)
    path = models.save(found.proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **whole)
    parts = [{"x": whole["x"][a:b]} for a, b in ((0, 3), (3, 4), (4, 7))]
    expected: list[TensorTwin] = []
    for data in ([whole], tmp_path / "x.npz", iter(found.feeds), iter(parts)):
        run = calibrant.capture(path, data, run=tmp_path / "run", restart=True)
        expected = expected or twins(run.prepared_file, found.observed, found.feeds)
        assert_tables_are(run.path, expected, range(7))
        assert_activations_are(run.path, expected, range(7), None)


def test_statistics_from_the_raw_files_are_the_same(tmp_path: Path) -> None:
    for name in ("residual, all observed", "concatenated along channels", "images of many sizes", "float16"):
        found = built(name)
        (tmp_path / name).mkdir()
        expected = check(found, tmp_path / name, ("raw", None, 2, "given"))
        before = {one: table(tmp_path / name / "run", one) for one in ("tensors", "histograms", "extremes", "channels")}
        calibrant.stats(tmp_path / name / "run")
        assert_tables_are(tmp_path / name / "run", expected, range(len(found.feeds)))
        for one, frame in before.items():
            assert table(tmp_path / name / "run", one).equals(frame), one


def test_weights_beside_the_model(tmp_path: Path) -> None:
    found = CASES["dense block"]()  # another one, since saving moves its weights out
    onnx.save(found.proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    run = calibrant.capture(tmp_path / "m.onnx", found.feeds, run=tmp_path / "run", keep="raw:2", batch_size=2)
    expected = twins(run.prepared_file, found.observed, found.feeds)
    assert_tables_are(run.path, expected, range(3))
    assert_activations_are(run.path, expected, range(3), 2)


def test_tensors_that_a_configuration_names(tmp_path: Path) -> None:
    """Both operands of a sum that onnxruntime would compute inside a convolution, and what a pool reads."""
    g = Graph(x=["N", 3, 5, 4])
    g.conv("x", "c", (3, 24))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (24, 24))
    g.add("Add", ["d", "r"], "s")
    g.add("Tanh", "s", "t")
    g.add("MaxPool", "t", "m", kernel_shape=[2, 2])
    feeds = images(5, 3, 5, 4)
    path = models.save(g.proto("m"), tmp_path / "m.onnx")
    named = [("n_s", 0), ("n_s", 1), ("n_m", 0)]
    config = tmp_path / "quant.cfg"
    lines = [f'tensor_quantize {{ layer_name: "{name}" input_index: {index} }}' for name, index in named]
    config.write_text("\n".join(lines), encoding="utf-8")
    run = calibrant.capture(path, feeds, run=tmp_path / "run", config=config, batch_size=2)
    observed = ["x", "r", "d", "t"]
    assert run.read("tensors")["tensor"].to_list() == observed
    expected = twins(run.prepared_file, observed, feeds)
    assert_tables_are(run.path, expected, range(5))
    assert_activations_are(run.path, expected, range(5), None)


# --- convolutions that nobody thought of -------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], str, tuple[int, int], tuple[int, int]]:
    """Attributes of a Conv, the activation behind it, its channels and the size of its input."""
    group = draw(st.sampled_from([1, 1, 2, 3, 16]))
    channels = (group * draw(st.sampled_from([1, 3, 8, 16])), group * draw(st.sampled_from([1, 2, 5, 8, 16, 24])))
    pairs = st.tuples(st.integers(1, 2), st.integers(1, 2))
    attributes: dict[str, Any] = {
        "group": group, "strides": list(draw(pairs)), "dilations": list(draw(pairs)),
        "kernel": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "pads": draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)),
    }  # fmt: skip
    activation = draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Identity", "Exp"]))
    return attributes, activation, channels, draw(st.tuples(st.integers(5, 7), st.integers(5, 8)))


@settings(max_examples=30, derandomize=True)
@given(convolutions(), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["raw", "raw:2", "stats"]))
def test_any_convolution(
    drawn: tuple[dict[str, Any], str, tuple[int, int], tuple[int, int]], count: int, batch_size: int, keep: str
) -> None:
    attributes, activation, channels, size = drawn
    g = Graph(x=["N", 2, *size])
    g.conv("x", "first", (2, channels[0]), (1, 1))
    g.conv("first", "c", channels, **attributes)
    last = "c" if activation == "Identity" else g.add(activation, "c", "a")
    g.look(last, channels[1])
    with TemporaryDirectory() as folder:
        found = Case(g.proto(), images(count, 2, *size), ("x", "first", last))
        check(found, Path(folder), (keep, batch_size, 2, "reversed"))


# --- many values -------------------------------------------------------------------------------------------------


def wide_model() -> Case:
    """Some megabytes a sample: 24 and 32 channels, a sigmoid, a residual sum and a pool."""
    g = Graph(x=["N", 3, 144, 112])
    g.conv("x", "c", (3, 32), strides=[1, 1])
    g.add("Relu", "c", "r")
    g.conv("r", "d", (32, 32), group=32)
    g.add("Add", ["d", "r"], "s")
    g.look("s", 32)
    g.conv("s", "e", (32, 24), (1, 1), strides=[2, 2], pads=[0, 0, 0, 0])
    g.add("Sigmoid", "e", "g")
    g.look("g", 24)
    return Case(g.proto(), images(5, 3, 144, 112), ("x", "r", "s", "g"))


def test_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors above and below the size that is counted in a dense table, in one batch and in several."""
    found, expected = wide_model(), list[TensorTwin]()
    for way in (("stats", 5, 2, "given"), ("stats", 1, 3, "reversed"), ("raw:2", 3, 1, "shuffled")):
        with_cores(monkeypatch, way[2])
        order = capture_case(found, tmp_path, way)
        expected = expected or wide(twins(tmp_path / "run/model/prepared.onnx", found.observed, found.feeds))
        assert_tables_are(tmp_path / "run", expected, order)
    assert_activations_are(tmp_path / "run", expected, order, 2)


# --- what the expectations stand on ------------------------------------------------------------------------------


def test_the_wide_twin_is_the_naive_one() -> None:
    samples = list(np.random.default_rng(0).standard_cauchy((3, 1, 4, 29, 61)).astype(np.float32))
    samples[1][samples[1] < 0] = -0.0
    plain, quick = (kind("t", samples, 1, is_constant=False) for kind in (TensorTwin, WideTwin))
    assert quick.histogram == plain.histogram
    assert quick.moments == plain.moments
    assert quick.channels == plain.channels
    values = samples[0][0, 0].ravel()[:37]
    assert lane_sums(values) == naive.run_sum(values.tolist())


def computed(found: Case) -> list[str]:
    """What is observed and is no input."""
    return [name for name in found.observed if name not in found.feeds[0]]


def test_the_plain_session_computes_the_model() -> None:
    """Its outputs are near to those without any optimization, which fuse nothing and block nothing."""
    for name, found in ((name, built(name)) for name in CASES if "float16" not in name):
        outputs = computed(found)
        if not outputs:
            continue
        optimized = one_at_a_time(found.proto, outputs, found.feeds[:1])
        copy = exposing(found.proto, outputs)
        batch = found.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1
        feed = {key: np.repeat(array, batch, axis=0) for key, array in found.feeds[0].items()}
        for output, plain in zip(outputs, models.run(copy, feed, outputs), strict=True):
            np.testing.assert_allclose(
                optimized[output][0], plain[: len(optimized[output][0])], 1e-4, 1e-5, err_msg=name
            )


def optimized_nodes(found: Case, folder: Path) -> Iterator[onnx.NodeProto]:
    """The nodes that onnxruntime runs where it exposes what a case observes."""
    options = session_options()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(
        exposing(found.proto, computed(found)).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    yield from onnx.load(folder / "optimized.onnx").graph.node


@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="onnxruntime's blocks depend on the processor"
)
def test_the_cases_reach_what_onnxruntime_blocks(tmp_path: Path) -> None:
    nodes = [node for name in CASES if computed(built(name)) for node in optimized_nodes(built(name), tmp_path)]
    blocked = [node for node in nodes if node.domain == "com.microsoft.nchwc"]
    kinds = {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Upsample", "ReorderInput", "ReorderOutput"}
    assert {node.op_type for node in blocked} >= kinds
    fused = {onnx.helper.get_attribute_value(a) for node in blocked for a in node.attribute if a.name == "activation"}
    assert fused >= {b"Relu", b"Sigmoid", b"Tanh", b"LeakyRelu", b"HardSigmoid", b"Clip"}
    assert any(
        node.op_type == "Conv" and len(node.input) > 3 and node.input[3] for node in blocked
    )  # Conv and Sum in one
    lasts = [
        a.i for node in blocked if node.op_type == "ReorderOutput" for a in node.attribute if a.name == "channels_last"
    ]
    assert 1 in lasts
