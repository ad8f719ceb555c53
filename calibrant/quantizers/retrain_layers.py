"""A retrain configuration and layers to what AMCT's create_quant_retrain_config writes for each of them.

An override of a layer beats one of its type, which beats what holds for all; the block that wins is taken whole, and what it
omits has the defaults. An override beats a skip.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import polars as pl

from calibrant.errors import ConfigError, nearest
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
from calibrant.proto.retrain_json import (
    RETRAIN_KEYS,
    RetrainJson,
    RetrainJsonData,
    RetrainJsonLayer,
    RetrainJsonPrune,
    RetrainJsonWeight,
)
from calibrant.quantizers.layer_limits import CHANNEL_WISE_DEFAULT, is_depthwise
from calibrant.stats.events import Event
from calibrant.stats.tables import LayerRow

LAYERS: Final = "override_layer_configs"
TYPES: Final = "override_layer_types"

_PRUNABLE: Final = ("Conv", "Gemm", "MatMul")
_COLUMNS: Final = {
    "layer_id": pl.Int64, "layer": pl.String, "op_type": pl.String, "retrain_enable": pl.Boolean,
    "data_algorithm": pl.String, "clip_max": pl.Float64, "clip_min": pl.Float64, "fixed_min": pl.Boolean,
    "data_type": pl.String, "weight_algorithm": pl.String, "channel_wise": pl.Boolean, "weight_type": pl.String,
    "prune_type": pl.String,
}  # fmt: skip


class RetrainLayers(NamedTuple):
    """What a configuration means for a model.

    Attributes:
        json: one entry a layer that can be quantized, in the order of the model.
        events: what a person should know.
    """

    json: RetrainJson
    events: tuple[Event, ...]


def retrain_layers(config: RetrainConfig, layers: Sequence[LayerRow]) -> RetrainLayers:
    """Resolve a retrain configuration.

    Args:
        config: what the user asked for; ``RetrainConfig()`` for AMCT's defaults.
        layers: the `layers` table of the prepared model.

    Raises:
        ConfigError: a name or type that does not exist (with the nearest one), or nothing left to train.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> retrain_layers(RetrainConfig(), [row]).json.layers["fc"].weight
        RetrainJsonWeight(algo='arq_retrain', channel_wise=False, dst_type='INT8')
    """
    return _Resolution(config, layers).resolve()


def check_retrain_json(config: RetrainJson, layers: Sequence[LayerRow]) -> tuple[Event, ...]:
    """Check the layers of a retrain config.json against a model.

    Returns:
        Notes on layers of the model that the file does not name: they stay in float.

    Raises:
        ConfigError: a layer that does not exist (with the nearest one) or cannot be quantized.
    """
    by_name = {row.layer: row for row in layers}
    for name, layer in config.layers.items():
        row = by_name.get(name)
        if row is None:
            hint = nearest(name, [*by_name, *RETRAIN_KEYS])
            message = f"{config.where(name)}: '{name}' is no layer of the model and no key of config.json{hint}"
            raise ConfigError(message)
        if layer.retrain_enable and not row.quantizable:
            message = (
                f"{config.where(name)}: layer '{name}' cannot be quantized: {row.reason}; set retrain_enable to false"
            )
            raise ConfigError(message)
    source = config.source or "config.json"
    absent = [row.layer for row in layers if row.quantizable and row.layer not in config.layers]
    return tuple(
        Event("fit", "info", f"{source}: layer '{name}' is not in the file and stays in float") for name in absent
    )


class _Resolution:
    """One pass over the layers; gathers events on the way."""

    def __init__(self, config: RetrainConfig, layers: Sequence[LayerRow]) -> None:
        self.config = config
        self.rows = [row for row in layers if row.quantizable]
        self.by_name = {row.layer: row for row in layers}
        self.events = [Event("fit", note.severity, note.message) for note in config.notes]

    def resolve(self) -> RetrainLayers:
        self.config.check_types()
        self._check_names()
        found = {row.layer: self._layer(row) for row in self.rows}
        if not any(one.retrain_enable or one.regular_prune_enable for one in found.values()):
            message = f"{self.config.source or 'configuration'}: no layer is left to train; leave at least one"
            raise ConfigError(message)
        batches, mode = self.config.batch_num or 1, self.config.fakequant_precision_mode
        return RetrainLayers(RetrainJson(batches, found, mode), tuple(self.events))

    def _warn(self, where: str, text: str, layer: str | None = None) -> None:
        self.events.append(Event("fit", "warn", f"{where}: {text}", layer))

    def _check_names(self) -> None:
        fields = ("skip_layers", "quant_skip_layers", "regular_prune_skip_layers")
        named = [(field, name) for field in fields for name in getattr(self.config, field)]
        for field, name in [*named, *((LAYERS, name) for name, _ in self.config.override_layers)]:
            row, where = self.by_name.get(name), self.config.where(field, name)
            if row is None:
                message = (
                    f"{where}: {field} names '{name}', but the model has no such layer{nearest(name, self.by_name)}"
                )
                raise ConfigError(message)
            if not row.quantizable:
                message = f"{where}: {field} names '{name}', which cannot be quantized: {row.reason}; delete it"
                raise ConfigError(message)

    def _layer(self, row: LayerRow) -> RetrainJsonLayer:
        config, block = self.config, self._block(row)
        own = block if block is not None and (block.data is not None or block.weight is not None) else None
        data, weight = (config.data, config.weight) if own is None else (own.data, own.weight)
        prune = self._prune(row, block)
        enabled = own is not None or not self._skipped(
            row, ("skip_layers", "quant_skip_layers"), ("skip_layer_types", "quant_skip_types")
        )
        layer = RetrainJsonLayer(
            retrain_enable=enabled and self._can_be_narrow(row, data, weight),
            data=_data(data or UlqSettings()),
            weight=self._weight(row, weight or ArqRetrainSettings()),
        )
        return layer if prune is None else replace(layer, regular_prune_enable=True, prune=_pruned(prune))

    def _block(self, row: LayerRow) -> RetrainBlock | None:
        named = dict(self.config.override_layers)
        if row.layer in named:
            return named[row.layer]
        types = (block for name, block in reversed(self.config.override_types) if self._is_of(row, TYPES, name))
        return next(types, None)

    def _is_of(self, row: LayerRow, field: str, name: str) -> bool:
        return self.config.type_of(field, name).matches(row.op_type, row.kernel_rank, depthwise=is_depthwise(row))

    def _skipped(self, row: LayerRow, by_name: Sequence[str], by_type: Sequence[str]) -> bool:
        named = any(row.layer in getattr(self.config, field) for field in by_name)
        return named or any(self._is_of(row, field, name) for field in by_type for name in getattr(self.config, field))

    def _can_be_narrow(self, row: LayerRow, data: UlqSettings | None, weight: WeightRetrainSettings | None) -> bool:
        asked = [one.dst_type for one in (data, weight) if one is not None]
        if row.op_type != "AveragePool" or "INT4" not in asked:
            return True
        self._warn(
            self.config.source or "configuration",
            f"AveragePool '{row.layer}' cannot have INT4; it stays in float",
            row.layer,
        )
        return False

    def _weight(self, row: LayerRow, weight: WeightRetrainSettings) -> RetrainJsonWeight:
        possible = CHANNEL_WISE_DEFAULT[row.op_type]
        if weight.channel_wise and not possible:
            text = f"channel_wise: true has no effect on {row.op_type} '{row.layer}': one scale for the whole tensor"
            self._warn(self.config.source or "configuration", text, row.layer)
        channel_wise = possible if weight.channel_wise is None else weight.channel_wise and possible
        algorithm = "ulq_retrain" if isinstance(weight, UlqRetrainSettings) else "arq_retrain"
        return RetrainJsonWeight(
            "ulq_retrain" if algorithm == "ulq_retrain" else "arq_retrain", channel_wise, weight.dst_type
        )

    def _prune(self, row: LayerRow, block: RetrainBlock | None) -> PruneSettings | None:
        if block is not None and block.prune is not None:
            return block.prune
        fields = ("skip_layers", "regular_prune_skip_layers"), ("skip_layer_types", "regular_prune_skip_types")
        able = row.op_type in _PRUNABLE and not self._skipped(row, *fields)
        return self.config.prune if able else None


def _data(data: UlqSettings) -> RetrainJsonData:
    return RetrainJsonData("ulq_quantize", data.clip_max, data.clip_min, data.fixed_min, data.dst_type)


def _pruned(prune: PruneSettings) -> RetrainJsonPrune:
    if isinstance(prune, FilterPruneSettings):
        algorithm = "balanced_l2_norm_filter_prune"
        return RetrainJsonPrune("filter_prune", algorithm, prune.prune_ratio, prune.ascend_optimized)
    return RetrainJsonPrune(
        "selective_prune", "l1_selective_prune", n_out_of_m_type=prune.n_out_of_m_type, update_freq=prune.update_freq
    )


def retrain_frame(config: RetrainJson, layers: Sequence[LayerRow]) -> pl.DataFrame:
    """Return one row a layer of the model with what a retrain config.json says of it; null where it says nothing."""
    return pl.DataFrame([_columns(row, config.layers.get(row.layer)) for row in layers], schema=_COLUMNS)


def _columns(row: LayerRow, layer: RetrainJsonLayer | None) -> dict[str, object]:
    found = layer or RetrainJsonLayer(None)
    data, weight = (
        found.data or RetrainJsonData(None, dst_type=None),
        found.weight or RetrainJsonWeight(None, None, None),
    )
    return {
        "layer_id": row.layer_id,
        "layer": row.layer,
        "op_type": row.op_type,
        "retrain_enable": bool(found.retrain_enable),
        "data_algorithm": data.algo,
        "clip_max": data.clip_max,
        "clip_min": data.clip_min,
        "fixed_min": data.fixed_min,
        "data_type": data.dst_type,
        "weight_algorithm": weight.algo,
        "channel_wise": weight.channel_wise,
        "weight_type": weight.dst_type,
        "prune_type": found.prune.prune_type if found.prune is not None and found.regular_prune_enable else None,
    }
