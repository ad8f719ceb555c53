"""Numbers of bytes as people write and read them."""

import re
from typing import Final

from calibrant.errors import ConfigError

_UNITS: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str, what: str) -> int:
    """Read a number of bytes.

    Args:
        size: a number, or a text such as ``4GB``, ``512 MiB`` or ``1.5gb``; MB is 10**6, MiB 2**20.
        what: the option's name, for the message.

    Raises:
        ConfigError: it is none, or not above 0.

    Example:
        >>> parse_bytes("4GB", "--memory"), parse_bytes("1.5 MiB", "--memory"), parse_bytes(100, "--memory")
        (4000000000, 1572864, 100)
    """
    found = _SIZE.fullmatch(str(size))
    unit = _UNITS.get(found[2].lower()) if found else None
    count = int(float(found[1]) * unit) if found and unit else 0
    if count < 1:
        message = f"{what}: '{size}' is no amount of memory; expected a number with a unit, such as 4GB or 512MiB"
        raise ConfigError(message)
    return count


def bytes_text(count: int) -> str:
    """Return a number of bytes as a person reads it.

    Example:
        >>> bytes_text(1_234_000_000), bytes_text(53_500_000)
        ('1.2 GB', '53.5 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
