"""AMCT's simple configuration of quantization-aware training (retrain) and pruning: protobuf text to frozen dataclasses.

Pruning is read and kept, and a note says that it is not applied.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from calibrant.errors import ConfigError
from calibrant.proto._canonical import braces, quoted, values
from calibrant.proto.op_types import Dialect, OpType, layer_type, unknown_type
from calibrant.proto.simple_config import ConfigNote, PrecisionMode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RetrainType = Literal["INT4", "INT8", "INT16"]


@dataclass(frozen=True, slots=True)
class UlqSettings:
    """Members of a ``ulq_quantize`` block: data between two clip ends that training learns.

    Attributes:
        clip_max: first upper clip end, above 0; None where not written.
        clip_min: first lower clip end, below 0; written together with `clip_max`.
        fixed_min: whether the lower end stays 0; None where not written: whether a Relu stands before the layer.
        dst_type: INT8; INT4 and INT16 are read as well.

    Raises:
        ConfigError: one clip end without the other.
    """

    clip_max: float | None = None
    clip_min: float | None = None
    fixed_min: bool | None = None
    dst_type: RetrainType = "INT8"

    def __post_init__(self) -> None:
        if (self.clip_max is None) != (self.clip_min is None):
            message = "clip_max and clip_min are given together or not at all"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class ArqRetrainSettings:
    """Members of an ``arq_retrain`` block: weights by ARQ.

    Attributes:
        channel_wise: one scale an output channel; None where not written, so that the layer's type decides.
        dst_type: INT8; INT4 is read as well.
    """

    channel_wise: bool | None = None
    dst_type: RetrainType = "INT8"


@dataclass(frozen=True, slots=True)
class UlqRetrainSettings:
    """Members of a ``ulq_retrain`` block: weights by ULQ.

    Attributes:
        channel_wise: as in `ArqRetrainSettings`.
        dst_type: as in `ArqRetrainSettings`.
    """

    channel_wise: bool | None = None
    dst_type: RetrainType = "INT8"


WeightRetrainSettings = ArqRetrainSettings | UlqRetrainSettings


@dataclass(frozen=True, slots=True)
class FilterPruneSettings:
    """Members of a ``balanced_l2_norm_filter_prune`` block: whole filters are left out.

    Attributes:
        prune_ratio: share of the filters to leave out, in (0, 1).
        ascend_optimized: keep numbers of channels that suit the NPU.
    """

    prune_ratio: float
    ascend_optimized: bool = True


@dataclass(frozen=True, slots=True)
class SelectivePruneSettings:
    """Members of an ``l1_selective_prune`` block: two of four neighbouring weights are left out.

    Attributes:
        n_out_of_m_type: M4N2, the only one there is.
        update_freq: steps between choices; 0: choose once.
    """

    n_out_of_m_type: Literal["M4N2"] = "M4N2"
    update_freq: int = 0


PruneSettings = FilterPruneSettings | SelectivePruneSettings


@dataclass(frozen=True, slots=True)
class AutoPruneSettings:
    """A file for automatic pruning; None = not written.

    Attributes:
        compress_ratio: how many times smaller the model is to become.
        ascend_optimized: keep numbers of channels that suit the NPU.
        max_prune_ratio: largest share of a layer to leave out.
        test_iteration: how often to measure.
    """

    compress_ratio: float | None = None
    ascend_optimized: bool | None = None
    max_prune_ratio: float | None = None
    test_iteration: int | None = None


@dataclass(frozen=True, slots=True)
class RetrainBlock:
    """What an override says of a layer or type; None = not given.

    Attributes:
        data: how the data is quantized.
        weight: how the weight is quantized.
        prune: how the layer is pruned.
        places: ``file:line:column`` of its members, by dotted name such as ``retrain_data_quant_config.ulq_quantize.dst_type``.
    """

    data: UlqSettings | None = None
    weight: WeightRetrainSettings | None = None
    prune: PruneSettings | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


NamedRetrainBlock = tuple[str, RetrainBlock]


@dataclass(frozen=True, slots=True)
class RetrainConfig:
    """What a retrain configuration says; without arguments: AMCT's defaults.

    Attributes:
        batch_num: batches for the first clip ends; None where not written: 1.
        data: how data is quantized where nothing overrides it.
        weight: how weights are quantized where nothing overrides it.
        skip_layers: names of layers that are neither quantized nor pruned.
        skip_layer_types: the same by type, as written.
        quant_skip_layers: names of layers that are not quantized.
        quant_skip_types: the same by type, as written.
        regular_prune_skip_layers: names of layers that are not pruned.
        regular_prune_skip_types: the same by type, as written.
        override_types: settings by type as written, in file order; an override beats a skip.
        override_layers: settings by layer name, in file order.
        prune: how layers are pruned where nothing overrides it; not applied.
        auto_prune: automatic pruning; not applied.
        fakequant_precision_mode: arithmetic of the fake-quant model; None where not written.
        version: version of the format; None where not written.
        dialect: whose type names it uses.
        source: the file, or None.
        text: the file's text; empty where it was built in Python.
        notes: what a reader should know.
        positions: ``file:line:column`` by (field, name), as in `QuantConfig`; members of blocks have dotted names.

    Raises:
        ConfigError: `batch_num` is below 1.
    """

    batch_num: int | None = None
    data: UlqSettings | None = None
    weight: WeightRetrainSettings | None = None
    skip_layers: tuple[str, ...] = ()
    skip_layer_types: tuple[str, ...] = ()
    quant_skip_layers: tuple[str, ...] = ()
    quant_skip_types: tuple[str, ...] = ()
    regular_prune_skip_layers: tuple[str, ...] = ()
    regular_prune_skip_types: tuple[str, ...] = ()
    override_types: tuple[NamedRetrainBlock, ...] = ()
    override_layers: tuple[NamedRetrainBlock, ...] = ()
    prune: PruneSettings | None = None
    auto_prune: AutoPruneSettings | None = None
    fakequant_precision_mode: PrecisionMode | None = None
    version: int | None = None
    dialect: Dialect = "pytorch"
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_num is not None and self.batch_num < 1:
            message = f"batch_num is {self.batch_num}; at least 1 is expected"
            raise ConfigError(message)

    def where(self, field_name: str, name: str = "") -> str:
        """Return ``file:line:column`` of a field or of a name in it; the bare file, or ``configuration``, where unknown."""
        return self.positions.get((field_name, name), self.source or "configuration")

    def type_of(self, field_name: str, name: str) -> OpType:
        """Return what a type name means in the dialect of the configuration.

        Args:
            field_name: the field that names it.
            name: the name as written.

        Raises:
            ConfigError: no such type; says ``file:line:column`` and the nearest name.
        """
        found = layer_type(name, self.dialect)
        if found is None:
            message = f"{self.where(field_name, name)}: {field_name}: {unknown_type(name, self.dialect)}"
            raise ConfigError(message)
        return found

    def check_types(self) -> None:
        """Check that every type name that the configuration holds is one of its dialect.

        Raises:
            ConfigError: as `type_of`.
        """
        for field_name in ("skip_layer_types", "quant_skip_types", "regular_prune_skip_types"):
            for name in getattr(self, field_name):
                self.type_of(field_name, name)
        for name, _ in self.override_types:
            self.type_of("override_layer_types", name)


def read_retrain_config(path: Path | str, *, dialect: Dialect | None = None) -> RetrainConfig:
    """Read a retrain or pruning configuration file.

    Args:
        path: protobuf text in UTF-8.
        dialect: whose type names the file uses; None: told by its names.

    Raises:
        ConfigError: the file cannot be read, or something in it cannot mean anything; says ``file:line:column``.
    """
    from calibrant.proto import _document, _retrain_reader  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.RETRAIN)
    return _retrain_reader.read(text, str(path), dialect=dialect, byte_order_mark=marked)


def parse_retrain_config(text: str, source: str = "<text>", *, dialect: Dialect | None = None) -> RetrainConfig:
    """Read a retrain or pruning configuration from a text.

    Args:
        text: protobuf text.
        source: name for messages.
        dialect: as in `read_retrain_config`.

    Raises:
        ConfigError: as `read_retrain_config`.

    Example:
        >>> config = parse_retrain_config("retrain_weight_quant_config { ulq_retrain { channel_wise: true } }")
        >>> config.weight
        UlqRetrainSettings(channel_wise=True, dst_type='INT8')
    """
    from calibrant.proto import _retrain_reader

    marked = text.startswith("\ufeff")
    return _retrain_reader.read(text.removeprefix("\ufeff"), source, dialect=dialect, byte_order_mark=marked)


_NAME_LISTS = (
    "skip_layers", "skip_layer_types", "quant_skip_layers", "quant_skip_types", "regular_prune_skip_layers",
    "regular_prune_skip_types",
)  # fmt: skip


def canonical_retrain_text(config: RetrainConfig) -> str:
    """Write a retrain configuration in one fixed form; reading it gives an equal one.

    The dialect is not written: read the text with the same one where it was forced.

    Example:
        >>> print(canonical_retrain_text(RetrainConfig(batch_num=2, weight=ArqRetrainSettings())), end="")
        batch_num: 2
        retrain_weight_quant_config {
          arq_retrain {
            dst_type: INT8
          }
        }
    """
    return "".join(f"{line}\n" for line in _config_lines(config))


def _config_lines(config: RetrainConfig) -> Iterator[str]:
    yield from values(config, ("version", "batch_num", "fakequant_precision_mode"))
    if config.auto_prune is not None:
        yield from values(config.auto_prune, _names_of(config.auto_prune))
    for name in _NAME_LISTS:
        yield from (f"{name}: {quoted(value)}" for value in getattr(config, name))
    yield from _block_lines(config.data, config.weight, config.prune)
    for name, block in config.override_types:
        yield from _override_lines("override_layer_types", f"layer_type: {quoted(name)}", block)
    for name, block in config.override_layers:
        yield from _override_lines("override_layer_configs", f"layer_name: {quoted(name)}", block)


def _override_lines(field_name: str, first: str, block: RetrainBlock) -> Iterator[str]:
    yield from braces(field_name, [first, *_block_lines(block.data, block.weight, block.prune)])


def _block_lines(
    data: UlqSettings | None, weight: WeightRetrainSettings | None, prune: PruneSettings | None
) -> Iterator[str]:
    if data is not None:
        yield from braces("retrain_data_quant_config", braces("ulq_quantize", _ulq_lines(data)))
    if weight is not None:
        name = "arq_retrain" if isinstance(weight, ArqRetrainSettings) else "ulq_retrain"
        yield from braces("retrain_weight_quant_config", braces(name, values(weight, _names_of(weight))))
    if isinstance(prune, FilterPruneSettings):
        inner = braces("balanced_l2_norm_filter_prune", values(prune, _names_of(prune)))
        yield from braces("prune_config", braces("filter_pruner", inner))
    elif prune is not None:
        inner = braces("l1_selective_prune", values(prune, _names_of(prune)))
        yield from braces("prune_config", braces("n_out_of_m_pruner", inner))


def _ulq_lines(data: UlqSettings) -> Iterator[str]:
    if data.clip_max is not None:
        yield from braces("clip_max_min", values(data, ("clip_max", "clip_min")))
    yield from values(data, ("fixed_min", "dst_type"))


def _names_of(settings: "DataclassInstance") -> list[str]:
    return [one.name for one in fields(settings)]
