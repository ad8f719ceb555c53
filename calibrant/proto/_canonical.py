"""A simple configuration in one fixed form: every value that was read is written back."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from calibrant.proto.settings import CalibrationBlock, DataSettings, IfmrSettings, NuqSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from calibrant.proto.simple_config import QuantConfig


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


def config_lines(config: "QuantConfig") -> Iterator[str]:
    """Yield the lines of `calibrant.proto.simple_config.canonical_text`."""
    yield from values(config, ("version", "batch_num", "activation_offset", "joint_quant", "do_fusion"))
    yield from values(config, ("weight_offset", "enable_auto_nuq", "fakequant_precision_mode"))
    yield from values(config, ("calibrant_matmul_per_channel",))
    for name in ("skip_layers", "skip_layer_types", "skip_fusion_layers"):
        yield from (f"{name}: {quoted(value)}" for value in getattr(config, name))
    if config.nuq is not None:
        yield from braces("nuq_config", _nuq_lines(config.nuq))
    yield from _common_lines(config)
    for layer_type, block in config.override_types:
        yield from _override_lines("override_layer_types", "layer_type", layer_type, block)
    for layer_name, block in config.override_layers:
        yield from _override_lines("override_layer_configs", "layer_name", layer_name, block)
    for tensor in config.tensor_quantize:
        head = [f"layer_name: {quoted(tensor.layer)}", f"input_index: {tensor.input_index}"]
        yield from braces("tensor_quantize", [*head, *_data_lines(tensor.data)])


def values(settings: object, names: Iterable[str]) -> Iterator[str]:
    """Yield a line for each attribute that is not None."""
    written = ((name, getattr(settings, name)) for name in names)
    yield from (f"{name}: {_scalar(value)}" for name, value in written if value is not None)


def _scalar(value: bool | float | str) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def _nuq_lines(nuq: NuqSettings) -> Iterator[str]:
    if nuq.mapping_file is not None:
        yield f"mapping_file: {quoted(nuq.mapping_file)}"
    yield from _nuq_quantize_lines(nuq)


def _nuq_quantize_lines(nuq: NuqSettings) -> Iterator[str]:
    yield from braces("nuq_quantize", values(nuq, ("num_steps", "num_of_iteration")))


def _common_lines(config: "QuantConfig") -> Iterator[str]:
    blocks = {
        "common_config": config.common,
        "conv_calibration_config": config.conv_calibration,
        "fc_calibration_config": config.fc_calibration,
    }
    for name, block in blocks.items():
        if block is not None:
            yield from braces(name, _block_lines(block))


def _override_lines(field_name: str, key: str, name: str, block: CalibrationBlock) -> Iterator[str]:
    inner = braces("calibration_config", _block_lines(block))
    yield from braces(field_name, [f"{key}: {quoted(name)}", *inner])


def _block_lines(block: CalibrationBlock) -> Iterator[str]:
    yield from values(block, ("weight_compress_only",))
    yield from _part("arq_quantize", block.arq)
    if block.nuq is not None:
        yield from _nuq_quantize_lines(block.nuq)
    yield from _part("ada_quantize", block.ada)
    yield from _data_lines(block.data)
    yield from _part("dmq_balancer", block.dmq)


def _data_lines(data: DataSettings | None) -> Iterator[str]:
    if data is not None:
        yield from _part("ifmr_quantize" if isinstance(data, IfmrSettings) else "hfmg_quantize", data)


def _part(name: str, settings: "DataclassInstance | None") -> Iterator[str]:
    if settings is not None:
        yield from braces(name, values(settings, [one.name for one in fields(settings)]))


def braces(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a block in braces, indented."""
    yield f"{name} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"
