"""Each bad model or setting is one clear error: what, where, what to do."""

import re
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import calibrant
from calibrant.errors import ModelError
from calibrant.ingest.model import load_prepared, prepare_model


def prepare(proto: onnx.ModelProto, folder: Path, **fix_input: str) -> None:
    prepare_model(models.save(proto, folder / "m.onnx"), fix_input=fix_input)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    models.save(models.conv_relu(), tmp_path / "resnet.onnx")
    with pytest.raises(ModelError, match=r"model .*resnet1\.onnx: no such file; did you mean 'resnet\.onnx'\?"):
        prepare_model(tmp_path / "resnet1.onnx")


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model .*m\.onnx: no such file$"):
        prepare_model(tmp_path / "nowhere" / "m.onnx")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder; name the \.onnx file in it"):
        prepare_model(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(models.conv_relu(), tmp_path / "m.onnx")

    def refuse(_self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so modes do not show it
    with pytest.raises(ModelError, match=r"cannot be read \(Permission denied\); check its permissions"):
        prepare_model(path)


def junk(data: bytes) -> Callable[[], bytes]:
    return lambda: data


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (junk(b""), "the file is empty"),
    "text": (junk(b"# a note\nnothing more\n"), "not an ONNX model but a text file"),
    "chinese text": (junk("模型说明".encode()), "not an ONNX model but a text file"),
    "truncated": (
        lambda: models.conv_relu().SerializeToString()[:-40],
        r"not an ONNX model, or truncated \(\d+ bytes\)",
    ),
    "zeros": (junk(bytes(64)), "not an ONNX model, or truncated"),
    "zip": (junk(b"PK\x03\x04" + bytes(range(256))), "not an ONNX model, or truncated"),
    "no graph": (
        lambda: helper.make_model(onnx.GraphProto()).SerializeToString()[:2],
        "not an ONNX model, or truncated",
    ),
    "no nodes": (lambda: models.model([], [], []).SerializeToString(), "the graph has no nodes"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_files_that_are_no_model(case: str, tmp_path: Path) -> None:
    make, message = BAD_FILES[case]
    path = tmp_path / "m.onnx"
    path.write_bytes(make())
    with pytest.raises(ModelError, match=message) as error:
        prepare_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_every_truncation_is_one_error(tmp_path: Path) -> None:
    data = models.conv_bn().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError):
            prepare_model(path)


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    onnx.save(models.conv_relu(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"its external data m\.data is missing; put the file beside the model"):
        prepare_model(tmp_path / "m.onnx")


def test_short_external_data_is_named(tmp_path: Path) -> None:
    onnx.save(models.conv_relu(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"its external data m\.data is too short \(5 bytes; 'w' ends at \d+\)"):
        prepare_model(tmp_path / "m.onnx")


def test_a_value_that_nothing_produces(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.node[1].input[0] = "typo"
    with pytest.raises(ModelError, match=r"node 'relu' \(Relu\) uses 'typo', which nothing produces"):
        prepare(proto, tmp_path)


def test_a_weight_whose_bytes_do_not_match_its_shape(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]
    with pytest.raises(ModelError, match=r"m\.onnx: not a valid ONNX model \(.*\); check it with onnx\.checker"):
        prepare(proto, tmp_path)


def test_an_unknown_data_type(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.input[0].type.tensor_type.elem_type = 94
    with pytest.raises(ModelError, match=r"the ONNX graph is malformed \(94 is not a valid DataType\)"):
        prepare(proto, tmp_path)


def test_a_node_name_that_is_not_text(tmp_path: Path) -> None:
    data = models.conv_relu().SerializeToString().replace(b"relu", b"re\xffu")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"the name of node .* is not UTF-8 text; the file is damaged"):
        prepare_model(tmp_path / "m.onnx")


def test_libraries_say_nothing_beside_the_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proto = models.conv_relu()
    proto.graph.node[1].input[0] = "typo"
    with pytest.raises(ModelError, match="nothing produces"):
        prepare(proto, tmp_path)
    assert not caplog.records


def test_a_cycle(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.node.append(models.node("Add", ["y", "b2"], "b1", "one"))
    proto.graph.node.append(models.node("Neg", ["b1"], "b2", "two"))
    with pytest.raises(ModelError, match="the graph has a cycle"):
        prepare(proto, tmp_path)


def test_an_input_without_rank(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="input 'x' has no declared rank; declare it in the model"):
        prepare(proto, tmp_path)


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"quantized already: 2 nodes of type AscendDequant, AscendQuant \(first 'conv.quant'\)"
    ):
        prepare(models.quantized(), tmp_path)


def test_a_qdq_model_is_refused(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.node[0].input[0] = "x_back"
    proto.graph.node.insert(0, models.node("DequantizeLinear", ["x_int", "s", "z"], "x_back", "back"))
    proto.graph.node.insert(0, models.node("QuantizeLinear", ["x", "s", "z"], "x_int", "there"))
    proto.graph.initializer.extend(
        [helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]), helper.make_tensor("z", TensorProto.INT8, [], [0])]
    )
    with pytest.raises(
        ModelError, match=r"quantized already: 2 nodes of type DequantizeLinear, QuantizeLinear .*give the float model"
    ):
        prepare(proto, tmp_path)


def test_nothing_to_quantize_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"no layer to quantize: the model has none of Conv, ConvTranspose, .*, only Relu$"
    ):
        prepare(models.no_layers(), tmp_path)


def test_nothing_to_quantize_says_why_candidates_are_refused(tmp_path: Path) -> None:
    expected = (
        "no layer to quantize: 1 candidate refused; Gemm 'gemm': transA = 1: Gemm is quantized for transA = 0 only"
    )
    with pytest.raises(ModelError, match=expected):
        prepare(models.gemm(trans_a=1), tmp_path)


def test_layers_inside_an_if_give_the_advice(tmp_path: Path) -> None:
    expected = "no layer to quantize: 2 layers lie inside If 'choose' (condition depends on input 'sr'); try --fix-input sr=16000"
    with pytest.raises(ModelError, match=f"^{re.escape(expected)}$"):
        prepare(models.if_model(), tmp_path)


def test_an_if_on_data_gives_no_impossible_advice(tmp_path: Path) -> None:
    proto = models.if_model()
    proto.graph.node[1].CopyFrom(models.node("Greater", ["total", "limit"], "is_16k", "greater"))
    proto.graph.node.insert(1, models.node("ReduceSum", ["x"], "total", "total", keepdims=0))
    proto.graph.initializer.append(helper.make_tensor("limit", TensorProto.FLOAT, [], [1.0]))
    with pytest.raises(
        ModelError, match=r"2 layers lie inside If 'choose' \(condition depends on input 'x'\), which is data$"
    ):
        prepare(proto, tmp_path)


def test_an_unknown_input_to_fix_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError,
        match=r"--fix-input srr: the model has no input of that name, only \['sr', 'x'\]; did you mean 'sr'\?",
    ):
        prepare(models.if_model(), tmp_path, srr="16000")


@pytest.mark.parametrize("text", ["16000.5", "fast", "[16000", "1e400", "99999999999999999999", ""])
def test_a_value_of_another_type_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^--fix-input sr={re.escape(text)}: input 'sr' is int64 of shape \[\]"):
        prepare(models.if_model(), tmp_path, sr=text)


def test_a_value_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"--fix-input x=3: input 'x' is float32 of shape \['N', 3, 8, 8\], the value has shape \[\]"
    ):
        prepare(models.conv_relu(), tmp_path, x="3")
    with pytest.raises(ModelError, match=r"input 'sr' is int64 of shape \[\], the value has shape \[2\]"):
        prepare(models.if_model(), tmp_path, sr="[1, 2]")


@pytest.mark.parametrize("text", ["2.5", "[2.5, 2.5]"])
def test_a_number_fills_a_static_shape_and_a_list_is_taken(text: str, tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.node.append(models.node("Mul", ["y", "gain"], "z", "mul"))
    proto.graph.node.append(models.node("ReduceMean", ["gain2"], "gain", "mean", keepdims=0))
    proto.graph.input.append(models.value("gain2", [2]))
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 4, 8, 8]))
    prepared = prepare_model(models.save(proto, tmp_path / "m.onnx"), fix_input={"gain2": text})
    tensor = prepared.model.graph.initializers["gain"].const_value
    assert tensor is not None
    assert tensor.numpy() == np.float32(2.5)


def test_a_run_without_its_prepared_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"prepared\.onnx: no such file"):
        load_prepared(tmp_path)


def test_strings_cannot_be_fed(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.input.append(models.value("text", ["N"], TensorProto.STRING))
    with pytest.raises(ModelError, match="input 'text' takes strings; calibrant feeds numbers"):
        prepare(proto, tmp_path)


def test_a_graph_without_outputs(tmp_path: Path) -> None:
    proto = models.conv_relu()
    del proto.graph.output[:]
    with pytest.raises(ModelError, match=r"model .*m\.onnx: the graph has no outputs"):
        prepare(proto, tmp_path)


def test_an_output_that_nothing_produces(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.output.append(models.value("nowhere", ["N"]))
    with pytest.raises(ModelError, match=r"model .*m\.onnx: nothing produces its output 'nowhere'"):
        prepare(proto, tmp_path)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"strides": [0, 1]}, r"strides \[0, 1\]: each has to be at least 1"),
        ({"dilations": [1, 0]}, r"dilations \[1, 0\]: each has to be at least 1"),
        ({"group": 0}, r"its weight of shape \[4, 3, 3, 3\] cannot be split into 0 groups"),
        ({"group": 3}, r"its weight of shape \[4, 3, 3, 3\] cannot be split into 3 groups"),
    ],
)
def test_a_convolution_that_cannot_be(attributes: dict[str, int | list[int]], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"Conv 'conv': {reason}"):
        prepare(models.conv_relu(**attributes), tmp_path)


def test_a_bias_of_another_length(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(models.normal(3), "b"))
    with pytest.raises(ModelError, match=r"its bias of shape \[3\] is not one value for each of the 4 output channels"):
        prepare(proto, tmp_path)


def test_an_attribute_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not a valid ONNX model \(Mismatched attribute type in 'conv : strides'"):
        prepare(models.conv_relu(strides="ab"), tmp_path)


def test_what_onnxruntime_refuses_behind_the_last_layer_costs_no_capture(tmp_path):
    proto = models.conv_relu()
    proto.graph.node.append(models.node("Frobnicate", [proto.graph.output[0].name], "z", "strange", domain="my.domain"))
    proto.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    proto.graph.output[0].name = "z"
    path = models.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"onnxruntime refuses the model: .*Frobnicate"):
        calibrant.capture(path, [{"x": np.zeros((1, 3, 8, 8), np.float32)}], run=tmp_path / "r")
    assert not (tmp_path / "r").exists()
