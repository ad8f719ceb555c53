"""AMCT's config.json of post-training quantization: one entry a layer, every value written out.

Keys, their order, indentation and separators are AMCT's, so that the file can be compared byte for byte.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from calibrant.errors import ConfigError
from calibrant.proto._files import write_text

GLOBAL_KEYS: Final = (
    "version", "batch_num", "activation_offset", "joint_quant", "weight_offset", "do_fusion",
    "fakequant_precision_mode", "skip_fusion_layers", "tensor_quantize",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonActivation:
    """``activation_quant_params`` of a layer; the members of the other algorithm are None.

    Attributes:
        act_algo: ``ifmr`` or ``hfmg``.
        asymmetric: with an offset or not.
        num_bits: width of a code.
        max_percentile: IFMR's upper start, or None.
        min_percentile: IFMR's lower start, or None.
        search_range: first and last factor of IFMR's search, or None.
        search_step: step between factors, or None.
        num_of_bins: HFMG's number of bins, or None.
    """

    act_algo: Literal["ifmr", "hfmg"]
    asymmetric: bool
    num_bits: int = 8
    max_percentile: float | None = None
    min_percentile: float | None = None
    search_range: tuple[float, float] | None = None
    search_step: float | None = None
    num_of_bins: int | None = None


@dataclass(frozen=True, slots=True)
class JsonWeight:
    """``weight_quant_params`` of a layer.

    Attributes:
        channel_wise: one scale an output channel.
        num_bits: width of a code.
        wts_algo: AMCT's name of the algorithm.
    """

    channel_wise: bool
    num_bits: int = 8
    wts_algo: str = "arq_quantize"


@dataclass(frozen=True, slots=True)
class JsonLayer:
    """One layer of the file.

    Attributes:
        quant_enable: whether the layer is quantized.
        activation: how its data is quantized.
        weight: how its weight is quantized; AMCT writes it for AveragePool as well.
    """

    quant_enable: bool
    activation: JsonActivation
    weight: JsonWeight


@dataclass(frozen=True, slots=True)
class JsonConfig:
    """The whole file; the layers are written sorted by name.

    Attributes:
        batch_num: batches that the calibration uses.
        activation_offset: whether data gets an offset where a layer does not say.
        joint_quant: joint quantization of element-wise inputs.
        do_fusion: whether BatchNormalization is fused.
        skip_fusion_layers: layers whose BatchNormalization is not fused.
        layers: settings by layer name.
    """

    batch_num: int = 1
    activation_offset: bool = True
    joint_quant: bool = False
    do_fusion: bool = True
    skip_fusion_layers: tuple[str, ...] = ()
    layers: Mapping[str, JsonLayer] = field(default_factory=dict)


def format_json_config(config: JsonConfig) -> str:
    """Write a configuration as AMCT writes it: four spaces, no space after a colon, no newline at the end.

    Raises:
        ConfigError: a layer has the name of a global key, so that the file would be ambiguous.

    Example:
        >>> print(format_json_config(JsonConfig(batch_num=2))[:36])
        {
            "version":1,
            "batch_num":2
    """
    if clash := sorted(set(config.layers) & set(GLOBAL_KEYS)):
        message = f"layer '{clash[0]}' has the name of a key of config.json; rename the node in the model"
        raise ConfigError(message)
    content: dict[str, Any] = {
        "version": 1,
        "batch_num": config.batch_num,
        "activation_offset": config.activation_offset,
        "joint_quant": config.joint_quant,
        "do_fusion": config.do_fusion,
        "skip_fusion_layers": list(config.skip_fusion_layers),
        "tensor_quantize": [],
    }
    content |= {name: _layer(config.layers[name]) for name in sorted(config.layers)}
    return json.dumps(content, indent=4, separators=(",", ":"))


def write_json_config(path: Path | str, config: JsonConfig) -> None:
    """Write config.json, whole or not at all.

    Raises:
        ConfigError: as `format_json_config`; or the file cannot be written.
    """
    write_text(Path(path), format_json_config(config))


def _layer(layer: JsonLayer) -> dict[str, Any]:
    return {
        "quant_enable": layer.quant_enable,
        "activation_quant_params": _activation(layer.activation),
        "weight_quant_params": {
            "num_bits": layer.weight.num_bits,
            "channel_wise": layer.weight.channel_wise,
            "wts_algo": layer.weight.wts_algo,
        },
    }


def _activation(activation: JsonActivation) -> dict[str, Any]:
    values = {
        "num_bits": activation.num_bits,
        "max_percentile": activation.max_percentile,
        "min_percentile": activation.min_percentile,
        "search_range": activation.search_range,
        "search_step": activation.search_step,
        "act_algo": activation.act_algo,
        "asymmetric": activation.asymmetric,
        "num_of_bins": activation.num_of_bins,
    }
    return {key: value for key, value in values.items() if value is not None}
