"""Arrays with channels side by side, and what proves that they are."""

import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from blocked_models import chain
from capturing import assert_same_tables, capture, table
from onnx import helper, numpy_helper

from calibrant.ingest import opening
from calibrant.ingest.blocked import blocked_values, in_blocks, in_order, proven_width
from calibrant.ingest.exposed_graph import exposing, read_names
from calibrant.ingest.prepared import CapturedTensor

SHAPE = (2, 32, 3, 5)


def images(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, *shape)).astype(np.float32)


def side_by_side(array: np.ndarray, width: int) -> np.ndarray:
    """The memory of an array as convolutions compute it, value by value, in the shape that onnxruntime gives it."""
    _, channels, height, breadth = array.shape
    flat = np.empty(array.size, array.dtype)
    for n, c, y, x in np.ndindex(array.shape):
        block = (n * (channels // width) + c // width) * height + y
        flat[(block * breadth + x) * width + c % width] = array[n, c, y, x]
    return flat.reshape(array.shape)


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_blocks_are_put_in_order(width: int) -> None:
    array = np.random.default_rng(width).normal(size=SHAPE).astype(np.float32)
    blocks = in_blocks(side_by_side(array, width), width)
    assert blocks.shape == (2, 32 // width, 3, 5, width)
    np.testing.assert_array_equal(in_order(blocks), array)
    np.testing.assert_array_equal(in_order(blocks[None], 2), array[None])


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_the_one_width_that_explains_every_bit_is_found(width: int) -> None:
    array = np.random.default_rng(width).normal(size=SHAPE).astype(np.float32)
    assert proven_width([(side_by_side(array, width), array)]) == width


def test_alike_values_prove_no_width() -> None:
    zeros = np.zeros(SHAPE, np.float32)
    assert proven_width([(zeros, zeros)]) is None
    array = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    assert proven_width([(zeros, zeros), (side_by_side(array, 8), array)]) == 8
    point = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)  # one place: every order is the same
    assert proven_width([(point, point)]) is None


def test_other_bits_prove_no_width() -> None:
    array = np.random.default_rng(2).normal(size=SHAPE).astype(np.float32)
    found = side_by_side(array, 16)
    found.flat[7] = np.nextafter(found.flat[7], np.float32(9))
    assert proven_width([(found, array)]) is None
    two = [(side_by_side(array, 8), array), (side_by_side(array, 16), array)]
    assert proven_width(two) is None
    assert proven_width([(array[:1], array)]) is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="onnxruntime has blocks of channels on some CPUs only")
def test_a_capture_takes_blocks_where_a_sample_proves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, widths = chain(32, (5, 7)), []

    def noted(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> int | None:
        widths.append(proven_width(pairs))
        return widths[-1]

    monkeypatch.setattr(opening, "proven_width", noted)
    data = [{"x": images(5, 3, 5, 7)}]
    capture(case.proto, data, tmp_path / "blocks", keep="stats")
    capture(case.proto, data, tmp_path / "raw", keep="raw")
    assert widths in ([8], [16])
    monkeypatch.setattr(opening, "proven_width", lambda _: None)
    capture(case.proto, data, tmp_path / "unproven", keep="stats")
    for other in ("raw", "unproven"):
        assert_same_tables(tmp_path / "blocks", tmp_path / other)
    assert not [path for path in (tmp_path / "blocks/model").iterdir() if path.name != "prepared.onnx"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="onnxruntime has blocks of channels on some CPUs only")
def test_a_first_sample_of_zeros_proves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    """Its convolutions without bias give zeros in every order."""
    x = images(4, 3, 5, 7)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Conv", ["a", "v"], ["b"])]
    sizes = {"w": (32, 3, 1, 1), "v": (16, 32, 1, 1)}
    weights = [numpy_helper.from_array(images(*size), name) for name, size in sizes.items()]
    given = [helper.make_tensor_value_info("x", 1, ["N", 3, 5, 7])]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("b", 1, ["N", 16, 5, 7])], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name, array in (
        ("zeros first", np.concatenate([x[:1] * 0, x])),
        ("zeros last", np.concatenate([x, x[:1] * 0])),
    ):
        capture(proto, [{"x": array}], tmp_path / name, keep="stats")
    for name in ("histograms", "channels", "extremes", "tensors"):
        assert table(tmp_path / "zeros first", name).equals(table(tmp_path / "zeros last", name))


def reorder(source: str, target: str, channels: int, **more: int) -> onnx.NodeProto:
    return helper.make_node(
        "ReorderOutput", [source], [target], domain="com.microsoft.nchwc", channels=channels, **more
    )


def test_only_copies_that_nothing_reads_are_left_out() -> None:
    inner = helper.make_graph(
        [helper.make_node("Neg", ["d"], ["e"])], "then", [], [helper.make_empty_tensor_value_info("e")]
    )
    nodes = [
        *(
            reorder(f"{name}_", name, channels)
            for name, channels in (("a", 32), ("b", 24), ("c", 16), ("d", 16), ("f", 16))
        ),
        reorder("k_", "k", 32, channels_last=1),
        helper.make_node("Relu", ["c"], ["g"]),
        helper.make_node("If", ["condition"], ["h"], then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info(name) for name in "abcdfk"])
    tensors = [CapturedTensor(i, name, "", False, -1 if name == "f" else 1, None) for i, name in enumerate("abcdfgk")]
    assert blocked_values(helper.make_model(graph), tensors) == {
        "a": "a_"
    }  # b would be padded; c and d are read; k ends in channels


def test_what_exposed_values_do_not_need_is_cut_off() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["sum"])], "then", [], [helper.make_empty_tensor_value_info("sum")]
    )
    outer = helper.make_graph([], "else", [], [helper.make_empty_tensor_value_info("b")])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("If", ["condition"], ["c"], then_branch=inner, else_branch=outer),
        helper.make_node("Mul", ["c", "v"], ["d"]),
        helper.make_node("Split", ["d"], ["", "e"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [3]), helper.make_tensor_value_info("condition", 9, [])]
    weights = [helper.make_tensor(name, 1, [3], [1, 2, 3]) for name in ("w", "v", "unused")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("d", 1, [3])], weights)
    )
    before = model.SerializeToString()
    exposed = exposing(model, ["c", "b"])
    assert [node.op_type for node in exposed.graph.node] == ["Relu", "Neg", "If"]
    assert [weight.name for weight in exposed.graph.initializer] == ["w"]
    assert [output.name for output in exposed.graph.output] == ["c", "b"]
    assert [given.name for given in exposed.graph.input] == ["x", "condition"]
    assert exposing(model, ["d"]).graph.output[0] == model.graph.output[0]
    assert [node.op_type for node in exposing(model, ["a"]).graph.node] == ["Relu"]
    assert set(read_names(nodes[2])) >= {"condition", "a", "w", "b"}
    assert model.SerializeToString() == before
