"""config.json as a configuration: each layer has a block of its own, and a layer without one stays in float.

It is a `QuantConfig`, so that every stage takes it; the plan reads from it that layers are named one by one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from calibrant.errors import ConfigError
from calibrant.proto.json_config import (
    COMMON_SUFFIX,
    JsonActivation,
    JsonConfig,
    JsonLayer,
    JsonWeight,
    format_json_config,
)
from calibrant.proto.settings import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DataSettings,
    DataType,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NuqSettings,
    TensorSettings,
    WeightSettings,
)
from calibrant.proto.simple_config import QuantConfig

LAYERS: Final = "override_layer_configs"  # where `QuantConfig.positions` keeps the place of a layer

_ACTIVATION: Final = "activation_quant_params"
_WEIGHT: Final = "weight_quant_params"


@dataclass(frozen=True, slots=True)
class LayerwiseConfig(QuantConfig):
    """A configuration that came from a config.json.

    Attributes:
        json: the file; its layers decide what is quantized.
    """

    json: JsonConfig = field(default_factory=JsonConfig)


def layerwise_config(config: JsonConfig) -> LayerwiseConfig:
    """Return a config.json as a configuration of the stages.

    What the file leaves out has the defaults, except that a file without ``batch_num`` uses all data.

    Raises:
        ConfigError: a value that only a JSON configuration built in Python can have, such as a bin count without its algorithm.

    Example:
        >>> from calibrant.proto.json_config import parse_json_config
        >>> config = layerwise_config(parse_json_config('{"fc":{"quant_enable":true,"weight_quant_params":{"num_bits":7}}}'))
        >>> [(name, block.arq.quant_bits) for name, block in config.override_layers]
        [('fc', 7)]
    """
    return LayerwiseConfig(
        batch_num=config.batch_num,
        activation_offset=_or(config.activation_offset, default=True),
        joint_quant=_or(config.joint_quant, default=False),
        do_fusion=_or(config.do_fusion, default=True),
        skip_fusion_layers=config.skip_fusion_layers or (),
        override_layers=tuple((name, _block(config, name)) for name in config.layers),
        version=config.version,
        weight_offset=config.weight_offset,
        fakequant_precision_mode=config.fakequant_precision_mode,
        tensor_quantize=tuple(_tensors(config)),
        dialect_reason="config.json",
        source=config.source,
        text=config.text or format_json_config(config),
        notes=config.notes,
        positions=_positions(config),
        json=config,
    )


def layer_key(config: JsonConfig, layer: str, op_type: str) -> str | None:
    """Return the key that speaks of a layer: its name, or that of its type where the model gives it no name; else None.

    Example:
        >>> config = JsonConfig(layers={"Conv::common": JsonLayer(True)})
        >>> layer_key(config, "Conv_12", "Conv"), layer_key(config, "stem", "Conv")
        ('Conv::common', None)
    """
    if layer in config.layers:
        return layer
    common = f"{op_type}{COMMON_SUFFIX}"
    is_nameless = re.fullmatch(rf"{re.escape(op_type)}_\d+(_\d+)?", layer) is not None
    return common if common in config.layers and is_nameless else None


def simple_config_of(config: LayerwiseConfig, keys: Mapping[str, str | None] | None = None) -> QuantConfig:
    """Return a config.json as a simple configuration.

    Args:
        config: the file.
        keys: the layers of the model that can be quantized, each with the key that speaks of it. None: those that the file names;
            then layers that it does not name are not skipped, and ``<Type>::common`` is left out.
    """
    named = [name for name in config.json.layers if not name.endswith(COMMON_SUFFIX)]
    found = {name: name for name in named} if keys is None else keys
    written = dict(config.override_layers)
    enabled = {name for name, layer in config.json.layers.items() if layer.quant_enable}
    kept = {one.name: getattr(config, one.name) for one in fields(QuantConfig)}
    blocks = tuple((layer, written[key]) for layer, key in found.items() if key is not None)
    skipped = tuple(layer for layer, key in found.items() if key not in enabled)
    # amct_onnx's schema has no version, and 1 is the only one there is.
    return QuantConfig(**{**kept, "version": None, "skip_layers": skipped, "override_layers": blocks})


def _or(value: bool | None, *, default: bool) -> bool:
    return default if value is None else value


def _positions(config: JsonConfig) -> Mapping[tuple[str, str], str]:
    found = {(path[0], ""): where for path, where in config.positions.items() if len(path) == 1}
    found |= {
        ("skip_fusion_layers", name): config.where("skip_fusion_layers", name)
        for name in config.skip_fusion_layers or ()
    }
    return found | {(LAYERS, name): config.where(name) for name in config.layers}


def _tensors(config: JsonConfig) -> Iterator[TensorSettings]:
    for index, one in enumerate(config.tensor_quantize or ()):
        data = None if one.activation is None else data_settings(one.activation)
        yield TensorSettings(one.layer_name, one.input_index, data, config.where("tensor_quantize", str(index)))


def _block(config: JsonConfig, name: str) -> CalibrationBlock:
    layer = config.layers[name]
    data = None if layer.activation is None else data_settings(layer.activation)
    weight = None if layer.weight is None else weight_settings(layer.weight)
    strength = layer.dmq_balancer_param
    return CalibrationBlock(
        ifmr=data if isinstance(data, IfmrSettings) else None,
        hfmg=data if isinstance(data, HfmgSettings) else None,
        arq=weight if isinstance(weight, ArqSettings) else None,
        nuq=weight if isinstance(weight, NuqSettings) else None,
        ada=weight if isinstance(weight, AdaSettings) else None,
        dmq=None if strength is None else DmqSettings(strength),
        places=dict(_places(config, name, layer)),
    )


def _places(config: JsonConfig, name: str, layer: JsonLayer) -> Iterator[tuple[str, str]]:
    """Yield where the members of a layer's block stand, by their names in a block."""
    yield "dmq_balancer", config.where(name, "dmq_balancer_param")
    if layer.activation is not None:
        data = "hfmg_quantize" if is_hfmg(layer.activation) else "ifmr_quantize"
        yield data, config.where(name, _ACTIVATION)
        yield f"{data}.asymmetric", config.where(name, _ACTIVATION, "asymmetric")
        yield f"{data}.dst_type", config.where(name, _ACTIVATION, "num_bits")
    if layer.weight is not None:
        weight = layer.weight.wts_algo or "arq_quantize"
        yield weight, config.where(name, _WEIGHT)
        yield f"{weight}.channel_wise", config.where(name, _WEIGHT, "channel_wise")
        yield f"{weight}.quant_bits", config.where(name, _WEIGHT, "num_bits")


def is_hfmg(activation: JsonActivation) -> bool:
    """Whether the data is quantized by HFMG; where no algorithm is written, its own key says so."""
    return activation.act_algo == "hfmg" or (activation.act_algo is None and activation.num_of_bins is not None)


def data_settings(activation: JsonActivation) -> DataSettings:
    """Return the settings of ``activation_quant_params``; what it leaves out has the defaults.

    Raises:
        ConfigError: ``num_of_bins`` without HFMG, which no file that was read can have.
    """
    bits: DataType = "INT16" if activation.num_bits == 16 else "INT8"
    if is_hfmg(activation):
        bins = HfmgSettings().num_of_bins if activation.num_of_bins is None else activation.num_of_bins
        return HfmgSettings(bins, activation.asymmetric, bits)
    if activation.num_of_bins is not None:
        message = f"num_of_bins is {activation.num_of_bins}, but act_algo is ifmr; leave it out"
        raise ConfigError(message)
    default = IfmrSettings()
    start, end = activation.search_range or (default.search_range_start, default.search_range_end)
    return IfmrSettings(
        search_range_start=start,
        search_range_end=end,
        search_step=default.search_step if activation.search_step is None else activation.search_step,
        max_percentile=default.max_percentile if activation.max_percentile is None else activation.max_percentile,
        min_percentile=default.min_percentile if activation.min_percentile is None else activation.min_percentile,
        asymmetric=activation.asymmetric,
        dst_type=bits,
    )


def weight_settings(weight: JsonWeight) -> WeightSettings:
    """Return the settings of ``weight_quant_params``; what it leaves out has the defaults."""
    if weight.wts_algo == "nuq_quantize":
        nuq = NuqSettings()
        return NuqSettings(
            num_steps=nuq.num_steps if weight.num_steps is None else weight.num_steps,
            num_of_iteration=nuq.num_of_iteration if weight.num_of_iteration is None else weight.num_of_iteration,
        )
    if weight.wts_algo == "ada_quantize":
        return _ada(weight)
    return ArqSettings(weight.channel_wise, 8 if weight.num_bits is None else weight.num_bits)


def _ada(weight: JsonWeight) -> AdaSettings:
    default = AdaSettings()
    start, end = weight.beta_range or (default.beta_range_start, default.beta_range_end)
    return AdaSettings(
        num_iteration=default.num_iteration if weight.num_iteration is None else weight.num_iteration,
        reg_param=default.reg_param if weight.reg_param is None else weight.reg_param,
        beta_range_start=start,
        beta_range_end=end,
        warm_start=default.warm_start if weight.warm_start is None else weight.warm_start,
        channel_wise=weight.channel_wise,
    )
