"""Oddities of published and copied configurations, mended before protobuf reads the text; every line and column stays.

Strings broken over lines, typographic quotes, full-width punctuation and invisible characters: protobuf, and AMCT with it, refuses
them all, and each has one plain meaning. A mended text has the same lines, and what follows an oddity keeps its column.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from calibrant.errors import ConfigError
from calibrant.proto._syntax import Place

MAX_BROKEN_LINES: Final = 8  # of one string; beyond it a quotation mark was forgotten

_ODD: Final = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<wide_comment>\uff03[^\n]*)"
    r"|(?P<closed>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<quote>[\"'\u201c\u201d\u2018\u2019\uff02\uff07])"
    r"|(?P<dots>\.{3,}|\u2026+)"
    r"|(?P<wide>[\uff01-\uff5e])"
    r"|(?P<unseen>[\ufeff\u200b\u200c\u200d\u2060])"
)
_MARKS: Final = {'"': '"\u201c\u201d\uff02', "'": "'\u2018\u2019\uff07"}  # plain, typographic and full-width
_WIDE_DISTANCE: Final = 0xFEE0  # from a full-width character to the plain one
_AFTER: Final = re.compile(r"[ \t\r]*(?:[,;\]}>#]|$)", re.MULTILINE)
_NEW_FIELD: Final = re.compile(r"^[ \t]*\w+[ \t]*(?:[{<]|:\s|:$)|[{}]", re.MULTILINE)


class Tidied(NamedTuple):
    """A text that protobuf can read, and what was mended.

    Attributes:
        text: the text.
        warnings: where and what, in file order.
    """

    text: str
    warnings: list[tuple[Place, str]]


class _Mend(NamedTuple):
    """What stands for the text from an oddity to `end`."""

    text: str
    end: int
    warning: str


def tidy(text: str, source: str) -> Tidied:
    """Mend the oddities of a text.

    Args:
        text: protobuf text, without a byte-order mark at its beginning.
        source: name for messages.

    Raises:
        ConfigError: ``...`` that stands for omitted lines.

    Example:
        >>> tidied = tidy("skip_layers: “conv1”", "quant.cfg")
        >>> tidied.text
        'skip_layers: "conv1"'
    """
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    parts, warnings, done = [], [], 0
    for at, mend in _mends(text, starts, source):
        parts += [text[done:at], mend.text]
        warnings.append((_place(starts, at), mend.warning))
        done = mend.end
    return Tidied("".join([*parts, text[done:]]), warnings)


def _place(starts: list[int], at: int) -> Place:
    line = bisect_right(starts, at)
    return Place(line, at - starts[line - 1] + 1)


def _mends(text: str, starts: list[int], source: str) -> Iterator[tuple[int, _Mend]]:
    at = 0
    while (found := _ODD.search(text, at)) is not None:
        at = found.end()
        if found.lastgroup == "dots":
            _refuse_dots(_place(starts, found.start()), source)
        mend = _mend(text, found, starts)
        if mend is not None:
            yield found.start(), mend
            at = mend.end
        elif found.lastgroup == "quote":
            return  # a quotation mark without its partner: protobuf refuses the text there


def _refuse_dots(place: Place, source: str) -> None:
    message = (
        f"{source}:{place.line}:{place.column}: '...' stands for lines that were left out; write them or delete it"
    )
    raise ConfigError(message)


def _mend(text: str, found: re.Match[str], starts: list[int]) -> _Mend | None:
    odd = found.group()
    match found.lastgroup:
        case "wide":
            plain = chr(ord(odd) - _WIDE_DISTANCE)
            return _Mend(plain, found.end(), f"the full-width '{odd}' was read as '{plain}'; AMCT refuses it")
        case "wide_comment":
            return _Mend(f"#{odd[1:]}", found.end(), f"the full-width '{odd[0]}' was read as '#'; AMCT refuses it")
        case "unseen":
            name = f"U+{ord(odd):04X}"
            return _Mend(" ", found.end(), f"an invisible character ({name}) was left out; AMCT refuses it")
        case "quote":
            return _quoted(text, found.start(), starts)
    return None


def _closing(text: str, start: int, mark: str, starts: list[int]) -> int:
    """Return where the first quotation mark of a kind, plain or not, stands behind an opening one; -1 if not near."""
    line = bisect_right(starts, start) + MAX_BROKEN_LINES
    limit = starts[line] if line < len(starts) else len(text)
    found = re.compile(f"[{_MARKS[mark]}]").search(text, start + 1, limit)
    return -1 if found is None else found.start()


def _quoted(text: str, start: int, starts: list[int]) -> _Mend | None:
    mark = '"' if text[start] in _MARKS['"'] else "'"
    end = _closing(text, start, mark, starts)
    inside = text[start + 1 : end]
    if end < 0 or "\\" in inside:  # an escaped quotation mark would not be the end
        return None
    if "\n" in inside:
        return _broken(text, inside, end, mark, starts)
    odd = text[start] if text[start] != mark else text[end]
    warning = f"the quotation mark {odd} was read as {mark}; AMCT refuses it"
    return _Mend(f"{mark}{inside}{mark}", end + 1, warning)


def _broken(text: str, inside: str, end: int, mark: str, starts: list[int]) -> _Mend | None:
    if _NEW_FIELD.search(inside) or not _AFTER.match(text, end + 1):
        return None  # the quotation mark was forgotten rather than put on a later line
    value = "".join(line.strip() for line in inside.split("\n"))
    warning = f"a text broken over lines was read as {mark}{value}{mark}; AMCT refuses it: write it on one line"
    rest = "\n" * inside.count("\n") + " " * _place(starts, end).column  # what follows stays where it is
    return _Mend(f"{mark}{value}{mark}{rest}", end + 1, warning)
