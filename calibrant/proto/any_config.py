"""A configuration file of whatever kind: what it is is told by its content, and its reader does the rest."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibrant.errors import ConfigError
from calibrant.proto.documents import DocumentKind, document_kind
from calibrant.proto.json_config import JsonConfig, parse_json_config
from calibrant.proto.layerwise import layerwise_config
from calibrant.proto.op_types import Dialect
from calibrant.proto.optimize_conf import CompressionOptimizeConf, parse_optimize_conf
from calibrant.proto.retrain_config import RetrainConfig, parse_retrain_config
from calibrant.proto.retrain_json import RetrainJson, parse_retrain_json
from calibrant.proto.simple_config import QuantConfig, parse_simple_config

PathLike = str | os.PathLike[str]
AnyConfig = QuantConfig | JsonConfig | RetrainConfig | RetrainJson | CompressionOptimizeConf

_WHAT: Final[dict[DocumentKind, str]] = {
    "ptq": "a simple configuration of calibration (quant.cfg)",
    "json": "a config.json of calibration",
    "retrain": "a simple configuration of retraining (QAT) or pruning",
    "retrain-json": "a config.json of retraining (QAT)",
    "compression-optimize-conf": "a compression_optimize_conf of ATC",
}
_ADVICE: Final[dict[DocumentKind, str]] = {
    "retrain": "it is for training (calibrant.amct, docs/qat.md); give a quant.cfg to calibrate",
    "retrain-json": "it is for training (calibrant.amct, docs/qat.md); give a config.json with quant_enable to calibrate",
    "compression-optimize-conf": "give it as --compression-optimize-conf, or give the config_file that it names",
}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration and what it was read as.

    Attributes:
        kind: which of AMCT's files it is.
        config: its content.
        note: what was detected, in words.
    """

    kind: DocumentKind
    config: AnyConfig
    note: str


def read_config(path: PathLike, *, dialect: Dialect | None = None) -> ConfigFile:
    """Read a configuration file of any kind.

    Args:
        path: a file in UTF-8.
        dialect: whose type names a simple configuration uses; None: told by its content.

    Raises:
        ConfigError: the file cannot be read, or something in it cannot mean anything; says ``file:line:column``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "config.json")
        ...     _ = path.write_text('{"fc":{"quant_enable":true}}')
        ...     read_config(path).kind
        'json'
    """
    return parse_config(_read_text(path), str(path), dialect=dialect)


def parse_config(text: str, source: str = "<text>", *, dialect: Dialect | None = None) -> ConfigFile:
    """Read a configuration of any kind from a text.

    Args:
        text: the text.
        source: name for messages.
        dialect: as in `read_config`.

    Raises:
        ConfigError: as `read_config`.
    """
    kind = document_kind(text, source)
    config: AnyConfig
    if kind == "json":
        config = parse_json_config(text, source)
    elif kind == "retrain-json":
        config = parse_retrain_json(text, source)
    elif kind == "retrain":
        config = parse_retrain_config(text, source, dialect=dialect)
    elif kind == "compression-optimize-conf":
        config = parse_optimize_conf(text, source)
    else:
        config = parse_simple_config(text, source, dialect=dialect)
    return ConfigFile(kind, config, f"{source}: read as {_WHAT[kind]}{_in_dialect(config)}")


def read_calibration_config(path: PathLike, *, dialect: Dialect | None = None) -> QuantConfig:
    """Read a configuration that a calibration can use: a simple one or a config.json.

    Args:
        path: a file in UTF-8.
        dialect: as in `read_config`.

    Raises:
        ConfigError: as `read_config`; or the file is for something else, which the message names.
    """
    return parse_calibration_config(_read_text(path), str(path), dialect=dialect)


def calibration_config(config: PathLike | QuantConfig | JsonConfig) -> QuantConfig:
    """Return a configuration of any form, a file or what was built or read in Python, as the stages take it.

    Raises:
        ConfigError: as `read_calibration_config`, or as `layerwise_config`.
    """
    if isinstance(config, JsonConfig):
        return layerwise_config(config)
    return config if isinstance(config, QuantConfig) else read_calibration_config(config)


def parse_calibration_config(text: str, source: str = "<text>", *, dialect: Dialect | None = None) -> QuantConfig:
    """Read a configuration that a calibration can use from a text; see `read_calibration_config`.

    Raises:
        ConfigError: as `read_calibration_config`.

    Example:
        >>> parse_calibration_config('{"batch_num":2,"fc":{"quant_enable":true}}').batch_num
        2
    """
    kind = document_kind(text, source)
    if kind in _ADVICE:
        message = f"{source}: this is {_WHAT[kind]}; {_ADVICE[kind]}"
        raise ConfigError(message)
    if kind == "json":
        return layerwise_config(parse_json_config(text, source))
    return parse_simple_config(text, source, dialect=dialect)


def _in_dialect(config: AnyConfig) -> str:
    return f", in the {config.dialect} dialect" if isinstance(config, QuantConfig | RetrainConfig) else ""


def _read_text(path: PathLike) -> str:
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, marked = _document.read_text(Path(path), _document.ANY)
    return "\ufeff" * marked + text
