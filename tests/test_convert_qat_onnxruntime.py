"""Models that onnxruntime quantized: every form of its QDQ output converts, verifies and computes what it computed."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from shared_material import needs_shared, shared_inputs, shared_model

import calibrant
from calibrant.errors import ModelError
from calibrant.qat_conversion import ConvertedModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEAST_DB = 60.0
UINT8, INT8 = QuantType.QUInt8, QuantType.QInt8
FORMS: dict[str, dict[str, Any]] = {
    "per tensor, int8": {"activation_type": INT8, "weight_type": INT8},
    "per tensor, uint8 data": {"activation_type": UINT8, "weight_type": INT8},
    "per channel, int8": {"activation_type": INT8, "weight_type": INT8, "per_channel": True},
    "per channel, uint8 data": {"activation_type": UINT8, "weight_type": INT8, "per_channel": True},
    "per channel, reduced": {"activation_type": UINT8, "weight_type": INT8, "per_channel": True, "reduce_range": True},
    "per tensor, reduced": {"activation_type": INT8, "weight_type": INT8, "reduce_range": True},
    "symmetric": {"activation_type": INT8, "weight_type": INT8, "extra_options": {"ActivationSymmetric": True}},
}


class Samples(CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantized(source: Path, feeds: list[dict[str, np.ndarray]], folder: Path, **options: Any) -> Path:
    logging.disable(logging.WARNING)  # it advises to prepare the model, whatever the model is
    try:
        quantize_static(source, folder / "qdq.onnx", Samples(feeds), quant_format=QuantFormat.QDQ, **options)
    finally:
        logging.disable(logging.NOTSET)
    return folder / "qdq.onnx"


def small_network() -> onnx.ModelProto:
    """x -> Conv -> Relu -> depthwise Conv -> Add of the Relu -> MaxPool -> Flatten -> Gemm -> y."""
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "c1", "first", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c1"], "r1", "relu"),
        models.node("Conv", ["r1", "w2", "b2"], "c2", "depthwise", group=6, pads=[1, 1, 1, 1]),
        models.node("Add", ["c2", "r1"], "a", "add"),
        models.node("MaxPool", ["a"], "p", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        models.node("Flatten", ["p"], "f", "flat"),
        models.node("Gemm", ["f", "w3", "b3"], "y", "fc", transB=1),
    ]
    weights = {
        "w1": models.normal(6, 3, 3, 3), "b1": models.normal(6, seed=1), "w2": models.normal(6, 1, 3, 3, seed=2),
        "b2": models.normal(6, seed=3), "w3": models.normal(5, 96, seed=4), "b3": models.normal(5, seed=5),
    }  # fmt: skip
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 5])], weights)


def images(count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 8, 8, seed=seed, scale=1.0)} for seed in range(count)]


def source_entries(path: Path) -> dict[str, tuple[list[float], int]]:
    """Scale and offset of the data of each layer as the source holds them, read without calibrant."""
    graph = onnx.load(path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {node.output[0]: node for node in graph.node}
    found = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            _, scale, zero = makers[node.input[0]].input
            shift = 128 if arrays[zero].dtype == np.uint8 else 0
            found[node.name] = (float(arrays[scale]), int(arrays[zero]) - shift)
    return found


def assert_near_the_source(done: ConvertedModel, source: Path, feeds: list[dict[str, np.ndarray]]) -> None:
    signal = noise = 0.0
    for feed in feeds:
        wanted, got = models.run(source, feed)[0], models.run(done.files.fake_quant, feed)[0]
        signal += float((wanted.astype(np.float64) ** 2).sum())
        noise += float(((wanted.astype(np.float64) - got) ** 2).sum())
    assert noise == 0 or 10 * np.log10(signal / noise) >= LEAST_DB
    assert done.report is not None
    assert done.report.passed


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_small_network(tmp_path: Path, form: str) -> None:
    float_model = models.save(small_network(), tmp_path / "float.onnx")
    source = quantized(float_model, images(), tmp_path, **FORMS[form])
    done = calibrant.convert_qat(source, prefix=tmp_path / "m", data=images(2), matmul_per_channel=True)
    layers = done.layers.filter(op_type="Conv") if "per channel" in form else done.layers.filter(becomes="int8")
    wanted = source_entries(source)
    assert set(layers["node"]) == {"first", "depthwise"} if "per channel" in form else set(wanted)
    for row in layers.filter(becomes="int8").iter_rows(named=True):
        assert (row["scale_d"], row["offset_d"]) == wanted[row["node"]]
    assert set(done.layers.filter(becomes="int8")["node"]) == {"first", "depthwise", "fc"}
    assert set(done.layers.filter(becomes="int8")["bias"]) == {"kept"}
    assert_near_the_source(done, source, images(4))


def test_columns_of_the_last_layer_need_the_option(tmp_path: Path) -> None:
    float_model = models.save(small_network(), tmp_path / "float.onnx")
    source = quantized(float_model, images(), tmp_path, **FORMS["per channel, uint8 data"])
    done = calibrant.convert_qat(source, prefix=tmp_path / "m", data=images(2))
    left = done.layers.filter(becomes="float")
    assert left["node"].to_list() == ["fc"]
    assert left["reason"].to_list() == [
        "its weight has 5 scales, and AMCT knows one a Gemm; --matmul-per-channel takes them"
    ]
    assert_near_the_source(done, source, images(4))


def test_asymmetric_weights_stay_in_float_with_their_values(tmp_path: Path) -> None:
    float_model = models.save(small_network(), tmp_path / "float.onnx")
    source = quantized(float_model, images(), tmp_path, activation_type=UINT8, weight_type=UINT8)
    done = calibrant.convert_qat(source, prefix=tmp_path / "m", data=images(2))
    reasons = done.layers.filter(becomes="float")["reason"]
    assert reasons.len() == 3
    assert reasons.str.starts_with("its weight is uint8 with zero point").all()
    assert_near_the_source(done, source, images(4))


def test_operator_form_is_refused(tmp_path: Path) -> None:
    float_model = models.save(small_network(), tmp_path / "float.onnx")
    logging.disable(logging.WARNING)
    try:
        quantize_static(float_model, tmp_path / "q.onnx", Samples(images()), quant_format=QuantFormat.QOperator)
    finally:
        logging.disable(logging.NOTSET)
    with pytest.raises(ModelError, match=r"holds quantized operators: .*QLinearConv.*export the QDQ form"):
        calibrant.convert_qat(tmp_path / "q.onnx", prefix=tmp_path / "m")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_inputs(tmp_path_factory.mktemp("inputs"))


def samples(inputs: Path, name: str, count: int) -> list[dict[str, np.ndarray]]:
    with np.load(inputs / f"{name}.npz") as arrays:
        content: Mapping[str, np.ndarray] = {key: arrays[key] for key in arrays.files}
    return [{key: array[i : i + 1] for key, array in content.items()} for i in range(count)]


# How many layers can be int8: the transformer's weights are transposed in the graph, so that onnxruntime takes them for data and gives
# them uint8 with any zero point; two of its products an attention are of two variables.
LAYERS = {"mnist_dwnet": (15, 15), "mnist_resnet": (11, 11), "mnist_vit": (2, 20), "mnist_denoise": (8, 8)}


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("form", ["per channel, uint8 data", "symmetric"])
def test_trained_models(tmp_path: Path, inputs: Path, name: str, form: str) -> None:
    feeds = samples(inputs, name, 6)
    source = quantized(shared_model(name), feeds, tmp_path, **FORMS[form])
    done = calibrant.convert_qat(source, prefix=tmp_path / "m", data=feeds[:2], matmul_per_channel=True)
    assert done.layers.filter(becomes="int8").height == LAYERS[name][form == "symmetric"]
    assert_near_the_source(done, source, feeds)
