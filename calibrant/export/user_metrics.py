"""Metrics of the user's own: a function ``module:function`` of all outputs, those of the float model, and labels.

``function(outputs, reference, labels)`` gets the outputs of one variant and those of the float model as dicts of output name to an
array of shape (N, ...), or to a list of N arrays where their shapes differ from sample to sample, and the labels as they were given
(None without). It returns one number, or one number a sample, of which the mean and its interval are taken.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import CalibrantError, ConfigError, first_line, nearest

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array | list[Array]]
UserFunction = Callable[[Outputs, Outputs, Any], Any]


@dataclass(frozen=True, slots=True)
class UserMetric:
    """A function that scores a variant.

    Attributes:
        name: ``module:function``, as in the table `evaluation`.
        function: (outputs, reference, labels) -> a number, or one a sample.
    """

    name: str
    function: UserFunction

    def __call__(self, variant: str, outputs: Outputs, reference: Outputs, labels: Any, samples: int) -> Any:
        """Return the function's answer, checked: a float, or an array of shape (samples,).

        Raises:
            ConfigError: the function raised, or returned something else; the message names function and variant.
        """
        try:
            answer = self.function(outputs, reference, labels)
        except CalibrantError:
            raise
        except Exception as error:  # whatever a function of the user's raises
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


def _described(answer: Any, values: Array) -> str:
    if isinstance(answer, np.ndarray) or (
        isinstance(answer, list | tuple) and values.ndim and values.dtype.kind != "O"
    ):
        return f"{type(answer).__name__} of shape {values.shape} and type {values.dtype}"
    return "None" if answer is None else type(answer).__name__


def user_metric(given: str | UserFunction) -> UserMetric:
    """Return the metric of ``module:function``, ``path/file.py:function`` or a function itself.

    The current folder is searched for the module as well.

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
    module = _import(given, place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        what = "is no function" if hasattr(module, name) else f"has no function '{name}'{nearest(name, functions)}"
        message = f"--metric {given}: module '{place}' {what}; expected a function of (outputs, reference, labels)"
        raise ConfigError(message)
    return UserMetric(f"{Path(place).stem if place.endswith('.py') else place}:{name}", function)


def _import(given: str, place: str) -> ModuleType:
    try:
        with _current_folder():
            return _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever importing a file of the user's raises
        message = f"--metric {given}: '{place}' cannot be imported: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(message) from error


def _load_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules of the current folder be imported while the block runs."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
