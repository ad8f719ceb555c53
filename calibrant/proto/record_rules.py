"""What AMCT's reader demands of a record entry, as far as no model is needed to tell.

The ranges are those of docs/records.md: data offsets within int8 (int16 where ``act_type`` says
so), weight offsets 0 (within int8 where the weight alone is quantized, without scale_d), scales finite and above 0, shifts all 0 or
all from 1 to 16, factors within float32's epsilon and its reciprocal.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from calibrant.errors import ConfigError, nearest
from calibrant.proto.simple_config import ConfigNote

if TYPE_CHECKING:
    from calibrant.proto.record import RecordEntry

_EPSILON: Final = 2.0**-23  # of float32; a smaller balance factor, or one above its reciprocal, is refused
_CLUSTERS: Final = (16, 32)  # centres that NUQ can have
_TYPES: Final = {
    "act_type": ("INT4", "INT8", "INT16"),
    "wts_type": ("INT4", "INT6", "INT7", "INT8"),
    "dst_type": ("INT4", "INT8"),
    "op_data_type": ("FLOAT32", "FLOAT16"),
    "fakequant_precision_mode": ("DEFAULT", "FORCE_FP16_QUANT"),
}


class Breach(NamedTuple):
    """A rule that an entry breaks.

    Attributes:
        field: the field; that of a nested message follows a dot: ``kv_cache_value.scale``.
        position: which of its values, -1 for the last.
        text: what is wrong and what is expected.
    """

    field: str
    position: int
    text: str


def breaches(entry: "RecordEntry") -> Iterator[Breach]:
    """Yield what is wrong with the values of an entry."""
    yield from _scales("scale_d", [] if entry.scale_d is None else [entry.scale_d])
    yield from _scales("scale_w", entry.scale_w)
    yield from _scales("scale_h", [] if entry.scale_h is None else [entry.scale_h])
    yield from _scales("scale_r", entry.scale_r)
    yield from _scales("kv_cache_value.scale", entry.kv_scale)
    yield from _factors(entry.tensor_balance_factor)
    yield from _offsets(entry)
    yield from _shifts(entry.shift_bit)
    yield from _centres(entry.cluster)
    yield from _names(entry)


def check_entries(entries: Sequence["RecordEntry"]) -> tuple[ConfigNote, ...]:
    """Check entries of any origin by the rules that need no model.

    Returns:
        Warnings: entries whose types are not written, which count as 8 bits.

    Raises:
        ConfigError: an entry breaks a rule, has no key, or its key is taken.
    """
    seen: set[str] = set()
    for entry in entries:
        if not entry.key:
            message = "record: an entry has no key; give the name of its layer"
            raise ConfigError(message)
        if entry.key in seen:
            raise ConfigError(of_entry(entry, "key", f"'{entry.key}' has a second record; delete one"))
        seen.add(entry.key)
        for breach in breaches(entry):
            raise ConfigError(of_entry(entry, breach.field, breach.text))
    return tuple(_untyped(entries))


def of_entry(entry: "RecordEntry", field: str, text: str) -> str:
    """Say of which entry a message speaks, and where its field stands in the file that it was read from."""
    place = entry.where.get(field) or entry.where.get("key")
    return f"{f'{place}: ' if place else ''}record of '{entry.key}': {text}"


def _untyped(entries: Iterable["RecordEntry"]) -> Iterator[ConfigNote]:
    layers = [entry for entry in entries if not entry.is_tensor_quantize]  # AMCT writes no types for an input alone
    without_data = [entry for entry in layers if entry.scale_d is not None and not (entry.act_type or entry.dst_type)]
    without_weight = [entry for entry in entries if entry.scale_w and not (entry.wts_type or entry.dst_type)]
    for name, found in (("act_type", without_data), ("wts_type", without_weight)):
        if found:
            count = f"{len(found)} entr{'y has' if len(found) == 1 else 'ies have'} no {name}"
            text = f"{count} (the first is '{found[0].key}'): INT8 is assumed"
            place = found[0].where.get("key")
            yield ConfigNote("warn", f"{place}: {text}" if place else f"record: {text}")


def _scales(name: str, scales: Iterable[float | np.float32]) -> Iterator[Breach]:
    for index, scale in enumerate(scales):
        if not (math.isfinite(scale) and scale > 0):
            yield Breach(name, index, f"{name} is {scale:g}; a finite number above 0 is expected")


def _factors(factors: Iterable[np.float32]) -> Iterator[Breach]:
    name = "tensor_balance_factor"
    for index, factor in enumerate(factors):
        if not _EPSILON <= factor <= 1 / _EPSILON:
            expected = f"a number from {_EPSILON:g} to {1 / _EPSILON:g} is expected"
            yield Breach(name, index, f"{name} is {factor:g}; {expected}")


def _offsets(entry: "RecordEntry") -> Iterator[Breach]:
    low, high = (-32768, 32767) if entry.act_type == "INT16" else (-128, 127)
    for name, offset in (("offset_d", entry.offset_d), ("offset_h", entry.offset_h)):
        if offset is not None and not low <= offset <= high:
            yield Breach(name, -1, f"{name} is {offset}; a number from {low} to {high} is expected")
    pairs = (
        ("offset_w", entry.offset_w, "scale_w", entry.scale_w),
        ("offset_r", entry.offset_r, "scale_r", entry.scale_r),
    )
    for name, offsets, scale, scales in pairs:
        if name == "offset_r" or entry.scale_d is not None:
            yield from _zeros(name, offsets)
        else:
            yield from _code_offsets(offsets)
        if len(offsets) not in (0, len(scales)):
            yield Breach(name, -1, f"{len(offsets)} {name} for {len(scales)} {scale}; as many are expected")
    if len(entry.kv_offset) not in (0, len(entry.kv_scale)):
        text = f"{len(entry.kv_offset)} offsets for {len(entry.kv_scale)} scales; as many are expected"
        yield Breach("kv_cache_value.offset", -1, text)


def _zeros(name: str, offsets: Iterable[int]) -> Iterator[Breach]:
    for index, offset in enumerate(offsets):
        if offset:
            yield Breach(name, index, f"{name} is {offset}; 0 is expected, weights are symmetric")


def _code_offsets(offsets: Iterable[int]) -> Iterator[Breach]:
    """Yield what is wrong with the offsets of a weight that is quantized alone, without its data."""
    for index, offset in enumerate(offsets):
        if not -128 <= offset <= 127:
            yield Breach("offset_w", index, f"offset_w is {offset}; a number from -128 to 127 is expected")


def _shifts(shifts: Sequence[int]) -> Iterator[Breach]:
    if any(shifts):
        for index, shift in enumerate(shifts):
            if not 1 <= shift <= 16:
                yield Breach("shift_bit", index, f"shift_bit is {shift}; all 0, or all from 1 to 16, are expected")


def _centres(centres: Sequence[int]) -> Iterator[Breach]:
    for index, centre in enumerate(centres):
        if not -128 <= centre <= 127:
            yield Breach("cluster", index, f"cluster is {centre}; a centre from -128 to 127 is expected")
    if centres and len(centres) not in _CLUSTERS:
        yield Breach("cluster", -1, f"{len(centres)} centres in cluster; 16 or 32 are expected")


def _names(entry: "RecordEntry") -> Iterator[Breach]:
    for name, allowed in _TYPES.items():
        given = getattr(entry, name)
        if given is not None and given not in allowed:
            expected = f"{', '.join(allowed[:-1])} or {allowed[-1]} is expected{nearest(given.upper(), allowed)}"
            yield Breach(name, -1, f"{name} is '{given[:60]}'; {expected}")
