"""Verify judges every output channel by its own sums: one extreme channel must not excuse the others."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import exporting
import models
import naive
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from exporting import CASES, Case
from onnx import numpy_helper

from calibrant.export.fake_graph import FakeRunner
from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.interpreter import Interpreter
from calibrant.export.report import LayerCheck
from calibrant.export.verify import verify_export

EXTREME = 3  # the channel with a huge bias
HUGE = 2**30 + 12345
TERMS = {  # products of one sum and its bias, counted by hand
    "Conv 2-D": 3 * 3 * 3 + 1,
    "Conv grouped": 2 * 3 * 3 + 1,
    "Conv depthwise": 3 * 3 + 1,
    "ConvTranspose grouped": 2 * 3 * 3 + 1,
    "Gemm, bias of rank 2": 6 + 1,
    "MatMul and Add, bias of rank 3": 6 + 1,
}
Change = Callable[[np.ndarray], None]


def set_bias(files: ExportedFiles, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the bias codes of both models alike."""
    for path in (files.deploy, files.fake_quant):
        model = onnx.load(path)
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "b")
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), "b"))
        path.write_bytes(model.SerializeToString())


def huge_bias(codes: np.ndarray) -> np.ndarray:
    codes.reshape(-1)[EXTREME] = HUGE
    return codes


def extreme_export(case: Case, folder: Path) -> exporting.Export:
    export = exporting.export(case.proto(), folder)
    set_bias(export.files, huge_bias)
    return export


def channel(case: Case, output: np.ndarray, number: int) -> np.ndarray:
    return output[:, number] if case.op_type.startswith("Conv") else output[..., number]


def naive_sums(case: Case, export: exporting.Export, x: np.ndarray) -> list[int]:
    """The greatest sum of |x'| |w_q| + |b_q| of each channel, by loops."""
    entry = export.record["layer"]
    offset = int(entry["offset_d"][0])
    data = np.abs(np.array(naive.deploy_codes(x, entry["scale_d"][0], offset, 8)).reshape(x.shape) - offset)
    weight = np.abs(exporting.weight_codes(case.arrays()["w"], case.op_type, case.groups, entry["scale_w"]))
    attributes = {key: value for key, value in case.attributes.items() if key != "group"}
    if case.op_type == "Conv":
        total = naive.convolution(data, weight, case.groups, **attributes)
    elif case.op_type == "ConvTranspose":
        total = naive.transposed_convolution(data, weight, case.groups, **attributes)
    else:
        total = naive.matrix_product(data, weight)
    bias = next(numpy_helper.to_array(t) for t in export.deploy.graph.initializer if t.name == "b").reshape(-1)
    return [int(channel(case, total, number).max()) + abs(int(code)) for number, code in enumerate(bias)]


def steps(export: exporting.Export, channels: int) -> np.ndarray:
    """What one accumulator unit of each channel is worth."""
    entry = export.record["layer"]
    return np.broadcast_to(np.float32(entry["scale_d"][0]) * np.array(entry["scale_w"], np.float32), channels)


def alter(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Let the fake-quant model put out something else than it computes."""
    computed = FakeRunner.values

    def values(self, layer):
        source, data, output = computed(self, layer)
        output = output.copy()
        change(output)
        return source, data, output

    monkeypatch.setattr(FakeRunner, "values", values)


def only_check(files: ExportedFiles, *feeds: np.ndarray) -> LayerCheck:
    (check,) = verify_export(files, [{"x": x} for x in feeds]).layers
    return check


@pytest.mark.parametrize("name", TERMS)
def test_sums_of_each_channel(name, tmp_path):
    case = CASES[name]
    export, x = extreme_export(case, tmp_path), case.feed()
    expected = naive_sums(case, export, x)
    (layer,) = Interpreter(export.files.deploy).layers
    entry = export.record["layer"]
    offset = int(entry["offset_d"][0])
    data = np.array(naive.deploy_codes(x, entry["scale_d"][0], offset, 8), np.float32).reshape(x.shape) - offset
    assert layer.greatest_sums(data).tolist() == expected
    assert (layer.greatest_sum_bounds(data) >= expected).all()
    check = only_check(export.files, x)
    assert check.failures == ()
    assert (check.terms, check.channels) == (TERMS[name], len(expected))
    assert check.exact_channels == sum(value <= 2**24 for value in expected) == len(expected) - 1
    assert check.greatest_sum == max(expected)
    assert check.measured
    assert not check.exact


@pytest.mark.parametrize("name", TERMS)
def test_a_wrong_bit_beside_an_extreme_channel_fails(name, tmp_path, monkeypatch):
    case = CASES[name]
    export, x = extreme_export(case, tmp_path), case.feed()
    wrong: list[float] = []

    def flip_last_bit(output: np.ndarray) -> None:
        place = channel(case, output, 2)
        before = place.flat[-1]
        place[(-1,) * place.ndim] = np.nextafter(before, np.float32(np.inf))
        wrong.append(float(place.flat[-1]) - float(before))

    alter(monkeypatch, flip_last_bit)
    check = only_check(export.files, x)
    sums = naive_sums(case, export, x)
    whole_layer = TERMS[name] * 2.0**-24 * max(sums) * float(steps(export, len(sums)).max())
    assert 0 < wrong[0] < whole_layer  # one B for all channels would let it pass
    assert check.failures == (f"outputs differ although float32 is exact (B <= 2^24) in channel 2 of {len(sums)}",)
    assert check.worst_error >= wrong[0]
    assert check.worst_ratio == np.inf
    assert not check.bit_equal


def allowed_in_extreme_channel(name: str, export: exporting.Export, x: np.ndarray) -> float:
    sums = naive_sums(CASES[name], export, x)
    return (TERMS[name] + 4) * 2.0**-24 * sums[EXTREME] * float(steps(export, len(sums))[EXTREME])


@pytest.mark.parametrize("name", TERMS)
def test_an_extreme_channel_may_differ_by_its_own_allowance(name, tmp_path, monkeypatch):
    case = CASES[name]
    export, x = extreme_export(case, tmp_path), case.feed()
    allowed = allowed_in_extreme_channel(name, export, x)
    exact = exporting.F32(channel(case, Interpreter(export.files.deploy).run({"x": x})["y"], EXTREME).flat[0])

    def move(output: np.ndarray) -> None:
        place = channel(case, output, EXTREME)
        place[(0,) * place.ndim] = exact + np.float32(0.9 * allowed)

    alter(monkeypatch, move)
    check = only_check(export.files, x)
    error = float(exact + np.float32(0.9 * allowed)) - float(exact)
    assert check.failures == ()
    assert check.equal_channels < check.channels
    assert check.allowed_error == pytest.approx(allowed, rel=1e-12)
    assert check.worst_error == error
    assert check.worst_ratio == pytest.approx(error / allowed, rel=1e-12)


@pytest.mark.parametrize("value", [1.2, np.nan, np.inf])
@pytest.mark.parametrize("name", TERMS)
def test_an_extreme_channel_fails_beyond_its_own_allowance(name, value, tmp_path, monkeypatch):
    case = CASES[name]
    export, x = extreme_export(case, tmp_path), case.feed()
    allowed = allowed_in_extreme_channel(name, export, x)

    def move(output: np.ndarray) -> None:
        place = channel(case, output, EXTREME)
        place += np.float32(value * allowed)

    alter(monkeypatch, move)
    check = only_check(export.files, x)
    assert check.failures == (
        f"outputs are further from exact integers than (K + 4) * 2^-24 * B * deq in channel {EXTREME} of {check.channels}",
    )
    assert check.worst_ratio > 1


def test_a_tampered_model_fails_in_its_ordinary_channel(tmp_path):
    """Wrong pads move only channel 0, the one with data; channel 1 is dead with scale 1, channel 3 has the huge bias."""
    case = CASES["Conv depthwise"]
    export = extreme_export(case, tmp_path)
    model = export.fake_quant
    (pads,) = (a for n in model.graph.node if n.name == "layer" for a in n.attribute if a.name == "pads")
    pads.ints[:] = [0, 0, 2, 2]
    export.files.fake_quant.write_bytes(model.SerializeToString())
    x = np.zeros((1, 4, 6, 6), np.float32)
    x[0, 0] = models.normal(6, 6)
    check = only_check(export.files, x)
    whole_layer = TERMS["Conv depthwise"] * 2.0**-24 * max(naive_sums(case, export, x)) * float(steps(export, 4).max())
    assert 0 < check.worst_error < whole_layer
    assert check.failures == ("outputs differ although float32 is exact (B <= 2^24) in channel 0 of 4",)
    assert check.equal_channels == 3


def test_many_channels_are_counted_not_listed(tmp_path, monkeypatch):
    case = CASES["Conv 2-D"]
    export = exporting.export(case.proto(), tmp_path)
    alter(monkeypatch, lambda output: output.__iadd__(np.float32(1)))
    check = only_check(export.files, case.feed())
    assert check.failures == (
        "outputs differ although float32 is exact (B <= 2^24) in channels 0, 1, 2 and 1 more of 4",
    )
    assert (check.exact_channels, check.equal_channels) == (4, 0)


def test_channels_are_added_up_over_samples(tmp_path, monkeypatch):
    """Each sample breaks another channel; both stay broken, and neither is noted twice."""
    case = CASES["Conv 2-D"]
    export = exporting.export(case.proto(), tmp_path)
    broken = iter([0, 2, 2])

    def move(output: np.ndarray) -> None:
        output[0, next(broken)] += 1

    alter(monkeypatch, move)
    check = only_check(export.files, *(case.feed(seed) for seed in range(3)))
    assert check.failures == ("outputs differ although float32 is exact (B <= 2^24) in channels 0, 2 of 4",)
    assert check.equal_channels == 2


def test_outputs_of_another_shape_are_not_called_equal(tmp_path, monkeypatch):
    case = CASES["Conv 2-D"]
    export = exporting.export(case.proto(), tmp_path)
    computed = FakeRunner.values

    def values(self, layer):
        source, data, output = computed(self, layer)
        return source, data, output[..., 1:]

    monkeypatch.setattr(FakeRunner, "values", values)
    check = only_check(export.files, case.feed())
    assert check.failures == ("shape (1, 4, 4, 2) in the fake-quant model, (1, 4, 4, 3) in exact integers",)
    assert (check.channels, check.exact_channels, check.equal_channels) == (4, 4, 0)


def test_a_pool_has_the_channels_of_its_data(tmp_path):
    case = CASES["AveragePool"]
    check = only_check(exporting.export(case.proto(), tmp_path).files, case.feed())
    assert (check.channels, check.exact_channels, check.equal_channels) == (3, 3, 3)
    assert check.exact
    assert check.bit_equal


def test_few_terms_have_room_for_every_rounding(tmp_path):
    """A 1x1 depthwise Conv adds one product to its bias, yet rounds six times in all."""
    channels = 64
    case = Case("Conv", (1, channels, 8, 8), (channels, 1, 1, 1), (channels,), {"group": channels})
    export = exporting.export(case.proto(), tmp_path)
    generator = np.random.default_rng(1)
    codes = generator.integers(-(2**30), 2**30, channels).astype(np.int32)
    set_bias(export.files, lambda _: codes)
    check = only_check(export.files, *(case.feed(seed) for seed in range(4)))
    assert check.terms == 2
    assert check.failures == ()
    assert 2 / 6 < check.worst_ratio < 1  # K roundings alone would be too few


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def test_float16_outputs_may_round_to_the_neighbour(tmp_path):
    """Where float32 sums differ in their last bit, the float16 results may fall to both sides of a tie."""
    channels = 1024
    case = Case("MatMul", (1, 512, 1), (1, channels), (channels,))
    prepared = exporting.prepare(case.proto(), tmp_path)
    prepared = dataclasses.replace(prepared, model=ir.from_proto(half(ir.to_proto(prepared.model))))
    files = write_export(prepared, exporting.choose_scales(prepared), tmp_path / "m", "{}")
    codes = np.random.default_rng(1).integers(2**25, 2**26, channels).astype(np.int32)
    set_bias(files, lambda _: codes)
    check = only_check(files, case.feed().astype(np.float16))
    assert check.exact_channels == 0
    assert 0 < check.equal_channels < channels
    assert check.failures == ()
