"""Print what training wins back: a depthwise CNN on scikit-learn's digits, 4 bits after training against 4 bits trained.

The accuracies of all but the float model are onnxruntime's, of the exported fake-quant models.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

import calibrant
from bench import digits
from calibrant.amct import create_quant_retrain_config, create_quant_retrain_model, save_quant_retrain_model
from calibrant.ingest.session import plain_options
from calibrant.quantizers.qat.layers import quantized_layers

NAMES = {"input_names": ["image"], "output_names": ["scores"], "dynamic_axes": {"image": {0: "n"}, "scores": {0: "n"}}}

WORTH_TRAINING = 1.5  # times the cross-entropy: below, calibration loses too little to show anything


def retrain_config(
    path: Path, model: torch.nn.Module, images: torch.Tensor, types: tuple[str, str], per_channel: bool
) -> None:
    """Write the configuration of a pair of types."""
    create_quant_retrain_config(path, model, images)
    content = json.loads(path.read_text())
    for layer in content.values():
        if isinstance(layer, dict):
            layer["retrain_data_config"]["dst_type"], layer["retrain_weight_config"]["dst_type"] = types
            layer["retrain_weight_config"]["channel_wise"] &= per_channel
    path.write_text(json.dumps(content))


def calibration_config(path: Path, model: torch.nn.Module) -> None:
    """Write the configuration that quantizes the same layers to the same widths without training."""
    content: dict[str, Any] = {"version": 1, "batch_num": 1}
    for name, layer in quantized_layers(model).items():
        data, weight = layer.settings.data, layer.settings.weight
        content[name] = {
            "quant_enable": True,
            "activation_quant_params": {"num_bits": data.bits, "act_algo": "ifmr"},
            "weight_quant_params": {"num_bits": weight.bits, "channel_wise": weight.channel_wise},
        }
    path.write_text(json.dumps(content))


def exported_scores(prefix: str, images: torch.Tensor) -> torch.Tensor:
    """Return what an exported fake-quant model gives."""
    session = ort.InferenceSession(f"{prefix}_fake_quant_model.onnx", plain_options())
    return torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def one_seed(seed: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Train, quantize and train for quantization with one seed."""
    images, labels, tested, answers = digits.digits()
    torch.manual_seed(seed)
    model = digits.DepthwiseNet(options.width, options.blocks)
    digits.train(model, images, labels, options.epochs, 0.01, seed)
    some = images[:256]
    retrain_config(folder / "retrain.json", model, some, tuple(options.types), options.per_channel)
    started = time.perf_counter()
    trained = create_quant_retrain_model(folder / "retrain.json", model, folder / "record.txt", some)
    calibration_config(folder / "quant.json", trained)
    digits.train(trained, images, labels, options.retrain_epochs, 0.004, seed)
    seconds = time.perf_counter() - started
    prefix = str(folder / "trained")
    run = save_quant_retrain_model(folder / "retrain.json", trained, folder / "record.txt", prefix, some, **NAMES)
    scores = {
        "float": digits.scores(model, tested),
        "calibrated": calibrated(model, trained, some, tested, folder),
        "trained": exported_scores(prefix, tested),
        "trained, PyTorch": digits.scores(trained, tested),
    }
    return {
        **{name: digits.accuracy(found, answers) for name, found in scores.items()},
        **{f"{name}, loss": digits.loss(found, answers) for name, found in scores.items()},
        "seconds": seconds,
        "samples": run.info.samples,
    }


def calibrated(
    model: torch.nn.Module, trained: torch.nn.Module, some: torch.Tensor, tested: torch.Tensor, folder: Path
) -> torch.Tensor:
    """Return the scores after calibration alone, on the same samples."""
    from calibrant.quantizers.qat.trained import trained_layers, write_onnx
    from calibrant.trained_graph import name_layers

    path = folder / "float.onnx"
    write_onnx(model.eval(), path, some, **NAMES)
    weights = {one.settings.layer: one.values for one in trained_layers(trained)}
    parameters = dict(model.named_parameters())
    name_layers(path, {name: parameters[f"{name}.weight"].detach().numpy() for name in weights})
    calibrant.run(
        path,
        [{"image": some.numpy()}],
        run=folder / "ptq.run",
        config=folder / "quant.json",
        prefix=str(folder / "ptq"),
        restart=True,
    )
    return exported_scores(str(folder / "ptq"), tested)


def main() -> int:
    """Print a row a seed and the mean; 1 where calibration loses too little to show anything, or training wins back too little."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs=2, default=["INT4", "INT4"], metavar=("DATA", "WEIGHT"))
    parser.add_argument("--per-channel", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--retrain-epochs", type=int, default=10)
    options = parser.parse_args()
    logging.getLogger("calibrant.qat").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # images of 8 by 8 give a second thread nothing to do
    started, rows = time.perf_counter(), []
    print("| seed | float | calibrated | trained | trained, PyTorch | training, s |\n|---|---|---|---|---|---|")
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(one_seed(seed, options, Path(folder)))
        print_row(str(seed), rows[-1])
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    print_row("mean", mean)
    lost, won = mean["float"] - mean["calibrated"], mean["trained"] - mean["calibrated"]
    same = all(abs(row["trained"] - row["trained, PyTorch"]) < 1e-6 for row in rows)  # float32 against float64
    print(f"\ncalibration loses {100 * lost:.1f} points, training wins {100 * won:.1f} of them back ({won / lost:.0%})")
    print(
        f"cross-entropy: float {mean['float, loss']:.3f}, calibrated {mean['calibrated, loss']:.3f}, trained {mean['trained, loss']:.3f}"
    )
    print(f"accuracy in PyTorch's evaluation and of the exported model: {'the same' if same else 'NOT the same'}")
    print(f"{time.perf_counter() - started:.0f} s in all, one thread")
    return int(mean["calibrated, loss"] < WORTH_TRAINING * mean["float, loss"] or won < lost / 2)


def print_row(name: str, row: dict[str, float]) -> None:
    """Print one row of the table."""
    shares = " | ".join(f"{100 * row[column]:.2f}" for column in ("float", "calibrated", "trained", "trained, PyTorch"))
    print(f"| {name} | {shares} | {row['seconds']:.1f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
