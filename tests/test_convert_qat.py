"""Models quantized elsewhere: their codes and scales come through, outputs stay the source's, what cannot be int8 has its reason."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exporting
import models
import numpy as np
import onnx
import pytest
import qdq
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import calibrant
from calibrant.amct import convert_qat_model
from calibrant.cli.app import app
from calibrant.errors import ExportError, ModelError
from calibrant.qat_conversion import ConvertedModel

F = np.float32
LEAST_DB = 60.0


def convert(proto: onnx.ModelProto, folder: Path, **options: Any) -> ConvertedModel:
    return calibrant.convert_qat(qdq.saved(proto, folder), prefix=folder / "out" / "m", **options)


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def row(done: ConvertedModel, name: str, number: int = 0, *, becomes: str | None = None) -> dict[str, Any]:
    rows = done.layers.filter(node=name, input=number)
    return (rows if becomes is None else rows.filter(becomes=becomes)).row(0, named=True)


def sqnr_db(proto: onnx.ModelProto, done: ConvertedModel, feeds: dict[str, np.ndarray]) -> float:
    """Compared here and not by the code under test."""
    noise, signal = 0.0, 0.0
    for wanted, got in zip(models.run(proto, feeds), models.run(done.files.fake_quant, feeds), strict=True):
        noise += float(((wanted.astype(np.float64) - got) ** 2).sum())
        signal += float((wanted.astype(np.float64) ** 2).sum())
    return float("inf") if noise == 0 else 10 * np.log10(signal / noise)


def image(seed: int = 3, *, channels: int = 3) -> dict[str, np.ndarray]:
    return {"x": models.normal(2, channels, 8, 8, seed=seed, scale=1.5)}


def test_codes_scales_and_offsets_are_those_of_the_model(tmp_path: Path) -> None:
    proto = qdq.conv()
    done = convert(proto, tmp_path)
    stored, entry = initializers(done.files.deploy), exporting.read_record(done.files.record)["conv"]
    assert stored["w"].dtype == np.int8
    assert stored["b"].dtype == np.int32
    np.testing.assert_array_equal(stored["w"], qdq.WEIGHT)
    np.testing.assert_array_equal(stored["b"], qdq.BIAS)
    assert entry["scale_d"] == [qdq.STEP]
    assert entry["offset_d"] == [qdq.ZERO]
    assert entry["scale_w"] == list(qdq.SCALES)
    assert (row(done, "conv")["becomes"], row(done, "conv")["bias"]) == ("int8", "kept")
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_converted_model_is_verified_and_compared_with_its_source(tmp_path: Path) -> None:
    done = convert(qdq.conv(), tmp_path, data=[{"x": image()["x"][:1]}])
    assert done.report is not None
    assert done.report.passed
    assert done.report.samples == 1
    assert done.source_sqnr_db is not None
    assert done.source_sqnr_db >= LEAST_DB
    assert (
        row(done, "conv")["source_sqnr_db"] >= 100
    )  # sums of less than 2^24 differ by the last product's rounding alone


def test_layer_that_differs_from_the_source_is_told(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.5), graph.stored("w", qdq.codes(4, 3, 1, 1, low=-2, high=2), 0.5)
    graph.constant("b", np.full(4, 0.125, F))  # half a step of the sum: each output moves by that
    graph.node("Conv", [x, w, "b"], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 8, 8])])
    done = convert(proto, tmp_path, data=[{"x": image()["x"][:1]}])
    (wanted,) = models.run(proto, {"x": image()["x"][:1]})
    moved = 10 * np.log10(float((wanted.astype(np.float64) ** 2).sum()) / (wanted.size * 0.125**2))
    assert row(done, "conv")["source_sqnr_db"] == pytest.approx(moved, abs=1e-6)
    assert any(
        event.layer == "conv" and event.severity == "warn" and "a float bias" in event.message for event in done.events
    )


def test_uint8_data_and_weights_of_zero_point_128_are_shifted(tmp_path: Path) -> None:
    uint8 = TensorProto.UINT8
    proto = qdq.conv(data=(qdq.STEP, 108, uint8), weight=(qdq.WEIGHT + 128, 128, uint8))
    done = convert(proto, tmp_path)
    stored, entry = initializers(done.files.deploy), exporting.read_record(done.files.record)["conv"]
    np.testing.assert_array_equal(stored["w"], qdq.WEIGHT)
    assert entry["offset_d"] == [108 - 128]
    assert entry["offset_w"] == [0] * 4
    assert sqnr_db(proto, done, image()) >= LEAST_DB


@pytest.mark.parametrize(
    ("zero", "low", "high", "fits"),
    [(100, 0, 227, True), (100, 0, 228, False), (0, 0, 127, True), (200, 71, 255, False), (200, 72, 255, True)]
)  # fmt: skip
def test_uint8_weights_fit_where_their_codes_do(tmp_path: Path, zero: int, low: int, high: int, fits: bool) -> None:
    values = np.clip(qdq.WEIGHT + 128, low, high)
    values.reshape(-1)[:2] = low, high  # both ends are there, whatever was drawn
    proto = qdq.conv(weight=(values, zero, TensorProto.UINT8))
    if fits:
        done = convert(proto, tmp_path)
        np.testing.assert_array_equal(initializers(done.files.deploy)["w"], values - zero)
    else:
        done = convert(proto, tmp_path)
        reason = row(done, "conv", becomes="float")["reason"]
        assert re.match(
            rf"its weight is uint8 with zero point {zero}, codes {low - zero} to {high - zero} from it", reason
        )
        assert row(done, "conv", becomes="pair")["scale_d"] == qdq.STEP
    assert sqnr_db(proto, done, image()) >= LEAST_DB


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_every_opset_of_the_pair(tmp_path: Path, opset: int) -> None:
    if opset == 10:  # no axis yet
        proto = qdq.conv(scales=qdq.SCALES[0], opset=opset)
        for node in proto.graph.node:
            del node.attribute[0 if node.op_type == "DequantizeLinear" and node.attribute else 99 :]
        bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "b_scale")
        bias.CopyFrom(numpy_helper.from_array(F(qdq.STEP * qdq.SCALES[0]), "b_scale"))
        zero = next(tensor for tensor in proto.graph.initializer if tensor.name == "b_zero")
        zero.CopyFrom(numpy_helper.from_array(np.int32(0), "b_zero"))
    else:
        proto = qdq.conv(opset=opset)
    done = convert(proto, tmp_path)
    assert row(done, "conv")["becomes"] == "int8"
    assert sqnr_db(proto, done, image()) >= LEAST_DB
    assert onnx.load(done.files.deploy).opset_import[0].version == opset


def test_bias_of_another_scale_is_quantized_again(tmp_path: Path) -> None:
    units = qdq.STEP * np.asarray(qdq.SCALES, F) / 4
    proto = qdq.conv(bias_scale=units)
    done = convert(proto, tmp_path)
    assert row(done, "conv")["bias"] == "requantized"
    np.testing.assert_allclose(initializers(done.files.deploy)["b"], qdq.BIAS / 4, atol=0.5)
    assert any(event.layer == "conv" and "off by up to 0.75" in event.message for event in done.events)


def test_float_bias_is_quantized(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", qdq.STEP, qdq.ZERO), graph.stored("w", qdq.WEIGHT, qdq.SCALES, axis=0)
    graph.constant("b", np.array([0.5, -1, 0.25, 3], F))
    graph.node("Conv", [x, w, "b"], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 6, 6])])
    done = convert(proto, tmp_path)
    wanted = np.rint(np.array([0.5, -1, 0.25, 3], F) / (qdq.STEP * np.asarray(qdq.SCALES, F)))
    np.testing.assert_array_equal(initializers(done.files.deploy)["b"], wanted)
    assert row(done, "conv")["bias"] == "quantized"


def test_large_bias_codes_lose_no_bit(tmp_path: Path) -> None:
    proto = qdq.conv()
    codes = np.array([2**30 + 1, -(2**30) - 1, 2**24 + 1, 5], np.int32)  # float32 holds neither of the first three
    next(tensor for tensor in proto.graph.initializer if tensor.name == "b").CopyFrom(
        numpy_helper.from_array(codes, "b")
    )
    done = calibrant.convert_qat(qdq.saved(proto, tmp_path), prefix=tmp_path / "m")
    np.testing.assert_array_equal(initializers(done.files.deploy)["b"], codes)


def float_weight(kind: str, graph: qdq.Qdq) -> str:
    """A Gemm or MatMul weight [6, 5] as floats, quantized in the model and moved to where the layer reads it."""
    weight = models.normal(5, 6, seed=4)
    graph.constant("w", weight)
    scale = F(np.abs(weight).max() / 127)
    moved = graph.pair("w", "w", scale)
    return moved if kind == "Gemm" else graph.node("Transpose", [moved], "wt", perm=[1, 0])


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_matrices_keep_the_codes_of_a_weight_that_is_quantized_in_the_model(tmp_path: Path, kind: str) -> None:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.05, 3), float_weight(kind, graph)
    b = graph.stored(
        "b",
        qdq.codes(5, low=-999, high=999),
        F(0.05) * np.abs(models.normal(5, 6, seed=4)).max() / 127,
        0,
        TensorProto.INT32,
    )
    if kind == "Gemm":
        graph.node("Gemm", [x, w, b], "y", "layer", transB=1)
    else:
        graph.node("MatMul", [x, w], "m", "layer")
        graph.node("Add", ["m", b], "y", "add")
    proto = graph.model([models.value("x", ["N", 6])], [models.value("y", ["N", 5])])
    done = convert(proto, tmp_path)
    weight = models.normal(5, 6, seed=4)
    wanted = np.rint(weight / F(np.abs(weight).max() / 127)).T
    found = [array for array in initializers(done.files.deploy).values() if array.dtype == np.int8]
    np.testing.assert_array_equal(found[0], wanted)
    assert row(done, "layer")["weight_scales"] == 1
    assert sqnr_db(proto, done, {"x": models.normal(3, 6, seed=2, scale=3)}) >= LEAST_DB


def columns(scales: Any, axis: int = 1) -> onnx.ModelProto:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.05), graph.stored("w", qdq.codes(6, 5), scales, axis=axis)
    graph.node("MatMul", [x, w], "y", "layer")
    return graph.model([models.value("x", ["N", 6])], [models.value("y", ["N", 5])])


def test_columns_of_a_matrix_need_the_option(tmp_path: Path) -> None:
    scales = np.array([0.01, 0.02, 0.03, 0.04, 0.05], F)
    left = convert(columns(scales), tmp_path)
    assert row(left, "layer", becomes="float")["reason"] == (
        "its weight has 5 scales, and AMCT knows one a MatMul; --matmul-per-channel takes them"
    )
    done = convert(columns(scales), tmp_path, matmul_per_channel=True)
    assert exporting.read_record(done.files.record)["layer"]["scale_w"] == list(scales)
    for one in (left, done):
        assert sqnr_db(columns(scales), one, {"x": models.normal(3, 6, scale=3)}) >= LEAST_DB


def test_equal_scales_of_columns_are_one(tmp_path: Path) -> None:
    done = convert(columns(np.full(5, 0.01, F)), tmp_path)
    assert exporting.read_record(done.files.record)["layer"]["scale_w"] == [F(0.01)]


def test_scales_along_the_inputs_stay_in_float(tmp_path: Path) -> None:
    proto = columns(np.arange(1, 7, dtype=F) / 100, axis=0)
    done = convert(proto, tmp_path)
    assert "do not run along its output channels" in row(done, "layer", becomes="float")["reason"]
    assert sqnr_db(proto, done, {"x": models.normal(3, 6, scale=3)}) >= LEAST_DB


def test_transposed_convolution_with_groups(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.05, 7), graph.stored("w", qdq.codes(4, 3, 2, 2), 0.01)
    graph.node("ConvTranspose", [x, w], "y", "up", group=2, strides=[2, 2])
    proto = graph.model([models.value("x", ["N", 4, 5, 5])], [models.value("y", ["N", 6, 10, 10])])
    done = convert(proto, tmp_path)
    assert row(done, "up")["becomes"] == "int8"
    np.testing.assert_array_equal(initializers(done.files.deploy)["w"], qdq.codes(4, 3, 2, 2))
    assert sqnr_db(proto, done, {"x": models.normal(1, 4, 5, 5, scale=2)}) >= LEAST_DB


def residual() -> onnx.ModelProto:
    """Conv and its input meet at an Add with a pair on each side; the sum is quantized, shared by two readers and given out."""
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    w = graph.stored("w", qdq.codes(3, 3, 1, 1), 0.004)
    graph.node("Conv", [x, w], "c", "conv")
    c = graph.pair("c", "c", 0.0837, -9)
    graph.node("Add", [c, x], "a", "add")
    a = graph.pair("a", "a", 0.1, 1)
    graph.node("MaxPool", [a], "m", "pool", kernel_shape=[2, 2])
    graph.node("Sigmoid", [a], "s", "sigmoid")
    s = graph.pair("s", "s", 1 / 256, -128)
    return graph.model(
        [models.value("x", ["N", 3, 8, 8])],
        [models.value("m", ["N", 3, 7, 7]), models.value(s, ["N", 3, 8, 8])],
    )


def test_pairs_before_other_nodes_and_outputs_are_kept(tmp_path: Path) -> None:
    done = convert(residual(), tmp_path)
    pairs = done.layers.filter(becomes="pair").select("node", "input", "scale_d", "offset_d").rows()
    assert pairs == [
        ("add", 0, F(0.0837), -9), ("add", 1, F(0.05), 3), ("pool", 0, F(0.1), 1), ("sigmoid", 0, F(0.1), 1),
        ("s_dq.carrier", 0, F(1 / 256), -128),
    ]  # fmt: skip
    assert sqnr_db(residual(), done, image()) >= LEAST_DB
    kinds = [node.op_type for node in onnx.load(done.files.deploy).graph.node]
    assert kinds.count("AscendQuant") == 4  # x once for Conv and Add; c; a once for both readers; s
    assert kinds.count("AscendAntiQuant") == 5
    named = json.loads(done.files.config.read_text())["tensor_quantize"]
    assert [(one["layer_name"], one["input_index"]) for one in named] == [("add", 0), ("add", 1), ("pool", 0)]


def test_pair_that_the_next_quantizer_repeats_is_dropped(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    graph.node("MaxPool", [x], "p", "pool", kernel_shape=[2, 2], strides=[2, 2])
    p = graph.pair("p", "p", 0.05, 3)
    graph.node("Flatten", [p], "f", "flat")
    f, w = graph.pair("f", "f", 0.05, 3), graph.stored("w", qdq.codes(48, 5), 0.01)
    graph.node("Gemm", [f, w], "y", "fc")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 5])])
    done = convert(proto, tmp_path)
    assert done.layers.select("node", "becomes").rows() == [("pool", "dropped"), ("flat", "dropped"), ("fc", "int8")]
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_layer_behind_nodes_that_move_values_has_their_scale(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    graph.node("Relu", [x], "r", "relu")
    graph.node("MaxPool", ["r"], "p", "pool", kernel_shape=[2, 2], strides=[2, 2])
    graph.node("Flatten", ["p"], "f", "flat")
    graph.node("Gemm", ["f", graph.stored("w", qdq.codes(48, 5), 0.01)], "y", "fc")
    graph.node("Sigmoid", ["p"], "s", "sigmoid")
    outputs = [models.value("y", ["N", 5]), models.value("s", ["N", 3, 4, 4])]
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], outputs)
    done = convert(proto, tmp_path)
    assert done.layers.select("node", "becomes").rows() == [("relu", "pair"), ("fc", "int8")]
    assert (row(done, "fc")["scale_d"], row(done, "fc")["offset_d"]) == (F(0.05), 3)
    assert sqnr_db(proto, done, image()) >= LEAST_DB


@pytest.mark.parametrize("between", ["Neg", "AveragePool"])
def test_layer_behind_other_nodes_has_no_scale(tmp_path: Path, between: str) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    more = {"kernel_shape": [2, 2]} if between == "AveragePool" else {}
    graph.node(between, [x], "n", "between", **more)
    graph.node("Conv", ["n", graph.stored("w", qdq.codes(3, 3, 1, 1), 0.01)], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, None, None])])
    done = convert(proto, tmp_path)
    assert row(done, "conv")["becomes"] == "float"
    assert sqnr_db(proto, done, image()) >= LEAST_DB


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8])
def test_trailing_codes_are_an_output(tmp_path: Path, kind: int) -> None:
    shift = 128 if kind == TensorProto.UINT8 else 0
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.05, 3), graph.stored("w", qdq.codes(3, 3, 1, 1), 0.004)
    graph.node("Conv", [x, w], "c", "conv")
    y = graph.quantize("y", "c", 0.1, 5 + shift, kind)
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value(y, ["N", 3, 8, 8], kind)])
    done = convert(proto, tmp_path)
    deploy = onnx.load(done.files.deploy)
    assert deploy.graph.node[-1].op_type == "AscendQuant"
    assert list(deploy.graph.node[-1].output) == ["y_q"]
    assert deploy.graph.output[0].type.tensor_type.elem_type == TensorProto.INT8
    wanted, (got,) = models.run(proto, image())[0], models.run(done.files.fake_quant, image())
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, wanted.astype(int) - shift)
    assert any("less 128" in event.message for event in done.events) == bool(shift)
    assert done.report is not None
    assert done.report.passed


def test_seven_bit_data_is_clipped_before_its_quantizer(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    codes = graph.quantize("x", "x", 0.05, 10, TensorProto.UINT8)
    graph.constant("low", np.uint8(0))
    graph.constant("high", np.uint8(127))
    clipped = graph.node("Clip", [codes, "low", "high"], "x_clip")
    x = graph.node("DequantizeLinear", [clipped, "x_scale", "x_zero"], "x_dq")
    w = graph.stored("w", qdq.codes(3, 3, 1, 1), 0.004)
    graph.node("Conv", [x, w], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, 8, 8])])
    done = convert(proto, tmp_path)
    assert row(done, "conv")["offset_d"] == 10 - 128
    assert sqnr_db(proto, done, {"x": image()["x"] * 4}) >= LEAST_DB


def test_data_and_weights_of_four_bits(tmp_path: Path) -> None:
    graph = qdq.Qdq(opset=21, ir_version=10)
    x = graph.pair("x", "x", 0.5, 2, TensorProto.INT4)
    w = graph.stored("w", qdq.codes(4, 3, 3, 3, low=0, high=15), 0.1, 4, TensorProto.UINT4)
    graph.node("Conv", [x, w], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 6, 6])])
    done = convert(proto, tmp_path)
    assert (row(done, "conv")["becomes"], row(done, "conv")["weight_type"]) == ("int8", "uint4")
    np.testing.assert_array_equal(initializers(done.files.deploy)["w"], qdq.codes(4, 3, 3, 3, low=0, high=15) - 4)
    assert sqnr_db(proto, done, {"x": image()["x"] * 4}) >= LEAST_DB


def wide(kind: int, scale: Any, zero: Any, **more: Any) -> onnx.ModelProto:
    graph = qdq.Qdq(opset=21, ir_version=10)
    x = graph.pair("x", "x", scale, zero, kind, **more)
    w = graph.stored("w", qdq.codes(4, 3, 1, 1), 0.01)
    graph.node("Conv", [x, w], "y", "conv")
    return graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 8, 8])])


WIDE: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "int16": (lambda: wide(TensorProto.INT16, 0.001, 7), "its data is int16; int8 data is quantized"),
    "uint16": (lambda: wide(TensorProto.UINT16, 0.001, 32000), "its data is uint16; int8 data is quantized"),
    "channels": (
        lambda: wide(TensorProto.INT8, [0.03, 0.02, 0.05], [1, 2, 3], axis=1),
        "its data has 3 scales along axis 1; data has one scale",
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_other_data_becomes_plain_operators(tmp_path: Path, name: str) -> None:
    build, reason = WIDE[name]
    with pytest.raises(ExportError, match=f"no layer of the model can be converted: Conv 'conv': {re.escape(reason)}"):
        convert(build(), tmp_path)


def two_layers(kind: int, scale: Any, zero: Any, **more: Any) -> onnx.ModelProto:
    """The first Conv has other data, the second int8 data."""
    graph = qdq.Qdq(opset=21, ir_version=10)
    x = graph.pair("x", "x", scale, zero, kind, **more)
    graph.node("Conv", [x, graph.stored("w", qdq.codes(4, 3, 1, 1), 0.01)], "c", "first")
    c = graph.pair("c", "c", 0.1)
    graph.node("Conv", [c, graph.stored("v", qdq.codes(2, 4, 1, 1), 0.01)], "y", "second")
    return graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 2, 8, 8])])


@pytest.mark.parametrize("name", WIDE)
def test_values_of_other_data_are_kept(tmp_path: Path, name: str) -> None:
    reason = WIDE[name][1]
    given = {"int16": (TensorProto.INT16, 0.001, 7), "uint16": (TensorProto.UINT16, 0.001, 32000)}
    proto = (
        two_layers(TensorProto.INT8, [0.03, 0.02, 0.05], [1, 2, 3], axis=1)
        if name == "channels"
        else two_layers(*given[name])
    )
    done = convert(proto, tmp_path)
    assert row(done, "first")["reason"] == reason
    assert row(done, "second")["becomes"] == "int8"
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_unequal_pair_keeps_its_values(tmp_path: Path) -> None:
    proto = two_layers(TensorProto.INT8, 0.05, 3)
    graph = proto.graph
    graph.initializer.append(numpy_helper.from_array(F(0.1), "other_scale"))
    next(node for node in graph.node if node.name == "x_dq").input[1] = "other_scale"
    done = convert(proto, tmp_path)
    assert "'x_q' and DequantizeLinear 'x_dq' have unequal scales" in row(done, "first")["reason"]
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_blocks_and_float8_weights_stay_in_float(tmp_path: Path) -> None:
    graph = qdq.Qdq(opset=21, ir_version=10)
    x = graph.pair("x", "x", 0.05)
    w = graph.stored("w", qdq.codes(6, 4), np.arange(1, 13, dtype=F).reshape(3, 4) / 100, 0, axis=0, block_size=2)
    graph.node("MatMul", [x, w], "m", "blocks")
    m = graph.pair("m", "m", 0.5)
    v = graph.stored("v", np.linspace(-2, 2, 20).reshape(4, 5), 0.5, 0, TensorProto.FLOAT8E4M3FN)
    graph.node("MatMul", [m, v], "y", "eighths")
    proto = graph.model([models.value("x", ["N", 6])], [models.value("y", ["N", 5])])
    done = convert(proto, tmp_path)
    assert row(done, "blocks", becomes="float")["reason"].startswith(
        "its weight has blocks of 2 elements with a scale each"
    )
    assert row(done, "eighths", becomes="float")["reason"].startswith(
        "its weight is float8e4m3fn, whose values are not evenly"
    )
    assert sqnr_db(proto, done, {"x": models.normal(3, 6, scale=3)}) >= LEAST_DB


def test_codes_as_an_input_of_the_model(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    grid = graph.grid("x", 0.05, 130, TensorProto.UINT8)
    x = graph.node("DequantizeLinear", ["x", *grid], "x_dq")
    w = graph.stored("w", qdq.codes(4, 3, 1, 1), 0.01)
    graph.node("Conv", [x, w], "y", "conv")
    inputs = [models.value("x", ["N", 3, 8, 8], TensorProto.UINT8)]
    proto = graph.model(inputs, [models.value("y", ["N", 4, 8, 8])])
    done = convert(proto, tmp_path)
    assert (row(done, "conv")["becomes"], row(done, "conv")["offset_d"]) == ("int8", 2)
    assert sqnr_db(proto, done, {"x": qdq.codes(2, 3, 8, 8, low=0, high=255).astype(np.uint8)}) >= LEAST_DB


def test_one_weight_of_two_layers(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x, w = graph.pair("x", "x", 0.05, 3), graph.stored("w", qdq.codes(3, 3, 1, 1), 0.004)
    graph.node("Conv", [x, w], "c", "first")
    c = graph.pair("c", "c", 0.0837)
    graph.node("Conv", [c, w], "y", "second")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, 8, 8])])
    done = convert(proto, tmp_path)
    assert done.layers["becomes"].to_list() == ["int8", "int8"]
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_half_a_pair_stays_in_float(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    graph.constant("w", models.normal(3, 3, 1, 1))
    x = graph.pair("x", "x", 0.05, 3)
    graph.node("Conv", [x, "w"], "c", "data alone")
    v = graph.stored("v", qdq.codes(3, 3, 1, 1), 0.004)
    graph.node("Conv", ["c", v], "y", "weight alone")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, 8, 8])])
    done = convert(proto, tmp_path)
    assert row(done, "data alone", becomes="float")["reason"] == "its weight has no DequantizeLinear"
    assert row(done, "weight alone")["reason"] == "no QuantizeLinear and DequantizeLinear stand on its data"
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def normed(gamma: np.ndarray, *, low: int = -127, between: str | None = None, pair: bool = False) -> onnx.ModelProto:
    """x -> pair -> Conv 'conv' [-> Div 'div' by a constant] [-> pair] -> BatchNormalization 'bn' -> y."""
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    values = qdq.codes(4, 3, 3, 3, low=low)
    values.reshape(-1)[0] = low
    graph.node(
        "Conv",
        [x, graph.stored("w", values, 0.01), graph.stored("b", qdq.codes(4), F(0.05) * F(0.01), 0, TensorProto.INT32)],
        "c",
        "conv",
    )
    value = "c"
    if between is not None:
        graph.constant("d", np.array([0.5, 2, 4, 8], F).reshape(1, 4, 1, 1))
        value = graph.node(between, [value, "d"], "divided", "div")
    if pair:
        value = graph.pair("c2", value, 0.3137)  # no half of it is a sum of products
    for name, array in models.batch_norm_parameters(4).items():
        graph.constant(name, gamma.astype(F) if name == "gamma" else array)
    graph.node("BatchNormalization", [value, "gamma", "beta", "mean", "var"], "y", "bn", epsilon=1e-3)
    return graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 6, 6])])


GAMMA = np.array([0.5, -1.5, 0, 2], F)


def test_batch_norm_stays_by_default(tmp_path: Path) -> None:
    done = convert(normed(GAMMA), tmp_path)
    assert exporting.read_record(done.files.record)["conv"]["scale_w"] == [F(0.01)]
    assert sqnr_db(normed(GAMMA), done, image()) >= LEAST_DB


@pytest.mark.parametrize("between", [None, "Div"])
def test_fused_batch_norm_multiplies_the_scales(tmp_path: Path, between: str | None) -> None:
    proto = normed(GAMMA, between=between)
    done = convert(proto, tmp_path, do_fusion=True)
    divisor = np.array([0.5, 2, 4, 8]) if between else np.ones(4)
    factor = GAMMA / np.sqrt(models.batch_norm_parameters(4)["var"].astype(np.float64) + 1e-3) / divisor
    scales = np.array(exporting.read_record(done.files.record)["conv"]["scale_w"])
    np.testing.assert_allclose(scales, np.where(factor == 0, 0.01, 0.01 * np.abs(factor)), rtol=1e-6)
    codes = qdq.codes(4, 3, 3, 3, low=-127)
    codes.reshape(-1)[0] = -127
    stored = next(array for array in initializers(done.files.deploy).values() if array.dtype == np.int8)
    np.testing.assert_array_equal(stored, codes * np.sign(factor).reshape(4, 1, 1, 1))
    assert [node.op_type for node in onnx.load(done.files.deploy).graph.node] == [
        "AscendQuant",
        "Conv",
        "AscendDequant",
    ]
    assert sqnr_db(proto, done, image()) >= LEAST_DB
    assert json.loads(done.files.config.read_text())["do_fusion"] is True


@pytest.mark.parametrize(
    ("low", "pair", "reason"),
    [(-128, False, "it turns signs, and the weight has codes of -128"), (-127, True, "a pair stands before it")],
)
def test_batch_norm_that_cannot_be_fused_stays(tmp_path: Path, low: int, pair: bool, reason: str) -> None:
    proto = normed(GAMMA, low=low, pair=pair)
    done = convert(proto, tmp_path, do_fusion=True)
    assert any(event.layer == "conv" and reason in event.message for event in done.events)
    assert exporting.read_record(done.files.record)["conv"]["scale_w"] == [F(0.01)]
    assert json.loads(done.files.config.read_text())["skip_fusion_layers"] == ["conv"]
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_average_pool_is_a_layer(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    graph.node("AveragePool", [x], "y", "pool", kernel_shape=[2, 2])
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, 7, 7])])
    done = convert(proto, tmp_path)
    assert row(done, "pool")["becomes"] == "int8"
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_chained_pairs_and_subgraph_readers_get_a_carrier(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    again = graph.pair("again", x, 0.07, -4)
    graph.node("Conv", [again, graph.stored("w", qdq.codes(3, 3, 1, 1), 0.004)], "c", "conv")
    branch = [
        helper.make_graph([helper.make_node(op, [x], ["out"])], op, [], [models.value("out", ["N", 3, 8, 8])])
        for op in ("Relu", "Neg")
    ]
    graph.node("If", ["flag"], "i", "if", then_branch=branch[0], else_branch=branch[1])
    graph.node("Add", ["c", "i"], "y", "add")
    inputs = [models.value("x", ["N", 3, 8, 8]), models.value("flag", [], TensorProto.BOOL)]
    proto = graph.model(inputs, [models.value("y", ["N", 3, 8, 8])])
    feeds = image() | {"flag": np.array(True)}
    done = convert(proto, tmp_path, data=[{"x": feeds["x"][:1], "flag": feeds["flag"]}])
    assert ("x_dq.carrier", "pair") in done.layers.select("node", "becomes").rows()
    assert sqnr_db(proto, done, feeds) >= LEAST_DB


def test_float16_model(tmp_path: Path) -> None:
    graph = qdq.Qdq(opset=19, ir_version=9)
    half = TensorProto.FLOAT16
    for name, scale in (("xs", 0.0625), ("ws", 0.0078125)):
        graph.constant(name, np.float16(scale))
    graph.constant("zero", np.int8(0))
    codes = graph.node("QuantizeLinear", ["x", "xs", "zero"], "x_q")
    x = graph.node("DequantizeLinear", [codes, "xs", "zero"], "x_dq")
    graph.constant("w", qdq.codes(4, 3, 1, 1).astype(np.int8))
    w = graph.node("DequantizeLinear", ["w", "ws", "zero"], "w_dq")
    graph.node("Conv", [x, w], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8], half)], [models.value("y", ["N", 4, 8, 8], half)])
    done = convert(proto, tmp_path)
    np.testing.assert_array_equal(initializers(done.files.deploy)["w"], qdq.codes(4, 3, 1, 1))
    assert done.report is not None
    assert done.report.passed


def inside_if() -> onnx.ModelProto:
    """The layer and its pair stand in one branch of an If."""
    inner = qdq.Qdq()
    x = inner.pair("in", "x", 0.05, 3)
    inner.node("Conv", [x, inner.stored("w", qdq.codes(3, 3, 1, 1), 0.01)], "c", "conv")
    shape = ["N", 3, 8, 8]
    then = helper.make_graph(inner.nodes, "then", [], [models.value("c", shape)], inner.tensors)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "else", [], [models.value("n", shape)])
    graph = qdq.Qdq()
    graph.node("If", ["flag"], "y", "if", then_branch=then, else_branch=other)
    inputs = [models.value("x", shape), models.value("flag", [], TensorProto.BOOL)]
    return graph.model(inputs, [models.value("y", shape)])


def test_pairs_inside_an_if_need_its_condition(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"QuantizeLinear 'in_q' lies inside a subgraph; .*--fix-input"):
        convert(inside_if(), tmp_path)
    done = convert(inside_if(), tmp_path, fix_input={"flag": "true"})
    assert row(done, "conv")["becomes"] == "int8"
    feeds = image()
    (wanted,) = models.run(inside_if(), feeds | {"flag": np.array(True)})
    (got,) = models.run(done.files.fake_quant, feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


OPERATORS = {
    "QLinearConv": "holds quantized operators: 1 node of type QLinearConv .first 'op'.*quant_format=QuantFormat.QDQ",
    "ConvInteger": "holds quantized operators: 1 node of type ConvInteger",
    "MatMulInteger": "holds quantized operators",
    "DynamicQuantizeLinear": "quantized dynamically: 1 node of type DynamicQuantizeLinear.*quantize statically",
    "AscendQuant": "is one for Ascend already: 1 node of type AscendQuant",
}


@pytest.mark.parametrize("op_type", OPERATORS)
def test_quantized_operators_are_refused(tmp_path: Path, op_type: str) -> None:
    nodes = [models.node(op_type, ["x"], "c", "op"), models.node("Relu", ["c"], "y", "relu")]
    proto = models.model(nodes, [models.value("x", ["N", 3])], [models.value("y", ["N", 3])])
    with pytest.raises(ModelError, match=OPERATORS[op_type]):
        convert(proto, tmp_path)


def test_float_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no QuantizeLinear or DequantizeLinear, so there is nothing to convert"):
        convert(models.conv_relu(), tmp_path)


def test_integer_operator_inside_a_pair_is_refused(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    codes = graph.quantize("x", "x", 0.05)
    turned = graph.node("Neg", [codes], "p", "turned")
    graph.node("DequantizeLinear", [turned, "x_scale", "x_zero"], "y")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 3, 8, 8])])
    with pytest.raises(
        ModelError, match="QuantizeLinear 'x_q' feeds Neg 'turned': integer operators are not converted"
    ):
        convert(proto, tmp_path)


def test_scales_that_are_computed_or_wrong_are_refused(tmp_path: Path) -> None:
    proto = qdq.conv()
    proto.graph.input.append(models.value("x_scale", []))
    del proto.graph.initializer[[one.name for one in proto.graph.initializer].index("x_scale")]
    with pytest.raises(ModelError, match="QuantizeLinear 'x_q': its scale is not a constant"):
        convert(proto, tmp_path)
    with pytest.raises(ModelError, match=r"QuantizeLinear 'x_q': scale \[0.0\]; positive and finite is expected"):
        convert(qdq.conv(data=(0.0, 0, TensorProto.INT8), bias_scale=0.1), tmp_path)


def test_output_without_axes(tmp_path: Path) -> None:
    graph = qdq.Qdq()
    x = graph.pair("x", "x", 0.05, 3)
    graph.node("Conv", [x, graph.stored("w", qdq.codes(3, 3, 1, 1), 0.01)], "c", "conv")
    graph.node("ReduceMean", ["c"], "r", "mean", keepdims=0)
    y = graph.pair("r", "r", 0.001)
    codes = graph.quantize("z", "r", 0.002, 1)
    outputs = [models.value(y, []), models.value(codes, [], TensorProto.INT8)]
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], outputs)
    done = convert(proto, tmp_path)
    assert done.report is not None
    assert done.report.passed
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_weight_beyond_float32_is_told(tmp_path: Path) -> None:
    proto = qdq.conv(scales=np.full(4, 1e37, F), bias_scale=1.0)
    with pytest.raises(
        ModelError, match="no layer to quantize: 1 candidate refused; Conv 'conv': its weight holds NaN or infinity"
    ):
        convert(proto, tmp_path)


def test_nothing_is_written_after_a_refusal(tmp_path: Path) -> None:
    build, _ = WIDE["int16"]
    with pytest.raises(ExportError):
        convert(build(), tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_model_is_not_written_over(tmp_path: Path) -> None:
    path = models.save(qdq.conv(), tmp_path / "m_fake_quant_model.onnx")
    before = path.read_bytes()
    with pytest.raises(ExportError, match=r"would write over the model that is read; choose another --prefix"):
        calibrant.convert_qat(path, prefix=tmp_path / "m")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_model_without_known_sizes_is_not_verified_and_says_so(tmp_path: Path) -> None:
    proto = qdq.conv()
    proto.graph.input[0].CopyFrom(models.value("x", ["N", 3, "H", "W"]))
    del proto.graph.output[0].type.tensor_type.shape.dim[2:]
    proto.graph.output[0].CopyFrom(models.value("y", ["N", 4, "H", "W"]))
    done = convert(proto, tmp_path)
    assert done.report is None
    assert any(event.severity == "warn" and "not verified" in event.message for event in done.events)


def test_operators_of_onnxruntimes_own_domain(tmp_path: Path) -> None:
    proto = qdq.conv()
    for node in proto.graph.node:
        if node.op_type.endswith("Linear"):
            node.domain = "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    done = convert(proto, tmp_path)
    assert row(done, "conv")["becomes"] == "int8"
    assert [one.domain for one in onnx.load(done.files.deploy).opset_import] == [""]
    assert sqnr_db(proto, done, image()) >= LEAST_DB


def test_command_prints_the_table_and_the_distances(tmp_path: Path) -> None:
    source = qdq.saved(qdq.conv(), tmp_path)
    done = CliRunner().invoke(app, ["convert-qat", str(source), "--prefix", str(tmp_path / "o" / "m")])
    assert done.exit_code == 0
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert lines["deploy_model"] == str(tmp_path / "o" / "m_deploy_model.onnx")
    assert float(lines["least_layer_sqnr_db"]) >= 100
    rows = CliRunner().invoke(app, ["convert-qat", str(source), "--prefix", str(tmp_path / "m"), "--format", "csv"])
    assert "conv,0,Conv,int8,0.02,-20,4,int8,kept," in rows.stdout


def test_amct_function_copies_the_record(tmp_path: Path) -> None:
    source = qdq.saved(qdq.conv(), tmp_path)
    done = convert_qat_model(
        model_file=source, save_path=tmp_path / "a" / "m", record_file=tmp_path / "b" / "record.txt"
    )
    assert (tmp_path / "b" / "record.txt").read_text() == done.files.record.read_text()
    assert done.files.deploy == tmp_path / "a" / "m_deploy_model.onnx"


def test_fixed_input_is_given_to_the_source_as_well(tmp_path: Path) -> None:
    proto = qdq.conv()
    proto.graph.input.append(models.value("gain", []))
    proto.graph.node.append(helper.make_node("Mul", ["y", "gain"], ["z"], name="mul"))
    proto.graph.output.append(models.value("z", ["N", 4, 8, 8]))
    done = convert(proto, tmp_path, fix_input={"gain": 2.0})
    assert done.source_sqnr_db is not None
    assert done.source_sqnr_db >= LEAST_DB
