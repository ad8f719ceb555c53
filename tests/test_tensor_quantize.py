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
import pytest
from exporting import choose_scales, prepare
from onnx import TensorProto, helper

from calibrant.errors import ExportError
from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.interpreter import Interpreter
from calibrant.export.lint import lint_deploy
from calibrant.export.quantized_tensor import QuantizedTensor
from calibrant.export.verify import verify_export
from calibrant.ingest.model import PreparedModel
from calibrant.proto.record import read_record

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
