"""The protobuf edge: text to message, with every error at its line and column.

The only module that imports `google.protobuf` and the generated schemas.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from google.protobuf import text_format

from calibrant.errors import ConfigError, nearest
from calibrant.proto import calibration_config_pb2, optimize_conf_pb2, record_pb2, retrain_config_pb2
from calibrant.proto._syntax import Field, Place, Walk
from calibrant.proto._tidy import tidy


class Kind(NamedTuple):
    """What a text file may be: its message, its name in errors, and the size beyond which it is surely something else."""

    message: Any
    name: str
    max_bytes: int


CONFIGURATION: Final = Kind(calibration_config_pb2.AMCTConfig, "a simple configuration", 4 << 20)
RETRAIN: Final = Kind(retrain_config_pb2.AMCTRetrainConfig, "a retrain (QAT) or pruning configuration", 4 << 20)
OPTIMIZE: Final = Kind(optimize_conf_pb2.CompressionOptimizeConf, "a compression_optimize_conf", 1 << 20)
ANY: Final = Kind(None, "a configuration", 64 << 20)  # to look at before its kind is known
RECORD: Final = Kind(record_pb2.ScaleOffsetRecord, "a record file", 64 << 20)  # ResNet-101's has 1 MB
JSON_CONFIGURATION: Final = Kind(None, "a JSON configuration", 16 << 20)

START: Final = Place(1, 1)
_UNKNOWN: Final = re.compile(r'Message type "[\w.]+" has no field named "(\w+)"')
_EXPECTED: Final = {
    "bool": "true or false",
    "int32": "a whole number between -2147483648 and 2147483647",
    "uint32": "a whole number between 0 and 4294967295",
    "float": "a number",
    "string": 'a text in quotes such as "conv1"',
    "message": "a block in braces { … }",
}
_TYPE_NAMES: Final = {5: "int32", 13: "uint32", 8: "bool", 2: "float", 9: "string", 11: "message", 14: "enum"}


@dataclass(frozen=True)
class Section:
    """A message together with the occurrences of its fields in the file.

    Attributes:
        message: the protobuf message after merging.
        fields: every occurrence of its fields, in file order; those of repeated blocks one after the other.
        source: name of the file, for messages.
        place: where the section begins.
    """

    message: Any
    fields: tuple[Field, ...]
    source: str
    place: Place = START

    def has(self, name: str) -> bool:
        """Whether a singular field was written and still holds (an overwritten member of a oneof does not)."""
        return bool(self.message.HasField(name))

    def value(self, name: str) -> Any:
        """Return the value of a field, its default where it was not written."""
        return getattr(self.message, name)

    def optional(self, name: str) -> Any:
        """Return the value of a field, None where it was not written."""
        return self.value(name) if self.has(name) else None

    def enum_name(self, name: str) -> str:
        """Return the name of an enum field's value, of its default where it was not written."""
        values = self.message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number
        return str(values[self.value(name)].name)

    def written(self, name: str) -> bool:
        """Whether a field of any kind holds something that was written."""
        is_repeated = self.message.DESCRIPTOR.fields_by_name[name].is_repeated
        return bool(self.value(name)) if is_repeated else self.has(name)

    def occurrences(self, name: str) -> list[Field]:
        """Return the occurrences of a field in file order."""
        return self._by_name.get(name, [])

    @cached_property
    def _by_name(self) -> dict[str, list[Field]]:
        """The occurrences by name, so that a list of thousands of names is read in one pass."""
        found: dict[str, list[Field]] = {}
        for field in self.fields:
            found.setdefault(field.name, []).append(field)
        return found

    def place_of(self, name: str, index: int = -1) -> Place:
        """Return where a field was written (the last occurrence rules), the section's own place where it was not."""
        found = self.occurrences(name)
        return found[index].place if found else self.place

    def child(self, name: str) -> "Section":
        """Return a singular message field; several blocks of one name are read as one, as Merge does."""
        found = self.occurrences(name)
        inner = tuple(field for block in found for field in block.children)
        return Section(self.value(name), inner, self.source, self.place_of(name))

    def children(self, name: str) -> list["Section"]:
        """Return the elements of a repeated message field."""
        pairs = zip(self.value(name), self.occurrences(name), strict=True)
        return [Section(message, tuple(field.children), self.source, field.place) for message, field in pairs]

    def parts(self, name: str) -> list["Section"]:
        """Return the message field of a name as sections: its elements, or the one that several blocks make."""
        is_repeated = self.message.DESCRIPTOR.fields_by_name[name].is_repeated
        return self.children(name) if is_repeated else [self.child(name)]

    def spot(self, name: str, index: int = -1) -> str:
        """Return ``file:line:column`` of a field."""
        place = self.place_of(name, index)
        return f"{self.source}:{place.line}:{place.column}"

    def at(self, name: str, text: str, index: int = -1) -> str:
        """Prefix a text with file, line and column of a field."""
        return located(self.source, self.place_of(name, index), text)

    def reject(self, name: str, text: str, index: int = -1) -> NoReturn:
        """Raise the `ConfigError` that belongs to a field."""
        raise ConfigError(self.at(name, text, index))


def located(source: str, place: Place, text: str) -> str:
    """Prefix a text with ``file:line:column: ``."""
    return f"{source}:{place.line}:{place.column}: {text}"


def shortened(text: str, length: int = 160) -> str:
    """Cut a text that is echoed in a message and may be a whole file."""
    return text if len(text) <= length else f"{text[:length]}…"


def read_text(path: Path, kind: Kind) -> tuple[str, bool]:
    """Read a UTF-8 text file and tell whether it began with a byte-order mark.

    Raises:
        ConfigError: the file is missing, unreadable, huge, binary or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(kind.max_bytes + 1)
    except FileNotFoundError:
        message = f"{path}: no such file; give the path of {kind.name}"
        raise ConfigError(message) from None
    except OSError as error:
        message = f"{path}: cannot read {kind.name}: {error.strerror or error}"
        raise ConfigError(message) from error
    return _decode(raw, path, kind)


def _decode(raw: bytes, path: Path, kind: Kind) -> tuple[str, bool]:
    if len(raw) > kind.max_bytes:
        message = f"{path}: larger than {kind.max_bytes >> 20} MiB, which cannot be {kind.name}"
        raise ConfigError(message)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:65536]:
        message = f"{path}: a binary or UTF-16 file, not {kind.name}; a UTF-8 text is expected"
        raise ConfigError(message)
    marked = raw.startswith(b"\xef\xbb\xbf")
    try:
        return raw[3 * marked :].decode("utf-8"), marked
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: not UTF-8 text; save the file as UTF-8 (Chinese editors may write GBK)"
        raise ConfigError(message) from None


def merge_text(text: str, kind: Kind, source: str) -> Section:
    """Read a text into the message of its kind with the rules of `text_format.Merge`.

    A field given twice: the last wins; a block given twice: the two are merged; two members of a oneof: the last wins.

    Args:
        text: protobuf text.
        kind: what the text should be.
        source: name for messages.

    Raises:
        ConfigError: unknown field, wrong type or syntax, with ``source:line:column``.
    """
    message = kind.message()
    walk = Walk(text)
    try:
        with (
            warnings.catch_warnings()
        ):  # Python deprecates unknown escapes such as \p, which protobuf takes as they stand
            warnings.simplefilter("ignore", DeprecationWarning)
            text_format.Merge(text, message)
    except text_format.ParseError as error:
        raise ConfigError(_explain(error, walk, text, source, kind)) from None
    if walk.problem is not None:
        raise ConfigError(located(source, walk.problem.place, str(walk.problem)))
    return Section(message, tuple(walk.fields), source)


def read_section(
    text: str, kind: Kind, source: str, *, byte_order_mark: bool
) -> tuple[Section, list[tuple[Place, str]]]:
    """Mend the oddities of a text that people write, merge it, and return it with a warning for each oddity.

    Args:
        text: protobuf text without a byte-order mark at its beginning.
        kind: what the text should be.
        source: name for messages.
        byte_order_mark: whether there was one.

    Raises:
        ConfigError: as `merge_text`.
    """
    tidied = tidy(text, source)
    mark = [(START, "the file begins with a byte-order mark, which AMCT refuses; it was left out")]
    return merge_text(tidied.text, kind, source), [*(mark if byte_order_mark else []), *tidied.warnings]


def _explain(error: text_format.ParseError, walk: Walk, text: str, source: str, kind: Kind) -> str:
    descriptor = kind.message.DESCRIPTOR
    place = Place(error.GetLine() or 1, error.GetColumn() or 1)
    if unknown := _UNKNOWN.search(str(error)):
        return located(source, place, _unknown_field(unknown[1], _enclosing(walk, place, descriptor), kind))
    is_open = walk.unclosed is not None and 'Expected "}"' in str(error)
    culprit = next((field for field in walk.every if not is_open and place in (field.value_place, field.place)), None)
    field = _resolve(descriptor, culprit.path) if culprit else None
    if culprit is None or field is None:
        return located(source, place, f"not {kind.name}: {_reason(error)}{_hint(text, walk)}")
    expected = _expectation(field)
    return located(source, place, f"{culprit.name}: {expected} is expected ({_reason(error)})")


def _hint(text: str, walk: Walk) -> str:
    if text.lstrip().startswith("{"):
        return "; this looks like JSON: a config.json has a reader of its own"
    if walk.unclosed is not None:
        return f"; the block {walk.unclosed.name} of line {walk.unclosed.place.line} is not closed"
    return ""


def _reason(error: text_format.ParseError) -> str:
    """Return protobuf's words without the position, which stands in front already, and without echoed text."""
    words = re.sub(r"^\d+:\d+ : ", "", str(error))
    return shortened(re.sub(r"^'.*?': (?=[A-Z])", "", words).rstrip("."))


def _unknown_field(name: str, descriptor: Any, kind: Kind) -> str:
    own = kind.message.DESCRIPTOR.fields_by_name
    for other in (CONFIGURATION, RETRAIN, OPTIMIZE, RECORD):
        if name in other.message.DESCRIPTOR.fields_by_name and name not in own:
            return f"{name} belongs to {other.name}; this was read as {kind.name}"
    names, name = list(descriptor.fields_by_name), shortened(name)
    if name in own:
        return f"unknown field '{name}' in {descriptor.name}; it belongs to {kind.name} itself: a brace is missing or too many"
    hint = nearest(name, names) or f"; known here: {', '.join(names)}"
    return f"unknown field '{name}' in {descriptor.name} of {kind.name}{hint}"


def _enclosing(walk: Walk, place: Place, root: Any) -> Any:
    """Return the descriptor of the message in which a field at `place` stands."""
    field = next((field for field in walk.every if field.place == place), None)
    found = _resolve(root, field.path[:-1]) if field is not None and len(field.path) > 1 else None
    return found.message_type if found is not None and found.message_type is not None else root


def _resolve(descriptor: Any, path: Iterable[str]) -> Any:
    """Follow field names from a message descriptor; None where the path leaves the schema."""
    field = None
    for name in path:
        field = descriptor.fields_by_name.get(name) if descriptor is not None else None
        if field is None:
            return None
        descriptor = field.message_type
    return field


def _expectation(field: Any) -> str:
    if field.enum_type is not None:
        return " or ".join(field.enum_type.values_by_name)
    return _EXPECTED[_TYPE_NAMES[field.type]]


def repetitions(section: Section) -> list[tuple[Place, str]]:
    """Describe what Merge overwrote or merged without a word: fields given twice and two members of one oneof."""
    return [*_repeated_fields(section), *_rival_members(section), *_inner_repetitions(section)]


def _repeated_fields(section: Section) -> list[tuple[Place, str]]:
    found = []
    for name, field in section.message.DESCRIPTOR.fields_by_name.items():
        places = [one.place for one in section.occurrences(name)]
        if field.is_repeated or len(places) < 2:
            continue
        lines = _lines(places)
        rule = "the blocks are merged, later values win" if field.message_type is not None else "the last one wins"
        found.append((places[-1], f"{name} is given {len(places)} times ({lines}): {rule}"))
    return found


def _rival_members(section: Section) -> list[tuple[Place, str]]:
    found = []
    for oneof in section.message.DESCRIPTOR.oneofs:
        members = {field.name for field in oneof.fields}
        written = [one for one in section.fields if one.name in members]
        if len({one.name for one in written}) > 1:
            names = " and ".join(dict.fromkeys(one.name for one in written))
            last = written[-1]
            lines = _lines([one.place for one in written])
            found.append((last.place, f"{names} exclude each other ({lines}): the last one, {last.name}, wins"))
    return found


def _lines(places: Sequence[Place]) -> str:
    """Name the lines of several places; also the columns where they share a line."""
    lines = [place.line for place in places]
    if len(set(lines)) == len(lines):
        return f"lines {', '.join(map(str, lines))}"
    return f"at {', '.join(f'{place.line}:{place.column}' for place in places)}"


def _inner_repetitions(section: Section) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = []
    for name, field in section.message.DESCRIPTOR.fields_by_name.items():
        if field.message_type is None or not section.occurrences(name):
            continue
        inner = section.children(name) if field.is_repeated else [section.child(name)]
        found.extend(one for part in inner for one in repetitions(part))
    return found
