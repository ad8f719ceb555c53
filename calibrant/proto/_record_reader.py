"""Record text to entries: every field of every flavour, each with its place."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from calibrant.proto import _document
from calibrant.proto._document import Section
from calibrant.proto._syntax import Field
from calibrant.proto.record import Flavour, PruneGroup, RecordEntry, RecordFile
from calibrant.proto.record_rules import Breach, breaches
from calibrant.proto.simple_config import ConfigNote

# Fields that only one flavour has; act_type and its like are of ONNX and PyTorch and count for ONNX.
_MARKS: Final[dict[Flavour, frozenset[str]]] = {
    "caffe": frozenset({"channels", "height", "width"}),
    "pytorch": frozenset(
        {"dst_type", "kv_cache_value", "scale_h", "offset_h", "scale_r", "offset_r", "prune_record"},
    ),
    "onnx": frozenset({"op_data_type", "is_tensor_quantize"}),
}
_MODERN: Final = frozenset({"act_type", "wts_type", "tensor_balance_factor", "fakequant_precision_mode"})
_OPTIONAL: Final = (
    "offset_d", "act_type", "wts_type", "op_data_type", "skip_fusion", "fakequant_precision_mode", "dst_type",
    "channels", "height", "width", "offset_h",
)  # fmt: skip
_CACHE: Final = "kv_cache_value"


def read(text: str, source: str) -> RecordFile:
    """Read a record.

    Raises:
        ConfigError: with ``source:line:column``.
    """
    root = _document.merge_text(text, _document.RECORD, source)
    sections = root.children("record")
    _reject_repeats(root, sections)
    entries = tuple(_read_entry(section) for section in sections)
    prunes = tuple(_prune_group(section) for section in root.children("prune_record"))
    flavour, mixed = _flavour(root.fields)
    notes = [ConfigNote("warn", root.at("record", text)) for text in mixed]
    notes += [note for section in sections for note in _overwritten(section)]
    return RecordFile(entries, flavour, prunes, tuple(notes), source)


def _reject_repeats(root: Section, sections: list[Section]) -> None:
    seen: set[str] = set()
    for index, section in enumerate(sections):
        if not section.value("key") or not (section.has("value") or section.has(_CACHE)):
            root.reject("record", "a record needs a key and a value", index)
        key = section.value("key")
        if key in seen:
            section.reject("key", f"'{key}' has a second record; delete one")
        seen.add(key)


def _read_entry(section: Section) -> RecordEntry:
    value, cache = section.child("value"), section.child(_CACHE)
    entry = RecordEntry(
        key=section.value("key"),
        scale_d=_float32(value.optional("scale_d")),
        scale_w=_floats(value.value("scale_w")),
        offset_w=tuple(value.value("offset_w")),
        is_tensor_quantize=value.value("is_tensor_quantize"),
        tensor_balance_factor=_floats(value.value("tensor_balance_factor")),
        shift_bit=tuple(value.value("shift_bit")),
        cluster=tuple(value.value("cluster")),
        scale_h=_float32(value.optional("scale_h")),
        scale_r=_floats(value.value("scale_r")),
        offset_r=tuple(value.value("offset_r")),
        kv_scale=_floats(cache.value("scale")),
        kv_offset=tuple(cache.value("offset")),
        where=_places(section, value, cache),
        **{name: value.optional(name) for name in _OPTIONAL},
    )
    for breach in breaches(entry):
        _reject(breach, value, cache)
    return entry


def _reject(breach: Breach, value: Section, cache: Section) -> None:
    block, _, name = breach.field.rpartition(".")
    (cache if block else value).reject(name, breach.text, breach.position)


def _places(section: Section, value: Section, cache: Section) -> dict[str, str]:
    fields = {field.name: field for field in (*section.fields, *value.fields)}
    fields |= {f"{_CACHE}.{field.name}": field for field in cache.fields}
    return {name: f"{section.source}:{field.place.line}:{field.place.column}" for name, field in fields.items()}


def _prune_group(section: Section) -> PruneGroup:
    message = section.message
    selective = str(message.selective_prune.name) if section.has("selective_prune") else None
    place = f"{section.source}:{section.place.line}:{section.place.column}"
    return PruneGroup(_node_names(message.producer), _node_names(message.consumer), selective, place)


def _node_names(nodes: Iterable[Any]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _flavour(fields: Iterable[Field]) -> tuple[Flavour, list[str]]:
    """Tell the flavour from the names that were written, and what speaks for another one."""
    names = {name for field in fields for name in _names(field)}
    found: list[Flavour] = [flavour for flavour, marks in _MARKS.items() if marks & names]
    if not found:
        return ("onnx" if _MODERN & names else "tensorflow"), []
    if len(found) == 1:
        return found[0], []
    said = ", ".join(f"{', '.join(sorted(_MARKS[flavour] & names))} ({flavour})" for flavour in found)
    return found[0], [f"fields of several flavours: {said}; all are read"]


def _names(field: Field) -> Iterator[str]:
    yield field.name
    if field.name != "prune_record":
        for child in field.children:
            yield from _names(child)


def _overwritten(section: Section) -> Iterator[ConfigNote]:
    for block in (section, section.child("value")):
        counts = Counter(field.name for field in block.fields)
        for name, count in counts.items():
            descriptor = block.message.DESCRIPTOR.fields_by_name[name]
            if count > 1 and not descriptor.is_repeated:
                kind = "the blocks are merged" if descriptor.message_type is not None else "the last one wins"
                yield ConfigNote("warn", block.at(name, f"{name} is given {count} times: {kind}"))


def _float32(value: float | None) -> np.float32 | None:
    return None if value is None else np.float32(value)


def _floats(values: Iterable[float]) -> tuple[np.float32, ...]:
    return tuple(np.float32(value) for value in values)
