"""JSON text to values that know where they stand: every error of a JSON file gets its line and column.

Python's own reader forgets positions, accepts a key twice, and reads NaN; this one keeps the first, and refuses the others.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Final, NamedTuple, NoReturn

from calibrant.errors import ConfigError
from calibrant.proto._syntax import Place

MAX_DEPTH: Final = 32  # AMCT's files are four levels deep

_BLANK: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(r"[-+]?[\w.+-]+")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_FOREIGN_QUOTES: Final = ("'", "\u201c", "\u201d", "\u2018", "\u2019")
_STRINGS: Final = JSONDecoder()
_LONGEST: Final = 40  # of what is echoed
_MOST_DIGITS: Final = 400  # no number of a configuration has more, and Python converts very long ones slowly


class Member(NamedTuple):
    """One ``"key": value`` of an object, with the place of the key."""

    key: str
    place: Place
    value: "Value"


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value and the place where it begins.

    Attributes:
        content: a scalar, a tuple of values for an array, or a tuple of members for an object.
        place: line and column.
        is_object: whether `content` holds members.
    """

    content: "bool | int | float | str | tuple[Value, ...] | tuple[Member, ...] | None"
    place: Place
    is_object: bool = False

    @property
    def kind(self) -> str:
        """What the value is, in words of JSON."""
        if self.is_object:
            return "an object"
        if isinstance(self.content, tuple):
            return "a list"
        return _shown(self.content)

    def members(self) -> tuple[Member, ...]:
        """Return the members of an object, nothing for any other value."""
        content = self.content if isinstance(self.content, tuple) else ()
        return tuple(one for one in content if isinstance(one, Member))

    def elements(self) -> tuple["Value", ...]:
        """Return the elements of an array, nothing for any other value."""
        content = self.content if isinstance(self.content, tuple) else ()
        return tuple(one for one in content if isinstance(one, Value))


def _shown(scalar: object) -> str:
    if scalar is None or isinstance(scalar, bool):
        return {None: "null", True: "true", False: "false"}[scalar]
    text = f'"{scalar}"' if isinstance(scalar, str) else str(scalar)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def printable(text: str) -> str:
    r"""Write a text on one line: what does not print becomes an escape.

    Example:
        >>> print(printable("a\nb"))
        a\nb
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def parse_json(text: str, source: str) -> Value:
    r"""Read a JSON text.

    Args:
        text: the whole text, without a byte-order mark.
        source: name for messages.

    Raises:
        ConfigError: no JSON, a key twice in one object, or a number that is not finite; says ``source:line:column``.

    Example:
        >>> [(one.key, one.place, one.value.content) for one in parse_json('{"version":1,\n "fc":true}', "c.json").members()]
        [('version', Place(line=1, column=2), 1), ('fc', Place(line=2, column=2), True)]
    """
    return _Reader(text, source).document()


def json_values(value: Value) -> Iterator[Value]:
    """Yield a value and everything in it, top down."""
    yield value
    for inner in (*value.elements(), *(member.value for member in value.members())):
        yield from json_values(inner)


class _Reader:
    """One pass over a text; `index` is the next character to read."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.index = 0
        self.line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def document(self) -> Value:
        value = self._value(0)
        self._skip_blank()
        if self.index < len(self.text):
            self._fail(self.index, f"the JSON text ends here, but {self._found()} follows")
        return value

    # Where things stand.

    def _place(self, index: int) -> Place:
        line = bisect_right(self.line_starts, index)
        return Place(line, index - self.line_starts[line - 1] + 1)

    def _fail(self, index: int, text: str) -> NoReturn:
        place = self._place(index)
        message = f"{self.source}:{place.line}:{place.column}: {printable(text)}"
        raise ConfigError(message)

    def _skip_blank(self) -> None:
        found = _BLANK.match(self.text, self.index)
        self.index = found.end() if found else self.index

    def _peek(self) -> str:
        self._skip_blank()
        return self.text[self.index : self.index + 1]

    def _found(self) -> str:
        character = self.text[self.index : self.index + 1]
        if not character:
            return "the end of the file"
        word = _WORD.match(self.text, self.index)
        shown = word[0][:_LONGEST] if word else character
        return f"'{shown}'" if shown.isprintable() else f"the character U+{ord(character):04X}"

    # What stands there.

    def _value(self, depth: int) -> Value:
        character = self._peek()
        place = self._place(self.index)
        if character == "{":
            return Value(tuple(self._members(depth)), place, is_object=True)
        if character == "[":
            return Value(tuple(self._elements(depth)), place)
        if character == '"':
            return Value(self._string(), place)
        return Value(self._scalar(), place)

    def _members(self, depth: int) -> Iterator[Member]:
        seen: dict[str, Place] = {}
        for _ in self._items("}", depth):
            if self._peek() != '"':
                self._fail(
                    self.index, f"a key in double quotes is expected, but {self._found()} stands there{self._hint()}"
                )
            start = self.index
            key, place = self._string(), self._place(start)
            if key in seen:
                first = seen[key]
                self._fail(start, f"the key '{key}' is given a second time (first in line {first.line}); delete one")
            seen[key] = place
            if self._peek() != ":":
                self._fail(self.index, f"':' is expected after the key '{key}', but {self._found()} stands there")
            self.index += 1
            yield Member(key, place, self._value(depth + 1))

    def _elements(self, depth: int) -> Iterator[Value]:
        for _ in self._items("]", depth):
            yield self._value(depth + 1)

    def _items(self, closing: str, depth: int) -> Iterator[None]:
        """Step over the brackets and commas of an object or array; the caller reads the items."""
        start = self.index
        if depth >= MAX_DEPTH:
            self._fail(start, f"more than {MAX_DEPTH} levels of brackets; no configuration is that deep")
        self.index += 1
        if self._peek() == closing:
            self.index += 1
            return
        while True:
            yield
            character = self._peek()
            if character not in {",", closing} or not character:
                self._fail(
                    self.index, f"',' or '{closing}' is expected, but {self._found()} stands there{self._opened(start)}"
                )
            comma = self.index
            self.index += 1
            if character == closing:
                return
            if self._peek() == closing:
                self._fail(comma, f"a comma before '{closing}'; JSON allows none there, delete it")

    def _opened(self, start: int) -> str:
        if self.index < len(self.text):
            return self._hint()
        return f"; the bracket of line {self._place(start).line} is not closed"

    def _hint(self) -> str:
        if self.text.startswith(("//", "/*", "#"), self.index):
            return "; JSON has no comments"
        if self.text[self.index : self.index + 1] in _FOREIGN_QUOTES:
            return "; JSON wants plain double quotes"
        return ""

    def _string(self) -> str:
        start = self.index
        try:
            decoded, self.index = _STRINGS.raw_decode(self.text, start)
        except JSONDecodeError as error:
            reason = "the text in quotes is not closed" if error.msg.startswith("Unterm") else error.msg.rstrip(":")
            self._fail(min(error.pos, len(self.text)), reason[0].lower() + reason[1:])
        text = str(decoded)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._fail(start, "half of a surrogate pair (\\ud800 to \\udfff) in a text; no name has one")
        return text

    def _scalar(self) -> bool | int | float | None:
        start = self.index
        word = _WORD.match(self.text, start)
        if word is not None and word[0] in _CONSTANTS:
            self.index = word.end()
            return _CONSTANTS[word[0]]
        number = _NUMBER.match(self.text, start)
        if number is None or word is None or number.end() != word.end():
            self._fail(start, f"a value is expected, but {self._found()} stands there{self._advice()}")
        self.index = number.end()
        return self._number(start, number)

    def _number(self, start: int, number: re.Match[str]) -> int | float:
        if len(number[0]) > _MOST_DIGITS:
            self._fail(start, f"a number of {len(number[0])} characters; none of a configuration is that long")
        value = int(number[1]) if number[2] is None and number[3] is None else float(number[0])
        if isinstance(value, float) and not isfinite(value):
            self._fail(start, f"{number[0]} is not a finite number")
        return value

    def _advice(self) -> str:
        word = _WORD.match(self.text, self.index)
        bare = word[0].lstrip("+-").lower() if word else ""
        if bare in ("nan", "infinity", "inf"):
            return "; a finite number is expected"
        if bare in ("true", "false", "none", "null"):
            return f"; JSON writes {bare.replace('none', 'null')}"
        return self._hint()
