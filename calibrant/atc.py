"""ATC's own calibration job, `compression_optimize_conf`: which data, which configuration."""

from dataclasses import dataclass
from pathlib import Path

from calibrant.errors import ConfigError
from calibrant.ingest.bin_folders import BinFolders, BinInput
from calibrant.proto.optimize_conf import CompressionOptimizeConf, read_optimize_conf
from calibrant.proto.simple_config import ConfigNote


@dataclass(frozen=True)
class AtcJob:
    """What such a file asks for.

    Attributes:
        data: the feeds.
        config: the configuration file, or None for the defaults.
        notes: what its reader has to say.
    """

    data: BinFolders
    config: Path | None
    notes: tuple[ConfigNote, ...]


def read_atc_job(path: Path) -> AtcJob:
    """Read a compression_optimize_conf and find its files, first beside it, then in the working folder.

    Raises:
        ConfigError: the file is wrong, names no data, or not one path an input.
        DataError: the data is missing.
    """
    conf = read_optimize_conf(path)
    return AtcJob(
        data=BinFolders(_bin_inputs(conf, path)),
        config=None if conf.config_file is None else _find(conf.config_file, path),
        notes=conf.notes,
    )


def _bin_inputs(conf: CompressionOptimizeConf, path: Path) -> list[BinInput]:
    if not conf.input_data or not conf.input_shapes:
        missing = "input_shape" if conf.input_data else "input_data_dir"
        message = f"{path}: no {missing}; ATC's job needs input_data_dir and input_shape"
        raise ConfigError(message)
    if len(conf.input_data) != len(conf.input_shapes):
        message = (
            f"{conf.where('input_data_dir')}: {len(conf.input_data)} folders for {len(conf.input_shapes)} inputs in input_shape; "
            "one folder an input is expected"
        )
        raise ConfigError(message)
    pairs = zip(conf.input_data, conf.input_shapes, strict=True)
    return [BinInput(name, _find(folder, path), shape) for folder, (name, shape) in pairs]


def _find(name: str, beside: Path) -> Path:
    near = beside.parent / name
    return near if near.exists() else Path(name)
