"""Run the command line: the only place where every exception becomes a line and an exit code."""

import gc
import os
import sys
from typing import NoReturn

from calibrant.cli.app import app
from calibrant.errors import CalibrantError

_NEW_OBJECTS = (
    50_000  # before a look for garbage: imports make hundreds of thousands, and looking took a tenth of a short capture
)
_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def _describe(error: BaseException) -> str:
    if isinstance(error, CalibrantError):
        return str(error)
    if isinstance(error, OSError):
        where = error.filename or "a file or stdout"
        return f"{where}: {error.strerror or error}; use another place, or mend its permissions and its disk's space"
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); give --memory a limit, or take smaller samples"
    return f"{type(error).__name__}: {error}; this is a fault of calibrant, run again with --traceback and report it"


def main() -> None:
    """Run the command line; the only place where every exception is caught."""
    gc.set_threshold(_NEW_OBJECTS)
    arguments = sys.argv[1:]
    traceback = "--traceback" in arguments
    try:
        app(args=[argument for argument in arguments if argument != "--traceback"] or ["--help"], prog_name="calibrant")
    except BrokenPipeError:
        # The reader of stdout has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _fail("interrupted; what was finished stays, run the command again", _INTERRUPTED)
        raise
    except Exception as error:
        if traceback:
            raise
        _fail(_describe(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    from calibrant.console import print_error

    print_error(message)
    sys.exit(code)
