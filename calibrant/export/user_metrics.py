"""Metrics of the user's own: a function ``module:function`` of all outputs, those of the float model, and labels.

``function(outputs, reference, labels)`` gets the outputs of one variant and those of the float model as dicts of output name to an
array of shape (N, ...), or to a list of N arrays where their shapes differ from sample to sample, and the labels as they were given
(None without). It returns one number, or one number a sample, of which the mean and its interval are taken. The arrays are read-only,
because other metrics and variants see them too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import CalibrantError, ConfigError, first_line, nearest
from calibrant.export.user_code import folders_of, import_place, importable

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array | list[Array]]
UserFunction = Callable[[Outputs, Outputs, Any], Any]


@dataclass(frozen=True, slots=True)
class UserMetric:
    """A function that scores a variant.

    Attributes:
        name: ``module:function``, as in the table `evaluation`.
        function: (outputs, reference, labels) -> a number, or one a sample.
        folders: where modules that the function imports are searched first.
    """

    name: str
    function: UserFunction
    folders: tuple[Path, ...] = ()

    def __call__(self, variant: str, outputs: Outputs, reference: Outputs, labels: Any, samples: int) -> Any:
        """Return the function's answer, checked: a float, or an array of shape (samples,).

        Raises:
            ConfigError: the function raised, or returned something else; the message names function and variant.
        """
        try:
            with importable(self.folders):
                answer = self.function(_read_only(outputs), _read_only(reference), labels)
        except CalibrantError:
            raise
        except (Exception, SystemExit) as error:  # whatever a function of the user's raises
            message = f"--metric {self.name}: raised {type(error).__name__} for '{variant}': {first_line(error)}; mend the function"
            raise ConfigError(message) from error
        return self._checked(answer, variant, samples)

    def _checked(self, answer: Any, variant: str, samples: int) -> Any:
        try:
            values = np.asarray(answer)
        except ValueError:  # a ragged list
            values = np.asarray(None)
        if values.dtype.kind in "bif" and values.ndim == 0:
            return float(values)
        if values.dtype.kind in "bif" and values.shape == (samples,):
            return values.astype(np.float64)
        message = (
            f"--metric {self.name}: returned {_described(answer, values)} for '{variant}'; "
            f"expected one number, or an array of one number a sample, shape ({samples},)"
        )
        raise ConfigError(message)


def _read_only(outputs: Outputs) -> dict[str, Array | list[Array]]:
    """Return the outputs without leave to change them."""
    return {
        name: _view(part) if isinstance(part, np.ndarray) else list(map(_view, part)) for name, part in outputs.items()
    }


def _view(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _described(answer: Any, values: Array) -> str:
    if isinstance(answer, np.ndarray) or (
        isinstance(answer, list | tuple) and values.ndim and values.dtype.kind != "O"
    ):
        return f"{type(answer).__name__} of shape {values.shape} and type {values.dtype}"
    return "None" if answer is None else type(answer).__name__


def user_metric(given: str | UserFunction) -> UserMetric:
    """Return the metric of ``module:function``, ``path/file.py:function`` or a function itself.

    The current folder, and that of a file, are searched for modules as well, also while the function runs.

    Raises:
        ConfigError: no such module or function, or the module cannot be imported; the message names it.

    Example:
        >>> user_metric("math:hypot").name
        'math:hypot'
    """
    if callable(given):
        return UserMetric(f"{given.__module__}:{getattr(given, '__qualname__', type(given).__name__)}", given)
    place, _, name = given.rpartition(":")
    if not place or not name:
        message = f"--metric {given}: expected module:function or file.py:function"
        raise ConfigError(message)
    folders = folders_of(place)
    module = import_place(place, f"--metric {given}")
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        what = f"has no function '{name}'{nearest(name, functions)}"
        what = f"'{name}' is no function" if hasattr(module, name) else f"module '{place}' {what}"
        message = f"--metric {given}: {what}; expected a function of (outputs, reference, labels)"
        raise ConfigError(message)
    return UserMetric(f"{Path(place).stem if place.endswith('.py') else place}:{name}", function, folders)


def check_names(metrics: Sequence[UserMetric]) -> None:
    """Refuse functions that the tables could not tell apart.

    Raises:
        ConfigError: two have one name.
    """
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            message = (
                f"--metric {name}: two functions have this name; give each a name of its own (def, or __qualname__)"
            )
            raise ConfigError(message)
