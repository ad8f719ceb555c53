"""DMQ on whole runs: factors, statistics of the balanced data, both models and the record, against naive arithmetic."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import naive
import numpy as np
import onnx
import polars as pl
import pytest
from exporting import CASES, Case, expected_output
from onnx import TensorProto, numpy_helper
from polars.testing import assert_frame_equal
from shared_material import needs_shared, shared_inputs, shared_model
from test_verify import change_constant, node_of, save

import calibrant
from calibrant.errors import DataError, ExportError, RangeError, RunError
from calibrant.export.balance import multipliers
from calibrant.export.files import ExportedFiles, export_files
from calibrant.export.verify import verify_export
from calibrant.proto import read_record, write_record
from calibrant.proto.record import RecordEntry
from calibrant.rebuild import export_record

F = np.float32
DMQ = "common_config { dmq_balancer { } }"
KINDS = [
    "Conv 1-D", "Conv 2-D", "Conv 3-D", "Conv without bias", "Conv grouped", "Conv depthwise", "Conv depthwise, two a group",
    "Conv padded on one side", "ConvTranspose", "ConvTranspose grouped", "ConvTranspose 1-D", "Gemm", "Gemm without bias", "MatMul",
    "MatMul and Add", "MatMul and Add, bias first", "MatMul batched", "MatMul batched, one matrix a head",
]  # fmt: skip


def is_matrix(op_type: str) -> bool:
    return op_type in {"Gemm", "MatMul"}


def met_channel(case: Case, place: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The input channel that one element of a weight meets."""
    if case.op_type == "Conv":
        return place[0] // (shape[0] // case.groups) * shape[1] + place[1]
    return place[-2] if is_matrix(case.op_type) else place[0]


def naive_factors(case: Case, weight: np.ndarray, data: list[np.ndarray], strength: float) -> list[float]:
    channels = data[0].shape[-1 if is_matrix(case.op_type) else 1]
    weight_max, data_max = [0.0] * channels, [0.0] * channels
    for place, value in np.ndenumerate(weight):
        channel = met_channel(case, place, weight.shape)
        weight_max[channel] = max(weight_max[channel], abs(float(value)))
    for sample in data:
        for place, value in np.ndenumerate(sample):
            channel = place[-1 if is_matrix(case.op_type) else 1]
            data_max[channel] = max(data_max[channel], abs(float(value)))
    return naive.dmq(data_max, weight_max, strength)


def balanced_weight(case: Case, weight: np.ndarray, factors: list[np.float32]) -> np.ndarray:
    result = weight.copy()
    for place, value in np.ndenumerate(weight):
        result[place] = F(value) * F(factors[met_channel(case, place, weight.shape)])
    return result


def by_channel(case: Case, data: np.ndarray, change: Callable[[np.float32, int], np.float32]) -> np.ndarray:
    result = data.copy()
    for place, value in np.ndenumerate(data):
        result[place] = change(F(value), place[-1 if is_matrix(case.op_type) else 1])
    return result


class BalancedCase(Case):
    """The same layer with another weight."""

    other: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        return {**super().arrays(), "w": self.other}


def samples(case: Case, count: int = 3) -> list[np.ndarray]:
    """Data whose channels differ in size by up to fifty."""
    sizes = np.geomspace(0.5, 25, case.x[-1 if is_matrix(case.op_type) else 1]).astype(F)
    shape = (-1,) if is_matrix(case.op_type) else (1, -1, *[1] * (len(case.x) - 2))
    return [case.feed(seed) * sizes.reshape(shape) for seed in range(count)]


def configured(folder: Path, text: str = DMQ) -> Path:
    (folder / "quant.cfg").write_text(text)
    return folder / "quant.cfg"


def feeds_of(data: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [{"x": one} for one in data]


def balanced_run(
    proto: onnx.ModelProto, data: list[np.ndarray], folder: Path, text: str = DMQ, **options: Any
) -> calibrant.Run:
    model, config = models.save(proto, folder / "source.onnx"), configured(folder, text)
    return calibrant.run(model, feeds_of(data), run=folder / "r", prefix=folder / "out" / "m", config=config, **options)


def entry_of(folder: Path, name: str = "layer") -> RecordEntry:
    return next(entry for entry in read_record(folder / "out" / "m_record.txt") if entry.key == name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_equals_naive_arithmetic(tmp_path: Path, kind: str) -> None:
    case, data = CASES[kind], samples(CASES[kind])
    run = balanced_run(case.proto(), data, tmp_path)
    weight = case.arrays()["w"]
    entry = entry_of(tmp_path)
    factors = list(entry.tensor_balance_factor)
    np.testing.assert_allclose(factors, naive_factors(case, weight, data, 0.5), rtol=1e-6)
    assert run.read("balance").sort("channel")["factor"].to_list() == factors

    other = BalancedCase(*case)
    other.other = balanced_weight(case, weight, factors)
    rows = naive.channels_first(other.other, case.op_type, case.groups)
    scales = [affine.scale for affine in naive.arq(rows, 8, not is_matrix(case.op_type), False)]
    np.testing.assert_array_equal(entry.scale_w, scales)

    known = {"scale_d": [entry.scale_d], "offset_d": [entry.offset_d], "scale_w": list(entry.scale_w), "cluster": []}
    multiplied = by_channel(case, data[0], lambda value, channel: value * (F(1) / factors[channel]))
    got = models.run(tmp_path / "out" / "m_fake_quant_model.onnx", {"x": data[0]})[0]
    np.testing.assert_array_equal(got, expected_output(other, known, multiplied))
    report = calibrant.verify(run)
    assert [check.bit_equal for check in report.layers] == [True]


@pytest.mark.parametrize(("kind", "strength"), [("Conv grouped", 0.2), ("ConvTranspose grouped", 0.8), ("MatMul", 0.3)])
def test_scale_of_the_data_is_that_of_the_divided_data(tmp_path: Path, kind: str, strength: float) -> None:
    case, data = CASES[kind], samples(CASES[kind])
    text = f"common_config {{ dmq_balancer {{ migration_strength: {strength} }} }}"
    run = balanced_run(case.proto(), data, tmp_path, text)
    calibrant.fit(run, config=tmp_path / "quant.cfg", name="exact", exact=True)
    balance = run.read("balance").filter(fit="exact").sort("channel")["factor"].to_list()
    np.testing.assert_allclose(balance, naive_factors(case, case.arrays()["w"], data, strength), rtol=1e-6)
    divided = [by_channel(case, one, lambda value, channel: value / F(balance[channel])) for one in data]
    search, losses, best = naive.ifmr(np.concatenate(divided), 8, True)
    row = run.read("quant_params").filter(fit="exact", role="data").row(0, named=True)
    expected = naive.ifmr_affine(search, best)
    assert (F(row["scale"]), row["offset"]) == (expected.scale, expected.offset)
    chosen = run.read("search").filter(pl.col("is_best"), fit="exact").row(0, named=True)
    assert chosen["exact"]
    np.testing.assert_allclose(chosen["loss"], losses[best], rtol=1e-6)


def test_statistics_alone_give_the_same_by_a_second_pass(tmp_path: Path) -> None:
    data = samples(CASES["Conv 2-D"], 5)
    runs = []
    for keep, size in (("raw", 2), ("stats", 3), ("stats", 1)):
        folder = tmp_path / f"{keep}{size}"
        folder.mkdir()
        runs.append(balanced_run(CASES["Conv 2-D"].proto(), data, folder, keep=keep, batch_size=size))
        assert (folder / "out" / "m_record.txt").read_bytes() == (
            tmp_path / "raw2" / "out" / "m_record.txt"
        ).read_bytes()
    for run in runs[1:]:
        for table in ("search", "quant_params", "balance"):
            assert_frame_equal(run.read(table), runs[0].read(table), check_exact=True)
        (told,) = run.read("events").filter(pl.col("message").str.starts_with("dmq_balancer"))["message"]
        assert told.startswith("dmq_balancer: the data was read a second time for the statistics of 1 layer")


def outlier_model() -> onnx.ModelProto:
    """x [N,16] -> Gemm 'layer' -> y; the data has a channel that is a hundred times the others."""
    arrays = {"w": models.normal(16, 8, seed=3), "b": models.normal(8, seed=4)}
    nodes = [models.node("Gemm", ["x", "w", "b"], "y", "layer")]
    return models.model(nodes, [models.value("x", ["N", 16])], [models.value("y", ["N", 8])], arrays)


def test_an_outlier_channel_costs_less_with_balancing(tmp_path: Path) -> None:
    sizes = np.ones(16, F)
    sizes[5] = 100
    data = [models.normal(1, 16, seed=seed, scale=1.0) * sizes for seed in range(32)]
    found = {}
    for name, text in (("plain", ""), ("balanced", DMQ)):
        (tmp_path / name).mkdir()
        run = balanced_run(outlier_model(), data, tmp_path / name, text)
        found[name] = float(run.read("evaluation").filter(metric="sqnr_db")["value"][0])
    assert found["balanced"] > found["plain"] + 3


def nodes_of(path: Path, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.op_type == op_type]


def attention_data() -> list[np.ndarray]:
    return [models.normal(1, 5, 4, seed=seed) * np.array([1, 1, 40, 1], F) for seed in range(4)]


def test_siblings_on_one_tensor_have_their_own_factors_mul_and_quantizer(tmp_path: Path) -> None:
    balanced_run(models.attention(), attention_data(), tmp_path)
    files = export_files(tmp_path / "out" / "m")
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "source.onnx").graph.initializer}
    constants = {t.name: numpy_helper.to_array(t) for t in onnx.load(files.deploy).graph.initializer}
    quantizers = {node.input[0]: node.name for node in nodes_of(files.deploy, "AscendQuant")}
    readers = {node.input[0]: node for node in onnx.load(files.deploy).graph.node if node.op_type == "MatMul"}
    case = Case("MatMul", (1, 5, 4), (4, 4))
    for entry in read_record(files.record):
        (mul,) = [node for node in nodes_of(files.deploy, "Mul") if node.name == f"{entry.key}.mul"]
        assert list(mul.input) == ["x", f"{entry.key}.tensor_balance_factor"]
        assert quantizers[mul.output[0]] == f"{entry.key}.quant"
        assert readers[f"{entry.key}.quant.output0"].name == entry.key
        source = next(node for node in onnx.load(tmp_path / "source.onnx").graph.node if node.name == entry.key)
        expected = naive_factors(case, weights[source.input[1]], attention_data(), 0.5)
        np.testing.assert_allclose(entry.tensor_balance_factor, expected, rtol=1e-6)
        constant = constants[f"{entry.key}.tensor_balance_factor"]
        assert (constant.shape, constant.dtype) == ((1, 4), F)
        np.testing.assert_array_equal(constant[0], [F(1) / factor for factor in entry.tensor_balance_factor])
    assert len(quantizers) == 3
    items = {item["name"]: item for item in json.loads(files.quant_map.read_text())["graph"][0]["op"]}
    for name in ("query.mul", "query.tensor_balance_factor"):
        assert items[name]["attr"][0]["value"]["list"]["s"] == ["query"]


def test_a_layer_that_is_not_balanced_keeps_its_own_quantizer(tmp_path: Path) -> None:
    text = 'override_layer_configs { layer_name: "key" calibration_config { dmq_balancer { } } }'
    run = balanced_run(models.attention(), attention_data(), tmp_path, text)
    files = export_files(tmp_path / "out" / "m")
    assert [(entry.key, bool(entry.tensor_balance_factor)) for entry in read_record(files.record)] == [
        ("query", False), ("key", True), ("value", False)
    ]  # fmt: skip
    assert [node.input[0] for node in nodes_of(files.deploy, "AscendQuant")] == ["x", "key.mul.output0"]
    assert run.read("balance")["layer_id"].unique().to_list() == [1]
    assert calibrant.verify(run).passed


def test_convolutions_have_a_constant_of_the_rank_of_their_weight(tmp_path: Path) -> None:
    for kind, shape in (("Conv 1-D", (1, 3, 1)), ("Conv grouped", (1, 4, 1, 1)), ("ConvTranspose", (1, 3, 1, 1))):
        folder = tmp_path / kind.replace(" ", "")
        folder.mkdir()
        balanced_run(CASES[kind].proto(), samples(CASES[kind]), folder)
        for model in ("deploy", "fake_quant"):
            constants = {t.name: t.dims for t in onnx.load(folder / "out" / f"m_{model}_model.onnx").graph.initializer}
            assert tuple(constants["layer.tensor_balance_factor"]) == shape


def two_axes() -> onnx.ModelProto:
    """x [N,4,6] -> Conv 'conv' (channels on axis 1) and MatMul 'matmul' (channels on the last axis)."""
    arrays = {"w": models.normal(3, 4, 1, seed=1), "m": models.normal(6, 5, seed=2)}
    nodes = [models.node("Conv", ["x", "w"], "y", "conv"), models.node("MatMul", ["x", "m"], "z", "matmul")]
    outputs = [models.value("y", ["N", 3, 6]), models.value("z", ["N", 4, 5])]
    return models.model(nodes, [models.value("x", ["N", 4, 6])], outputs, arrays)


@pytest.mark.parametrize("keep", ["raw", "stats"])
def test_channels_along_another_axis_than_the_tensors_own(tmp_path: Path, keep: str) -> None:
    data = [models.normal(1, 4, 6, seed=seed) * np.arange(1, 25, dtype=F).reshape(4, 6) for seed in range(3)]
    balanced_run(two_axes(), data, tmp_path, keep=keep)
    weights = {t.name: numpy_helper.to_array(t) for t in two_axes().graph.initializer}
    for name, case, key in (("conv", Case("Conv", (1, 4, 6)), "w"), ("matmul", Case("MatMul", (1, 4, 6)), "m")):
        expected = naive_factors(case, weights[key], data, 0.5)
        np.testing.assert_allclose(entry_of(tmp_path, name).tensor_balance_factor, expected, rtol=1e-6)


def test_constants_of_a_float16_model_are_float16() -> None:
    found = multipliers("layer", np.array([3, 0.125], F), 1, "float16")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.array([[[1 / 3], [8]]], np.float16))
    with pytest.raises(ExportError, match=r"layer 'layer': 1/tensor_balance_factor leaves float16"):
        multipliers("layer", np.array([2.0**-20], F), 0, "float16")


def half_model() -> onnx.ModelProto:
    """x [N,4] float16 -> MatMul 'layer' -> y."""
    nodes = [models.node("MatMul", ["x", "w"], "y", "layer")]
    ends = [models.value(name, ["N", size], TensorProto.FLOAT16) for name, size in (("x", 4), ("y", 3))]
    return models.model(nodes, ends[:1], ends[1:], {"w": models.normal(4, 3, seed=1).astype(np.float16)})


def test_a_float16_model_multiplies_in_float16(tmp_path: Path) -> None:
    data = [(models.normal(1, 4, seed=seed) * np.array([1, 9, 1, 1], F)).astype(np.float16) for seed in range(4)]
    run = balanced_run(half_model(), data, tmp_path)
    entry = entry_of(tmp_path)
    for model in ("deploy", "fake_quant"):
        constants = {t.name: t for t in onnx.load(tmp_path / "out" / f"m_{model}_model.onnx").graph.initializer}
        found = numpy_helper.to_array(constants["layer.tensor_balance_factor"])
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, np.array([[F(1) / f for f in entry.tensor_balance_factor]], np.float16))
    weight = np.asarray(models.normal(4, 3, seed=1).astype(np.float16), F)
    case = Case("MatMul", (1, 4))
    expected = naive_factors(case, weight, data, 0.5)
    np.testing.assert_allclose(entry.tensor_balance_factor, expected, rtol=1e-6)
    assert calibrant.verify(run).passed


@needs_shared
@pytest.mark.parametrize(
    "name", ["mnist_resnet", "mnist_vit", "mnist_denoise", "mnist_dwnet", "silero_vad_op18_ifless"]
)
def test_real_models_are_balanced_and_verify(tmp_path: Path, name: str) -> None:
    data = shared_inputs(tmp_path) / f"{name}.npz"
    fixed = {"sr": 16000} if name.startswith("silero") else None
    run = calibrant.run(
        shared_model(name), data, run=tmp_path / "r", keep="stats", config=configured(tmp_path), fix_input=fixed
    )
    layers = run.read("plan").filter(pl.col("enabled"), pl.col("op_type") != "AveragePool")["layer_id"].to_list()
    assert run.read("balance")["layer_id"].unique(maintain_order=True).to_list() == layers


# Records


@pytest.mark.parametrize("kind", ["Conv grouped", "ConvTranspose grouped", "MatMul and Add"])
def test_the_record_gives_the_models_again(tmp_path: Path, kind: str) -> None:
    balanced_run(CASES[kind].proto(), samples(CASES[kind]), tmp_path)
    first = export_files(tmp_path / "out" / "m")
    second = export_record(first.record, tmp_path / "source.onnx", tmp_path / "again" / "m")
    for name in ("fake_quant", "deploy", "record", "quant_map"):
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes(), name


# Data that cannot be read twice


def test_a_generator_is_refused_before_anything_runs(tmp_path: Path) -> None:
    model = models.save(CASES["Gemm"].proto(), tmp_path / "m.onnx")
    data = (feed for feed in feeds_of(samples(CASES["Gemm"])))
    words = (
        r"the data: dmq_balancer of layer 'layer' reads it twice where not all activations are kept, .*; give a list"
    )
    with pytest.raises(DataError, match=words):
        calibrant.run(model, data, run=tmp_path / "r", config=configured(tmp_path), keep="stats")
    assert len(list(data)) == 3
    assert not (tmp_path / "r").exists()
    raw = calibrant.run(model, iter(feeds_of(samples(CASES["Gemm"]))), run=tmp_path / "r", config=configured(tmp_path))
    assert raw.read("balance").height == 6


class Changing:
    """Other samples each time."""

    def __init__(self) -> None:
        self.seeds = itertools.count()

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter([{"x": models.normal(1, 6, seed=next(self.seeds))} for _ in range(3)])


def test_data_that_changes_between_the_passes_is_an_error(tmp_path: Path) -> None:
    model = models.save(CASES["Gemm"].proto(), tmp_path / "m.onnx")
    with pytest.raises(DataError, match="gives other samples when it is read a second time"):
        calibrant.run(model, Changing(), run=tmp_path / "r", config=configured(tmp_path), keep="stats")


class Reader:
    """An onnxruntime-style reader that can begin again."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds, self.place = feeds, 0

    def get_next(self) -> dict[str, np.ndarray] | None:
        self.place += 1
        return self.feeds[self.place - 1] if self.place <= len(self.feeds) else None

    def rewind(self) -> None:
        self.place = 0


def test_a_reader_that_rewinds_is_read_twice(tmp_path: Path) -> None:
    model = models.save(CASES["Gemm"].proto(), tmp_path / "m.onnx")
    data = Reader(feeds_of(samples(CASES["Gemm"])))
    run = calibrant.run(model, data, run=tmp_path / "r", config=configured(tmp_path), keep="stats")
    assert run.read("balance").height == 6


def test_a_later_fit_on_statistics_alone_says_what_to_do(tmp_path: Path) -> None:
    model = models.save(CASES["Gemm"].proto(), tmp_path / "m.onnx")
    run = calibrant.run(model, feeds_of(samples(CASES["Gemm"])), run=tmp_path / "r", keep="stats")
    with pytest.raises(
        RunError, match=r"dmq_balancer of layer 'layer' needs the activations, .* capture again with --keep raw, or"
    ):
        calibrant.fit(run, config=configured(tmp_path))


def test_a_factor_out_of_range_names_its_layer(tmp_path: Path) -> None:
    data = [one * np.array([1e30, 1, 1, 1, 1, 1], F) for one in samples(CASES["Gemm"])]
    with pytest.raises(RangeError, match=r"layer 'layer': balance factor of input channel 0: .* is outside"):
        balanced_run(CASES["Gemm"].proto(), data, tmp_path)


# What verify finds


@pytest.fixture
def files(tmp_path: Path) -> ExportedFiles:
    balanced_run(CASES["Conv 2-D"].proto(), samples(CASES["Conv 2-D"]), tmp_path)
    return export_files(tmp_path / "out" / "m")


def faults(files: ExportedFiles) -> str:
    report = verify_export(files, feeds_of(samples(CASES["Conv 2-D"], 1)))
    assert not report.passed
    return "\n".join(report.failures())


@pytest.mark.parametrize("name", ["deploy", "fake_quant"])
@pytest.mark.parametrize("change", [lambda array: array * F(1.01), lambda array: array.reshape(3, 1, 1)])
def test_another_constant_is_found(files: ExportedFiles, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = getattr(files, name)
    model = onnx.load(path)
    change_constant(model, "layer.tensor_balance_factor", change)
    save(model, path)
    told = "the Mul before its quantizer is not by 1/tensor_balance_factor of the record, of shape [1, 3, 1, 1]"
    assert told in faults(files)


@pytest.mark.parametrize("name", ["deploy", "fake_quant"])
def test_a_missing_mul_is_found(files: ExportedFiles, name: str) -> None:
    path = getattr(files, name)
    model = onnx.load(path)
    reader = next(node for node in model.graph.node if "layer.mul.output0" in node.input)
    reader.input[0] = "x"
    model.graph.node.remove(node_of(model, "layer.mul"))
    save(model, path)
    assert "no Mul by 1/tensor_balance_factor stands before its quantizer, but the record has factors" in faults(files)


def test_a_record_without_the_factors_is_found(files: ExportedFiles) -> None:
    (entry,) = read_record(files.record)
    write_record(files.record, [RecordEntry("layer", entry.scale_d, entry.offset_d, entry.scale_w, entry.offset_w)])
    assert (
        "a Mul by 'layer.tensor_balance_factor' stands before its quantizer, but the record has no factors"
        in faults(files)
    )


def test_an_export_with_other_factors_is_not_that_of_the_fit(files: ExportedFiles, tmp_path: Path) -> None:
    text = files.record.read_text()
    first = next(line for line in text.splitlines() if "tensor_balance_factor" in line)
    files.record.write_text(text.replace(first, "    tensor_balance_factor: 3.25", 1))
    with pytest.raises(ExportError, match="layer 'layer' has other scales than fit 'default'"):
        calibrant.verify(tmp_path / "r")
