"""The exceptions that callers may catch, and the nearest name for a wrong one.

Every message is one line: what went wrong, where (file, layer, tensor, sample), what was expected, what to do.
"""

import difflib
from collections.abc import Iterable


class CalibrantError(Exception):
    """Base of all errors that a user can cause and mend."""


class ConfigError(CalibrantError, ValueError):
    """A configuration file or option that cannot mean anything."""


class SchemaError(CalibrantError, ValueError):
    """A table, file or array of the wrong type."""


class ShapeError(CalibrantError, ValueError):
    """An array of the wrong rank or size."""


class LayerNotFoundError(CalibrantError, KeyError):
    """A layer, tensor or report name that does not exist."""

    def __str__(self) -> str:
        """Return the message as written; KeyError alone would quote it."""
        return str(self.args[0]) if self.args else ""


class MergeError(CalibrantError, ValueError):
    """Statistics of different kinds or models that must not be mixed."""


class ModelError(CalibrantError, ValueError):
    """A model that cannot be read, run or quantized."""


class DataError(CalibrantError, ValueError):
    """Calibration data that does not fit the model."""


class EmptyDataError(DataError):
    """No values where at least one is needed."""


class RunError(CalibrantError, ValueError):
    """A run directory that is missing, incomplete or of other content."""


class ExportError(CalibrantError, ValueError):
    """A quantized model that cannot be written or does not verify."""


class RangeError(CalibrantError, ValueError):
    """A value that leaves the range of its integer type."""


class DependencyError(CalibrantError, ImportError):
    """An optional library that is not installed; the message names the extra that brings it."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the candidate nearest to `name`, or an empty string.

    Example:
        >>> nearest("Conv_O", ["Conv_0", "Gemm_1"])
        "; did you mean 'Conv_0'?"
    """
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of another library says, or its type where it says nothing.

    Example:
        >>> first_line(ValueError())
        'ValueError'
    """
    return (str(error) or type(error).__name__).splitlines()[0]
