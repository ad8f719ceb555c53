"""What memory this process holds, and what the machine has left for it."""

import sys
from pathlib import Path
from typing import Final

_KIB: Final = 1024


def _status(name: str, path: str = "/proc/self/status") -> int | None:
    """Return a line of a file of /proc in bytes; None where there is no such file."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * _KIB if found else None


def resident_bytes() -> int:
    """Return the bytes that the process holds now; where only its peak is known, that."""
    return _status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Return the most bytes that the process has held."""
    found = _status("VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # no Unix
        return 0
    unit = 1 if sys.platform == "darwin" else _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_bytes() -> int | None:
    """Return what the machine, or the process's control group, could still give; None where nobody says."""
    machine = _status("MemAvailable", "/proc/meminfo")
    if machine is None:
        return None
    return min(machine, _group_left() or machine)


def _group_left() -> int | None:
    """Return what a container's limit leaves."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return max(0, int(limit) - used) if limit.isdigit() else None
