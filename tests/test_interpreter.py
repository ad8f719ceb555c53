"""Both exported models against whole numbers worked out from the record, layer kind by layer kind."""

import exporting
import models
import numpy as np
import onnx
import pytest
from exporting import CASES, Case

from calibrant.errors import DataError, ExportError
from calibrant.export.interpreter import Interpreter
from calibrant.export.verify import verify_export


def outputs(export: exporting.Export, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The deploy model in the interpreter and the fake-quant model in onnxruntime."""
    return Interpreter(export.files.deploy).run({"x": x})["y"], models.run(export.files.fake_quant, {"x": x})[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("offset", [-128, -17, 0, 90])
def test_both_models_compute_what_the_record_says(name, offset, tmp_path):
    case = CASES[name]
    export = exporting.export(case.proto(), tmp_path, offset=offset)
    x = case.feed()
    expected = exporting.expected_output(case, export.record["layer"], x)
    deploy, fake_quant = outputs(export, x)
    np.testing.assert_array_equal(deploy, expected, strict=True)
    np.testing.assert_array_equal(fake_quant, expected, strict=True)


@pytest.mark.parametrize("name", ["Conv 2-D", "Conv 1-D", "Gemm", "ConvTranspose"])
def test_sixteen_bit_data(name, tmp_path):
    case = CASES[name]
    export = exporting.export(case.proto(), tmp_path, scale_d=0.0003, offset=-1000, bits=16)
    x = case.feed()
    expected = exporting.expected_output(case, export.record["layer"], x, bits=16)
    np.testing.assert_array_equal(outputs(export, x)[0], expected, strict=True)
    assert verify_export(export.files, [{"x": x}]).passed


@pytest.mark.parametrize("opset", [11, 17, 19, 22])
@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 1]])
def test_average_pool_of_every_opset(opset, count, ceil, pads, tmp_path):
    attributes = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": pads,
        "count_include_pad": count,
        "ceil_mode": ceil,
    }
    case = Case("AveragePool", (1, 2, 8, 7), attributes=attributes, opset=opset)
    export = exporting.export(case.proto(), tmp_path)
    deploy, fake_quant = outputs(export, case.feed())
    np.testing.assert_array_equal(deploy, fake_quant, strict=True)


def test_channels_of_scale_one(tmp_path):
    case = CASES["Conv 2-D"]
    export = exporting.export(case.proto(), tmp_path)
    assert export.record["layer"]["scale_w"][1] == 1
    word = next(tensor for tensor in export.deploy.graph.initializer if tensor.name == "layer.dequant.param")
    assert int(onnx.numpy_helper.to_array(word)[1]) == int(np.float32(0.02).view(np.uint32))
    weight = next(tensor for tensor in export.deploy.graph.initializer if tensor.name == "w")
    assert not onnx.numpy_helper.to_array(weight)[1].any()


@pytest.mark.parametrize(
    "proto",
    [
        models.depthwise(),
        models.two_inputs(),
        models.attention(),
        models.shared_weight(),
        models.merged_axes(),
        models.integer_input(),
        models.sample_axis_1(),
    ],
    ids=["depthwise", "two inputs", "attention", "shared weight", "merged axes", "integer input", "state"],
)
def test_whole_models(proto, tmp_path):
    export = exporting.export(proto, tmp_path)
    feeds = {
        item.name: models.normal(*[size if isinstance(size, int) else 1 for size in item.shape], scale=1.0)
        if item.dtype == np.float32
        else np.arange(5).reshape(1, 5)
        for item in export.prepared.inputs
    }
    deploy = Interpreter(export.files.deploy).run(feeds)
    for name, array in zip(deploy, models.run(export.files.fake_quant, feeds, list(deploy)), strict=True):
        np.testing.assert_array_equal(deploy[name], array, strict=True)


def test_branches_read_values_from_outside(tmp_path):
    def branch(name: str, factor: float) -> onnx.GraphProto:
        nodes = [
            models.constant_node("factor", np.array(factor, np.float32)),
            models.node("Mul", ["c", "factor"], "scaled", "scale"),
        ]
        return onnx.helper.make_graph(nodes, name, [], [models.value("scaled", [None] * 4)])

    nodes = [
        models.node("Conv", ["x", "w1"], "c", "first"),
        models.node("ReduceMax", ["c"], "peak", "peak", keepdims=0),
        models.node("Less", ["zero", "peak"], "positive", "less"),
        models.node(
            "If", ["positive"], "i", "choose", then_branch=branch("then", 2.0), else_branch=branch("else", 3.0)
        ),
        models.node("Conv", ["i", "w2"], "y", "second"),
    ]
    initializers = {"w1": models.normal(3, 3, 3, 3), "w2": models.normal(2, 3, 1, 1, seed=2), "zero": np.float32(0)}
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 2, 6, 6])], initializers)
    export = exporting.export(proto, tmp_path)
    deploy, fake_quant = outputs(export, models.normal(1, 3, 8, 8, scale=1.0))
    np.testing.assert_array_equal(deploy, fake_quant)


def test_observer_sees_every_layer_once(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    seen = []
    Interpreter(export.files.deploy).run({"x": models.normal(1, 4, 8, 8)}, lambda run: seen.append(run.layer.name))
    assert seen == ["dw", "pw"]


def test_missing_and_unknown_inputs(tmp_path):
    interpreter = Interpreter(exporting.export(models.conv_relu(), tmp_path).files.deploy)
    with pytest.raises(DataError, match="input 'x' is missing"):
        interpreter.run({})
    with pytest.raises(DataError, match="the model has no input 'X'"):
        interpreter.run({"x": models.normal(1, 3, 8, 8), "X": models.normal(1)})


def test_nan_has_no_code(tmp_path):
    interpreter = Interpreter(exporting.export(models.conv_relu(), tmp_path).files.deploy)
    with pytest.raises(DataError, match=r"node 'conv.quant': its input 'x' holds NaN"):
        interpreter.run({"x": np.full((1, 3, 8, 8), np.nan, np.float32)})


def test_a_float_model_has_no_quantizers(tmp_path):
    interpreter = Interpreter(models.save(models.conv_relu(), tmp_path / "float.onnx"))
    assert interpreter.layers == ()


def test_dequant_without_layer_is_refused(tmp_path):
    export = exporting.export(models.conv_relu(), tmp_path)
    model = export.deploy
    next(node for node in model.graph.node if node.op_type == "AscendDequant").input[0] = "x"
    with pytest.raises(ExportError, match="which no node makes"):
        Interpreter(model)
