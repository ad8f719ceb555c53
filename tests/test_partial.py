"""Fake-quant models with some layers quantized: none is the prepared model, all is the export, in between each layer is one of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from exporting import CASES, Case

import calibrant
from calibrant.errors import LayerNotFoundError
from calibrant.export.files import export_files
from calibrant.export.isolated import data_tensors, open_isolated
from calibrant.export.memory_session import open_model
from calibrant.export.partial import partial_fake_quant
from calibrant.exported_fit import quantized_parts
from calibrant.ingest.model import load_prepared

CHAIN = ["conv_in", "dw", "fc/1", "pool"]


def chain(*, opset: int = 17) -> onnx.ModelProto:
    """x [N,3,8,8] -> Conv 'conv_in' -> Relu -> depthwise Conv 'dw' -> AveragePool 'pool' -> Flatten -> Gemm 'fc/1' -> y."""
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "a", "conv_in", pads=[1, 1, 1, 1]),
        models.node("Relu", ["a"], "r", "relu"),
        models.node("Conv", ["r", "w2", "b2"], "d", "dw", pads=[1, 1, 1, 1], group=4),
        models.node("AveragePool", ["d"], "p", "pool", kernel_shape=[4, 4], strides=[4, 4]),
        models.node("Flatten", ["p"], "f", "flatten"),
        models.node("Gemm", ["f", "w3", "b3"], "y", "fc/1"),
    ]
    constants = {
        "w1": models.normal(4, 3, 3, 3), "b1": models.normal(4, seed=1), "w2": models.normal(4, 1, 3, 3, seed=2),
        "b2": models.normal(4, seed=3), "w3": models.normal(16, 5, seed=4), "b3": models.normal(5, seed=5),
    }  # fmt: skip
    inputs, outputs = [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 5])]
    return models.model(nodes, inputs, outputs, constants, opset=opset)


def draw(shape: Sequence[int], count: int = 3, dtype: Any = np.float32) -> list[dict[str, np.ndarray]]:
    generator = models.rng(11)
    return [{"x": generator.standard_normal(tuple(shape)).astype(dtype)} for _ in range(count)]


def run_of(proto: onnx.ModelProto, feeds: Any, folder: Path, text: str = "") -> calibrant.Run:
    (folder / "quant.cfg").write_text(text)
    source = models.save(proto, folder / "m.onnx")
    return calibrant.run(source, feeds, run=folder / "r", config=folder / "quant.cfg")


def parts_of(run: calibrant.Run) -> tuple[Any, Any]:
    prepared = load_prepared(run.model_folder)
    return prepared, quantized_parts(run, prepared, "default")


def exported(run: calibrant.Run) -> Path:
    prefix = run.info.fits["default"].prefix
    assert prefix is not None
    return export_files(prefix).fake_quant


def outputs_of(model: ir.Model, feeds: Any, names: Sequence[str] | None = None) -> list[np.ndarray]:
    session = open_model(model)
    return [array for feed in feeds for array in session.run(names, feed)]


def same_bits(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)
    )


def test_none_chosen_is_the_prepared_model_and_all_chosen_is_the_export(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8))
    run = run_of(chain(), feeds, tmp_path)
    prepared, parts = parts_of(run)
    none, everything = (partial_fake_quant(prepared, parts, chosen) for chosen in ((), parts.names))
    expected = [array for feed in feeds for array in models.run(run.prepared_file, feed)]
    assert sorted(parts.names) == CHAIN
    assert same_bits(outputs_of(none, feeds), expected)
    assert ir.to_proto(everything).SerializeToString() == exported(run).read_bytes()
    assert not same_bits(outputs_of(everything, feeds), expected)


def test_an_old_model_is_not_raised_where_nothing_is_quantized(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8))
    prepared, parts = parts_of(run_of(chain(opset=9), feeds, tmp_path))
    opsets = [partial_fake_quant(prepared, parts, chosen).graph.opset_imports[""] for chosen in ((), ("dw",))]
    assert opsets == [9, 11]


@pytest.mark.parametrize("chosen", [("dw",), ("conv_in", "fc/1"), ("pool", "dw")])
def test_a_chosen_layer_computes_as_in_the_export_and_the_others_as_in_float(
    chosen: tuple[str, ...], tmp_path: Path
) -> None:
    run = run_of(chain(), draw((1, 3, 8, 8)), tmp_path)
    prepared, parts = parts_of(run)
    model = ir.to_proto(partial_fake_quant(prepared, parts, chosen))
    whole, source = onnx.load(exported(run)), onnx.load(run.prepared_file)
    for layer in CHAIN:
        assert computation(model, layer) == computation(whole if layer in chosen else source, layer), layer


def computation(proto: onnx.ModelProto, layer: str) -> list[Any]:
    """The nodes of a layer and of what was added for it, and the constants that they read."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes = [node for node in proto.graph.node if owner(node.name) == layer]
    assert nodes
    return [(n.name, n.op_type, list(n.attribute), [constants.get(name) for name in n.input]) for n in nodes]


def owner(name: str) -> str:
    return next((layer for layer in CHAIN if name == layer or name.startswith(f"{layer}.")), "")


def test_a_name_that_is_not_quantized_is_refused_with_the_nearest(tmp_path: Path) -> None:
    prepared, parts = parts_of(run_of(chain(), draw((1, 3, 8, 8)), tmp_path))
    with pytest.raises(LayerNotFoundError, match=r"layer 'fc/2' is not quantized in this fit; did you mean 'fc/1'"):
        partial_fake_quant(prepared, parts, ("dw", "fc/2"))


def test_inputs_of_other_nodes_are_chosen_by_node_and_number(tmp_path: Path) -> None:
    feeds = [{"x": a["x"], "z": b["x"]} for a, b in zip(draw((1, 3, 8, 8)), reversed(draw((1, 3, 8, 8))), strict=True)]
    text = 'tensor_quantize { layer_name: "sum" input_index: 1 }'
    run = run_of(models.two_inputs(), feeds, tmp_path, text)
    prepared, parts = parts_of(run)
    assert parts.names == ("conv_x", "conv_z", "sum:1")
    model = ir.to_proto(partial_fake_quant(prepared, parts, ("sum:1",)))
    assert [n.op_type for n in model.graph.node if n.op_type in {"Clip", "Cast"}] == ["Clip"]  # one quantizer, no codes
    assert (
        ir.to_proto(partial_fake_quant(prepared, parts, parts.names)).SerializeToString() == exported(run).read_bytes()
    )


def intermediate(path: Path, names: Sequence[str], feeds: Any) -> list[np.ndarray]:
    """Values of the exported model, in its own words."""
    proto = onnx.load(path)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return [array for feed in feeds for array in models.run(proto, feed, names)]


CONFIGS = {
    "8 bits": "",
    "16 bits": "common_config { ifmr_quantize { dst_type: INT16 } }",
    "weights alone": "common_config { weight_compress_only: true }",
    "levels": "common_config { nuq_quantize { num_steps: 32 } }",
    "per tensor": "common_config { arq_quantize { channel_wise: false } }",
    "balanced": "common_config { dmq_balancer { migration_strength: 0.5 } }",
    "hfmg, symmetric": "activation_offset: false common_config { hfmg_quantize { num_of_bins: 4096 } }",
}  # fmt: skip


def check_isolated(case: Case, folder: Path, text: str, dtype: Any = np.float32) -> None:
    """The layer alone gives what the two whole models give, which consist of it."""
    proto = case.proto()
    feeds = draw(case.x, dtype=dtype)
    run = run_of(proto, feeds, folder, text)
    prepared, parts = parts_of(run)
    alone = open_isolated(prepared, parts, prepared.layers[0])
    pairs = [alone.outputs((feed["x"],)) for feed in feeds]
    assert same_bits([pair[0] for pair in pairs], [models.run(run.prepared_file, feed)[0] for feed in feeds])
    assert same_bits([pair[1] for pair in pairs], [models.run(exported(run), feed)[0] for feed in feeds])


@pytest.mark.parametrize("name", [name for name in CASES if "heads" not in name])
def test_a_layer_alone_computes_what_it_does_in_the_model(name: str, tmp_path: Path) -> None:
    check_isolated(CASES[name], tmp_path, "")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["Conv grouped", "ConvTranspose", "Gemm", "MatMul and Add, bias first"])
def test_a_layer_alone_has_the_settings_of_its_fit(name: str, config: str, tmp_path: Path) -> None:
    check_isolated(CASES[name], tmp_path, CONFIGS[config])


def test_a_product_of_two_variables_alone(tmp_path: Path) -> None:
    feeds = draw((1, 5, 4))
    text = 'override_layer_configs { layer_name: "scores" calibration_config {} }'
    run = run_of(models.attention(), feeds, tmp_path, text)
    prepared, parts = parts_of(run)
    layer = next(layer for layer in prepared.layers if layer.name == "scores")
    assert data_tensors(layer) == ("q", "kt")
    q, k, s = intermediate(run.prepared_file, ["q", "kt", "s"], feeds[:1])
    found, _ = open_isolated(prepared, parts, layer).outputs((q, k))
    assert found.tobytes() == s.tobytes()


def test_the_quantized_product_alone_is_that_of_the_export(tmp_path: Path) -> None:
    feeds = draw((1, 5, 4))
    text = (
        'override_layer_configs { layer_name: "scores" calibration_config {} } skip_layers: "query" skip_layers: "key"'
    )
    run = run_of(models.attention(), feeds, tmp_path, text)
    prepared, parts = parts_of(run)
    layer = next(layer for layer in prepared.layers if layer.name == "scores")
    alone = open_isolated(prepared, parts, layer)
    for feed in feeds:
        q, k, *_ = intermediate(exported(run), ["q", "kt"], [feed])
        softmax = next(n for n in onnx.load(exported(run)).graph.node if n.name == "softmax")
        expected = intermediate(exported(run), [softmax.input[0]], [feed])
        assert same_bits([alone.outputs((q, k))[1]], expected)


def test_a_float16_layer_alone(tmp_path: Path) -> None:
    w, b = models.normal(4, 3, 3, 3).astype(np.float16), models.normal(4, seed=1).astype(np.float16)
    nodes = [models.node("Conv", ["x", "w", "b"], "y", "conv")]
    half = onnx.TensorProto.FLOAT16
    proto = models.model(
        nodes, [models.value("x", ["N", 3, 6, 6], half)], [models.value("y", ["N", 4, 4, 4], half)], {"w": w, "b": b}
    )
    feeds = draw((1, 3, 6, 6), dtype=np.float16)
    run = run_of(proto, feeds, tmp_path)
    prepared, parts = parts_of(run)
    alone = open_isolated(prepared, parts, prepared.layers[0])
    pairs = [alone.outputs((feed["x"],)) for feed in feeds]
    assert same_bits([pair[0] for pair in pairs], [models.run(run.prepared_file, feed)[0] for feed in feeds])
    assert same_bits([pair[1] for pair in pairs], [models.run(exported(run), feed)[0] for feed in feeds])


def test_a_fixed_batch_is_left_open_in_a_layer_alone(tmp_path: Path) -> None:
    run = run_of(models.fixed_batch(), draw((2, 3, 8, 8)), tmp_path)
    prepared, parts = parts_of(run)
    data = draw((1, 3, 8, 8), 1)[0]["x"]
    found = open_isolated(prepared, parts, prepared.layers[0]).outputs((data,))
    assert [array.shape for array in found] == [(1, 4, 8, 8)] * 2


MIXED = """
override_layer_configs { layer_name: "query" calibration_config { weight_compress_only: true } }
override_layer_configs { layer_name: "key" calibration_config { dmq_balancer { migration_strength: 0.5 } } }
override_layer_configs { layer_name: "value" calibration_config { nuq_quantize { num_steps: 16 } } }
override_layer_configs { layer_name: "scores" calibration_config {} }
"""


def test_layers_of_every_kind_stand_beside_each_other_or_alone(tmp_path: Path) -> None:
    feeds = draw((1, 5, 4))
    run = run_of(models.attention(), feeds, tmp_path, MIXED)
    prepared, parts = parts_of(run)
    names = ("key", "value", "scores", "query")
    assert parts.names == names
    expected = [models.run(exported(run), feed)[0] for feed in feeds]
    assert same_bits(outputs_of(partial_fake_quant(prepared, parts, names), feeds), expected)
    assert same_bits(outputs_of(partial_fake_quant(prepared, parts, names[::-1]), feeds), expected)
    floats = [models.run(run.prepared_file, feed)[0] for feed in feeds]
    alone = [outputs_of(partial_fake_quant(prepared, parts, (name,)), feeds) for name in names]
    assert same_bits(outputs_of(partial_fake_quant(prepared, parts, ()), feeds), floats)
    assert not any(same_bits(found, other) for found in alone for other in (floats, expected))


def test_layers_that_share_a_scale_need_not_be_chosen_together(tmp_path: Path) -> None:
    feeds = [{"x": a["x"], "z": b["x"]} for a, b in zip(draw((1, 3, 8, 8)), reversed(draw((1, 3, 8, 8))), strict=True)]
    run = run_of(models.two_inputs(), feeds, tmp_path, "joint_quant: true")
    prepared, parts = parts_of(run)
    assert {layer.quantized.scale_d for layer in parts.layers} == {parts.layers[0].quantized.scale_d}
    one = ir.to_proto(partial_fake_quant(prepared, parts, ("conv_z",)))
    whole = onnx.load(exported(run))
    added = [node.name for node in one.graph.node if node.name.startswith("conv_z.")]
    assert added == [node.name for node in whole.graph.node if node.name.startswith("conv_z.")]
    assert "conv_z.dequant.fakequant.floor" in added
    assert not [node.name for node in one.graph.node if node.name.startswith("conv_x.")]
