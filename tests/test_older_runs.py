"""Runs of a calibrant whose sample keys were another hash."""

import json
from pathlib import Path

import models
import numpy as np
import onnx
import pytest

import calibrant
from calibrant.errors import RunError

X = np.random.default_rng(5).normal(size=(3, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(models.depthwise(3), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def older(tmp_path: Path, model: Path) -> Path:
    """A run whose run.json says nothing of the hash, and holds another fingerprint."""
    run = calibrant.capture(model, [{"x": X}], run=tmp_path / "r", keep="stats")
    description = json.loads((run.path / "run.json").read_text())
    assert description.pop("key_hash") == "sha256"
    description["data_fingerprint"] = "0" * 64
    (run.path / "run.json").write_text(json.dumps(description))
    return run.path


def test_an_older_run_is_not_captured_again_in_silence(model: Path, older: Path) -> None:
    before = {path: path.read_bytes() for path in older.rglob("*") if path.is_file()}
    text = r"r: an earlier calibrant captured it, and its sample keys \(blake2b\) do not tell whether the data is the same; pass --restart"
    with pytest.raises(RunError, match=text) as caught:
        calibrant.capture(model, [{"x": X}], run=older, keep="stats")
    assert "other content" not in str(caught.value)
    assert {path: path.read_bytes() for path in older.rglob("*") if path.is_file()} == before


def test_what_else_differs_from_an_older_run_is_said_too(model: Path, older: Path) -> None:
    with pytest.raises(RunError, match=r"\(blake2b\) do not tell.*; keep is stats, asked for raw; pass --restart"):
        calibrant.capture(model, [{"x": X}], run=older)


def test_an_older_run_is_replaced_on_demand_and_reused_then(model: Path, older: Path) -> None:
    calibrant.capture(model, [{"x": X}], run=older, keep="stats", restart=True)
    again = calibrant.capture(model, [{"x": X}], run=older, keep="stats")
    assert "capture skipped" in again.read("events")["message"].str.join(" ").item()


def test_an_older_run_can_be_fitted(older: Path) -> None:
    assert calibrant.fit(calibrant.open_run(older)).read("quant_params").height > 0
