"""FORCE_FP16_QUANT: the data's step in float16, 19 bits of the dequant scale, in record, both models, verify and rebuilt models."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from exporting import CASES, Case, read_record
from onnx import numpy_helper

import calibrant
from calibrant.export.files import ExportedFiles, export_files
from calibrant.export.verify import verify_export
from calibrant.quantizers.half_factors import dequant_factors, half_scale
from calibrant.rebuild import export_record

F32 = np.float32
FORCE = "fakequant_precision_mode: FORCE_FP16_QUANT\n"


def cut(value: np.float32) -> np.float32:
    """The 19 upper bits of a float32, by its bit pattern."""
    return np.array([int(np.array(value, F32).view(np.uint32)) >> 13 << 13], np.uint32).view(F32)[0]


def samples(case: Case) -> list[dict[str, np.ndarray]]:
    return [{"x": case.feed(seed)} for seed in range(4)]


def run(case: Case, folder: Path, text: str = FORCE, name: str = "a") -> tuple[calibrant.Run, ExportedFiles, Path]:
    model = models.save(case.proto(), folder / "m.onnx")
    config = folder / "quant.cfg"
    config.write_text(text)
    done = calibrant.run(
        model, samples(case), run=folder / f"{name}.run", config=config, prefix=folder / name / "m", batch_size=4
    )
    return done, export_files(folder / name / "m"), model


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


@pytest.mark.parametrize(
    ("scale", "expected"), [(0.0356078, 0.035614014), (1e-5, 1.0000673e-5), (1e5, 100014.0625)]
)  # the vectors of the specification
def test_steps_of_the_specification(scale: float, expected: float) -> None:
    assert half_scale(F32(scale)) == pytest.approx(expected, rel=1e-7)


def test_dequant_scales_are_cut_and_not_rounded() -> None:
    assert dequant_factors(F32(0.1), [1], half=True).view(np.uint32).tolist() == [0x3DCCC000]
    assert dequant_factors(F32(0.1), [1]).view(np.uint32).tolist() == [0x3DCCCCCD]


@pytest.mark.parametrize("name", ["Conv 2-D", "ConvTranspose grouped", "Gemm", "MatMul and Add", "AveragePool"])
def test_models_and_record_have_the_factors(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    done, files, model = run(case, tmp_path)
    plain = calibrant.fit(done.path, name="plain")
    entry = read_record(files.record)["layer"]
    float_step = plain.read("quant_params").filter(fit="plain", role="data")["scale"][0]
    assert entry["scale_d"][0] == F32(np.float16(float_step)) != F32(float_step)
    assert 'fakequant_precision_mode: "FORCE_FP16_QUANT"' in files.record.read_text().replace("'", '"')
    wanted = [cut(F32(entry["scale_d"][0]) * F32(scale)) for scale in entry["scale_w"]]
    words = tensors(files.deploy)["layer.dequant.param"]
    assert words.tolist() == [int(np.array(one, F32).view(np.uint32)) for one in wanted]
    np.testing.assert_array_equal(tensors(files.fake_quant)["layer.dequant.fakequant.scale"].ravel(), wanted)
    report = calibrant.verify(done)
    assert report.failures() == []
    assert report.findings == ()
    again = export_record(files.record, model, tmp_path / "again" / "m")
    for part in ("fake_quant", "deploy", "record"):
        assert getattr(files, part).read_bytes() == getattr(again, part).read_bytes()
    assert '"fakequant_precision_mode":"FORCE_FP16_QUANT"' in again.config.read_text().replace(" ", "")


def test_the_config_json_of_a_run_gives_the_record_again(tmp_path: Path) -> None:
    _, files, _ = run(CASES["Conv 2-D"], tmp_path)
    _, again, _ = run(CASES["Conv 2-D"], tmp_path, files.config.read_text(), "b")
    assert files.record.read_bytes() == again.record.read_bytes()


def test_bias_codes_are_of_the_uncut_product(tmp_path: Path) -> None:
    case = CASES["Conv 2-D"]
    _, files, _ = run(case, tmp_path)
    entry = read_record(files.record)["layer"]
    steps = F32(entry["scale_d"][0]) * np.array(entry["scale_w"], F32)
    np.testing.assert_array_equal(tensors(files.deploy)["b"], np.rint(case.arrays()["b"] / steps).astype(np.int32))


def test_the_default_mode_changes_nothing(tmp_path: Path) -> None:
    case = CASES["Gemm"]
    _, files, _ = run(case, tmp_path, "fakequant_precision_mode: DEFAULT\n")
    _, plain, _ = run(case, tmp_path, "", "b")
    for part in ("fake_quant", "deploy", "record"):
        assert getattr(files, part).read_bytes() == getattr(plain, part).read_bytes()
    assert "fakequant_precision_mode" not in files.record.read_text()


def test_verify_finds_a_word_that_is_not_cut(tmp_path: Path) -> None:
    case = CASES["Conv 2-D"]
    _, files, _ = run(case, tmp_path)
    entry = read_record(files.record)["layer"]
    deploy = onnx.load(files.deploy)
    param = next(one for one in deploy.graph.initializer if one.name == "layer.dequant.param")
    steps = (F32(entry["scale_d"][0]) * np.array(entry["scale_w"], F32)).view(np.uint32).astype(np.uint64)
    param.CopyFrom(numpy_helper.from_array(steps, param.name))
    files.deploy.write_bytes(deploy.SerializeToString())
    report = verify_export(files, samples(case)[:1])
    assert not report.passed
    assert "words differ from scale_d * scale_w of the record" in " ".join(map(str, report.findings))
