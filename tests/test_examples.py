"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

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
