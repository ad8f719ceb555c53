"""What pytest leaves out where an extra is not installed."""

from importlib.util import find_spec

_WITH_TORCH = find_spec("torch") is not None
collect_ignore_glob = [] if _WITH_TORCH else ["calibrant/quantizers/qat/*"]


def pytest_report_header() -> str | None:
    """Say what is left out, and why."""
    return (
        None if _WITH_TORCH else "calibrant.quantizers.qat is left out: PyTorch is not installed; pip install '.[qat]'"
    )
