"""One resolution of a configuration against the layers of a model; see `calibrant.quantizers.plan`."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from calibrant.errors import ConfigError, nearest
from calibrant.proto.json_config import GLOBAL_KEYS
from calibrant.proto.op_types import OpType, tensor_types
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers import layer_limits as limits
from calibrant.quantizers.half_factors import FORCED
from calibrant.quantizers.joint_groups import join_layers
from calibrant.quantizers.layer_plan import LayerPlan, Plan, TensorPlan
from calibrant.quantizers.layer_settings import (
    COMMON,
    DEFAULT,
    DST_TYPE,
    LAYER,
    LAYERS,
    NUQ_CONFIG,
    TYPES,
    Adjustment,
    Chosen,
    LayerSettings,
    omitted,
)
from calibrant.quantizers.not_applied import FEATURES
from calibrant.quantizers.nuq_layers import nuq_layers
from calibrant.quantizers.part_plans import WeightPlan
from calibrant.quantizers.tensor_inputs import TensorInputs
from calibrant.quantizers.unapplied_events import UnappliedEvents
from calibrant.stats.events import Event, Severity
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

if TYPE_CHECKING:
    from calibrant.proto.settings import CalibrationBlock

_DEPRECATED: Final = {  # field -> what it meant, and where `QuantConfig` keeps it
    "conv_calibration_config": (("Conv", "ConvTranspose"), "conv_calibration"),
    "fc_calibration_config": (("Gemm", "MatMul"), "fc_calibration"),
}


class Resolution:
    """One pass over the layers; gathers events on the way.

    Args:
        config: what the user asked for.
        layers: the model's layers.
        nodes: the model's nodes by name.
        nuq: the layers that ``nuq_config`` meant in an earlier resolution; None: its mapping file is read.
    """

    nothing_left = "skip_layers and skip_layer_types skip all {} layers; leave at least one to quantize"

    def __init__(
        self,
        config: QuantConfig,
        layers: Sequence[LayerRow],
        nodes: Mapping[str, ModelNode],
        nuq: Collection[str] | None,
    ) -> None:
        self.config = config
        self.layers = layers
        self.by_name = {row.layer: row for row in layers}
        self.nodes = nodes
        self.type_blocks = dict(config.override_types)
        self.layer_blocks = dict(config.override_layers)
        self.events = [Event("fit", note.severity, note.message) for note in config.notes]
        self.adjusted: Counter[Adjustment] = Counter()
        self.unapplied = UnappliedEvents(config)
        self.wide: list[str] = []  # where 16 bits of data are asked for
        self.types: dict[str, OpType] = {}
        self.known_nuq = nuq
        self.nuq: frozenset[str] = frozenset()

    def plan(self) -> Plan:
        """Return the decisions.

        Raises:
            ConfigError: as `calibrant.quantizers.plan.resolve_plan`.
        """
        self._check_model()
        self._check_types()
        self._check_skipped_layers()
        self._check_overridden_layers()
        self._check_deprecated()
        self.nuq, remarks = nuq_layers(self.config, self.layers, self.nodes, self.known_nuq)
        self.events.extend(remarks)
        tensors = TensorInputs(self.config, self.nodes)
        rows, joined = join_layers(self.config, [self._row(row) for row in self.layers], self.layers, self.nodes)
        inputs = tensors.beside(rows, self.layers)
        self._check_something_left(rows, inputs)
        self._report_inert_type_overrides()
        self._report_shadowed_blocks()
        self._report_adjusted()
        self._report_wide_data()
        self.events.extend(joined)
        self.events.extend(tensors.events)
        self.events.extend(self.unapplied.events())
        return Plan(rows, tuple(self.events), inputs, self.config.batch_num)

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
        named = [("skip_layer_types", name) for name in self.config.skip_layer_types]
        for field, name in [*named, *((TYPES, name) for name in self.type_blocks)]:
            where = self.config.where(field, name)
            if name in tensor_types(self.config.dialect):
                message = f"{where}: {field} names '{name}', of which only inputs can be quantized (tensor_quantize); delete it"
                raise ConfigError(message)
            self.types[name] = self.config.type_of(field, name)
            if not any(self._is_of(row, name) for row in self.layers):
                self._event("warn", f"{where}: {field} '{name}': the model has no layer of this type")

    def _is_of(self, row: LayerRow, type_name: str) -> bool:
        return self.types[type_name].matches(row.op_type, row.kernel_rank, depthwise=limits.is_depthwise(row))

    def _check_skipped_layers(self) -> None:
        for name in self.config.skip_layers:
            row, where = self.by_name.get(name), self.config.where("skip_layers", name)
            if row is None:
                message = f"{where}: skip_layers names '{name}', {self._no_layer(name)}"
                raise ConfigError(message)
            if row.op_type not in limits.CHANNEL_WISE_DEFAULT:
                message = f"{where}: skip_layers names '{name}', but a {row.op_type} is never quantized; delete it"
                raise ConfigError(message)
            if not row.quantizable:
                self._event(
                    "warn", f"{where}: skip_layers '{name}' changes nothing: not quantized anyway: {row.reason}", name
                )

    def _check_overridden_layers(self) -> None:
        for name in self.layer_blocks:
            row, where = self.by_name.get(name), self.config.where(LAYERS, name)
            if row is None and name not in self.nodes:
                message = f"{where}: {LAYERS} names '{name}', {self._no_layer(name)}"
                raise ConfigError(message)
            if row is None:
                self._event(
                    "warn", f"{where}: {LAYERS} '{name}' changes nothing: a node of this type is never quantized", name
                )
            elif not row.quantizable and row.tensor_b is None:
                self._event("warn", f"{where}: {LAYERS} '{name}' changes nothing: not quantized: {row.reason}", name)

    def _no_layer(self, name: str) -> str:
        if name in self.nodes:
            return "but a node of its type is never quantized; delete it"
        hint = nearest(name, self.by_name) or examples(self.by_name)
        return f"but the model has no such layer{hint}"

    def _check_deprecated(self) -> None:
        for field, (_, member) in _DEPRECATED.items():
            block: CalibrationBlock | None = getattr(self.config, member)
            if block is None:
                continue
            where = self.config.where(field)
            if self._deprecated_counts():
                self._event("warn", f"{where}: {field} is deprecated; use common_config or override_layer_types")
            else:
                text = f"{where}: {field} is deprecated and has no effect beside common_config or override_layer_types"
                self._event("warn", text)
            if member == "fc_calibration" and block.arq is not None and block.arq.channel_wise:
                place = block.places.get("arq_quantize.channel_wise", where)
                message = f"{place}: {field}: channel_wise is true, but a fully connected layer has one scale; set it to false"
                raise ConfigError(message)

    def _deprecated_counts(self) -> bool:
        return self.config.common is None and not self.config.override_types

    def _check_something_left(self, rows: Sequence[LayerPlan], tensors: Sequence[TensorPlan]) -> None:
        if any(row.enabled for row in rows) or any(one.enabled for one in tensors):
            return
        able, source = sum(row.quantizable for row in self.layers), self.config.source or "configuration"
        if able:
            message = f"{source}: {self.nothing_left.format(able)}"
        else:
            reason = next((f" ('{row.layer}': {row.reason})" for row in self.layers), "")
            message = f"the model has no layer that can be quantized{reason}"
        raise ConfigError(message)

    # One layer.

    def _row(self, row: LayerRow) -> LayerPlan:
        enabled_by, reason = self._enabled(row)
        enabled = reason is None
        settings = self._settings(row, quantized=enabled)
        data, data_by, asymmetric_by = settings.data()
        data = replace(data, half=self.config.fakequant_precision_mode == FORCED)
        weight, weight_by, weight_asymmetric_by = settings.weight()
        weight_only, weight_only_by = settings.weight_only()
        strength, balancer_by = settings.balancer()
        settings.check_weight_only()
        if enabled and (nothing := settings.nothing_to_compress()) is not None:
            enabled, enabled_by, reason = False, weight_only_by, nothing
            self.adjusted.update(settings.adjustments[-1:])
        fused, fusion_by = self._fusion(row)
        plan = LayerPlan(
            row.layer_id, row.layer, row.op_type, row.tensor_id, enabled, reason, data, weight,
            enabled_by, data_by, asymmetric_by, weight_by, weight_asymmetric_by, weight_only, weight_only_by,
            strength, balancer_by, fused, fusion_by,
        )  # fmt: skip
        plan = self._product(row, plan, settings)
        self._report(row, plan, settings)
        return plan

    def _product(self, row: LayerRow, plan: LayerPlan, settings: LayerSettings) -> LayerPlan:
        """Return the plan of a MatMul of two variables: 8 bits without offset on both sides, nothing else."""
        if row.tensor_b is None or not plan.enabled:
            return plan
        settings.check_product()
        tensors = self.nodes[row.layer].tensors[:2] if row.layer in self.nodes else ()
        data = replace(plan.data, asymmetric=False, bits=8)
        return replace(
            plan, data=data, asymmetric_decided_by=LAYER, weight=WeightPlan("none", 8, channel_wise=False),
            weight_only=False, migration_strength=None, tensors=tensors,
        )  # fmt: skip

    def _settings(self, row: LayerRow, *, quantized: bool) -> LayerSettings:
        levels = list(self._blocks(row))
        nuq = self.config.nuq if row.layer in self.nuq else None
        dilated = row.layer in self.nodes and self.nodes[row.layer].dilated
        return LayerSettings(self.config, row, levels, quantized=quantized, nuq=nuq, dilated=dilated)

    def _report(self, row: LayerRow, plan: LayerPlan, settings: LayerSettings) -> None:
        if not plan.enabled:
            if row.quantizable:
                self._report_inert_override(row, plan.enabled_decided_by)
            return
        self.adjusted.update(settings.adjustments)
        if plan.data.bits == 16:
            self.wide.append(settings.chosen.place(self.config, *DST_TYPE))
        for name in plan.not_applied:
            by_nuq_config = plan.weight_decided_by == NUQ_CONFIG and name == "nuq_quantize"
            where = settings.chosen.place(self.config, *FEATURES[name].members)
            self.unapplied.ask(name, row.layer, self.config.where(NUQ_CONFIG) if by_nuq_config else where)

    def _enabled(self, row: LayerRow) -> tuple[str, str | None]:
        chosen = next(iter(self._blocks(row)), Chosen())
        switched_on = row.tensor_b is not None and chosen.field in (TYPES, LAYERS)
        if not row.quantizable and not switched_on:
            return LAYER, row.reason or "cannot be quantized"
        if row.layer in self.config.skip_layers:
            return "skip_layers", f"named in skip_layers ({self.config.where('skip_layers', row.layer)})"
        for name in self.config.skip_layer_types:
            if self._is_of(row, name):
                where = self.config.where("skip_layer_types", name)
                return f'skip_layer_types "{name}"', f"its type is named in skip_layer_types ({where})"
        return (chosen.rule if switched_on else DEFAULT), None

    def _fusion(self, row: LayerRow) -> tuple[bool | None, str]:
        if row.op_type not in limits.FUSABLE:
            return None, DEFAULT
        if row.layer in self.config.skip_fusion_layers:
            return False, "skip_fusion_layers"
        said = not self.config.do_fusion or ("do_fusion", "") in self.config.positions
        return self.config.do_fusion, "do_fusion" if said else DEFAULT

    def _blocks(self, row: LayerRow) -> Iterator[Chosen]:
        """Yield the blocks that speak of a layer, the strongest first."""
        if row.layer in self.layer_blocks:
            yield Chosen(LAYERS, row.layer, self.layer_blocks[row.layer])
        yield from [self._type_block(name) for name in self._type_names(row)][:1]
        if self.config.common is not None:
            yield Chosen(COMMON, "", self.config.common)
        if self._deprecated_counts():
            for field, (types, member) in _DEPRECATED.items():
                block: CalibrationBlock | None = getattr(self.config, member)
                if block is not None and row.op_type in types:
                    yield Chosen(field, "", block)

    def _type_block(self, name: str) -> Chosen:
        return Chosen(TYPES, name, self.type_blocks[name], self.types[name])

    def _type_names(self, row: LayerRow) -> list[str]:
        """Return the overridden types that mean a layer: the most specific first, of equals the last in the file."""
        names = [name for name in reversed(self.type_blocks) if self._is_of(row, name)]
        return sorted(names, key=lambda name: _generality(self.types[name]))

    # What a person should know.

    def _report_inert_override(self, row: LayerRow, rule: str) -> None:
        if row.layer in self.layer_blocks:
            where = self.config.where(LAYERS, row.layer)
            self._event("warn", f"{where}: {LAYERS} '{row.layer}' is inert: {rule} wins over it", row.layer)

    def _report_inert_type_overrides(self) -> None:
        for name in self.type_blocks:
            where, of_type = self.config.where(TYPES, name), [row for row in self.layers if self._is_of(row, name)]
            if name in self.config.skip_layer_types:
                self._event("warn", f"{where}: {TYPES} '{name}' is inert: skip_layer_types \"{name}\" wins over it")
            elif of_type and all(self._type_names(row)[0] != name for row in of_type):
                other = self._type_names(of_type[0])[0]
                self._event("warn", f"{where}: {TYPES} '{name}' is inert: {TYPES} \"{other}\" means its layers as well")

    def _report_shadowed_blocks(self) -> None:
        """Say where an override replaces a part of a weaker block by the defaults, which few expect."""
        told = set()
        for row in self.layers:
            chosen, *weaker = [*self._blocks(row), Chosen()]
            for part, other in omitted(chosen, weaker, row.op_type) if chosen.field in (TYPES, LAYERS) else ():
                where = self.config.where(chosen.field, chosen.name)
                text = f"{chosen.field} '{chosen.name}' says nothing about the {part}: the defaults apply, not {other.rule}"
                told.add(f"{where}: {text}")
        for text in self._in_file_order(told):
            self._event("info", text)

    def _in_file_order(self, texts: Iterable[str]) -> list[str]:
        names = [*((TYPES, name) for name in self.type_blocks), *((LAYERS, name) for name in self.layer_blocks)]
        heads = [f"{self.config.where(*one)}: {one[0]} '{one[1]}' says" for one in names]
        parts = ("data", "weight:", "balancer", "weight_compress_only")
        return sorted(
            texts,
            key=lambda text: (
                next(i for i, head in enumerate(heads) if text.startswith(head)),
                next(i for i, part in enumerate(parts) if f"about the {part}" in text),
            ),
        )

    def _report_adjusted(self) -> None:
        for (severity, asked, given), count in self.adjusted.items():
            self._event(severity, f"{asked} ({count} layer{'s' if count > 1 else ''}): {given}")

    def _report_wide_data(self) -> None:
        if self.config.dialect == "atc" and self.wide:
            text = f"{self.wide[0]}: dst_type: INT16: ATC refuses it today; it is for other tools"
            self._event("warn", text)


def _generality(named: OpType) -> tuple[bool, float, int]:
    """Order types from the most specific: depthwise ones, then few kernels, then few ONNX types."""
    ranks = float("inf") if named.kernel_ranks is None else len(named.kernel_ranks)
    return (not named.depthwise, ranks, len(named.onnx))


def examples(names: Iterable[str]) -> str:
    """Return a few names for a message."""
    first = list(names)[:3]
    return f"; its layers are {', '.join(first)} …" if first else ""
