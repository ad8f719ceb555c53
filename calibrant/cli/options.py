"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.errors import ConfigError

if TYPE_CHECKING:
    from calibrant.pipeline import Config as Configuration


class FailOn(StrEnum):
    """The least severity of an event that makes a command fail."""

    warn = "warn"
    error = "error"


class DialectName(StrEnum):
    """Whose type names a simple configuration uses."""

    onnx = "onnx"
    atc = "atc"
    pytorch = "pytorch"


class WeightOnlyFormName(StrEnum):
    """How weights that are quantized alone become float again."""

    dequantize = "dequantize"
    mul = "mul"


def _checked_keep(text: str) -> str:
    """Refuse a wrong word as other choices are refused: as a matter of usage."""
    from calibrant.stats.keep import Keep

    try:
        return str(Keep.parse(text))
    except ConfigError as error:
        raise typer.BadParameter(str(error).removeprefix("keep: ")) from error


def _checked_memory(size: str | None) -> str | None:
    from calibrant.byte_sizes import parse_bytes

    try:
        return size if size is None else str(parse_bytes(size, "--memory"))
    except ConfigError as error:
        raise typer.BadParameter(str(error).removeprefix("--memory: ")) from error


WeightOnlyFormOption = Annotated[
    WeightOnlyFormName,
    typer.Option(
        "--weight-only-form",
        help="For weight_compress_only: DequantizeLinear (one scale, opset 10 to 15), or Cast, Sub and Mul everywhere.",
    ),
]
FixInput = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Turn an input into a constant; may be repeated.")
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float ONNX model.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Data = Annotated[Path, typer.Option(help="Calibration samples: a .npz file or a folder of .npy files.")]
DialectOption = Annotated[
    DialectName | None,
    typer.Option("--dialect", help="Whose type names the configuration uses. [default: told by the file]"),
]
Config = Annotated[Path | None, typer.Option(help="quant.cfg or config.json; AMCT's defaults without it.")]
RunOption = Annotated[
    Path | None, typer.Option("--run", help="Run folder to make. [default: <model stem>.run]", show_default=False)
]
Prefix = Annotated[
    str | None, typer.Option(help="Path prefix of the exported files. [default: RUN/export/<model stem>]")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Samples a batch, as batch_num counts; it changes no statistic. [default: the model's, else 8]",
    ),
]
KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="raw|raw:N|stats",
        callback=_checked_keep,
        help="raw: keep the activations as Parquet; raw:N: those of N samples chosen by content; stats: the statistics only.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        callback=_checked_memory,
        help="Most memory to take, e.g. 4GB: decides how many samples run at once, and how many tensors are observed at once.",
    ),
]
Fit = Annotated[str, typer.Option("--fit", metavar="NAME", help="Name of the fit.")]
TableFormat = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="table, csv, json (one object a line) or parquet.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Capture anew. [default: a complete run of the same content is reused]")
]
StrictAmct = Annotated[
    bool,
    typer.Option("--strict-amct", help="Refuse a bias outside int32, as AMCT does. [default: raise the weight scale]"),
]
MatmulPerChannel = Annotated[
    bool,
    typer.Option(
        "--matmul-per-channel", help="One weight scale an output column of Gemm and MatMul. [default: one, as in AMCT]"
    ),
]
Fail = Annotated[FailOn | None, typer.Option(help="Exit with 1 where an event of this severity was recorded.")]


def fixed_inputs(pairs: list[str] | None) -> dict[str, str]:
    """Return the values of ``--fix-input`` by input name.

    Raises:
        ConfigError: a pair without a name or an equals sign.

    Example:
        >>> fixed_inputs(["sr=16000"])
        {'sr': '16000'}
    """
    fixed = {}
    for pair in pairs or []:
        name, equals, value = pair.rpartition("=")
        if not equals or not name:
            message = f"--fix-input '{pair}': expected NAME=VALUE, e.g. --fix-input sr=16000"
            raise ConfigError(message)
        fixed[name] = value
    return fixed


def share(text: str, option: str) -> float:
    """Return a share that is written as a number from 0 to 1 or in percent.

    Raises:
        ConfigError: it is neither.

    Example:
        >>> share("15%", "--max-float-macs"), share("0.15", "--max-float-macs")
        (0.15, 0.15)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number) / (100 if percent else 1)
    except ValueError:
        found = -1.0
    if rest or not 0 <= found <= 1:
        message = f"{option} '{text}': expected a share, e.g. 0.15 or 15%"
        raise ConfigError(message)
    return found


def configuration(config: Path | None, dialect: DialectName | None) -> "Configuration | None":
    """Read the configuration here where the caller forces its dialect; else the stages read it.

    Raises:
        ConfigError: the file cannot be read in that dialect.
    """
    if config is None or dialect is None:
        return config
    from calibrant.proto.any_config import read_calibration_config

    return read_calibration_config(config, dialect=dialect.value)
