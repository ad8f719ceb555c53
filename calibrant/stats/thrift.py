"""The compact protocol of Thrift, as far as the footers of Parquet need it. Source: thrift-compact-protocol.md of Apache Thrift."""

from collections.abc import Iterable, Sequence

BYTES, I32, I64, LIST, STRUCT = 8, 5, 6, 9, 12  # types of fields

Field = tuple[int, int, bytes]  # number, type, encoded value


def varint(value: int) -> bytes:
    """Return an unsigned number, seven bits a byte, the lowest first.

    Example:
        >>> varint(300).hex(" ")
        'ac 02'
    """
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def i32(number: int, value: int) -> Field:
    """Return a field of 32 bits; not negative, so that zigzag only doubles it."""
    return number, I32, varint(value << 1)


def i64(number: int, value: int) -> Field:
    """Return a field of 64 bits; not negative."""
    return number, I64, varint(value << 1)


def text(number: int, value: bytes) -> Field:
    """Return a field of bytes."""
    return number, BYTES, varint(len(value)) + value


def structure(number: int, members: Iterable[Field]) -> Field:
    """Return a field that is a struct."""
    return number, STRUCT, fields(members)


def sequence(number: int, kind: int, items: Sequence[bytes]) -> Field:
    """Return a field that is a list of encoded items of a kind."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return number, LIST, head + b"".join(items)


def fields(members: Iterable[Field]) -> bytes:
    """Encode a struct; the numbers of its fields ascend by less than 16."""
    parts, last = [], 0
    for number, kind, value in members:
        parts.append(bytes([(number - last) << 4 | kind]) + value)
        last = number
    return b"".join(parts) + b"\0"
