"""``FORCE_FP16_QUANT``: factors as an NPU holds them that scales in float16 (docs/algorithms.md 11.5 and 1.4).

The step of the data is one of float16, or the square of one where it is out of float16's range; the dequant scale keeps the 19
upper bits of its float32, cut off rather than rounded.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from calibrant.quantizers.affine import Fit, make_fit

FORCED: Final = "FORCE_FP16_QUANT"
_LEAST, _GREATEST = 2.0**-14, 65504.0
_KEPT = np.uint32(0xFFFFE000)
Float32Array = npt.NDArray[np.float32]


def half_scale(scale: np.float32) -> np.float32:
    """Return the step of float16 that stands for a step.

    Example:
        >>> [f"{half_scale(np.float32(step)):.8g}" for step in (0.0356078, 1e-5, 1e5)]
        ['0.035614014', '1.0000673e-05', '100014.06']
    """
    if _LEAST <= float(scale) <= _GREATEST:
        return np.float32(np.float16(scale))
    root = np.float32(np.float16(np.sqrt(np.float32(scale))))
    return np.float32(root * root)


def half_fit(fit: Fit) -> Fit:
    """Return a fit of data, per tensor, with its step in float16; the offset stays."""
    scale = np.asarray(half_scale(np.float32(fit.scale)), np.float32)
    return make_fit(scale, fit.offset, fit.bits, loss=fit.loss, algorithm=fit.algorithm, candidates=fit.candidates)


def dequant_factors(scale_d: np.float32, scale_w: npt.ArrayLike, *, half: bool = False) -> Float32Array:
    """Return ``float32(scale_d * scale_w)``, with the lower 13 bits cut off for `half`.

    Args:
        scale_d: of the data.
        scale_w: of the weight, shape (1,) or (C,); the result has the same.
        half: whether the NPU scales in float16.

    Example:
        >>> hex(dequant_factors(np.float32(0.1), [1], half=True).view(np.uint32)[0])
        '0x3dccc000'
    """
    found = (np.float32(scale_d) * np.asarray(scale_w, np.float32)).astype(np.float32)
    return (found.view(np.uint32) & _KEPT).view(np.float32) if half else found
