"""AMCT's simple configuration (quant.cfg): protobuf text to frozen dataclasses.

What AMCT accepts is accepted, with its rules: a value given twice counts as written last, an override replaces `common_config`
as a whole. What looks wrong becomes a `ConfigNote`; what cannot mean anything is a `ConfigError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from calibrant.errors import ConfigError
from calibrant.proto._canonical import config_lines, quoted
from calibrant.proto.op_types import Dialect, OpType, layer_type, unknown_type
from calibrant.proto.settings import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DataType,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NamedBlock,
    NuqSettings,
    TensorSettings,
)

__all__ = [
    "AdaSettings", "ArqSettings", "CalibrationBlock", "ConfigNote", "DataType", "Dialect", "DmqSettings", "HfmgSettings",
    "IfmrSettings", "NamedBlock", "NuqSettings", "PrecisionMode", "QuantConfig", "TensorSettings", "canonical_text",
    "parse_simple_config", "quoted", "read_simple_config",
]  # fmt: skip

PrecisionMode = Literal["DEFAULT", "FORCE_FP16_QUANT"]


@dataclass(frozen=True, slots=True)
class ConfigNote:
    """Something a reader of the configuration should know.

    Attributes:
        severity: ``warn`` (probably not what was meant) or ``info``.
        message: one line that begins with ``file:line:column: ``.
    """

    severity: Literal["warn", "info"]
    message: str


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """What a simple configuration says; without arguments: AMCT's defaults.

    Everything written is kept here whether or not it is applied; the plan decides that.

    Attributes:
        batch_num: how many batches to use; None where not written: all.
        activation_offset: whether data gets an offset where nothing nearer says so.
        joint_quant: quantize the inputs of an element-wise sum with one scale.
        do_fusion: whether BatchNormalization is fused into the layer before it.
        skip_layers: names of layers to leave in float.
        skip_layer_types: types of layers to leave in float, as written.
        skip_fusion_layers: names of layers whose BatchNormalization is not fused.
        common: settings of all layers that nothing overrides.
        override_types: settings by type as written, in file order.
        override_layers: settings by layer name, in file order.
        dialect: whose type names it uses: ``onnx`` (amct_onnx), ``atc`` (ATC, Caffe and TensorFlow) or ``pytorch``.
        version: version of the format; None where not written.
        enable_auto_nuq: choose layers for NUQ automatically; None where not written.
        weight_offset: weights with an offset; None where not written.
        fakequant_precision_mode: arithmetic of the fake-quant model; None where not written.
        nuq: non-uniform weights; None = not given.
        tensor_quantize: inputs of other nodes to quantize, in file order.
        conv_calibration: deprecated settings of convolutions (Caffe, TensorFlow).
        fc_calibration: deprecated settings of fully connected layers.
        calibrant_matmul_per_channel: one weight scale an output column of a Gemm or MatMul; an extension of calibrant's, None where
            not written.
        dialect_reason: what `dialect` was taken from.
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
    dialect: Dialect = "onnx"
    version: int | None = None
    enable_auto_nuq: bool | None = None
    weight_offset: bool | None = None
    fakequant_precision_mode: PrecisionMode | None = None
    nuq: NuqSettings | None = None
    tensor_quantize: tuple[TensorSettings, ...] = ()
    conv_calibration: CalibrationBlock | None = None
    fc_calibration: CalibrationBlock | None = None
    calibrant_matmul_per_channel: bool | None = None
    dialect_reason: str = field(default="the default", compare=False, repr=False)
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_num is not None and self.batch_num < 1:
            message = f"batch_num is {self.batch_num}; at least 1 is expected (leave it out to use all data)"
            raise ConfigError(message)

    def type_of(self, field_name: str, name: str) -> OpType:
        """Return what a type name of `skip_layer_types` or `override_layer_types` means in the dialect of the configuration.

        Args:
            field_name: the field that names it.
            name: the name as written.

        Raises:
            ConfigError: no such type; says ``file:line:column`` and the nearest name.

        Example:
            >>> config = parse_simple_config('skip_layer_types: "InnerProduct"')
            >>> config.dialect, config.type_of("skip_layer_types", "InnerProduct").onnx
            ('atc', ('Gemm', 'MatMul'))
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
        for name in self.skip_layer_types:
            self.type_of("skip_layer_types", name)
        for name, _ in self.override_types:
            self.type_of("override_layer_types", name)

    def where(self, field_name: str, name: str = "") -> str:
        """Return ``file:line:column`` of a field or of a name in it; the bare file, or ``configuration``, where unknown."""
        return self.positions.get((field_name, name), self.source or "configuration")


def read_simple_config(path: Path | str, *, dialect: Dialect | None = None) -> QuantConfig:
    """Read a simple configuration file.

    Args:
        path: protobuf text in UTF-8; a byte-order mark is accepted with a note.
        dialect: whose type names the file uses; None: detected from its fields and names.

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
    return _simple_reader.read(text, str(path), dialect=dialect, byte_order_mark=marked)


def parse_simple_config(text: str, source: str = "<text>", *, dialect: Dialect | None = None) -> QuantConfig:
    """Read a simple configuration from a text.

    Args:
        text: protobuf text.
        source: name for messages.
        dialect: as in `read_simple_config`.

    Raises:
        ConfigError: as `read_simple_config`.

    Example:
        >>> config = parse_simple_config('skip_layers: "conv1"  common_config { hfmg_quantize { num_of_bins: 2048 } }')
        >>> config.skip_layers, config.common.hfmg.num_of_bins
        (('conv1',), 2048)
    """
    from calibrant.proto import _simple_reader

    marked = text.startswith("\ufeff")
    return _simple_reader.read(text.removeprefix("\ufeff"), source, dialect=dialect, byte_order_mark=marked)


def canonical_text(config: QuantConfig) -> str:
    """Write a configuration in one fixed form, for provenance and hashes; reading it gives an equal configuration.

    Overrides keep their order, and every value of a block is written out. The dialect is not written: read the text with the
    same one where it was forced.

    Example:
        >>> print(canonical_text(QuantConfig(batch_num=2, skip_layer_types=("Gemm",))), end="")
        batch_num: 2
        activation_offset: true
        joint_quant: false
        do_fusion: true
        skip_layer_types: "Gemm"
    """
    return "".join(f"{line}\n" for line in config_lines(config))
