"""A retrain configuration (QAT) and layers to one decision a layer, with the rule that decided each group of values.

``override_layer_configs`` > ``override_layer_types`` > what holds for all > default; the block that wins is taken whole. Unlike in
a configuration of post-training quantization an override beats a skip.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from calibrant.errors import ConfigError, nearest
from calibrant.proto.op_types import OpType
from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    FilterPruneSettings,
    PruneSettings,
    RetrainBlock,
    RetrainConfig,
    UlqRetrainSettings,
    UlqSettings,
    WeightRetrainSettings,
)
from calibrant.quantizers import layer_limits as limits
from calibrant.quantizers.layer_settings import DEFAULT, LAYER, LAYERS, TYPES
from calibrant.stats.events import Event, Severity
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

DATA: Final = "retrain_data_quant_config"
WEIGHT: Final = "retrain_weight_quant_config"
PRUNE: Final = "prune_config"
PRODUCER: Final = "producer"

_PAIRS: Final = (("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4"))  # data, weight
_PRUNABLE: Final = ("Conv", "Gemm", "MatMul")
_NO_NODES: Final[Mapping[str, ModelNode]] = {}
_SCHEMA: Final = pl.Schema(
    {
        "layer_id": pl.Int32(), "layer": pl.String(), "op_type": pl.String(), "retrain_enable": pl.Boolean(),
        "reason": pl.String(), "data_algorithm": pl.String(), "clip_max": pl.Float64(), "clip_min": pl.Float64(),
        "fixed_min": pl.Boolean(), "data_type": pl.String(), "weight_algorithm": pl.String(),
        "channel_wise": pl.Boolean(), "weight_type": pl.String(), "prune_type": pl.String(),
        "prune_ratio": pl.Float64(), "ascend_optimized": pl.Boolean(), "update_freq": pl.Int64(),
        "enabled_decided_by": pl.String(), "data_decided_by": pl.String(), "fixed_min_decided_by": pl.String(),
        "weight_decided_by": pl.String(), "prune_decided_by": pl.String(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetrainLayerPlan:
    """What a retrain configuration asks of one layer, and which rule decided.

    Attributes:
        layer_id: position in topological order.
        layer: ONNX node name.
        op_type: ONNX type.
        enabled: whether it is to be trained for quantization.
        reason: why not, or None.
        data: how its data is quantized; `fixed_min` is decided.
        weight: how its weight is quantized; `channel_wise` is decided.
        prune: how it is pruned, or None.
        enabled_decided_by: rule behind `enabled`.
        data_decided_by: rule behind `data`.
        fixed_min_decided_by: rule behind `data.fixed_min`; ``producer`` where it follows from what makes the layer's input.
        weight_decided_by: rule behind `weight`.
        prune_decided_by: rule behind `prune`.
    """

    layer_id: int
    layer: str
    op_type: str
    enabled: bool
    reason: str | None
    data: UlqSettings
    weight: WeightRetrainSettings
    prune: PruneSettings | None
    enabled_decided_by: str
    data_decided_by: str
    fixed_min_decided_by: str
    weight_decided_by: str
    prune_decided_by: str


@dataclass(frozen=True, slots=True)
class RetrainPlan:
    """One row a layer, in the order of the layers, and what a person should know about them.

    Attributes:
        rows: the decisions.
        events: notes of the configuration, settings that cannot hold.
    """

    rows: tuple[RetrainLayerPlan, ...]
    events: tuple[Event, ...]

    def frame(self) -> pl.DataFrame:
        """Return the plan as a table."""
        return pl.DataFrame([_columns(row) for row in self.rows], schema=_SCHEMA)


def resolve_retrain_plan(
    config: RetrainConfig, layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode] = _NO_NODES
) -> RetrainPlan:
    """Decide for every layer whether and how it is trained for quantization.

    Args:
        config: what the user asked for; ``RetrainConfig()`` for AMCT's defaults.
        layers: the `layers` table of the prepared model, refused layers included.
        nodes: the model's nodes by name, which tell whether a Relu makes the input of a layer.

    Raises:
        ConfigError: a name or type that does not exist (with the nearest one), a setting that a layer cannot have, widths of data
            and weights that do not go together, or nothing left to train; says ``file:line:column``.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> plan = resolve_retrain_plan(RetrainConfig(), [row], {"fc": ModelNode("Gemm", producer="Relu")})
        >>> plan.rows[0].data.fixed_min, plan.rows[0].fixed_min_decided_by
        (True, 'producer')
    """
    return _Resolution(config, layers, nodes).plan()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The block that rules a layer, or what holds for all."""

    field: str
    name: str
    block: RetrainBlock
    named: OpType | None = None

    @property
    def rule(self) -> str:
        return f'{self.field} "{self.name}"' if self.field else ""

    @property
    def quantizes(self) -> bool:
        return bool(self.field) and (self.block.data is not None or self.block.weight is not None)

    def means_only(self, types: Sequence[str]) -> bool:
        """Whether an override means nothing but layers of these types."""
        return self.field == LAYERS or (self.named is not None and set(self.named.onnx) <= set(types))


class _Resolution:
    """One pass over the layers; gathers events on the way."""

    def __init__(self, config: RetrainConfig, layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode]) -> None:
        self.config = config
        self.layers = layers
        self.by_name = {row.layer: row for row in layers}
        self.nodes = nodes
        self.all = _Chosen("", "", RetrainBlock(config.data, config.weight, config.prune))
        self.events = [Event("fit", note.severity, note.message) for note in config.notes]

    def plan(self) -> RetrainPlan:
        self.config.check_types()
        self._check_names()
        rows = tuple(self._row(row) for row in self.layers if row.quantizable)
        if not any(row.enabled or row.prune is not None for row in rows):
            message = f"{self.config.source or 'configuration'}: no layer is left to train; leave at least one"
            raise ConfigError(message)
        return RetrainPlan(rows, tuple(self.events))

    def _event(self, severity: Severity, where: str, text: str, layer: str | None = None) -> None:
        self.events.append(Event("fit", severity, f"{where}: {text}", layer))

    def _check_names(self) -> None:
        fields = ("skip_layers", "quant_skip_layers", "regular_prune_skip_layers")
        named = [(field, name) for field in fields for name in getattr(self.config, field)]
        for field, name in [*named, *((LAYERS, name) for name, _ in self.config.override_layers)]:
            row, where = self.by_name.get(name), self.config.where(field, name)
            if row is None:
                hint = nearest(name, self.by_name)
                message = f"{where}: {field} names '{name}', but the model has no such layer{hint}"
                raise ConfigError(message)
            if not row.quantizable:
                message = f"{where}: {field} names '{name}', which cannot be quantized: {row.reason}; delete it"
                raise ConfigError(message)

    # One layer.

    def _row(self, row: LayerRow) -> RetrainLayerPlan:
        override = next(self._overrides(row), None)
        chosen = override if override is not None and override.quantizes else self.all
        reason, enabled_by = self._enabled(row, chosen)
        data, data_by, fixed_by = self._data(row, chosen)
        weight, weight_by = self._weight(row, chosen, enabled=reason is None)
        if reason is None:
            reason = self._refused(row, chosen, data, weight)
            enabled_by = enabled_by if reason is None else LAYER
        prune, prune_by = self._prune(row, override)
        return RetrainLayerPlan(
            row.layer_id, row.layer, row.op_type, reason is None, reason, data, weight, prune,
            enabled_by, data_by, fixed_by, weight_by, prune_by,
        )  # fmt: skip

    def _overrides(self, row: LayerRow) -> Iterator[_Chosen]:
        for name, block in self.config.override_layers:
            if name == row.layer:
                yield _Chosen(LAYERS, name, block)
        for name, block in reversed(self.config.override_types):
            if self._is_of(row, TYPES, name):
                yield _Chosen(TYPES, name, block, self.config.type_of(TYPES, name))

    def _is_of(self, row: LayerRow, field: str, name: str) -> bool:
        named = self.config.type_of(field, name)
        return named.matches(row.op_type, row.kernel_rank, depthwise=limits.is_depthwise(row))

    def _enabled(self, row: LayerRow, chosen: _Chosen) -> tuple[str | None, str]:
        """Return why a layer is skipped, or None, and the rule."""
        skip = self._skip(row, ("skip_layers", "quant_skip_layers"), ("skip_layer_types", "quant_skip_types"))
        if skip is None:
            return None, DEFAULT
        rule, where = skip
        if not chosen.quantizes:
            return f"named in {rule.split()[0]} ({where})", rule
        place = self.config.where(chosen.field, chosen.name)
        self._event("info", place, f"{chosen.field} '{chosen.name}' wins over {rule}", row.layer)
        return None, chosen.rule

    def _skip(self, row: LayerRow, by_name: Sequence[str], by_type: Sequence[str]) -> tuple[str, str] | None:
        """Return the rule that skips a layer and its place."""
        for field in by_name:
            if row.layer in getattr(self.config, field):
                return field, self.config.where(field, row.layer)
        for field in by_type:
            for name in getattr(self.config, field):
                if self._is_of(row, field, name):
                    return f'{field} "{name}"', self.config.where(field, name)
        return None

    def _data(self, row: LayerRow, chosen: _Chosen) -> tuple[UlqSettings, str, str]:
        given = chosen.block.data
        rule = DEFAULT if given is None else chosen.rule or DATA
        data = UlqSettings() if given is None else given
        if data.fixed_min is not None:
            return data, rule, rule
        after_relu = row.layer in self.nodes and self.nodes[row.layer].producer == "Relu"
        return replace(data, fixed_min=after_relu), rule, PRODUCER

    def _weight(self, row: LayerRow, chosen: _Chosen, *, enabled: bool) -> tuple[WeightRetrainSettings, str]:
        given = chosen.block.weight
        rule = DEFAULT if given is None else chosen.rule or WEIGHT
        weight = ArqRetrainSettings() if given is None else given
        possible = limits.CHANNEL_WISE_DEFAULT[row.op_type]
        asked = possible if weight.channel_wise is None else weight.channel_wise
        if asked and not possible and enabled:
            self._no_channels(row, chosen, weight)
        return replace(weight, channel_wise=asked and possible), rule

    def _no_channels(self, row: LayerRow, chosen: _Chosen, weight: WeightRetrainSettings) -> None:
        where = self._place(chosen, f"{WEIGHT}.{_algorithm(weight)}.channel_wise", WEIGHT)
        if chosen.means_only(("Gemm", "MatMul", "AveragePool")):
            message = f"{where}: {chosen.rule}: channel_wise is true, but only Conv and ConvTranspose can have it"
            raise ConfigError(message)
        text = f"channel_wise: true has no effect on {row.op_type} '{row.layer}': one scale for the whole tensor"
        self._event("info", where, text, row.layer)

    def _refused(self, row: LayerRow, chosen: _Chosen, data: UlqSettings, weight: WeightRetrainSettings) -> str | None:
        """Check the widths of an enabled layer; return why it must stay in float."""
        if (data.dst_type, weight.dst_type) not in _PAIRS:
            where = self._place(chosen, WEIGHT, DATA)
            known = ", ".join(f"{one} with {other}" for one, other in _PAIRS)
            pair = f"data of {data.dst_type} with weights of {weight.dst_type}"
            message = f"{where}: '{row.layer}': {pair} is impossible; possible are {known}"
            raise ConfigError(message)
        if row.op_type != "AveragePool" or "INT4" not in (data.dst_type, weight.dst_type):
            return None
        where = self._place(chosen, DATA, WEIGHT)
        if chosen.means_only(("AveragePool",)):
            message = f"{where}: {chosen.rule}: dst_type is INT4, but an AveragePool cannot have it; use INT8"
            raise ConfigError(message)
        self._event("warn", where, f"AveragePool '{row.layer}' cannot have INT4; it stays in float", row.layer)
        return "an AveragePool cannot have INT4"

    def _prune(self, row: LayerRow, override: _Chosen | None) -> tuple[PruneSettings | None, str]:
        if override is not None and override.block.prune is not None:
            return override.block.prune, override.rule
        skips = ("skip_layers", "regular_prune_skip_layers"), ("skip_layer_types", "regular_prune_skip_types")
        if row.op_type not in _PRUNABLE:
            return None, LAYER if self.config.prune is not None else DEFAULT
        if (skip := self._skip(row, *skips)) is not None:
            return None, skip[0]
        return self.config.prune, DEFAULT if self.config.prune is None else PRUNE

    def _place(self, chosen: _Chosen, *members: str) -> str:
        """Return the place of the first of these members that is written, else of the block that rules."""
        places = chosen.block.places
        if chosen.field:
            return next((places[one] for one in members if one in places), self.config.where(chosen.field, chosen.name))
        known = (self.config.positions.get((one, "")) for one in members)
        return next((place for place in known if place is not None), self.config.source or "configuration")


def _algorithm(weight: WeightRetrainSettings) -> str:
    return "ulq_retrain" if isinstance(weight, UlqRetrainSettings) else "arq_retrain"


def _columns(row: RetrainLayerPlan) -> dict[str, Any]:
    return {
        "layer_id": row.layer_id,
        "layer": row.layer,
        "op_type": row.op_type,
        "retrain_enable": row.enabled,
        "reason": row.reason,
        "data_algorithm": "ulq_quantize",
        "clip_max": row.data.clip_max,
        "clip_min": row.data.clip_min,
        "fixed_min": row.data.fixed_min,
        "data_type": row.data.dst_type,
        "weight_algorithm": _algorithm(row.weight),
        "channel_wise": row.weight.channel_wise,
        "weight_type": row.weight.dst_type,
        **_prune_columns(row.prune),
        "enabled_decided_by": row.enabled_decided_by,
        "data_decided_by": row.data_decided_by,
        "fixed_min_decided_by": row.fixed_min_decided_by,
        "weight_decided_by": row.weight_decided_by,
        "prune_decided_by": row.prune_decided_by,
    }


def _prune_columns(prune: PruneSettings | None) -> dict[str, Any]:
    if prune is None:
        return dict.fromkeys(("prune_type", "prune_ratio", "ascend_optimized", "update_freq"))
    if isinstance(prune, FilterPruneSettings):
        return {
            "prune_type": "filter_prune", "prune_ratio": prune.prune_ratio,
            "ascend_optimized": prune.ascend_optimized, "update_freq": None,
        }  # fmt: skip
    return {
        "prune_type": "selective_prune",
        "prune_ratio": None,
        "ascend_optimized": None,
        "update_freq": prune.update_freq,
    }
