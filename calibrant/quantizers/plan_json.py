"""A plan as AMCT's config.json: every value written out, as AMCT's create_quant_config does."""

from calibrant.proto.json_config import JsonActivation, JsonConfig, JsonLayer, JsonTensor, JsonWeight
from calibrant.proto.json_config import WeightAlgorithm as JsonAlgorithm
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_plan import LayerPlan, Plan
from calibrant.quantizers.part_plans import DataPlan, WeightPlan


def json_config(config: QuantConfig, plan: Plan, *, batch_num: int | None = None) -> JsonConfig:
    """Return the configuration that writes every value of the plan out, as AMCT's create_quant_config does.

    Skipped layers stay with ``quant_enable`` false and their values; layers that cannot be quantized are left out.

    Args:
        config: what the plan was resolved from.
        plan: the decisions.
        batch_num: batches to write where the configuration names none; 1, AMCT's default, where this is None as well.
    """
    batches = next((number for number in (config.batch_num, batch_num) if number is not None), 1)
    return JsonConfig(
        batch_num=batches,
        activation_offset=config.activation_offset,
        joint_quant=config.joint_quant,
        do_fusion=config.do_fusion,
        skip_fusion_layers=config.skip_fusion_layers,
        layers={row.layer: _json_layer(row) for row in plan.rows if row.enabled_decided_by != "layer"},
        tensor_quantize=tuple(
            JsonTensor(one.layer, one.input_index, _json_activation(one.data)) for one in plan.tensors
        ),
        weight_offset=config.weight_offset,
        fakequant_precision_mode=config.fakequant_precision_mode,
    )


def _json_layer(row: LayerPlan) -> JsonLayer:
    return JsonLayer(row.enabled, _json_activation(row.data), _json_weight(row.weight), row.migration_strength)


def _json_activation(data: DataPlan) -> JsonActivation:
    return JsonActivation(
        act_algo=None if data.algorithm == "ulq" else data.algorithm,  # a trained range has a file of its own
        asymmetric=data.asymmetric,
        num_bits=data.bits,
        max_percentile=data.max_percentile,
        min_percentile=data.min_percentile,
        search_range=data.search_range,
        search_step=data.search_step,
        num_of_bins=data.num_of_bins,
    )


def _json_weight(weight: WeightPlan) -> JsonWeight:
    if (ada := weight.ada) is not None:
        return JsonWeight(
            weight.channel_wise,
            weight.bits,
            "ada_quantize",
            num_iteration=ada.num_iteration,
            reg_param=ada.reg_param,
            beta_range=(ada.beta_range_start, ada.beta_range_end),
            warm_start=ada.warm_start,
        )
    algorithm: JsonAlgorithm = "nuq_quantize" if weight.algorithm == "nuq" else "arq_quantize"
    return JsonWeight(weight.channel_wise, weight.bits, algorithm, weight.num_steps, weight.num_of_iteration)
