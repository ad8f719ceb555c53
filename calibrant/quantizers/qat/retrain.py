"""AMCT's functions of quantization-aware training, up to the trained model; saving it is `calibrant.qat_export`."""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.errors import ConfigError, ModelError, first_line, nearest
from calibrant.proto.retrain_config import RetrainConfig, read_retrain_config
from calibrant.proto.retrain_json import read_retrain_json, write_retrain_json
from calibrant.quantizers.layer_limits import FUSABLE
from calibrant.quantizers.qat.data_quantizer import DataQuantizer
from calibrant.quantizers.qat.layers import QuantizedLayer, quantize_layer
from calibrant.quantizers.qat.settings import (
    DataSettings,
    LayerSettings,
    ResolvedLayers,
    SettingsOptions,
    resolve_settings,
)
from calibrant.quantizers.qat.survey import Survey, copied, survey, unwrapped
from calibrant.quantizers.retrain_layers import check_retrain_json, retrain_layers
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode

PathLike = str | os.PathLike[str]
Notice = Callable[[Event], None]

_LEVELS = {"info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def create_quant_retrain_config(
    config_file: PathLike,
    model: nn.Module,
    input_data: Any,
    config_defination: PathLike | None = None,
    *,
    notice: Notice | None = None,
) -> None:
    """Write the retrain config.json of a model, as AMCT writes it: every layer that can be trained, with all its values.

    Reused layers (called more than once in a run, or with a parameter that another module has too) are left out and reported.

    Args:
        config_file: the file; an existing one is overwritten.
        model: the float model.
        input_data: a tensor, or a tuple of the arguments of ``forward``; the model is run on it once.
        config_defination: a retrain_config text file to use instead of the defaults; AMCT's spelling.
        notice: called with each event; by default they are logged under ``calibrant.qat``.

    Raises:
        ModelError: the model does not run, or has no layer that can be trained.
        ConfigError: the text file is wrong, says ``file:line:column``; or `config_file` cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "config.json")
        ...     create_quant_retrain_config(path, nn.Sequential(nn.Linear(2, 1)), torch.zeros(1, 2))
        ...     read_retrain_json(path).layers["0"].weight.channel_wise
        False
    """
    found = _surveyed(model, input_data)
    config = RetrainConfig() if config_defination is None else _read_defination(config_defination)
    nodes = {name: ModelNode(row.op_type, producer=found.producers[name]) for name, row in found.trainable.items()}
    made = retrain_layers(config, found.rows, nodes)
    path = Path(config_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_retrain_json(path, made.json)
    say([*found.events, *made.events], notice)


def _read_defination(path: PathLike) -> RetrainConfig:
    return read_retrain_config(os.fspath(path), dialect="pytorch")


def create_quant_retrain_model(
    config_file: PathLike,
    model: nn.Module,
    record_file: PathLike,
    input_data: Any,
    *,
    strict_amct: bool = False,
    freeze: bool = False,
    notice: Notice | None = None,
) -> nn.Module:
    """Return a copy of a model whose layers are in training for quantization, as a retrain config.json says.

    Give the parameters of the copy to the optimizer: the clip ends are among them. The first ``batch_num`` batches, in training or
    evaluation, find the first clip ends by IFMR.

    Args:
        config_file: the retrain config.json.
        model: the float model; it stays as it is.
        record_file: where `save_quant_retrain_model` will write the record.
        input_data: a tensor, or a tuple of the arguments of ``forward``.
        strict_amct: use 8 bits whatever ``dst_type`` says, as AMCT does today.
        freeze: leave clip ends that the configuration gives as they are; AMCT trains them.
        notice: called with each event; by default they are logged under ``calibrant.qat``.

    Returns:
        The copy; in training mode where `model` is.

    Raises:
        ConfigError: the configuration is wrong or does not fit the model; says ``file:line:column``.
        ModelError: the model does not run, or has no layer that can be trained.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path, float_model = pathlib.Path(folder, "config.json"), nn.Sequential(nn.Linear(2, 1))
        ...     create_quant_retrain_config(path, float_model, torch.zeros(1, 2))
        ...     type(create_quant_retrain_model(path, float_model, "record.txt", torch.zeros(1, 2))[0]).__name__
        'QuantizedLinear'
    """
    resolved, found = resolved_layers(config_file, model, input_data, SettingsOptions(strict_amct, freeze))
    if not os.fspath(record_file):
        message = "record_file is empty; name the file that save_quant_retrain_model writes"
        raise ConfigError(message)
    trained = copied(unwrapped(model))
    _quantize(trained, resolved.settings, found)
    say([*found.events, *resolved.events], notice)
    return trained


def restore_quant_retrain_model(
    config_file: PathLike,
    model: nn.Module,
    record_file: PathLike,
    input_data: Any,
    pth_file: PathLike,
    state_dict_name: str | None = None,
    *,
    strict_amct: bool = False,
    freeze: bool = False,
    notice: Notice | None = None,
) -> nn.Module:
    """Return the model of `create_quant_retrain_model` with the state that training saved, finished or not.

    Args:
        config_file: the retrain config.json that the training began with.
        model: the float model.
        record_file: as for `create_quant_retrain_model`.
        input_data: as for `create_quant_retrain_model`.
        pth_file: what ``torch.save`` wrote: a state dict, or a dict that holds one.
        state_dict_name: its key in that dict, or None.
        strict_amct: as the training began with.
        freeze: as the training began with.
        notice: as for `create_quant_retrain_model`.

    Raises:
        ConfigError, ModelError: as `create_quant_retrain_model`; ModelError also where the state is not of this model.
    """
    created = create_quant_retrain_model(
        config_file, model, record_file, input_data, strict_amct=strict_amct, freeze=freeze, notice=notice
    )
    state = _read_state(Path(pth_file), state_dict_name)
    try:
        created.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        message = f"{pth_file}: not the state of this model with this configuration: {reason}"
        raise ModelError(message) from error
    return created


def resolved_layers(
    config_file: PathLike, model: nn.Module, input_data: Any, options: SettingsOptions
) -> tuple[ResolvedLayers, Survey]:
    """Read a retrain config.json for a model.

    Args:
        config_file: the file.
        model: the float model.
        input_data: as for `create_quant_retrain_model`.
        options: what the caller decides besides.

    Raises:
        ConfigError, ModelError: as `create_quant_retrain_model`.
    """
    config = read_retrain_json(os.fspath(config_file))
    found = _surveyed(model, input_data)
    check_retrain_json(config, found.rows)  # its notes on absent layers come from resolve_settings as well
    return resolve_settings(config, found.trainable, found.producers, options), found


def say(events: Iterable[Event], notice: Notice | None) -> None:
    """Tell events: to `notice`, or to the log ``calibrant.qat``, where warnings reach standard error by default."""
    logger = logging.getLogger("calibrant.qat")
    for event in events:
        if notice is not None:
            notice(event)
        else:
            logger.log(_LEVELS[event.severity], "%s", event.message)


def _surveyed(model: nn.Module, input_data: Any) -> Survey:
    if any(isinstance(module, QuantizedLayer) for module in model.modules()):
        message = "the model is in training for quantization already; give the float model"
        raise ModelError(message)
    found = survey(model, input_data)
    if not found.trainable:
        why = f"; '{found.rows[0].layer}': {found.rows[0].reason}" if found.rows else ""
        message = (
            f"model {type(unwrapped(model)).__name__} has no Linear, Conv or ConvTranspose2d that can be trained{why}"
        )
        raise ModelError(message)
    return found


def _quantize(model: nn.Module, settings: Iterable[LayerSettings], found: Survey) -> None:
    """Put layers into training; those that read one tensor in the same way share its quantizer."""
    shared: dict[tuple[int, DataSettings], DataQuantizer] = {}
    for one in settings:
        key = found.sources[one.layer], one.data
        if key in shared:
            shared[key].users += 1
        else:
            shared[key] = DataQuantizer(one.data, one.batch_num, one.layer)
        norm = found.norms.get(one.layer) if found.trainable[one.layer].op_type in FUSABLE else None
        behind = None if norm is None else model.get_submodule(norm)
        quantize_layer(model.get_submodule(one.layer), one, shared[key], behind)


def _read_state(path: Path, name: str | None) -> dict[str, Any]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, torch.serialization.pickle.UnpicklingError) as error:
        message = f"{path}: cannot be read as what torch.save wrote: {first_line(error)}"
        raise ModelError(message) from error
    if name is not None:
        if not isinstance(loaded, dict) or name not in loaded:
            known = nearest(name, map(str, loaded)) if isinstance(loaded, dict) else ""
            message = f"{path}: no state_dict_name '{name}' in it{known}"
            raise ModelError(message)
        loaded = loaded[name]
    if not isinstance(loaded, dict):
        message = f"{path}: holds a {type(loaded).__name__}, not a state dict"
        raise ModelError(message)
    return {str(key).removeprefix("module."): value for key, value in loaded.items()}
