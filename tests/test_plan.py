"""The plan: which rule decides each value of each layer, and what is said where a setting cannot hold."""

from collections.abc import Mapping

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.json_config import format_json_config
from calibrant.proto.simple_config import (
    ArqSettings,
    CalibrationBlock,
    HfmgSettings,
    IfmrSettings,
    QuantConfig,
    parse_simple_config,
)
from calibrant.quantizers.options import ArqOptions, HfmgOptions, IfmrOptions
from calibrant.quantizers.plan import DataPlan, LayerPlan, Plan, WeightPlan, json_config, resolve_plan
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import SCHEMAS, LayerRow

KERNEL_RANK = {"Conv": 2, "ConvTranspose": 2, "AveragePool": 2}


def layer(name: str, op_type: str = "Conv", *, kernel_rank: int | None = None, reason: str | None = None) -> LayerRow:
    rank = KERNEL_RANK.get(op_type, 0) if kernel_rank is None else kernel_rank
    return LayerRow(0, name, op_type, 0, "w", "b", 8, 4, 1, rank, None, 10, reason is None, reason)


LAYERS = [
    layer("conv1"),
    layer("conv2"),
    layer("up", "ConvTranspose"),
    layer("fc", "Gemm"),
    layer("proj", "MatMul"),
    layer("pool", "AveragePool"),
]


def resolve(text: str, layers: list[LayerRow] = LAYERS, **more: Mapping[str, ModelNode]) -> Plan:
    return resolve_plan(parse_simple_config(text, "quant.cfg"), layers, **more)


def row(plan: Plan, name: str) -> LayerPlan:
    return next(one for one in plan.rows if one.layer == name)


def messages(plan: Plan, severity: str) -> list[str]:
    return [event.message for event in plan.events if event.severity == severity]


NOT_APPLIED = "is read but not applied in this version"
FIRST = "'conv1', 'conv2', 'up'"
IFMR = DataPlan("ifmr", 8, True, 0.999999, 0.999999, (0.7, 1.3), 0.01)


# Defaults


def test_without_a_configuration_amcts_defaults_hold() -> None:
    plan = resolve_plan(QuantConfig(), LAYERS)
    assert plan.events == ()
    assert [one.layer for one in plan.enabled] == [one.layer for one in LAYERS]
    assert {one.data for one in plan.rows} == {IFMR}
    weights = {one.layer: one.weight for one in plan.rows}
    assert weights == {
        "conv1": WeightPlan("arq", 8, True),
        "conv2": WeightPlan("arq", 8, True),
        "up": WeightPlan("arq", 8, True),
        "fc": WeightPlan("arq", 8, False),
        "proj": WeightPlan("arq", 8, False),
        "pool": WeightPlan("none", 8, False),
    }
    decided = {
        (one.enabled_decided_by, one.data_decided_by, one.asymmetric_decided_by, one.weight_decided_by)
        for one in plan.rows
    }
    assert decided == {("default", "default", "activation_offset", "default")}


def test_plans_give_the_options_of_the_fits() -> None:
    assert IFMR.options() == IfmrOptions()
    assert DataPlan("ifmr", 8, False, 0.9, 0.8, (0.5, 2.0), 0.1).options() == IfmrOptions(
        8, False, 0.9, 0.8, (0.5, 2.0), 0.1
    )
    assert DataPlan("hfmg", 8, False, num_of_bins=1024).options() == HfmgOptions(8, False, 1024)
    assert WeightPlan("arq", 7, False).options() == ArqOptions(7, False)


# Precedence

LEVELS = """
common_config { arq_quantize { channel_wise: false } ifmr_quantize { search_step: 0.02 } }
override_layer_types { layer_type: "Conv" calibration_config {
  arq_quantize { channel_wise: true } ifmr_quantize { search_step: 0.03 } } }
override_layer_configs { layer_name: "conv2" calibration_config {
  arq_quantize { channel_wise: false } hfmg_quantize { num_of_bins: 1024 } } }
"""


def test_layer_beats_type_beats_common() -> None:
    plan = resolve(LEVELS)
    by_layer, by_type, by_common = row(plan, "conv2"), row(plan, "conv1"), row(plan, "up")
    assert (by_layer.data.algorithm, by_layer.data.num_of_bins, by_layer.weight.channel_wise) == ("hfmg", 1024, False)
    assert (by_type.data.search_step, by_type.weight.channel_wise) == (0.03, True)
    assert (by_common.data.search_step, by_common.weight.channel_wise) == (0.02, False)
    for one, rule in (
        (by_layer, 'override_layer_configs "conv2"'),
        (by_type, 'override_layer_types "Conv"'),
        (by_common, "common_config"),
    ):
        assert (one.data_decided_by, one.weight_decided_by) == (rule, rule)
    assert plan.events == ()


def test_the_winning_block_is_taken_whole() -> None:
    text = """
    common_config { arq_quantize { channel_wise: false } ifmr_quantize { search_step: 0.05 } }
    override_layer_types { layer_type: "Conv" calibration_config { ifmr_quantize { max_percentile: 0.9 } } }
    override_layer_configs { layer_name: "conv2" calibration_config { arq_quantize { channel_wise: false } } }
    """
    plan = resolve(text)
    conv1, conv2 = row(plan, "conv1"), row(plan, "conv2")
    assert conv1.weight == WeightPlan("arq", 8, True)  # not common's false
    assert conv1.weight_decided_by == "default"
    assert (conv1.data.max_percentile, conv1.data.search_step) == (0.9, 0.01)  # not common's 0.05
    assert conv2.data == IFMR
    assert conv2.data_decided_by == "default"
    said = messages(plan, "info")
    assert said == [
        "quant.cfg:3:28: override_layer_types 'Conv' says nothing about the weight: the defaults apply, not common_config",
        "quant.cfg:4:30: override_layer_configs 'conv2' says nothing about the data: the defaults apply, not override_layer_types \"Conv\"",
    ]


def test_layer_override_that_omits_what_its_type_says_is_told_so() -> None:
    types = override("type", "arq_quantize { channel_wise: false } ifmr_quantize { }")
    plan = resolve("common_config { arq_quantize { } }\n" + types + override("layer", "ifmr_quantize { }"))
    assert row(plan, "conv1").weight.channel_wise
    assert messages(plan, "info")[0].endswith(
        "override_layer_configs 'conv1' says nothing about the weight: the defaults apply, not override_layer_types \"Conv\""
    )


def test_override_of_a_pool_need_not_speak_of_weights() -> None:
    text = "common_config { arq_quantize { } } "
    text += 'override_layer_types { layer_type: "AveragePool" calibration_config { ifmr_quantize { } } }'
    assert resolve(text).events == ()


def test_present_block_fills_its_blanks_from_the_defaults() -> None:
    plan = resolve("common_config { ifmr_quantize { search_range_end: 1.5 } }")
    assert row(plan, "conv1").data == DataPlan("ifmr", 8, True, 0.999999, 0.999999, (0.7, 1.5), 0.01)
    assert row(plan, "conv1").data_decided_by == "common_config"


def test_common_without_a_data_algorithm_means_ifmr() -> None:
    plan = resolve("common_config { arq_quantize { } }")
    assert row(plan, "conv1").data == IFMR
    assert row(plan, "conv1").data_decided_by == "default"
    assert row(plan, "conv1").weight_decided_by == "common_config"


def override(level: str, data: str) -> str:
    if level == "layer":
        return f'override_layer_configs {{ layer_name: "conv1" calibration_config {{ {data} }} }}'
    return f'override_layer_types {{ layer_type: "Conv" calibration_config {{ {data} }} }}'


ASYMMETRIC = {
    "activation_offset": ("activation_offset: false", False, "activation_offset"),
    "common over activation_offset": (
        "activation_offset: true common_config { ifmr_quantize { asymmetric: false } }",
        False,
        "common_config",
    ),
    "common silent": ("activation_offset: false common_config { ifmr_quantize { } }", False, "activation_offset"),
    "type over common": (
        "common_config { ifmr_quantize { asymmetric: true } }"
        + override("type", "ifmr_quantize { asymmetric: false }"),
        False,
        'override_layer_types "Conv"',
    ),
    "layer over type": (
        override("type", "ifmr_quantize { asymmetric: true }")
        + override("layer", "ifmr_quantize { asymmetric: false }"),
        False,
        'override_layer_configs "conv1"',
    ),
    "silent layer takes common's, not the type's": (
        "common_config { ifmr_quantize { asymmetric: false } }"
        + override("type", "ifmr_quantize { asymmetric: true }")
        + override("layer", "ifmr_quantize { }"),
        False,
        "common_config",
    ),
    "HFMG under HFMG common": (
        "common_config { hfmg_quantize { asymmetric: false } }" + override("layer", "hfmg_quantize { }"),
        False,
        "common_config",
    ),
    "HFMG under IFMR common falls through": (
        "common_config { ifmr_quantize { asymmetric: false } }" + override("layer", "hfmg_quantize { }"),
        True,
        "activation_offset",
    ),
    "IFMR under HFMG common falls through": (
        "activation_offset: true common_config { hfmg_quantize { asymmetric: false } }"
        + override("layer", "ifmr_quantize { }"),
        True,
        "activation_offset",
    ),
    "override without data is IFMR and takes IFMR common's": (
        "common_config { ifmr_quantize { asymmetric: false } }" + override("layer", "arq_quantize { }"),
        False,
        "common_config",
    ),
}


@pytest.mark.parametrize(("text", "value", "rule"), ASYMMETRIC.values(), ids=ASYMMETRIC)
def test_asymmetric_has_a_chain_of_its_own(text: str, value: bool, rule: str) -> None:
    found = row(resolve(text), "conv1")
    assert (found.data.asymmetric, found.asymmetric_decided_by) == (value, rule)


# What a layer cannot have


@pytest.mark.parametrize(
    ("text", "severity", "said"),
    [
        ("", "info", "configuration: activation_offset"),
        ("activation_offset: true", "info", "quant.cfg:1:1: activation_offset"),
        ("common_config { ifmr_quantize { asymmetric: true } }", "info", "quant.cfg:1:33: common_config"),
        (override("type", "ifmr_quantize { asymmetric: true }"), "warn", 'quant.cfg:1:80: override_layer_types "Conv"'),
    ],
)
def test_three_dimensional_kernels_are_symmetric(text: str, severity: str, said: str) -> None:
    config = parse_simple_config(text, "quant.cfg") if text else QuantConfig()
    plan = resolve_plan(config, [layer("conv1", kernel_rank=3), layer("flat")])
    assert (row(plan, "conv1").data.asymmetric, row(plan, "conv1").asymmetric_decided_by) == (False, "layer")
    assert row(plan, "flat").data.asymmetric
    assert messages(plan, severity) == [f"{said}: asymmetric data is impossible with 3-D kernels (1 layer): symmetric"]


def test_three_dimensional_kernel_asked_to_be_asymmetric_by_name_is_an_error() -> None:
    text = override("layer", "\nhfmg_quantize { asymmetric: true }")
    with pytest.raises(
        ConfigError, match=r"quant\.cfg:2:17: asymmetric: true for 'conv1', but with a 3-D kernel it can only be"
    ):
        resolve(text, [layer("conv1", kernel_rank=3)])
    plan = resolve('skip_layers: "conv1"\n' + text, [layer("conv1", kernel_rank=3), layer("conv2")])
    assert not row(plan, "conv1").enabled


def test_channel_wise_in_common_falls_to_per_tensor_where_it_must() -> None:
    plan = resolve("common_config { arq_quantize { channel_wise: true } }", [*LAYERS, layer("fc2", "Gemm")])
    assert {one.layer: one.weight.channel_wise for one in plan.rows} == {
        "conv1": True, "conv2": True, "up": True, "fc": False, "proj": False, "pool": False, "fc2": False,
    }  # fmt: skip
    where = "quant.cfg:1:32: common_config: channel_wise: true has no effect on"
    assert messages(plan, "info") == [
        f"{where} Gemm (2 layers): one scale for the whole tensor",
        f"{where} MatMul (1 layer): one scale for the whole tensor",
        f"{where} AveragePool (1 layer): one scale for the whole tensor",
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('override_layer_configs { layer_name: "fc" calibration_config {\n', 'override_layer_configs "fc"'),
        ('override_layer_types { layer_type: "Gemm" calibration_config {\n', 'override_layer_types "Gemm"'),
        (
            'override_layer_types { layer_type: "AveragePool" calibration_config {\n',
            'override_layer_types "AveragePool"',
        ),
    ],
)
def test_channel_wise_in_an_override_of_such_a_layer_is_an_error(text: str, rule: str) -> None:
    text += "arq_quantize { channel_wise: true } } }"
    with pytest.raises(
        ConfigError, match=rf"2:16: {rule}: channel_wise is true, but only Conv and ConvTranspose can have it"
    ):
        resolve(text)
    assert not row(resolve('skip_layers: ["fc", "pool"]\n' + text), "fc").enabled


def test_channel_wise_of_skipped_layers_is_not_mentioned() -> None:
    text = 'skip_layer_types: ["Gemm", "MatMul", "AveragePool"] common_config { arq_quantize { channel_wise: true } }'
    assert resolve(text).events == ()


@pytest.mark.parametrize("bits", [6, 7])
def test_narrow_weights_in_common_hold_for_two_dimensional_conv_alone(bits: int) -> None:
    layers = [*LAYERS, layer("volume", kernel_rank=3), layer("line", kernel_rank=1)]
    plan = resolve(f"activation_offset: false common_config {{ arq_quantize {{ quant_bits: {bits} }} }}", layers)
    assert {one.layer: one.weight.bits for one in plan.rows} == {
        "conv1": bits, "conv2": bits, "up": 8, "fc": 8, "proj": 8, "pool": 8, "volume": 8, "line": 8,
    }  # fmt: skip
    where = f"quant.cfg:1:57: common_config: quant_bits: {bits} has no effect on"
    kinds = ["ConvTranspose", "Gemm", "MatMul", "AveragePool", "Conv with a 3-D kernel", "Conv with a 1-D kernel"]
    assert messages(plan, "warn") == [f"{where} {kind} (1 layer): 8 bits" for kind in kinds]


def test_narrow_weights_for_type_conv_leave_other_kernels_at_eight_bits() -> None:
    plan = resolve(override("type", "arq_quantize { quant_bits: 7 }"), [layer("conv1"), layer("line", kernel_rank=1)])
    assert [one.weight.bits for one in plan.rows] == [7, 8]
    assert messages(plan, "warn")[0].endswith("quant_bits: 7 has no effect on Conv with a 1-D kernel (1 layer): 8 bits")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            'override_layer_types { layer_type: "Gemm" calibration_config { arq_quantize { quant_bits: 6 } } }',
            'override_layer_types "Gemm"',
        ),
        (
            'override_layer_configs { layer_name: "fc" calibration_config { arq_quantize { quant_bits: 6 } } }',
            'override_layer_configs "fc"',
        ),
        (
            'override_layer_configs { layer_name: "up" calibration_config { arq_quantize { quant_bits: 6 } } }',
            'override_layer_configs "up"',
        ),
    ],
)
def test_narrow_weights_in_an_override_of_another_layer_are_an_error(text: str, rule: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"quant\.cfg:1:79: {rule}: quant_bits is 6, but only a Conv with a 2-D kernel can have 6 or 7; use 8",
    ):
        resolve(text)


def test_four_bit_weights_and_wide_data_are_applied() -> None:
    plan = resolve("common_config { arq_quantize { quant_bits: 4 } ifmr_quantize { dst_type: INT16 } }")
    assert {one.layer: (one.data.bits, one.weight.bits) for one in plan.rows} == {
        "conv1": (16, 4), "conv2": (16, 4), "up": (16, 4), "fc": (16, 4), "proj": (8, 4), "pool": (8, 8),
    }  # fmt: skip
    assert [one.applied.weight.bits for one in plan.rows] == [4, 4, 4, 4, 4, 8]
    assert [one.applied.data.bits for one in plan.rows] == [16, 16, 16, 16, 8, 8]
    assert not any("quant_bits: 4" in text and NOT_APPLIED in text for text in messages(plan, "warn"))


# Skipping


def test_skip_layers_and_types() -> None:
    plan = resolve('skip_layers: "conv1"\nskip_layer_types: "Gemm"')
    conv1, fc = row(plan, "conv1"), row(plan, "fc")
    assert (conv1.enabled, conv1.enabled_decided_by, conv1.reason) == (
        False,
        "skip_layers",
        "named in skip_layers (quant.cfg:1:1)",
    )
    assert (fc.enabled, fc.enabled_decided_by) == (False, 'skip_layer_types "Gemm"')
    assert fc.reason == "its type is named in skip_layer_types (quant.cfg:2:1)"
    assert [one.layer for one in plan.enabled] == ["conv2", "up", "proj", "pool"]
    assert plan.events == ()


def test_skip_wins_over_an_override_and_keeps_its_numbers() -> None:
    text = 'skip_layers: "conv1"\n' + override("layer", "hfmg_quantize { }") + '\nskip_layer_types: "Gemm"\n'
    text += 'override_layer_types { layer_type: "Gemm" calibration_config { hfmg_quantize { } } }'
    plan = resolve(text)
    assert not row(plan, "conv1").enabled
    assert row(plan, "conv1").data.algorithm == "hfmg"
    assert messages(plan, "warn") == [
        "quant.cfg:2:26: override_layer_configs 'conv1' is inert: skip_layers wins over it",
        "quant.cfg:4:24: override_layer_types 'Gemm' is inert: skip_layer_types \"Gemm\" wins over it",
    ]


def test_refused_layers_stay_in_the_plan_with_their_reason() -> None:
    layers = [
        layer("conv1"),
        layer("inner", reason="lies inside If 'if_0'"),
        layer("gap", "GlobalAveragePool", reason="global"),
    ]
    plan = resolve_plan(QuantConfig(), layers)
    inner = row(plan, "inner")
    assert (inner.enabled, inner.enabled_decided_by, inner.reason) == (False, "layer", "lies inside If 'if_0'")
    assert plan.events == ()


def test_naming_a_refused_layer_is_a_warning_with_its_reason() -> None:
    layers = [layer("conv1"), layer("inner", reason="lies inside If 'if_0'")]
    skipped = resolve('skip_layers: "inner"', layers)
    assert messages(skipped, "warn") == [
        "quant.cfg:1:1: skip_layers 'inner' changes nothing: not quantized anyway: lies inside If 'if_0'"
    ]
    text = 'override_layer_configs { layer_name: "inner" calibration_config { } }'
    assert messages(resolve(text, layers), "warn") == [
        "quant.cfg:1:26: override_layer_configs 'inner' changes nothing: not quantized: lies inside If 'if_0'"
    ]
    assert resolve(text, layers).events[0].layer == "inner"


def test_override_of_another_node_of_the_model_is_a_warning() -> None:
    text = 'override_layer_configs { layer_name: "relu" calibration_config { } }'
    said = messages(resolve(text, other_nodes={"relu": ModelNode("Relu")}), "warn")
    assert said == [
        "quant.cfg:1:26: override_layer_configs 'relu' changes nothing: a node of this type is never quantized"
    ]


UNKNOWN = {
    "skipped layer": (
        '\nskip_layers: "conv3"',
        r"2:1: skip_layers names 'conv3', but the model has no such layer; did you mean 'conv2'\?",
    ),
    "skipped layer unlike any": (
        'skip_layers: "?"',
        r"1:1: skip_layers names '\?', .*; its layers are conv1, conv2, up …",
    ),
    "overridden layer": (
        'override_layer_configs {\n layer_name: "con1" calibration_config { } }',
        r"2:2: override_layer_configs names 'con1', but the model has no such layer; did you mean 'conv1'\?",
    ),
    "skipped type": (
        'skip_layer_types: "Gem"',
        r"1:1: skip_layer_types: 'Gem' is no layer type .*; did you mean 'Gemm'\?",
    ),
    "type of another framework": (
        'skip_layer_types: ["Conv2D", "Conv2d"]',
        "1:30: skip_layer_types: 'Conv2d' is no layer type of the atc dialect, but one of pytorch",
    ),
    "overridden type": (
        'override_layer_types { layer_type: "Convv" calibration_config { } }',
        r"1:24: override_layer_types: 'Convv' is .*; did you mean 'Conv'\?",
    ),
    "type without a name": (
        'override_layer_types { layer_type: "" calibration_config { } }',
        "1:24: override_layer_types: '' is no layer type",
    ),
    "tensor type": (
        'skip_layer_types: "MaxPool"',
        "1:1: skip_layer_types names 'MaxPool', of which only inputs can be quantized",
    ),
}


@pytest.mark.parametrize(("text", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_names_are_errors_with_the_nearest(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^quant\.cfg:{words}"):
        resolve(text)


def test_skipping_a_node_that_is_never_quantized_is_an_error() -> None:
    layers = [layer("conv1"), layer("gap", "GlobalAveragePool", reason="global")]
    with pytest.raises(
        ConfigError, match="skip_layers names 'gap', but a GlobalAveragePool is never quantized; delete it"
    ):
        resolve('skip_layers: "gap"', layers)
    with pytest.raises(
        ConfigError, match="skip_layers names 'relu', but a node of its type is never quantized; delete it"
    ):
        resolve('skip_layers: "relu"', layers, other_nodes={"relu": ModelNode("Relu")})


def test_type_that_the_model_lacks_is_a_warning() -> None:
    plan = resolve('skip_layer_types: "Gemm"', [layer("conv1")])
    assert messages(plan, "warn") == ["quant.cfg:1:1: skip_layer_types 'Gemm': the model has no layer of this type"]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"quant\.cfg: skip_layers and skip_layer_types skip all 2 layers"):
        resolve('skip_layers: "conv1" skip_layer_types: "Gemm"', [layer("conv1"), layer("fc", "Gemm")])
    with pytest.raises(ConfigError, match=r"the model has no layer that can be quantized \('inner': lies inside If\)"):
        resolve_plan(QuantConfig(), [layer("inner", reason="lies inside If")])


def test_layer_named_like_a_key_of_the_json_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match="layer 'batch_num' has the name of a key"):
        resolve_plan(QuantConfig(), [layer("batch_num")])


def test_notes_of_the_file_become_events() -> None:
    plan = resolve("batch_num: 1 batch_num: 2")
    assert [(one.stage, one.severity) for one in plan.events] == [("fit", "warn")]
    assert plan.events[0].message.startswith("quant.cfg:1:14: batch_num is given 2 times")


# Tables and files


def test_plan_table_has_one_row_a_layer() -> None:
    frame = resolve(LEVELS).frame("default")
    assert frame.schema == SCHEMAS["plan"]
    assert frame["layer"].to_list() == [one.layer for one in LAYERS]
    assert {name: value for name, value in frame.row(1, named=True).items() if value is not None} == {
        "fit": "default", "layer_id": 0, "layer": "conv2", "op_type": "Conv", "enabled": True, "do_fusion": True,
        "data_algorithm": "hfmg", "data_bits": 8, "asymmetric": True, "num_of_bins": 1024, "float16_step": False, "weight_algorithm": "arq",
        "weight_bits": 8, "channel_wise": False, "weight_asymmetric": False, "weight_only": False,
        "enabled_decided_by": "default", "weight_asymmetric_decided_by": "default", "weight_only_decided_by": "default",
        "balancer_decided_by": "default", "fusion_decided_by": "default",
        "data_decided_by": 'override_layer_configs "conv2"', "asymmetric_decided_by": "activation_offset",
        "weight_decided_by": 'override_layer_configs "conv2"',
    }  # fmt: skip
    assert Plan((), ()).frame("x").schema == SCHEMAS["plan"]


def test_json_configuration_writes_the_plan_out() -> None:
    text = 'batch_num: 3 skip_layers: "fc" skip_fusion_layers: "conv1"' + override("layer", "hfmg_quantize { }")
    config = parse_simple_config(text)
    layers = [layer("conv1"), layer("fc", "Gemm"), layer("inner", reason="lies inside If")]
    plan = resolve_plan(config, layers)
    written = json_config(config, plan)
    assert (written.batch_num, written.skip_fusion_layers) == (3, ("conv1",))
    assert {name: one.quant_enable for name, one in written.layers.items()} == {"conv1": True, "fc": False}
    assert written.layers["conv1"].activation.num_of_bins == 4096
    assert written.layers["fc"].activation.search_range == (0.7, 1.3)
    assert '"act_algo":"hfmg"' in format_json_config(written)


def test_json_batch_num_is_the_configurations_then_the_callers_then_one() -> None:
    plan = resolve_plan(QuantConfig(), LAYERS)
    assert json_config(QuantConfig(), plan).batch_num == 1
    assert json_config(QuantConfig(), plan, batch_num=5).batch_num == 5
    assert json_config(QuantConfig(batch_num=2), plan, batch_num=5).batch_num == 2


def test_configuration_built_in_python_resolves_like_the_text() -> None:
    block = CalibrationBlock(hfmg=HfmgSettings(2048, asymmetric=False), arq=ArqSettings(channel_wise=False))
    built = QuantConfig(
        common=CalibrationBlock(ifmr=IfmrSettings(search_step=0.02)), override_layers=(("conv1", block),)
    )
    text = "common_config { ifmr_quantize { search_step: 0.02 } }" + override(
        "layer", "hfmg_quantize { num_of_bins: 2048 asymmetric: false } arq_quantize { channel_wise: false }"
    )
    assert resolve_plan(built, LAYERS).rows == resolve(text).rows
