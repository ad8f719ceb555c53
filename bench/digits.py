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


class Inverted(nn.Module):
    """Widen, filter each channel alone, narrow; added to its input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        wide = 3 * inputs
        self.widen = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.filter = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.ReLU6())
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds = inputs == outputs and stride == 1

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result = self.narrow(self.filter(self.widen(images)))
        return images + result if self.adds else result


class DepthwiseNet(nn.Module):
    """A convolution, inverted residuals with depthwise filters, a Linear."""

    def __init__(self, width: int = 6, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6())
        first = [Inverted(width, width) for _ in range(blocks)]
        second = [Inverted(2 * width, 2 * width) for _ in range(blocks)]
        self.blocks = nn.Sequential(*first, Inverted(width, 2 * width, 2), *second)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float, seed: int = 0
) -> None:
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
def scores(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return what a model gives in evaluation mode."""
    return model.eval()(images)


def accuracy(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of right answers."""
    return float((scores.argmax(1) == labels).double().mean())


def loss(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the mean cross-entropy, which tells more than how many answers are right."""
    return float(nn.functional.cross_entropy(scores.double(), labels))
