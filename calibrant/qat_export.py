"""A trained PyTorch model to the models for Ascend, the ordinary way: float ONNX, a run, its fit, export and verify.

The learned scales stand in the run's tables as any fit's do, so that SQL and reports show them.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.errors import ConfigError, ExportError
from calibrant.stats.events import Event, Progress, no_progress
from calibrant.stats.run import FitRecord, Run

if TYPE_CHECKING:
    from torch import nn

    from calibrant.ingest.data import Data
    from calibrant.quantizers.qat.settings import LayerSettings
    from calibrant.quantizers.qat.trained import TrainedLayer

PathLike = str | os.PathLike[str]
Notice = Callable[[Event], None]
Weights = Mapping[str, Any]  # layer -> array
FIT: Final = "qat"  # the name of the fit in the run


@dataclass(frozen=True, slots=True)
class OnnxNames:
    """How the exported model names its values.

    Attributes:
        inputs: names of the inputs, or None for PyTorch's.
        outputs: names of the outputs, or None.
        dynamic_axes: axes of any length, as for ``torch.onnx.export``; None: the shapes of the example hold.
    """

    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    dynamic_axes: Any = None


def save_quant_retrain_model(
    config_file: PathLike,
    model: "nn.Module",
    record_file: PathLike,
    save_path: PathLike,
    input_data: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Any = None,
    *,
    run: PathLike | None = None,
    data: "Data | None" = None,
    strict_amct: bool = False,
    freeze: bool = False,
    notice: Notice | None = None,
    progress: Progress = no_progress,
) -> Run:
    """Write the models of a trained model, verified, and its run.

    Beside AMCT's files stand ``<save_path>_float_model.onnx`` and the run folder. BatchNormalization is folded into the layers and
    their scales; the layers keep their PyTorch names. Existing files are overwritten.

    Args:
        config_file: the retrain config.json that the training began with.
        model: what `create_quant_retrain_model` gave, trained; its mode and weights stay as they are.
        record_file: where to write the record, besides ``<save_path>_record.txt``.
        save_path: folder and beginning of the file names; an empty base name (``out/``) gives ``out/deploy_model.onnx``.
        input_data: a tensor, or a tuple of the arguments of ``forward``; the statistics of the run are of it, unless `data` is given.
        input_names: names of the ONNX model's inputs, or None.
        output_names: names of its outputs, or None.
        dynamic_axes: axes of any length, as for ``torch.onnx.export``.
        run: the run folder, by default ``<save_path>.run``; a run that stands there is replaced.
        data: samples for the statistics and for the verification, as for `calibrant.capture`.
        strict_amct: as the training began with.
        freeze: as the training began with.
        notice: called with each event; by default they are logged under ``calibrant.qat``.
        progress: called as ``progress(stage, done, total)``.

    Returns:
        The run; its fit is ``qat``.

    Raises:
        ConfigError: the configuration is not the one that the training began with, or does not fit the model.
        ExportError: the first batches were not run, the model cannot be quantized as trained, or the models do not verify.
        ModelError: PyTorch cannot write it as ONNX.
    """
    from calibrant.proto.retrain_json import read_retrain_json
    from calibrant.quantizers.qat.retrain import resolved_layers, say
    from calibrant.quantizers.qat.settings import SettingsOptions
    from calibrant.quantizers.qat.trained import float_model, sample_feeds, trained_layers

    trained = trained_layers(model)
    plain = float_model(model)
    resolved, seen = resolved_layers(config_file, plain, input_data, SettingsOptions(strict_amct, freeze))
    _check_settings(os.fspath(config_file), [one.settings for one in trained], resolved.settings)
    place, names = os.fspath(save_path), OnnxNames(input_names, output_names, dynamic_axes)
    found = {one.settings.layer: one.values for one in trained}
    weights = {one.layer: found[one.layer] for one in resolved.settings}  # in the order in which the layers run
    others = {
        name: plain.get_parameter(f"{name}.weight").numpy(force=True) for name in seen.trainable if name not in weights
    }
    source = _write_float(plain, place, input_data, names, (weights, others))
    feeds = _named_feeds(source, sample_feeds(input_data)) if data is None else data
    captured = _captured(source, feeds, Path(_run_folder(place) if run is None else run), progress)
    events = _fit(captured, read_retrain_json(os.fspath(config_file)), trained, [*seen.events, *resolved.events])
    say(events, notice)
    return _export(captured, place, Path(record_file), progress)


def _check_settings(config: str, trained: Iterable["LayerSettings"], given: Iterable["LayerSettings"]) -> None:
    """Refuse a configuration that is not the one of the training."""
    first, second = ({one.layer: one for one in settings} for settings in (trained, given))
    for layer in (*first, *second):
        if first.get(layer) != second.get(layer):
            message = f"{config}: layer '{layer}' is set otherwise than when the training began; give that configuration and its options"
            raise ConfigError(message)


def _base(prefix: str, name: str) -> str:
    """Return the path of another file of a prefix."""
    return f"{prefix}{name}" if prefix.endswith(("/", os.sep)) else f"{prefix}_{name}"


def _run_folder(prefix: str) -> str:
    return f"{prefix}qat.run" if prefix.endswith(("/", os.sep)) else f"{prefix}.run"


def _write_float(
    model: "nn.Module", prefix: str, input_data: Any, names: OnnxNames, weights: tuple[Weights, Weights]
) -> Path:
    from calibrant.quantizers.qat.trained import write_onnx
    from calibrant.trained_graph import name_layers
    from calibrant.whole_files import whole_file

    path = Path(_base(prefix, "float_model.onnx"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            write_onnx(model, partial, input_data, names.inputs, names.outputs, names.dynamic_axes)
            name_layers(partial, *weights)
    except OSError as error:
        message = f"export: cannot write to '{path}': {error.strerror or error}; choose another save_path"
        raise ExportError(message) from error
    return path


def _named_feeds(model: Path, arrays: Sequence[Any]) -> list[dict[str, Any]]:
    from calibrant.ingest.model import prepare_model

    inputs = prepare_model(model).inputs
    return [{one.name: array for one, array in zip(inputs, arrays, strict=True)}]


def _captured(model: Path, data: "Data", folder: Path, progress: Progress) -> Run:
    from calibrant.pipeline import capture

    return capture(model, data, run=folder, restart=True, progress=progress)


def _fit(run: Run, config: Any, trained: Sequence["TrainedLayer"], said: Iterable[Event]) -> tuple[Event, ...]:
    """Write the learned scales into the run; return what a person should know."""
    import hashlib

    from calibrant.proto.retrain_json import format_retrain_json
    from calibrant.quantizers.half_factors import FORCED
    from calibrant.trained_fit import trained_fit

    found = trained_fit(run, FIT, trained, half=config.fakequant_precision_mode == FORCED)
    run.replace_fit(FIT, found.frames)
    run.replace_events(["fit"], FIT, [*said, *found.events])
    text = config.text or format_retrain_json(config)
    digest = hashlib.sha256(text.encode()).hexdigest()
    record = FitRecord(config_source=config.source, config_text=text, config_hash=digest, exact=False)
    run.update_info(fits={**run.info.fits, FIT: record})
    return found.events


def _export(run: Run, prefix: str, record: Path, progress: Progress) -> Run:
    from calibrant.export.files import export_files
    from calibrant.pipeline import export, verify

    exported = export(run, fit=FIT, prefix=prefix, progress=progress)
    written = export_files(prefix).record
    try:
        if record.resolve() != written.resolve():
            record.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(written, record)
    except OSError as error:
        message = (
            f"export: cannot write the record to '{record}': {error.strerror or error}; choose another record_file"
        )
        raise ExportError(message) from error
    verify(exported, fit=FIT, progress=progress)
    return exported
