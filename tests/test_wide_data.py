"""Data of 16 bits, where AMCT allows it: from the configuration to the rebuilt models, against whole numbers from the record."""

from pathlib import Path

import models
import numpy as np
import onnx
import polars as pl
import pytest
from exporting import CASES, Case, expected_output, read_record
from onnx import helper, numpy_helper

import calibrant
from calibrant.export.files import ExportedFiles, export_files
from calibrant.export.verify import verify_export
from calibrant.rebuild import export_record

F32 = np.float32
KINDS = ("Conv 1-D", "Conv 2-D", "Conv grouped", "Conv depthwise", "ConvTranspose", "ConvTranspose 1-D", "Gemm")
OTHERS = ("Conv 3-D", "Gemm without bias", "MatMul and Add", "AveragePool")
WIDE = "dst_type: INT16"


def samples(case: Case, count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": case.feed(seed)} for seed in range(count)]


def run(case: Case, folder: Path, block: str, *, exact: bool = False) -> tuple[calibrant.Run, Path]:
    model = models.save(case.proto(), folder / "m.onnx")
    config = folder / "quant.cfg"
    config.write_text(f"common_config {{ {block} }}")
    done = calibrant.run(model, samples(case), run=folder / "r.run", config=config, prefix=folder / "out" / "m")
    if exact:
        done = calibrant.fit(done.path, config=config, exact=True)
        done = calibrant.export(done, prefix=folder / "out" / "m")
    return done, model


def quantizer(files: ExportedFiles) -> dict[str, object]:
    node = next(node for node in onnx.load(files.deploy).graph.node if node.op_type == "AscendQuant")
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


@pytest.mark.parametrize("asymmetric", ["true", "false"])
@pytest.mark.parametrize("name", KINDS)
def test_models_compute_what_the_record_says(name: str, asymmetric: str, tmp_path: Path) -> None:
    case = CASES[name]
    done, model = run(case, tmp_path, f"ifmr_quantize {{ {WIDE} asymmetric: {asymmetric} }}")
    files = export_files(tmp_path / "out" / "m")
    assert 'act_type: "INT16"' in files.record.read_text()
    entry = read_record(files.record)["layer"]
    assert quantizer(files)["dst_type"] == b"INT16"
    assert quantizer(files)["offset"] == entry["offset_d"][0]
    assert (abs(entry["offset_d"][0]) > 128) == (asymmetric == "true")
    row = done.read("plan").row(0, named=True)
    assert (row["data_bits"], row["not_applied"]) == (16, None)
    report = verify_export(files, samples(case))
    assert report.failures() == []
    x = case.feed(9)
    found = models.run(files.fake_quant, {"x": x})[0].astype(np.float64)
    expected = expected_output(case, entry, x, bits=16).astype(np.float64)
    (check,) = report.layers
    if check.exact:
        np.testing.assert_array_equal(found, expected)
    assert np.abs(found - expected).max() <= max(check.allowed_error, 1e-6 * np.abs(expected).max())
    again = export_record(files.record, model, tmp_path / "again" / "m")
    for part in ("fake_quant", "deploy", "record"):
        assert getattr(files, part).read_bytes() == getattr(again, part).read_bytes()


@pytest.mark.parametrize("block", [f"ifmr_quantize {{ {WIDE} }}", f"hfmg_quantize {{ {WIDE} num_of_bins: 8192 }}"])
def test_both_algorithms_have_it(block: str, tmp_path: Path) -> None:
    done, _ = run(CASES["Conv 2-D"], tmp_path, block)
    assert done.read("quant_params").filter(role="data")["bits"].to_list() == [16]


def test_wide_data_is_nearer_to_float(tmp_path: Path) -> None:
    errors = {}
    for name, block in {"wide": f"ifmr_quantize {{ {WIDE} }}", "narrow": "ifmr_quantize { }"}.items():
        folder = tmp_path / name
        folder.mkdir()
        done, _ = run(CASES["Conv 2-D"], folder, block, exact=True)
        errors[name] = done.read("quant_params").filter(role="data")["sqnr_db"][0]
    assert errors["wide"] > errors["narrow"] + 30  # eight more bits are 48 dB; the clipped tail takes some of them


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_at_eight_bits(name: str, tmp_path: Path) -> None:
    done, _ = run(CASES[name], tmp_path, f"ifmr_quantize {{ {WIDE} }}")
    assert done.read("quant_params").filter(role="data")["bits"].to_list() == [8]
    events = done.read("events").filter(pl.col("message").str.contains("INT16 has no effect"))
    assert events.height == 1
    assert quantizer(export_files(tmp_path / "out" / "m"))["dst_type"] == b"INT8"


def long_gemm() -> onnx.ModelProto:
    """A Gemm whose sums leave int32 with 16-bit data: 1024 products of up to 32767 * 127."""
    nodes = [models.node("Gemm", ["x", "w", "b"], "y", "layer")]
    arrays = {"w": np.ones((1024, 2), F32), "b": np.zeros(2, F32)}
    return models.model(nodes, [models.value("x", ["N", 1024])], [models.value("y", ["N", 2])], arrays)


def test_an_accumulator_that_leaves_int32_is_reported(tmp_path: Path) -> None:
    model = models.save(long_gemm(), tmp_path / "m.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text(f"common_config {{ ifmr_quantize {{ {WIDE} asymmetric: false }} }}")
    feeds = [{"x": np.full((1, 1024), value, F32)} for value in (1, 0.5)]
    calibrant.capture(model, feeds, run=tmp_path / "r.run", config=config)
    done = calibrant.export(calibrant.fit(tmp_path / "r.run", config=config), prefix=tmp_path / "out" / "m")
    files = export_files(tmp_path / "out" / "m")
    report = verify_export(files, feeds)
    assert "an accumulator leaves int32" in str(report.failures())
    (check,) = report.layers
    entry = read_record(files.record)["layer"]
    code = min(max(round(float(F32(1) * (F32(1) / entry["scale_d"][0]))), -32768), 32767)
    assert check.greatest_sum == 1024 * code * 127 > 2**31
    assert not check.exact
    assert done.info.fits


def test_verify_finds_an_offset_of_another_width(tmp_path: Path) -> None:
    run(CASES["Conv 2-D"], tmp_path, f"ifmr_quantize {{ {WIDE} }}")
    files = export_files(tmp_path / "out" / "m")
    deploy = onnx.load(files.deploy)
    node = next(node for node in deploy.graph.node if node.op_type == "AscendQuant")
    attribute = next(attribute for attribute in node.attribute if attribute.name == "dst_type")
    attribute.s = b"INT8"
    files.deploy.write_bytes(deploy.SerializeToString())
    report = verify_export(files, samples(CASES["Conv 2-D"], 1))
    assert not report.passed
    assert any("dst_type is not INT16" in str(finding) for finding in report.findings)


def test_bias_codes_are_those_of_the_finer_step(tmp_path: Path) -> None:
    case = CASES["Conv 2-D"]
    run(case, tmp_path, f"ifmr_quantize {{ {WIDE} }}")
    files = export_files(tmp_path / "out" / "m")
    entry = read_record(files.record)["layer"]
    codes = next(numpy_helper.to_array(one) for one in onnx.load(files.deploy).graph.initializer if one.name == "b")
    steps = F32(entry["scale_d"][0]) * np.array(entry["scale_w"], F32)
    np.testing.assert_array_equal(codes, np.rint(case.arrays()["b"] / steps).astype(np.int32))
