"""ATC's ``compression_optimize_conf``: where its calibration finds data, input shapes and the simple configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calibrant.proto.simple_config import ConfigNote


@dataclass(frozen=True, slots=True)
class CompressionOptimizeConf:
    """The ``calibration`` block of a file for ``atc --compression_optimize_conf``; None = not written.

    Attributes:
        input_data: paths as written, one a model input.
        input_shapes: shapes as written, by input name, in file order.
        config_file: the simple configuration, as written.
        infer_soc: the chip that ATC would run the model on.
        log: level of ATC's log.
        enable_first_layer_quantization: whether ATC quantizes the first layer too.
        source: the file, or None.
        text: the file's text; empty where it was built in Python.
        notes: what a reader should know.
        positions: ``file:line:column`` by field.
    """

    input_data: tuple[str, ...] = ()
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    config_file: str | None = None
    infer_soc: str | None = None
    log: str | None = None
    enable_first_layer_quantization: bool | None = None
    source: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    notes: tuple[ConfigNote, ...] = field(default=(), compare=False, repr=False)
    positions: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def where(self, field_name: str) -> str:
        """Return ``file:line:column`` of a field; the bare file, or ``configuration``, where unknown."""
        return self.positions.get(field_name, self.source or "configuration")


def read_optimize_conf(path: Path | str) -> CompressionOptimizeConf:
    """Read a file for ``atc --compression_optimize_conf``.

    Args:
        path: protobuf text in UTF-8; values may stand without quotation marks, as ATC allows it.

    Raises:
        ConfigError: the file cannot be read, or something in it cannot mean anything; says ``file:line:column``.
    """
    from calibrant.proto import _document, _optimize_reader  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.OPTIMIZE)
    return _optimize_reader.read(text, str(path), byte_order_mark=marked)


def parse_optimize_conf(text: str, source: str = "<text>") -> CompressionOptimizeConf:
    """Read a file for ``atc --compression_optimize_conf`` from a text.

    Args:
        text: protobuf text.
        source: name for messages.

    Raises:
        ConfigError: as `read_optimize_conf`.

    Example:
        >>> conf = parse_optimize_conf('calibration: { input_shape: "x:1,3,8,8;mask:1,8" config_file: "quant.cfg" }')
        >>> conf.input_shapes, conf.config_file
        ((('x', (1, 3, 8, 8)), ('mask', (1, 8))), 'quant.cfg')
    """
    from calibrant.proto import _optimize_reader

    marked = text.startswith("\ufeff")
    return _optimize_reader.read(text.removeprefix("\ufeff"), source, byte_order_mark=marked)
