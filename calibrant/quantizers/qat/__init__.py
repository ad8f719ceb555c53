"""Quantization-aware training in PyTorch: ULQ for activations, ARQ or ULQ for weights (docs/qat.md).

Needs the extra ``calibrant[qat]``; nothing outside this package imports PyTorch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from calibrant.errors import DependencyError

if TYPE_CHECKING:
    from calibrant.quantizers.qat.arq import fake_quantize_arq
    from calibrant.quantizers.qat.data_quantizer import DataQuantizer
    from calibrant.quantizers.qat.retrain import (
        create_quant_retrain_config,
        create_quant_retrain_model,
        restore_quant_retrain_model,
    )
    from calibrant.quantizers.qat.trained import TrainedLayer, float_model, trained_layers
    from calibrant.quantizers.qat.ulq import fake_quantize_ulq, fake_quantize_weight_ulq
    from calibrant.quantizers.qat.weight_quantizer import WeightQuantizer

__all__ = [
    "DataQuantizer",
    "TrainedLayer",
    "WeightQuantizer",
    "create_quant_retrain_config",
    "create_quant_retrain_model",
    "fake_quantize_arq",
    "fake_quantize_ulq",
    "fake_quantize_weight_ulq",
    "float_model",
    "restore_quant_retrain_model",
    "trained_layers",
]

_HOMES = {
    "arq": ("fake_quantize_arq",),
    "data_quantizer": ("DataQuantizer",),
    "retrain": ("create_quant_retrain_config", "create_quant_retrain_model", "restore_quant_retrain_model"),
    "trained": ("TrainedLayer", "float_model", "trained_layers"),
    "ulq": ("fake_quantize_ulq", "fake_quantize_weight_ulq"),
    "weight_quantizer": ("WeightQuantizer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if find_spec("torch") is None:
    _MESSAGE = "quantization-aware training needs PyTorch, which is not installed; pip install 'calibrant[qat]' (see docs/qat.md)"
    raise DependencyError(_MESSAGE)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
