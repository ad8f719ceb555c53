"""The quantizer of a layer's weight in training: ARQ anew at each step, or ULQ with learned steps."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.quantizers.affine import Fit
from calibrant.quantizers.arq import fit_arq
from calibrant.quantizers.options import ArqOptions
from calibrant.quantizers.qat.arq import arq_scale, fake_quantize_arq
from calibrant.quantizers.qat.settings import WeightSettings
from calibrant.quantizers.qat.ulq import fake_quantize_weight_ulq, learned_steps
from calibrant.quantizers.ulq import fit_weight_ulq
from calibrant.stats.weights import channels_first

_WEIGHT_FLOOR = 1e-6  # a first step below it becomes 1 (docs/algorithms.md 7)


class WeightQuantizer(nn.Module):
    """Rounds a weight in the forward pass; the float weight stays as it is.

    Attributes:
        settings: algorithm, bits, one scale or one an output channel.
        scale: the learned steps of ``ulq_retrain``, float32 of shape (C,) or (1,); None for ``arq_retrain``.
        started: whether `scale` has taken its first values, which are ARQ's of the weight in the first forward pass.

    Args:
        settings: how to quantize.
        channels: number of output channels.
        transposed: whether the weight is of a ConvTranspose: (Cin, Cout / groups, ...).
        groups: of the layer.
    """

    scale: nn.Parameter | None
    started: Tensor

    def __init__(self, settings: WeightSettings, channels: int, *, transposed: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.settings = settings
        self._transposed = transposed
        self._groups = groups
        learned = settings.algorithm == "ulq_retrain"
        count = channels if settings.channel_wise else 1
        self.register_parameter("scale", nn.Parameter(torch.ones(count)) if learned else None)
        self.register_buffer("started", torch.tensor(False)) if learned else None

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with each value at a code's, in its own layout and type."""
        rows = self._rows(weight.float())
        if self.scale is None:
            return self._back(fake_quantize_arq(rows, self.settings.bits), weight)
        if not bool(self.started):
            self._start(rows)
        return self._back(fake_quantize_weight_ulq(rows, self.scale.float(), self.settings.bits), weight)

    def scales(self, weight: Tensor) -> Tensor:
        """Return the steps of a weight, float32 of shape (C,) or (1,)."""
        if self.scale is not None and bool(self.started):
            return learned_steps(self.scale.detach().float())
        return arq_scale(self._rows(weight.detach().float()), self.settings.bits)

    def fit(self, weight: Tensor) -> Fit:
        """Return the scales of a weight as a fit, its output channels on axis 0.

        Raises:
            DataError: the weight holds NaN or infinity.
            RangeError: a learned step is not finite.
        """
        settings = self.settings
        if self.scale is not None and bool(self.started):
            steps = self.scale.detach().float().cpu().numpy()
            return fit_weight_ulq(steps if settings.channel_wise else steps.reshape(()), settings.bits)
        values = np.asarray(weight.detach().float().cpu().numpy(), np.float32)
        kind = "ConvTranspose" if self._transposed else "Conv"
        found = fit_arq(channels_first(values, kind, self._groups), ArqOptions(settings.bits, settings.channel_wise))
        return replace(found, algorithm=settings.algorithm)

    @torch.no_grad()
    def _start(self, rows: Tensor) -> None:
        scale = arq_scale(rows, self.settings.bits)
        self.scale.copy_(torch.where(scale < _WEIGHT_FLOOR, torch.ones_like(scale), scale))  # type: ignore[union-attr]
        self.started.fill_(True)

    def _rows(self, weight: Tensor) -> Tensor:
        """Return one row a scale."""
        if not self.settings.channel_wise:
            return weight.reshape(1, -1)
        if not self._transposed:
            return weight.flatten(1)
        grouped = weight.reshape(self._groups, weight.shape[0] // self._groups, weight.shape[1], -1)
        return grouped.transpose(1, 2).reshape(self._groups * weight.shape[1], -1)

    def _back(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Undo `_rows`."""
        if self._transposed and self.settings.channel_wise:
            inputs, outputs = weight.shape[0] // self._groups, weight.shape[1]
            rows = rows.reshape(self._groups, outputs, inputs, -1).transpose(1, 2)
        return rows.reshape(weight.shape).to(weight.dtype)
