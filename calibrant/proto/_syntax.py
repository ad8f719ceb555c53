"""Where every field of a protobuf text file stands: a token walk beside protobuf's own reader.

`text_format.Merge` decides what a file means but forgets where a value was written and what it overwrote. This walk keeps every
occurrence with its line and column. It knows no schema and reads the same tokens.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_DEPTH: Final = 32  # AMCT's deepest message is four levels down; deeper text is no configuration

_TOKEN: Final = re.compile(
    r"(?P<blank>(?:\s|#.*$)+)"  # as wide as protobuf's own: any Unicode space
    r"|[a-zA-Z_][0-9a-zA-Z_+-]*"  # a name
    r"|(?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*"  # a number
    r"|\"[^\"\\]*(?:\\.[^\"\\]*)*(?:\"|\\?$)"  # a quoted text, closed or not
    r"|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?$)"
    r"|."
)
_CLOSING: Final = {"{": "}", "<": ">"}


class Place(NamedTuple):
    """A position in a text; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Field:
    """One occurrence of a field; each element of a list is an occurrence of its own.

    Attributes:
        name: the field's name.
        place: where the name stands; for an element of a list, where the element stands.
        value_place: where the value begins.
        path: names of the enclosing messages and of the field itself.
        children: the fields of a message in file order; empty for a scalar.
    """

    name: str
    place: Place
    value_place: Place
    path: tuple[str, ...]
    children: list["Field"] = field(default_factory=list)


class SyntaxProblem(Exception):  # noqa: N818 (a signal inside this room, not an error that callers see)
    """The text is not protobuf text; protobuf's reader says so in better words."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


def _tokens(text: str) -> Iterator[tuple[str, Place]]:
    for number, line in enumerate(text.split("\n"), start=1):
        for found in _TOKEN.finditer(line):
            if found.lastgroup != "blank":
                yield found.group(), Place(number, found.start() + 1)


class Walk:
    """Read a text once; `fields` holds the tree and `every` all occurrences seen so far, also where the walk breaks off."""

    def __init__(self, text: str) -> None:
        self.fields: list[Field] = []
        self.every: list[Field] = []
        self.problem: SyntaxProblem | None = None
        self.unclosed: Field | None = None  # the innermost block that the end of the text leaves open
        self._stream = _tokens(text)
        self._token, self._place = "", Place(1, 1)
        try:
            self._advance()
            while self._token:
                self._field(self.fields, ())
        except SyntaxProblem as problem:
            self.problem = problem

    def _advance(self) -> None:
        self._token, self._place = next(self._stream, ("", self._place))

    def _take(self, token: str) -> bool:
        if self._token != token:
            return False
        self._advance()
        return True

    def _block(self, block: Field, end: str) -> None:
        self._advance()
        while self._token != end:
            if not self._token:
                self.unclosed = block
                raise SyntaxProblem(self._place, f"{end} is missing")
            self._field(block.children, block.path)
        self._advance()

    def _field(self, into: list[Field], path: tuple[str, ...]) -> None:
        name, place = self._token, self._place
        if not (name[0].isalnum() or name[0] == "_"):
            raise SyntaxProblem(place, f"a field name is expected, not {name}")
        self._advance()
        self._take(":")
        inner = (*path, name)
        if self._take("["):
            self._list(into, name, inner)
        else:
            self._value(into, name, place, inner)
        if not self._take(","):
            self._take(";")

    def _list(self, into: list[Field], name: str, path: tuple[str, ...]) -> None:
        while not self._take("]"):
            self._value(into, name, self._place, path)
            if not self._take(",") and self._token != "]":
                raise SyntaxProblem(self._place, "] is missing")

    def _value(self, into: list[Field], name: str, place: Place, path: tuple[str, ...]) -> None:
        found = Field(name, place, self._place, path)
        into.append(found)
        self.every.append(found)
        end = _CLOSING.get(self._token)
        if end is None:
            self._scalar()
            return
        if len(path) > MAX_DEPTH:
            raise SyntaxProblem(self._place, f"messages nest deeper than {MAX_DEPTH}")
        self._block(found, end)

    def _scalar(self) -> None:
        if not self._token or self._token in "{}<>[]:,;":
            raise SyntaxProblem(self._place, "a value is expected")
        is_text = self._token[0] in "\"'"
        self._advance()
        while is_text and self._token[:1] in ("'", '"'):  # adjacent texts are one value
            self._advance()
