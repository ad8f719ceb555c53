"""How many cores this process may use."""

import os


def core_count() -> int:
    """Return the cores that the process may run on, at least one.

    Example:
        >>> core_count() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
