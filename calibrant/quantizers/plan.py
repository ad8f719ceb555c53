"""Configuration and layers to one decision a layer, with the rule that decided each group of values.

Precedence is AMCT's: ``override_layer_configs`` > ``override_layer_types`` > ``common_config`` > default. The block that wins is
taken whole: what it omits has the defaults, not the values of a lower level. Only data ``asymmetric`` falls through: own value >
``common_config``'s where its data algorithm is the same > ``activation_offset``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from calibrant.errors import ConfigError, nearest
from calibrant.proto.json_config import GLOBAL_KEYS, JsonActivation, JsonConfig, JsonLayer, JsonWeight
from calibrant.proto.simple_config import ArqSettings, CalibrationBlock, HfmgSettings, IfmrSettings, QuantConfig
from calibrant.quantizers.layer_plan import DataPlan, LayerPlan, Plan, WeightPlan
from calibrant.stats.events import Event, Severity
from calibrant.stats.tables import LayerRow

__all__ = ["DataPlan", "LayerPlan", "Plan", "WeightPlan", "json_config", "resolve_plan"]

CHANNEL_WISE_DEFAULT: Final[Mapping[str, bool]] = {  # AMCT's, by ONNX type; also the types that can be quantized
    "Conv": True,
    "ConvTranspose": True,
    "Gemm": False,
    "MatMul": False,
    "AveragePool": False,
}
CHANNEL_WISE_TYPES: Final = frozenset(name for name, value in CHANNEL_WISE_DEFAULT.items() if value)
TENSOR_TYPES: Final = frozenset({"MaxPool", "Add"})  # only their inputs can be quantized
DATA_BITS: Final = 8  # INT16 is read and reported, not applied
DEFAULT: Final = "default"
COMMON: Final = "common_config"
TYPES: Final = "override_layer_types"
LAYERS: Final = "override_layer_configs"


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
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", 10, 4, 1, 0, None, 50, True, None)
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


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The block that rules a layer: its field (``override_layer_configs`` …), the name in it, and its settings."""

    field: str
    name: str
    block: CalibrationBlock

    @property
    def rule(self) -> str:
        return f'{self.field} "{self.name}"' if self.name else self.field

    @property
    def is_override(self) -> bool:
        return self.field != COMMON


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
        self.adjusted: Counter[tuple[Severity, str, str]] = Counter()  # (severity, before the type, after the count)

    def plan(self) -> Plan:
        self._check_model()
        self._check_types()
        self._check_skipped_layers()
        self._check_overridden_layers()
        rows = tuple(self._row(row) for row in self.layers)
        self._check_something_left(rows)
        self._report_inert_type_overrides()
        self._report_shadowed_common()
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
        chosen = self._chosen(row)
        enabled_by, reason = self._enabled(row)
        asked = _Asked(self, row, chosen, quiet=enabled_by != DEFAULT)
        data, data_by, asymmetric_by = asked.data()
        weight, weight_by = asked.weight()
        if enabled_by.startswith("skip") and row.layer in self.layer_blocks:
            where = self.config.where(LAYERS, row.layer)
            self._event("warn", f"{where}: {LAYERS} '{row.layer}' is inert: {enabled_by} wins over it", row.layer)
        return LayerPlan(
            row.layer_id, row.layer, row.op_type, row.tensor_id, enabled_by == DEFAULT, reason, data, weight,
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

    def _chosen(self, row: LayerRow) -> _Chosen | None:
        if row.layer in self.layer_blocks:
            return _Chosen(LAYERS, row.layer, self.layer_blocks[row.layer])
        if row.op_type in self.type_blocks:
            return _Chosen(TYPES, row.op_type, self.type_blocks[row.op_type])
        return None if self.config.common is None else _Chosen(COMMON, "", self.config.common)

    # What a person should know.

    def _report_inert_type_overrides(self) -> None:
        for name in self.type_blocks:
            if name in self.config.skip_layer_types:
                where = self.config.where(TYPES, name)
                self._event("warn", f"{where}: {TYPES} '{name}' is inert: skip_layer_types \"{name}\" wins over it")

    def _report_shadowed_common(self) -> None:
        """Say where an override replaces a part of common_config by the defaults, which few expect."""
        common = self.config.common
        if common is None:
            return
        for field, blocks in ((TYPES, self.type_blocks), (LAYERS, self.layer_blocks)):
            for name, block in blocks.items():
                missing = [
                    *(["data"] if common.data is not None and block.data is None else []),
                    *(["weight"] if common.arq is not None and block.arq is None else []),
                ]
                if missing:
                    text = f"says nothing about the {' and the '.join(missing)}: the defaults apply, not {COMMON}"
                    self._event("info", f"{self.config.where(field, name)}: {field} '{name}' {text}")

    def _report_adjusted(self) -> None:
        for (severity, before, after), count in self.adjusted.items():
            self._event(severity, f"{before} ({count} layer{'s' if count > 1 else ''}): {after}")


class _Asked:
    """What the chosen block asks of one layer, within what the layer can have."""

    def __init__(self, resolution: _Resolution, row: LayerRow, chosen: _Chosen | None, *, quiet: bool) -> None:
        self.resolution = resolution
        self.config = resolution.config
        self.row = row
        self.chosen = chosen
        self.block = chosen.block if chosen is not None else CalibrationBlock()
        self.rule = chosen.rule if chosen is not None else DEFAULT
        self.quiet = quiet  # nothing is said about layers that are not quantized

    def data(self) -> tuple[DataPlan, str, str]:
        settings = self.block.data
        rule = DEFAULT if settings is None else self.rule
        settings = IfmrSettings() if settings is None else settings
        asymmetric, asymmetric_by = self._asymmetric(settings)
        if isinstance(settings, HfmgSettings):
            return DataPlan("hfmg", DATA_BITS, asymmetric, num_of_bins=settings.num_of_bins), rule, asymmetric_by
        plan = DataPlan(
            "ifmr",
            DATA_BITS,
            asymmetric,
            max_percentile=settings.max_percentile,
            min_percentile=settings.min_percentile,
            search_range=(settings.search_range_start, settings.search_range_end),
            search_step=settings.search_step,
        )
        return plan, rule, asymmetric_by

    def _asymmetric(self, settings: IfmrSettings | HfmgSettings) -> tuple[bool, str]:
        value, rule = self._wanted_asymmetric(settings)
        if not value or self.row.kernel_rank != 3:
            return value, rule
        if rule.startswith(LAYERS) and not self.quiet:
            where = self._where(f"{_algorithm(settings)}_quantize.asymmetric")
            message = (
                f"{where}: asymmetric: true for '{self.row.layer}', but a layer with a 3-D kernel can only be symmetric"
            )
            raise ConfigError(message)
        severity: Severity = "warn" if rule.startswith(TYPES) else "info"
        self._adjust(
            severity, f"{self._asymmetric_place(rule)}: asymmetric has no effect on 3-D kernels", "data is symmetric"
        )
        return False, "layer"

    def _wanted_asymmetric(self, settings: IfmrSettings | HfmgSettings) -> tuple[bool, str]:
        if settings.asymmetric is not None:
            return settings.asymmetric, self.rule
        common = self.config.common
        of_common = (common.data or IfmrSettings()) if common is not None else None
        if of_common is not None and type(of_common) is type(settings) and of_common.asymmetric is not None:
            return of_common.asymmetric, COMMON
        return self.config.activation_offset, "activation_offset"

    def _asymmetric_place(self, rule: str) -> str:
        """Name the place of the value that `rule` gave."""
        if rule == "activation_offset":
            return f"{self.config.where('activation_offset')}: activation_offset"
        if rule == COMMON:
            return f"{self.config.where(COMMON)}: {COMMON}"
        return f"{self._block_place()}: {rule}"

    def weight(self) -> tuple[WeightPlan, str]:
        settings = self.block.arq
        rule = DEFAULT if settings is None else self.rule
        settings = ArqSettings() if settings is None else settings
        bits, channel_wise = self._bits(settings), self._channel_wise(settings)
        if self.row.op_type == "AveragePool":
            return WeightPlan("none", 8, channel_wise=False), rule
        return WeightPlan("arq", bits, channel_wise), rule

    def _channel_wise(self, settings: ArqSettings) -> bool:
        able = self.row.op_type in CHANNEL_WISE_TYPES
        if settings.channel_wise is None:
            return able
        if settings.channel_wise and not able:
            severity: Severity = "warn" if self.chosen is not None and self.chosen.is_override else "info"
            place = f"{self._where('arq_quantize.channel_wise')}: {self.rule}: channel_wise: true"
            self._adjust(severity, f"{place} has no effect on {self.row.op_type}", "one scale for the whole tensor")
            return False
        return settings.channel_wise

    def _bits(self, settings: ArqSettings) -> int:
        bits = settings.quant_bits
        if bits not in (6, 7):  # 4 is reported when the file is read
            return 8
        if self.row.op_type == "Conv" and self.row.kernel_rank == 2:
            return bits
        where = self._where("arq_quantize.quant_bits")
        narrow_override = self.chosen is not None and (
            self.chosen.field == LAYERS or (self.chosen.field == TYPES and self.row.op_type != "Conv")
        )
        if narrow_override and not self.quiet:
            message = f"{where}: {self.rule}: quant_bits is {bits}, but only a Conv with a 2-D kernel can have 6 or 7 bits; 8 is expected"
            raise ConfigError(message)
        kind = self.row.op_type if self.row.op_type != "Conv" else f"Conv with a {self.row.kernel_rank}-D kernel"
        self._adjust("warn", f"{where}: {self.rule}: quant_bits: {bits} has no effect on {kind}", "8 bits")
        return 8

    def _adjust(self, severity: Severity, before: str, after: str) -> None:
        if not self.quiet:
            self.resolution.adjusted[severity, before, after] += 1

    def _block_place(self) -> str:
        return self.config.where(self.chosen.field, self.chosen.name) if self.chosen is not None else "configuration"

    def _where(self, member: str) -> str:
        return self.block.places.get(member, self._block_place())


def _algorithm(settings: IfmrSettings | HfmgSettings) -> str:
    return "hfmg" if isinstance(settings, HfmgSettings) else "ifmr"


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
