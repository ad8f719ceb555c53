"""AMCT's config.json of post-training quantization: one entry a layer, every value written out.

Keys, their order, indentation and separators are AMCT's, so that the file can be compared byte for byte. Reading keeps what is
written apart from what is left out (None), so that a file of AMCT's is written again as it was.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from calibrant.errors import ConfigError
from calibrant.proto._files import write_text
from calibrant.proto.simple_config import ConfigNote, PrecisionMode

GLOBAL_KEYS: Final = (
    "version", "batch_num", "activation_offset", "joint_quant", "weight_offset", "do_fusion",
    "fakequant_precision_mode", "skip_fusion_layers", "tensor_quantize",
)  # fmt: skip
COMMON_SUFFIX: Final = "::common"

WeightAlgorithm = Literal["arq_quantize", "ada_quantize", "nuq_quantize"]


@dataclass(frozen=True, slots=True)
class JsonActivation:
    """``activation_quant_params`` of a layer; None = not written.

    Attributes:
        act_algo: ``ifmr`` or ``hfmg``.
        asymmetric: with an offset or not; older files leave it out.
        num_bits: width of a code: 4, 8 or 16; older files leave it out.
        max_percentile: IFMR's upper start, in (0.5, 1].
        min_percentile: IFMR's lower start.
        search_range: first and last factor of IFMR's search.
        search_step: step between factors.
        num_of_bins: HFMG's number of bins.
    """

    act_algo: Literal["ifmr", "hfmg"] | None
    asymmetric: bool | None
    num_bits: int | None = 8
    max_percentile: float | None = None
    min_percentile: float | None = None
    search_range: tuple[float, float] | None = None
    search_step: float | None = None
    num_of_bins: int | None = None


@dataclass(frozen=True, slots=True)
class JsonWeight:
    """``weight_quant_params`` of a layer; None = not written.

    Attributes:
        channel_wise: one scale an output channel.
        num_bits: width of a code: 4, 6, 7 or 8.
        wts_algo: AMCT's name of the algorithm.
        num_steps: NUQ's number of levels.
        num_of_iteration: NUQ's rounds of refinement.
        num_iteration: AdaRound's steps.
        reg_param: AdaRound's weight of the rounding term.
        beta_range: AdaRound's first and last exponent.
        warm_start: AdaRound's share of steps without the rounding term.
    """

    channel_wise: bool | None
    num_bits: int | None = 8
    wts_algo: WeightAlgorithm | None = "arq_quantize"
    num_steps: int | None = None
    num_of_iteration: int | None = None
    num_iteration: int | None = None
    reg_param: float | None = None
    beta_range: tuple[float, float] | None = None
    warm_start: float | None = None


@dataclass(frozen=True, slots=True)
class JsonLayer:
    """One layer of the file; None = not written.

    Attributes:
        quant_enable: whether the layer is quantized; a layer that does not say is not.
        activation: how its data is quantized; by the defaults where it is not written.
        weight: how its weight is quantized; AMCT writes it for AveragePool as well.
        dmq_balancer_param: how much of the data's range moves into the weights, 0.2 to 0.8.
    """

    quant_enable: bool | None
    activation: JsonActivation | None = None
    weight: JsonWeight | None = None
    dmq_balancer_param: float | None = None


@dataclass(frozen=True, slots=True)
class JsonTensor:
    """One entry of ``tensor_quantize``: an input of a node that is quantized.

    Attributes:
        layer_name: name of the node.
        input_index: which of its inputs, from 0.
        activation: how the input is quantized; by the defaults where it is not written.
    """

    layer_name: str
    input_index: int
    activation: JsonActivation | None = None


@dataclass(frozen=True, slots=True)
class JsonConfig:
    """The whole file; the layers are written sorted by name. None = not written.

    Attributes:
        batch_num: batches that the calibration uses.
        activation_offset: whether data gets an offset where a layer does not say.
        joint_quant: joint quantization of element-wise inputs.
        do_fusion: whether BatchNormalization is fused.
        skip_fusion_layers: layers whose BatchNormalization is not fused.
        layers: settings by layer name; ``<Type>::common`` holds those of nameless nodes of a type.
        tensor_quantize: inputs of other nodes to quantize.
        weight_offset: weights with an offset (only some of AMCT's flavours have the key).
        fakequant_precision_mode: arithmetic of the fake-quant model; DEFAULT is not written.
        version: version of the format: 1.
        source: the file, or None.
        text: the file's text; empty where it was built in Python.
        notes: what a reader should know.
        positions: ``file:line:column`` of each key, by its path from the top.
    """

    batch_num: int | None = 1
    activation_offset: bool | None = True
    joint_quant: bool | None = False
    do_fusion: bool | None = True
    skip_fusion_layers: tuple[str, ...] | None = ()
    layers: Mapping[str, JsonLayer] = field(default_factory=dict)
    tensor_quantize: tuple[JsonTensor, ...] | None = ()
    weight_offset: bool | None = None
    fakequant_precision_mode: PrecisionMode | None = None
    version: int | None = 1
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def where(self, *path: str) -> str:
        """Return ``file:line:column`` of a key; of the nearest key around it, or the bare file, where unknown."""
        for length in range(len(path), 0, -1):
            if (found := self.positions.get(path[:length])) is not None:
                return found
        return self.source or "config.json"


def read_json_config(path: Path | str) -> JsonConfig:
    """Read a config.json.

    Args:
        path: JSON in UTF-8; a byte-order mark is accepted with a note.

    Raises:
        ConfigError: the file cannot be read, is no JSON, or something in it cannot mean anything; says ``file:line:column``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "config.json")
        ...     _ = path.write_text('{"version":1,"batch_num":2,"fc":{"quant_enable":true}}')
        ...     read_json_config(path).batch_num
        2
    """
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.JSON_CONFIGURATION)
    return parse_json_config("\ufeff" * marked + text, str(path))


def parse_json_config(text: str, source: str = "<text>") -> JsonConfig:
    """Read a config.json from a text.

    Args:
        text: JSON.
        source: name for messages.

    Raises:
        ConfigError: as `read_json_config`.

    Example:
        >>> parse_json_config('{"fc":{"quant_enable":false}}').layers["fc"].quant_enable
        False
    """
    from calibrant.proto import _json_config_reader

    return _json_config_reader.read(text, source)


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
    mode = config.fakequant_precision_mode
    content: dict[str, Any] = _written(
        version=config.version,
        batch_num=config.batch_num,
        activation_offset=config.activation_offset,
        joint_quant=config.joint_quant,
        weight_offset=config.weight_offset,
        do_fusion=config.do_fusion,
        fakequant_precision_mode=None if mode == "DEFAULT" else mode,
        skip_fusion_layers=config.skip_fusion_layers,
        tensor_quantize=_tensors(config.tensor_quantize),
    )
    content |= {name: _layer(config.layers[name]) for name in sorted(config.layers)}
    return amct_json(content)


def amct_json(content: Mapping[str, Any]) -> str:
    """Write a mapping with AMCT's indentation and separators."""
    return json.dumps(content, indent=4, separators=(",", ":"))


def write_json_config(path: Path | str, config: JsonConfig) -> None:
    """Write config.json, whole or not at all.

    Raises:
        ConfigError: as `format_json_config`; or the file cannot be written.
    """
    write_text(Path(path), format_json_config(config))


def _written(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _tensors(tensors: tuple[JsonTensor, ...] | None) -> list[dict[str, Any]] | None:
    if tensors is None:
        return None
    return [
        _written(
            layer_name=one.layer_name,
            input_index=one.input_index,
            activation_quant_params=_activation(one.activation),
        )
        for one in tensors
    ]


def _layer(layer: JsonLayer) -> dict[str, Any]:
    return _written(
        quant_enable=layer.quant_enable,
        dmq_balancer_param=layer.dmq_balancer_param,
        activation_quant_params=_activation(layer.activation),
        weight_quant_params=_weight(layer.weight),
    )


def _activation(activation: JsonActivation | None) -> dict[str, Any] | None:
    if activation is None:
        return None
    return _written(
        num_bits=activation.num_bits,
        max_percentile=activation.max_percentile,
        min_percentile=activation.min_percentile,
        search_range=activation.search_range,
        search_step=activation.search_step,
        act_algo=activation.act_algo,
        asymmetric=activation.asymmetric,
        num_of_bins=activation.num_of_bins,
    )


def _weight(weight: JsonWeight | None) -> dict[str, Any] | None:
    if weight is None:
        return None
    return _written(
        num_bits=weight.num_bits,
        num_iteration=weight.num_iteration,
        reg_param=weight.reg_param,
        beta_range=weight.beta_range,
        warm_start=weight.warm_start,
        num_steps=weight.num_steps,
        num_of_iteration=weight.num_of_iteration,
        channel_wise=weight.channel_wise,
        wts_algo=weight.wts_algo,
    )
