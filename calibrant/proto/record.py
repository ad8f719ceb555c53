"""Scale/offset records (record.txt): the scales that a calibration found, one entry a layer.

The writer keeps the layout of AMCT's files: two spaces a level, one value a line, ``op_data_type`` in single quotes. Huawei's
own tools search that text. Scales are written as the shortest text that reads back as the same float32.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.errors import ConfigError
from calibrant.proto._files import write_text
from calibrant.proto.simple_config import quoted

if TYPE_CHECKING:
    from calibrant.proto._document import Section


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """The record of one layer, or of one input tensor (``is_tensor_quantize``).

    Attributes:
        key: name of the layer; of a tensor: ``name:index``.
        scale_d: step of the data, or None.
        offset_d: offset of the data (-128 for ReLU outputs at 8 bits, 0 where symmetric), or None.
        scale_w: steps of the weight: one, or one an output channel; 1.0 for AveragePool.
        offset_w: as many zeros: weights are symmetric.
        act_type: ``INT8`` or another width; None where not written.
        wts_type: the same for the weight.
        op_data_type: ``FLOAT32`` or ``FLOAT16``; None where not written.
        is_tensor_quantize: whether the entry stands for an input tensor alone.
        tensor_balance_factor: DMQ's factor of each input channel.
        shift_bit: shifts of the NPU's requantization, mostly absent.
        skip_fusion: as written; None where not written.
        fakequant_precision_mode: as written.
        dst_type: as the PyTorch flavour writes it.
        channels, height, width: shape of the layer's input, as the Caffe flavour writes it.
    """

    key: str
    scale_d: np.float32 | None = None
    offset_d: int | None = None
    scale_w: tuple[np.float32, ...] = ()
    offset_w: tuple[int, ...] = ()
    act_type: str | None = "INT8"
    wts_type: str | None = "INT8"
    op_data_type: str | None = "FLOAT32"
    is_tensor_quantize: bool = False
    tensor_balance_factor: tuple[np.float32, ...] = ()
    shift_bit: tuple[int, ...] = ()
    skip_fusion: bool | None = None
    fakequant_precision_mode: str | None = None
    dst_type: str | None = None
    channels: int | None = None
    height: int | None = None
    width: int | None = None


def format_record(entries: Iterable[RecordEntry]) -> str:
    """Write entries as text, in their order.

    Raises:
        ConfigError: a scale or factor is not finite.

    Example:
        >>> entry = RecordEntry("Conv_0", np.float32(0.1), -128, (np.float32(0.5),), (0,))
        >>> print(format_record([entry]), end="")
        record {
          key: "Conv_0"
          value {
            scale_d: 0.1
            offset_d: -128
            act_type: "INT8"
            op_data_type: 'FLOAT32'
            scale_w: 0.5
            offset_w: 0
            wts_type: "INT8"
          }
        }
    """
    return "".join(_entry_text(entry) for entry in entries)


def write_record(path: Path | str, entries: Iterable[RecordEntry]) -> None:
    """Write record.txt, whole or not at all.

    Raises:
        ConfigError: as `format_record`; or the file cannot be written.
    """
    write_text(Path(path), format_record(entries))


def read_record(path: Path | str) -> tuple[RecordEntry, ...]:
    """Read a record file of any layout that is protobuf text.

    Raises:
        ConfigError: the file cannot be read, or an entry cannot mean anything; says ``file:line:column``.
    """
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, _ = _document.read_text(Path(path), _document.RECORD)
    return parse_record(text, str(path))


def parse_record(text: str, source: str = "<text>") -> tuple[RecordEntry, ...]:
    """Read a record from a text.

    Each entry needs a key of its own and a value; scales must be finite and above 0, offsets of weights 0 and as many as scales.

    Args:
        text: protobuf text.
        source: name for messages.

    Raises:
        ConfigError: an entry cannot mean anything; says ``source:line:column``.

    Example:
        >>> parse_record('record { key: "Conv_0" value { scale_d: 0.1 offset_d: -128 } }')[0].offset_d
        -128
    """
    from calibrant.proto import _document  # as above

    root = _document.merge_text(text, _document.RECORD, source)
    _reject_repeats(root)
    return tuple(_read_entry(section) for section in root.children("record"))


def _reject_repeats(root: "Section") -> None:
    seen: set[str] = set()
    for index, section in enumerate(root.children("record")):
        key = section.value("key")
        if not section.has("key") or not section.has("value"):
            root.reject("record", "a record needs a key and a value", index)
        if key in seen:
            section.reject("key", f"'{key}' has a second record; delete one")
        seen.add(key)


def _read_entry(entry: "Section") -> RecordEntry:
    value = entry.child("value")
    _check_scales(value, "scale_d", [value.value("scale_d")] if value.has("scale_d") else [])
    for name in ("scale_w", "tensor_balance_factor"):
        _check_scales(value, name, value.value(name))
    _check_offsets(value)
    return RecordEntry(
        key=entry.value("key"),
        scale_d=np.float32(value.value("scale_d")) if value.has("scale_d") else None,
        scale_w=_float32(value.value("scale_w")),
        offset_w=tuple(value.value("offset_w")),
        is_tensor_quantize=value.value("is_tensor_quantize"),
        tensor_balance_factor=_float32(value.value("tensor_balance_factor")),
        shift_bit=tuple(value.value("shift_bit")),
        **{name: value.optional(name) for name in _OPTIONAL},
    )


_OPTIONAL = (
    "offset_d", "act_type", "wts_type", "op_data_type", "skip_fusion", "fakequant_precision_mode", "dst_type",
    "channels", "height", "width",
)  # fmt: skip


def _check_scales(value: "Section", name: str, scales: Sequence[float]) -> None:
    for index, scale in enumerate(scales):
        if not (math.isfinite(scale) and scale > 0):
            value.reject(name, f"{name} is {scale:g}; a finite number above 0 is expected", index)


def _check_offsets(value: "Section") -> None:
    low, high = (-32768, 32767) if value.value("act_type") == "INT16" else (-128, 127)
    if not low <= value.value("offset_d") <= high:
        value.reject("offset_d", f"offset_d is {value.value('offset_d')}; a number from {low} to {high} is expected")
    for index, offset in enumerate(value.value("offset_w")):
        if offset:
            value.reject("offset_w", f"offset_w is {offset}; 0 is expected, weights are symmetric", index)
    scales, offsets = len(value.value("scale_w")), len(value.value("offset_w"))
    if offsets not in (0, scales):
        value.reject("offset_w", f"{offsets} offset_w for {scales} scale_w; as many are expected")


def _float32(values: Iterable[float]) -> tuple[np.float32, ...]:
    return tuple(np.float32(value) for value in values)


def _entry_text(entry: RecordEntry) -> str:
    lines = "".join(f"    {name}: {value}\n" for name, value in _members(entry))
    return f"record {{\n  key: {quoted(entry.key)}\n  value {{\n{lines}  }}\n}}\n"


def _members(entry: RecordEntry) -> Iterator[tuple[str, str]]:
    """Yield the written members in AMCT's order: data, then weight, then the rest."""
    yield from _numbers(entry, "scale_d", "offset_d")
    yield from _texts(entry, "act_type")
    if entry.op_data_type is not None:
        yield "op_data_type", quoted(entry.op_data_type, mark="'")
    yield from _numbers(entry, "scale_w", "offset_w", "shift_bit")
    yield from _texts(entry, "wts_type", "fakequant_precision_mode", "dst_type")
    yield from _numbers(entry, "tensor_balance_factor", "skip_fusion", "channels", "height", "width")
    if entry.is_tensor_quantize:
        yield "is_tensor_quantize", "true"


def _texts(entry: RecordEntry, *names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        if (text := getattr(entry, name)) is not None:
            yield name, quoted(text)


def _numbers(entry: RecordEntry, *names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        value = getattr(entry, name)
        for one in value if isinstance(value, tuple) else [value]:
            if one is not None:
                yield name, _number(entry, name, one)


def _number(entry: RecordEntry, name: str, value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if not math.isfinite(value):
        message = f"record of '{entry.key}': {name} is {value}; a finite number is expected"
        raise ConfigError(message)
    return str(np.float32(value))
