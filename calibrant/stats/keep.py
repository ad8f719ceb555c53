"""What a capture keeps of the activations, as the option ``--keep`` names it."""

import re
from dataclasses import dataclass
from typing import Final, Self

from calibrant.errors import ConfigError, nearest

_CHOSEN: Final = re.compile(r"raw:([0-9]+)")
FORMS: Final = ("raw", "raw:N", "stats")


@dataclass(frozen=True, slots=True)
class Keep:
    """How many samples' activations are kept; statistics are always of all samples.

    Attributes:
        samples: None for all, 0 for none, else those of the so many least content keys.

    Example:
        >>> Keep.parse("raw:8").samples, str(Keep(None)), str(Keep(0))
        (8, 'raw', 'stats')
    """

    samples: int | None

    @classmethod
    def parse(cls, text: "str | Keep") -> Self:
        """Read ``raw``, ``raw:N`` or ``stats``; what is read already is returned.

        Raises:
            ConfigError: it is none of them, or N is 0.
        """
        if isinstance(text, Keep):
            return cls(text.samples)
        if text in ("raw", "stats"):
            return cls(None if text == "raw" else 0)
        chosen = _CHOSEN.fullmatch(text)
        if chosen is None:
            message = f"keep: '{text}' is not one of {', '.join(FORMS)}{nearest(text, FORMS)}"
            raise ConfigError(message)
        if int(chosen[1]) == 0:
            message = f"keep: '{text}' keeps no sample; expected raw:1 or more, or stats"
            raise ConfigError(message)
        return cls(int(chosen[1]))

    def __str__(self) -> str:
        """Return the text that `parse` takes."""
        if self.samples is None:
            return "raw"
        return f"raw:{self.samples}" if self.samples else "stats"

    @property
    def has_raw(self) -> bool:
        """Whether any activations are kept."""
        return self.samples != 0

    @property
    def has_all(self) -> bool:
        """Whether the activations of all samples are kept."""
        return self.samples is None

    @property
    def is_part(self) -> bool:
        """Whether the activations of chosen samples are kept."""
        return bool(self.samples)


KEEP_ALL: Final = Keep(None)
KEEP_NONE: Final = Keep(0)
