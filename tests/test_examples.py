"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

import models
import numpy as np
from shared_material import SHARED, needs_shared, shared_model

import calibrant
from calibrant.demo import run_demo
from calibrant.stats.events import no_progress

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_algorithms_are_compared(tmp_path):
    command = [sys.executable, str(EXAMPLES / "compare_algorithms.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "hfmg_db" in done.stdout


def test_the_configuration_fits_the_demo(tmp_path):
    result = run_demo(tmp_path / "demo", no_progress)
    calibrant.fit(result.run, config=EXAMPLES / "quant.cfg", name="example")
    plan = result.run.read("plan").filter(fit="example")
    assert plan.filter(layer="Conv.0")["enabled_decided_by"].item() == "skip_layers"
    assert plan.filter(op_type="MatMul")["data_algorithm"].unique().to_list() == ["hfmg"]


@needs_shared
def test_exact_lines_of_text(tmp_path):
    """A text recogniser after AMCT's defaults: how many of 16 lines still read exactly as the float model reads them."""
    rec, metric = shared_model("ch_PP-OCRv4_rec_infer"), f"{EXAMPLES / 'ctc_lines.py'}:exact_lines"
    lines = np.load(SHARED / "models" / "data" / "ocr_lines_48x320.npz")
    calib_x, eval_x = (
        np.repeat(lines[name][:count, None].astype(np.float32) / np.float32(127.5) - 1, 3, 1)
        for name, count in (("calib_x", 8), ("eval_x", 16))
    )
    run = calibrant.capture(rec, [{"x": calib_x}], run=tmp_path / "r", keep="stats")
    calibrant.export(calibrant.fit(run), prefix=tmp_path / "m")
    rows = calibrant.evaluate(run, [{"x": eval_x}], metrics=[metric]).filter(metric="ctc_lines:exact_lines")
    values = dict(rows.select("variant", "value").rows())
    assert values["fp32"] == 1
    fake_quant = tmp_path / "m_fake_quant_model.onnx"
    before, after = (
        [read(models.run(path, {"x": line[None]})[0]) for line in eval_x] for path in (run.prepared_file, fake_quant)
    )
    assert values["fake_quant"] == sum(a == b for a, b in zip(before, after, strict=True)) / 16
    assert 0.2 < values["fake_quant"] < 0.95


def read(scores):
    """Greedy CTC, step by step: the best character where it changes, blanks left out."""
    text, last = [], 0
    for step in scores[0]:
        best = int(np.argmax(step))
        if best not in (0, last):
            text.append(best)
        last = best
    return text
