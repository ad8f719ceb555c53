"""Configuration and layers to one decision a layer, with the rule that decided each group of values.

Precedence is AMCT's: ``override_layer_configs`` > ``override_layer_types`` > ``common_config`` > default. The block that wins is
taken whole: what it omits has the defaults, not the values of a lower level. Two values fall through: data ``asymmetric`` (own
value > ``common_config``'s where its data algorithm is the same > ``activation_offset``) and weight ``asymmetric`` (the nearest
block that says it > false). A config.json is resolved by `calibrant.quantizers.layerwise`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from calibrant.proto.layerwise import LayerwiseConfig
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_plan import DataPlan, LayerPlan, Plan, TensorPlan, WeightPlan
from calibrant.quantizers.layerwise import LayerwiseResolution
from calibrant.quantizers.plan_json import json_config
from calibrant.quantizers.resolution import Resolution
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

__all__ = ["DataPlan", "LayerPlan", "Plan", "TensorPlan", "WeightPlan", "json_config", "resolve_plan"]

_NO_NODES: Final[Mapping[str, ModelNode]] = {}


def resolve_plan(
    config: QuantConfig,
    layers: Sequence[LayerRow],
    *,
    other_nodes: Mapping[str, ModelNode] = _NO_NODES,
    nuq: Collection[str] | None = None,
) -> Plan:
    """Decide for every layer whether and how it is quantized.

    Args:
        config: what the user asked for; ``QuantConfig()`` for AMCT's defaults.
        layers: the `layers` table of the prepared model, refused layers included.
        other_nodes: the model's nodes by name: so that an override of one that is no layer is known to be inert rather than
            misspelt, and for ``tensor_quantize``.
        nuq: the layers that ``nuq_config`` meant in an earlier resolution; None: its mapping file is read.

    Raises:
        ConfigError: a name or type that does not exist (with the nearest one), a setting that a layer cannot have, or nothing
            left to quantize; says ``file:line:column``.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> plan = resolve_plan(QuantConfig(activation_offset=False), [row])
        >>> plan.rows[0].data.algorithm, plan.rows[0].data.asymmetric, plan.rows[0].asymmetric_decided_by
        ('ifmr', False, 'activation_offset')
    """
    if isinstance(config, LayerwiseConfig):
        return LayerwiseResolution(config, layers, other_nodes, nuq).plan()
    return Resolution(config, layers, other_nodes, nuq).plan()
