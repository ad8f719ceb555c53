"""AMCT's config.json of layers whose scales were given and not searched: it tells bits, offsets and which layers are quantized."""

from collections.abc import Sequence
from dataclasses import replace

from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.quantized_tensor import QuantizedTensor
from calibrant.export.weight_only import WeightOnlyLayer
from calibrant.ingest.layers import layer_rows_of
from calibrant.ingest.model import PreparedModel
from calibrant.proto.json_config import format_json_config
from calibrant.proto.settings import IfmrSettings
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.half_factors import FORCED
from calibrant.quantizers.layer_plan import LayerPlan, TensorPlan
from calibrant.quantizers.layer_settings import data_plan
from calibrant.quantizers.plan import json_config, resolve_plan

Exported = QuantizedLayer | WeightOnlyLayer


def given_config_text(
    prepared: PreparedModel,
    quantized: Sequence[Exported],
    tensors: Sequence[QuantizedTensor],
    *,
    do_fusion: bool,
    skips: tuple[str, ...],
) -> str:
    """Return the configuration that asks for these layers and inputs.

    The algorithm in it is AMCT's default, since scales do not tell how they were found.

    Args:
        prepared: the float model.
        quantized: the layers that are quantized; all others are disabled.
        tensors: quantized inputs of MaxPool and Add.
        do_fusion: whether BatchNormalization was fused.
        skips: convolutions that were not fused.
    """
    offset = any(item.offset_d for item in quantized if isinstance(item, QuantizedLayer)) or any(
        tensor.offset_d for tensor in tensors
    )
    forced = any(item.half_factors for item in quantized if isinstance(item, QuantizedLayer))
    config = QuantConfig(
        do_fusion=do_fusion, skip_fusion_layers=skips, activation_offset=offset,
        fakequant_precision_mode=FORCED if forced else None,
    )  # fmt: skip
    plan = resolve_plan(config, layer_rows_of(prepared, None))
    by_id = {item.layer.layer_id: item for item in quantized}
    rows = tuple(_planned(row, by_id.get(row.layer_id)) for row in plan.rows)
    return format_json_config(
        json_config(config, replace(plan, rows=rows, tensors=tuple(map(_planned_tensor, tensors))))
    )


def _planned_tensor(tensor: QuantizedTensor) -> TensorPlan:
    data = data_plan(IfmrSettings(), tensor.data_bits, asymmetric=tensor.offset_d != 0)
    return TensorPlan(tensor.node, "", tensor.input_index, data, "record", "record")


def _planned(row: LayerPlan, quantized: Exported | None) -> LayerPlan:
    if quantized is None:
        return replace(row, enabled=False)
    per_channel = quantized.scale_w.size > 1 or (row.weight.channel_wise and quantized.layer.channels_out == 1)
    weight = replace(row.weight, bits=quantized.weight_bits, channel_wise=per_channel)
    row = replace(row, enabled=True, weight=weight)
    return _planned_data(row, quantized) if isinstance(quantized, QuantizedLayer) else row


def _planned_data(row: LayerPlan, quantized: QuantizedLayer) -> LayerPlan:
    data = replace(row.data, bits=quantized.data_bits, asymmetric=quantized.offset_d != 0)
    if not quantized.cluster:
        return replace(row, data=data)
    steps = len(quantized.cluster)
    return replace(row, data=data, weight=replace(row.weight, algorithm="nuq", num_steps=steps, num_of_iteration=1))


__all__ = ["Exported", "given_config_text"]
