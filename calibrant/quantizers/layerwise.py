"""The resolution of a config.json: layer by layer as the file says; what it does not name stays in float."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from calibrant.errors import ConfigError, nearest
from calibrant.proto.json_config import COMMON_SUFFIX, GLOBAL_KEYS
from calibrant.proto.layerwise import LayerwiseConfig
from calibrant.proto.op_types import layer_type
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_settings import JSON, LAYER, Chosen
from calibrant.quantizers.resolution import Resolution, examples
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow


class LayerwiseResolution(Resolution):
    """One pass over the layers.

    Args:
        config: the file.
        layers: the model's layers.
        nodes: the model's nodes by name.
        nuq: as `Resolution`.
    """

    nothing_left = "no layer of {} has quant_enable: true; leave at least one to quantize"

    def __init__(
        self,
        config: LayerwiseConfig,
        layers: Sequence[LayerRow],
        nodes: Mapping[str, ModelNode],
        nuq: Collection[str] | None,
    ) -> None:
        super().__init__(config, layers, nodes, nuq)
        self._json = config.json

    def named_config(self) -> tuple[QuantConfig, tuple[Event, ...]]:
        """Return the file in the words of a simple configuration, and what a person should know about it."""
        plan = self.plan()
        able = [row for row in self.layers if row.quantizable]
        kept: dict[str, Any] = {one.name: getattr(self.config, one.name) for one in fields(QuantConfig)}
        blocks = tuple((row.layer, chosen.block) for row in able for chosen in self._blocks(row))
        skipped = tuple(row.layer for row in plan.rows if not row.enabled and row.enabled_decided_by != LAYER)
        return QuantConfig(**{**kept, "override_layers": blocks, "skip_layers": skipped}), plan.events

    def _check_overridden_layers(self) -> None:
        for name in self._json.layers:
            row = self.by_name.get(name)
            if row is None:
                self._check_no_layer(name)
            elif not row.quantizable and row.tensor_b is None:
                self._check_refused(row)

    def _check_no_layer(self, name: str) -> None:
        where, kind = self._json.where(name), name.removesuffix(COMMON_SUFFIX)
        if kind != name and layer_type(kind, "onnx") is not None:
            self._report_nameless(name)
            return
        if name in self.nodes:
            message = f"{where}: '{name}' is a {self.nodes[name].op_type}, which is never quantized; delete it"
            raise ConfigError(message)
        hint = nearest(name, [*self.by_name, *GLOBAL_KEYS]) or examples(self.by_name)
        message = f"{where}: '{name}' is no layer of the model and no key of {JSON}{hint}"
        raise ConfigError(message)

    def _report_nameless(self, key: str) -> None:
        taking = [row.layer for row in self.layers if row.quantizable and self._key(row) == key]
        if taking:
            text = f"'{key}' speaks of {len(taking)} nodes without a name: {', '.join(taking)}"
        else:
            text = f"'{key}' changes nothing: every layer of this type has a name"
        self._event("info", f"{self._json.where(key)}: {text}")

    def _check_refused(self, row: LayerRow) -> None:
        where = self._json.where(row.layer)
        if self._json.layers[row.layer].quant_enable:
            message = f"{where}: layer '{row.layer}' cannot be quantized: {row.reason}; set quant_enable to false"
            raise ConfigError(message)
        text = f"{where}: layer '{row.layer}' is not quantized anyway: {row.reason}"
        self._event("info", text, row.layer)

    def _enabled(self, row: LayerRow) -> tuple[str, str | None]:
        key = self._key(row)
        if not row.quantizable and (row.tensor_b is None or key is None):
            return LAYER, row.reason or "cannot be quantized"
        if key is None:
            return JSON, f"not in {self.config.source or JSON}"
        enabled = self._json.layers[key].quant_enable
        if enabled is None:
            return JSON, f"quant_enable is not written ({self._json.where(key)})"
        return JSON, None if enabled else f"quant_enable is false ({self._json.where(key, 'quant_enable')})"

    def _blocks(self, row: LayerRow) -> Iterator[Chosen]:
        key = self._key(row)
        if key is not None:
            yield Chosen(JSON, key, self.layer_blocks[key])

    def _key(self, row: LayerRow) -> str | None:
        """Return what speaks of a layer: its name, or the key of its type where the model gives it none."""
        if row.layer in self._json.layers:
            return row.layer
        common = f"{row.op_type}{COMMON_SUFFIX}"
        return common if common in self._json.layers and _is_nameless(row) else None

    def _report_inert_override(self, row: LayerRow, rule: str) -> None:
        """Say nothing: the files hold the settings of disabled layers as well."""


def named_config(
    config: LayerwiseConfig, layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode]
) -> tuple[QuantConfig, tuple[Event, ...]]:
    """Return a config.json in the words of a simple configuration: a block for each layer that it names, the rest skipped.

    Args:
        config: the file.
        layers: the `layers` table of the prepared model.
        nodes: the model's nodes by name.

    Returns:
        The configuration, and what a person should know about it.

    Raises:
        ConfigError: as `calibrant.quantizers.plan.resolve_plan`.
    """
    return LayerwiseResolution(config, layers, nodes, ()).named_config()


def _is_nameless(row: LayerRow) -> bool:
    """Whether a layer has the name that is given to a node without one."""
    return re.fullmatch(rf"{re.escape(row.op_type)}_\d+(_\d+)?", row.layer) is not None
