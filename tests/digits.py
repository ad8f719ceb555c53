"""scikit-learn's digits and a small depthwise CNN, for what trains on real data."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, then those of the test: every fifth of 1,797 images of 8 by 8, in [0, 1]."""
    found = load_digits()
    images = torch.from_numpy((found.images / 16).astype(np.float32)[:, None])
    labels = torch.from_numpy(found.target.astype(np.int64))
    tested = torch.arange(len(labels)) % 5 == 0
    return images[~tested], labels[~tested], images[tested], labels[tested]


def _block(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


class DepthwiseNet(nn.Module):
    """A convolution, three depthwise separable ones, a Linear."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        wide = 2 * width
        self.stem = nn.Sequential(*_block(1, width, 3))
        self.first = nn.Sequential(*_block(width, width, 3, width), *_block(width, wide))
        self.second = nn.Sequential(*_block(wide, wide, 3, wide), *_block(wide, wide))
        self.third = nn.Sequential(*_block(wide, wide, 3, wide), *_block(wide, wide))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(wide, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.first(self.stem(images)))
        return self.head(self.third(self.second(features)).mean((2, 3)))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float, seed: int = 0) -> None:
    """Train with Adam and a one-cycle rate."""
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(images) // 64)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(images), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of right answers in evaluation mode."""
    return float((model.eval()(images).argmax(1) == labels).float().mean())
