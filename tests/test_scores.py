"""Is an export its fit's, how near is it to the float model, and are people told."""

import subprocess
import sys

import models
import numpy as np
import onnxruntime as ort
import pytest

import calibrant
from calibrant.errors import ExportError, LayerNotFoundError
from calibrant.export.evaluate import open_session
from calibrant.stats.report import run_report


@pytest.fixture
def feeds():
    generator = np.random.default_rng(0)
    return [{"x": generator.standard_normal((1, 3, 8, 8), dtype=np.float32)} for _ in range(3)]


@pytest.fixture
def model(tmp_path):
    return models.save(models.conv_bn(), tmp_path / "m.onnx")


def outputs(path, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0].ravel() for feed in feeds]).astype(np.float64)


def test_a_run_notes_how_near_the_int8_model_is_to_the_float_model(model, feeds, tmp_path):
    run = calibrant.run(model, feeds, run=tmp_path / "r")
    row = run.read("evaluation").row(0, named=True)
    x, y = outputs(model, feeds), outputs(f"{run.info.fits['default'].prefix}_fake_quant_model.onnx", feeds)
    expected = 10 * np.log10((x**2).sum() / ((x - y) ** 2).sum())
    assert (row["fit"], row["variant"], row["metric"], row["samples"]) == ("default", "fake_quant", "sqnr_db", 3)
    assert row["value"] == pytest.approx(expected, abs=0.5)  # the float model is the fused one, a last bit away
    calibrant.verify(run)
    assert run.read("evaluation").height == 1


def test_verify_refuses_files_of_another_fit(model, feeds, tmp_path):
    run = calibrant.run(model, feeds, run=tmp_path / "r", prefix=tmp_path / "out" / "m")
    config = tmp_path / "hfmg.cfg"
    config.write_text("activation_offset: false")
    calibrant.fit(run, config=config, name="symmetric")
    with pytest.raises(ExportError, match=r"m_record\.txt: layer '.*' has other scales than fit 'symmetric'"):
        calibrant.verify(run, fit="symmetric", prefix=tmp_path / "out" / "m")


def test_a_report_keeps_one_fit_where_asked(model, feeds, tmp_path):
    run = calibrant.run(model, feeds, run=tmp_path / "r")
    calibrant.fit(run, name="other")
    assert run_report(run).height == 2 * run_report(run, "layers", "other").height
    with pytest.raises(LayerNotFoundError, match="no fit 'othr'; did you mean 'other'"):
        run_report(run, "layers", "othr")
    assert run_report(run, "compare_fits")["is_best"].all()  # both fits are the same


def test_warnings_reach_stderr(model, feeds, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    (tmp_path / "q.cfg").write_text("weight_offset: true")
    command = [
        sys.executable,
        "-m",
        "calibrant",
        "run",
        str(model),
        "--data",
        str(tmp_path / "x.npz"),
        "--config",
        str(tmp_path / "q.cfg"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count("weight_offset") == 1
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "info: capture skipped" in again.stderr
    assert "is replaced" in again.stderr


def test_the_session_for_scores_leaves_optimizations_off(model):
    assert (
        open_session(model).get_session_options().graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
