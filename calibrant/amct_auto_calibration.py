"""AMCT's `accuracy_based_auto_calibration` with its argument names, and its three result files as valid JSON."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.auto_calibration import auto_calibrate
from calibrant.errors import ConfigError, ExportError, nearest
from calibrant.export.files import export_files
from calibrant.fallback.course import config_file as auto_config_file
from calibrant.fallback.outcome import AutoCalibration
from calibrant.fallback.user_evaluator import AutoCalibrationEvaluatorBase
from calibrant.stats.events import Notice, Progress, no_notice, no_progress
from calibrant.whole_files import whole_file

if TYPE_CHECKING:
    from calibrant.fallback.own_strategy import Strategy
    from calibrant.ingest.data import Data

PathLike = str | os.PathLike[str]

_NAME: Final = "accuracy_based_auto_calibration"
_LOG_FOLDER: Final = "amct_log"  # of the working folder
_SENSITIVITIES: Final = {"CosineSimilarity": "amct_similarity", "SQNR": "sqnr_db"}
_STRATEGIES: Final = {"BinarySearch": "binary", "Greedy": "greedy"}


def accuracy_based_auto_calibration(
    model_file: PathLike,
    model_evaluator: object,
    config_file: PathLike,
    record_file: PathLike,
    save_dir: PathLike,
    strategy: "str | Strategy" = "BinarySearch",
    sensitivity: str = "CosineSimilarity",
    *,
    data: "Data | None" = None,
    run: PathLike | None = None,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> AutoCalibration:
    """Quantize a model and roll the most sensitive layers back until an evaluator is content, as AMCT does.

    The record goes to `record_file`, the models and the other files of an export to the prefix `save_dir`. The three result files
    are AMCT's by name and place: ``amct_log/accuracy_based_auto_calibration_record.json`` in the working folder (a list with an
    entry a step; AMCT's own file is several documents in a row) and, in the folder of `save_dir`, the ranking and the final
    config.json. Where every layer had to be rolled back, models of an earlier export at `save_dir` are deleted, as AMCT does.

    Args:
        model_file: an ONNX file.
        model_evaluator: an object with `calibration`, `evaluate` and `metric_eval`.
        config_file: the config.json of `create_quant_config`, or a quant.cfg.
        record_file: where the record is to be written.
        save_dir: path prefix of the models.
        strategy: ``BinarySearch``, ``Greedy`` (ours), or an object with `initialize` and `update_quant_config`.
        sensitivity: ``CosineSimilarity`` (0.5 + 0.5 cos of the layer alone, float against quantized) or ``SQNR`` (ours); greedy
            takes SQNR.
        data: calibration data; None: what `calibration` feeds the float model.
        run: where the run is to stay; None: a temporary folder in that of `save_dir`, deleted at the end.
        progress: called as ``progress(stage, done, total)``.
        notice: told of each step.

    Returns:
        What was found; AMCT returns nothing. Its run is gone where `run` is None.

    Raises:
        ConfigError: no such strategy or sensitivity, or as `calibrant.auto_calibrate`.

    Example:
        >>> accuracy_based_auto_calibration("m.onnx", evaluator, "config.json", "record.txt", "out/m")  # doctest: +SKIP
    """
    chosen = _chosen(strategy, _STRATEGIES, "strategy") if isinstance(strategy, str) else strategy
    measure = "sqnr_db" if chosen == "greedy" else _chosen(sensitivity, _SENSITIVITIES, "sensitivity")
    prefix = os.fspath(save_dir)
    with _run_folder(run, export_files(prefix).deploy.parent) as folder:
        found = auto_calibrate(
            model_file, data, evaluator=model_evaluator, strategy=chosen, view="isolated", config=config_file, run=folder,  # type: ignore[arg-type]  # checked
            prefix=prefix, rank_by=measure, rank_always=True, progress=progress, notice=notice,
        )  # fmt: skip
        _write_results(found, prefix, Path(record_file))
    return found


def _chosen(given: object, known: Mapping[str, str], what: str) -> str:
    if not isinstance(given, str):
        message = f"{what}: objects of AMCT's classes are not taken, got {type(given).__name__}; expected one of {', '.join(known)}"
        raise ConfigError(message)
    if given not in known:
        message = f"{what}: '{given}' is none{nearest(given, known)}; expected one of {', '.join(known)}"
        raise ConfigError(message)
    return known[given]


@contextmanager
def _run_folder(given: PathLike | None, beside: Path) -> Iterator[Path]:
    """Give the run folder; a temporary one is deleted at the end."""
    if given is not None:
        yield Path(given)
        return
    beside.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="temp", dir=beside))
    try:
        yield folder / "run"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_results(found: AutoCalibration, prefix: str, record_file: Path) -> None:
    files = export_files(prefix)
    folder = files.deploy.parent
    _write_json(Path(_LOG_FOLDER) / f"{_NAME}_record.json", _history(found))
    ranking = [] if found.sensitivity is None else found.sensitivity.values.items()
    _write_json(folder / f"{_NAME}_ranking_information.json", [[layer, _number(value)] for layer, value in ranking])
    final = folder / f"{_NAME}_final_config.json"
    if found.fit is None:
        stale = [getattr(files, field.name) for field in fields(files)]
        for path in [*stale, auto_config_file(prefix), final, record_file]:
            path.unlink(missing_ok=True)
        return
    _write(final, files.config.read_text(encoding="utf-8"))
    if record_file.resolve() != files.record.resolve():
        _write(record_file, files.record.read_text(encoding="utf-8"))


def _history(found: AutoCalibration) -> list[dict[str, Any]]:
    steps = [*found.steps] if found.fit is not None else [*found.steps, found.after]
    return [
        {
            "roll_back_config": dict(found.stays_quantized(step)),
            "metric_eval": [step.judgement.ok, _number(step.judgement.loss)],
        }
        for step in steps
    ]


def _number(value: float) -> float | None:
    """Return a number that JSON has; what is not finite is null."""
    return value if isfinite(value) else None


def _write_json(path: Path, document: object) -> None:
    _write(path, json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror or error}); choose a writable place"
        raise ExportError(message) from error


__all__ = ["AutoCalibrationEvaluatorBase", "accuracy_based_auto_calibration"]
