"""Advice put into a configuration of retraining: the config.json, or the simple configuration of the same meaning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    NamedRetrainBlock,
    RetrainBlock,
    RetrainConfig,
    UlqRetrainSettings,
    UlqSettings,
    WeightRetrainSettings,
)
from calibrant.proto.retrain_json import RetrainJson, RetrainJsonData, RetrainJsonLayer, RetrainJsonWeight
from calibrant.quantizers.retrain_advice import Advice, Value

Edits = Mapping[str | None, Mapping[str, Value]]


def edits_of(rows: Sequence[Advice]) -> dict[str | None, dict[str, Value]]:
    """Return the edits of advice by layer (None: the file) and key.

    Example:
        >>> edits_of([Advice("samples", "warn", None, "batch_num", 1, "5", "", 5)])
        {None: {'batch_num': 5}}
    """
    found: dict[str | None, dict[str, Value]] = {}
    for row in rows:
        if row.edit is not None:
            found.setdefault(row.layer, {})[row.key] = row.edit
    return found


def edited_json(config: RetrainJson, edits: Edits) -> RetrainJson:
    """Return a config.json with these edits; everything else stays, in its order."""
    layers = {name: _layer(layer, edits.get(name, {})) for name, layer in config.layers.items()}
    batch_num = edits.get(None, {}).get("batch_num", config.batch_num)
    return replace(config, layers=layers, batch_num=None if batch_num is None else int(batch_num))


def _layer(layer: RetrainJsonLayer, edits: Mapping[str, Value]) -> RetrainJsonLayer:
    if "retrain_enable" in edits:
        layer = replace(layer, retrain_enable=bool(edits["retrain_enable"]))
    data = {key: value for key, value in edits.items() if key in ("clip_max", "clip_min", "fixed_min")}
    if data:
        layer = replace(layer, data=_data(layer.data or RetrainJsonData(), data))
    if "channel_wise" in edits:
        weight = layer.weight or RetrainJsonWeight()
        layer = replace(layer, weight=replace(weight, channel_wise=bool(edits["channel_wise"])))
    return layer


def _data(data: RetrainJsonData, edits: Mapping[str, Value]) -> RetrainJsonData:
    return replace(
        data,
        clip_max=_number(edits.get("clip_max", data.clip_max)),
        clip_min=_number(edits.get("clip_min", data.clip_min)),
        fixed_min=bool(edits["fixed_min"]) if "fixed_min" in edits else data.fixed_min,
    )


def _number(value: Value | None) -> float | None:
    return None if value is None else float(value)


def edited_config(config: RetrainConfig, edits: Edits, resolved: RetrainJson) -> RetrainConfig:
    """Return a simple configuration with these edits; everything else stays.

    A layer that is to stay in float is skipped and loses its override of data and weight, since an override beats a skip. Any other
    edit becomes an override that says everything about its layer, since a block is taken whole.

    Args:
        config: the configuration.
        edits: what to change.
        resolved: what the configuration means for each layer.
    """
    off = [name for name, layer in edits.items() if name is not None and layer.get("retrain_enable") is False]
    own = {name: layer for name, layer in edits.items() if name is not None and name not in off and layer}
    batch_num = edits.get(None, {}).get("batch_num", config.batch_num)
    skipped = [name for name in off if name not in config.quant_skip_layers]
    return replace(
        config,
        batch_num=None if batch_num is None else int(batch_num),
        quant_skip_layers=(*config.quant_skip_layers, *skipped),
        override_layers=tuple(_overrides(config, off, own, resolved)),
    )


def _overrides(
    config: RetrainConfig, off: Sequence[str], own: Mapping[str, Mapping[str, Value]], resolved: RetrainJson
) -> Iterator[NamedRetrainBlock]:
    for name, block in config.override_layers:
        if name in own:
            yield name, _block(resolved.layers[name], own[name], block)
        elif name not in off:
            yield name, block
        elif block.prune is not None:
            yield name, RetrainBlock(prune=block.prune)
    written = {name for name, _ in config.override_layers}
    for name, layer in own.items():
        if name not in written:
            yield name, _block(resolved.layers[name], layer, RetrainBlock())


def _block(layer: RetrainJsonLayer, edits: Mapping[str, Value], block: RetrainBlock) -> RetrainBlock:
    whole = _layer(layer, edits)
    data, weight = whole.data or RetrainJsonData(), whole.weight or RetrainJsonWeight()
    kind: type[WeightRetrainSettings] = UlqRetrainSettings if weight.algo == "ulq_retrain" else ArqRetrainSettings
    return replace(
        block,
        data=UlqSettings(data.clip_max, data.clip_min, data.fixed_min, data.dst_type or "INT8"),
        weight=kind(weight.channel_wise, weight.dst_type or "INT8"),
        places={},
    )
