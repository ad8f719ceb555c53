"""Which captured tensor tells the range of what a Concat or Add joins; and the biases of layers."""

import models
import numpy as np

from calibrant.ingest.joins import joins_table
from calibrant.ingest.model import prepare_model
from calibrant.ingest.model_tables import biases_table
from calibrant.ingest.prepared import PreparedModel


def prepared(tmp_path, nodes, initializers, outputs=("y",), inputs=("x",)) -> PreparedModel:
    proto = models.model(
        nodes,
        [models.value(name, ["N", 4, 8, 8]) for name in inputs],
        [models.value(name, ["N", None, None, None]) for name in outputs],
        initializers,
    )
    return prepare_model(models.save(proto, tmp_path / "m.onnx"))


def conv(source, output, name, channels=4):
    return models.node("Conv", [source, f"w_{name}", f"b_{name}"], output, name, pads=[1, 1, 1, 1])


def weights(*names, channels=4):
    return {
        f"{kind}_{name}": models.normal(channels, *((channels, 3, 3) if kind == "w" else ()))
        for name in names
        for kind in "wb"
    }


def seen(model):
    names = {tensor.tensor_id: tensor.name for tensor in model.tensors}
    columns = ("node", "input_index", "tensor_id", "seen", "first_channel", "channels")
    return {
        (node, index): (names.get(found), *rest)
        for node, index, found, *rest in joins_table(model).select(columns).rows()
    }


def test_an_add_sees_its_skip_and_its_output_but_not_the_convolution_before_it(tmp_path):
    nodes = [conv("x", "a", "one"), models.node("Add", ["a", "x"], "s", "add"), conv("s", "y", "two")]
    assert seen(prepared(tmp_path, nodes, weights("one", "two"))) == {
        ("add", 0): (None, None, None, None),
        ("add", 1): ("x", "itself", None, None),
        ("add", None): ("s", "itself", None, None),
    }


def test_parts_of_a_concat_are_channels_of_its_captured_output(tmp_path):
    nodes = [
        conv("x", "a", "one"), conv("x", "b", "two"), models.node("Concat", ["a", "b"], "c", "join", axis=1),
        models.node("Relu", ["c"], "r", "relu"), models.node("Conv", ["r", "w"], "y", "last"),
    ]  # fmt: skip
    found = seen(prepared(tmp_path, nodes, {**weights("one", "two"), "w": models.normal(2, 8, 1, 1)}))
    assert found == {
        ("join", 0): ("r", "behind Relu", 0, 4),
        ("join", 1): ("r", "behind Relu", 4, 4),
        ("join", None): ("r", "behind Relu", None, None),
    }


def test_ranges_are_followed_through_relu_and_layout(tmp_path):
    nodes = [
        models.node("Relu", ["x"], "positive", "relu"), conv("x", "a", "one"), models.node("Relu", ["a"], "a_positive", "relu_a"),
        conv("a_positive", "other", "two"), models.node("Transpose", ["x"], "turned", "turn", perm=[0, 1, 3, 2]),
        models.node("Concat", ["positive", "a", "turned"], "y", "join", axis=1),
    ]  # fmt: skip
    found = seen(prepared(tmp_path, nodes, weights("one", "two"), outputs=("y", "other")))
    assert found[("join", 0)] == ("x", "before Relu", None, None)
    assert found[("join", 1)] == ("a_positive", "behind Relu", None, None)
    assert found[("join", 2)] == ("x", "itself", None, None)


def test_an_add_of_a_constant_is_no_join(tmp_path):
    nodes = [conv("x", "a", "one"), models.node("Add", ["a", "k"], "y", "add")]
    assert seen(prepared(tmp_path, nodes, {**weights("one"), "k": np.float32([1.0])})) == {}


def test_biases_are_those_of_the_model(tmp_path):
    nodes = [conv("x", "a", "one"), models.node("Conv", ["a", "w"], "y", "bare")]
    parameters = {**weights("one"), "w": models.normal(2, 4, 1, 1)}
    table = biases_table(prepared(tmp_path, nodes, parameters))
    assert table.rows() == [(0, channel, value) for channel, value in enumerate(parameters["b_one"].tolist())]
