"""Inputs of MaxPool and Add that are quantized on their way: AscendQuant and AscendAntiQuant, from the configuration to verify."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import naive
import numpy as np
import onnx
import onnx_ir as ir
import polars as pl
import pytest
from exporting import choose_scales, prepare
from onnx import TensorProto, helper

import calibrant
from calibrant.errors import ConfigError, ExportError, RunError
from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.interpreter import Interpreter
from calibrant.export.lint import lint_deploy
from calibrant.export.quantized_tensor import QuantizedTensor
from calibrant.export.verify import verify_export
from calibrant.ingest.model import PreparedModel
from calibrant.pipeline import plan as plan_of_model
from calibrant.proto.record import RecordEntry, read_record, write_record
from calibrant.proto.simple_config import parse_simple_config
from calibrant.quantizers import HfmgOptions, IfmrOptions, fit_hfmg, fit_ifmr
from calibrant.rebuild import export_record
from calibrant.stats.histogram import LogLinearHistogram

F32 = np.float32
X = models.normal(1, 3, 8, 8, seed=5, scale=2.0)


def residual() -> onnx.ModelProto:
    """x -> conv -> r; pool = MaxPool(r); branch = Conv(pool); y = branch + pool."""
    nodes = [
        models.node("Conv", ["x", "w1"], "c", "conv", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("MaxPool", ["r"], "p", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        models.node("Conv", ["p", "w2"], "b", "branch", pads=[1, 1, 1, 1]),
        models.node("Add", ["b", "p"], "y", "add"),
    ]
    weights = {
        "w1": models.normal(4, 3, 3, 3, seed=1),
        "w2": models.normal(4, 4, 3, 3, seed=2),
    }
    ends = [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 4, 4])]
    return models.model(nodes, *ends, weights)


def pools(dtype: int) -> onnx.ModelProto:
    """x -> AveragePool -> MaxPool -> y."""
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        models.node("AveragePool", ["x"], "a", "average", **window),
        models.node("MaxPool", ["a"], "y", "pool", **window),
    ]
    ends = [models.value("x", ["N", 3, 8, 8], dtype)], [models.value("y", ["N", 3, 2, 2], dtype)]
    return models.model(nodes, *ends)


def tensors(*named: tuple[str, int, float, int]) -> list[QuantizedTensor]:
    return [QuantizedTensor(node, index, F32(scale), offset) for node, index, scale, offset in named]


ALL = (("pool", 0, 0.02, -128), ("add", 0, 0.031, 3), ("add", 1, 0.017, -128))


def export(
    folder: Path,
    named: Sequence[tuple[str, int, float, int]] = ALL,
    *,
    proto: onnx.ModelProto | None = None,
    **choices: Any,
) -> tuple[PreparedModel, ExportedFiles]:
    prepared = prepare(residual() if proto is None else proto, folder)
    layers = choose_scales(prepared, **choices)
    return prepared, write_export(prepared, layers, folder / "out" / "m", "{}\n", tensors(*named))


def quantize_value(values: np.ndarray, scale: float, offset: int) -> np.ndarray:
    """(q - offset) * scale by whole numbers, element by element."""
    codes = np.array(naive.deploy_codes(values, scale, offset, 8)).reshape(values.shape)
    return ((codes - offset).astype(F32) * F32(scale)).astype(F32)


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(one for one in model.graph.node if one.name == name)
    return found


def attributes(one: onnx.NodeProto) -> dict[str, tuple[int, Any]]:
    return {item.name: (item.type, helper.get_attribute_value(item)) for item in one.attribute}


def test_pairs_stand_on_their_inputs(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    deploy = onnx.load(files.deploy)
    for reader, slot, quant, anti, scale, offset in (
        ("pool", 0, "pool.quant", "pool.anti_quant", 0.02, -128.0),
        ("add", 0, "add.quant", "add.anti_quant", 0.031, 3.0),
        ("add", 1, "add.quant_1", "add.anti_quant_1", 0.017, -128.0),
    ):
        back, there = node(deploy, anti), node(deploy, quant)
        assert node(deploy, reader).input[slot] == back.output[0]
        assert back.input[0] == there.output[0]
        assert (back.op_type, there.op_type, back.domain, there.domain) == ("AscendAntiQuant", "AscendQuant", "", "")
        float_type = onnx.AttributeProto.FLOAT
        assert attributes(back)["scale"] == (float_type, F32(scale))
        assert attributes(back)["offset"] == (float_type, offset)
        assert attributes(there)["scale"] == (float_type, F32(1) / F32(scale))
        assert attributes(there)["offset"] == (float_type, offset)


def test_record_has_an_entry_for_each_input(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    text = files.record.read_text()
    assert text.endswith(
        'record {\n  key: "add:1"\n  value {\n    scale_d: 0.017\n    offset_d: -128\n    is_tensor_quantize: true\n  }\n}\n'
    )
    assert re.findall('key: "(.*)"', text) == ["conv", "branch", "pool:0", "add:0", "add:1"]
    assert [entry.key for entry in read_record(files.record) if entry.is_tensor_quantize] == [
        "pool:0",
        "add:0",
        "add:1",
    ]


def test_models_compute_what_the_scales_say(tmp_path: Path) -> None:
    """Layers stay in float but one, so that the values before and behind the pairs are known."""
    prepared, files = export(tmp_path, (("pool", 0, 0.02, -128), ("add", 1, 0.017, -128)), skip=["branch"])
    (before,) = models.run(files.fake_quant, {"x": X}, ["y"])
    model = onnx.load(files.fake_quant)
    model.graph.output.append(onnx.ValueInfoProto(name="r"))
    (r,) = models.run(model, {"x": X}, ["r"])
    sent = quantize_value(r, 0.02, -128)
    pooled = sent.reshape(1, 4, 4, 2, 4, 2).max(axis=(3, 5))
    weight = models.normal(4, 4, 3, 3, seed=2)
    padded = np.pad(pooled.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    branch = sum(
        np.einsum("oc,ncyx->noyx", weight[:, :, dy, dx].astype(np.float64), padded[:, :, dy : dy + 4, dx : dx + 4])
        for dy in range(3)
        for dx in range(3)
    )
    np.testing.assert_allclose(before, branch + quantize_value(pooled, 0.017, -128), rtol=1e-5, atol=1e-5)
    assert prepared.layers[1].name == "branch"
    np.testing.assert_array_equal(Interpreter(files.deploy).run({"x": X})["y"], before)


def test_verify_has_a_row_for_each_input(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    report = verify_export(files, [{"x": X}, {"x": -X}])
    assert report.passed
    rows = [row for row in report.frame().iter_rows(named=True) if row["op_type"] == "AscendAntiQuant"]
    assert [row["layer"] for row in rows] == ["pool:0", "add:0", "add:1"]
    assert all(row["bit_equal"] and row["exact"] for row in rows)
    assert not report.findings


def test_float16_model(tmp_path: Path) -> None:
    prepared = prepare(pools(TensorProto.FLOAT), tmp_path)
    model = onnx.shape_inference.infer_shapes(pools(TensorProto.FLOAT16))
    prepared = dataclasses.replace(prepared, model=ir.from_proto(model))
    files = write_export(prepared, choose_scales(prepared), tmp_path / "m", "{}\n", tensors(("pool", 0, 0.02, -17)))
    report = verify_export(files, [{"x": X.astype(np.float16)}])
    assert report.passed
    assert report.frame()["layer"].to_list() == ["average", "pool:0"]
    deploy = onnx.load(files.deploy)
    assert attributes(node(deploy, "pool.anti_quant"))["dtype"] == (onnx.AttributeProto.INT, 1)


def test_layer_and_input_that_quantize_a_tensor_alike_share_one_quantizer(tmp_path: Path) -> None:
    _, files = export(tmp_path, (("add", 1, 0.02, -17),))
    deploy = onnx.load(files.deploy)
    assert node(deploy, "add.anti_quant").input[0] == node(deploy, "branch").input[0]
    assert [one.name for one in deploy.graph.node if one.op_type == "AscendQuant"] == ["conv.quant", "branch.quant"]
    assert verify_export(files, [{"x": X}]).passed


def test_inputs_alone(tmp_path: Path) -> None:
    _, files = export(tmp_path, (("pool", 0, 0.02, -128),), skip=["conv", "branch"])
    assert verify_export(files, [{"x": X}]).passed


def test_both_inputs_of_an_add_may_be_one_tensor(tmp_path: Path) -> None:
    proto = residual()
    proto.graph.node[4].input[0] = "p"
    _, files = export(tmp_path, (("add", 0, 0.02, -128), ("add", 1, 0.05, -128)), proto=proto)
    deploy = onnx.load(files.deploy)
    assert [attributes(node(deploy, name))["scale"][1] for name in ("add.anti_quant", "add.anti_quant_1")] == [
        F32(0.02), F32(0.05),
    ]  # fmt: skip
    assert verify_export(files, [{"x": X}]).passed


TAMPERED = {
    "scale": ("pool.anti_quant", "scale", 0.0201),
    "offset": ("add.anti_quant", "offset", 4.0),
    "negated offset": ("add.anti_quant_1", "offset", 128.0),
    "scale of the codes": ("add.quant_1", "scale", 59.0),
}


@pytest.mark.parametrize(("name", "attribute", "changed"), TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_pair_fails(tmp_path: Path, name: str, attribute: str, changed: float) -> None:
    _, files = export(tmp_path)
    deploy = onnx.load(files.deploy)
    next(item for item in node(deploy, name).attribute if item.name == attribute).f = changed
    onnx.save(deploy, files.deploy)
    report = verify_export(files, [{"x": X}])
    key = {"pool.anti_quant": "pool:0", "add.anti_quant": "add:0"}.get(name, "add:1")
    assert not next(check for check in report.layers if check.layer == key).passed
    assert any(finding.severity == "error" for finding in report.findings)


def test_an_integer_offset_is_found(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    deploy = onnx.load(files.deploy)
    one = node(deploy, "pool.anti_quant")
    del one.attribute[:]
    one.attribute.extend(helper.make_attribute(key, value) for key, value in (("scale", 0.02), ("offset", -128)))
    told = [str(finding) for finding in lint_deploy(deploy)]
    assert "error: pool.anti_quant: attribute offset is INT; ATC reads only FLOAT" in told


def test_record_and_pairs_must_agree(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    entries = read_record(files.record)
    told = [str(finding) for finding in lint_deploy(onnx.load(files.deploy), entries[:-1])]
    assert "error: add.anti_quant_1: the record has no entry 'add:1' with is_tensor_quantize" in told
    (tmp_path / "bare").mkdir()
    _, bare = export(tmp_path / "bare", ())
    told = [str(finding) for finding in lint_deploy(onnx.load(bare.deploy), entries)]
    assert "error: pool:0: has a record entry, but no AscendAntiQuant serves this input" in told


def test_a_tampered_fake_quant_step_fails(tmp_path: Path) -> None:
    _, files = export(tmp_path)
    model = onnx.load(files.fake_quant)
    step = next(one for one in model.graph.initializer if one.name == "add.anti_quant.fakequant.scale")
    step.raw_data = np.array(0.032, F32).tobytes()
    onnx.save(model, files.fake_quant)
    report = verify_export(files, [{"x": X}])
    failures = next(check.failures for check in report.layers if check.layer == "add:0")
    assert failures == ("the steps of the two models differ", "the fake-quant values are not (q - offset) * scale")


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="input 'pol:0' is not in the prepared model; did you mean 'pool'"):
        export(tmp_path, (("pol", 0, 0.02, 0),))
    with pytest.raises(ExportError, match=r"offset 128 is outside \[-128, 127\]"):
        export(tmp_path, (("pool", 0, 0.02, 128),))
    with pytest.raises(ExportError, match="'add:0' cannot be quantized: the Add is the bias of layer 'matmul'"):
        export(tmp_path, (("add", 0, 0.02, 0),), proto=models.matmul_add())


# From the configuration


CONFIG = """
tensor_quantize { layer_name: "add" input_index: 1 hfmg_quantize { num_of_bins: 1024 } }
tensor_quantize { layer_name: "pool" input_index: 0 ifmr_quantize { asymmetric: false } }
"""
FEEDS = [{"x": models.normal(1, 3, 8, 8, seed=seed, scale=1.5)} for seed in range(4)]


def run_of(folder: Path, text: str = CONFIG, **options: Any) -> calibrant.Run:
    model = models.save(residual(), folder / "source.onnx")
    config = folder / "quant.cfg"
    config.write_text(text)
    place = {"run": folder / "m.run", "prefix": folder / "a" / "m"}
    return calibrant.run(model, FEEDS, config=config, **{**place, **options})


def float_values(run: calibrant.Run, name: str) -> np.ndarray:
    model = onnx.load(run.model_folder / "prepared.onnx")
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return np.concatenate([models.run(model, feed, [name])[0] for feed in FEEDS])


def captured_values(run: calibrant.Run, name: str) -> np.ndarray:
    return np.concatenate([array for _, array in run.captures(name)])


def test_a_run_fits_what_the_configuration_names(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rows = run.read("quant_params").filter(role="tensor").sort("node").rows(named=True)
    assert [(row["node"], row["input_index"], row["layer_id"]) for row in rows] == [("add", 1, None), ("pool", 0, None)]
    histograms = [LogLinearHistogram.from_values(captured_values(run, name)) for name in ("p", "r")]
    wanted = [
        fit_hfmg(histograms[0], HfmgOptions(num_of_bins=1024)),
        fit_ifmr(histograms[1], IfmrOptions(asymmetric=False)),
    ]
    assert [(row["scale"], row["offset"]) for row in rows] == [(fit.scale, fit.offset) for fit in wanted]
    entries = {entry.key: entry for entry in read_record(tmp_path / "a" / "m_record.txt")}
    assert list(entries) == ["conv", "branch", "pool:0", "add:1"]
    assert entries["pool:0"].scale_d == F32(wanted[1].scale)
    assert entries["pool:0"].offset_d == 0
    assert run.read("search").filter(pl.col("layer_id").is_null()).group_by("tensor_id").len().height == 2
    assert not run.read("events").filter(pl.col("message").str.contains("not applied")).height


def test_tensors_that_no_layer_reads_are_captured(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    tensors = run.read("tensors")
    assert tensors["tensor"].to_list() == ["x", "r", "p"]
    assert tensors["tensor_id"].to_list() == [0, 1, 2]
    for name in ("r", "p"):  # the capture's session is optimized, the float run is not
        np.testing.assert_allclose(captured_values(run, name), float_values(run, name), rtol=1e-4, atol=2e-6)
    before = {name: run.read(name) for name in ("tensors", "histograms", "extremes", "channels")}
    calibrant.stats(run)
    assert all(run.read(name).equals(frame) for name, frame in before.items())


def test_a_fit_on_a_run_without_the_tensor_says_what_to_do(tmp_path: Path) -> None:
    run = run_of(tmp_path, "")
    with pytest.raises(RunError, match=r"input 0 of 'pool', whose tensor 'r' was not captured; run the model anew"):
        calibrant.fit(run, config=parse_simple_config(CONFIG))
    with pytest.raises(RunError, match="whose tensor 'r' was not captured"):
        run_of(tmp_path)
    named = parse_simple_config('tensor_quantize { layer_name: "add" input_index: 1 }')
    assert calibrant.fit(run, config=named, name="p").read("quant_params").filter(role="tensor").height == 1
    run_of(tmp_path, restart=True)


def test_a_fit_without_it_on_a_run_with_more_tensors(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    calibrant.fit(run, name="plain", config=parse_simple_config(""))
    calibrant.export(run, fit="plain", prefix=tmp_path / "b" / "m")
    (tmp_path / "other").mkdir()
    run_of(tmp_path / "other", "")
    for name in ("deploy_model.onnx", "fake_quant_model.onnx", "record.txt", "quant.json", "config.json"):
        assert (tmp_path / "b" / f"m_{name}").read_bytes() == (tmp_path / "other" / "a" / f"m_{name}").read_bytes()


def test_inputs_alone_from_the_configuration(tmp_path: Path) -> None:
    run = run_of(tmp_path, 'skip_layers: ["conv", "branch"]\n' + CONFIG)
    assert run.read("quant_params")["role"].to_list() == ["tensor", "tensor"]
    assert calibrant.verify(run).passed


def test_config_json_of_the_run_gives_it_again(tmp_path: Path) -> None:
    run_of(tmp_path)
    model, config = tmp_path / "source.onnx", tmp_path / "a" / "m_config.json"
    calibrant.run(model, FEEDS, run=tmp_path / "b.run", config=config, prefix=tmp_path / "b" / "m", batch_size=4)
    assert (tmp_path / "b" / "m_record.txt").read_bytes() == (tmp_path / "a" / "m_record.txt").read_bytes()


def test_the_add_that_is_a_bias_stays(tmp_path: Path) -> None:
    proto = models.matmul_add()
    model = models.save(proto, tmp_path / "m.onnx")
    config = parse_simple_config('tensor_quantize { layer_name: "add" input_index: 0 }')
    rows, events = plan_of_model(model, config=config)
    row = rows.filter(layer="add").row(0, named=True)
    assert (row["enabled"], row["reason"]) == (False, "the Add is the bias of layer 'matmul', which is quantized")
    assert "tensor_quantize of 'add:0' has no effect: the Add is the bias of layer 'matmul', which is quantized" in [
        event.message for event in events
    ]
    skipped = parse_simple_config('skip_layers: "matmul" tensor_quantize { layer_name: "add" input_index: 0 }')
    assert plan_of_model(model, config=skipped)[0].filter(layer="add")["enabled"].to_list() == [True]


def test_an_input_keeps_its_number_where_a_bias_comes_first(tmp_path: Path) -> None:
    model = models.save(models.matmul_add(bias_first=True), tmp_path / "m.onnx")
    text = 'skip_layers: "matmul" tensor_quantize {{ layer_name: "add" input_index: {} }}'
    rows, _ = plan_of_model(model, config=parse_simple_config(text.format(1)))
    assert rows.filter(layer="add")["enabled"].to_list() == [True]
    with pytest.raises(ConfigError, match="input 0 is constant"):
        plan_of_model(model, config=parse_simple_config(text.format(0)))


def test_whole_numbers_are_refused(tmp_path: Path) -> None:
    proto = residual()
    nodes = [
        models.node("Cast", ["x"], "i", "cast", to=TensorProto.INT64),
        models.node("Add", ["i", "i"], "s", "sum"),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(models.value("s", ["N", 3, 8, 8], TensorProto.INT64))
    model = models.save(proto, tmp_path / "m.onnx")
    config = parse_simple_config('tensor_quantize { layer_name: "sum" input_index: 0 }')
    with pytest.raises(ConfigError, match="input 0 is no float tensor; only float32 and float16 can be quantized"):
        plan_of_model(model, config=config)


# From a record


def test_record_of_a_run_gives_its_files_again(tmp_path: Path) -> None:
    run_of(tmp_path)
    told: list[str] = []
    files = export_record(
        tmp_path / "a" / "m_record.txt", tmp_path / "source.onnx", tmp_path / "b" / "m",
        notice=lambda event: told.append(event.message) if event.severity == "warn" else None,
    )  # fmt: skip
    for path in (files.fake_quant, files.deploy, files.record, files.quant_map):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    assert not told
    assert verify_export(files, FEEDS[:1]).passed
    config = calibrant.proto.read_json_config(files.config)
    assert [(one.layer_name, one.input_index) for one in config.tensor_quantize or ()] == [("pool", 0), ("add", 1)]


REFUSED = {
    "index": ("add:2", "the node has 2 inputs, counted from 0"),
    "type": ("relu:0", "it is a Relu; only inputs of "),
    "constant": ("shift:1", "input 1 is constant"),
}


@pytest.mark.parametrize(("key", "words"), REFUSED.values(), ids=REFUSED)
def test_record_with_an_input_that_cannot_be(tmp_path: Path, key: str, words: str) -> None:
    proto = residual()
    proto.graph.node.append(models.node("Add", ["y", "one"], "z", "shift"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, F32), "one"))
    proto.graph.output.append(models.value("z", ["N", 4, 4, 4]))
    model = models.save(proto, tmp_path / "m.onnx")
    entry = RecordEntry(key, F32(0.1), 0, act_type=None, wts_type=None, op_data_type=None, is_tensor_quantize=True)
    write_record(tmp_path / "r.txt", [entry])
    with pytest.raises(ConfigError, match=rf"r\.txt:\d+:\d+: record of '{key}': .*{words}"):
        export_record(tmp_path / "r.txt", model, tmp_path / "out" / "m")
