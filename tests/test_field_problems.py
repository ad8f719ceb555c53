"""Problems that users report of calibration tools must not exist here; each test is named by its problem."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import exporting
import models
import naive
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import calibrant
from calibrant.errors import CalibrantError, ExportError, ModelError
from calibrant.export.evaluate import output_sqnr_db
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.quantizers import HfmgOptions, IfmrOptions, fit_hfmg, fit_ifmr
from calibrant.stats.histogram import LogLinearHistogram

F32 = np.float32
Array = np.ndarray
Feeds = Sequence[Mapping[str, Array]]


class Done:
    """A run that was exported and verified."""

    def __init__(self, proto: onnx.ModelProto, feeds: Feeds, folder: Path, text: str = "", **options: Any) -> None:
        self.folder, self.feeds, self.path = folder, feeds, models.save(proto, folder / "m.onnx")
        config = folder / "quant.cfg"
        config.write_text(text)
        prefix = folder / "out" / "m"
        self.run = calibrant.run(self.path, feeds, run=folder / "r", prefix=prefix, config=config, **options)
        self.report = calibrant.verify(self.run)
        assert self.report.passed

    @property
    def fake_quant(self) -> Path:
        return self.folder / "out" / "m_fake_quant_model.onnx"

    @property
    def record(self) -> dict[str, dict[str, list[float]]]:
        return exporting.read_record(self.folder / "out" / "m_record.txt")

    @property
    def initializers(self) -> dict[str, Array]:
        proto = onnx.load(self.folder / "out" / "m_deploy_model.onnx")
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}

    def outputs(self, feed: Mapping[str, Array], names: Sequence[str] | None = None) -> tuple[list[Array], list[Array]]:
        return models.run(self.path, feed, names), models.run(self.fake_quant, feed, names)

    def least_sqnr(self) -> float:
        pairs = [pair for feed in self.feeds for pair in zip(*self.outputs(feed), strict=True)]
        return min(output_sqnr_db(np.asarray(a, F32), np.asarray(b, F32)) for a, b in pairs)

    def events(self) -> str:
        return "\n".join(self.run.read("events")["message"])


def images(count: int = 3, channels: int = 3, size: int = 8, scale: float = 1.0) -> list[dict[str, Array]]:
    return [{"x": models.normal(1, channels, size, size, seed=seed, scale=scale)} for seed in range(count)]


# A. Order, merging and wrong statistics


def test_a1_the_batch_size_changes_no_scale(tmp_path):
    feeds = images(12)
    feeds[4]["x"] *= 6
    records = []
    for size in (1, 2, 3, 6):
        (tmp_path / str(size)).mkdir()
        done = Done(models.conv_relu(), feeds, tmp_path / str(size), batch_size=size)
        records.append((tmp_path / str(size) / "out" / "m_record.txt").read_bytes())
        assert done.run.info.samples == 12
    assert len(set(records)) == 1


def test_a3_a_late_maximum_changes_nothing(monkeypatch):
    batches = [models.normal(200, seed=seed, scale=1.0) for seed in range(9)]
    batches.append(np.append(models.normal(199, seed=9, scale=1.0), F32(40)))
    orders = [range(10), range(9, -1, -1), (3, 9, 0, 1, 2, 4, 5, 6, 7, 8)]
    found = []
    for order in orders:
        histogram = LogLinearHistogram()
        for index in order:
            histogram.update(batches[index])
        found.append([fit_ifmr(histogram, IfmrOptions()), fit_hfmg(histogram, HfmgOptions())])
    for ifmr, hfmg in found[1:]:
        assert ifmr.scale == found[0][0].scale
        assert hfmg.scale == found[0][1].scale
        np.testing.assert_array_equal(ifmr.candidates.loss, found[0][0].candidates.loss)
        np.testing.assert_array_equal(hfmg.candidates.loss, found[0][1].candidates.loss)


@pytest.mark.parametrize("fit", [lambda h: fit_ifmr(h, IfmrOptions()), lambda h: fit_hfmg(h, HfmgOptions())])
def test_a4_the_defaults_search_many_candidates_from_one_batch(fit):
    found = fit(LogLinearHistogram.from_values(np.maximum(models.normal(4096, scale=1.0), 0)))
    assert len(set(found.candidates.clip_max.tolist())) > 10


def test_a5_an_asymmetric_percentile_keeps_what_it_says():
    values = np.random.default_rng(0).uniform(-3, 1, 100_000).astype(F32)
    options = IfmrOptions(max_percentile=0.999, min_percentile=0.999, search_range=(0.99, 1.0), search_step=0.01)
    fit = fit_ifmr(LogLinearHistogram.from_values(values), options)
    ordered = np.sort(values)
    assert float(fit.clip_min) == pytest.approx(ordered[100], rel=0.02)
    assert float(fit.clip_max) == pytest.approx(ordered[-101], rel=0.02)
    assert fit.clip_min < 0 < fit.clip_max


def test_a6_clip_rate_and_sqnr_stand_beside_the_range(tmp_path):
    generator = np.random.default_rng(0)
    values = generator.uniform(-1, 1, (4, 50, 100)).astype(F32)
    values[:, ::25, 0] = 50
    proto = models.model(
        [models.node("MatMul", ["x", "w"], "y", "matmul")], [models.value("x", ["N", 50, 100])],
        [models.value("y", ["N", 50, 6])], {"w": models.normal(100, 6)},
    )  # fmt: skip
    feeds = [{"x": value[None]} for value in values]
    text = "common_config {{ ifmr_quantize {{ max_percentile: {0} min_percentile: {0} }} }}"
    done = Done(proto, feeds, tmp_path, text.format("1.0"))
    clipping = tmp_path / "clipping.cfg"
    clipping.write_text(text.format("0.999"))
    calibrant.fit(done.run, config=clipping, name="clipping")
    rows = {row["fit"]: row for row in done.run.read("quant_params").filter(role="data").iter_rows(named=True)}
    assert rows["clipping"]["clip_rate"] == pytest.approx(8 / 20000)
    assert rows["clipping"]["clip_max"] < 2 < 45 < rows["default"]["clip_max"]
    assert rows["clipping"]["sqnr_db"] < 3 < 20 < rows["default"]["sqnr_db"]


def test_a9_tiny_and_full_range_float16():
    for values, scale in ((6e-6, 1.0), (65504.0, 2 * 65504 / 255)):  # the tiny range is below AMCT's least scale
        data = np.linspace(-values, values, 400).astype(np.float16)
        fit = fit_ifmr(LogLinearHistogram.from_values(data), IfmrOptions(search_range=(0.99, 1.0)))
        assert float(fit.scale) == pytest.approx(scale, rel=0.02)
        hfmg = fit_hfmg(LogLinearHistogram.from_values(data), HfmgOptions())
        assert np.isfinite(hfmg.scale)
        assert hfmg.scale > 0


def test_a11_lengths_vary_with_a_histogram_method(tmp_path):
    feeds = [{"x": models.normal(1, length, 4, seed=length)} for length in (5, 7, 9, 9)]
    proto = models.model(
        [models.node("MatMul", ["x", "w"], "y", "matmul")], [models.value("x", ["N", "L", 4])],
        [models.value("y", ["N", "L", 6])], {"w": models.normal(4, 6)},
    )  # fmt: skip
    done = Done(proto, feeds, tmp_path, "common_config { hfmg_quantize { num_of_bins: 1024 } }", batch_size=3)
    assert done.least_sqnr() > 30


def test_a12_infinity_names_tensor_and_sample(tmp_path):
    feeds = [{"x": np.full((1, 3, 8, 8), 2, F32)} for _ in range(3)]
    feeds[1]["x"][0, 0, 0, 0] = 0
    with pytest.raises(CalibrantError, match=r"(?s)(?=.*'l')(?=.*sample 1).*"):
        calibrant.run(models.save(models.nan_maker(), tmp_path / "m.onnx"), feeds, run=tmp_path / "r")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -1.0])
def test_a13_no_scale_is_written_that_is_not_positive_and_finite(wrong, tmp_path):
    layer = exporting.prepare(models.conv_relu(), tmp_path).layers[0]
    for scale_d, scale_w in ((wrong, 0.5), (0.5, wrong)):
        with pytest.raises(ExportError, match="scales must be positive, finite"):
            QuantizedLayer(layer, F32(scale_d), 0, 8, np.full(1, scale_w, F32), 8)


def test_a14_a_tensor_of_zeros_gets_scale_one_and_a_warning(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w", "b"], "c", "first"),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("Conv", ["r", "w2"], "y", "second"),
    ]
    arrays = {"w": models.normal(4, 3, 3, 3, scale=0.01), "b": np.full(4, -10, F32), "w2": models.normal(2, 4, 1, 1)}
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 2, 6, 6])], arrays)
    done = Done(proto, images(), tmp_path)
    assert done.record["second"]["scale_d"] == [1]
    warned = done.run.read("events").filter(severity="warn")["message"].to_list()
    assert warned == ["tensor 'r' is zero in all samples: its scale is 1, and its layers see zeros"]


def test_a15_an_empty_channel_has_scale_one_and_is_listed(tmp_path):
    proto = models.conv_relu()
    weight = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    weight[3] = 0
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, proto.graph.initializer[0].name))
    done = Done(proto, images(), tmp_path)
    (entry,) = done.record.values()
    assert entry["scale_w"][3] == 1
    assert all(0 < scale < 0.1 for scale in entry["scale_w"][:3])
    assert "1 of 4 output channels are dead" in done.events()


# C. Graph handling


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (4, 2)])
def test_c31_transposed_convolutions_have_their_channels_on_axis_1(channels, groups, tmp_path):
    weight = (
        models.normal(channels, 64 // groups, 3, 3) * np.geomspace(0.01, 1, 64 // groups).astype(F32)[:, None, None]
    )
    nodes = [models.node("ConvTranspose", ["x", "w", "b"], "y", "up", group=groups)]
    arrays = {"w": weight.astype(F32), "b": models.normal(64, seed=1)}
    outputs = [models.value("y", ["N", 64, 10, 10])]
    done = Done(
        models.model(nodes, [models.value("x", ["N", channels, 8, 8])], outputs, arrays), images(3, channels), tmp_path
    )
    peaks = np.abs(naive.channels_first(weight, "ConvTranspose", groups)).max(axis=1)
    scales = np.array(done.record["up"]["scale_w"])
    assert scales.size == 64
    assert np.all((scales >= peaks / 128 * 0.999) & (scales <= peaks / 127 * 1.001))
    for feed in images(3, channels):
        (expected,), (got,) = done.outputs(feed)
        for channel in range(64):
            assert output_sqnr_db(expected[:, channel], got[:, channel]) > 25


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
def test_c32_every_transposition_of_gemm(trans_a, trans_b, tmp_path):
    proto = models.gemm(trans_a=trans_a, trans_b=trans_b)
    shape = (4, 1) if trans_a else (1, 4)
    feeds = [{"x": models.normal(*shape, seed=seed)} for seed in range(3)]
    if trans_a:
        with pytest.raises(ModelError, match="transA"):
            calibrant.run(models.save(proto, tmp_path / "m.onnx"), feeds, run=tmp_path / "r")
        return
    done = Done(proto, feeds, tmp_path)
    assert done.least_sqnr() > 30
    assert len(done.report.layers) == 1


def test_c33_products_of_two_activations_are_left_and_named(tmp_path):
    feeds = [{"x": models.normal(1, 8, 16, seed=seed, scale=1.0)} for seed in range(3)]
    done = Done(models.attention(tokens=8, width=16), feeds, tmp_path)
    left = {row["layer"]: row["reason"] for row in done.run.read("layers").iter_rows(named=True) if row["reason"]}
    assert left.keys() == {"scores", "mix"}
    assert all("both inputs are variable" in reason for reason in left.values())
    assert {check.layer for check in done.report.layers} == {"query", "key", "value"}
    assert done.least_sqnr() > 25


def test_c34_a_channel_of_tiny_weights_does_not_ruin_its_neighbours(tmp_path):
    proto = models.depthwise(8)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name == "w1":
            array[5] *= F32(1e-8)
        if tensor.name == "b1":
            array[5] = 1
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    done = Done(proto, images(3, 8), tmp_path)
    assert done.least_sqnr() > 25
    assert "1 of 8 output channels are dead" in done.events()


@pytest.mark.parametrize(("weights", "data", "least"), [(1e-8, 0.5 * 127, 25), (1e-4, 0.01, 50)])
def test_c35_a_large_bias_on_tiny_weights_survives(weights, data, least, tmp_path):
    nodes = [models.node("Conv", ["x", "w", "b"], "y", "conv")]
    arrays = {"w": models.normal(2, 3, 1, 1, scale=weights), "b": F32([5, -4.5])}
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 2, 8, 8])], arrays)
    done = Done(proto, images(3, scale=data / 3), tmp_path)
    assert done.least_sqnr() > least
    codes = next(array for array in done.initializers.values() if array.dtype == np.int32)
    entry = done.record["conv"]
    for channel, bias in enumerate(arrays["b"]):
        scale = entry["scale_w"][channel if len(entry["scale_w"]) > 1 else 0]
        unit = float(entry["scale_d"][0]) * float(scale)
        assert float(codes[channel]) * unit == pytest.approx(bias, rel=1e-5, abs=unit / 2)


def test_c37_a_shared_bias_is_copied_under_a_free_name(tmp_path):
    done = Done(models.shared_weight(), images(), tmp_path)
    assert {check.layer for check in done.report.layers} == {"first", "second"}
    for model in ("deploy", "fake_quant"):
        graph = onnx.load(tmp_path / "out" / f"m_{model}_model.onnx").graph
        names = [name for node in graph.node for name in node.output] + [tensor.name for tensor in graph.initializer]
        assert len(names) == len(set(names))
    assert done.least_sqnr() > 25


def test_c38_a_shared_bias_has_a_scale_for_each_consumer(tmp_path):
    nodes = [
        models.node("Mul", ["x", "twelve"], "x12", "louder"),
        models.node("Conv", ["x", "w", "b"], "y", "quiet"),
        models.node("Conv", ["x12", "w", "b"], "z", "loud"),
    ]
    arrays = {"twelve": F32(12), "w": models.normal(4, 3, 3, 3), "b": models.normal(4, seed=1)}
    outputs = [models.value("y", ["N", 4, 6, 6]), models.value("z", ["N", 4, 6, 6])]
    done = Done(models.model(nodes, [models.value("x", ["N", 3, 8, 8])], outputs, arrays), images(), tmp_path)
    proto = onnx.load(tmp_path / "out" / "m_deploy_model.onnx")
    for node in proto.graph.node:
        if node.op_type == "Conv":
            entry = done.record[node.name]
            expected = naive.bias_codes(arrays["b"], entry["scale_d"][0], F32(entry["scale_w"]))
            np.testing.assert_array_equal(done.initializers[node.input[2]], expected)
    assert done.record["loud"]["scale_d"][0] == pytest.approx(12 * done.record["quiet"]["scale_d"][0], rel=0.05)


def normalized(name: str) -> onnx.ModelProto:
    """Conv-Relu-BN, a Conv-BN whose Conv has two consumers, or a BN before the only Conv."""
    parameters = ["gamma", "beta", "mean", "var"]
    chains = {
        "relu": [("Conv", ["x", "w"], "c"), ("Relu", ["c"], "r"), ("BatchNormalization", ["r", *parameters], "y")],
        "two": [("Conv", ["x", "w"], "c"), ("BatchNormalization", ["c", *parameters], "n"), ("Add", ["c", "n"], "y")],
        "alone": [("BatchNormalization", ["x", *parameters], "n"), ("Relu", ["n"], "r"), ("Conv", ["r", "w"], "y")],
    }
    nodes = [models.node(op, inputs, output, f"{op}_node") for op, inputs, output in chains[name]]
    arrays = {"w": models.normal(4, 4, 3, 3), **models.batch_norm_parameters(4)}
    return models.model(nodes, [models.value("x", ["N", 4, 8, 8])], [models.value("y", ["N", 4, 6, 6])], arrays)


@pytest.mark.parametrize("name", ["relu", "two", "alone"])
def test_c41_a_batch_normalization_that_stays_is_named(name, tmp_path):
    done = Done(normalized(name), images(3, 4), tmp_path)
    assert "BatchNormalization left in place: 1 (first 'BatchNormalization_node')" in done.events()
    for model in ("deploy", "fake_quant"):
        proto = onnx.load(tmp_path / "out" / f"m_{model}_model.onnx")
        assert "BatchNormalization" in {node.op_type for node in proto.graph.node}
    assert done.least_sqnr() > 25


def test_c42_a_tail_of_unknown_shape_blocks_nothing(tmp_path):
    nodes = [
        models.node("Conv", ["x", "wb"], "cb", "boxes"),
        models.node("Reshape", ["cb", "to_boxes"], "b", "as_boxes"),
        models.node("Conv", ["x", "ws"], "cs", "scores"),
        models.node("Reshape", ["cs", "to_scores"], "s", "as_scores"),
        models.node("NonMaxSuppression", ["b", "s", "most", "iou"], "chosen", "nms"),
        models.node("Slice", ["chosen", "two", "three", "one"], "index", "which"),
        models.node("Squeeze", ["index", "one"], "flat", "flat"),
        models.node("Squeeze", ["b", "zero"], "rows", "rows"),
        models.node("Gather", ["rows", "flat"], "kept", "kept"),
        models.node("MatMul", ["kept", "w"], "y", "head"),
    ]
    arrays = {
        "wb": models.normal(4, 3, 1, 1), "ws": models.normal(2, 3, 1, 1, seed=2), "w": models.normal(4, 5, seed=3),
        "to_boxes": np.array([1, -1, 4]), "to_scores": np.array([1, 2, -1]), "most": np.array([3]), "iou": F32([0.5]),
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]),
    }  # fmt: skip
    outputs = [models.value("cb", [1, 4, 4, 4]), models.value("y", [None, 5])]
    proto = models.model(nodes, [models.value("x", [1, 3, 4, 4])], outputs, arrays)
    done = Done(proto, images(3, size=4), tmp_path)
    assert {check.layer for check in done.report.layers} == {"boxes", "scores", "head"}


def test_c47_opset_11_depthwise_has_one_scale_a_channel(tmp_path):
    done = Done(models.depthwise(4, opset=11), images(3, 4), tmp_path)
    assert len(done.record["dw"]["scale_w"]) == 4
    assert done.least_sqnr() > 25


def test_c47_opset_9_upsample(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w"], "c", "conv"),
        models.node("Upsample", ["c", "scales"], "y", "up", mode="nearest"),
    ]
    arrays = {"w": models.normal(4, 3, 3, 3), "scales": F32([1, 1, 2, 2])}
    proto = models.model(
        nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 12, 12])], arrays, opset=9
    )
    done = Done(proto, images(), tmp_path)
    assert onnx.load(tmp_path / "out" / "m_deploy_model.onnx").opset_import[0].version == 9
    assert done.least_sqnr() > 25


def test_c48_two_layers_of_float16(tmp_path):
    half = TensorProto.FLOAT16
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "c", "first"),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("Conv", ["r", "w2"], "y", "second"),
    ]
    arrays = {"w1": models.normal(4, 3, 3, 3), "b1": models.normal(4, seed=1), "w2": models.normal(2, 4, 1, 1, seed=2)}
    arrays = {name: array.astype(np.float16) for name, array in arrays.items()}
    inputs, outputs = [models.value("x", ["N", 3, 8, 8], half)], [models.value("y", ["N", 2, 6, 6], half)]
    feeds = [{"x": feed["x"].astype(np.float16)} for feed in images()]
    proto = models.model(nodes, inputs, outputs, arrays)
    done = Done(proto, feeds, tmp_path)
    assert {check.layer for check in done.report.layers} == {"first", "second"}
    assert done.outputs(feeds[0])[1][0].dtype == np.float16
    assert done.least_sqnr() > 25


def test_c49_granularity_by_type_in_two_lines(tmp_path):
    nodes = [
        models.node("Conv", ["x", "w", "b"], "c", "conv"),
        models.node("Flatten", ["c"], "f", "flat"),
        models.node("Gemm", ["f", "w2"], "y", "fc"),
        models.node("ConvTranspose", ["c", "w3"], "z", "up"),
    ]
    arrays = {
        "w": models.normal(4, 3, 3, 3), "b": models.normal(4, seed=1), "w2": models.normal(144, 5),
        "w3": models.normal(4, 3, 2, 2),
    }  # fmt: skip
    outputs = [models.value("y", ["N", 5]), models.value("z", ["N", 3, 7, 7])]
    text = (
        "common_config { arq_quantize { channel_wise: true } }\n"
        'override_layer_types { layer_type: "ConvTranspose" calibration_config { arq_quantize { channel_wise: false } } }\n'
    )
    proto = models.model(nodes, [models.value("x", ["N", 3, 8, 8])], outputs, arrays)
    done = Done(proto, images(), tmp_path, text)
    assert {name: len(entry["scale_w"]) for name, entry in done.record.items()} == {"conv": 4, "fc": 1, "up": 1}
