"""What the config.json of calibration and that of retraining have in common when they are read."""

from typing import Final, cast

from calibrant.proto._json_object import JsonObject
from calibrant.proto._json_text import parse_json
from calibrant.proto.simple_config import ConfigNote, PrecisionMode

_MARK: Final = "\ufeff"  # AMCT refuses it


class JsonFileReader:
    """Reads one file; gathers notes and positions on the way.

    Args:
        text: the file's text, a byte-order mark included.
        source: name of the file, for messages.

    Raises:
        ConfigError: the text is no JSON object.

    Attributes:
        root: the whole file.
        text: without the byte-order mark.
        positions: path of keys -> ``file:line:column``.
        notes: what a person should know.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text = text.removeprefix(_MARK)
        self.root = JsonObject(parse_json(self.text, source), source)
        self.positions: dict[tuple[str, ...], str] = dict(self.root.positions())
        self.notes: list[ConfigNote] = []
        if text.startswith(_MARK):
            self.note(f"{source}:1:1", "the file begins with a byte-order mark, which AMCT refuses; it was left out")

    def note(self, where: str, text: str) -> None:
        """Add a warning about a place."""
        self.notes.append(ConfigNote("warn", f"{where}: {text}"))

    def batch_num(self) -> int | None:
        """Return ``batch_num``, None where it is not written."""
        name = "batch_num"
        if name in self.root and self.root.members[name].content is True:
            self.note(self.root.spot(name), "batch_num is true, which AMCT reads as 1; write 1")
            return 1
        return self.root.count(name, 1)

    def precision_mode(self) -> PrecisionMode | None:
        """Return ``fakequant_precision_mode``, None where it is not written."""
        name = "fakequant_precision_mode"
        return cast("PrecisionMode | None", self.root.text(name, ("DEFAULT", "FORCE_FP16_QUANT")))

    def child(self, part: JsonObject, name: str, keys: tuple[str, ...]) -> JsonObject | None:
        """Return an object member whose keys are known, None where it is not written."""
        found = part.child(name)
        if found is not None:
            self.positions.update(found.positions())
            found.check_keys(keys)
        return found
