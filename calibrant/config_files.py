"""Configuration files as such: make one for a model, turn one kind into another, check one.

Each function is the sub-command of ``calibrant config`` of the same name.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.errors import ConfigError
from calibrant.proto.any_config import (
    ConfigFile,
    calibration_config,
    read_config,
)
from calibrant.proto.json_config import COMMON_SUFFIX, JsonConfig, format_json_config
from calibrant.proto.layerwise import LayerwiseConfig, layer_key, layerwise_config, simple_config_of
from calibrant.proto.op_types import Dialect
from calibrant.proto.retrain_config import RetrainConfig, canonical_retrain_text, parse_retrain_config
from calibrant.proto.retrain_conversion import retrain_config_of
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json
from calibrant.proto.simple_config import ConfigNote, QuantConfig, canonical_text, parse_simple_config
from calibrant.stats.events import Event

if TYPE_CHECKING:
    import polars as pl

    from calibrant.ingest.model import PreparedModel
    from calibrant.quantizers.layer_plan import Plan

PathLike = str | os.PathLike[str]
FixInput = Mapping[str, str | int | float]

_NOT_IN_EVERY_SCHEMA = ("dst_type: INT8", "quant_bits: 8")
_UNNAMED = (
    "layers that it does not name are not {}, but a simple configuration {} them; give the model (--model) to skip them"
)


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


class _Model(NamedTuple):
    """A model and what is fixed of it."""

    path: PathLike
    fix_input: FixInput


class _Text(NamedTuple):
    """The text of a configuration and what was said while it was made."""

    text: str
    events: Iterable[Event]


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
    given = _Model(model, fix_input or {})
    made = _retrain_text(settings, given) if isinstance(settings, RetrainConfig) else _json_text(settings, given)
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
    made = _converted(file, None if model is None else _Model(model, fix_input or {}))
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
        return CheckedConfig(file, (found, *_events(notes)))
    plan, events = _plan_of(config, _Model(model, fix_input or {}))
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
    rows, events = _retrain_plan(file.config, _Model(model, fix_input or {}))
    return rows, (Event("fit", "info", file.note), *events)


# Reading


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


def _events(notes: Sequence[ConfigNote]) -> tuple[Event, ...]:
    return tuple(Event("fit", note.severity, note.message) for note in notes)


def _prepared(model: _Model, config: QuantConfig | None = None) -> "PreparedModel":
    from calibrant.configured_model import prepare_configured

    return prepare_configured(Path(model.path), config or QuantConfig(), model.fix_input)


# Making


def _converted(file: ConfigFile, model: _Model | None) -> _Text:
    config = file.config
    if isinstance(config, JsonConfig):
        return _simple_text(layerwise_config(config), model)
    if isinstance(config, RetrainJson):
        return _simple_retrain_text(config, model)
    if not isinstance(config, QuantConfig | RetrainConfig):
        message = f"{file.note}; it names a configuration, convert that one"
        raise ConfigError(message)
    if model is None:
        message = f"{file.note}; a config.json names every layer of a model, give the model (--model)"
        raise ConfigError(message)
    return _retrain_text(config, model) if isinstance(config, RetrainConfig) else _json_text(config, model)


def _json_text(config: QuantConfig, model: _Model) -> _Text:
    from calibrant.configured_model import check_plan
    from calibrant.quantizers.plan import json_config

    prepared = _prepared(model, config)
    plan = check_plan(config, prepared)
    events = [*prepared.events, *plan.events]
    if config.batch_num is None:
        text = (
            "batch_num is written as 1, AMCT's default; it limits a calibration to one batch, raise it to use more data"
        )
        events.append(Event("fit", "info", text))
    events.extend(_without_key(config, plan))
    return _Text(format_json_config(json_config(config, plan)), events)


def _without_key(config: QuantConfig, plan: "Plan") -> Iterator[Event]:
    """Say what a config.json has no key for."""
    source = config.source or "configuration"
    alone = [row.layer for row in plan.rows if row.weight_only]
    if alone:
        text = f"weight_compress_only of {len(alone)} layers is left out: config.json has no key for it"
        yield Event("fit", "warn", f"{source}: {text}")
    if config.enable_auto_nuq:
        yield Event("fit", "warn", f"{source}: enable_auto_nuq is left out: config.json has no key for it")
    columns = [row.layer for row in plan.rows if row.weight.channel_wise and row.op_type in ("Gemm", "MatMul")]
    if columns:
        text = f"channel_wise: true of {len(columns)} Gemm and MatMul is written, which AMCT refuses (first '{columns[0]}')"
        yield Event("fit", "warn", f"{source}: {text}")


def _retrain_text(config: RetrainConfig, model: _Model) -> _Text:
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.quantizers.retrain_layers import retrain_layers

    prepared = _prepared(model)
    found = retrain_layers(config, layer_rows_of(prepared, None))
    return _Text(format_retrain_json(found.json), (*prepared.events, *found.events))


def _simple_text(config: LayerwiseConfig, model: _Model | None) -> _Text:
    from calibrant.configured_model import check_plan

    if model is None:
        simple = simple_config_of(config)
        events = (*_events(config.notes), *_losses(config), *_rounded(simple))
        return _Text(_amct_text(simple), events)
    prepared = _prepared(model, config)
    plan = check_plan(config, prepared)
    layers = [layer for layer in prepared.layers if layer.quantizable]
    keys = {layer.name: layer_key(config.json, layer.name, layer.op_type) for layer in layers}
    simple = simple_config_of(config, keys)
    return _Text(_amct_text(simple), (*prepared.events, *plan.events, *_rounded(simple)))


def _amct_text(config: QuantConfig) -> str:
    """Write a simple configuration without the defaults that some of AMCT's schemas have no field for."""
    lines = canonical_text(config).splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() not in _NOT_IN_EVERY_SCHEMA)


def _rounded(config: QuantConfig | RetrainConfig) -> list[Event]:
    """Say where the text of a simple configuration, whose numbers are float32, does not hold every digit."""
    if isinstance(config, RetrainConfig):
        read: QuantConfig | RetrainConfig = parse_retrain_config(canonical_retrain_text(config), dialect=config.dialect)
    else:
        read = parse_simple_config(canonical_text(config), dialect=config.dialect)
    if read == config:
        return []
    text = "a simple configuration holds numbers as float32; some of the config.json's have more digits and are rounded"
    return [Event("fit", "warn", f"{config.source or 'config.json'}: {text}")]


def _losses(config: LayerwiseConfig) -> list[Event]:
    """Say what a simple configuration without the model cannot say of a config.json."""
    source = config.source or "config.json"
    text = f"{source}: {_UNNAMED.format('quantized', 'quantizes')}"
    common = [name for name in config.json.layers if name.endswith(COMMON_SUFFIX)]
    left_out = [
        f"{config.json.where(name)}: '{name}' is left out; give the model (--model) to apply it" for name in common
    ]
    return [Event("fit", "info", text), *(Event("fit", "warn", one) for one in left_out)]


def _simple_retrain_text(config: RetrainJson, model: _Model | None) -> _Text:
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.quantizers.retrain_layers import check_retrain_json

    if model is None:
        text = f"{config.source}: {_UNNAMED.format('trained', 'trains')}"
        simple = retrain_config_of(config)
        events = (*_events(simple.notes), Event("fit", "info", text), *_rounded(simple))
        return _Text(canonical_retrain_text(simple), events)
    rows = layer_rows_of(_prepared(model), None)
    checked = check_retrain_json(config, rows)
    absent = [row.layer for row in rows if row.quantizable and row.layer not in config.layers]
    simple = retrain_config_of(config, absent)
    return _Text(canonical_retrain_text(simple), (*_events(simple.notes), *checked, *_rounded(simple)))


# Plans


def _plan_of(
    config: QuantConfig | JsonConfig | RetrainConfig | RetrainJson, model: _Model
) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    if isinstance(config, QuantConfig | JsonConfig):
        from calibrant.configured_model import check_plan

        settings = calibration_config(config)
        prepared = _prepared(model, settings)
        plan = check_plan(settings, prepared)
        return plan.frame("default"), (*prepared.events, *plan.events)
    return _retrain_plan(config, model)


def _retrain_plan(config: RetrainConfig | RetrainJson, model: _Model) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.ingest.nodes import model_nodes
    from calibrant.quantizers.retrain_layers import check_retrain_json, retrain_frame
    from calibrant.quantizers.retrain_plan import resolve_retrain_plan

    prepared = _prepared(model)
    rows = layer_rows_of(prepared, None)
    if isinstance(config, RetrainJson):
        return retrain_frame(config, rows), (*_events(config.notes), *check_retrain_json(config, rows))
    plan = resolve_retrain_plan(config, rows, model_nodes(prepared.model.graph))
    return plan.frame(), plan.events


__all__ = ["CheckedConfig", "WrittenConfig", "check_config", "convert_config", "create_config", "plan_retraining"]
