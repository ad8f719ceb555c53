"""What can be quantized and why the rest cannot; ids, tensors, axes and multiply-accumulates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrant.ingest.describe import batch_axis_of
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, layer_macs, layer_rows_of, prepare_model


def prepare(proto: onnx.ModelProto, folder: Path, **options: Any) -> PreparedModel:
    return prepare_model(models.save(proto, folder / "source.onnx"), **options)


def beside_a_conv(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Add a Conv 'good' that can be quantized, so that a model whose other layers are refused is accepted."""
    proto.graph.node.append(models.node("Conv", ["good_x", "good_w"], "good_y", "good"))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(2, 2, 1, 1), "good_w"))
    proto.graph.input.append(models.value("good_x", ["N", 2, 4, 4]))
    proto.graph.output.append(models.value("good_y", ["N", 2, 4, 4]))
    return proto


def layer_of(proto: onnx.ModelProto, folder: Path, name: str) -> Layer:
    return next(layer for layer in prepare(beside_a_conv(proto), folder).layers if layer.name == name)


def with_initializer(proto: onnx.ModelProto, name: str, array: models.Array) -> onnx.ModelProto:
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return proto


def with_variable(proto: onnx.ModelProto, name: str, shape: Sequence[int]) -> onnx.ModelProto:
    """Make an initializer an input that the caller feeds."""
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != name]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.append(models.value(name, shape))
    return proto


def test_a_conv_is_described(tmp_path: Path) -> None:
    prepared = prepare(models.conv_relu(3, 4), tmp_path)
    assert prepared.layers == (
        Layer(
            layer_id=0, name="conv", op_type="Conv", tensor="x", tensor_id=0, output="c", weight="w", bias="b", bias_node=None,
            weight_axis=0, channels_out=4, channels_in=3, groups=1, kernel_rank=2, parameters=4 * 3 * 9 + 4, quantizable=True,
            reason=None,
        ),
    )  # fmt: skip
    (tensor,) = prepared.tensors
    assert (tensor.name, tensor.producer, tensor.is_input, tensor.channel_axis, tensor.shape) == (
        "x",
        "",
        True,
        1,
        ("N", 3, 8, 8),
    )


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (models.depthwise(4), ("Conv", 0, 4, 4, 4, 2)),
        (models.conv_transpose(4, 6), ("ConvTranspose", 1, 6, 4, 1, 2)),
        (models.conv_transpose(4, 6, groups=2), ("ConvTranspose", 1, 6, 4, 2, 2)),
        (models.gemm(), ("Gemm", 1, 6, 4, 1, 0)),
        (models.gemm(trans_b=1), ("Gemm", 1, 6, 4, 1, 0)),
        (models.matmul(), ("MatMul", 1, 6, 4, 1, 0)),
        (models.batched_matmul(), ("MatMul", 2, 6, 4, 1, 0)),
        (models.average_pool(), ("AveragePool", None, None, None, 1, 2)),
        (models.conv1d(3, 4), ("Conv", 0, 4, 3, 1, 1)),
        (models.conv3d(), ("Conv", 0, 3, 2, 1, 3)),
    ],
)
def test_axes_channels_groups_and_kernel(proto: onnx.ModelProto, expected: tuple[Any, ...], tmp_path: Path) -> None:
    layer = prepare(proto, tmp_path).layers[0]
    found = (layer.op_type, layer.weight_axis, layer.channels_out, layer.channels_in, layer.groups, layer.kernel_rank)
    assert found == expected
    assert layer.quantizable


REFUSED = {
    "variable weight": (
        with_variable(models.conv_relu(), "w", [4, 3, 3, 3]), "conv", "its weight 'w' is not a constant",
    ),
    "variable bias": (with_variable(models.conv_relu(), "b", [4]), "conv", "its bias 'b' is not a constant"),
    "variable gemm bias": (with_variable(models.gemm(), "b", [6]), "gemm", "its bias 'b' is not a constant"),
    "3-D Conv dilated along the depth": (
        models.conv3d(dilations=(2, 1, 1)), "conv", "dilations [2, 1, 1]: a quantized 3-D Conv needs dilation 1 along the depth",
    ),
    "NaN weight": (
        with_initializer(models.conv_relu(), "w", np.full((4, 3, 3, 3), np.nan, np.float32)), "conv",
        "its weight holds NaN or infinity",
    ),
    "infinite bias": (
        with_initializer(models.conv_relu(), "b", np.full(4, np.inf, np.float32)), "conv", "its bias holds NaN or infinity",
    ),
    "transA": (models.gemm(trans_a=1), "gemm", "transA = 1: Gemm is quantized for transA = 0 only"),
    "alpha": (models.gemm(alpha=0.5), "gemm", "alpha = 0.5, beta = 1: Gemm is quantized for alpha = beta = 1 only"),
    "beta": (models.gemm(beta=2.0), "gemm", "alpha = 1, beta = 2: Gemm is quantized for alpha = beta = 1 only"),
    "gemm bias by row": (
        models.gemm(bias_shape=(2, 6)), "gemm", "its bias of shape [2, 6] is not one value for each of the 6 columns",
    ),
    "two variables": (
        models.attention(), "scores", "both inputs are variable; MatMul of two variables (symmetric int8) is off by default",
    ),
    "5-D average pool": (
        models.model(
            [models.node("AveragePool", ["x"], "y", "pool", kernel_shape=[2, 2, 2])],
            [models.value("x", ["N", 3, 4, 4, 4])], [models.value("y", ["N", 3, 3, 3, 3])],
        ),
        "pool", "its input has rank 5; AveragePool is quantized for rank 4",
    ),
    "global average pool": (
        models.model(
            [models.node("GlobalAveragePool", ["x"], "y", "pool")],
            [models.value("x", ["N", 3, 4, 4])], [models.value("y", ["N", 3, 1, 1])],
        ),
        "pool", "GlobalAveragePool is not quantized on Ascend",
    ),
    "constant first input": (
        models.model(
            [models.node("MatMul", ["w", "x"], "y", "matmul")], [models.value("x", ["N", 4, 5])],
            [models.value("y", ["N", 6, 5])], {"w": models.normal(6, 4)},
        ),
        "matmul", "its first input is the constant; MatMul is quantized for a constant second input",
    ),
    "constant of rank 4": (
        models.model(
            [models.node("MatMul", ["x", "w"], "y", "matmul")], [models.value("x", [2, 3, "N", 4])],
            [models.value("y", [2, 3, "N", 6])], {"w": models.normal(2, 3, 4, 6)},
        ),
        "matmul", "its constant has rank 4; it must have rank 2 or 3",
    ),
    "vector constant": (
        models.model(
            [models.node("MatMul", ["x", "w"], "y", "matmul")], [models.value("x", ["N", 4])],
            [models.value("y", ["N"])], {"w": models.normal(4)},
        ),
        "matmul", "its constant has rank 1; it must have rank 2 or 3",
    ),
    "constant input": (
        models.model(
            [models.node("Conv", ["c", "w"], "r", "conv"), models.node("Add", ["x", "r"], "y", "add")],
            [models.value("x", ["N", 4, 6, 6])], [models.value("y", ["N", 4, 6, 6])],
            {"c": models.normal(1, 3, 8, 8), "w": models.normal(4, 3, 3, 3)},
        ),
        "conv", "its input is a constant, so there is nothing to calibrate",
    ),
    "dilated ConvTranspose": (
        models.model(
            [models.node("ConvTranspose", ["x", "w"], "y", "up", dilations=[2, 2])], [models.value("x", ["N", 3, 5, 5])],
            [models.value("y", ["N", 4, 7, 7])], {"w": models.normal(3, 4, 2, 2)},
        ),
        "up", "dilations [2, 2]: a quantized ConvTranspose needs dilation 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_each_refusal_has_its_reason(case: str, tmp_path: Path) -> None:
    given, name, reason = REFUSED[case]
    proto = onnx.ModelProto.FromString(given.SerializeToString())
    layer = layer_of(proto, tmp_path, name)
    assert (layer.quantizable, layer.reason, layer.tensor_id) == (False, reason, None)


@pytest.mark.parametrize(
    ("dtype", "tensor_type", "reason"),
    [
        (np.float16, TensorProto.FLOAT16, None),
        (np.float64, TensorProto.DOUBLE, "its weight is float64; only float32 and float16 are quantized"),
    ],
)
def test_float_types(dtype: type, tensor_type: int, reason: str | None, tmp_path: Path) -> None:
    proto = models.model(
        [models.node("Conv", ["x", "w"], "y", "conv")],
        [models.value("x", ["N", 3, 8, 8], tensor_type)],
        [models.value("y", ["N", 4, 6, 6], tensor_type)],
        {"w": models.normal(4, 3, 3, 3).astype(dtype)},
    )
    assert layer_of(proto, tmp_path, "conv").reason == reason


def test_a_double_average_pool_is_refused_by_its_input(tmp_path: Path) -> None:
    proto = models.average_pool()
    for entry in (proto.graph.input[0], proto.graph.output[0]):
        entry.type.tensor_type.elem_type = TensorProto.DOUBLE
    assert layer_of(proto, tmp_path, "pool").reason == "its input is float64; only float32 and float16 are quantized"


def test_a_computed_weight_names_its_producer(tmp_path: Path) -> None:
    proto = models.conv_relu(bias=False)
    proto.graph.node[0].input[1] = "changed"
    proto.graph.node.insert(0, models.node("Mul", ["w", "factor"], "changed", "scale_weight"))
    proto.graph.input.append(models.value("factor", [1]))
    assert (
        layer_of(proto, tmp_path, "conv").reason
        == "its weight 'changed' (computed by Mul 'scale_weight') is not a constant"
    )


@pytest.mark.parametrize(
    "attributes",
    [{"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}, {"kernel_shape": [3, 3], "ceil_mode": 1}],
)
def test_four_dimensional_average_pools_are_quantized(attributes: dict[str, Any], tmp_path: Path) -> None:
    assert prepare(models.average_pool(**attributes), tmp_path).layers[0].quantizable


def test_ids_follow_the_nodes_and_inputs_come_first(tmp_path: Path) -> None:
    prepared = prepare(models.two_inputs(), tmp_path)
    assert [(layer.layer_id, layer.name, layer.tensor_id) for layer in prepared.layers] == [
        (0, "conv_x", 0),
        (1, "conv_z", 1),
    ]
    assert [tensor.name for tensor in prepared.tensors] == ["x", "z"]
    attention = prepare(models.attention(), tmp_path)
    assert [layer.tensor_id for layer in attention.layers if layer.quantizable] == [0, 0, 0]
    assert [tensor.name for tensor in attention.tensors] == ["x"]


def test_the_order_does_not_depend_on_the_order_in_the_file(tmp_path: Path) -> None:
    proto = models.depthwise()
    first = prepare(proto, tmp_path)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    second = prepare(proto, tmp_path)
    assert first.layers == second.layers
    assert first.tensors == second.tensors


def test_channel_axis_is_that_of_the_first_consumer(tmp_path: Path) -> None:
    nodes = [
        models.node("Conv", ["x", "w1"], "y", "conv"),
        models.node("MatMul", ["x", "w2"], "z", "matmul"),
    ]
    initializers = {"w1": models.normal(4, 3, 3), "w2": models.normal(8, 6)}
    outputs = [models.value("y", ["N", 4, 6]), models.value("z", ["N", 3, 6])]
    prepared = prepare(models.model(nodes, [models.value("x", ["N", 3, 8])], outputs, initializers), tmp_path)
    assert [tensor.channel_axis for tensor in prepared.tensors] == [1]
    assert any("channels are those of the first, Conv 'conv'" in event.message for event in prepared.events)
    assert [t.channel_axis for t in prepare(models.matmul(), tmp_path).tensors] == [-1]


def test_one_event_speaks_for_all_one_dimensional_convolutions(tmp_path: Path) -> None:
    prepared = prepare(models.conv1d(), tmp_path)
    (event,) = prepared.events
    assert event.severity == "info"
    assert event.message.startswith("Conv with a kernel that AMCT's documentation for ONNX excludes")
    assert event.message.endswith("take: 1, quantized (first 'conv')")


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ([2, "batch", 128], 1), (["N", 3, 8, 8], 0), ([1, 3, 8, 8], 0), ([], None), ([None, 3], 0), ([3, None], 1),
        ([3, "height", "batch_size"], 2), ([3, "height", "n"], 2), ([3, "height", "width"], 1), (["a", "batch"], 1),
        (["batch", "time"], 0), (["a", "n"], 0),
    ],
)  # fmt: skip
def test_batch_axis(shape: list[int | str | None], axis: int | None) -> None:
    assert batch_axis_of(shape) == axis


def test_inputs_are_described(tmp_path: Path) -> None:
    prepared = prepare(models.sample_axis_1(), tmp_path)
    assert [(i.name, i.dtype.name, i.shape, i.batch_axis) for i in prepared.inputs] == [
        ("x", "float32", ("N", 4), 0),
        ("state", "float32", (2, "N", 6), 1),
    ]
    (ids,) = prepare(models.integer_input(), tmp_path).inputs
    assert (ids.dtype.name, ids.shape) == ("int64", ("N", 5))


@pytest.mark.parametrize(
    ("proto", "shape", "expected"),
    [
        (models.conv_relu(3, 4), (1, 3, 8, 8), 4 * 8 * 8 * 3 * 9),
        (models.conv_relu(3, 4, pads=[0, 0, 0, 0]), (1, 3, 8, 8), 4 * 6 * 6 * 3 * 9),
        (models.conv_relu(3, 4, pads=[1, 1, 1, 1], strides=[2, 2]), (1, 3, 8, 8), 4 * 4 * 4 * 3 * 9),
        (models.conv_relu(3, 4, pads=[0, 0, 0, 0], dilations=[2, 2]), (1, 3, 8, 8), 4 * 4 * 4 * 3 * 9),
        (models.depthwise(4), (1, 4, 8, 8), 4 * 8 * 8 * 9),
        (models.conv1d(3, 4), (1, 3, 16), 4 * 16 * 3 * 3),
        (models.conv_transpose(4, 6, groups=2), (1, 4, 5, 5), 4 * 5 * 5 * 3 * 4),
        (models.gemm(trans_b=1), (1, 4), 24),
        (models.matmul(), (1, 4), 24),
        (models.matmul_add(), (1, 5, 4), 5 * 24),
        (models.batched_matmul(), (1, 3, 5, 4), 3 * 5 * 24),
        (models.batched_matmul(), (5, 4), 3 * 5 * 24),
        (models.average_pool(), (1, 3, 8, 8), 3 * 4 * 4 * 4),
    ],
)
def test_multiply_accumulates(proto: onnx.ModelProto, shape: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    prepared = prepare(proto, tmp_path)
    assert layer_macs(prepared, prepared.layers[0], shape) == expected


@pytest.mark.parametrize(("auto_pad", "size"), [("SAME_UPPER", 4), ("SAME_LOWER", 4), ("VALID", 3)])
def test_automatic_padding_counts_windows_as_onnxruntime_does(auto_pad: str, size: int, tmp_path: Path) -> None:
    nodes = [models.node("Conv", ["x", "w"], "y", "conv", auto_pad=auto_pad, strides=[2, 2])]
    proto = models.model(
        nodes,
        [models.value("x", ["N", 3, 8, 8])],
        [models.value("y", ["N", 4, None, None])],
        {"w": models.normal(4, 3, 3, 3)},
    )
    (output,) = models.run(proto, {"x": models.normal(1, 3, 8, 8)})
    assert output.shape[2:] == (size, size)
    prepared = prepare(proto, tmp_path)
    assert layer_macs(prepared, prepared.layers[0], (1, 3, 8, 8)) == 4 * size * size * 3 * 9


def test_rows_take_measured_shapes_before_static_ones(tmp_path: Path) -> None:
    prepared = prepare(models.dynamic_shapes(), tmp_path)
    assert [row.macs for row in layer_rows_of(prepared)] == [None]
    (row,) = layer_rows_of(prepared, {"x": (1, 3, 4, 4)})
    assert (row.macs, row.parameters, row.quantizable, row.tensor_id) == (4 * 16 * 3 * 9, 112, True, 0)
    assert [row.macs for row in layer_rows_of(prepare(models.conv_relu(3, 4), tmp_path))] == [4 * 64 * 27]


def test_refused_layers_have_rows_too(tmp_path: Path) -> None:
    rows = layer_rows_of(prepare(models.attention(), tmp_path))
    assert [(row.layer, row.quantizable) for row in rows] == [
        ("query", True), ("key", True), ("value", True), ("scores", False), ("mix", False),
    ]  # fmt: skip
    assert all(row.reason for row in rows if not row.quantizable)


def test_layers_in_loops_are_reported_and_left(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [models.node("Conv", ["state", "k"], "next", "inner"), models.node("Identity", ["go"], "again", "go_on")],
        "body",
        [
            models.value("i", [], TensorProto.INT64),
            models.value("go", [], TensorProto.BOOL),
            models.value("state", [None] * 4),
        ],
        [models.value("again", [], TensorProto.BOOL), models.value("next", [None] * 4)],
    )
    proto = models.conv_relu(3, 3)
    proto.graph.node.append(models.node("Loop", ["times", "", "y"], "z", "loop", body=inner))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(3, 3, 1, 1), "k"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2), "times"))
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 3, 8, 8]))
    prepared = prepare(proto, tmp_path)
    assert [layer.name for layer in prepared.layers] == ["conv"]
    assert [event.message for event in prepared.events] == ["1 layer lies inside Loop 'loop'; left in float"]
