"""Samples beside the inputs that a model declares."""

import models
import numpy as np
import onnx
import pytest

from calibrant.errors import DataError
from calibrant.export.model_inputs import check_feeds, describe_feeds


def graph_of(*inputs: onnx.ValueInfoProto, constants: tuple[str, ...] = ()) -> onnx.GraphProto:
    tensors = [onnx.numpy_helper.from_array(np.zeros(2, np.float32), name) for name in constants]
    return onnx.helper.make_graph([], "graph", inputs, [], tensors)


def test_texts_numbers_and_open_shapes_pass():
    anything = onnx.helper.make_tensor_value_info("any", onnx.TensorProto.INT64, None)
    graph = graph_of(
        models.value("text", ["N"], onnx.TensorProto.STRING), models.value("number", []), anything,
        models.value("w", [2]), constants=("w",),
    )  # fmt: skip
    check_feeds(graph, {"text": np.array(["a", "b"]), "number": np.float32(1), "any": np.zeros((1, 2), np.int64)})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("text", np.zeros(1, np.float32), r"input 'text' takes texts of shape \[N\], got float32 of shape \[1\]"),
        ("number", np.zeros(1, np.float32), r"input 'number' takes float32 of shape \[\], got float32 of shape \[1\]"),
        ("any", np.zeros(1, np.int32), r"input 'any' takes int64 of any shape, got int32 of shape \[1\]"),
    ],
)
def test_what_does_not_fit_is_said(name, value, message):
    anything = onnx.helper.make_tensor_value_info("any", onnx.TensorProto.INT64, None)
    graph = graph_of(
        models.value("text", ["N"], onnx.TensorProto.STRING), models.value("number", []), anything
    )  # fmt: skip
    feeds = {"text": np.array(["a"]), "number": np.float32(1), "any": np.int64(1)}
    with pytest.raises(DataError, match=f"^{message}$"):
        check_feeds(graph, {**feeds, name: value})


def test_a_missing_input_names_the_nearest():
    graph = graph_of(models.value("images", ["N", 3]))
    with pytest.raises(DataError, match=r"input 'images' is missing; the data has \['image'\].*'image'"):
        check_feeds(graph, {"image": np.zeros((1, 3), np.float32)})


def test_every_input_is_described():
    graph = graph_of(models.value("a", ["N", 3]), models.value("b", [None]))
    feeds = {"a": np.zeros((1, 3), np.float32), "b": np.zeros(4, np.float32)}
    assert describe_feeds(graph, feeds) == (
        "input 'a' takes float32 of shape [N, 3], got float32 of shape [1, 3], "
        "input 'b' takes float32 of shape [?], got float32 of shape [4]"
    )
