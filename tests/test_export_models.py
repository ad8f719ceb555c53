"""How both models are built: names, types, places, merging, what stays as it was."""

import dataclasses

import exporting
import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from exporting import CASES
from onnx import AttributeProto, TensorProto, numpy_helper

from calibrant.errors import ExportError
from calibrant.export.deploy import build_deploy
from calibrant.export.fake_quant import build_fake_quant
from calibrant.export.files import write_export
from calibrant.export.graph_edit import Names
from calibrant.export.quantized_layer import QuantizedLayer, dequant_scales, dequant_words, encode_layer
from calibrant.export.verify import verify_export

F32 = np.float32


def nodes_of(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {node.name: node for node in model.graph.node}


def arrays_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


# ------------------------------------------------------------------------------------------------------- deploy model


def test_deploy_nodes_are_named_and_typed_as_amct_does(tmp_path):
    export = exporting.export(models.conv_relu(), tmp_path)
    nodes, arrays = nodes_of(export.deploy), arrays_of(export.deploy)
    assert list(nodes) == ["conv.quant", "conv", "conv.dequant", "relu"]
    quant, conv, dequant = nodes["conv.quant"], nodes["conv"], nodes["conv.dequant"]
    assert {node.domain for node in nodes.values()} == {""}
    assert quant.output == ["conv.quant.output0"]
    assert conv.input == ["conv.quant.output0", "w", "b"]
    assert dequant.input == [conv.output[0], "conv.dequant.param"]
    assert dequant.output == ["conv.dequant.output0"] == nodes["relu"].input
    assert {a.name: a.type for a in quant.attribute} == {
        "scale": AttributeProto.FLOAT, "offset": AttributeProto.FLOAT, "dst_type": AttributeProto.STRING,
    }  # fmt: skip
    values = {a.name: onnx.helper.get_attribute_value(a) for a in quant.attribute}
    assert values == {"scale": F32(1) / F32(0.02), "offset": -17.0, "dst_type": b"INT8"}
    assert [(a.name, a.type, a.i) for a in dequant.attribute] == [("dtype", AttributeProto.INT, 0)]
    assert (arrays["w"].dtype, arrays["b"].dtype, arrays["conv.dequant.param"].dtype) == (np.int8, np.int32, np.uint64)


def test_words_are_the_float_bits_of_the_product(tmp_path):
    export = exporting.export(models.conv_relu(), tmp_path)
    entry = export.record["conv"]
    words = arrays_of(export.deploy)["conv.dequant.param"]
    assert words.tolist() == [int((F32(entry["scale_d"][0]) * F32(s)).view(np.uint32)) for s in entry["scale_w"]]


def test_word_of_the_specification():
    assert dequant_words(F32(0.0078125) * np.array([0.05], F32)).tolist() == [969723085]
    assert dequant_scales(np.array([0x39CCCCCD], np.uint64)).tolist() == [float(F32(0.000390625))]


def test_deploy_keeps_opset_inputs_and_outputs(tmp_path):
    source = models.depthwise(opset=11)
    deploy = exporting.export(source, tmp_path).deploy
    assert [(o.domain, o.version) for o in deploy.opset_import] == [("", 11)]
    assert deploy.ir_version == source.ir_version
    assert list(deploy.graph.input) == list(source.graph.input)
    assert list(deploy.graph.output) == list(source.graph.output)


def test_value_info_of_integers_is_dropped(tmp_path):
    source = models.conv_relu()
    source.graph.value_info.append(models.value("c", ["N", 4, 8, 8]))
    deploy = exporting.export(source, tmp_path).deploy
    info = {value.name: value.type.tensor_type.elem_type for value in deploy.graph.value_info}
    assert "c" not in info
    assert info.get("conv.dequant.output0") == TensorProto.FLOAT


def test_bias_of_matmul_is_in_the_add(tmp_path):
    for first in (False, True):
        folder = tmp_path / str(first)
        folder.mkdir()
        export = exporting.export(models.matmul_add(bias_first=first), folder)
        nodes, arrays = nodes_of(export.deploy), arrays_of(export.deploy)
        assert list(nodes) == ["matmul.quant", "matmul", "add", "matmul.dequant", "relu"]
        assert list(nodes["add"].input) == ["m", "b"]
        assert nodes["matmul.dequant"].input[0] == nodes["add"].output[0]
        assert arrays["b"].dtype == np.int32
        assert arrays["matmul.dequant.param"].shape == (1,)


def test_equal_quantizers_of_one_tensor_are_merged(tmp_path):
    export = exporting.export(models.attention(), tmp_path)
    quants = [node.name for node in export.deploy.graph.node if node.op_type == "AscendQuant"]
    assert quants == ["query.quant"]
    nodes = nodes_of(export.deploy)
    assert {nodes[name].input[0] for name in ("query", "key", "value")} == {"query.quant.output0"}
    rounds = [node.name for node in export.fake_quant.graph.node if node.op_type == "Round"]
    assert rounds == ["query.quant.fakequant.round"]


def test_other_scales_or_offsets_keep_their_own_quantizer(tmp_path):
    data = {"key": (0.03, -17), "value": (0.02, -18)}
    export = exporting.export(models.attention(), tmp_path, data=data)
    quants = [node.name for node in export.deploy.graph.node if node.op_type == "AscendQuant"]
    assert quants == ["query.quant", "key.quant", "value.quant"]


def test_a_graph_output_keeps_its_name(tmp_path):
    export = exporting.export(CASES["Conv 2-D"].proto(), tmp_path)
    deploy, fake = nodes_of(export.deploy), nodes_of(export.fake_quant)
    assert deploy["layer.dequant"].output == ["y"]
    assert deploy["layer"].output == ["layer.dequant.input0"]
    assert fake["layer.dequant.fakequant.mul"].output == ["y"]


def test_names_that_are_taken_get_a_suffix(tmp_path):
    source = models.conv_relu()
    source.graph.node[1].name = "conv.dequant"
    export = exporting.export(source, tmp_path)
    assert "conv.dequant_1" in nodes_of(export.deploy)
    assert Names(["a", "a_1"]).fresh("a") == "a_2"


def test_skipped_layers_stay_float(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path, skip=["pw"])
    arrays = arrays_of(export.deploy)
    assert (arrays["w1"].dtype, arrays["w2"].dtype) == (np.int8, np.float32)
    assert list(export.record) == ["dw"]


# --------------------------------------------------------------------------------------------------- fake-quant model


def test_fake_quant_model_is_plain_valid_onnx(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    onnx.checker.check_model(export.fake_quant, full_check=True)
    chain = [node.op_type for node in export.fake_quant.graph.node if node.name.startswith("dw.quant")]
    assert chain == ["Mul", "Round", "Add", "Clip", "Sub"]
    arrays = arrays_of(export.fake_quant)
    assert (arrays["w1"].dtype, arrays["b1"].dtype) == (np.int8, np.int32)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Conv 1-D", (1, 4, 1)), ("Conv 2-D", (1, 4, 1, 1)), ("Conv 3-D", (1, 3, 1, 1, 1)), ("Gemm", ())],
)
def test_dequant_factors_broadcast_along_channels(name, shape, tmp_path):
    export = exporting.export(CASES[name].proto(), tmp_path)
    assert arrays_of(export.fake_quant)["layer.dequant.fakequant.scale"].shape == shape


@pytest.mark.parametrize("opset", [8, 9, 10])
def test_old_opsets_are_raised_for_the_fake_quant_model_alone(opset, tmp_path):
    export = exporting.export(models.depthwise(opset=opset), tmp_path)
    assert export.fake_quant.opset_import[0].version == 11
    assert export.deploy.opset_import[0].version == opset
    onnx.checker.check_model(export.fake_quant, full_check=True)


def test_notes_of_the_preparation_are_not_exported(tmp_path):
    prepared = exporting.prepare(models.conv_bn(), tmp_path)
    prepared.model.graph[0].metadata_props["calibrant.original_nodes"] = "[]"
    prepared.model.metadata_props["calibrant.source_hash"] = "x"
    encoded = [encode_layer(prepared, layer) for layer in exporting.choose_scales(prepared)]
    for model, _ in (build_deploy(prepared, encoded), build_fake_quant(prepared, encoded)):
        assert not [key for node in model.graph for key in node.metadata_props if key.startswith("calibrant.")]
        assert not [key for key in model.metadata_props if key.startswith("calibrant.")]
    assert "calibrant.original_nodes" in prepared.model.graph[0].metadata_props


def test_the_prepared_model_is_not_changed(tmp_path):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    encoded = [encode_layer(prepared, layer) for layer in exporting.choose_scales(prepared)]
    build_deploy(prepared, encoded)
    build_fake_quant(prepared, encoded)
    assert [node.op_type for node in prepared.model.graph] == ["Conv", "Relu"]
    weight = prepared.model.graph.initializers["w"]
    assert (weight.dtype, weight.const_value.numpy().dtype) == (ir.DataType.FLOAT, np.float32)


def test_unused_constants_are_not_exported(tmp_path):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    unused = ir.Value(name="unused", const_value=ir.tensor(np.zeros(5, F32), name="unused"))
    prepared.model.graph.register_initializer(unused)
    model, _ = build_deploy(prepared, [encode_layer(prepared, layer) for layer in exporting.choose_scales(prepared)])
    assert "unused" not in model.graph.initializers


def test_tensors_in_files_come_into_the_model(tmp_path):
    prepared = exporting.prepare(models.depthwise(), tmp_path)
    ir.save(prepared.model, tmp_path / "prepared.onnx", external_data="prepared.onnx.data", size_threshold_bytes=0)
    outside = dataclasses.replace(prepared, model=ir.load(tmp_path / "prepared.onnx"))
    files = write_export(outside, exporting.choose_scales(outside, skip=["pw"]), tmp_path / "out" / "m", "{}")
    (tmp_path / "prepared.onnx.data").unlink()
    assert verify_export(files, [{"x": models.normal(1, 4, 8, 8)}]).passed


# ----------------------------------------------------------------------------------------------------- quantized layers


def test_bias_outside_int32_is_an_error(tmp_path):
    source = models.conv_relu()
    bias = next(tensor for tensor in source.graph.initializer if tensor.name == "b")
    bias.CopyFrom(numpy_helper.from_array(np.array([0, 1e7, 0, 0], F32), "b"))
    prepared = exporting.prepare(source, tmp_path)
    with pytest.raises(ExportError, match=r"layer 'conv': bias, channel 1: .* outside int32"):
        encode_layer(prepared, exporting.choose_scales(prepared)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_d": F32(0)}, "scales must be positive"),
        ({"scale_w": np.array([np.nan], F32)}, "scales must be positive"),
        ({"offset_d": 128}, r"offset 128 is outside \[-128, 127\]"),
        ({"scale_w": np.ones(3, F32)}, "3 weight scales for 4 output channels"),
        ({"weight_bits": 16}, "weight codes of 16 bits"),
    ],
)
def test_scales_that_cannot_be_written(change, message, tmp_path):
    layer = exporting.prepare(models.conv_relu(), tmp_path).layers[0]
    settings = {"scale_d": F32(0.1), "offset_d": 0, "data_bits": 8, "scale_w": np.ones(1, F32), "weight_bits": 8}
    with pytest.raises(ExportError, match=message):
        QuantizedLayer(layer, **(settings | change))
