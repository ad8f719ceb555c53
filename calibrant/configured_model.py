"""A model prepared as a configuration asks for: its fusion options, and where a wrong name in them stands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import ConfigError
from calibrant.ingest.model import prepare_model
from calibrant.ingest.passes.batch_norm import SkipFusionError

if TYPE_CHECKING:
    from calibrant.ingest.model import PreparedModel
    from calibrant.proto.simple_config import QuantConfig


def prepare_configured(
    model: Path, config: "QuantConfig", fix_input: Mapping[str, str | int | float] | None = None
) -> "PreparedModel":
    """Normalise a model and fuse it as a configuration says.

    Args:
        model: an ONNX file.
        config: its ``do_fusion`` and ``skip_fusion_layers`` are used.
        fix_input: inputs to turn into constants.

    Raises:
        ModelError: as `prepare_model`.
        ConfigError: a name in ``skip_fusion_layers`` is of no convolution; says ``file:line:column``.
    """
    try:
        return prepare_model(
            model,
            do_fusion=config.do_fusion,
            skip_fusion_layers=config.skip_fusion_layers,
            fix_input={name: str(value) for name, value in (fix_input or {}).items()},
        )
    except SkipFusionError as error:
        where = config.positions.get(("skip_fusion_layers", error.layer))
        message = str(error) if where is None else f"{where}: {error}"
        raise ConfigError(message) from error
