"""Train a small CNN for 4-bit quantization on scikit-learn's digits and export it: python train_digits.py OUT (needs calibrant[qat])."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from calibrant.amct import create_quant_retrain_config, create_quant_retrain_model, save_quant_retrain_model

folder, torch_seed = Path(sys.argv[1]), torch.manual_seed(0)
found = load_digits()
images, labels = torch.from_numpy(np.float32(found.images[:, None] / 16)), torch.from_numpy(found.target)
tested = torch.arange(len(labels)) % 5 == 0


def train(model: nn.Module, epochs: int, rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for part in torch.randperm(len(labels))[:1400].split(64):
            chosen = part[~tested[part]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.train()(images[chosen]), labels[chosen]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module) -> str:
    right = model.eval()(images[tested]).argmax(1) == labels[tested]
    return f"{right.float().mean():.1%}"


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
train(model, 5, 0.005)
print("float", accuracy(model))

config, example = folder / "config.json", images[:128]
create_quant_retrain_config(config, model, example)
layers = json.loads(config.read_text())
for name in ("4", "8"):  # the first convolution has one input channel, too few for 4 bits
    layers[name]["retrain_data_config"]["dst_type"] = layers[name]["retrain_weight_config"]["dst_type"] = "INT4"
config.write_text(json.dumps(layers, indent=4))

trained = create_quant_retrain_model(config, model, folder / "record.txt", example)
train(trained, 3, 0.001)
print("4 bits, trained", accuracy(trained))

run = save_quant_retrain_model(
    config, trained, folder / "record.txt", folder / "digits", example,
    input_names=["image"], output_names=["scores"], dynamic_axes={"image": {0: "n"}, "scores": {0: "n"}},
)  # fmt: skip
print(run.sql("select layer, role, algorithm, bits, count(*) as scales, round(min(sqnr_db), 1) as sqnr_db "
              "from quant_params join layers using (layer_id) where role <> 'bias' group by all order by layer, role"))  # fmt: skip
