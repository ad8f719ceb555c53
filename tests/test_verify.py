"""Verify passes what is right and fails what is not: every tampering below must be found."""

import dataclasses
import math
from collections.abc import Callable

import exporting
import models
import numpy as np
import onnx
import onnx_ir as ir
import polars as pl
import pytest
from exporting import CASES, Case
from onnx import AttributeProto, numpy_helper

from calibrant.errors import DataError, EmptyDataError, ExportError
from calibrant.export import fake_graph
from calibrant.export.files import write_export
from calibrant.export.verify import verify_export

Feeds = list[dict[str, np.ndarray]]


def feeds(channels: int = 4, count: int = 2) -> Feeds:
    return [{"x": models.normal(1, channels, 8, 8, seed=seed, scale=1.0)} for seed in range(count)]


def save(model: onnx.ModelProto, path) -> None:
    path.write_bytes(model.SerializeToString())


def node_of(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def change_constant(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))


def plus_one_first(array: np.ndarray) -> np.ndarray:
    array.flat[0] += 1
    return array


@pytest.mark.parametrize("name", CASES)
def test_every_layer_kind_passes(name, tmp_path):
    case = CASES[name]
    export = exporting.export(case.proto(), tmp_path)
    report = verify_export(export.files, [{"x": case.feed(seed)} for seed in range(2)])
    assert report.failures() == []
    assert report.findings == ()
    (check,) = report.layers
    assert (check.layer, check.op_type) == ("layer", case.op_type)
    assert check.exact
    assert check.bit_equal
    assert report.sqnr_db == math.inf


def test_terms_and_greatest_sum(tmp_path):
    case = CASES["Conv 2-D"]
    export = exporting.export(case.proto(), tmp_path)
    (check,) = verify_export(export.files, [{"x": case.feed()}]).layers
    assert check.terms == 3 * 3 * 3 + 1
    codes = exporting.weight_codes(case.arrays()["w"], "Conv", 1, export.record["layer"]["scale_w"])
    bias = next(numpy_helper.to_array(t) for t in export.deploy.graph.initializer if t.name == "b")
    data = np.clip(np.rint(case.feed() * (np.float32(1) / np.float32(0.02))) - 17, -128, 127) + 17
    expected = np.abs(codes).reshape(4, -1).sum(axis=1) * np.abs(data).max() + np.abs(bias.astype(np.int64))
    assert check.greatest_sum == expected.max()
    assert not check.measured


def long_product(depth: int) -> onnx.ModelProto:
    weight = np.ones((depth, 3), np.float32)
    weight[1::2] = 0.97
    nodes = [models.node("MatMul", ["x", "w"], "y", "matmul")]
    return models.model(nodes, [models.value("x", ["N", depth])], [models.value("y", ["N", 3])], {"w": weight})


def test_sums_beyond_float32_are_measured_and_bounded(tmp_path):
    depth = 4096
    export = exporting.export(long_product(depth), tmp_path, scale_d=1 / 255, offset=-128)
    x = 1 - np.abs(models.normal(1, depth, scale=0.01))
    report = verify_export(export.files, [{"x": x}])
    (check,) = report.layers
    assert check.measured
    assert not check.exact
    data = np.clip(np.rint(x * (np.float32(1) / np.float32(1 / 255))) - 128, -128, 127) + 128
    weight = np.where(np.arange(depth) % 2, np.rint(0.97 * 127), 127)
    assert check.greatest_sum == np.sum(data.astype(np.int64) * weight.astype(np.int64)) > 2**24
    assert check.channels == 3
    assert check.exact_channels == 0
    assert 0 <= check.worst_error <= check.allowed_error
    assert 0 <= check.worst_ratio <= 1
    assert report.passed


def test_measured_sums_may_show_that_float32_is_exact(tmp_path):
    depth = 4096
    export = exporting.export(long_product(depth), tmp_path, scale_d=1 / 255, offset=-128)
    x = np.zeros((1, depth), np.float32)
    x[0, 0] = 1
    (check,) = verify_export(export.files, [{"x": x}]).layers
    assert check.measured
    assert check.exact
    assert check.bit_equal


def test_report_prints_a_row_a_layer(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    told: list[tuple[str, int, int]] = []
    report = verify_export(export.files, feeds(), lambda *step: told.append(step))
    frame = report.frame()
    assert frame["layer"].to_list() == ["dw", "pw"]
    assert frame["passed"].all()
    assert (
        frame["channels"].to_list() == frame["exact_channels"].to_list() == frame["equal_channels"].to_list() == [4, 6]
    )
    assert frame["worst_ratio"].to_list() == [0, 0]
    assert frame.schema["greatest_sum"] == pl.Float64
    assert report.passed
    assert "2 layers on 2 samples: 2 bit-equal; end to end identical outputs" in report.summary()
    assert told[0] == ("verify", 0, 2)
    assert told[-1] == ("verify", 2, 2)
    assert dataclasses.is_dataclass(report)


def test_layers_may_be_exposed_one_at_a_time(tmp_path, monkeypatch):
    export = exporting.export(models.depthwise(), tmp_path)
    whole = verify_export(export.files, feeds())
    monkeypatch.setattr(fake_graph, "_HELD_ELEMENTS", 1)
    assert verify_export(export.files, feeds()) == whole


# ---------------------------------------------------------------------------------------------------------- tampering


def deploy_weight(model: onnx.ModelProto) -> None:
    change_constant(model, "w1", plus_one_first)


def deploy_bias(model: onnx.ModelProto) -> None:
    change_constant(model, "b2", plus_one_first)


def deploy_word(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.dequant.param", plus_one_first)


def upper_word(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.dequant.param", lambda words: words | np.uint64(1 << 32))


def word_type(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.dequant.param", lambda words: words.astype(np.int64))


def word_length(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.dequant.param", lambda words: words[:3])


def offset_type(model: onnx.ModelProto) -> None:
    attribute = next(a for a in node_of(model, "dw.quant").attribute if a.name == "offset")
    attribute.CopyFrom(onnx.helper.make_attribute("offset", -17))


def offset_value(model: onnx.ModelProto) -> None:
    next(a for a in node_of(model, "dw.quant").attribute if a.name == "offset").f = -16.0


def scale_value(model: onnx.ModelProto) -> None:
    attribute = next(a for a in node_of(model, "dw.quant").attribute if a.name == "scale")
    attribute.f = float(np.nextafter(np.float32(attribute.f), np.float32(0)))


def node_order(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])


def foreign_domain(model: onnx.ModelProto) -> None:
    node_of(model, "dw.quant").domain = "amct.customop"


def missing_dst_type(model: onnx.ModelProto) -> None:
    node = node_of(model, "dw.quant")
    kept = [a for a in node.attribute if a.name != "dst_type"]
    del node.attribute[:]
    node.attribute.extend(kept)


def wide_bias(model: onnx.ModelProto) -> None:
    change_constant(model, "b1", lambda bias: bias.astype(np.float32))


def other_layer_name(model: onnx.ModelProto) -> None:
    node_of(model, "dw").name = "dw_renamed"


DEPLOY_TAMPERINGS: dict[Callable[[onnx.ModelProto], None], str] = {
    deploy_weight: "dw: the weight codes of the two models differ",
    deploy_bias: "pw: the bias codes of the two models differ",
    deploy_word: "dw.dequant: words differ from scale_d \\* scale_w",
    upper_word: "dw.dequant: shifts \\(bits 39 to 32 of the words\\) are not shift_bit of the record",
    word_type: "dw.dequant: needs a second input, a uint64 initializer",
    word_length: "dw.dequant: parameter of shape \\(3,\\); length 1 or 4",
    offset_type: "dw.quant: attribute offset is INT; ATC reads only FLOAT",
    offset_value: "dw.quant: offset is not -17",
    scale_value: "dw.quant: scale is not float32\\(1 / scale_d\\)",
    node_order: "reads .* before it is made",
    foreign_domain: "dw.quant: domain 'amct.customop'",
    missing_dst_type: "dw.quant: attribute dst_type is missing",
    wide_bias: "dw: bias 'b1' is not an int32 initializer",
    other_layer_name: "dw: has a record entry, but no quantized layer",
}


@pytest.mark.parametrize("tamper", DEPLOY_TAMPERINGS, ids=lambda function: function.__name__)
def test_a_tampered_deploy_model_fails(tamper, tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    model = export.deploy
    tamper(model)
    save(model, export.files.deploy)
    report = verify_export(export.files, feeds())
    assert not report.passed
    with pytest.raises(AssertionError, match=DEPLOY_TAMPERINGS[tamper]):
        raise AssertionError("\n".join(report.failures()))


def fake_weight(model: onnx.ModelProto) -> None:
    change_constant(model, "w2", plus_one_first)


def fake_scale(model: onnx.ModelProto) -> None:
    change_constant(model, "pw.dequant.fakequant.scale", lambda scale: np.nextafter(scale, np.float32(1)))


def fake_offset(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.quant.fakequant.offset", lambda offset: offset + np.float32(1))


def fake_limit(model: onnx.ModelProto) -> None:
    change_constant(model, "dw.quant.fakequant.max_val", lambda limit: limit - np.float32(1))


def fake_rounding(model: onnx.ModelProto) -> None:
    node_of(model, "dw.quant.fakequant.round").op_type = "Floor"


def fake_padding(model: onnx.ModelProto) -> None:
    for attribute in node_of(model, "dw").attribute:
        if attribute.name == "pads":
            attribute.ints[:] = [0, 0, 2, 2]


def fake_output(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.name == "relu").op_type = "Sigmoid"


FAKE_TAMPERINGS: dict[Callable[[onnx.ModelProto], None], str] = {
    fake_weight: "pw: the weight codes of the two models differ",
    fake_scale: "pw: the dequant scales of the two models differ",
    fake_offset: "dw: the data offsets of the two models differ",
    fake_limit: "dw: the code ranges of the two models differ",
    fake_rounding: "layer 'dw': the fake-quant model has no Round",
    fake_padding: r"dw: outputs differ although float32 is exact \(B <= 2\^24\) in channels 0, 1, 2 and 1 more of 4",
    fake_output: "end to end: SQNR",
}


@pytest.mark.parametrize("tamper", FAKE_TAMPERINGS, ids=lambda function: function.__name__)
def test_a_tampered_fake_quant_model_fails(tamper, tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    model = export.fake_quant
    tamper(model)
    save(model, export.files.fake_quant)
    report = verify_export(export.files, feeds())
    assert not report.passed
    with pytest.raises(AssertionError, match=FAKE_TAMPERINGS[tamper]):
        raise AssertionError("\n".join(report.failures()))


def test_a_tampered_record_fails(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    text = export.files.record.read_text()
    export.files.record.write_text(text.replace("scale_d: 0.02", "scale_d: 0.03", 1))
    lines = "\n".join(verify_export(export.files, feeds()).failures())
    assert "dw.quant: scale is not float32(1 / scale_d) of the record of 'dw'" in lines
    assert "dw.dequant: words differ" in lines


def test_an_accumulator_beyond_int32_is_reported(tmp_path):
    case = Case("MatMul", (1, 2, 4), (4, 3), (3,))
    export = exporting.export(case.proto(), tmp_path)
    for path in (export.files.deploy, export.files.fake_quant):
        model = onnx.load(path)
        change_constant(model, "b", lambda bias: np.full_like(bias, 2**31 - 1))
        save(model, path)
    x = {"x": np.full((1, 2, 4), 2, np.float32)}
    lines = verify_export(export.files, [x]).failures()
    assert any("layer: an accumulator leaves int32" in line for line in lines)


# ---------------------------------------------------------------------------------------------------------- bad input


def test_no_samples(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    with pytest.raises(EmptyDataError, match="verify: no samples"):
        verify_export(export.files, [])


def test_missing_and_unreadable_files(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    export.files.deploy.write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"m_deploy_model\.onnx' is no readable ONNX model"):
        verify_export(export.files, feeds())
    export.files.record.unlink()
    with pytest.raises(ExportError, match=r"m_record\.txt' is missing; export first"):
        verify_export(export.files, feeds())


def refusal(files, sample, number: int = 0) -> str:
    """What verify says, on one line, about a sample that the deploy model does not take."""
    with pytest.raises(DataError) as caught:
        verify_export(files, [*feeds(4, number), sample])
    text = str(caught.value)
    start = f"verify: sample {number}: the model at '{files.deploy}' does not take it: "
    end = "; verify on samples of this model, or give the prefix of theirs"
    assert text.startswith(start)
    assert text.endswith(end)
    assert "\n" not in text
    return text[len(start) : -len(end)]


def test_samples_of_another_model(tmp_path):
    files = exporting.export(models.depthwise(), tmp_path).files
    right = feeds()[0]["x"]
    takes = "input 'x' takes float32 of shape [N, 4, 8, 8], got"
    assert refusal(files, {"X": right}).startswith("input 'x' is missing; the data has ['X']")
    assert refusal(files, {"x": right, "y": right}).startswith("the model has no input 'y'")
    assert refusal(files, feeds(5)[0], 1) == f"{takes} float32 of shape [1, 5, 8, 8]"
    assert refusal(files, {"x": right[..., :7]}) == f"{takes} float32 of shape [1, 4, 8, 7]"
    assert refusal(files, {"x": right[0]}) == f"{takes} float32 of shape [4, 8, 8]"
    assert refusal(files, {"x": right.astype(np.float64)}) == f"{takes} float64 of shape [1, 4, 8, 8]"


def test_samples_that_fail_inside_the_model(tmp_path):
    """The declared shape is open; only the Conv knows that it needs 4 channels."""
    model = models.depthwise()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "C"
    files = exporting.export(model, tmp_path).files
    with pytest.raises(DataError) as caught:
        verify_export(files, feeds(5, 1))
    text = str(caught.value)
    takes = "input 'x' takes float32 of shape [N, C, 8, 8], got float32 of shape [1, 5, 8, 8]"
    assert text.startswith(
        f"verify: sample 0: the model at '{files.fake_quant}' does not take it: {takes}, but onnxruntime fails on this sample: "
    )
    assert text.endswith("; verify on samples of this model, or give the prefix of theirs")
    assert "\n" not in text


def test_the_models_may_take_other_samples_than_each_other(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    model = export.fake_quant
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 9
    save(model, export.files.fake_quant)
    where = r"the model at '.*m_fake_quant_model\.onnx' does not take it"
    with pytest.raises(DataError, match=rf"{where}: input 'x' takes float32 of shape \[N, 4, 9, 8\]"):
        verify_export(export.files, feeds())


def test_samples_without_codes_are_named(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    holed = feeds(4, 1)[0]["x"]
    holed[0, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"verify: sample 0: node 'dw\.quant': its input 'x' holds NaN"):
        verify_export(export.files, [{"x": holed}])


def test_a_fake_quant_model_that_does_not_open(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    model = export.fake_quant
    node_of(model, "relu").op_type = "Unheard"
    save(model, export.files.fake_quant)
    report = verify_export(export.files, feeds())
    assert not report.passed
    assert "onnxruntime cannot open the model" in report.failures()[0]


def test_a_fixed_batch_is_filled(tmp_path):
    export = exporting.export(models.fixed_batch(2), tmp_path)
    assert verify_export(export.files, feeds(3)).passed


def half_matmul() -> onnx.ModelProto:
    float16 = onnx.TensorProto.FLOAT16
    return models.model(
        [models.node("MatMul", ["x", "w"], "m", "matmul"), models.node("Relu", ["m"], "y", "relu")],
        [models.value("x", ["N", 4], float16)],
        [models.value("y", ["N", 6], float16)],
        {"w": models.normal(4, 6).astype(np.float16)},
    )


def test_float16(tmp_path):
    full = models.model(
        [models.node("MatMul", ["x", "w"], "m", "matmul"), models.node("Relu", ["m"], "y", "relu")],
        [models.value("x", ["N", 4])], [models.value("y", ["N", 6])], {"w": models.normal(4, 6)},
    )  # fmt: skip
    prepared = dataclasses.replace(exporting.prepare(full, tmp_path), model=ir.from_proto(half_matmul()))
    files = write_export(prepared, exporting.choose_scales(prepared), tmp_path / "m", "{}")
    dequant = node_of(onnx.load(files.deploy), "matmul.dequant")
    assert [(a.name, a.type, a.i) for a in dequant.attribute] == [("dtype", AttributeProto.INT, 1)]
    assert "op_data_type: 'FLOAT16'" in files.record.read_text()
    onnx.checker.check_model(onnx.load(files.fake_quant), full_check=True)
    report = verify_export(files, [{"x": models.normal(1, 4, scale=1.0).astype(np.float16)}])
    assert report.failures() == []
    assert report.layers[0].bit_equal
