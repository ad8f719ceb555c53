"""Models with odd shapes and names go through the whole pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import calibrant
from calibrant.export.evaluate import output_sqnr_db
from calibrant.proto.record import read_record

Array = np.ndarray
Feeds = Sequence[Mapping[str, Array]]


def whole(proto: onnx.ModelProto, feeds: Feeds, folder: Path, **options: Any) -> calibrant.Run:
    """Run and verify a model; every layer is bit-equal, and the outputs are near to the float model's."""
    path = models.save(proto, folder / "m.onnx")
    run = calibrant.run(path, feeds, run=folder / "r", prefix=folder / "out" / "m", **options)
    report = calibrant.verify(run)
    assert report.passed
    assert all(check.bit_equal for check in report.layers)
    for feed in feeds:
        pairs = zip(models.run(path, feed), models.run(folder / "out" / "m_fake_quant_model.onnx", feed), strict=True)
        for expected, got in pairs:
            assert got.shape == expected.shape
            assert expected.size == 0 or output_sqnr_db(expected, got) > 20
    return run


def deploy_of(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "out" / "m_deploy_model.onnx")


def events_of(run: calibrant.Run) -> str:
    return "\n".join(run.read("events")["message"])


# Dynamic axes


def test_images_of_many_sizes(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "c", "first", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("ConvTranspose", ["r", "w2"], "y", "up", strides=[2, 2]),
    ]
    arrays = {"w1": models.normal(4, 3, 3, 3), "b1": models.normal(4, seed=1), "w2": models.normal(4, 2, 2, 2, seed=2)}
    inputs, outputs = [models.value("x", ["N", 3, "H", "W"])], [models.value("y", ["N", 2, None, None])]
    sizes = [(8, 8), (6, 10), (7, 5), (8, 8), (1, 1)]
    feeds = [{"x": models.normal(1, 3, *size, seed=seed)} for seed, size in enumerate(sizes)]
    run = whole(models.model(nodes, inputs, outputs, arrays), feeds, tmp_path, batch_size=2)
    elements = dict(run.read("tensors").select("tensor", "n").iter_rows())
    pixels = sum(height * width for height, width in sizes)
    assert elements == {"x": 3 * pixels, "r": 4 * pixels}
    deploy = deploy_of(tmp_path)
    assert [dim.dim_param for dim in deploy.graph.input[0].type.tensor_type.shape.dim] == ["N", "", "H", "W"]


def sequence_model() -> onnx.ModelProto:
    nodes = [
        models.node("MatMul", ["x", "w"], "m", "matmul"),
        models.node("Add", ["m", "b"], "a", "add"),
        models.node("Tanh", ["a"], "t", "tanh"),
        models.node("MatMul", ["t", "w2"], "y", "last"),
    ]
    arrays = {"w": models.normal(4, 6), "b": models.normal(6, seed=1), "w2": models.normal(6, 3, seed=2)}
    return models.model(nodes, [models.value("x", ["N", "T", 4])], [models.value("y", ["N", "T", 3])], arrays)


def test_sequences_of_many_lengths_and_a_short_last_batch(tmp_path):
    lengths = [5, 7, 9, 9, 9, 5, 1]
    feeds = [{"x": models.normal(1, length, 4, seed=seed)} for seed, length in enumerate(lengths)]
    run = whole(sequence_model(), feeds, tmp_path, batch_size=3)
    assert dict(run.read("tensors").select("tensor", "n").iter_rows()) == {"x": 4 * sum(lengths), "t": 6 * sum(lengths)}


def test_all_axes_without_names_or_sizes(tmp_path):
    proto = sequence_model()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    feeds = [{"x": models.normal(1, 5, 4, seed=seed)} for seed in range(3)]
    whole(proto, feeds, tmp_path)


# Zero-size tensors


def test_a_sample_without_elements_among_others(tmp_path):
    feeds = [{"x": models.normal(1, length, 4, seed=length)} for length in (5, 0, 3)]
    run = whole(sequence_model(), feeds, tmp_path)
    samples = run.read("samples").filter(tensor_id=0).sort("sample")
    assert samples["n"].to_list() == [20, 0, 12]


def test_constants_without_elements(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w"], "c", "conv", pads=[1, 1, 1, 1]),
        models.node("Resize", ["c", "roi", "scales"], "r", "resize", mode="nearest"),
        models.node("Concat", ["r", "nothing"], "y", "concat", axis=1),
    ]
    arrays = {
        "w": models.normal(4, 3, 3, 3), "roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, 2, 2]),
        "nothing": np.zeros((1, 0, 8, 8), np.float32),
    }  # fmt: skip
    proto = models.model(nodes, [models.value("x", [1, 3, 4, 4])], [models.value("y", [1, 4, 8, 8])], arrays)
    whole(proto, [{"x": models.normal(1, 3, 4, 4, seed=seed)} for seed in range(3)], tmp_path)


def test_an_output_without_elements(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w"], "y", "conv"),
        models.node("Slice", ["y", "zero", "zero"], "empty", "slice"),
    ]
    arrays = {"w": models.normal(4, 3, 3, 3), "zero": np.array([0])}
    outputs = [models.value("y", ["N", 4, 6, 6]), models.value("empty", [0, 4, 6, 6])]
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], outputs, arrays)
    whole(proto, [{"x": models.normal(1, 3, 8, 8, seed=seed)} for seed in range(3)], tmp_path)


# Names

NAMES = [
    "/block.0/conv/Conv",
    "scope:0",
    "a b  c",
    "层/卷积 é",
    "x.quant",
    "tab\tand\\slash",
    'say "hi"',
    "'single'",
    "0",
    "-",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_every_kind(name, tmp_path):
    nodes = [
        models.node("Conv", [f"{name}in", f"{name}w", f"{name}b"], f"{name}mid", name),
        models.node("Relu", [f"{name}mid"], f"{name}relu", f"{name} relu"),
        models.node("Conv", [f"{name}relu", f"{name}w2"], f"{name}out", f"{name} second"),
    ]
    arrays = {
        f"{name}w": models.normal(4, 3, 3, 3), f"{name}b": models.normal(4, seed=1), f"{name}w2": models.normal(2, 4, 1, 1),
    }  # fmt: skip
    inputs, outputs = [models.value(f"{name}in", ["N", 3, 6, 6])], [models.value(f"{name}out", ["N", 2, 4, 4])]
    feeds = [{f"{name}in": models.normal(1, 3, 6, 6, seed=seed)} for seed in range(3)]
    run = whole(models.model(nodes, inputs, outputs, arrays), feeds, tmp_path)
    assert run.read("layers")["layer"].to_list() == [name, f"{name} second"]
    assert [entry.key for entry in read_record(tmp_path / "out" / "m_record.txt")] == [name, f"{name} second"]
    assert {node.name for node in deploy_of(tmp_path).graph.node} >= {name, f"{name}.quant", f"{name}.dequant"}


TAKEN = [
    "conv.quant", "conv.quant.output0", "conv.dequant", "conv.dequant.param", "conv.dequant.output0", "conv.weight",
    "conv.quant.fakequant.scale", "conv.quant.fakequant.mul", "conv.quant.fakequant.mul.output0",
    "conv.dequant.fakequant.mul", "conv.dequant.fakequant.scale", "conv.weight.fakequant.cast", "conv.dequant.input0",
    "b_1", "second.bias", "second.weight",
]  # fmt: skip


def collisions(place: str, taken: str) -> onnx.ModelProto:
    """Conv 'conv' and Conv 'second' share weight and bias; a value or node elsewhere has a name that calibrant would give."""
    nodes = [models.node("Conv", ["x", "w", "b"], "c", "conv", pads=[1, 1, 1, 1])]
    arrays = {"w": models.normal(3, 3, 3, 3), "b": models.normal(3, seed=1)}
    middle = taken if place == "value" else "r"
    nodes.append(models.node("Relu", ["c"], middle, taken if place == "node" else "relu"))
    if place == "initializer":
        arrays[taken] = np.float32([0.5])
        nodes.append(models.node("Mul", ["r", taken], "scaled", "scale"))
        middle = "scaled"
    nodes.append(
        models.node("Conv", [middle, "w", "b"], taken if place == "output" else "y", "second", pads=[1, 1, 1, 1])
    )
    shape = ["N", 3, 6, 6]
    last = taken if place == "output" else "y"
    if place == "subgraph":
        nodes[-1].output[0] = "before"
        nodes.append(branching(taken))
    proto = models.model(nodes, [models.value("x", shape)], [models.value(last, shape)], arrays)
    if place == "subgraph":
        # the condition is computed, so that the If stays
        proto.graph.node.insert(0, models.node("ReduceMax", ["x"], "peak", "peak", keepdims=0))
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
        proto.graph.node.insert(1, models.node("Greater", ["peak", "zero"], "flag", "greater"))
    if place == "value_info":
        proto.graph.value_info.append(models.value(taken, [1, 2]))
    return proto


def branching(taken: str) -> onnx.NodeProto:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            models.node("Sigmoid", ["before"], taken, "sigmoid"),
            models.node("Identity", [taken], f"{name}_out", taken),
        ]
        return helper.make_graph(nodes, name, [], [models.value(f"{name}_out", [None] * 4)])

    return models.node("If", ["flag"], "y", "choose", then_branch=branch("then"), else_branch=branch("else"))


@pytest.mark.parametrize("place", ["value", "node", "initializer", "output", "subgraph", "value_info"])
def test_no_name_is_given_twice(place, tmp_path):
    feeds = [{"x": models.normal(1, 3, 6, 6, seed=seed)} for seed in range(2)]
    for number, taken in enumerate(TAKEN):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole(collisions(place, taken), feeds, folder, keep="stats")
        for model in ("deploy", "fake_quant"):
            check_unique(onnx.load(folder / "out" / f"m_{model}_model.onnx"), taken if place == "subgraph" else None)


def check_unique(proto: onnx.ModelProto, inner: str | None) -> None:
    made = [name for node in proto.graph.node for name in node.output if name]
    made += [value.name for value in proto.graph.input] + [tensor.name for tensor in proto.graph.initializer]
    assert len(made) == len(set(made))
    nodes = [node.name for node in proto.graph.node]
    assert len(nodes) == len(set(nodes))
    assert inner not in made


# Subgraphs that stay


def subgraph_of(proto: onnx.ModelProto, op_type: str) -> dict[str, bytes]:
    (node,) = [node for node in proto.graph.node if node.op_type == op_type]
    return {a.name: a.g.SerializeToString() for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}


def plain(graph: bytes) -> list[tuple[str, list[str], list[str]]]:
    """Operators, inputs and outputs of a subgraph, and its weights."""
    parsed = onnx.GraphProto.FromString(graph)
    nodes = [(node.op_type, list(node.input), list(node.output)) for node in parsed.node]
    weights = [(tensor.name, [str(numpy_helper.to_array(tensor).tolist())], []) for tensor in parsed.initializer]
    return nodes + weights


def if_on_data() -> onnx.ModelProto:
    """Conv 'outer', then If on the largest input value: both branches hold a Conv on the outer one's output."""

    def branch(name: str, seed: int) -> onnx.GraphProto:
        weight = numpy_helper.from_array(models.normal(2, 4, 1, 1, seed=seed), f"{name}_w")
        nodes = [models.node("Conv", ["c", f"{name}_w"], f"{name}_y", f"{name}_conv")]
        return helper.make_graph(nodes, name, [], [models.value(f"{name}_y", [None] * 4)], [weight])

    nodes = [
        models.node("ReduceMax", ["x"], "peak", "peak", keepdims=0),
        models.node("Greater", ["peak", "limit"], "high", "high"),
        models.node("Conv", ["x", "w"], "c", "outer"),
        models.node("If", ["high"], "y", "choose", then_branch=branch("then", 5), else_branch=branch("else", 6)),
    ]
    arrays = {"w": models.normal(4, 3, 3, 3), "limit": np.float32(1)}
    return models.model(nodes, [models.value("x", ["N", 3, 6, 6])], [models.value("y", ["N", 2, 4, 4])], arrays)


def loop_on_data() -> onnx.ModelProto:
    """MatMul 'outer', then three rounds of a Loop whose body multiplies the state by a weight of the outer graph."""
    body = helper.make_graph(
        [
            models.node("MatMul", ["state_in", "w2"], "state_out", "inner"),
            models.node("Identity", ["cond_in"], "cond_out", "go_on"),
        ],
        "body",
        [
            models.value("round", [], TensorProto.INT64), models.value("cond_in", [], TensorProto.BOOL),
            models.value("state_in", [None, None]),
        ],
        [models.value("cond_out", [], TensorProto.BOOL), models.value("state_out", [None, None])],
    )  # fmt: skip
    nodes = [
        models.node("MatMul", ["x", "w"], "m", "outer"),
        models.node("Loop", ["rounds", "", "m"], "y", "loop", body=body),
    ]
    arrays = {"w": models.normal(4, 6), "w2": models.normal(6, 6, seed=2), "rounds": np.array(3)}
    return models.model(nodes, [models.value("x", ["N", 4])], [models.value("y", ["N", 6])], arrays)


@pytest.mark.parametrize(
    ("build", "op_type", "shape", "told"),
    [
        (if_on_data, "If", (1, 3, 6, 6), "2 layers lie inside If 'choose'"),
        (loop_on_data, "Loop", (1, 4), "1 layer lies inside Loop 'loop'"),
    ],
)
def test_subgraphs_that_stay_are_untouched_and_reported(build, op_type, shape, told, tmp_path):
    proto = build()
    feeds = [{"x": models.normal(*shape, seed=seed, scale=scale)} for seed, scale in enumerate((0.2, 1.0, 0.3))]
    run = whole(proto, feeds, tmp_path)
    assert told in events_of(run)
    assert run.read("layers")["layer"].to_list() == ["outer"]
    for model in ("deploy", "fake_quant"):
        found = subgraph_of(onnx.load(tmp_path / "out" / f"m_{model}_model.onnx"), op_type)
        source = subgraph_of(proto, op_type)
        assert found.keys() == source.keys()
        for name, graph in found.items():
            assert renamed(plain(graph), "c", "m") == renamed(plain(source[name]), "c", "m")


def renamed(facts: list[tuple[str, list[str], list[str]]], *outer: str) -> list[tuple[str, list[str], list[str]]]:
    """Call the outer layer's float output alike before and after, where it comes from AscendDequant or a Mul."""

    def name_of(name: str) -> str:
        return "outer" if name in outer or name.startswith("outer.") else name

    return [(op_type, [name_of(name) for name in inputs], outputs) for op_type, inputs, outputs in facts]
