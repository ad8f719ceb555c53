"""Checked access to the members of a JSON object: type, range and name, each error at its place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NoReturn

from calibrant.errors import ConfigError, nearest
from calibrant.proto._json_text import Value, printable
from calibrant.proto._syntax import Place

_LARGEST: Final = 1e30  # beyond it nothing that a configuration counts or measures


class JsonObject:
    """An object of a JSON file.

    Args:
        value: the object.
        source: name of the file, for messages.
        label: what it is in messages, e.g. ``layer 'Conv_0'``; empty for the whole file.
        path: keys from the top to it.

    Raises:
        ConfigError: the value is no object.
    """

    def __init__(self, value: Value, source: str, label: str = "", path: tuple[str, ...] = ()) -> None:
        self.source, self.label, self.path, self.place = source, label, path, value.place
        if not value.is_object:
            name = path[-1] if path else "the file"
            self.fail(value.place, f"{name} is {value.kind}; an object in braces {{ … }} is expected")
        self.members: Mapping[str, Value] = {one.key: one.value for one in value.members()}
        self.keys: Mapping[str, Place] = {one.key: one.place for one in value.members()}

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def positions(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the path of each member with its ``file:line:column``."""
        for name, place in self.keys.items():
            yield (*self.path, name), self._spot(place)

    def _spot(self, place: Place) -> str:
        return f"{self.source}:{place.line}:{place.column}"

    def spot(self, name: str) -> str:
        """Return ``file:line:column`` of a key; of the object where it is not written."""
        return self._spot(self.keys.get(name, self.place))

    def fail(self, place: Place, text: str) -> NoReturn:
        """Raise a `ConfigError` at a place."""
        label = f"{self.label}: " if self.label else ""
        message = f"{self._spot(place)}: {printable(label + text)}"
        raise ConfigError(message)

    def reject(self, name: str, text: str) -> NoReturn:
        """Raise a `ConfigError` at a key."""
        self.fail(self.keys.get(name, self.place), text)

    def expect(self, name: str, expected: str) -> NoReturn:
        """Raise a `ConfigError` that says what a member is and what is expected."""
        self.fail(self.members[name].place, f"{name} is {self.members[name].kind}; {expected} is expected")

    def check_keys(self, known: Sequence[str]) -> None:
        """Check that no key is unknown.

        Raises:
            ConfigError: one is; names the nearest, else all.
        """
        for name in self.members:
            if name not in known:
                hint = nearest(name, known) or f"; known here: {', '.join(known)}"
                self.reject(name, f"unknown key '{name}'{hint}")

    def boolean(self, name: str) -> bool | None:
        """Return a boolean member, None where it is not written."""
        if name not in self.members:
            return None
        content = self.members[name].content
        return content if isinstance(content, bool) else self.expect(name, "true or false")

    def integer(self, name: str, allowed: Iterable[int]) -> int | None:
        """Return a whole number that is one of a few, None where it is not written."""
        if name not in self.members:
            return None
        content, numbers = self.members[name].content, tuple(allowed)
        if isinstance(content, int) and not isinstance(content, bool) and content in numbers:
            return content
        return self.expect(name, " or ".join(map(str, numbers)))

    def count(self, name: str, least: int) -> int | None:
        """Return a whole number that is at least `least` and fits 32 bits, None where it is not written."""
        if name not in self.members:
            return None
        content = self.members[name].content
        if isinstance(content, int) and not isinstance(content, bool) and least <= content < 1 << 32:
            return content
        return self.expect(name, f"a whole number of at least {least} (and at most {(1 << 32) - 1})")

    def number(self, name: str, expected: str) -> float | None:
        """Return a number, None where it is not written."""
        return _number(self.members[name]) if name in self.members and self._is_number(name, expected) else None

    def fraction(self, name: str) -> float | None:
        """Return a number above 0 and below 1, None where it is not written."""
        expected = "a number between 0 and 1"
        value = self.number(name, expected)
        return value if value is None or 0 < value < 1 else self.expect(name, expected)

    def _is_number(self, name: str, expected: str) -> bool:
        return _number(self.members[name]) is not None or self.expect(name, expected)

    def text(self, name: str, allowed: Sequence[str] | None = None) -> str | None:
        """Return a text, one of a few where `allowed` is given; None where it is not written."""
        if name not in self.members:
            return None
        content = self.members[name].content
        if not isinstance(content, str):
            self.expect(name, "a text in quotes" if allowed is None else _choice(allowed))
        if allowed is not None and content not in allowed:
            self.fail(
                self.members[name].place,
                f"{name} is '{content}'; {_choice(allowed)} is expected{nearest(content, allowed)}",
            )
        return content

    def pair(self, name: str, expected: str) -> tuple[float, float] | None:
        """Return a list of two numbers, None where it is not written."""
        if name not in self.members:
            return None
        value = self.members[name]
        numbers = [_number(one) for one in value.elements()]
        if not isinstance(value.content, tuple) or value.is_object or len(numbers) != 2:
            self.expect(name, expected)
        first, second = numbers
        return (first, second) if first is not None and second is not None else self.expect(name, expected)

    def elements(self, name: str, expected: str) -> tuple[Value, ...] | None:
        """Return the elements of a list, None where it is not written."""
        if name not in self.members:
            return None
        value = self.members[name]
        is_list = isinstance(value.content, tuple) and not value.is_object
        return value.elements() if is_list else self.expect(name, expected)

    def child(self, name: str) -> "JsonObject | None":
        """Return an object member, None where it is not written."""
        if name not in self.members:
            return None
        return JsonObject(self.members[name], self.source, self.label, (*self.path, name))


def _number(value: Value) -> float | None:
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return content if abs(content) < _LARGEST else None


def _choice(allowed: Sequence[str]) -> str:
    return " or ".join(f'"{one}"' for one in allowed)
