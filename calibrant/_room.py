"""Rooms that are called like the verb of their name: `calibrant.export(run)` beside the package `calibrant.export`.

The public API promises the function `calibrant.export`, the architecture the package of the same name. Python binds a
subpackage to its parent's attribute as soon as it is imported, so the module itself has to be callable.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """A module whose call runs the function of the same name in it, else in `calibrant.pipeline`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run that function; its signature and documentation stand there."""
        verb = self.__name__.rpartition(".")[2]
        own = self.__dict__.get(verb)
        return (own or getattr(import_module("calibrant.pipeline"), verb))(*args, **kwargs)


def make_callable(room: str) -> None:
    """Let the package `room` be called."""
    sys.modules[room].__class__ = CallableRoom
