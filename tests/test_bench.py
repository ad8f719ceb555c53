"""The measurements run, on small inputs; their figures are for `just bench` alone."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_bench_prints_a_table_and_keeps_its_figures(tmp_path):
    command = [sys.executable, "-m", "bench", "--size", "0.002", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| case | ours, ms | numpy, ms | figure | bar | met |")
    (saved,) = tmp_path.glob("*.json")
    cases = json.loads(saved.read_text())["cases"]
    assert len(cases) == len(rows) - 1
    assert {case["bar"] for case in cases if case["bar"]} >= {4.0, 40.0, 15.0, 10.0, 3.0}
    assert all(case["figure"] > 0 for case in cases)
