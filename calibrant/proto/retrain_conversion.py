"""A retrain config.json as a simple configuration of retraining, and what it loses on the way."""

from collections.abc import Iterator, Sequence

from calibrant.errors import ConfigError
from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    FilterPruneSettings,
    PruneSettings,
    RetrainBlock,
    RetrainConfig,
    SelectivePruneSettings,
    UlqRetrainSettings,
    UlqSettings,
    WeightRetrainSettings,
)
from calibrant.proto.retrain_json import RetrainJson, RetrainJsonData, RetrainJsonPrune, RetrainJsonWeight
from calibrant.proto.simple_config import ConfigNote


def retrain_config_of(config: RetrainJson, absent: Sequence[str] = ()) -> RetrainConfig:
    """Return a retrain config.json as a simple configuration.

    Args:
        config: the file.
        absent: layers of the model that the file does not name; they are skipped.

    Returns:
        The configuration; its notes tell what it cannot say: the settings of a layer that is not trained, since an override
        beats a skip.

    Example:
        >>> from calibrant.proto.retrain_json import parse_retrain_json
        >>> config = parse_retrain_json('{"fc":{"retrain_enable":true},"conv":{"retrain_enable":false}}')
        >>> retrain_config_of(config).quant_skip_layers
        ('conv',)
    """
    skipped = tuple(name for name, layer in config.layers.items() if not layer.retrain_enable)
    return RetrainConfig(
        batch_num=config.batch_num,
        quant_skip_layers=(*skipped, *absent),
        override_layers=tuple((name, block) for name, block in _blocks(config) if block != RetrainBlock()),
        fakequant_precision_mode=config.fakequant_precision_mode,
        source=config.source,
        notes=(*config.notes, *_dropped(config)),
    )


def _blocks(config: RetrainJson) -> Iterator[tuple[str, RetrainBlock]]:
    for name, layer in config.layers.items():
        prune = _prune_settings(layer.prune) if layer.regular_prune_enable and layer.prune is not None else None
        if layer.retrain_enable:
            yield name, RetrainBlock(_ulq(layer.data), _weight_settings(layer.weight), prune)
        else:
            yield name, RetrainBlock(prune=prune)


def _dropped(config: RetrainJson) -> Iterator[ConfigNote]:
    for name, layer in config.layers.items():
        if not layer.retrain_enable and (layer.data is not None or layer.weight is not None):
            text = f"{config.where(name)}: layer '{name}' is not trained; its settings are left out, since an override would train it"
            yield ConfigNote("info", text)
        if layer.prune is not None and not layer.regular_prune_enable:
            text = f"{config.where(name)}: layer '{name}' is not pruned; its regular_prune_config is left out"
            yield ConfigNote("info", text)


def _ulq(data: RetrainJsonData | None) -> UlqSettings | None:
    return None if data is None else UlqSettings(data.clip_max, data.clip_min, data.fixed_min, data.dst_type or "INT8")


def _weight_settings(weight: RetrainJsonWeight | None) -> WeightRetrainSettings | None:
    if weight is None:
        return None
    kind = UlqRetrainSettings if weight.algo == "ulq_retrain" else ArqRetrainSettings
    return kind(weight.channel_wise, weight.dst_type or "INT8")


def _prune_settings(prune: RetrainJsonPrune) -> PruneSettings:
    if prune.prune_type == "selective_prune":
        return SelectivePruneSettings(prune.n_out_of_m_type or "M4N2", prune.update_freq or 0)
    if prune.prune_ratio is None:
        message = "regular_prune_config has no prune_ratio; give the share of filters to leave out"
        raise ConfigError(message)
    return FilterPruneSettings(prune.prune_ratio, prune.ascend_optimized is not False)
