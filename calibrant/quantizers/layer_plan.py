"""What was decided for each layer: the rows of the plan.

`calibrant.quantizers.plan` makes them; fits and exports read them.
"""

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from calibrant.quantizers.not_applied import lowered, not_applied
from calibrant.quantizers.part_plans import DataPlan, WeightPlan
from calibrant.stats.events import Event
from calibrant.stats.tables import SCHEMAS

__all__ = ["TENSOR", "DataPlan", "LayerPlan", "Plan", "TensorPlan", "WeightPlan"]

TENSOR: Final = "tensor_quantize"  # the rule that decides the plan of an input


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a configuration asks of one layer, and which rule decided.

    A rule reads ``override_layer_configs "conv1"``, ``override_layer_types "Gemm"``, ``common_config``, ``activation_offset``,
    ``nuq_config``, ``default``, ``skip_layers``, ``skip_layer_types "Gemm"`` or ``layer`` (the layer itself allows nothing else).

    Attributes:
        layer_id: position in topological order.
        layer: ONNX node name.
        op_type: ONNX type.
        tensor_id: the captured tensor on input 0, or None.
        enabled: whether the layer is quantized.
        reason: why not, or None.
        data: how its data is to be quantized, or would be.
        weight: how its weight is to be quantized, or would be.
        enabled_decided_by: rule behind `enabled`.
        data_decided_by: rule behind the data algorithm and its numbers.
        asymmetric_decided_by: rule behind `data.asymmetric`.
        weight_decided_by: rule behind the weight's values.
        weight_asymmetric_decided_by: rule behind `weight.asymmetric`.
        weight_only: whether the weight alone is to be quantized.
        weight_only_decided_by: rule behind `weight_only`.
        migration_strength: how much of the data's range the balancer moves into the weights; None: no balancing.
        balancer_decided_by: rule behind `migration_strength`.
        do_fusion: whether a BatchNormalization behind it is fused into it; None for types that are never fused.
        fusion_decided_by: rule behind `do_fusion`.
        tensors: names of both inputs of a MatMul of two variables that is quantized; else empty.
        tensor_id_b: the captured tensor on its input 1, or None.
        joint: the Add at which the layer meets others, with which it shares the scale of its data (``joint_quant``), or None.
    """

    layer_id: int
    layer: str
    op_type: str
    tensor_id: int | None
    enabled: bool
    reason: str | None
    data: DataPlan
    weight: WeightPlan
    enabled_decided_by: str
    data_decided_by: str
    asymmetric_decided_by: str
    weight_decided_by: str
    weight_asymmetric_decided_by: str = "default"
    weight_only: bool = False
    weight_only_decided_by: str = "default"
    migration_strength: float | None = None
    balancer_decided_by: str = "default"
    do_fusion: bool | None = None
    fusion_decided_by: str = "default"
    joint: str | None = None
    tensors: tuple[str, ...] = ()
    tensor_id_b: int | None = None

    @property
    def not_applied(self) -> tuple[str, ...]:
        """The features that were asked for and that this version does not apply."""
        return not_applied(self)

    @property
    def applied(self) -> "LayerPlan":
        """The plan as this version applies it: what fits and exports must use."""
        return lowered(self)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What a configuration asks of one input of a node that is no layer (``tensor_quantize``).

    Attributes:
        layer: ONNX node name.
        op_type: its type.
        input_index: which input.
        data: how it is to be quantized.
        data_decided_by: rule behind the algorithm and its numbers.
        asymmetric_decided_by: rule behind `data.asymmetric`.
        tensor: name of the value on that input; empty where the model's nodes do not say.
        reason: why the input stays in float, or None.
    """

    layer: str
    op_type: str
    input_index: int
    data: DataPlan
    data_decided_by: str
    asymmetric_decided_by: str
    tensor: str = ""
    reason: str | None = None

    @property
    def enabled(self) -> bool:
        """Whether the input is quantized."""
        return self.reason is None

    @property
    def key(self) -> str:
        """What the record calls it: ``node:index``."""
        return f"{self.layer}:{self.input_index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One row a layer, in the order of the layers, and what a person should know about them.

    Attributes:
        rows: the decisions on layers.
        events: notes of the configuration, inert settings, adjusted values, settings that are not applied.
        tensors: the decisions on inputs of other nodes.
        batch_num: how many batches to use; None: all.
    """

    rows: tuple[LayerPlan, ...]
    events: tuple[Event, ...]
    tensors: tuple[TensorPlan, ...] = ()
    batch_num: int | None = None

    @property
    def enabled(self) -> tuple[LayerPlan, ...]:
        """The layers that are quantized."""
        return tuple(row for row in self.rows if row.enabled)

    @property
    def enabled_tensors(self) -> tuple[TensorPlan, ...]:
        """The inputs of other nodes that are quantized."""
        return tuple(one for one in self.tensors if one.enabled)

    def frame(self, fit: str) -> pl.DataFrame:
        """Return the `plan` table of one fit: layers, then inputs of other nodes."""
        shared = {"fit": fit, "batch_num": self.batch_num}
        rows = [*map(_layer_columns, self.rows), *map(_tensor_columns, self.tensors)]
        empty = dict.fromkeys(SCHEMAS["plan"])
        return pl.DataFrame([{**empty, **shared, **row} for row in rows], schema=SCHEMAS["plan"])


def _layer_columns(row: LayerPlan) -> dict[str, Any]:
    weight = row.weight
    return {
        "layer_id": row.layer_id,
        "layer": row.layer,
        "op_type": row.op_type,
        "enabled": row.enabled,
        "reason": row.reason,
        "do_fusion": row.do_fusion,
        **_data_columns(row.data),
        "weight_algorithm": weight.algorithm,
        "weight_bits": weight.bits,
        "channel_wise": weight.channel_wise,
        "weight_asymmetric": weight.asymmetric,
        "num_steps": weight.num_steps,
        "num_of_iteration": weight.num_of_iteration,
        "weight_only": row.weight_only,
        "migration_strength": row.migration_strength,
        "joint": row.joint,
        "not_applied": _joined(row.not_applied),
        "enabled_decided_by": row.enabled_decided_by,
        "data_decided_by": row.data_decided_by,
        "asymmetric_decided_by": row.asymmetric_decided_by,
        "weight_decided_by": row.weight_decided_by,
        "weight_asymmetric_decided_by": row.weight_asymmetric_decided_by,
        "weight_only_decided_by": row.weight_only_decided_by,
        "balancer_decided_by": row.balancer_decided_by,
        "fusion_decided_by": row.fusion_decided_by,
    }


def _tensor_columns(row: TensorPlan) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "op_type": row.op_type,
        "tensor_index": row.input_index,
        "enabled": row.enabled,
        "reason": row.reason,
        **_data_columns(row.data),
        "enabled_decided_by": TENSOR,
        "data_decided_by": row.data_decided_by,
        "asymmetric_decided_by": row.asymmetric_decided_by,
    }


def _data_columns(data: DataPlan) -> dict[str, Any]:
    start, end = data.search_range or (None, None)
    return {
        "data_algorithm": data.algorithm,
        "data_bits": data.bits,
        "asymmetric": data.asymmetric,
        "max_percentile": data.max_percentile,
        "min_percentile": data.min_percentile,
        "search_range_start": start,
        "search_range_end": end,
        "search_step": data.search_step,
        "num_of_bins": data.num_of_bins,
        "float16_step": data.half,
    }


def _joined(names: tuple[str, ...]) -> str | None:
    return ", ".join(names) or None
