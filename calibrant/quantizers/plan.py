"""Configuration and layers to one decision a layer, with the rule that decided each group of values.

Precedence is AMCT's: ``override_layer_configs`` > ``override_layer_types`` > ``common_config`` > default. The block that wins is
taken whole: what it omits has the defaults, not the values of a lower level. Only data ``asymmetric`` falls through: own value >
``common_config``'s where its data algorithm is the same > ``activation_offset``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from calibrant.errors import ConfigError, nearest
from calibrant.proto.json_config import GLOBAL_KEYS, JsonActivation, JsonConfig, JsonLayer, JsonWeight
from calibrant.proto.simple_config import CalibrationBlock, QuantConfig
from calibrant.quantizers.layer_plan import DataPlan, LayerPlan, Plan, WeightPlan
from calibrant.quantizers.layer_settings import (
    CHANNEL_WISE_DEFAULT,
    COMMON,
    DEFAULT,
    LAYERS,
    TYPES,
    Adjustment,
    Chosen,
    LayerSettings,
)
from calibrant.stats.events import Event, Severity
from calibrant.stats.tables import LayerRow

__all__ = ["DataPlan", "LayerPlan", "Plan", "WeightPlan", "json_config", "resolve_plan"]

TENSOR_TYPES: Final = frozenset({"MaxPool", "Add"})  # only their inputs can be quantized


def resolve_plan(config: QuantConfig, layers: Sequence[LayerRow], *, other_nodes: Iterable[str] = ()) -> Plan:
    """Decide for every layer whether and how it is quantized.

    Args:
        config: what the user asked for; ``QuantConfig()`` for AMCT's defaults.
        layers: the `layers` table of the prepared model, refused layers included.
        other_nodes: names of the model's other nodes, so that an override of one is known to be inert rather than misspelt.

    Raises:
        ConfigError: a name or type that does not exist (with the nearest one), a setting that a layer cannot have, or nothing
            left to quantize; says ``file:line:column``.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> plan = resolve_plan(QuantConfig(activation_offset=False), [row])
        >>> plan.rows[0].data.algorithm, plan.rows[0].data.asymmetric, plan.rows[0].asymmetric_decided_by
        ('ifmr', False, 'activation_offset')
    """
    return _Resolution(config, layers, frozenset(other_nodes)).plan()


def json_config(config: QuantConfig, plan: Plan, *, batch_num: int | None = None) -> JsonConfig:
    """Return the configuration that writes every value of the plan out, as AMCT's create_quant_config does.

    Skipped layers stay with ``quant_enable`` false and their values; layers that cannot be quantized are left out.

    Args:
        config: what the plan was resolved from.
        plan: the decisions.
        batch_num: batches to write where the configuration names none; 1, AMCT's default, where this is None as well.
    """
    batches = next((number for number in (config.batch_num, batch_num) if number is not None), 1)
    return JsonConfig(
        batch_num=batches,
        activation_offset=config.activation_offset,
        joint_quant=config.joint_quant,
        do_fusion=config.do_fusion,
        skip_fusion_layers=config.skip_fusion_layers,
        layers={row.layer: _json_layer(row) for row in plan.rows if row.enabled_decided_by != "layer"},
    )


def _json_layer(row: LayerPlan) -> JsonLayer:
    data = row.data
    activation = JsonActivation(
        act_algo=data.algorithm,
        asymmetric=data.asymmetric,
        num_bits=data.bits,
        max_percentile=data.max_percentile,
        min_percentile=data.min_percentile,
        search_range=data.search_range,
        search_step=data.search_step,
        num_of_bins=data.num_of_bins,
    )
    return JsonLayer(row.enabled, activation, JsonWeight(row.weight.channel_wise, row.weight.bits))


class _Resolution:
    """One pass over the layers; gathers events on the way."""

    def __init__(self, config: QuantConfig, layers: Sequence[LayerRow], other_nodes: frozenset[str]) -> None:
        self.config = config
        self.layers = layers
        self.by_name = {row.layer: row for row in layers}
        self.other_nodes = other_nodes
        self.type_blocks = dict(config.override_types)
        self.layer_blocks = dict(config.override_layers)
        self.events = [Event("fit", note.severity, note.message) for note in config.notes]
        self.adjusted: Counter[Adjustment] = Counter()

    def plan(self) -> Plan:
        self._check_model()
        self._check_types()
        self._check_skipped_layers()
        self._check_overridden_layers()
        rows = tuple(self._row(row) for row in self.layers)
        self._check_something_left(rows)
        self._report_inert_type_overrides()
        self._report_shadowed_blocks()
        self._report_adjusted()
        return Plan(rows, tuple(self.events))

    def _event(self, severity: Severity, message: str, layer: str | None = None) -> None:
        self.events.append(Event("fit", severity, message, layer))

    # What the configuration names must exist.

    def _check_model(self) -> None:
        for row in self.layers:
            if row.quantizable and row.layer in GLOBAL_KEYS:
                message = (
                    f"layer '{row.layer}' has the name of a key of AMCT's config.json; rename the node in the model"
                )
                raise ConfigError(message)

    def _check_types(self) -> None:
        present = {row.op_type for row in self.layers}
        named = [("skip_layer_types", name) for name in self.config.skip_layer_types]
        for field, name in [*named, *((TYPES, name) for name in self.type_blocks)]:
            where = self.config.where(field, name)
            if name not in CHANNEL_WISE_DEFAULT:
                message = f"{where}: {_unknown_type(field, name)}"
                raise ConfigError(message)
            if name not in present:
                self._event("warn", f"{where}: {field} '{name}': the model has no layer of this type")

    def _check_skipped_layers(self) -> None:
        for name in self.config.skip_layers:
            row, where = self.by_name.get(name), self.config.where("skip_layers", name)
            if row is None:
                message = f"{where}: skip_layers names '{name}', {self._no_layer(name)}"
                raise ConfigError(message)
            if row.op_type not in CHANNEL_WISE_DEFAULT:
                message = f"{where}: skip_layers names '{name}', but a {row.op_type} is never quantized; delete it"
                raise ConfigError(message)
            if not row.quantizable:
                self._event(
                    "warn", f"{where}: skip_layers '{name}' changes nothing: not quantized anyway: {row.reason}", name
                )

    def _check_overridden_layers(self) -> None:
        for name in self.layer_blocks:
            row, where = self.by_name.get(name), self.config.where(LAYERS, name)
            if row is None and name not in self.other_nodes:
                message = f"{where}: {LAYERS} names '{name}', {self._no_layer(name)}"
                raise ConfigError(message)
            if row is None:
                self._event(
                    "warn", f"{where}: {LAYERS} '{name}' changes nothing: a node of this type is never quantized", name
                )
            elif not row.quantizable:
                self._event("warn", f"{where}: {LAYERS} '{name}' changes nothing: not quantized: {row.reason}", name)

    def _no_layer(self, name: str) -> str:
        if name in self.other_nodes:
            return "but a node of its type is never quantized; delete it"
        hint = nearest(name, self.by_name) or _examples(self.by_name)
        return f"but the model has no such layer{hint}"

    def _check_something_left(self, rows: Sequence[LayerPlan]) -> None:
        if any(row.enabled for row in rows):
            return
        able = sum(row.quantizable for row in self.layers)
        if able:
            source = self.config.source or "configuration"
            message = (
                f"{source}: skip_layers and skip_layer_types skip all {able} layers; leave at least one to quantize"
            )
        else:
            reason = next((f" ('{row.layer}': {row.reason})" for row in self.layers), "")
            message = f"the model has no layer that can be quantized{reason}"
        raise ConfigError(message)

    # One layer.

    def _row(self, row: LayerRow) -> LayerPlan:
        enabled_by, reason = self._enabled(row)
        enabled = enabled_by == DEFAULT
        settings = LayerSettings(self.config, row, self._chosen(row), quantized=enabled)
        data, data_by, asymmetric_by = settings.data()
        weight, weight_by = settings.weight()
        if enabled:
            self.adjusted.update(settings.adjustments)
        elif enabled_by != "layer":
            self._report_inert_override(row, enabled_by)
        return LayerPlan(
            row.layer_id, row.layer, row.op_type, row.tensor_id, enabled, reason, data, weight,
            enabled_by, data_by, asymmetric_by, weight_by,
        )  # fmt: skip

    def _enabled(self, row: LayerRow) -> tuple[str, str | None]:
        if not row.quantizable:
            return "layer", row.reason
        if row.layer in self.config.skip_layers:
            return "skip_layers", f"named in skip_layers ({self.config.where('skip_layers', row.layer)})"
        if row.op_type in self.config.skip_layer_types:
            where = self.config.where("skip_layer_types", row.op_type)
            return f'skip_layer_types "{row.op_type}"', f"its type is named in skip_layer_types ({where})"
        return DEFAULT, None

    def _chosen(self, row: LayerRow) -> Chosen:
        return next(self._blocks(row.layer, row.op_type), Chosen())

    def _blocks(self, layer: str, op_type: str) -> Iterator[Chosen]:
        """Yield the blocks that speak of a layer, the strongest first."""
        if layer in self.layer_blocks:
            yield Chosen(LAYERS, layer, self.layer_blocks[layer])
        if op_type in self.type_blocks:
            yield Chosen(TYPES, op_type, self.type_blocks[op_type])
        if self.config.common is not None:
            yield Chosen(COMMON, "", self.config.common)

    # What a person should know.

    def _report_inert_override(self, row: LayerRow, rule: str) -> None:
        if row.layer in self.layer_blocks:
            where = self.config.where(LAYERS, row.layer)
            self._event("warn", f"{where}: {LAYERS} '{row.layer}' is inert: {rule} wins over it", row.layer)

    def _report_inert_type_overrides(self) -> None:
        for name in self.type_blocks:
            if name in self.config.skip_layer_types:
                where = self.config.where(TYPES, name)
                self._event("warn", f"{where}: {TYPES} '{name}' is inert: skip_layer_types \"{name}\" wins over it")

    def _report_shadowed_blocks(self) -> None:
        """Say where an override replaces a part of a weaker block by the defaults, which few expect."""
        for name in self.type_blocks:
            self._report_shadowed(*self._blocks("", name), op_type=name)
        for name in self.layer_blocks:
            if (row := self.by_name.get(name)) is not None:
                self._report_shadowed(*self._blocks(name, row.op_type), op_type=row.op_type)

    def _report_shadowed(self, chosen: Chosen, *weaker: Chosen, op_type: str) -> None:
        for part, other in _omitted(chosen.block, weaker, op_type).items():
            where = self.config.where(chosen.field, chosen.name)
            text = f"{chosen.field} '{chosen.name}' says nothing about the {part}: the defaults apply, not {other.rule}"
            self._event("info", f"{where}: {text}")

    def _report_adjusted(self) -> None:
        for (severity, asked, given), count in self.adjusted.items():
            self._event(severity, f"{asked} ({count} layer{'s' if count > 1 else ''}): {given}")


def _omitted(block: CalibrationBlock, weaker: Sequence[Chosen], op_type: str) -> dict[str, Chosen]:
    """Return the parts that a block omits, each with the strongest weaker block that has it."""
    found = {
        "data": next((one for one in weaker if block.data is None and one.block.data is not None), None),
        "weight": next((one for one in weaker if block.arq is None and one.block.arq is not None), None),
    }
    has_weight = op_type != "AveragePool"
    return {part: one for part, one in found.items() if one is not None and (part == "data" or has_weight)}


def _unknown_type(field: str, name: str) -> str:
    if name in TENSOR_TYPES:
        return f"{field} names '{name}', of which only inputs can be quantized (tensor_quantize); delete it"
    known = ", ".join(CHANNEL_WISE_DEFAULT)
    return (
        f"{field} names '{name}', which is no type that can be quantized ({known}){nearest(name, CHANNEL_WISE_DEFAULT)}"
    )


def _examples(names: Iterable[str]) -> str:
    first = list(names)[:3]
    return f"; its layers are {', '.join(first)} …" if first else ""
