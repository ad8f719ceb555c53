"""A configuration as text of another kind: quant.cfg to config.json and back, of calibration and of retraining.

Each answer comes with what a person should know of it: what the other kind has no words for, and what was rounded.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.errors import ConfigError
from calibrant.proto.any_config import ConfigFile
from calibrant.proto.json_config import COMMON_SUFFIX, JsonConfig, format_json_config
from calibrant.proto.layerwise import LayerwiseConfig, layer_key, layerwise_config, simple_config_of
from calibrant.proto.retrain_config import RetrainConfig, canonical_retrain_text, parse_retrain_config
from calibrant.proto.retrain_conversion import retrain_config_of
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json
from calibrant.proto.simple_config import ConfigNote, QuantConfig, canonical_text, parse_simple_config
from calibrant.stats.events import Event

if TYPE_CHECKING:
    from calibrant.ingest.model import PreparedModel
    from calibrant.quantizers.layer_plan import Plan

_NOT_IN_EVERY_SCHEMA = ("dst_type: INT8", "quant_bits: 8")
_UNNAMED = (
    "layers that it does not name are not {}, but a simple configuration {} them; give the model (--model) to skip them"
)


class GivenModel(NamedTuple):
    """A model and what is fixed of it."""

    path: str | os.PathLike[str]
    fix_input: Mapping[str, str | int | float]


class ConfigText(NamedTuple):
    """The text of a configuration and what was said while it was made."""

    text: str
    events: Iterable[Event]


def note_events(notes: Sequence[ConfigNote]) -> tuple[Event, ...]:
    """Return what the reader of a configuration had to say as events."""
    return tuple(Event("fit", note.severity, note.message) for note in notes)


def prepare_given(model: GivenModel, config: QuantConfig | None = None) -> "PreparedModel":
    """Return the model, fused as the configuration says; by default as AMCT fuses it."""
    from calibrant.configured_model import prepare_configured

    return prepare_configured(Path(model.path), config or QuantConfig(), model.fix_input)


def converted_text(file: ConfigFile, model: GivenModel | None) -> ConfigText:
    """Return a configuration as the other kind: a simple one as config.json, a config.json as a simple one.

    Args:
        file: a configuration of calibration or of retraining.
        model: the model that it is for; None: a simple configuration is made without one.

    Raises:
        ConfigError: the file is no such configuration, or a config.json is to be made without a model.
    """
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
    return retrain_text(config, model) if isinstance(config, RetrainConfig) else json_text(config, model)


def json_text(config: QuantConfig, model: GivenModel) -> ConfigText:
    """Return a simple configuration of calibration as the config.json of a model.

    Raises:
        ModelError, ConfigError: the model cannot be prepared, or the configuration does not fit it.
    """
    from calibrant.configured_model import check_plan
    from calibrant.quantizers.plan import json_config

    prepared = prepare_given(model, config)
    plan = check_plan(config, prepared)
    events = [*prepared.events, *plan.events]
    if config.batch_num is None:
        text = (
            "batch_num is written as 1, AMCT's default; it limits a calibration to one batch, raise it to use more data"
        )
        events.append(Event("fit", "info", text))
    events.extend(_without_key(config, plan))
    return ConfigText(format_json_config(json_config(config, plan)), events)


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


def retrain_text(config: RetrainConfig, model: GivenModel) -> ConfigText:
    """Return a simple configuration of retraining as the config.json of a model.

    Raises:
        ModelError, ConfigError: as `json_text`.
    """
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.quantizers.retrain_layers import retrain_layers

    prepared = prepare_given(model)
    found = retrain_layers(config, layer_rows_of(prepared, None))
    return ConfigText(format_retrain_json(found.json), (*prepared.events, *found.events))


def _simple_text(config: LayerwiseConfig, model: GivenModel | None) -> ConfigText:
    from calibrant.configured_model import check_plan

    if model is None:
        simple = simple_config_of(config)
        events = (*note_events(config.notes), *_losses(config), *_rounded(simple))
        return ConfigText(_amct_text(simple), events)
    prepared = prepare_given(model, config)
    plan = check_plan(config, prepared)
    layers = [layer for layer in prepared.layers if layer.quantizable]
    keys = {layer.name: layer_key(config.json, layer.name, layer.op_type) for layer in layers}
    simple = simple_config_of(config, keys)
    return ConfigText(_amct_text(simple), (*prepared.events, *plan.events, *_rounded(simple)))


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


def _simple_retrain_text(config: RetrainJson, model: GivenModel | None) -> ConfigText:
    from calibrant.ingest.layers import layer_rows_of
    from calibrant.quantizers.retrain_layers import check_retrain_json

    if model is None:
        text = f"{config.source}: {_UNNAMED.format('trained', 'trains')}"
        simple = retrain_config_of(config)
        events = (*note_events(simple.notes), Event("fit", "info", text), *_rounded(simple))
        return ConfigText(canonical_retrain_text(simple), events)
    rows = layer_rows_of(prepare_given(model), None)
    checked = check_retrain_json(config, rows)
    absent = [row.layer for row in rows if row.quantizable and row.layer not in config.layers]
    simple = retrain_config_of(config, absent)
    return ConfigText(canonical_retrain_text(simple), (*note_events(simple.notes), *checked, *_rounded(simple)))
