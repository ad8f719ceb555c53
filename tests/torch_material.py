"""What the tests of quantization-aware training share: the skip where PyTorch is absent, one thread, a configured model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[qat]'")
torch.set_num_threads(1)  # pytest-xdist runs one process a core already

from calibrant.amct import create_quant_retrain_config, create_quant_retrain_model  # noqa: E402

nn = torch.nn
DATA = "retrain_data_config"
WEIGHT = "retrain_weight_config"


def in_training(
    folder: Path,
    model: Any,
    example: Any,
    change: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Any:
    """Return a model in training by a configuration in `folder`/config.json, its layers changed by `change`."""
    path = folder / "config.json"
    create_quant_retrain_config(path, model, example)
    if change is not None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    return create_quant_retrain_model(path, model, folder / "record.txt", example, **options)


def random(*shape: int, seed: int = 0) -> Any:
    """Return values of a normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
