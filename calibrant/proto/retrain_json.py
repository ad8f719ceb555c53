"""AMCT's config.json of quantization-aware training (retrain) and pruning: one entry a layer.

Keys, their order, indentation and separators are AMCT's; the layers keep the order of the file, which is the model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from calibrant.errors import ConfigError
from calibrant.proto._files import write_text
from calibrant.proto.json_config import amct_json
from calibrant.proto.retrain_config import RetrainType
from calibrant.proto.simple_config import ConfigNote, PrecisionMode

RETRAIN_KEYS: Final = ("version", "batch_num", "fakequant_precision_mode")

WeightAlgorithm = Literal["arq_retrain", "ulq_retrain"]
PruneType = Literal["filter_prune", "selective_prune"]


@dataclass(frozen=True, slots=True)
class RetrainJsonData:
    """``retrain_data_config`` of a layer; None = not written.

    Attributes:
        algo: ``ulq_quantize``, the only one there is.
        clip_max: first upper clip end, above 0; written together with `clip_min`.
        clip_min: first lower clip end, below 0.
        fixed_min: whether the lower end stays 0; not written: whether a Relu stands before the layer.
        dst_type: type of a code.
    """

    algo: Literal["ulq_quantize"] | None = "ulq_quantize"
    clip_max: float | None = None
    clip_min: float | None = None
    fixed_min: bool | None = None
    dst_type: RetrainType | None = "INT8"


@dataclass(frozen=True, slots=True)
class RetrainJsonWeight:
    """``retrain_weight_config`` of a layer; None = not written.

    Attributes:
        algo: ``arq_retrain`` or ``ulq_retrain``.
        channel_wise: one scale an output channel.
        dst_type: type of a code.
    """

    algo: WeightAlgorithm | None = "arq_retrain"
    channel_wise: bool | None = None
    dst_type: RetrainType | None = "INT8"


@dataclass(frozen=True, slots=True)
class RetrainJsonPrune:
    """``regular_prune_config`` of a layer; None = not written.

    Attributes:
        prune_type: ``filter_prune`` or ``selective_prune``.
        algo: ``balanced_l2_norm_filter_prune`` or ``l1_selective_prune``.
        prune_ratio: filter pruning: share of the filters to leave out, in (0, 1).
        ascend_optimized: filter pruning: keep numbers of channels that suit the NPU.
        n_out_of_m_type: selective pruning: ``M4N2``.
        update_freq: selective pruning: steps between choices.
    """

    prune_type: PruneType | None
    algo: str | None = None
    prune_ratio: float | None = None
    ascend_optimized: bool | None = None
    n_out_of_m_type: Literal["M4N2"] | None = None
    update_freq: int | None = None


@dataclass(frozen=True, slots=True)
class RetrainJsonLayer:
    """One layer of the file; None = not written.

    Attributes:
        retrain_enable: whether the layer is quantized; a layer that does not say is not.
        data: how its data is quantized.
        weight: how its weight is quantized.
        regular_prune_enable: whether the layer is pruned.
        prune: how it is pruned.
    """

    retrain_enable: bool | None
    data: RetrainJsonData | None = None
    weight: RetrainJsonWeight | None = None
    regular_prune_enable: bool | None = None
    prune: RetrainJsonPrune | None = None


@dataclass(frozen=True, slots=True)
class RetrainJson:
    """The whole file; None = not written.

    Attributes:
        batch_num: batches for the first clip ends.
        layers: settings by layer name, in the order of the file.
        fakequant_precision_mode: arithmetic of the fake-quant model; DEFAULT is not written.
        version: version of the format: 1.
        source: the file, or None.
        text: the file's text; empty where it was built in Python.
        notes: what a reader should know.
        positions: ``file:line:column`` of each key, by its path from the top.
    """

    batch_num: int | None = 1
    layers: Mapping[str, RetrainJsonLayer] = field(default_factory=dict)
    fakequant_precision_mode: PrecisionMode | None = None
    version: int | None = 1
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def where(self, *path: str) -> str:
        """Return ``file:line:column`` of a key; the bare file where unknown."""
        return self.positions.get(path, self.source or "config.json")


def read_retrain_json(path: Path | str) -> RetrainJson:
    """Read a retrain config.json.

    Args:
        path: JSON in UTF-8; a byte-order mark is accepted with a note.

    Raises:
        ConfigError: the file cannot be read, is no JSON, or something in it cannot mean anything; says ``file:line:column``.
    """
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.JSON_CONFIGURATION)
    return parse_retrain_json("\ufeff" * marked + text, str(path))


def parse_retrain_json(text: str, source: str = "<text>") -> RetrainJson:
    """Read a retrain config.json from a text.

    Args:
        text: JSON.
        source: name for messages.

    Raises:
        ConfigError: as `read_retrain_json`.

    Example:
        >>> parse_retrain_json('{"fc":{"retrain_enable":true}}').layers["fc"].retrain_enable
        True
    """
    from calibrant.proto import _retrain_json_reader

    return _retrain_json_reader.read(text, source)


def format_retrain_json(config: RetrainJson) -> str:
    """Write a configuration as AMCT writes it.

    Raises:
        ConfigError: a layer has the name of a global key, so that the file would be ambiguous.

    Example:
        >>> print(format_retrain_json(RetrainJson(layers={"fc": RetrainJsonLayer(False)})))
        {
            "version":1,
            "batch_num":1,
            "fc":{
                "retrain_enable":false
            }
        }
    """
    if clash := sorted(set(config.layers) & set(RETRAIN_KEYS)):
        message = f"layer '{clash[0]}' has the name of a key of config.json; rename the node in the model"
        raise ConfigError(message)
    mode = config.fakequant_precision_mode
    head = {"version": config.version, "batch_num": config.batch_num}
    content = _written({**head, "fakequant_precision_mode": None if mode == "DEFAULT" else mode})
    return amct_json(content | {name: _layer(layer) for name, layer in config.layers.items()})


def write_retrain_json(path: Path | str, config: RetrainJson) -> None:
    """Write a retrain config.json, whole or not at all.

    Raises:
        ConfigError: as `format_retrain_json`; or the file cannot be written.
    """
    write_text(Path(path), format_retrain_json(config))


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _members(part: object | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    return None if part is None else _written({name: getattr(part, name) for name in names})


def _layer(layer: RetrainJsonLayer) -> dict[str, Any]:
    prune = ("prune_type", "algo", "prune_ratio", "ascend_optimized", "n_out_of_m_type", "update_freq")
    parts = {
        "retrain_enable": layer.retrain_enable,
        "retrain_data_config": _members(layer.data, ("algo", "clip_max", "clip_min", "fixed_min", "dst_type")),
        "retrain_weight_config": _members(layer.weight, ("algo", "channel_wise", "dst_type")),
        "regular_prune_enable": layer.regular_prune_enable,
        "regular_prune_config": _members(layer.prune, prune),
    }
    return _written(parts)
