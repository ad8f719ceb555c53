"""AMCT's names, so that one import line changes: ``from calibrant.amct import create_quant_retrain_model``.

Arguments have AMCT's names and order; what is calibrant's own is given by keyword. Training needs the extra ``calibrant[qat]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.amct_auto_calibration import AutoCalibrationEvaluatorBase, accuracy_based_auto_calibration
    from calibrant.qat_conversion import convert_qat_model
    from calibrant.qat_export import save_quant_retrain_model
    from calibrant.quantizers.qat.retrain import (
        create_quant_retrain_config,
        create_quant_retrain_model,
        restore_quant_retrain_model,
    )

__all__ = [
    "AutoCalibrationEvaluatorBase",
    "accuracy_based_auto_calibration",
    "convert_qat_model",
    "create_quant_retrain_config",
    "create_quant_retrain_model",
    "restore_quant_retrain_model",
    "save_quant_retrain_model",
]

_TRAINING = "calibrant.quantizers.qat"
_HOMES = {
    "AutoCalibrationEvaluatorBase": "calibrant.amct_auto_calibration",
    "accuracy_based_auto_calibration": "calibrant.amct_auto_calibration",
    "convert_qat_model": "calibrant.qat_conversion",
    "create_quant_retrain_config": _TRAINING,
    "create_quant_retrain_model": _TRAINING,
    "restore_quant_retrain_model": _TRAINING,
    "save_quant_retrain_model": "calibrant.qat_export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
