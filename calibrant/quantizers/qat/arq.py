"""ARQ as a differentiable function: a weight rounded between its own extremes, the gradient passed straight through."""

from typing import Any

import torch
from torch import Tensor

from calibrant.quantizers.affine import FLT_EPSILON, code_range


def arq_scale(rows: Tensor, bits: int) -> Tensor:
    """Return the step of each row: `calibrant.quantizers.fit_arq` without offset, in torch (docs/algorithms.md 1.1).

    Args:
        rows: float32, shape (R, N), one row a step.
        bits: width of a code.

    Returns:
        float32, shape (R,).

    Example:
        >>> arq_scale(torch.tensor([[-1.0, 0.5], [0.0, 0.0]]), 8).tolist()
        [0.0078125, 1.0]
    """
    low, high = code_range(bits)
    least, greatest = rows.amin(dim=1), rows.amax(dim=1)
    steps = torch.where(greatest.abs() < least.abs(), torch.full_like(least, -low), torch.full_like(least, high))
    scale = torch.maximum(least.abs(), greatest.abs()) / steps
    return torch.where(scale < float(FLT_EPSILON), torch.ones_like(scale), scale)


def fake_quantize_arq(rows: Tensor, bits: int) -> Tensor:
    """Round a weight to the codes between its own extremes; the gradient is the one it is given (docs/algorithms.md 7).

    Args:
        rows: float32, shape (R, N), one row a step.
        bits: width of a code.

    Returns:
        float32, shape (R, N).

    Example:
        >>> fake_quantize_arq(torch.tensor([[-1.0, 0.502]]), 8).tolist()
        [[-1.0, 0.5]]
    """
    result: Tensor = _StraightThrough.apply(rows, bits)
    return result


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bits: int) -> Tensor:
        low, high = code_range(bits)
        scale = arq_scale(rows, bits).unsqueeze(1)
        return torch.clamp(torch.round(rows / scale), low, high) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
