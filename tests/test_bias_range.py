"""Biases that leave int32: the weight scale is raised just enough, everywhere, and said so."""

import re
import subprocess
import sys
from pathlib import Path

import exporting
import models
import naive
import numpy as np
import pytest

import calibrant
from calibrant.errors import RangeError
from calibrant.export.files import export_files
from calibrant.export.verify import verify_export
from calibrant.quantizers import ArqOptions, fit_arq
from calibrant.quantizers.affine import make_fit
from calibrant.quantizers.bias_range import raise_weight_scales
from calibrant.rebuild import export_record

F32 = np.float32
LEAST, GREATEST = -(2**31), 2**31 - 1


def data_fit(scale: float, offset: int = 0, bits: int = 8):
    return make_fit(F32(scale), np.int32(offset), bits)


def room_is_kept(row: np.ndarray, scale: np.float32, bias: np.float32, data_scale: np.float32, offset: int) -> bool:
    """Whether bias code and the greatest sum of products stay in int32, by the definitions of both codes."""
    with np.errstate(over="ignore"):
        code = float(np.rint(F32(bias) / (F32(data_scale) * scale)))
    greatest = sum(abs(q) for q in naive.quantize(row, scale, 0, 8)) * max(127 - offset, offset + 128)
    return code + greatest <= GREATEST and code - greatest >= LEAST


@pytest.mark.parametrize("offset", [0, -128, 37])
@pytest.mark.parametrize(
    ("weights", "data_scale", "bias"), [(1e-5, 0.5, 5e3), (1e-4, 1e-3, -31.0), (0.3, 1e-6, 7.0), (1e-8, 0.5, -4.5)]
)
def test_the_raised_scale_is_the_smallest_float32_that_fits(weights, data_scale, bias, offset):
    rows = models.normal(3, 9, scale=weights)
    fit = fit_arq(rows, ArqOptions())
    biases = F32([bias, 0, bias / 3])
    raised = raise_weight_scales(rows, fit, biases, data_fit(data_scale, offset))
    for channel in range(3):
        old, new = fit.scale[channel], raised.scale[channel]
        with np.errstate(over="ignore"):
            fitted = abs(float(np.rint(biases[channel] / (F32(data_scale) * old)))) < 2**31
        if fitted:
            assert new == old
            continue
        facts = (biases[channel], F32(data_scale), offset)
        assert new > old
        assert room_is_kept(rows[channel], new, *facts)
        assert not room_is_kept(rows[channel], np.nextafter(new, F32(0)), *facts)


def test_one_scale_in_all_takes_what_its_worst_channel_needs():
    rows = models.normal(3, 4, scale=1e-4)
    fit = fit_arq(rows, ArqOptions(channel_wise=False))
    raised = raise_weight_scales(rows, fit, F32([0, 1e4, -2e4]), data_fit(0.5))
    assert raised.scale.shape == ()
    assert room_is_kept(rows[2], F32(raised.scale), F32(-2e4), F32(0.5), 0)
    assert not room_is_kept(rows[2], np.nextafter(F32(raised.scale), F32(0)), F32(-2e4), F32(0.5), 0)


def test_a_bias_that_no_scale_holds_names_its_channel():
    with pytest.raises(RangeError, match="bias, channel 1: no weight scale is large enough for int32"):
        raise_weight_scales(
            np.ones((2, 1), F32), fit_arq(np.ones((2, 1), F32), ArqOptions()), F32([0, 3e38]), data_fit(1e-45)
        )


def tiny_conv(scale: float = 1e-4) -> "models.onnx.ModelProto":
    """Conv 'tiny' with two channels of tiny weights, one of zeros, one of normal size, and Conv 'good'."""
    weight = models.normal(4, 3, 1, 1)
    weight[:2] *= F32(scale)
    weight[2] = 0
    nodes = [models.node("Conv", ["x", "w1", "b1"], "y1", "tiny"), models.node("Conv", ["x", "w2"], "y2", "good")]
    arrays = {"w1": weight, "b1": F32([5, -4.5, 0, 0.25]), "w2": models.normal(2, 3, 1, 1)}
    outputs = [models.value("y1", ["N", 4, 4, 4]), models.value("y2", ["N", 2, 4, 4])]
    return models.model(nodes, [models.value("x", ["N", 3, 4, 4])], outputs, arrays)


def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 4, 4, seed=seed, scale=0.01)} for seed in range(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bias")
    models.save(tiny_conv(), folder / "m.onnx")
    return folder


@pytest.fixture(scope="module")
def done(place) -> calibrant.Run:
    return calibrant.run(place / "m.onnx", feeds(), run=place / "r", prefix=place / "out" / "m")


def layer_id(run: calibrant.Run, name: str) -> int:
    return int(run.read("layers").filter(layer=name)["layer_id"][0])


def test_the_layer_is_quantized_and_verifies(done):
    plan = {row["layer"]: row for row in done.read("plan").iter_rows(named=True)}
    assert plan["tiny"]["enabled"]
    assert plan["good"]["enabled"]
    report = calibrant.verify(done)
    assert report.passed
    assert {check.layer for check in report.layers} == {"tiny", "good"}


def test_quant_params_say_what_decided_each_scale(done):
    rows = done.read("quant_params").filter(layer_id=layer_id(done, "tiny"), role="weight").sort("channel")
    assert rows["decided_by"].to_list() == ["bias range", "bias range", "arq", "arq"]
    others = done.read("quant_params").filter(layer_id=layer_id(done, "good"))
    assert set(others["decided_by"]) == {"arq", "ifmr"}
    data = done.read("quant_params").filter(layer_id=layer_id(done, "tiny"), role="data")
    assert data["decided_by"].to_list() == ["ifmr"]


def test_record_and_models_have_the_raised_scale(done, place):
    entry = exporting.read_record(place / "out" / "m_record.txt")["tiny"]
    rows = done.read("quant_params").filter(layer_id=layer_id(done, "tiny"), role="weight").sort("channel")
    np.testing.assert_array_equal(F32(entry["scale_w"]), rows["scale"].to_numpy())
    arrays = {
        tensor.name: models.onnx.numpy_helper.to_array(tensor)
        for tensor in models.onnx.load(place / "m.onnx").graph.initializer
    }
    deploy = {
        t.name: models.onnx.numpy_helper.to_array(t)
        for t in models.onnx.load(place / "out" / "m_deploy_model.onnx").graph.initializer
    }
    for channel in range(4):
        codes = naive.quantize(arrays["w1"][channel].ravel(), entry["scale_w"][channel], 0, 8)
        np.testing.assert_array_equal(deploy["w1"][channel].ravel(), codes)
    bias = naive.bias_codes(arrays["b1"], entry["scale_d"][0], F32(entry["scale_w"]))
    np.testing.assert_array_equal(deploy["b1"], bias)


def test_events_tell_channels_and_cost_and_dead_channels(done):
    texts = done.read("events").filter(stage="fit", layer="tiny")
    raised = texts.filter(severity="warn")["message"].to_list()
    assert len(raised) == 1
    assert (
        "the bias of 2 of 4 channels leaves int32; their weight scales are raised just enough; SQNR of the weight"
        in raised[0]
    )
    dead = texts.filter(severity="info")["message"].to_list()
    assert dead == [
        "1 of 4 output channels are dead: weights below FLT_EPSILON * 127, scale floored to 1, every code 0"
    ]
    assert done.read("events").filter(stage="fit", layer="good").height == 0


def test_the_quantized_bias_is_what_the_model_adds(done, place):
    float_outputs = models.run(place / "m.onnx", feeds()[0], ["y1"])[0]
    quantized = models.run(place / "out" / "m_fake_quant_model.onnx", feeds()[0], ["y1"])[0]
    np.testing.assert_allclose(quantized[:, 0], float_outputs[:, 0], atol=5e-6)
    np.testing.assert_allclose(quantized[:, 1], float_outputs[:, 1], atol=5e-6)


def test_the_record_alone_gives_the_same_models(done, place):
    again = export_record(place / "out" / "m_record.txt", place / "m.onnx", place / "again" / "m")
    assert again.deploy.read_bytes() == (place / "out" / "m_deploy_model.onnx").read_bytes()
    assert again.record.read_bytes() == (place / "out" / "m_record.txt").read_bytes()


def test_verify_fails_where_the_raised_scale_is_taken_back(done, place, tmp_path):
    (tmp_path / "out").mkdir()
    for file in (place / "out").iterdir():
        (tmp_path / "out" / file.name).write_bytes(file.read_bytes())
    record = tmp_path / "out" / "m_record.txt"
    halved = re.sub(r"scale_w: (\S+)", lambda found: f"scale_w: {float(found[1]) / 2!r}", record.read_text(), count=1)
    record.write_text(halved)
    report = verify_export(export_files(tmp_path / "out" / "m"), feeds())
    assert not report.passed
    assert any("not scale_d * scale_w of the record" in failure for failure in report.failures())


def test_strict_amct_raises_and_names_layer_and_channel(done):
    with pytest.raises(RangeError, match=r"layer 'tiny': bias, channel 0: 5\.0 becomes \d+, outside int32"):
        calibrant.fit(done, name="strict", strict_amct=True)


def test_a_matmul_has_one_scale_that_is_raised(tmp_path):
    nodes = [models.node("MatMul", ["x", "w"], "m", "matmul"), models.node("Add", ["m", "b"], "y", "add")]
    arrays = {"w": models.normal(4, 6, scale=1e-4), "b": F32([9, 0, 0, -8, 0, 1])}
    proto = models.model(nodes, [models.value("x", ["N", 4])], [models.value("y", ["N", 6])], arrays)
    data = [{"x": models.normal(1, 4, seed=seed, scale=0.01)} for seed in range(3)]
    run = calibrant.run(models.save(proto, tmp_path / "m.onnx"), data, run=tmp_path / "r")
    assert run.read("quant_params").filter(role="weight")["decided_by"].to_list() == ["bias range"]
    assert "the weight's scale is raised just enough" in run.read("events").filter(layer="matmul")["message"][0]


@pytest.mark.parametrize("command", ["run", "fit"])
def test_the_command_line_takes_strict_amct(command, done, place, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    whole = ["run", str(place / "m.onnx"), "--data", str(tmp_path / "x.npz"), "--run", str(tmp_path / "r")]
    arguments = whole if command == "run" else ["fit", str(done.path), "--name", "strict"]
    command_line = [sys.executable, "-m", "calibrant", *arguments, "--strict-amct"]
    found = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "layer 'tiny': bias, channel 0: 5.0 becomes" in found.stderr.splitlines()[-1]
