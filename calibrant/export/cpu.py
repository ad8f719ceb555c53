"""What of this processor decides the numbers of integer kernels."""

from pathlib import Path

_VNNI = frozenset({"avx512_vnni", "avx_vnni"})  # as Linux names the dot product of u8 and s8 that does not saturate


def has_vnni(cpuinfo: str | None = None) -> bool | None:
    """Return whether an x86 processor multiplies u8 by s8 without saturating, or None where that cannot be told.

    Args:
        cpuinfo: text of /proc/cpuinfo; by default that of this machine.

    Example:
        >>> has_vnni("flags : fpu avx2 avx512_vnni"), has_vnni("flags : fpu avx2"), has_vnni("Features : asimd")
        (True, False, None)
    """
    flags = [line for line in (_cpuinfo() if cpuinfo is None else cpuinfo).splitlines() if line.startswith("flags")]
    return None if not flags else not _VNNI.isdisjoint(flags[0].split())


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""  # no Linux
