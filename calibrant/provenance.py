"""What a run is of: model, data, options, versions and processor; and in what another one differs."""

import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.stats.keep import Keep
from calibrant.stats.run import RunInfo

if TYPE_CHECKING:
    from calibrant.ingest.model import PreparedModel
    from calibrant.proto.simple_config import QuantConfig


def wanted_info(
    model: Path,
    prepared: "PreparedModel",
    data: object,
    config: "QuantConfig",
    keep: Keep,
    fix_input: Mapping[str, object] | None,
) -> RunInfo:
    """Describe the run that is asked for, before anything of it exists.

    Args:
        model: the ONNX file.
        prepared: the model made of it.
        data: what the samples come from; its path, or the name of its type, is noted.
        config: its fusion options are noted.
        keep: what is kept of the activations.
        fix_input: inputs that were turned into constants.
    """
    from calibrant.ingest.samples import KEY_HASH

    do_fusion, skip_fusion_layers = fusion_options(config)
    return RunInfo(
        model=str(model.resolve()),
        model_name=model.stem,
        model_hash=prepared.source_hash,
        data=_data_name(data),
        keep=str(keep),
        do_fusion=do_fusion,
        skip_fusion_layers=skip_fusion_layers,
        fix_input={name: str(value) for name, value in (fix_input or {}).items()},
        versions=_versions(),
        cpu=_cpu(),
        key_hash=KEY_HASH,
    )


def fusion_options(config: "QuantConfig") -> tuple[bool, tuple[str, ...]]:
    """Return ``do_fusion`` and the sorted ``skip_fusion_layers``: two of one content are equal."""
    return config.do_fusion, tuple(sorted(config.skip_fusion_layers))


def differences(info: RunInfo, wanted: RunInfo) -> list[str]:
    """Say in words what differs between a run and what is asked for; nothing where the run can be reused."""
    checked = {
        "model": (info.model_hash, wanted.model_hash),
        "keys": (info.key_hash, wanted.key_hash),
        "data": _fingerprints(info, wanted),
        "keep": (info.keep, wanted.keep),
        "do_fusion": (info.do_fusion, wanted.do_fusion),
        "skip_fusion_layers": (info.skip_fusion_layers, wanted.skip_fusion_layers),
        "fix_input": (dict(info.fix_input), dict(wanted.fix_input)),
    }
    texts = {
        "model": f"model {info.model} has other content",
        "data": f"data {info.data} ({info.samples} samples) has other content",
        "keys": f"an earlier calibrant captured it, and its sample keys ({info.key_hash}) do not tell whether the data is the same",
    }
    return [texts.get(name, f"{name} is {old}, asked for {new}") for name, (old, new) in checked.items() if old != new]


def _fingerprints(info: RunInfo, wanted: RunInfo) -> tuple[str | None, str | None]:
    """Return what tells whether the data is the same; nothing does where the keys are of another kind."""
    is_told = info.key_hash == wanted.key_hash
    return (info.data_fingerprint, wanted.data_fingerprint) if is_told else (None, None)


_version = cache(version)  # what is installed is read from files


def _versions() -> dict[str, str]:
    names = ("calibrant", "numpy", "numba", "onnx", "onnx-ir", "onnxruntime", "polars", "pyarrow")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _cpu() -> str:
    """Return the processor's name; onnxruntime chooses its kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _data_name(data: object) -> str:
    return str(data) if isinstance(data, str | os.PathLike) else type(data).__name__
