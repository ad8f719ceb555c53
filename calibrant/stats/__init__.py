"""Activations to mergeable statistics, to tables, SQL and reports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant._room import make_callable

if TYPE_CHECKING:
    from calibrant.stats.events import Event as Event
    from calibrant.stats.histogram import LogLinearHistogram as LogLinearHistogram
    from calibrant.stats.run import Run as Run
    from calibrant.stats.run import open_run as open_run

__all__ = ["Event", "LogLinearHistogram", "Run", "open_run"]

_HOMES = {
    "Event": "calibrant.stats.events",
    "LogLinearHistogram": "calibrant.stats.histogram",
    "Run": "calibrant.stats.run",
    "open_run": "calibrant.stats.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    message = f"module 'calibrant.stats' has no attribute '{name}'"
    raise AttributeError(message)


make_callable(__name__)
