"""Real images: what training wins back, and the exported model against PyTorch. The measured figure is `just bench-qat`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch_material import torch

pytest.importorskip("sklearn", reason="needs scikit-learn: pip install '.[qat-test]'")

from models import run as run_onnx

from bench import digits, qat

ROOT = Path(__file__).resolve().parents[1]


def test_training_at_4_bits_and_the_exported_model_agree(tmp_path):
    """Two seeds together, and cross-entropy: what one network loses at 4 bits depends on its seed and on the CPU that trained it."""
    options = argparse.Namespace(
        width=6, blocks=5, epochs=4, retrain_epochs=3, types=["INT4", "INT4"], per_channel=False
    )
    seeds = [qat.one_seed(seed, options, tmp_path) for seed in (1, 2)]
    mean = {name: np.mean([found[f"{name}, loss"] for found in seeds]) for name in ("float", "calibrated", "trained")}
    assert min(found["float"] for found in seeds) > 0.9
    assert mean["calibrated"] > 1.3 * mean["float"]
    assert mean["trained"] < (mean["float"] + mean["calibrated"]) / 2
    for found in seeds:
        assert found["trained"] == pytest.approx(found["trained, PyTorch"], abs=1.5 / 360), (
            "a tie of two scores may fall either way"
        )


def test_every_prediction_is_pytorch_s_in_evaluation(tmp_path):
    images, labels, tested, _ = digits.digits()
    torch.manual_seed(0)
    model = digits.DepthwiseNet(6, 1)
    digits.train(model, images, labels, 3, 0.01)
    config = tmp_path / "config.json"
    qat.retrain_config(config, model, images[:64], ("INT8", "INT8"), per_channel=True)
    trained = qat.create_quant_retrain_model(config, model, tmp_path / "r.txt", images[:64])
    digits.train(trained, images, labels, 1, 0.002)
    qat.save_quant_retrain_model(config, trained, tmp_path / "r.txt", tmp_path / "m", images[:64], **qat.NAMES)
    (got,) = run_onnx(tmp_path / "m_fake_quant_model.onnx", {"image": tested.numpy()})
    with torch.no_grad():
        expected = trained.eval()(tested).numpy()
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 0.05 * np.ptp(expected)
    assert clear.mean() > 0.9
    assert np.array_equal(got.argmax(1)[clear], expected.argmax(1)[clear])
    assert np.isclose(got, expected, atol=1e-4 * np.ptp(expected)).mean() > 0.95


def test_the_example_runs(tmp_path):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "train_digits.py"), str(tmp_path)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # pytest-xdist runs one process a core already
    done = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    assert "ulq" in done.stdout
    assert (tmp_path / "digits_deploy_model.onnx").is_file()
