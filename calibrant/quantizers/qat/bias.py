"""The bias that the exported models compute with: int32 codes of the accumulator, BatchNormalization folded in.

In evaluation mode a trained layer uses it, so that PyTorch's accuracy is that of the exported models; at 4 bits the step of a bias is
wide enough to matter.
"""

import torch
from torch import Tensor, nn


def norm_factor(norm: nn.Module) -> Tensor:
    """Return what a BatchNorm multiplies each channel by: ``gamma / sqrt(var + eps)``, float32 of shape (C,)."""
    factor = torch.rsqrt(norm.running_var.float() + norm.eps)
    return factor if norm.weight is None else factor * norm.weight.float()


def coded_bias(bias: Tensor | None, step: Tensor, norm: nn.Module | None) -> Tensor | None:
    """Return the bias with which a layer computes what the exported models compute, up to float32 rounding.

    Args:
        bias: of the layer, shape (C,), or None.
        step: what one unit of the accumulator is worth, ``scale_d * scale_w``, shape (C,) or (1,).
        norm: the BatchNorm that alone reads the layer, or None; the exported bias is ``(bias - mean) * factor + beta``, its step
            ``step * |factor|``.

    Returns:
        shape (C,), to be used before the BatchNorm; None where the exported layer has no bias.

    Example:
        >>> coded_bias(torch.tensor([0.26, -0.1]), torch.tensor([0.1]), None).tolist()
        [0.30000001192092896, -0.10000000149011612]
    """
    if norm is None:
        return None if bias is None else (torch.round(bias.float() / step) * step).to(bias.dtype)
    factor, start = norm_factor(norm), torch.zeros_like(norm.running_mean) if bias is None else bias
    folded = (start.float() - norm.running_mean.float()) * factor
    folded = folded if norm.bias is None else folded + norm.bias.float()
    wide = step * torch.where(factor == 0, torch.ones_like(factor), factor.abs())
    lost = torch.round(folded / wide) * wide - folded
    kept = torch.where(factor == 0, torch.zeros_like(factor), lost / factor)
    return (start.float() + kept).to(start.dtype)
