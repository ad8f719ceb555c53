"""Text files that are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from calibrant.errors import ConfigError


def write_text(path: Path, text: str) -> None:
    r"""Write UTF-8 text with "\n" line ends through a file beside `path`; parents are made.

    Raises:
        ConfigError: the place is not writable.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    except OSError as error:
        message = f"{path}: cannot write: {error.strerror or error}"
        raise ConfigError(message) from error
    finally:
        with suppress(OSError):  # an error of its own would hide the first
            partial.unlink()
