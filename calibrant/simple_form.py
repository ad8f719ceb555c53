"""A configuration of any form as a quant.cfg that can be changed layer by layer, and its lines as people write them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from calibrant.proto.layerwise import LayerwiseConfig, layer_key, simple_config_of
from calibrant.proto.simple_config import QuantConfig, canonical_text
from calibrant.stats.tables import LayerRow

_DEFAULTS: Final = ("dst_type: INT8", "quant_bits: 8")  # some of AMCT's schemas have no field for them


def simple_form(config: QuantConfig, rows: Sequence[LayerRow]) -> QuantConfig:
    """Return a configuration as a simple one, which overrides and skipped layers can be added to.

    Args:
        config: a simple configuration, or a config.json.
        rows: the `layers` table of the model.
    """
    if isinstance(config, LayerwiseConfig):
        keys = {row.layer: layer_key(config.json, row.layer, row.op_type) for row in rows if row.quantizable}
        config = simple_config_of(config, keys)
    return replace(config, source=None, text="", notes=(), positions={}, dialect_reason="the fit that it changes")


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
