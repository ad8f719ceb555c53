"""Gemm and MatMul with one weight scale an output column: an opt-in of calibrant's, from the plan to the rebuilt models."""

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from exporting import CASES, Case, prepare, read_record
from onnx import numpy_helper
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.config_files import convert_config
from calibrant.errors import ConfigError
from calibrant.export.files import export_files, write_export
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.verify import verify_export
from calibrant.ingest.model import initializer_value
from calibrant.proto.json_config import parse_json_config
from calibrant.proto.simple_config import QuantConfig, canonical_text, parse_simple_config
from calibrant.rebuild import export_record

F32 = np.float32
OPT_IN = "calibrant_matmul_per_channel: true\n"
FILES = ("fake_quant", "deploy", "record", "quant_map")


def columns(weight: np.ndarray) -> np.ndarray:
    """One scale a column, written out: the greatest magnitude over the code of its sign."""
    found = []
    for column in range(weight.shape[-1]):
        values = weight[..., column].astype(np.float64).ravel()
        low, high = values.min(), values.max()
        found.append(F32(-low) / F32(128) if -low > high else F32(high) / F32(127))
    return np.array(found, F32)


def weights(case: Case) -> np.ndarray:
    """A weight whose columns have very different sizes."""
    weight = case.arrays()["w"]
    return (weight * np.logspace(-2, 1, weight.shape[-1])).astype(F32)


def proto_of(case: Case) -> onnx.ModelProto:
    proto = case.proto()
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(weights(case), "w"))
    return proto


class _Wide(Case):
    def arrays(self) -> dict[str, np.ndarray]:
        found = super().arrays()
        return {**found, "w": (found["w"] * np.logspace(-2, 1, found["w"].shape[-1])).astype(F32)}


MATRICES = [name for name in CASES if name.startswith(("Gemm", "MatMul"))]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", MATRICES)
def test_columns_equal_whole_numbers_from_the_record(name: str, symmetric: bool, tmp_path: Path) -> None:
    case = _Wide(*CASES[name])
    prepared = prepare(case.proto(), tmp_path)
    (layer,) = prepared.layers
    scales = columns(initializer_value(prepared, "w"))
    quantized = QuantizedLayer(layer, F32(0.02), 0 if symmetric else -17, 8, scales, 8)
    files = write_export(prepared, [quantized], tmp_path / "m", "{}\n")
    entry = read_record(files.record)["layer"]
    assert entry["scale_w"] == scales.tolist()
    x = case.feed()
    report = verify_export(files, [{"x": x}])
    assert report.failures() == []
    assert report.findings == ()
    (found,) = models.run(files.fake_quant, {"x": x})
    codes = column_codes(case.arrays()["w"], entry["scale_w"])
    np.testing.assert_array_equal(found, expected(case, entry, x, codes))
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(files.deploy).graph.initializer}
    words = [int((F32(0.02) * scale).view(np.uint32)) for scale in scales]
    assert tensors["layer.dequant.param"].tolist() == words
    np.testing.assert_array_equal(tensors["w"], codes)


def column_codes(weight: np.ndarray, scales: list[float]) -> np.ndarray:
    codes = np.zeros(weight.shape, np.int64)
    for place, value in np.ndenumerate(weight):
        codes[place] = min(max(round(float(F32(value) / F32(scales[place[-1]]))), -128), 127)
    return codes


def expected(case: Case, entry: dict[str, list[float]], x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    step, offset = F32(entry["scale_d"][0]), int(entry["offset_d"][0])
    data = np.clip(np.rint(x * (F32(1) / step)) + offset, -128, 127) - offset
    total = np.matmul(data.astype(np.int64), codes)
    factors = np.array([step * F32(scale) for scale in entry["scale_w"]], F32)
    if "b" in case.arrays():
        bias = case.arrays()["b"].ravel().astype(F32)
        total = total + np.rint(bias / factors).astype(np.int64)
    return total.astype(F32) * factors


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 6, seed=seed, scale=2.0)} for seed in range(count)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.save(proto_of(CASES["MatMul and Add"]), tmp_path / "m.onnx")


def write(folder: Path, text: str, name: str = "quant.cfg") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def run(model: Path, folder: Path, name: str, **options: Any) -> calibrant.Run:
    return calibrant.run(
        model, samples(), batch_size=4, run=folder / f"{name}.run", prefix=folder / name / "m", **options
    )


def plan_row(done: calibrant.Run) -> dict[str, Any]:
    return done.read("plan").row(0, named=True)


def test_a_run_is_per_tensor_unless_asked(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path, "plain")
    assert (plan_row(done)["channel_wise"], plan_row(done)["weight_decided_by"]) == (False, "default")
    assert len(read_record(export_files(tmp_path / "plain" / "m").record)["layer"]["scale_w"]) == 1


def test_option_and_extension_field_are_the_same_and_the_record_rebuilds(model: Path, tmp_path: Path) -> None:
    by_option = run(model, tmp_path, "option", matmul_per_channel=True)
    run(model, tmp_path, "field", config=write(tmp_path, OPT_IN))
    first, second = export_files(tmp_path / "option" / "m"), export_files(tmp_path / "field" / "m")
    assert first.record.read_bytes() == second.record.read_bytes()
    row = plan_row(by_option)
    assert (row["channel_wise"], row["weight_decided_by"]) == (True, "calibrant_matmul_per_channel")
    assert by_option.read("quant_params").filter(role="weight").height == 5
    entry = read_record(first.record)["layer"]
    np.testing.assert_array_equal(np.array(entry["scale_w"], F32), columns(weights(CASES["MatMul and Add"])))
    assert calibrant.verify(by_option).failures() == []
    events: list[Any] = []
    again = export_record(first.record, model, tmp_path / "again" / "m", notice=events.append)
    for name in FILES:
        assert getattr(first, name).read_bytes() == getattr(again, name).read_bytes()
    for files in (first, again):
        weight = parse_json_config(files.config.read_text()).layers["layer"].weight
        assert weight is not None
        assert weight.channel_wise
    assert any("scale_w for each column of 1 Gemm and MatMul" in event.message for event in events)
    assert '"channel_wise":true' in first.config.read_text()
    assert '"channel_wise":true' in again.config.read_text()


def test_a_fit_alone_takes_the_option(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path, "plain")
    other = calibrant.fit(done.path, name="columns", matmul_per_channel=True)
    assert other.read("quant_params").filter(fit="columns", role="weight").height == 5
    assert calibrant.export(other, fit="columns", prefix=tmp_path / "c" / "m").info.fits["columns"].matmul_per_channel


def test_the_command_line_has_the_option(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.concatenate([one["x"] for one in samples()]))
    words = [
        "run",
        str(model),
        "--data",
        str(tmp_path / "x.npz"),
        "--run",
        str(tmp_path / "c.run"),
        "--matmul-per-channel",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert plan_row(calibrant.open_run(tmp_path / "c.run"))["channel_wise"]


def test_an_override_can_say_false(model: Path, tmp_path: Path) -> None:
    text = 'override_layer_types { layer_type: "MatMul" calibration_config { arq_quantize { channel_wise: false } } }'
    done = run(model, tmp_path, "a", config=write(tmp_path, OPT_IN + text))
    assert not plan_row(done)["channel_wise"]
    assert plan_row(done)["weight_decided_by"] == 'override_layer_types "MatMul"'


def test_an_override_can_say_true_only_with_the_opt_in(model: Path, tmp_path: Path) -> None:
    text = 'override_layer_configs { layer_name: "layer" calibration_config { arq_quantize { channel_wise: true } } }'
    with pytest.raises(ConfigError, match=r"can have it \(calibrant_matmul_per_channel: true lets others\)"):
        run(model, tmp_path, "a", config=write(tmp_path, text))
    done = run(model, tmp_path, "b", config=write(tmp_path, text), matmul_per_channel=True)
    assert plan_row(done)["weight_decided_by"] == 'override_layer_configs "layer"'
    assert plan_row(done)["channel_wise"]


def test_its_config_json_runs_again_with_the_option(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path, "a", matmul_per_channel=True)
    first = export_files(tmp_path / "a" / "m")
    with pytest.raises(ConfigError, match="channel_wise is true"):
        run(model, tmp_path, "b", config=first.config)
    run(model, tmp_path, "c", config=first.config, matmul_per_channel=True)
    assert first.record.read_bytes() == export_files(tmp_path / "c" / "m").record.read_bytes()
    assert first.config.read_bytes() == export_files(tmp_path / "c" / "m").config.read_bytes()


def test_the_field_is_kept_in_the_text() -> None:
    config = parse_simple_config(OPT_IN)
    assert config == QuantConfig(calibrant_matmul_per_channel=True)
    assert parse_simple_config(canonical_text(config)) == config


def test_a_conversion_tells_what_amct_refuses(model: Path, tmp_path: Path) -> None:
    converted = convert_config(write(tmp_path, OPT_IN), tmp_path / "config.json", model=model)
    messages = [event.message for event in converted.events]
    assert any("channel_wise: true of 1 Gemm and MatMul is written, which AMCT refuses" in text for text in messages)
    layers = parse_json_config((tmp_path / "config.json").read_text()).layers
    assert layers["layer"].weight is not None
    assert layers["layer"].weight.channel_wise


def test_verify_finds_a_word_of_another_column(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path, "a", matmul_per_channel=True)
    files = export_files(tmp_path / "a" / "m")
    deploy = onnx.load(files.deploy)
    tensor = next(tensor for tensor in deploy.graph.initializer if tensor.name == "layer.dequant.param")
    words = numpy_helper.to_array(tensor).copy()
    words[[0, 1]] = words[[1, 0]]
    tensor.CopyFrom(numpy_helper.from_array(words, tensor.name))
    files.deploy.write_bytes(deploy.SerializeToString())
    report = verify_export(files, samples(1))
    assert not report.passed
    assert "dequant scales of the two models differ" in str(report.failures())
