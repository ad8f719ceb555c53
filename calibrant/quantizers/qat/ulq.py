"""ULQ as differentiable functions: of an activation with two learned clip ends, of a weight with learned steps.

Forward and gradients: docs/algorithms.md 6 and 7. They agree with AMCT's on its vectors; the sums are float32, as torch sums.
"""

from typing import Any

import torch
from torch import Tensor

from calibrant.quantizers.affine import FLT_EPSILON, code_range
from calibrant.quantizers.ulq import WEIGHT_EPSILON

_EPSILON = float(FLT_EPSILON)
_WEIGHT_EPSILON = float(WEIGHT_EPSILON)


def fake_quantize_ulq(
    values: Tensor, clip_max: Tensor, clip_min: Tensor, bits: int, *, asymmetric: bool = True
) -> Tensor:
    """Round an activation to the codes between two clip ends; differentiable in all three.

    With ``U`` and ``L`` for values above and below the representable range, ``v`` the value or the end that cut it and
    ``e = (round(v / s) - v / s) / (2**bits - 1)``: the gradient of the values passes unchanged inside the range and is 0 outside, that of
    `clip_max` is ``sum g * (e + U)``, that of `clip_min` ``sum g * (L - e)``. Without an offset the step follows from the larger end alone,
    and that end alone has a gradient: the derivative of the same rounding with respect to the step.

    Args:
        values: float32, any shape.
        clip_max: float32, shape (); at least 0.
        clip_min: float32, shape (); at most 0.
        bits: width of a code: 4, 8 or 16.
        asymmetric: with an offset or not.

    Returns:
        float32, the shape of `values`.

    Example:
        >>> x = torch.tensor([-1.5, 0.0, 0.7, 3.2])
        >>> [round(v, 4) for v in fake_quantize_ulq(x, torch.tensor(3.0), torch.tensor(-1.0), 8).tolist()]
        [-1.0039, 0.0, 0.7059, 2.9961]
    """
    result: Tensor = (_Asymmetric if asymmetric else _Symmetric).apply(values, clip_max, clip_min, bits)
    return result


def ulq_parameters(clip_max: Tensor, clip_min: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return scale and offset of a range, both float32 of shape (): `range_parameters` with an offset, in torch.

    Example:
        >>> [float(part) for part in ulq_parameters(torch.tensor(3.0), torch.tensor(-1.0), 8)]
        [0.01568627543747425, -64.0]
    """
    low, high = code_range(bits)
    lower, upper = clip_min.clamp(max=0.0), clip_max.clamp(min=0.0)
    scale = (upper - lower) / (high - low)
    scale = torch.where(scale < _EPSILON, torch.ones_like(scale), scale)
    return scale, low - torch.round(lower / scale)


def symmetric_parameters(clip_max: Tensor, clip_min: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scale of a range without offset and by how many steps the larger end was divided, both of shape ().

    Example:
        >>> [float(part) for part in symmetric_parameters(torch.tensor(1.0), torch.tensor(-2.0), 8)]
        [0.015625, 128.0]
    """
    low, high = code_range(bits)
    negative = clip_max.abs() < clip_min.abs()
    steps = torch.where(negative, torch.full_like(clip_max, -low), torch.full_like(clip_max, high))
    scale = torch.maximum(clip_max.abs(), clip_min.abs()) / steps
    return torch.where(scale < _EPSILON, torch.ones_like(scale), scale), steps


def ulq_scale(clip_max: Tensor, clip_min: Tensor, bits: int, asymmetric: bool) -> Tensor:
    """Return the scale of a range, float32 of shape ()."""
    return (ulq_parameters if asymmetric else symmetric_parameters)(clip_max, clip_min, bits)[0]


class _Asymmetric(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, clip_max: Tensor, clip_min: Tensor, bits: int) -> Tensor:
        low, high = code_range(bits)
        scale, offset = ulq_parameters(clip_max, clip_min, bits)
        # copies of the ends: the next forward pass may mend them in place before this one's backward pass
        ctx.save_for_backward(values, clip_max.clone(), clip_min.clone(), scale, offset)
        ctx.bits = bits
        return (torch.clamp(torch.round(values / scale) + offset, low, high) - offset) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        values, clip_max, clip_min, scale, offset = ctx.saved_tensors
        low, high = code_range(ctx.bits)
        above, below = values > scale * (high - offset), values < scale * (low - offset)
        steps = torch.where(above, clip_max, torch.where(below, clip_min, values)) / scale
        error = (torch.round(steps) - steps) / (high - low)
        to_values = gradient * ~(above | below)
        return to_values, (gradient * (error + above)).sum(), (gradient * (below.to(error) - error)).sum(), None


class _Symmetric(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, clip_max: Tensor, clip_min: Tensor, bits: int) -> Tensor:
        low, high = code_range(bits)
        scale, steps = symmetric_parameters(clip_max, clip_min, bits)
        ctx.save_for_backward(values, scale, steps, clip_max.abs() < clip_min.abs())
        ctx.bits = bits
        return torch.clamp(torch.round(values / scale), low, high) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        values, scale, steps, negative = ctx.saved_tensors
        low, high = code_range(ctx.bits)
        ratio = values / scale
        above, below = ratio > high, ratio < low
        error = torch.where(above, high, torch.where(below, low, torch.round(ratio) - ratio))
        by_end = (gradient * error).sum() / steps
        nothing = torch.zeros_like(by_end)
        to_values = gradient * ~(above | below)
        return to_values, torch.where(negative, nothing, by_end), torch.where(negative, -by_end, nothing), None


def fake_quantize_weight_ulq(rows: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Round a weight to multiples of learned steps; differentiable in both.

    The gradient of the weight is the one it is given, outside the range too. That of a step is, with ``h = 2**(bits - 1)`` and N
    elements a row, ``sum g * d / sqrt(N * (h - 1))``, where ``d`` is ``round(w / s) - w / s`` inside, ``h - 1`` above and ``-h`` below.

    Args:
        rows: float32, shape (R, N), one row a step.
        scale: float32, shape (R,). The magnitude counts; one below 1e-6 is raised by that.
        bits: width of a code.

    Returns:
        float32, shape (R, N).

    Example:
        >>> fake_quantize_weight_ulq(torch.tensor([[-1.5, 0.1]]), torch.tensor([0.01]), 8).tolist()
        [[-1.2799999713897705, 0.09999999403953552]]
    """
    result: Tensor = _Weight.apply(rows, scale, bits)
    return result


def learned_steps(scale: Tensor) -> Tensor:
    """Return the steps that learned ones stand for: their magnitude, raised by 1e-6 where it is below that."""
    steps = scale.abs()
    return torch.where(steps < _WEIGHT_EPSILON, steps + _WEIGHT_EPSILON, steps)


class _Weight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, bits: int) -> Tensor:
        low, high = code_range(bits)
        steps = learned_steps(scale).unsqueeze(1)
        ctx.save_for_backward(rows, steps, scale)
        ctx.bits = bits
        return torch.clamp(torch.round(rows / steps), low, high) * steps

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, steps, scale = ctx.saved_tensors
        low, high = code_range(ctx.bits)
        ratio = rows / steps
        slope = torch.where(ratio > high, high, torch.where(ratio < low, low, torch.round(ratio) - ratio))
        to_scale = (gradient * slope).sum(dim=1) / (rows.shape[1] * high) ** 0.5
        sign = torch.where(scale < 0, -1.0, 1.0)
        return gradient, to_scale * sign, None
