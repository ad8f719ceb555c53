"""What a run is of: model, data, options, versions and processor; and in what another one differs."""

import os
import platform
from collections.abc import Mapping
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
    )


def fusion_options(config: "QuantConfig") -> tuple[bool, tuple[str, ...]]:
    """Return ``do_fusion`` and the sorted ``skip_fusion_layers``: two of one content are equal."""
    return config.do_fusion, tuple(sorted(config.skip_fusion_layers))


def differences(info: RunInfo, wanted: RunInfo) -> list[str]:
    """Say in words what differs between a run and what is asked for; nothing where the run can be reused."""
    checked = {
        "model": (info.model_hash, wanted.model_hash),
        "data": (info.data_fingerprint, wanted.data_fingerprint),
        "keep": (info.keep, wanted.keep),
        "do_fusion": (info.do_fusion, wanted.do_fusion),
        "skip_fusion_layers": (info.skip_fusion_layers, wanted.skip_fusion_layers),
        "fix_input": (dict(info.fix_input), dict(wanted.fix_input)),
    }
    short = {"model": f"model {info.model}", "data": f"data {info.data} ({info.samples} samples)"}
    return [
        f"{short[name]} has other content" if name in short else f"{name} is {old}, asked for {new}"
        for name, (old, new) in checked.items()
        if old != new
    ]


def _versions() -> dict[str, str]:
    names = ("calibrant", "numpy", "numba", "onnx", "onnx-ir", "onnxruntime", "polars", "pyarrow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


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
