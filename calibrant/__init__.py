"""Quantization calibration for Ascend NPUs as data engineering.

An ONNX model and calibration data in; statistics in SQL, scales that agree with AMCT and Ascend-ready ONNX out.
Nothing heavy is imported until a name is used.

Example:
    >>> import calibrant
    >>> run = calibrant.run("model.onnx", "samples.npz", run="model.run")  # doctest: +SKIP
    >>> run.sql("select layer, sqnr_db from quant_params join layers using (layer_id)")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.auto_calibration import auto_calibrate as auto_calibrate
    from calibrant.errors import CalibrantError as CalibrantError
    from calibrant.evaluation import evaluate as evaluate
    from calibrant.explain import explain as explain
    from calibrant.pipeline import capture as capture
    from calibrant.pipeline import export as export
    from calibrant.pipeline import fit as fit
    from calibrant.pipeline import plan as plan
    from calibrant.pipeline import run as run
    from calibrant.pipeline import stats as stats
    from calibrant.pipeline import verify as verify
    from calibrant.preprocess import preprocess as preprocess
    from calibrant.qat_advice import advise_qat as advise_qat
    from calibrant.qat_conversion import convert_qat as convert_qat
    from calibrant.reporting import report as report
    from calibrant.reporting import write_report as write_report
    from calibrant.run_difference import diff as diff
    from calibrant.sensitivity import sensitivity as sensitivity
    from calibrant.stats.run import Run as Run
    from calibrant.stats.run import open_run as open_run
    from calibrant.suggest import suggest as suggest

__version__ = "0.1.0"

__all__ = [
    "CalibrantError",
    "Run",
    "advise_qat",
    "auto_calibrate",
    "capture",
    "convert_qat",
    "diff",
    "evaluate",
    "explain",
    "export",
    "fit",
    "open_run",
    "plan",
    "preprocess",
    "report",
    "run",
    "sensitivity",
    "stats",
    "suggest",
    "verify",
    "write_report",
]

_HOMES = {
    "CalibrantError": "calibrant.errors",
    "advise_qat": "calibrant.qat_advice",
    "auto_calibrate": "calibrant.auto_calibration",
    "Run": "calibrant.stats.run",
    "capture": "calibrant.pipeline",
    "convert_qat": "calibrant.qat_conversion",
    "evaluate": "calibrant.evaluation",
    "diff": "calibrant.run_difference",
    "fit": "calibrant.pipeline",
    "open_run": "calibrant.stats.run",
    "plan": "calibrant.pipeline",
    "report": "calibrant.reporting",
    "run": "calibrant.pipeline",
    "verify": "calibrant.pipeline",
    "write_report": "calibrant.reporting",
}
_ROOMS = ("explain", "export", "ingest", "preprocess", "proto", "quantizers", "sensitivity", "stats", "suggest")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"calibrant.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    message = f"module 'calibrant' has no attribute '{name}'"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted(__all__)
