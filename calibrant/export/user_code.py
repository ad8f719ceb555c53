"""Code of the user's own: modules by name or file, and objects in them."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from calibrant.errors import ConfigError, first_line, nearest


def folders_of(place: str) -> tuple[Path, ...]:
    """Return where the modules are searched that code of the user's imports: the current folder, and that of its own file."""
    return (Path.cwd(), *([Path(place).resolve().parent] if place.endswith(".py") else []))


def import_place(place: str, where: str) -> ModuleType:
    """Import a module by name or a ``.py`` file.

    Args:
        place: the module or file.
        where: who asks, for messages.

    Raises:
        ConfigError: it cannot be imported.

    Example:
        >>> import_place("math", "--metric math:hypot").__name__
        'math'
    """
    try:
        with importable(folders_of(place)):
            return _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # whatever importing a file of the user's raises
        message = f"{where}: '{place}' cannot be imported: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(message) from error


def load_object(given: str, where: str, suits: Callable[[object], bool]) -> Any:
    """Return the object of ``file.py:Object`` or ``module:Object``; a class is called without arguments.

    Without a name it is the one suitable object of the module or, where it has none, of the one suitable class.

    Args:
        given: as the user wrote it.
        where: the option, for messages.
        suits: whether an object, or a class, is of the kind that is looked for.

    Raises:
        ConfigError: no such module or object, several, or the class cannot be called.
    """
    place, colon, name = given.rpartition(":")
    if not colon:
        place, name = given, ""
    module = import_place(place, f"{where} {given}")
    found = _named(module, name, f"{where} {given}") if name else _only(module, f"{where} {given}", suits)
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:  # whatever a constructor of the user's raises
        message = f"{where} {given}: {found.__name__}() raised {type(error).__name__}: {first_line(error)}; name an object of it instead"
        raise ConfigError(message) from error


def _named(module: ModuleType, name: str, where: str) -> Any:
    if not hasattr(module, name):
        message = f"{where}: module '{module.__name__}' has no '{name}'{nearest(name, vars(module))}"
        raise ConfigError(message)
    return getattr(module, name)


def _only(module: ModuleType, where: str, suits: Callable[[object], bool]) -> Any:
    public = {key: value for key, value in vars(module).items() if not key.startswith("_") and suits(value)}
    objects = {key: value for key, value in public.items() if not isinstance(value, type)}
    own = {key: value for key, value in public.items() if getattr(value, "__module__", None) == module.__name__}
    found = objects or own
    if len(found) != 1:
        what = f"several fit: {', '.join(found)}" if found else "nothing there fits"
        message = f"{where}: {what}; name the object: {where.rpartition(' ')[2]}:NAME"
        raise ConfigError(message)
    return next(iter(found.values()))


def _load_file(path: Path) -> ModuleType:
    """Import a file under a name that no other module has; dataclasses, among others, look their module up by its name."""
    name = f"{path.stem} of {path.resolve().parent}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def importable(folders: Sequence[Path]) -> Iterator[None]:
    """Let modules of these folders be imported while the block runs; those of the last one are found first."""
    names = [str(folder) for folder in folders]
    for name in names:
        sys.path.insert(0, name)
    try:
        yield
    finally:
        for name in names:
            with suppress(ValueError):  # the user's code may have changed the path
                sys.path.remove(name)
