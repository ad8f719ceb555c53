"""ULQ: an activation between two clip ends that training learns (docs/algorithms.md 6), as numpy's side knows it.

The gradients are in `calibrant.quantizers.qat`, which needs PyTorch; what was learned becomes a fit here.
"""

import numpy as np

from calibrant.errors import RangeError
from calibrant.quantizers.affine import Fit, Float32Array, make_fit, range_parameters
from calibrant.quantizers.options import UlqOptions

__all__ = ["UlqOptions", "fit_ulq", "fit_weight_ulq"]

WEIGHT_EPSILON = np.float32(1e-6)  # the least step of a weight that ULQ trains (docs/algorithms.md 7)


def fit_ulq(clip_max: float, clip_min: float, options: UlqOptions) -> Fit:
    """Turn learned clip ends into scale and offset: ``scale = (max - min) / (2**bits - 1)`` in float32, zero within the range.

    The range that the codes represent is nudged by less than a step, so that zero has a code; it is what `clip_min` and `clip_max` of
    the fit say.

    Args:
        clip_max: the upper end, in the unit of the values.
        clip_min: the lower end, below `clip_max`.
        options: bits, with or without offset.

    Raises:
        RangeError: the ends are in the wrong order, or one is NaN or infinite.

    Example:
        >>> fit = fit_ulq(3.0, -1.0, UlqOptions())
        >>> float(fit.scale), int(fit.offset)
        (0.01568627543747425, -64)
    """
    if not (np.isfinite(clip_max) and np.isfinite(clip_min) and clip_min < clip_max):
        message = f"clip range [{clip_min}, {clip_max}]: two finite ends in ascending order were expected; train with a smaller rate"
        raise RangeError(message)
    ends = np.float32(clip_min), np.float32(clip_max)
    scale, offset = range_parameters(
        np.asarray(ends[0]), np.asarray(ends[1]), options.bits, asymmetric=options.asymmetric
    )
    return make_fit(scale, offset, options.bits, algorithm="ulq")


def fit_weight_ulq(scale: Float32Array, bits: int) -> Fit:
    """Turn the learned steps of a weight (``ulq_retrain``) into a fit: their magnitude, raised by 1e-6 where it is below that.

    Args:
        scale: shape () for one step, or (C,) with one an output channel.
        bits: width of a code: 4, 6, 7 or 8.

    Raises:
        RangeError: a step is NaN or infinite.

    Example:
        >>> fit_weight_ulq(np.float32([-0.5, 0.25]), 8).scale.tolist()
        [0.5, 0.25]
    """
    steps = np.abs(np.asarray(scale, np.float32))
    if not np.isfinite(steps).all():
        message = (
            f"{np.count_nonzero(~np.isfinite(steps))} learned weight steps are not finite; train with a smaller rate"
        )
        raise RangeError(message)
    steps = np.where(steps < WEIGHT_EPSILON, steps + WEIGHT_EPSILON, steps).astype(np.float32)
    return make_fit(
        steps, np.zeros(steps.shape, np.int32), bits, axis=0 if steps.ndim else None, algorithm="ulq_retrain"
    )
