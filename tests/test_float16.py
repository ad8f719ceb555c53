"""float16 models: their convolutions and matrices are quantized, with AscendDequant and casts back to float16; pooling is not."""

from pathlib import Path

import exporting
import models
import naive
import numpy as np
import onnx
import pytest
from exporting import CASES, Case
from onnx import TensorProto, helper, numpy_helper

import calibrant
from calibrant.export.files import export_files
from calibrant.export.verify import verify_export
from calibrant.rebuild import export_record

F16, F32 = np.float16, np.float32
KINDS = (
    "Conv 2-D",
    "Conv depthwise",
    "ConvTranspose",
    "ConvTranspose grouped",
    "Gemm",
    "MatMul",
    "MatMul and Add",
    "MatMul batched",
)


def halved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with float16 inputs, outputs and weights."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    for tensor in found.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(F16), tensor.name))
    for value in (*found.graph.input, *found.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return found


class _Half(Case):
    """Weights as a float16 model holds them."""

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: array.astype(F16).astype(F32) for name, array in super().arrays().items()}


def two_layers() -> onnx.ModelProto:
    """x -> Conv 'conv' -> BatchNormalization 'bn' -> AveragePool 'pool' -> Conv 'last' -> y."""
    arrays = {"w": models.normal(4, 3, 3, 3), **models.batch_norm_parameters(4), "v": models.normal(2, 4, 1, 1, seed=2)}
    nodes = [
        models.node("Conv", ["x", "w"], "c", "conv"),
        models.node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], "n", "bn"),
        models.node("AveragePool", ["n"], "p", "pool", kernel_shape=[2, 2]),
        models.node("Conv", ["p", "v"], "y", "last"),
    ]
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 2, 5, 5])], arrays)


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 8, 8, seed=seed, scale=1.0).astype(F16)} for seed in range(count)]


@pytest.mark.parametrize("offset", [-17, 0])
@pytest.mark.parametrize("name", KINDS)
def test_layers_equal_whole_numbers_rounded_to_float16(name: str, offset: int, tmp_path: Path) -> None:
    case = _Half(*CASES[name])
    export = exporting.export(halved(case.proto()), tmp_path, offset=offset)
    x = case.feed().astype(F16)
    report = verify_export(export.files, [{"x": x}])
    assert report.failures() == []
    assert [str(one) for one in report.findings] == []
    expected = exporting.expected_output(case, export.record["layer"], x.astype(F32)).astype(F16)
    (found,) = models.run(export.files.fake_quant, {"x": x})
    assert found.dtype == F16
    np.testing.assert_array_equal(found, expected)
    assert 'op_data_type: "FLOAT16"' in export.files.record.read_text().replace("'", '"')
    dequant = next(node for node in export.deploy.graph.node if node.op_type == "AscendDequant")
    assert {one.name: one.i for one in dequant.attribute}["dtype"] == 1


def test_casts_stand_at_both_ends_of_a_layer(tmp_path: Path) -> None:
    fake = exporting.export(halved(CASES["Conv 2-D"].proto()), tmp_path).fake_quant
    casts = {
        node.name: helper.get_attribute_value(node.attribute[0]) for node in fake.graph.node if node.op_type == "Cast"
    }
    assert casts == {
        "layer.quant.fakequant.cast": TensorProto.FLOAT, "layer.weight.fakequant.cast": TensorProto.FLOAT,
        "layer.bias.fakequant.cast": TensorProto.FLOAT, "layer.dequant.fakequant.cast": TensorProto.FLOAT16,
    }  # fmt: skip


def test_a_run_quantizes_convolutions_and_no_pooling(tmp_path: Path) -> None:
    model = models.save(halved(two_layers()), tmp_path / "m.onnx")
    done = calibrant.run(model, samples(), run=tmp_path / "r.run", prefix=tmp_path / "a" / "m")
    layers = {row["layer"]: row["reason"] for row in done.read("layers").iter_rows(named=True)}
    assert layers == {
        "conv": None, "pool": "the model has float16 inputs or weights, in which Ascend quantizes no AveragePool", "last": None,
    }  # fmt: skip
    assert done.read("tensors")["dtype"].to_list() == ["float16", "float16"]
    report = calibrant.verify(done)
    assert report.failures() == []
    assert report.sqnr_db >= 60
    first = export_files(tmp_path / "a" / "m")
    again = export_record(first.record, model, tmp_path / "b" / "m")
    for part in ("fake_quant", "deploy", "record", "quant_map"):
        assert getattr(first, part).read_bytes() == getattr(again, part).read_bytes()


def test_batch_norm_is_fused_in_float16(tmp_path: Path) -> None:
    prepared = exporting.prepare(halved(two_layers()), tmp_path)
    assert [node.op_type for node in prepared.model.graph] == ["Conv", "AveragePool", "Conv"]
    given = {key: array.astype(F16).astype(np.float64) for key, array in models.batch_norm_parameters(4).items()}
    scale = given["gamma"] / np.sqrt(given["var"] + 1e-5)
    weight = prepared.model.graph.initializers["w"].const_value
    assert weight is not None
    expected = models.normal(4, 3, 3, 3).astype(F16).astype(np.float64) * scale[:, None, None, None]
    np.testing.assert_array_equal(weight.numpy(), expected.astype(F16))


def test_inputs_of_other_nodes_stay_in_float(tmp_path: Path) -> None:
    proto = CASES["Conv 2-D"].proto()
    proto.graph.node.append(models.node("MaxPool", ["y"], "z", "maxpool", kernel_shape=[2, 2]))
    proto.graph.output.append(models.value("z", ["N", None, None, None]))
    model = models.save(halved(proto), tmp_path / "m.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text('tensor_quantize { layer_name: "maxpool" input_index: 0 }')
    feeds = [{"x": CASES["Conv 2-D"].feed(seed).astype(F16)} for seed in range(3)]
    done = calibrant.run(model, feeds, run=tmp_path / "r.run", config=config, prefix=tmp_path / "a" / "m")
    reason = "in a model with float16 Ascend quantizes no MaxPool"
    assert done.read("plan").filter(layer="maxpool").select("enabled", "reason").rows() == [(False, reason)]
    assert f"tensor_quantize of 'maxpool:0' has no effect: {reason}" in done.read("events")["message"].to_list()
    deploy = onnx.load(export_files(tmp_path / "a" / "m").deploy)
    assert [node.op_type for node in deploy.graph.node].count("AscendQuant") == 1


def test_a_mixed_model_quantizes_no_pooling_either(tmp_path: Path) -> None:
    proto = halved(CASES["Conv 2-D"].proto())
    proto.graph.node.extend([
        models.node("Cast", ["y"], "f", "cast", to=TensorProto.FLOAT),
        models.node("AveragePool", ["f"], "z", "pool", kernel_shape=[2, 2]),
    ])  # fmt: skip
    proto.graph.output.append(models.value("z", ["N", None, None, None]))
    layers = {layer.name: layer.quantizable for layer in exporting.prepare(proto, tmp_path).layers}
    assert layers == {"layer": True, "pool": False}


def test_other_types_are_refused(tmp_path: Path) -> None:
    proto = CASES["Conv 2-D"].proto()
    proto.graph.node.append(models.node("Cast", ["y"], "d", "cast", to=TensorProto.DOUBLE))
    proto.graph.node.append(models.node("MatMul", ["d", "k"], "z", "double"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2)), "k"))
    proto.graph.output.append(models.value("z", ["N", None, None, 2], TensorProto.DOUBLE))
    reasons = {layer.name: layer.reason for layer in exporting.prepare(proto, tmp_path).layers}
    assert reasons["double"] == "its weight is float64; only float32 and float16 are quantized"


def test_verify_finds_the_type_of_another_model(tmp_path: Path) -> None:
    files = exporting.export(halved(CASES["Conv 2-D"].proto()), tmp_path).files
    deploy = onnx.load(files.deploy)
    dequant = next(node for node in deploy.graph.node if node.op_type == "AscendDequant")
    dequant.attribute[0].i = 0
    files.deploy.write_bytes(deploy.SerializeToString())
    assert not verify_export(files, [{"x": CASES["Conv 2-D"].feed().astype(F16)}]).passed


def test_codes_of_the_twin_are_those_of_widened_values() -> None:
    x = np.array([0.1, -0.3, 2.5], F16)
    assert naive.deploy_codes(x.astype(F32), F32(0.02), 0, 8) == naive.deploy_codes(x, F32(0.02), 0, 8)


def test_float_nodes_between_layers_round_alike_in_both_models(tmp_path: Path) -> None:
    """A float Conv is handed over before a quantized one and read behind it, where the interpreter has it in float16."""
    nodes = [
        models.node("Conv", ["x", "w"], "c", "first", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("Conv", ["r", "v"], "a", "left"),
        models.node("Conv", ["r", "u"], "b", "right"),
        models.node("Add", ["a", "b"], "s", "add"),
        models.node("Sigmoid", ["s"], "y", "sigmoid"),
    ]
    weights = {
        "w": models.normal(8, 3, 3, 3),
        "v": models.normal(8, 8, 1, 1, seed=1),
        "u": models.normal(8, 8, 1, 1, seed=2),
    }
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 8, 8, 8])], weights)
    export = exporting.export(halved(proto), tmp_path, skip=["left"])
    report = verify_export(export.files, [{"x": models.normal(1, 3, 8, 8, seed=5, scale=2.0).astype(F16)}])
    assert report.passed
    assert report.sqnr_db == np.inf


def test_values_that_are_looked_at_are_no_other_values(tmp_path: Path) -> None:
    """The data of a layer whose weight alone is quantized is handed out, which makes onnxruntime round it."""
    nodes = [
        models.node("MatMul", ["x", "w"], "a", "first"),
        models.node("Sigmoid", ["a"], "g", "gate"),
        models.node("Mul", ["g", "a"], "b", "swish"),
        models.node("Reshape", ["b", "shape"], "r", "reshape"),
        models.node("MatMul", ["r", "v"], "c", "alone"),
        models.node("Sigmoid", ["c"], "e", "sigmoid"),
        models.node("Add", ["e", "r"], "f", "add"),
        models.node("MatMul", ["f", "u"], "y", "last"),
    ]
    weights = {
        "w": models.normal(8, 32),
        "v": models.normal(16, 16, seed=1),
        "u": models.normal(16, 8, seed=2),
        "shape": np.array([0, 32, 16]),
    }
    proto = models.model(nodes, [models.value("x", ["N", 16, 8])], [models.value("y", ["N", 32, 8])], weights)
    path = models.save(halved(proto), tmp_path / "m.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text(
        'override_layer_configs { layer_name: "alone" calibration_config { weight_compress_only: true } }'
    )
    samples = [{"x": models.normal(1, 16, 8, seed=seed, scale=1.0).astype(F16)} for seed in range(4)]
    run = calibrant.run(path, samples, run=tmp_path / "m.run", config=config, prefix=tmp_path / "out" / "m")
    assert calibrant.verify(run).sqnr_db == np.inf
