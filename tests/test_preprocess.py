"""`calibrant preprocess`: factors into a record, and the balanced float model."""

import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from exporting import CASES
from onnx import numpy_helper
from test_balance import DMQ, KINDS, Case, configured, feeds_of, naive_factors, samples, two_axes

import calibrant
from calibrant.errors import ConfigError
from calibrant.preprocess import preprocess
from calibrant.proto import RecordEntry, read_record
from calibrant.rebuild import export_record

F = np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_factors_and_the_model_that_has_them(tmp_path: Path, kind: str) -> None:
    case, data = CASES[kind], samples(CASES[kind])
    model = models.save(case.proto(), tmp_path / "m.onnx")
    done = calibrant.preprocess(
        model,
        feeds_of(data),
        config=configured(tmp_path),
        output=tmp_path / "record.txt",
        modified_model=tmp_path / "b.onnx",
    )
    assert (done.record, done.layers, done.modified_model) == (tmp_path / "record.txt", 1, tmp_path / "b.onnx")
    (entry,) = read_record(done.record)
    np.testing.assert_allclose(
        entry.tensor_balance_factor, naive_factors(case, case.arrays()["w"], data, 0.5), rtol=1e-6
    )
    assert entry == RecordEntry(
        "layer", act_type=None, wts_type=None, op_data_type=None, tensor_balance_factor=entry.tensor_balance_factor
    )
    assert onnx.load(tmp_path / "b.onnx").graph.node[0].op_type == "Mul"
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "b.onnx").graph.initializer}
    assert not np.array_equal(weights["w"], case.arrays()["w"])
    for one in data:
        expected, got = models.run(model, {"x": one})[0], models.run(tmp_path / "b.onnx", {"x": one})[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_factors_are_those_of_a_run(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "m.onnx")
    data = [{"x": models.normal(1, 3, 8, 8, seed=seed)} for seed in range(5)]
    config = configured(tmp_path)
    preprocess(model, data, config=config, output=tmp_path / "record.txt", batch_size=2)
    calibrant.run(model, data, config=config, run=tmp_path / "r", prefix=tmp_path / "m")
    (one,), (other,) = read_record(tmp_path / "record.txt"), read_record(tmp_path / "m_record.txt")
    assert one.tensor_balance_factor == other.tensor_balance_factor


def test_the_model_that_has_them_is_quantized_like_any_other(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "m.onnx")
    data, config = [{"x": models.normal(1, 3, 8, 8, seed=seed)} for seed in range(3)], configured(tmp_path)
    balanced = tmp_path / "b.onnx"
    preprocess(model, data, config=config, output=tmp_path / "record.txt", modified_model=balanced)
    plain = calibrant.run(balanced, data, run=tmp_path / "plain.run", prefix=tmp_path / "plain" / "m")
    again = calibrant.run(balanced, data, run=tmp_path / "again.run", prefix=tmp_path / "again" / "m", config=config)
    assert calibrant.verify(plain).passed
    assert calibrant.verify(again).passed


def test_layers_without_a_balancer_have_no_entry(tmp_path: Path) -> None:
    model = models.save(models.depthwise(), tmp_path / "m.onnx")
    text = 'override_layer_configs { layer_name: "pw" calibration_config { dmq_balancer { } } }'
    data = [{"x": models.normal(1, 4, 8, 8)}]
    preprocess(model, data, config=configured(tmp_path, text), output=tmp_path / "record.txt")
    assert [entry.key for entry in read_record(tmp_path / "record.txt")] == ["pw"]


def test_unfused_layers_say_so(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "m.onnx")
    data = [{"x": models.normal(1, 3, 8, 8)}]
    preprocess(model, data, config=configured(tmp_path, f"do_fusion: false {DMQ}"), output=tmp_path / "record.txt")
    assert [entry.skip_fusion for entry in read_record(tmp_path / "record.txt")] == [True]


def test_another_channel_axis_reads_the_data_twice(tmp_path: Path) -> None:
    model = models.save(two_axes(), tmp_path / "m.onnx")
    data = [models.normal(1, 4, 6, seed=seed) for seed in range(3)]
    preprocess(model, feeds_of(data), config=configured(tmp_path), output=tmp_path / "record.txt")
    entry = read_record(tmp_path / "record.txt")[1]
    weight = next(numpy_helper.to_array(t) for t in two_axes().graph.initializer if t.name == "m")
    expected = naive_factors(Case("MatMul", (1, 4, 6)), weight, data, 0.5)
    np.testing.assert_allclose(entry.tensor_balance_factor, expected, rtol=1e-6)


def test_a_configuration_without_a_balancer_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"quant\.cfg: no layer has a dmq_balancer, so there are no factors to find"):
        preprocess(model, [], config=configured(tmp_path, "activation_offset: true"), output=tmp_path / "record.txt")
    with pytest.raises(ConfigError, match="model and modified model are the same file"):
        preprocess(model, [], config=configured(tmp_path), output=tmp_path / "record.txt", modified_model=model)
    assert not (tmp_path / "record.txt").exists()


def test_a_record_of_factors_alone_quantizes_nothing(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "m.onnx")
    preprocess(model, [{"x": models.normal(1, 3, 8, 8)}], config=configured(tmp_path), output=tmp_path / "record.txt")
    with pytest.raises(ConfigError, match="no entry has scales, so there is nothing to quantize"):
        export_record(tmp_path / "record.txt", model, tmp_path / "out")


def test_the_command(tmp_path: Path) -> None:
    models.save(models.conv_bn(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=models.normal(4, 3, 8, 8))
    configured(tmp_path)
    command = "preprocess m.onnx --data d.npz --config quant.cfg -o out/record.txt --modified-model out/b.onnx"
    done = subprocess.run(
        [sys.executable, "-m", "calibrant", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "record.txt" in done.stdout
    assert len(read_record(tmp_path / "out" / "record.txt")[0].tensor_balance_factor) == 3
    assert (tmp_path / "out" / "b.onnx").is_file()
