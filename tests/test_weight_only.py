"""Layers whose weight alone is quantized: codes, scales and offsets from naive ranges, both forms, verify, and the record."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import exporting
import models
import naive
import numpy as np
import onnx
import pytest
from exporting import Case
from onnx import numpy_helper, shape_inference
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.errors import ConfigError
from calibrant.export.files import ExportedFiles, export_files, write_export
from calibrant.export.verify import verify_export
from calibrant.export.weight_only import WeightOnlyLayer
from calibrant.rebuild import export_record

CASES = {
    "Conv": Case("Conv", (1, 4, 6, 5), (5, 4, 3, 3), (5,), {"pads": [1, 1, 1, 1]}),
    "Conv in groups": Case("Conv", (1, 4, 6, 6), (6, 2, 3, 3), (6,), {"group": 2}),
    "ConvTranspose": Case("ConvTranspose", (1, 4, 4, 4), (4, 3, 2, 2), (3,), {"strides": [2, 2]}),
    "ConvTranspose in groups": Case("ConvTranspose", (1, 4, 3, 4), (4, 3, 3, 3), (6,), {"group": 2, "strides": [2, 1]}),
    "Gemm": Case("Gemm", (1, 8), (8, 5), (5,)),
    "MatMul": Case("MatMul", (1, 3, 6), (6, 5)),
    "MatMul and Add": Case("MatMul", (1, 3, 6), (6, 5), (5,)),
}


class Exported(NamedTuple):
    """A run of one layer and its files."""

    run: calibrant.Run
    files: ExportedFiles
    source: Path


def compress(case: Case, folder: Path, arq: str = "", *, data: str = "", **options: Any) -> Exported:
    source = models.save(case.proto(), folder / "m.onnx")
    block = f"weight_compress_only: true arq_quantize {{ {arq} }} {data}"
    (folder / "quant.cfg").write_text(f"common_config {{ {block} }}")
    feeds = [{"x": case.feed(seed)} for seed in range(3)]
    prefix = folder / "out" / "m"
    run = calibrant.run(source, feeds, run=folder / "m.run", config=folder / "quant.cfg", prefix=prefix, **options)
    return Exported(run, export_files(prefix), source)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def types_of(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def change(path: Path, name: str, value: float) -> None:
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = value
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    path.write_bytes(model.SerializeToString())


def failures(found: Exported, case: Case) -> list[str]:
    return verify_export(found.files, [{"x": case.feed(9)}]).failures()


def expected_weight(case: Case, entry: dict[str, list[float]], bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the record's scales, and what they are worth in float32, element by element."""
    weight = case.arrays()["w"]
    offsets = [int(offset) for offset in entry["offset_w"]]
    codes = exporting.weight_codes(weight, case.op_type, case.groups, entry["scale_w"], offsets=offsets, bits=bits)
    values = np.zeros(weight.shape, np.float32)
    for place in np.ndindex(*weight.shape):
        channel = 0
        if len(offsets) > 1:
            channel = place[0]
            if case.op_type == "ConvTranspose":
                channel = place[0] // (weight.shape[0] // case.groups) * weight.shape[1] + place[1]
        values[place] = np.float32(codes[place] - offsets[channel]) * np.float32(entry["scale_w"][channel])
    return codes, values


def float_output(source: Path, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The float model with this weight in the place of its own."""
    model = onnx.load(source)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(weight, "w"))
    path = source.with_name("reconstructed.onnx")
    path.write_bytes(model.SerializeToString())
    return np.asarray(models.run(path, {"x": x})[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("asymmetric", ["true", "false"])
@pytest.mark.parametrize("channel_wise", ["true", "false"])
def test_models_hold_the_codes_of_the_record_and_compute_with_them(
    name: str, asymmetric: str, channel_wise: str, tmp_path: Path
) -> None:
    case = CASES[name]
    found = compress(case, tmp_path, f"asymmetric: {asymmetric} channel_wise: {channel_wise}")
    entry = exporting.read_record(found.files.record)["layer"]
    assert entry["scale_d"] == entry["offset_d"] == []
    per_channel = channel_wise == "true" and case.op_type.startswith("Conv")
    rows = naive.channels_first(case.arrays()["w"], case.op_type, case.groups)
    fitted = naive.arq(rows, 8, channel_wise=per_channel, asymmetric=asymmetric == "true")
    assert entry["scale_w"] == [one.scale for one in fitted]
    assert entry["offset_w"] == [one.offset for one in fitted]
    codes, values = expected_weight(case, entry, 8)
    for path in (found.files.deploy, found.files.fake_quant):
        assert arrays_of(path)["w"].dtype == np.int8
        assert arrays_of(path)["w"].tolist() == codes.tolist()
        assert "AscendQuant" not in types_of(path)
    x = case.feed(9)
    expected = float_output(found.source, values, x)
    for path in (found.files.deploy, found.files.fake_quant):
        np.testing.assert_allclose(models.run(path, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)
    report = verify_export(found.files, [{"x": x}])
    assert report.failures() == []
    assert report.findings == ()
    (check,) = report.layers
    assert (check.layer, check.op_type, check.exact, check.passed) == ("layer", case.op_type, False, True)
    assert check.worst_error <= check.allowed_error
    again = export_record(found.files.record, found.source, tmp_path / "again" / "m")
    for one in ("deploy", "fake_quant", "record", "quant_map"):
        assert getattr(again, one).read_bytes() == getattr(found.files, one).read_bytes()


@pytest.mark.parametrize("bits", [6, 7, 8])
def test_narrow_weights_alone(bits: int, tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = compress(case, tmp_path, f"asymmetric: true quant_bits: {bits}")
    entry = exporting.read_record(found.files.record)["layer"]
    assert f'wts_type: "INT{bits}"' in found.files.record.read_text()
    codes, _ = expected_weight(case, entry, bits)
    assert arrays_of(found.files.deploy)["w"].tolist() == codes.tolist()
    assert failures(found, case) == []
    low, high = naive.code_range(bits)
    for path in (found.files.deploy, found.files.fake_quant):
        change(path, "w", high + 1 if bits < 8 else int(codes.flat[0]))
    assert any("weight codes are wider" in text for text in failures(found, case)) == (bits < 8)
    assert low <= min(entry["offset_w"])


@pytest.mark.parametrize(
    ("opset", "channel_wise", "form", "types"),
    [
        (13, "false", "dequantize", ["DequantizeLinear", "Conv"]),
        (15, "false", "dequantize", ["DequantizeLinear", "Conv"]),
        (16, "false", "dequantize", ["Cast", "Sub", "Mul", "Conv"]),
        (9, "false", "dequantize", ["Cast", "Sub", "Mul", "Conv"]),
        (13, "true", "dequantize", ["Cast", "Sub", "Mul", "Conv"]),
        (13, "false", "mul", ["Cast", "Sub", "Mul", "Conv"]),
    ],
)
def test_the_form_follows_opset_scales_and_choice(
    opset: int, channel_wise: str, form: str, types: list[str], tmp_path: Path
) -> None:
    case = CASES["Conv"]._replace(opset=opset)
    found = compress(case, tmp_path, f"asymmetric: true channel_wise: {channel_wise}", weight_only_form=form)
    for path in (found.files.deploy, found.files.fake_quant):
        assert types_of(path) == types
        model = onnx.load(path)
        onnx.checker.check_model(model)
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    assert failures(found, case) == []
    names = set(arrays_of(found.files.deploy)) - {"w", "b"}
    second = "zero_point" if types[0] == "DequantizeLinear" else "offset"
    assert names == {"layer.weight.scale", f"layer.weight.{second}"}


def test_both_forms_compute_the_same_bit_for_bit(tmp_path: Path) -> None:
    case = CASES["Conv"]._replace(opset=13)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = compress(case, tmp_path / "a", "asymmetric: true channel_wise: false")
    second = compress(case, tmp_path / "b", "asymmetric: true channel_wise: false", weight_only_form="mul")
    x = case.feed(9)
    assert types_of(first.files.deploy) != types_of(second.files.deploy)
    np.testing.assert_array_equal(
        models.run(first.files.deploy, {"x": x})[0], models.run(second.files.deploy, {"x": x})[0]
    )
    assert first.files.record.read_bytes() == second.files.record.read_bytes()


def test_tables_have_the_weight_and_no_data_or_bias(tmp_path: Path) -> None:
    found = compress(CASES["Conv"], tmp_path, "asymmetric: true", data="ifmr_quantize { }")
    rows = found.run.read("quant_params")
    assert set(rows["role"]) == {"weight"}
    assert found.run.read("search").height == 0
    weight = CASES["Conv"].arrays()["w"]
    entry = exporting.read_record(found.files.record)["layer"]
    _, values = expected_weight(CASES["Conv"], entry, 8)
    errors = ((weight.astype(np.float64) - values) ** 2).reshape(len(weight), -1).mean(axis=1)
    np.testing.assert_allclose(rows.sort("channel")["mse"], errors, rtol=1e-4, atol=1e-15)
    told = found.run.read("events")["message"].to_list()
    assert any("ifmr_quantize has no effect on a layer with weight_compress_only: true" in text for text in told)
    assert any("config.json has no key for weight_compress_only" in text for text in told)


def test_a_float16_weight_comes_back_as_float16(tmp_path: Path) -> None:
    case = CASES["Conv"]
    arrays = {name: array.astype(np.float16) for name, array in case.arrays().items()}
    nodes = [
        models.node("Conv", ["x", "w", "b"], "h", "layer", pads=[1, 1, 1, 1]),
        models.node("Cast", ["h"], "c", "cast", to=onnx.TensorProto.FLOAT),
        models.node("Conv", ["c", "v"], "y", "other"),
    ]
    inputs = [models.value("x", ["N", 4, 6, 5], onnx.TensorProto.FLOAT16)]
    weights = {**arrays, "v": models.normal(2, 5, 1, 1)}
    proto = models.model(nodes, inputs, [models.value("y", ["N", 2, 6, 5])], weights, opset=13)
    prepared = exporting.prepare(proto, tmp_path)
    alone = WeightOnlyLayer(prepared.layers[0], np.float32([0.01]), np.int32([3]), 8)
    files = write_export(prepared, [], tmp_path / "out" / "m", "{}", weight_only=[alone])
    assert types_of(files.deploy) == ["DequantizeLinear", "Cast", "Conv", "Cast", "Conv"]
    assert "op_data_type: 'FLOAT16'" in files.record.read_text()
    report = verify_export(files, [{"x": case.feed(seed).astype(np.float16)} for seed in range(2)])
    assert report.failures() == []
    assert report.layers[0].worst_ratio > 0  # float16 rounds, and no more than it may


def test_layers_with_and_without_their_data_stand_side_by_side(tmp_path: Path) -> None:
    nodes = [
        models.node("Conv", ["x", "w"], "h", "first", pads=[1, 1, 1, 1]),
        models.node("Relu", ["h"], "r", "relu"),
        models.node("Conv", ["r", "v"], "y", "second", pads=[1, 1, 1, 1]),
    ]
    weights = {"w": models.normal(4, 4, 3, 3, seed=3), "v": models.normal(4, 4, 3, 3, seed=4)}
    shapes = [models.value(name, ["N", 4, 6, 6]) for name in "xy"]
    source = models.save(models.model(nodes, shapes[:1], shapes[1:], weights), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text(
        'override_layer_configs { layer_name: "first" calibration_config { weight_compress_only: true } }'
    )
    feeds = [{"x": models.normal(1, 4, 6, 6, seed=seed)} for seed in range(2)]
    prefix = tmp_path / "out" / "m"
    calibrant.run(source, feeds, run=tmp_path / "m.run", config=tmp_path / "quant.cfg", prefix=prefix)
    files = export_files(prefix)
    record = exporting.read_record(files.record)
    assert list(record) == ["first", "second"]
    assert [len(entry["scale_d"]) for entry in record.values()] == [0, 1]
    report = verify_export(files, feeds)
    assert report.failures() == []
    assert {check.layer: check.exact for check in report.layers} == {"first": False, "second": True}


def test_the_add_behind_a_float_matmul_can_be_a_quantized_input(tmp_path: Path) -> None:
    case = CASES["MatMul and Add"]
    source = models.save(case.proto(), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text(
        'common_config { weight_compress_only: true } tensor_quantize { layer_name: "add" input_index: 0 }'
    )
    feeds = [{"x": case.feed(seed)} for seed in range(2)]
    prefix = tmp_path / "out" / "m"
    calibrant.run(source, feeds, run=tmp_path / "m.run", config=tmp_path / "quant.cfg", prefix=prefix)
    files = export_files(prefix)
    assert list(exporting.read_record(files.record)) == ["layer", "add:0"]
    assert verify_export(files, feeds).failures() == []
    again = export_record(files.record, source, tmp_path / "again" / "m")
    assert again.deploy.read_bytes() == files.deploy.read_bytes()


def test_a_float16_model_runs(tmp_path: Path) -> None:
    case = CASES["Conv"]
    arrays = {name: array.astype(np.float16) for name, array in case.arrays().items()}
    nodes = [models.node("Conv", ["x", "w", "b"], "y", "layer", pads=[1, 1, 1, 1])]
    shapes = [models.value(name, ["N", size, 6, 5], onnx.TensorProto.FLOAT16) for name, size in (("x", 4), ("y", 5))]
    source = models.save(models.model(nodes, shapes[:1], shapes[1:], arrays, opset=13), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text(
        "common_config { weight_compress_only: true arq_quantize { asymmetric: true } }"
    )
    feeds = [{"x": case.feed(seed).astype(np.float16)} for seed in range(2)]
    prefix = tmp_path / "out" / "m"
    calibrant.run(source, feeds, run=tmp_path / "m.run", config=tmp_path / "quant.cfg", prefix=prefix)
    files = export_files(prefix)
    assert types_of(files.deploy) == ["Cast", "Sub", "Mul", "Cast", "Conv"]
    assert "op_data_type: 'FLOAT16'" in files.record.read_text()
    assert verify_export(files, feeds).failures() == []
    again = export_record(files.record, source, tmp_path / "again" / "m")
    assert again.deploy.read_bytes() == files.deploy.read_bytes()


TAMPERED = {
    "a code of one model": (["deploy"], "w", 3, "weight codes of the two models differ"),
    "a scale of both": (["deploy", "fake_quant"], "layer.weight.scale", 0.5, "scales of the weight are not scale_w"),
    "an offset of both": (
        ["deploy", "fake_quant"],
        "layer.weight.offset",
        100,
        "offsets of the weight are not offset_w",
    ),
    "the bias of one model": (["fake_quant"], "b", 7.0, "outputs are further from float64"),
}


@pytest.mark.parametrize(("models_", "name", "value", "words"), TAMPERED.values(), ids=TAMPERED)
def test_tampering_fails(models_: list[str], name: str, value: float, words: str, tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = compress(case, tmp_path, "asymmetric: true")
    for one in models_:
        change(getattr(found.files, one), name, value)
    assert any(words in text for text in failures(found, case))


def test_a_weight_that_the_record_does_not_name_fails(tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = compress(case, tmp_path)
    found.files.record.write_text(found.files.record.read_text().replace('key: "layer"', 'key: "other"'))
    told = failures(found, case)
    assert any("its weight is quantized alone, but the record does not say so" in text for text in told)
    assert any("layer 'other' of the record is not in the model" in text for text in told)


REFUSED = {
    "four bits": (('wts_type: "INT8"', 'wts_type: "INT4"'), "wts_type is INT4; INT6, INT7 or INT8 is expected where"),
    "an offset beyond the width": (('wts_type: "INT8"', 'wts_type: "INT6"'), "offset_w reaches from"),
    "balance factors": (
        ("scale_w", "tensor_balance_factor: [1, 1, 1, 2] scale_w"),
        "tensor_balance_factor needs scale_d",
    ),
    "an offset of the data alone": (("scale_w", "offset_d: 3 scale_w"), "no scale_d; was the calibration completed"),
}


@pytest.mark.parametrize(("swap", "words"), REFUSED.values(), ids=REFUSED)
def test_a_record_that_cannot_be(swap: tuple[str, str], words: str, tmp_path: Path) -> None:
    found = compress(CASES["Conv"], tmp_path, "asymmetric: true")
    text = found.files.record.read_text().replace(*swap, 1)
    if "INT6" in swap[1]:
        text = re.sub(r"offset_w: \S+", "offset_w: 90", text, count=1)
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(ConfigError, match=words):
        export_record(tmp_path / "r.txt", found.source, tmp_path / "again" / "m")


def test_a_pool_without_scale_d_is_refused(tmp_path: Path) -> None:
    case = Case("AveragePool", (1, 3, 6, 6), attributes={"kernel_shape": [2, 2]})
    export = exporting.export(case.proto(), tmp_path)
    text = re.sub(r"    (scale_d|offset_d|act_type): .*\n", "", export.files.record.read_text())
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(ConfigError, match="the AveragePool has no weight to quantize alone"):
        export_record(tmp_path / "r.txt", tmp_path / "source.onnx", tmp_path / "again" / "m")


def test_a_record_without_scale_d_is_told_of(tmp_path: Path) -> None:
    found, told = compress(CASES["Conv"], tmp_path), []
    export_record(
        found.files.record, found.source, tmp_path / "again" / "m", notice=lambda event: told.append(event.message)
    )
    assert any(text.startswith("1 entries have scale_w and no scale_d (first 'layer')") for text in told)


def test_the_command_takes_the_form(tmp_path: Path) -> None:
    case = CASES["Conv"]._replace(opset=13)
    found = compress(case, tmp_path, "channel_wise: false")
    for arguments in (
        [str(found.run.path)],
        ["--record", str(found.files.record), "--model", str(found.source)],
    ):
        prefix = tmp_path / "mul" / "m"
        done = CliRunner().invoke(app, ["export", *arguments, "--prefix", str(prefix), "--weight-only-form", "mul"])
        assert done.exit_code == 0, done.output
        assert types_of(export_files(prefix).deploy) == ["Cast", "Sub", "Mul", "Conv"]
