"""A model under a configuration: prepared with its fusion options, and its plan, before anything runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.errors import ConfigError
from calibrant.ingest.layers import layer_rows_of
from calibrant.ingest.model import prepare_model
from calibrant.ingest.nodes import model_nodes
from calibrant.ingest.passes.batch_norm import SkipFusionError
from calibrant.quantizers.layer_plan import Plan
from calibrant.quantizers.plan import resolve_plan

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


def check_plan(config: "QuantConfig", prepared: "PreparedModel") -> Plan:
    """Resolve the plan of a prepared model, so that a wrong layer name costs no capture.

    Raises:
        ConfigError: as `resolve_plan`.
    """
    return resolve_plan(config, layer_rows_of(prepared, None), other_nodes=model_nodes(prepared.model.graph))
