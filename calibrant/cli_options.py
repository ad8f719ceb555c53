"""Options that several commands share."""

from enum import StrEnum
from typing import Annotated

import typer

from calibrant.errors import ConfigError


class DialectName(StrEnum):
    """Whose type names a simple configuration uses."""

    onnx = "onnx"
    atc = "atc"
    pytorch = "pytorch"


class WeightOnlyFormName(StrEnum):
    """How weights that are quantized alone become float again."""

    dequantize = "dequantize"
    mul = "mul"


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
