"""Statistics to scales and offsets: IFMR, HFMG, ARQ, NUQ, DMQ and the plan that chooses among them.

Every fit is a pure function of statistics and frozen options. Names resolve on first use, so that importing this package compiles nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.quantizers.affine import Candidates, Fit, dequantize, quantize
    from calibrant.quantizers.arq import fit_arq
    from calibrant.quantizers.bias import quantize_bias
    from calibrant.quantizers.dmq import fit_dmq
    from calibrant.quantizers.hfmg import fit_hfmg
    from calibrant.quantizers.ifmr import fit_ifmr
    from calibrant.quantizers.nuq import NuqFit, fit_nuq
    from calibrant.quantizers.options import ArqOptions, DmqOptions, HfmgOptions, IfmrOptions, NuqOptions, UlqOptions
    from calibrant.quantizers.quality import DataQuality, WeightQuality, data_quality, weight_quality
    from calibrant.quantizers.ulq import fit_ulq

__all__ = [
    "ArqOptions",
    "Candidates",
    "DataQuality",
    "DmqOptions",
    "Fit",
    "HfmgOptions",
    "IfmrOptions",
    "NuqFit",
    "NuqOptions",
    "UlqOptions",
    "WeightQuality",
    "data_quality",
    "dequantize",
    "fit_arq",
    "fit_dmq",
    "fit_hfmg",
    "fit_ifmr",
    "fit_nuq",
    "fit_ulq",
    "quantize",
    "quantize_bias",
    "weight_quality",
]

_HOMES = {
    "affine": ("Candidates", "Fit", "dequantize", "quantize"),
    "arq": ("fit_arq",),
    "bias": ("quantize_bias",),
    "dmq": ("fit_dmq",),
    "hfmg": ("fit_hfmg",),
    "ifmr": ("fit_ifmr",),
    "nuq": ("NuqFit", "fit_nuq"),
    "options": ("ArqOptions", "DmqOptions", "HfmgOptions", "IfmrOptions", "NuqOptions", "UlqOptions"),
    "quality": ("DataQuality", "WeightQuality", "data_quality", "weight_quality"),
    "ulq": ("fit_ulq",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
