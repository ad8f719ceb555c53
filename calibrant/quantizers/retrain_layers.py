"""A retrain configuration and layers to what AMCT's create_quant_retrain_config writes for each of them.

Which rule decides what: `calibrant.quantizers.retrain_plan`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import polars as pl

from calibrant.errors import ConfigError, nearest
from calibrant.proto.retrain_config import FilterPruneSettings, PruneSettings, RetrainConfig, UlqRetrainSettings
from calibrant.proto.retrain_json import (
    RETRAIN_KEYS,
    RetrainJson,
    RetrainJsonData,
    RetrainJsonLayer,
    RetrainJsonPrune,
    RetrainJsonWeight,
)
from calibrant.quantizers.retrain_plan import PRODUCER, RetrainLayerPlan, resolve_retrain_plan
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

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


def retrain_layers(
    config: RetrainConfig, layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode] | None = None
) -> RetrainLayers:
    """Resolve a retrain configuration and write it out.

    Args:
        config: what the user asked for; ``RetrainConfig()`` for AMCT's defaults.
        layers: the `layers` table of the prepared model.
        nodes: the model's nodes by name.

    Raises:
        ConfigError: as `calibrant.quantizers.retrain_plan.resolve_retrain_plan`.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> retrain_layers(RetrainConfig(), [row]).json.layers["fc"].weight
        RetrainJsonWeight(algo='arq_retrain', channel_wise=False, dst_type='INT8')
    """
    plan = resolve_retrain_plan(config, layers, nodes or {})
    written = {row.layer: _json_layer(row) for row in plan.rows}
    return RetrainLayers(RetrainJson(config.batch_num or 1, written, config.fakequant_precision_mode), plan.events)


def _json_layer(row: RetrainLayerPlan) -> RetrainJsonLayer:
    """Write a layer out; what follows from the layer's input is left to the reader, as AMCT leaves it."""
    data, weight = row.data, row.weight
    fixed_min = None if row.fixed_min_decided_by == PRODUCER else data.fixed_min
    return RetrainJsonLayer(
        retrain_enable=row.enabled,
        data=RetrainJsonData("ulq_quantize", data.clip_max, data.clip_min, fixed_min, data.dst_type),
        weight=RetrainJsonWeight(
            "ulq_retrain" if isinstance(weight, UlqRetrainSettings) else "arq_retrain",
            weight.channel_wise,
            weight.dst_type,
        ),
        regular_prune_enable=None if row.prune is None else True,
        prune=None if row.prune is None else _pruned(row.prune),
    )


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
