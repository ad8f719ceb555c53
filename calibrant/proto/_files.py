"""Configurations and records as text files."""

from pathlib import Path

from calibrant.errors import ConfigError
from calibrant.whole_files import whole_file


def write_text(path: Path, text: str) -> None:
    r"""Write UTF-8 text with "\n" line ends through a file beside `path`; parents are made.

    Raises:
        ConfigError: the place is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"{path}: cannot write: {error.strerror or error}; choose a writable place"
        raise ConfigError(message) from error
