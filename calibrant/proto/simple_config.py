"""AMCT's simple configuration (quant.cfg): protobuf text to frozen dataclasses.

What AMCT accepts is accepted, with its rules: a value given twice counts as written last, an override replaces `common_config`
as a whole. What is read but not applied, or looks wrong, becomes a `ConfigNote`; what cannot mean anything is a `ConfigError`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from calibrant.errors import ConfigError

DataType = Literal["INT8", "INT16"]


@dataclass(frozen=True, slots=True)
class ConfigNote:
    """Something a reader of the configuration should know.

    Attributes:
        severity: ``warn`` (read but not applied, or probably not what was meant) or ``info``.
        message: one line that begins with ``file:line:column: ``.
    """

    severity: Literal["warn", "info"]
    message: str


@dataclass(frozen=True, slots=True)
class IfmrSettings:
    """Members of an ``ifmr_quantize`` block; what the block omits has the defaults of the schema.

    Attributes:
        search_range_start: first factor of the searched clip range, above 0.
        search_range_end: last factor, above the first.
        search_step: step between factors, above 0 and at most the width of the range.
        max_percentile: where the search for the upper clip end starts, in (0.5, 1].
        min_percentile: the same for the lower end.
        asymmetric: with an offset or not; None where not written, so that the next rule decides.
        dst_type: INT8 or INT16.
    """

    search_range_start: float = 0.7
    search_range_end: float = 1.3
    search_step: float = 0.01
    max_percentile: float = 0.999999
    min_percentile: float = 0.999999
    asymmetric: bool | None = None
    dst_type: DataType = "INT8"


@dataclass(frozen=True, slots=True)
class HfmgSettings:
    """Members of an ``hfmg_quantize`` block.

    Attributes:
        num_of_bins: 1024, 2048, 4096 or 8192.
        asymmetric: with an offset or not; None where not written.
        dst_type: INT8 or INT16.
    """

    num_of_bins: int = 4096
    asymmetric: bool | None = None
    dst_type: DataType = "INT8"


@dataclass(frozen=True, slots=True)
class ArqSettings:
    """Members of an ``arq_quantize`` block.

    Attributes:
        channel_wise: one scale an output channel; None where not written, so that the layer's type decides.
        quant_bits: width of a weight code as written: 4, 6, 7 or 8.
    """

    channel_wise: bool | None = None
    quant_bits: int = 8


@dataclass(frozen=True, slots=True)
class CalibrationBlock:
    """The settings of one ``calibration_config`` or of ``common_config``; None = not given.

    Attributes:
        ifmr: data by IFMR.
        hfmg: data by HFMG.
        arq: weights by ARQ.
        places: ``file:line:column`` of its members, by dotted name such as ``arq_quantize.quant_bits``.

    Raises:
        ConfigError: both `ifmr` and `hfmg` are given.
    """

    ifmr: IfmrSettings | None = None
    hfmg: HfmgSettings | None = None
    arq: ArqSettings | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.ifmr is not None and self.hfmg is not None:
            message = "ifmr and hfmg are both given; they exclude each other"
            raise ConfigError(message)

    @property
    def data(self) -> IfmrSettings | HfmgSettings | None:
        """The settings of the data algorithm, whichever was given."""
        return self.ifmr if self.hfmg is None else self.hfmg


NamedBlock = tuple[str, CalibrationBlock]


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """What a simple configuration says; without arguments: AMCT's defaults.

    Attributes:
        batch_num: how many batches to use; None where not written: all.
        activation_offset: whether data gets an offset where nothing nearer says so.
        joint_quant: read, not applied in this version.
        do_fusion: whether BatchNormalization is fused into the layer before it.
        skip_layers: names of layers to leave in float.
        skip_layer_types: ONNX types of layers to leave in float.
        skip_fusion_layers: names of layers whose BatchNormalization is not fused.
        common: settings of all layers that nothing overrides.
        override_types: settings by ONNX type, in file order.
        override_layers: settings by layer name, in file order.
        source: the file, or None.
        text: the file's text; empty where it was built in Python.
        notes: what a reader should know.
        positions: ``file:line:column`` by (field, name), e.g. ``("skip_layers", "conv1")`` or ``("batch_num", "")``.

    Raises:
        ConfigError: `batch_num` is below 1.
    """

    batch_num: int | None = None
    activation_offset: bool = True
    joint_quant: bool = False
    do_fusion: bool = True
    skip_layers: tuple[str, ...] = ()
    skip_layer_types: tuple[str, ...] = ()
    skip_fusion_layers: tuple[str, ...] = ()
    common: CalibrationBlock | None = None
    override_types: tuple[NamedBlock, ...] = ()
    override_layers: tuple[NamedBlock, ...] = ()
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_num is not None and self.batch_num < 1:
            message = f"batch_num is {self.batch_num}; at least 1 is expected (leave it out to use all data)"
            raise ConfigError(message)

    def where(self, field_name: str, name: str = "") -> str:
        """Return ``file:line:column`` of a field or of a name in it; the bare file, or ``configuration``, where unknown."""
        return self.positions.get((field_name, name), self.source or "configuration")


def read_simple_config(path: Path | str) -> QuantConfig:
    """Read a simple configuration file.

    Args:
        path: protobuf text in UTF-8; a byte-order mark is accepted with a note.

    Raises:
        ConfigError: the file cannot be read, or something in it cannot mean anything; says ``file:line:column``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "quant.cfg")
        ...     _ = path.write_text("batch_num: 2")
        ...     read_simple_config(path).batch_num
        2
    """
    from calibrant.proto import _document, _simple_reader  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.CONFIGURATION)
    return _simple_reader.read(text, str(path), byte_order_mark=marked)


def parse_simple_config(text: str, source: str = "<text>") -> QuantConfig:
    """Read a simple configuration from a text.

    Args:
        text: protobuf text.
        source: name for messages.

    Raises:
        ConfigError: as `read_simple_config`.

    Example:
        >>> config = parse_simple_config('skip_layers: "conv1"  common_config { hfmg_quantize { num_of_bins: 2048 } }')
        >>> config.skip_layers, config.common.hfmg.num_of_bins
        (('conv1',), 2048)
    """
    from calibrant.proto import _simple_reader

    marked = text.startswith("\ufeff")
    return _simple_reader.read(text.removeprefix("\ufeff"), source, byte_order_mark=marked)


def canonical_text(config: QuantConfig) -> str:
    """Write a configuration in one fixed form, for provenance and hashes; reading it gives an equal configuration.

    Overrides keep their order, every value of a block is written out, and what is not applied is left out.

    Example:
        >>> print(canonical_text(QuantConfig(batch_num=2, skip_layer_types=("Gemm",))), end="")
        batch_num: 2
        activation_offset: true
        joint_quant: false
        do_fusion: true
        skip_layer_types: "Gemm"
    """
    return "".join(f"{line}\n" for line in _config_lines(config))


def quoted(text: str, mark: str = '"') -> str:
    r"""Write a text as a protobuf string literal between quotation marks of one kind.

    Example:
        >>> print(quoted('a"b'))
        "a\"b"
    """
    escapes = {"\\": "\\\\", mark: f"\\{mark}", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return mark + "".join(escapes.get(c) or (c if c.isprintable() else _octal(c)) for c in text) + mark


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def _scalar(value: bool | float | str) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def _config_lines(config: QuantConfig) -> Iterator[str]:
    if config.batch_num is not None:
        yield f"batch_num: {config.batch_num}"
    for name in ("activation_offset", "joint_quant", "do_fusion"):
        yield f"{name}: {_scalar(getattr(config, name))}"
    for name in ("skip_layers", "skip_layer_types", "skip_fusion_layers"):
        yield from (f"{name}: {quoted(value)}" for value in getattr(config, name))
    if config.common is not None:
        yield from _braces("common_config", _block_lines(config.common))
    for layer_type, block in config.override_types:
        yield from _override_lines("override_layer_types", "layer_type", layer_type, block)
    for layer_name, block in config.override_layers:
        yield from _override_lines("override_layer_configs", "layer_name", layer_name, block)


def _override_lines(field_name: str, key: str, name: str, block: CalibrationBlock) -> Iterator[str]:
    inner = _braces("calibration_config", _block_lines(block))
    yield from _braces(field_name, [f"{key}: {quoted(name)}", *inner])


def _block_lines(block: CalibrationBlock) -> Iterator[str]:
    parts = {"arq_quantize": block.arq, "ifmr_quantize": block.ifmr, "hfmg_quantize": block.hfmg}
    for name, settings in parts.items():
        if settings is not None:
            values = [(key, getattr(settings, key)) for key in settings.__dataclass_fields__]
            yield from _braces(name, [f"{key}: {_scalar(value)}" for key, value in values if value is not None])


def _braces(name: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{name} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"
