"""The plan of a config.json: layer by layer as the file says, and what it does not name stays in float.

The file is put into the words of a simple configuration, with a block for each layer and the rest skipped, and what the plan
says of it back into the words of the file.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from calibrant.errors import ConfigError, nearest
from calibrant.proto.json_config import COMMON_SUFFIX, GLOBAL_KEYS
from calibrant.proto.layerwise import LAYERS, LayerwiseConfig
from calibrant.proto.op_types import layer_type
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_plan import LayerPlan, Plan
from calibrant.stats.events import Event
from calibrant.stats.tables import LayerRow

FILE: Final = "config.json"

_SKIPPED: Final = "skip_layers"
_RULE: Final = re.compile(rf'{LAYERS} (["\'])')


@dataclass(frozen=True, slots=True)
class _Named:
    """A layer of the model and the key of the file that speaks of it; None where none does."""

    row: LayerRow
    key: str | None


def resolve_layerwise(
    config: LayerwiseConfig,
    layers: Sequence[LayerRow],
    other_nodes: Collection[str],
    resolve: Callable[[QuantConfig], Plan],
) -> Plan:
    """Resolve a config.json.

    Args:
        config: the file.
        layers: the `layers` table of the prepared model, refused layers included.
        other_nodes: names of the model's other nodes.
        resolve: resolves a simple configuration for these layers.

    Raises:
        ConfigError: a key that is no layer (with the nearest one), a layer that cannot be quantized or cannot have a setting, or
            nothing left to quantize; says ``file:line:column``.
    """
    names = _Names(config, layers, other_nodes)
    try:
        plan = resolve(names.plain_config())
    except ConfigError as error:
        raise ConfigError(_words(str(error))) from None
    rows = tuple(names.row_of(row) for row in plan.rows)
    events = [*names.events, *map(_event, plan.events)]
    return replace(plan, rows=rows, events=tuple(one for one in events if not names.is_own_doing(one)))


def _words(text: str) -> str:
    return _RULE.sub(r"layer \1", text)


def _event(event: Event) -> Event:
    return replace(event, message=_words(event.message))


class _Names:
    """The layers of a model as a file names them.

    Raises:
        ConfigError: as `resolve_layerwise`.
    """

    def __init__(self, config: LayerwiseConfig, layers: Sequence[LayerRow], other_nodes: Collection[str]) -> None:
        self.config = config
        self.by_name = {row.layer: row for row in layers}
        self.other_nodes = other_nodes
        self.events: list[Event] = []
        for name in config.json.layers:
            self._check(name)
        self.named = {row.layer: _Named(row, self._key(row)) for row in layers if row.quantizable}
        self._report_common()
        self._check_something_left()

    def plain_config(self) -> QuantConfig:
        """Return the file as a simple configuration: the layers that it enables have blocks, all others are skipped."""
        kept: dict[str, Any] = {one.name: getattr(self.config, one.name) for one in fields(QuantConfig)}
        written = dict(self.config.override_layers)
        blocks = tuple((layer, written[one.key]) for layer, one in self.named.items() if one.key is not None)
        skipped = tuple(layer for layer in self.named if not self._enabled(layer))
        return QuantConfig(**{**kept, "override_layers": blocks, _SKIPPED: skipped, "positions": self._positions()})

    def _positions(self) -> Mapping[tuple[str, str], str]:
        where = self.config.json.where
        own = {(LAYERS, layer): where(one.key) for layer, one in self.named.items() if one.key is not None}
        return {**self.config.positions, **own}

    def row_of(self, row: LayerPlan) -> LayerPlan:
        """Return a row of the plan in the words of the file."""
        decided = {
            one.name: FILE
            for one in fields(row)
            if one.name.endswith("decided_by") and _is_own(str(getattr(row, one.name)))
        }
        reason = self._reason(row.layer) if row.enabled_decided_by == _SKIPPED else row.reason
        return replace(row, reason=reason, **decided)  # type: ignore[arg-type]

    def is_own_doing(self, event: Event) -> bool:
        """Whether an event only tells that a skipped layer has settings, which is how these files are."""
        return event.layer in self.named and f"is inert: {_SKIPPED} wins" in event.message

    # What the file names must exist.

    def _check(self, name: str) -> None:
        where, row = self.config.json.where(name), self.by_name.get(name)
        if row is None:
            self._check_no_layer(where, name)
        elif not row.quantizable:
            self._check_refused(where, row)

    def _check_no_layer(self, where: str, name: str) -> None:
        kind = name.removesuffix(COMMON_SUFFIX)
        if kind != name and layer_type(kind, "onnx") is not None:
            return
        if name in self.other_nodes:
            message = f"{where}: '{name}' is a node whose type is never quantized; delete it"
            raise ConfigError(message)
        hint = nearest(name, [*self.by_name, *GLOBAL_KEYS]) or _examples(self.by_name)
        message = f"{where}: '{name}' is no layer of the model and no key of config.json{hint}"
        raise ConfigError(message)

    def _check_refused(self, where: str, row: LayerRow) -> None:
        if self.config.json.layers[row.layer].quant_enable:
            message = f"{where}: layer '{row.layer}' cannot be quantized: {row.reason}; set quant_enable to false"
            raise ConfigError(message)
        text = f"{where}: layer '{row.layer}' is not quantized anyway: {row.reason}"
        self.events.append(Event("fit", "info", text, row.layer))

    def _check_something_left(self) -> None:
        if self.named and not self.config.tensor_quantize and not any(map(self._enabled, self.named)):
            message = (
                f"{self.config.source or FILE}: no layer has quant_enable: true; leave at least one to quantize"
                f"{_examples(self.named)}"
            )
            raise ConfigError(message)

    # Which key speaks of a layer.

    def _key(self, row: LayerRow) -> str | None:
        """Return a layer's key: its name, or that of its type where the model gives it no name."""
        if row.layer in self.config.json.layers:
            return row.layer
        common = f"{row.op_type}{COMMON_SUFFIX}"
        return common if common in self.config.json.layers and _is_nameless(row) else None

    def _report_common(self) -> None:
        for key in self.config.json.layers:
            taking = [layer for layer, one in self.named.items() if one.key == key and key.endswith(COMMON_SUFFIX)]
            if taking and key not in self.by_name:
                text = f"{self.config.json.where(key)}: '{key}' speaks of {len(taking)} nodes without a name: {', '.join(taking)}"
                self.events.append(Event("fit", "info", text))

    def _enabled(self, layer: str) -> bool:
        key = self.named[layer].key
        return key is not None and bool(self.config.json.layers[key].quant_enable)

    def _reason(self, layer: str) -> str:
        key = self.named[layer].key
        if key is None:
            return f"not in {self.config.source or FILE}"
        if self.config.json.layers[key].quant_enable is None:
            return f"quant_enable is not written ({self.config.json.where(key)})"
        return f"quant_enable is false ({self.config.json.where(key, 'quant_enable')})"


def _is_own(rule: str) -> bool:
    return rule == _SKIPPED or rule.startswith(LAYERS)


def _is_nameless(row: LayerRow) -> bool:
    """Whether a layer has the name that is given to a node without one."""
    return re.fullmatch(rf"{re.escape(row.op_type)}_\d+(_\d+)?", row.layer) is not None


def _examples(names: Collection[str]) -> str:
    first = list(names)[:3]
    return f"; its layers are {', '.join(first)} …" if first else ""
