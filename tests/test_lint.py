"""ATC's rules, each shown by a model that breaks it."""

import exporting
import models
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from calibrant.export.lint import lint_deploy
from calibrant.export.static_shapes import ranks_of
from calibrant.proto.record import read_record


def messages(model: onnx.ModelProto, severity: str = "error") -> list[str]:
    return [f"{finding.where}: {finding.message}" for finding in lint_deploy(model) if finding.severity == severity]


def node_of(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


@pytest.mark.parametrize(
    "proto",
    [models.depthwise(), models.matmul_add(), models.attention(), models.average_pool(), models.conv_transpose()],
    ids=["depthwise", "matmul", "attention", "pool", "transposed"],
)
def test_exports_are_clean(proto, tmp_path):
    export = exporting.export(proto, tmp_path)
    assert lint_deploy(export.deploy, read_record(export.files.record)) == ()


@pytest.mark.parametrize(("opset", "clean"), [(8, True), (22, True), (23, False)])
def test_opset(opset, clean, tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    model.opset_import[0].version = opset
    assert (messages(model, "warn") == []) is clean


def test_an_imported_amct_domain(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    model.opset_import.append(helper.make_opsetid("amct.customop", 1))
    assert any("takes Ascend's operators from the default domain" in line for line in messages(model))


def test_float_operators_of_other_domains_are_a_warning(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    node_of(model, "relu").domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert messages(model) == []
    assert messages(model, "warn") == ["relu: domain 'com.microsoft'; ATC has parsers for the default domain"]


def test_codes_may_not_reach_float_operators(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    node_of(model, "relu").input[0] = "conv.quant.output0"
    lines = messages(model)
    assert "conv.quant: its codes go to input 0 of Relu 'relu'" in lines


def test_codes_may_not_be_an_output(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    model.graph.output.append(onnx.ValueInfoProto(name="conv.quant.output0"))
    assert "conv.quant: its codes are a graph output that is not declared as their type" in messages(model)


def test_accumulators_go_to_one_dequantizer(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    model.graph.node.append(helper.make_node("Relu", ["c"], ["z"], name="other"))
    assert "conv: its int32 output 'c' must go to one AscendDequant alone" in messages(model)


def test_a_layer_without_dequantizer(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    node_of(model, "relu").input[0] = "c"
    model.graph.node.remove(node_of(model, "conv.dequant"))
    assert "conv: its int32 output goes to Relu 'relu'" in messages(model)


def test_integer_weights_without_quantizer(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    node_of(model, "conv").input[0] = "x"
    assert "conv: int8 weights, but no AscendQuant before it" in messages(model)


@pytest.mark.parametrize(("name", "value"), [("transB", 1), ("alpha", 2.0)])
def test_gemm(name, value, tmp_path):
    model = exporting.export(models.gemm(), tmp_path).deploy
    node = node_of(model, "gemm")
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))
    assert any(line.startswith("gemm: Gemm must have") for line in messages(model))


@pytest.mark.parametrize("offset", [0.5, 128.0, -129.0])
def test_offsets_are_integers_in_range(offset, tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    next(a for a in node_of(model, "conv.quant").attribute if a.name == "offset").f = offset
    assert f"conv.quant: offset {offset} is no INT8 integer" in messages(model)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf")])
def test_scales_are_positive_and_finite(scale, tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    next(a for a in node_of(model, "conv.quant").attribute if a.name == "scale").f = scale
    assert f"conv.quant: scale {scale} is not positive and finite" in messages(model)


def test_names(tmp_path):
    model = exporting.export(models.depthwise(), tmp_path).deploy
    node_of(model, "relu").name = ""
    node_of(model, "pw").name = "dw"
    model.graph.node[-1].output[0] = "d"
    lines = messages(model)
    assert "nodes: 1 without a name" in lines
    assert "dw: 2 nodes have this name" in lines
    assert "d: 2 nodes make this value" in lines


def test_words_hold_finite_scales(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "conv.dequant.param")
    tensor.CopyFrom(numpy_helper.from_array(np.array([0x7F800000] * 4, np.uint64), tensor.name))
    assert "conv.dequant: a word holds no positive finite float32" in messages(model)


def test_unmerged_quantizers_are_a_warning(tmp_path):
    model = exporting.export(models.conv_relu(), tmp_path).deploy
    twin = onnx.NodeProto()
    twin.CopyFrom(node_of(model, "conv.quant"))
    twin.name, twin.output[0] = "twin.quant", "twin"
    model.graph.node.append(twin)
    assert "twin.quant: quantizes 'x' just as 'conv.quant' does; one is enough" in messages(model, "warn")


def test_a_rank_that_cannot_be_inferred_is_a_warning(tmp_path):
    proto = models.model(
        [
            models.node("Reshape", ["x", "shape"], "r", "reshape"),
            models.node("MatMul", ["r", "w"], "y", "matmul"),
        ],
        [models.value("x", ["N", 4]), models.value("shape", ["R"], onnx.TensorProto.INT64)],
        [onnx.ValueInfoProto(name="y", type=helper.make_tensor_type_proto(1, None))],
        {"w": models.normal(4, 6)},
    )
    model = exporting.export(proto, tmp_path).deploy
    assert messages(model, "warn") == ["matmul.quant: the rank of 'r' cannot be inferred; ATC needs static ranks"]
    model.graph.input[1].CopyFrom(models.value("shape", [3], onnx.TensorProto.INT64))
    assert messages(model, "warn") == []
    assert ranks_of(model)["r"] == 3
