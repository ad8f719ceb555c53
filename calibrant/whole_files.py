"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write to; what is written there becomes `path` when the block ends well.

    After an error nothing of it stays and an older `path` is as it was. Two processes write to different places.

    Args:
        path: the file; its folder exists when the block begins to write.

    Raises:
        OSError: the path is that of a folder, or the file cannot be moved to its place. The caller says what it is and what to do.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_file(Path(folder, "a.txt")) as partial:
        ...         _ = partial.write_text("all of it")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    if not path.name:  # such as . and /
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):  # an error of its own would hide the first
            partial.unlink()
