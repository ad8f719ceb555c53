"""One writer at a time: two processes that change the tables of one run take turns, so that neither undoes what the other wrote."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other writers of a run waiting while the block runs; readers see whole files anyway.

    The lock is on the folder itself, so that nothing is left behind, and ends with the process. A file system without locks has
    none. A block must not enter another one of the same folder.

    Args:
        folder: of the run.

    Example:
        >>> with sole_writer(Path()):
        ...     pass
    """
    place = _locked(folder) if folder.is_dir() else None
    try:
        yield
    finally:
        if place is not None:
            os.close(place)


def _locked(folder: Path) -> int | None:
    """Lock a folder, and return the descriptor whose closing unlocks it; None on Windows, which has no such locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX)
    except BaseException:  # an interrupt while it waits
        os.close(place)
        raise
    return place
