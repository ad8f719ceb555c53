"""Configuration files as such: make one for a model, turn one kind into another, check one.

Each function is the sub-command of ``calibrant config`` of the same name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.config_conversion import GivenModel, converted_text, json_text, note_events, prepare_given, retrain_text
from calibrant.errors import ConfigError
from calibrant.proto.any_config import ConfigFile, calibration_config, read_config
from calibrant.proto.json_config import JsonConfig
from calibrant.proto.op_types import Dialect
from calibrant.proto.retrain_config import RetrainConfig
from calibrant.proto.retrain_json import RetrainJson
from calibrant.proto.simple_config import QuantConfig
from calibrant.stats.events import Event

if TYPE_CHECKING:
    import polars as pl

PathLike = str | os.PathLike[str]
FixInput = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """A configuration file that was written.

    Attributes:
        path: the file.
        events: what a person should know of it.
        updated_model: the copy of the model with a name for every node, or None.
    """

    path: Path
    events: tuple[Event, ...]
    updated_model: Path | None = None


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A configuration file that was read, and what it means for a model.

    Attributes:
        file: what the file is and says.
        events: what a person should know.
        plan: one row a layer; None without a model.
    """

    file: ConfigFile
    events: tuple[Event, ...]
    plan: "pl.DataFrame | None" = None


def create_config(
    model: PathLike,
    *,
    config: "PathLike | QuantConfig | JsonConfig | RetrainConfig | None" = None,
    output: PathLike,
    updated_model: PathLike | None = None,
    fix_input: FixInput | None = None,
) -> WrittenConfig:
    """Write the config.json of a model, as AMCT's create_quant_config does (and, for a retrain file, create_quant_retrain_config).

    Every layer that can be quantized is written with all its values; skipped layers have ``quant_enable`` false.

    Args:
        model: the float ONNX model.
        config: what to write instead of AMCT's defaults: a configuration of calibration, or one of retraining.
        output: the config.json.
        updated_model: where to write a copy of the model in which every node has a name of its own.
        fix_input: inputs to turn into constants.

    Raises:
        ModelError, ConfigError: each names what is wrong, where, and what to do.

    Example:
        >>> create_config("model.onnx", config="quant.cfg", output="config.json")  # doctest: +SKIP
    """
    from calibrant.ingest.updated_model import write_updated_model
    from calibrant.proto._files import write_text

    path, copy = Path(output), None if updated_model is None else Path(updated_model)
    check_apart(model=Path(model), output=path, updated_model=copy)
    settings = _given(config)
    given = GivenModel(model, fix_input or {})
    made = retrain_text(settings, given) if isinstance(settings, RetrainConfig) else json_text(settings, given)
    events = list(made.events)
    if copy is not None:
        count = write_updated_model(Path(model), copy)
        events.append(
            Event("fit", "info", f"{copy}: {count} nodes have a new name; use this model with the configuration")
        )
    write_text(path, made.text)
    return WrittenConfig(path, tuple(events), copy)


def convert_config(
    path: PathLike,
    output: PathLike,
    *,
    model: PathLike | None = None,
    dialect: Dialect | None = None,
    fix_input: FixInput | None = None,
) -> WrittenConfig:
    """Turn a simple configuration into the config.json of a model, or a config.json into a simple configuration.

    Args:
        path: a configuration of calibration or of retraining; which one is told by its content.
        output: the file to write.
        model: the float ONNX model. A config.json names every layer, so that it needs one; a simple configuration gets the names
            of the layers that the config.json leaves out from it.
        dialect: whose type names a simple configuration uses; None: told by its content.
        fix_input: inputs to turn into constants.

    Raises:
        ModelError, ConfigError: each names what is wrong, where, and what to do.

    Example:
        >>> convert_config("config.json", "quant.cfg")  # doctest: +SKIP
    """
    from calibrant.proto._files import write_text

    check_apart(config=Path(path), output=Path(output), model=None if model is None else Path(model))
    file = read_config(path, dialect=dialect)
    made = converted_text(file, None if model is None else GivenModel(model, fix_input or {}))
    found = Event("fit", "info", file.note)
    write_text(Path(output), made.text)
    return WrittenConfig(Path(output), (found, *made.events))


def check_config(
    path: PathLike,
    *,
    model: PathLike | None = None,
    dialect: Dialect | None = None,
    fix_input: FixInput | None = None,
) -> CheckedConfig:
    """Read a configuration of any kind, and resolve it against a model where one is given.

    Args:
        path: any configuration of AMCT's.
        model: the float ONNX model.
        dialect: whose type names a simple configuration uses; None: told by its content.
        fix_input: inputs to turn into constants.

    Raises:
        ModelError, ConfigError: each names what is wrong, where, and what to do.

    Example:
        >>> check_config("quant.cfg", model="model.onnx").plan  # doctest: +SKIP
    """
    file = read_config(path, dialect=dialect)
    found = Event("fit", "info", file.note)
    config = file.config
    if isinstance(config, QuantConfig | RetrainConfig):
        config.check_types()
    if model is None or not isinstance(config, QuantConfig | JsonConfig | RetrainConfig | RetrainJson):
        notes = calibration_config(config).notes if isinstance(config, JsonConfig) else config.notes
        return CheckedConfig(file, (found, *note_events(notes)))
    plan, events = _plan_of(config, GivenModel(model, fix_input or {}))
    return CheckedConfig(file, (found, *events), plan)


def plan_retraining(
    path: PathLike, model: PathLike, *, dialect: Dialect | None = None, fix_input: FixInput | None = None
) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    """Resolve a configuration of retraining against a model; in these files an override beats a skip.

    Args:
        path: a simple configuration or a config.json of retraining.
        model: the float ONNX model.
        dialect: whose type names a simple configuration uses; None: told by its content.
        fix_input: inputs to turn into constants.

    Returns:
        One row a layer with every value and the rule that decided it, and what a person should know.

    Raises:
        ModelError, ConfigError: each names what is wrong, where, and what to do.

    Example:
        >>> rows, events = plan_retraining("retrain.cfg", "model.onnx")  # doctest: +SKIP
    """
    file = read_config(path, dialect=dialect)
    if not isinstance(file.config, RetrainConfig | RetrainJson):
        message = f"{file.note}; a configuration of retraining is expected"
        raise ConfigError(message)
    rows, events = _retrain_plan(file.config, GivenModel(model, fix_input or {}))
    return rows, (Event("fit", "info", file.note), *events)


def _given(config: "PathLike | QuantConfig | JsonConfig | RetrainConfig | None") -> QuantConfig | RetrainConfig:
    if config is None:
        return QuantConfig()
    if isinstance(config, RetrainConfig):
        return config
    if isinstance(config, QuantConfig | JsonConfig):
        return calibration_config(config)
    file = read_config(config)
    if isinstance(file.config, QuantConfig | JsonConfig):
        return calibration_config(file.config)
    if isinstance(file.config, RetrainConfig):
        return file.config
    message = f"{file.note}; a config.json is made from a simple configuration or a config.json of calibration"
    raise ConfigError(message)


def check_apart(**paths: Path | None) -> None:
    """Refuse to write over what is read, and two files to one place.

    Args:
        paths: each file by what it is, for the message; None: it is not asked for.

    Raises:
        ConfigError: two of them are one file.
    """
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        if (other := seen.get(path.resolve())) is not None:
            words = " and ".join(one.replace("_", " ") for one in (other, name))
            message = f"{path}: {words} are the same file; give another path"
            raise ConfigError(message)
        seen[path.resolve()] = name


def _plan_of(
    config: QuantConfig | JsonConfig | RetrainConfig | RetrainJson, model: GivenModel
) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    if isinstance(config, QuantConfig | JsonConfig):
        from calibrant.configured_model import check_plan

        settings = calibration_config(config)
        prepared = prepare_given(model, settings)
        plan = check_plan(settings, prepared)
        return plan.frame("default"), (*prepared.events, *plan.events)
    return _retrain_plan(config, model)


def _retrain_plan(config: RetrainConfig | RetrainJson, model: GivenModel) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.ingest.nodes import model_nodes
    from calibrant.quantizers.retrain_layers import check_retrain_json, retrain_frame
    from calibrant.quantizers.retrain_plan import resolve_retrain_plan

    prepared = prepare_given(model)
    rows = layer_rows_of(prepared, None)
    if isinstance(config, RetrainJson):
        return retrain_frame(config, rows), (*note_events(config.notes), *check_retrain_json(config, rows))
    plan = resolve_retrain_plan(config, rows, model_nodes(prepared.model.graph))
    return plan.frame(), plan.events


__all__ = ["CheckedConfig", "WrittenConfig", "check_config", "convert_config", "create_config", "plan_retraining"]
