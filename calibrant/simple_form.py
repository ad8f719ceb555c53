"""A configuration of any form as a quant.cfg that can be changed layer by layer, and its lines as people write them."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from calibrant.errors import ConfigError
from calibrant.proto.layerwise import LayerwiseConfig, layer_key, simple_config_of
from calibrant.proto.nuq_mapping import find_mapping
from calibrant.proto.simple_config import QuantConfig, canonical_text
from calibrant.stats.tables import LayerRow

_DEFAULTS: Final = ("dst_type: INT8", "quant_bits: 8")  # some of AMCT's schemas have no field for them


def simple_form(config: QuantConfig, rows: Sequence[LayerRow]) -> QuantConfig:
    """Return a configuration as a simple one, which overrides and skipped layers can be added to, and which may stand anywhere.

    Args:
        config: a simple configuration, or a config.json.
        rows: the `layers` table of the model.
    """
    if isinstance(config, LayerwiseConfig):
        keys = {row.layer: layer_key(config.json, row.layer, row.op_type) for row in rows if row.quantizable}
        config = simple_config_of(config, keys)
    return replace(
        _placed(config), source=None, text="", notes=(), positions={}, dialect_reason="the fit that it changes"
    )


def _placed(config: QuantConfig) -> QuantConfig:
    """Name NUQ's mapping file by its whole path: it was looked up beside the configuration."""
    if config.nuq is None or config.nuq.mapping_file is None:
        return config
    with suppress(ConfigError):  # gone since the fit
        place = find_mapping(config.nuq.mapping_file, config.source).resolve()
        return replace(config, nuq=replace(config.nuq, mapping_file=str(place)))
    return config


def without(base: QuantConfig, layers: Collection[str]) -> QuantConfig:
    """Return a configuration without the overrides of these layers."""
    return replace(base, override_layers=tuple(one for one in base.override_layers if one[0] not in layers))


def written_lines(config: QuantConfig) -> list[str]:
    """Return the lines of a configuration, without those that say a default that some of AMCT's schemas have no field for.

    Example:
        >>> written_lines(QuantConfig(skip_layers=("conv1",)))[-1]
        'skip_layers: "conv1"'
    """
    return [line for line in canonical_text(config).splitlines() if line.strip() not in _DEFAULTS]


__all__ = ["simple_form", "without", "written_lines"]
