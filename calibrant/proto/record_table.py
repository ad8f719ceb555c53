"""Records as a table, one row a value, and back without a loss.

A table is where scales are compared, tuned and joined; the record is what AMCT's tools read.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from calibrant.errors import SchemaError, nearest
from calibrant.proto.record import RecordEntry
from calibrant.proto.record_rules import check_entries


class _Part(NamedTuple):
    """The fields of an entry that a role stands for; a list has one row an element."""

    scale: str | None
    offset: str | None
    is_list: bool = True


_PARTS: Final[dict[str, _Part]] = {
    "data": _Part("scale_d", "offset_d", is_list=False),
    "weight": _Part("scale_w", "offset_w"),
    "balance": _Part("tensor_balance_factor", None),
    "shift": _Part(None, "shift_bit"),
    "cluster": _Part(None, "cluster"),
    "hidden": _Part("scale_h", "offset_h", is_list=False),
    "recurrent": _Part("scale_r", "offset_r"),
    "kv_cache": _Part("kv_scale", "kv_offset"),
}
_OF_ENTRY: Final[dict[str, Any]] = {
    "act_type": pl.String, "wts_type": pl.String, "op_data_type": pl.String, "is_tensor_quantize": pl.Boolean,
    "skip_fusion": pl.Boolean, "fakequant_precision_mode": pl.String, "dst_type": pl.String,
    "channels": pl.UInt32, "height": pl.UInt32, "width": pl.UInt32,
}  # fmt: skip
RECORD_SCHEMA: Final[dict[str, Any]] = {
    "key": pl.String, "role": pl.String, "channel": pl.Int32, "scale": pl.Float32, "offset": pl.Int32, **_OF_ENTRY,
}  # fmt: skip


def record_frame(entries: Iterable[RecordEntry]) -> pl.DataFrame:
    """Return a record as a table, in the order of the entries.

    Columns: `key`; `role` (``data``, ``weight``; ``balance``: DMQ's factors in `scale`; ``shift`` and ``cluster``: whole numbers
    in `offset`; ``hidden``, ``recurrent``, ``kv_cache``); `channel` (position in a list, null for a single value); `scale`
    (float32); `offset`; then the fields of the whole entry, the same in all its rows. Every entry has its ``data`` row.

    Args:
        entries: a record, e.g. of `calibrant.proto.read_record`.

    Raises:
        ConfigError: an entry breaks a rule of records.

    Example:
        >>> entry = RecordEntry("Conv_0", np.float32(0.5), -128, (np.float32(0.25),) * 2, (0, 0))
        >>> record_frame([entry]).select("role", "channel", "scale", "offset").rows()
        [('data', None, 0.5, -128), ('weight', 0, 0.25, 0), ('weight', 1, 0.25, 0)]
    """
    listed = list(entries)
    check_entries(listed)
    rows = [(entry.key, *row, *_entry_values(entry)) for entry in listed for row in _rows(entry)]
    return pl.DataFrame(rows, schema=RECORD_SCHEMA, orient="row")


def record_entries_of(frame: pl.DataFrame) -> tuple[RecordEntry, ...]:
    """Return the record of a table: the inverse of `record_frame`.

    Rows may stand in any order; keys keep the order of their first rows.

    Args:
        frame: the columns of `record_frame`; further columns are not looked at.

    Raises:
        SchemaError: a column is missing or of the wrong type, a role is unknown, channels have gaps, or the rows of one key differ
            in a field of the entry.
        ConfigError: an entry breaks a rule of records.
    """
    table = _conforming(frame)
    parts = table.partition_by("key", maintain_order=True)
    entries = tuple(_entry(part) for part in parts)
    check_entries(entries)
    return entries


def _entry_values(entry: RecordEntry) -> list[Any]:
    return [getattr(entry, name) for name in _OF_ENTRY]


def _rows(entry: RecordEntry) -> Iterator[tuple[str, int | None, float | None, int | None]]:
    for role, part in _PARTS.items():
        scale, offset = _value(entry, part.scale), _value(entry, part.offset)
        if part.is_list:
            for channel in range(max(len(scale or ()), len(offset or ()))):
                yield role, channel, _at(scale, channel), _at(offset, channel)
        elif role == "data" or scale is not None or offset is not None:
            yield role, None, None if scale is None else float(scale), offset


def _value(entry: RecordEntry, name: str | None) -> Any:
    return None if name is None else getattr(entry, name)


def _at(values: Sequence[Any] | None, channel: int) -> Any:
    """Return an element as a Python number; None where there is none."""
    if not values:
        return None
    value = values[channel]
    return float(value) if isinstance(value, np.floating) else value


def _conforming(frame: pl.DataFrame) -> pl.DataFrame:
    for name in RECORD_SCHEMA:
        if name not in frame.columns:
            message = (
                f"record table: column '{name}' is missing{nearest(name, frame.columns)}; record_frame has them all"
            )
            raise SchemaError(message)
    try:
        table = frame.select(pl.col(name).cast(dtype) for name, dtype in RECORD_SCHEMA.items())
    except pl.exceptions.PolarsError as error:
        message = f"record table: a column is of the wrong type: {str(error).splitlines()[0]}"
        raise SchemaError(message) from None
    if table["key"].null_count() or table["role"].null_count():
        message = "record table: a row has no key or no role; give both"
        raise SchemaError(message)
    for role in table["role"].unique(maintain_order=True):
        if role not in _PARTS:
            message = f"record table: unknown role '{role}'{nearest(role, _PARTS)}; known: {', '.join(_PARTS)}"
            raise SchemaError(message)
    return table


def _entry(part: pl.DataFrame) -> RecordEntry:
    key = part["key"][0]
    values = {name: _single(part, name) for name in _OF_ENTRY}
    values["is_tensor_quantize"] = bool(values["is_tensor_quantize"])
    for name, rows in part.partition_by("role", as_dict=True).items():
        values |= _fields(str(key), str(name[0]), rows)
    return RecordEntry(key, **values)


def _single(part: pl.DataFrame, name: str) -> Any:
    values = part[name].unique()
    if len(values) > 1:
        message = f"record table: '{part['key'][0]}' has several values of {name}; give all its rows the same"
        raise SchemaError(message)
    return values[0]


def _fields(key: str, role: str, rows: pl.DataFrame) -> dict[str, Any]:
    part, rows = _PARTS[role], rows.sort("channel")
    expected = list(range(rows.height)) if part.is_list else [None]
    if rows["channel"].to_list() != expected:
        wanted = f"channels 0 to {rows.height - 1}" if part.is_list else "one row without a channel"
        message = f"record table: '{key}', role {role}: channels {_shown(rows)}; {wanted}, are expected"
        raise SchemaError(message)
    found = {name: rows[column] for name, column in ((part.scale, "scale"), (part.offset, "offset")) if name}
    return {name: _plain(key, name, series, is_list=part.is_list) for name, series in found.items()}


def _shown(rows: pl.DataFrame) -> str:
    listed = rows["channel"].to_list()
    return f"{listed[:8]}{' …' if len(listed) > 8 else ''}"


def _plain(key: str, name: str, series: pl.Series, *, is_list: bool) -> Any:
    if is_list and 0 < series.null_count() < len(series):
        message = f"record table: '{key}': some channels have no {name}; give all of them one, or none"
        raise SchemaError(message)
    values = series.drop_nulls().to_list()
    typed = tuple(np.float32(value) if series.dtype == pl.Float32 else value for value in values)
    if is_list:
        return typed
    return typed[0] if typed else None
