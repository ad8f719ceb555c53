"""Scale/offset records (record.txt): the scales that a calibration found, one entry a layer.

All flavours of AMCT are read (ONNX, PyTorch, Caffe, TensorFlow); an entry has the fields of all of them. The writer keeps the
layout of AMCT's files: two spaces a level, one value a line, ``op_data_type`` in single quotes. Huawei's own tools search that
text. Scales are written as the shortest text that reads back as the same float32.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.errors import ConfigError
from calibrant.proto._files import write_text
from calibrant.proto.simple_config import ConfigNote, quoted

Flavour = Literal["onnx", "pytorch", "caffe", "tensorflow"]


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """The record of one layer, or of one input tensor (``is_tensor_quantize``).

    Attributes:
        key: name of the layer; of a tensor: ``name:index``.
        scale_d: step of the data, or None.
        offset_d: offset of the data (-128 for ReLU outputs at 8 bits, 0 where symmetric), or None.
        scale_w: steps of the weight: one, or one an output channel; 1.0 for AveragePool.
        offset_w: as many zeros: weights are symmetric; only where the weight alone is quantized (no scale_d) they may be others.
        act_type: ``INT8`` or another width; None where not written.
        wts_type: the same for the weight.
        op_data_type: ``FLOAT32`` or ``FLOAT16``; None where not written.
        is_tensor_quantize: whether the entry stands for an input tensor alone.
        tensor_balance_factor: DMQ's factor of each input channel.
        shift_bit: shifts of the NPU's requantization, mostly absent.
        skip_fusion: whether a BatchNormalization stays behind the layer; None where not written.
        fakequant_precision_mode: ``DEFAULT`` or ``FORCE_FP16_QUANT``; None where not written.
        dst_type: width of data and weight, as the older PyTorch flavour writes it.
        channels, height, width: shape of the layer's input, as the Caffe flavour writes it.
        cluster: NUQ's 16 or 32 centres, in old records.
        scale_h, offset_h: step and offset of the hidden state of an LSTM or GRU (PyTorch).
        scale_r, offset_r: steps and offsets of its recurrent weight (PyTorch).
        kv_scale, kv_offset: steps and offsets of a key-value cache (PyTorch's ``kv_cache_value``).
        where: where each field was written last, as ``file:line:column``; no part of the value.
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
    cluster: tuple[int, ...] = ()
    scale_h: np.float32 | None = None
    offset_h: int | None = None
    scale_r: tuple[np.float32, ...] = ()
    offset_r: tuple[int, ...] = ()
    kv_scale: tuple[np.float32, ...] = ()
    kv_offset: tuple[int, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PruneGroup:
    """Layers that AMCT's pruning ties together (``prune_record``); read and reported, never applied.

    Attributes:
        producers: layers whose output channels are removed.
        consumers: layers that lose the same input channels.
        selective: the layer of a selective (2 of 4) pruning, or None.
        where: ``file:line:column``.
    """

    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    selective: str | None
    where: str


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A whole record file.

    Attributes:
        entries: in file order.
        flavour: the flavour that its fields speak for; ``tensorflow`` where it has only those that all flavours have.
        prunes: what it says of pruning.
        notes: what a reader should know, each with ``file:line:column``.
        source: name of the file.
    """

    entries: tuple[RecordEntry, ...]
    flavour: Flavour
    prunes: tuple[PruneGroup, ...] = ()
    notes: tuple[ConfigNote, ...] = ()
    source: str = "<text>"


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
    """Read the entries of a record file of any flavour and any layout that is protobuf text.

    Raises:
        ConfigError: the file cannot be read, or an entry cannot mean anything; says ``file:line:column``.
    """
    return read_record_file(path).entries


def read_record_file(path: Path | str) -> RecordFile:
    """Read a record file with its flavour, its pruning groups and notes.

    Raises:
        ConfigError: as `read_record`.
    """
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, _ = _document.read_text(Path(path), _document.RECORD)
    return parse_record_file(text, str(path))


def parse_record(text: str, source: str = "<text>") -> tuple[RecordEntry, ...]:
    """Read the entries of a record from a text.

    Each entry needs a key of its own and a value that keeps the rules of `calibrant.proto.record_rules`.

    Args:
        text: protobuf text.
        source: name for messages.

    Raises:
        ConfigError: an entry cannot mean anything; says ``source:line:column``.

    Example:
        >>> parse_record('record { key: "Conv_0" value { scale_d: 0.1 offset_d: -128 } }')[0].offset_d
        -128
    """
    return parse_record_file(text, source).entries


def parse_record_file(text: str, source: str = "<text>") -> RecordFile:
    """Read a record from a text, with its flavour, its pruning groups and notes.

    Args:
        text: protobuf text.
        source: name for messages.

    Raises:
        ConfigError: as `parse_record`.

    Example:
        >>> parse_record_file('record { key: "conv1" value { scale_d: 0.1 channels: 3 } }').flavour
        'caffe'
    """
    from calibrant.proto import _record_reader  # as above

    return _record_reader.read(text, source)


def _entry_text(entry: RecordEntry) -> str:
    value, cache = _lines(_members(entry)), _lines(_cache_members(entry))
    blocks = f"  value {{\n{value}  }}\n" if value or not cache else ""
    blocks += f"  kv_cache_value {{\n{cache}  }}\n" if cache else ""
    return f"record {{\n  key: {quoted(entry.key)}\n{blocks}}}\n"


def _lines(members: Iterable[tuple[str, str]]) -> str:
    return "".join(f"    {name}: {value}\n" for name, value in members)


def _members(entry: RecordEntry) -> Iterator[tuple[str, str]]:
    """Yield the written members in AMCT's order: data, then weight, then the rest."""
    yield from _numbers(entry, "scale_d", "offset_d")
    yield from _texts(entry, "act_type")
    if entry.op_data_type is not None:
        yield "op_data_type", quoted(entry.op_data_type, mark="'")
    yield from _numbers(entry, "scale_w", "offset_w", "shift_bit")
    yield from _texts(entry, "wts_type", "fakequant_precision_mode", "dst_type")
    yield from _numbers(entry, "tensor_balance_factor", "skip_fusion", "channels", "height", "width", "cluster")
    yield from _numbers(entry, "scale_h", "offset_h", "scale_r", "offset_r")
    if entry.is_tensor_quantize:
        yield "is_tensor_quantize", "true"


def _cache_members(entry: RecordEntry) -> Iterator[tuple[str, str]]:
    for name in ("scale", "offset"):
        yield from ((name, text) for _, text in _numbers(entry, f"kv_{name}"))


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
