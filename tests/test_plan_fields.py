"""Every field of AMCT's two tables of the simple configuration, set once and seen in the plan, in an event or in the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import polars as pl
import pytest
from onnx import numpy_helper
from shared_material import SHARED, needs_shared

import calibrant
from calibrant.errors import ConfigError
from calibrant.pipeline import plan as plan_of_model
from calibrant.proto.json_config import parse_json_config
from calibrant.proto.layerwise import layerwise_config
from calibrant.proto.nuq_mapping import find_mapping, read_mapping
from calibrant.proto.settings import CalibrationBlock, DmqSettings, IfmrSettings, NuqSettings, TensorSettings
from calibrant.proto.simple_config import QuantConfig, parse_simple_config
from calibrant.quantizers.layerwise import named_config
from calibrant.quantizers.plan import Plan, json_config, resolve_plan
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

KERNEL_RANK = {"Conv": 2, "ConvTranspose": 2, "AveragePool": 2}
NOT_APPLIED = "is read but not applied in this version"


def layer(name: str, op_type: str = "Conv", **changes: Any) -> LayerRow:
    facts = {
        "layer_id": 0, "layer": name, "op_type": op_type, "tensor_id": 0, "weight": "w", "bias": "b", "channels_out": 8,
        "channels_in": 4, "groups": 1, "kernel_rank": KERNEL_RANK.get(op_type, 0), "macs": None, "parameters": 10,
        "quantizable": True, "reason": None,
    }  # fmt: skip
    return LayerRow(**{**facts, **changes})


LAYERS = [
    layer("conv"),
    layer("conv2"),
    layer("depth", groups=4),
    layer("volume", kernel_rank=3),
    layer("up", "ConvTranspose"),
    layer("fc", "Gemm"),
    layer("proj", "MatMul"),
    layer("pool", "AveragePool"),
]
NODES = {
    "conv": ModelNode("Conv", 3, frozenset({1, 2})),
    "conv2": ModelNode("Conv", 3, frozenset({1, 2}), dilated=True),
    "maxpool": ModelNode("MaxPool"),
    "add": ModelNode("Add", 2),
    "add_constant": ModelNode("Add", 2, frozenset({1})),
    "mul": ModelNode("Mul", 2),
    "relu": ModelNode("Relu"),
}


def resolve(text: str) -> Plan:
    return resolve_plan(parse_simple_config(text, "quant.cfg"), LAYERS, other_nodes=NODES)


def cells(plan: Plan, name: str) -> dict[str, Any]:
    return plan.frame("default").filter(layer=name).row(0, named=True)


def warnings(plan: Plan) -> list[str]:
    return [event.message for event in plan.events if event.severity == "warn"]


def common(text: str) -> str:
    return f"common_config {{ {text} }}"


def of_layer(name: str, text: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}" calibration_config {{ {text} }} }}'


def of_type(name: str, text: str) -> str:
    return f'override_layer_types {{ layer_type: "{name}" calibration_config {{ {text} }} }}'


def tensor(name: str = "maxpool", index: int = 0, text: str = "") -> str:
    return f'tensor_quantize {{ layer_name: "{name}" input_index: {index} {text} }}'


SHOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "batch_num": ("batch_num: 3", "conv", {"batch_num": 3}),
    "activation_offset": (
        "activation_offset: false",
        "conv",
        {"asymmetric": False, "asymmetric_decided_by": "activation_offset"},
    ),
    "skip_layers": ('skip_layers: "conv"', "conv", {"enabled": False, "enabled_decided_by": "skip_layers"}),
    "skip_layer_types": (
        'skip_layer_types: "Gemm"',
        "fc",
        {"enabled": False, "enabled_decided_by": 'skip_layer_types "Gemm"'},
    ),
    "do_fusion": ("do_fusion: false", "conv", {"do_fusion": False, "fusion_decided_by": "do_fusion"}),
    "skip_fusion_layers": (
        'skip_fusion_layers: "conv"',
        "conv",
        {"do_fusion": False, "fusion_decided_by": "skip_fusion_layers"},
    ),
    "common_config": (common("ifmr_quantize { }"), "fc", {"data_decided_by": "common_config"}),
    "layer_type": (of_type("Gemm", "hfmg_quantize { }"), "fc", {"data_decided_by": 'override_layer_types "Gemm"'}),
    "layer_name": (of_layer("fc", "hfmg_quantize { }"), "fc", {"data_decided_by": 'override_layer_configs "fc"'}),
    "nuq_config": (
        "nuq_config { }",
        "conv",
        {"weight_algorithm": "nuq", "weight_decided_by": "nuq_config", "not_applied": None},
    ),
    "nuq_config.nuq_quantize": (
        "nuq_config { nuq_quantize { num_steps: 16 num_of_iteration: 3 } }",
        "fc",
        {"num_steps": 16, "num_of_iteration": 3},
    ),
    "nuq_quantize": (
        common("nuq_quantize { num_steps: 16 }"),
        "proj",
        {"weight_algorithm": "nuq", "num_steps": 16, "num_of_iteration": 1, "weight_decided_by": "common_config"},
    ),
    "ada_quantize": (
        common("ada_quantize { num_iteration: 5 }"),
        "conv",
        {"weight_algorithm": "ada", "weight_bits": 8},
    ),
    "channel_wise": (
        common("arq_quantize { channel_wise: false }"),
        "conv",
        {"channel_wise": False, "weight_decided_by": "common_config"},
    ),
    "quant_bits 7": (
        of_layer("conv", "arq_quantize { quant_bits: 7 }"),
        "conv",
        {"weight_bits": 7, "not_applied": None},
    ),
    "quant_bits 4": (
        of_layer("conv", "arq_quantize { quant_bits: 4 }"),
        "conv",
        {"weight_bits": 4, "not_applied": None},
    ),
    "weight asymmetric": (
        common("weight_compress_only: true arq_quantize { asymmetric: true }"),
        "fc",
        {"weight_asymmetric": True, "weight_asymmetric_decided_by": "common_config"},
    ),
    "weight_compress_only": (
        of_type("Gemm", "weight_compress_only: true"),
        "fc",
        {
            "weight_only": True,
            "weight_only_decided_by": 'override_layer_types "Gemm"',
            "not_applied": None,
        },
    ),
    "search_range_start": (common("ifmr_quantize { search_range_start: 0.6 }"), "fc", {"search_range_start": 0.6}),
    "search_range_end": (common("ifmr_quantize { search_range_end: 1.5 }"), "fc", {"search_range_end": 1.5}),
    "search_step": (common("ifmr_quantize { search_step: 0.02 }"), "fc", {"search_step": 0.02}),
    "max_percentile": (common("ifmr_quantize { max_percentile: 0.9 }"), "fc", {"max_percentile": 0.9}),
    "min_percentile": (common("ifmr_quantize { min_percentile: 0.8 }"), "fc", {"min_percentile": 0.8}),
    "IFMR asymmetric": (
        common("ifmr_quantize { asymmetric: false }"),
        "fc",
        {"asymmetric": False, "asymmetric_decided_by": "common_config"},
    ),
    "IFMR dst_type": (
        common("ifmr_quantize { dst_type: INT16 }"),
        "fc",
        {"data_bits": 16, "not_applied": None},
    ),
    "num_of_bins": (
        common("hfmg_quantize { num_of_bins: 2048 }"),
        "fc",
        {"data_algorithm": "hfmg", "num_of_bins": 2048},
    ),
    "HFMG asymmetric": (common("hfmg_quantize { asymmetric: false }"), "fc", {"asymmetric": False}),
    "HFMG dst_type": (common("hfmg_quantize { dst_type: INT16 }"), "conv", {"data_bits": 16}),
    "migration_strength": (
        of_layer("fc", "dmq_balancer { migration_strength: 0.3 }"),
        "fc",
        {
            "migration_strength": 0.3,
            "balancer_decided_by": 'override_layer_configs "fc"',
            "not_applied": None,
        },
    ),
    "dmq_balancer": (common("dmq_balancer { }"), "conv", {"migration_strength": 0.5}),
    "tensor_quantize": (
        tensor(),
        "maxpool",
        {
            "layer_id": None,
            "op_type": "MaxPool",
            "tensor_index": 0,
            "data_algorithm": "ifmr",
            "data_decided_by": "default",
            "asymmetric": True,
            "asymmetric_decided_by": "activation_offset",
            "enabled": True,
            "not_applied": None,
            "weight_bits": None,
        },
    ),
    "tensor_quantize IFMR": (
        tensor("add", 1, "ifmr_quantize { search_step: 0.02 asymmetric: false }"),
        "add",
        {"tensor_index": 1, "search_step": 0.02, "asymmetric": False, "asymmetric_decided_by": "tensor_quantize"},
    ),
    "tensor_quantize HFMG": (
        common("hfmg_quantize { asymmetric: false }") + tensor("add", 0, "hfmg_quantize { num_of_bins: 1024 }"),
        "add",
        {"num_of_bins": 1024, "asymmetric": False, "asymmetric_decided_by": "common_config"},
    ),
}


@pytest.mark.parametrize(("text", "name", "expected"), SHOWN.values(), ids=SHOWN)
def test_field_is_seen_in_the_plan(text: str, name: str, expected: dict[str, Any]) -> None:
    found, before = cells(resolve(text), name), resolve_plan(QuantConfig(), LAYERS, other_nodes=NODES).frame("default")
    assert {column: found[column] for column in expected} == expected
    assert found not in before.to_dicts()


TOLD = {
    "weight_offset": ("weight_offset: true", f"quant.cfg:1:1: weight_offset: true {NOT_APPLIED}: weights are"),
    "enable_auto_nuq": ("enable_auto_nuq: true", f"quant.cfg:1:1: enable_auto_nuq: true {NOT_APPLIED}: no layer"),
    "ada_quantize": (
        of_layer("conv", "\nada_quantize { }"),
        f"quant.cfg:2:1: ada_quantize {NOT_APPLIED}: ARQ quantizes the weights to 8 bits (1 layer: 'conv')",
    ),
}


@pytest.mark.parametrize(("text", "words"), TOLD.values(), ids=TOLD)
def test_what_is_not_applied_is_told_once_a_feature(text: str, words: str) -> None:
    told = [message for message in warnings(resolve(text)) if NOT_APPLIED in message]
    assert len(told) == 1
    assert told[0].startswith(words)


def test_what_no_quantized_layer_asks_for_is_not_told() -> None:
    plan = resolve('skip_layers: "conv"' + of_layer("conv", "dmq_balancer { } nuq_quantize { }"))
    assert not [message for message in warnings(plan) if NOT_APPLIED in message]


def test_the_applied_plan_has_nothing_that_is_not_applied() -> None:
    text = "weight_compress_only: true dmq_balancer { } arq_quantize { asymmetric: true quant_bits: 4 }"
    for one in resolve(common(text + "ifmr_quantize { dst_type: INT16 }") + of_layer("fc", "nuq_quantize { }")).rows:
        applied = one.applied
        assert applied.not_applied == ()
        assert applied.data.bits == one.data.bits
        assert applied.weight.algorithm in ("arq", "nuq", "none")
        assert (applied.weight.asymmetric, applied.weight_only) == (one.weight.asymmetric, one.weight_only)
        assert applied.migration_strength == one.migration_strength
    plain = resolve("").rows[0]
    assert plain.applied == plain


def test_version_has_one_value() -> None:
    assert resolve("version: 1").rows == resolve("").rows
    with pytest.raises(ConfigError, match=r"quant\.cfg:1:10: version is 2|quant\.cfg:1:1: version is 2"):
        resolve("version: 2")


# Nine changes of one field each change the plan of a model

CHANGES = {
    "quant_bits": common("arq_quantize { quant_bits: 7 }"),
    "num_of_bins": common("hfmg_quantize { num_of_bins: 2048 }"),
    "migration_strength": common("dmq_balancer { migration_strength: 0.3 }"),
    "do_fusion": "do_fusion: false",
    "skip_layer_types": 'skip_layer_types: "Gemm"',
    "max_percentile": common("ifmr_quantize { max_percentile: 0.99 }"),
    "search_step": common("ifmr_quantize { search_step: 0.05 }"),
    "asymmetric": common("ifmr_quantize { asymmetric: false }"),
    "channel_wise": common("arq_quantize { channel_wise: false }"),
}
BEFORE = {
    "num_of_bins": common("hfmg_quantize { }"),
    "migration_strength": common("dmq_balancer { }"),
    "max_percentile": common("ifmr_quantize { }"),
    "search_step": common("ifmr_quantize { }"),
    "asymmetric": common("ifmr_quantize { }"),
    "quant_bits": common("arq_quantize { }"),
    "channel_wise": common("arq_quantize { }"),
}


def chain() -> onnx.ModelProto:
    """x -> Conv 'conv' -> BatchNormalization 'bn' -> Relu 'relu' -> MaxPool 'maxpool' -> Flatten -> Gemm 'fc' -> y."""
    proto = models.conv_bn(4)
    nodes = [
        *proto.graph.node,
        models.node("MaxPool", ["y"], "p", "maxpool", kernel_shape=[6, 6]),
        models.node("Flatten", ["p"], "f", "flat"),
        models.node("Gemm", ["f", "fw"], "z", "fc"),
    ]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    outputs = [models.value("z", ["N", 5])]
    return models.model(nodes, list(proto.graph.input), outputs, {**weights, "fw": models.normal(4, 5)})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(chain(), tmp_path_factory.mktemp("plan") / "model.onnx")


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_one_field_changes_the_plan(field: str, model: Path) -> None:
    def csv(text: str) -> str:
        return plan_of_model(model, config=parse_simple_config(text))[0].write_csv()

    assert csv(CHANGES[field]) != csv(BEFORE.get(field, ""))


def test_plan_of_a_model_tells_each_note_once(model: Path) -> None:
    _, events = plan_of_model(model, config=parse_simple_config("batch_num: 1 batch_num: 2 joint_quant: true"))
    messages = [event.message for event in events]
    assert len([text for text in messages if "batch_num is given 2 times" in text]) == 1
    assert len([text for text in messages if "joint_quant" in text]) == 1


# The chain of weight asymmetric, and weights alone

ALONE = "weight_compress_only: true arq_quantize"
WEIGHT_ASYMMETRIC = {
    "default": (common("weight_compress_only: true"), False, "default"),
    "common": (common(f"{ALONE} {{ asymmetric: true }}"), True, "common_config"),
    "type over common": (
        common(f"{ALONE} {{ asymmetric: true }}") + of_type("Gemm", f"{ALONE} {{ asymmetric: false }}"),
        False,
        'override_layer_types "Gemm"',
    ),
    "layer over type": (
        of_type("Gemm", f"{ALONE} {{ asymmetric: false }}") + of_layer("fc", f"{ALONE} {{ asymmetric: true }}"),
        True,
        'override_layer_configs "fc"',
    ),
    "silent layer takes the type's": (
        common(f"{ALONE} {{ asymmetric: false }}")
        + of_type("Gemm", f"{ALONE} {{ asymmetric: true }}")
        + of_layer("fc", f"{ALONE} {{ }}"),
        True,
        'override_layer_types "Gemm"',
    ),
    "layer without weights alone": (
        common(f"{ALONE} {{ asymmetric: true }}") + of_layer("fc", "arq_quantize { }"),
        False,
        "default",
    ),
}


@pytest.mark.parametrize(("text", "value", "rule"), WEIGHT_ASYMMETRIC.values(), ids=WEIGHT_ASYMMETRIC)
def test_weight_asymmetric_has_a_chain_of_its_own(text: str, value: bool, rule: str) -> None:
    found = cells(resolve(text), "fc")
    assert (found["weight_asymmetric"], found["weight_asymmetric_decided_by"]) == (value, rule)


def test_weight_asymmetric_without_weights_alone_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"quant\.cfg:2:16: .*weight_compress_only: true alone"):
        resolve(common("\narq_quantize { asymmetric: true }"))


def test_settings_of_the_data_mean_nothing_where_weights_alone_are_quantized() -> None:
    plan = resolve(of_layer("fc", "weight_compress_only: true\nifmr_quantize { }"))
    assert warnings(plan)[-1] == (
        'quant.cfg:2:1: override_layer_configs "fc": ifmr_quantize has no effect on a layer with weight_compress_only: true'
        " (1 layer): it asks for the weights alone"
    )


@pytest.mark.parametrize(
    ("text", "words", "columns"),
    [
        ("arq_quantize { quant_bits: 4 }", "quant_bits: 4 has no effect on", {"weight_bits": 8}),
        ("nuq_quantize { }", "nuq_quantize has no effect on", {"weight_algorithm": "arq"}),
        ("dmq_balancer { }", "dmq_balancer has no effect on", {"migration_strength": None}),
    ],
)
def test_what_a_weight_alone_cannot_have(text: str, words: str, columns: dict[str, Any]) -> None:
    plan = resolve(of_layer("fc", f"weight_compress_only: true {text}"))
    assert any(f"{words} a layer with weight_compress_only: true (1 layer)" in told for told in warnings(plan))
    found = cells(plan, "fc")
    assert {name: found[name] for name in columns} == columns


def test_a_pool_without_its_data_stays_in_float() -> None:
    plan = resolve(common("weight_compress_only: true"))
    found = cells(plan, "pool")
    assert (found["enabled"], found["enabled_decided_by"]) == (False, "common_config")
    assert found["reason"] == "weight_compress_only: true, and it has no weight"
    words = "weight_compress_only: true has no effect on AveragePool (1 layer): it has no weight and stays in float"
    assert any(words in told for told in warnings(plan))
    assert cells(plan, "conv")["enabled"]


# What only some layers can have

FALLS_BACK = {
    "INT16 in common": (
        common("ifmr_quantize { dst_type: INT16 }"),
        {"conv": 16, "conv2": 16, "depth": 16, "volume": 8, "up": 16, "fc": 16, "proj": 8, "pool": 8},
        "data_bits",
        ["Conv with a 3-D kernel", "MatMul", "AveragePool"],
    ),
    "four bits": (
        common("arq_quantize { quant_bits: 4 }"),
        {"conv": 4, "conv2": 4, "depth": 8, "volume": 4, "up": 4, "fc": 4, "proj": 4, "pool": 8},
        "weight_bits",
        ["Conv with a 2-D kernel in groups", "AveragePool"],
    ),
    "NUQ in common": (
        common("nuq_quantize { }"),
        {"conv": 32, "conv2": None, "depth": None, "volume": None, "up": None, "fc": 32, "proj": 32, "pool": None},
        "num_steps",
        [
            "Conv with a 2-D kernel with dilation",
            "Conv with a 2-D kernel in groups",
            "Conv with a 3-D kernel",
            "ConvTranspose",
            "AveragePool",
        ],
    ),
    "balancer in common": (
        common("dmq_balancer { }"),
        {**dict.fromkeys(["conv", "conv2", "depth", "volume", "up", "fc", "proj"], 0.5), "pool": None},
        "migration_strength",
        ["AveragePool"],
    ),
    "AdaRound in common": (
        common("ada_quantize { }"),
        {**dict.fromkeys(["conv", "conv2", "depth", "volume", "up", "fc", "proj"], "ada"), "pool": "none"},
        "weight_algorithm",
        ["AveragePool"],
    ),
}


@pytest.mark.parametrize(("text", "values", "column", "kinds"), FALLS_BACK.values(), ids=FALLS_BACK)
def test_common_settings_fall_back_where_they_must(
    text: str, values: dict[str, Any], column: str, kinds: list[str]
) -> None:
    plan = resolve(text)
    assert {name: cells(plan, name)[column] for name in values} == values
    told = [message for message in warnings(plan) if "has no effect on" in message]
    assert [message.split("has no effect on ")[1].split(" (")[0] for message in told] == kinds
    assert all(message.startswith("quant.cfg:1:") and "common_config: " in message for message in told)


def test_four_bits_need_an_even_number_of_input_channels() -> None:
    config = parse_simple_config(of_layer("conv", "arq_quantize { quant_bits: 4 }"), "quant.cfg")
    plan = resolve_plan(config, [layer("conv", channels_in=3)])
    assert plan.rows[0].weight.bits == 8
    assert (
        "quant_bits: 4 has no effect on Conv with a 2-D kernel with an odd number of input channels"
        in warnings(plan)[0]
    )


def test_sixteen_bits_need_a_bias_on_gemm() -> None:
    config = parse_simple_config(of_type("Gemm", "ifmr_quantize { dst_type: INT16 }"), "quant.cfg")
    plan = resolve_plan(config, [layer("fc", "Gemm", bias=None)])
    assert plan.rows[0].data.bits == 8
    assert "dst_type: INT16 has no effect on Gemm without a bias (1 layer): INT8" in warnings(plan)[0]


REFUSED = {
    "INT16 of a type": (of_type("MatMul", "\nifmr_quantize { dst_type: INT16 }"), "2:17", "dst_type is INT16, but only 1-D"),
    "INT16 of a layer": (of_layer("volume", "\nhfmg_quantize { dst_type: INT16 }"), "2:17", "dst_type is INT16, but only"),
    "INT16 of an ATC type": (of_type("Conv3D", "\nifmr_quantize { dst_type: INT16 }"), "2:17", "dst_type is INT16"),
    "offset of an ATC type": (of_type("Conv3D", "\nifmr_quantize { asymmetric: true }"), "2:17", "can only be symmetric"),
    "balancer of a type": (of_type("AveragePool", "\ndmq_balancer { }"), "2:1", "dmq_balancer is given, but only a layer with"),
    "balancer of a layer": (of_layer("pool", "\ndmq_balancer { }"), "2:1", "dmq_balancer is given, but only a layer with"),
    "NUQ of a type": (of_type("ConvTranspose", "\nnuq_quantize { }"), "2:1", "nuq_quantize is given, but only an undilated"),
    "NUQ of a layer": (of_layer("depth", "\nnuq_quantize { }"), "2:1", "nuq_quantize is given, but only an undilated"),
    "AdaRound of a layer": (of_layer("pool", "\nada_quantize { }"), "2:1", "ada_quantize is given, but only a layer with"),
    "seven bits of an ATC type": (of_type("Conv3D", "\narq_quantize { quant_bits: 7 }"), "2:16", "quant_bits is 7, but only"),
    "tensor of no node": (tensor("maxpol"), "1:1", "tensor_quantize names 'maxpol': the model has no such node; did you mean 'maxpool'?"),
    "tensor unlike any": (tensor("?"), "1:1", "has no such node; it could be maxpool, add, add_constant"),
    "tensor of another type": (tensor("relu"), "1:1", "tensor_quantize names 'relu': it is a Relu; only inputs of Add and MaxPool"),
    "tensor of a layer": (tensor("conv"), "1:1", "tensor_quantize names 'conv': it is a Conv; only inputs of"),
    "tensor beyond": (tensor("add", 2), "1:1", "input_index is 2, but the node has 2 inputs, counted from 0"),
    "tensor of a constant": (tensor("add_constant", 1), "1:1", "input 1 is constant; name an input that is computed"),
    "tensor of Eltwise in ONNX": (tensor("mul"), "1:1", "it is a Mul; only inputs of Add and MaxPool can be named"),
    "tensor of INT16": (tensor("add", 0, "ifmr_quantize { dst_type: INT16 }"), "1:1", "dst_type is INT16, but an input of a Add"),
    "mapping file missing": ('\nnuq_config { mapping_file: "none.json" }', "2:1", "nuq_config: mapping_file: no"),
    "fc_calibration_config": ("fc_calibration_config { arq_quantize { channel_wise: true } }", "1:40", "channel_wise is true"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_an_error_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(text)
    assert str(caught.value).startswith(f"quant.cfg:{place}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strength", [0.1, 0.81])
def test_migration_strength_of_python_is_checked(strength: float) -> None:
    config = QuantConfig(common=CalibrationBlock(dmq=DmqSettings(strength)))
    with pytest.raises(ConfigError, match=r"migration_strength is .*; a number from 0.2 to 0.8 is expected"):
        resolve_plan(config, LAYERS)


def test_skipped_layers_may_have_what_they_cannot() -> None:
    plan = resolve('skip_layers: "pool"' + of_layer("pool", "dmq_balancer { }"))
    assert cells(plan, "pool")["migration_strength"] is None


def test_an_override_that_is_silent_about_the_balancer_is_told_so() -> None:
    plan = resolve(common("dmq_balancer { }") + of_layer("fc", "ifmr_quantize { }"))
    assert cells(plan, "fc")["migration_strength"] is None
    assert "override_layer_configs 'fc' says nothing about the balancer: the defaults apply, not common_config" in str(
        plan
    )


# Types of the dialects


def test_types_of_atc_mean_onnx_types() -> None:
    text = of_type("DepthwiseConv2D", "hfmg_quantize { num_of_bins: 1024 }") + of_type("Conv2D", "hfmg_quantize { }")
    plan = resolve(text + of_type("MatMulV2", "hfmg_quantize { num_of_bins: 8192 }"))
    assert {row.layer: row.data.num_of_bins for row in plan.rows} == {
        "conv": 4096, "conv2": 4096, "depth": 1024, "volume": None, "up": None, "fc": 8192, "proj": 8192, "pool": None,
    }  # fmt: skip
    assert cells(plan, "depth")["data_decided_by"] == 'override_layer_types "DepthwiseConv2D"'


def test_types_of_pytorch_mean_onnx_types() -> None:
    plan = resolve('skip_layer_types: ["Conv3d", "Linear"]')
    assert [row.layer for row in plan.rows if not row.enabled] == ["volume", "fc", "proj"]


def test_types_that_mean_the_same_layers_are_told() -> None:
    plan = resolve(
        of_type("MatMul", "hfmg_quantize { num_of_bins: 1024 }") + "\n" + of_type("MatMulV2", "hfmg_quantize { }")
    )
    assert cells(plan, "fc")["num_of_bins"] == 4096
    told = "override_layer_types 'MatMul' is inert: override_layer_types \"MatMulV2\" means its layers as well"
    assert any(message.endswith(told) for message in warnings(plan))


def test_atc_is_told_that_it_refuses_sixteen_bits() -> None:
    plan = resolve(of_type("Conv2D", "ifmr_quantize { dst_type: INT16 }"))
    assert "quant.cfg:1:82: dst_type: INT16: ATC refuses it today; it is for other tools" in warnings(plan)
    assert not any("ATC" in text for text in warnings(resolve(of_type("Conv", "ifmr_quantize { dst_type: INT16 }"))))


def test_eltwise_of_atc_means_four_types() -> None:
    plan = resolve('skip_layer_types: "Conv2D"' + tensor("mul", 1))
    assert (cells(plan, "mul")["tensor_index"], cells(plan, "mul")["op_type"]) == (1, "Mul")


# Inputs named by tensor_quantize


def test_input_named_twice_takes_the_last_with_both_lines() -> None:
    text = tensor("add", 1, "hfmg_quantize { }") + "\n" + tensor("add", 0) + "\n" + tensor("add", 1)
    plan = resolve(text)
    assert [(one.layer, one.input_index, one.data.algorithm) for one in plan.tensors] == [
        ("add", 0, "ifmr"),
        ("add", 1, "ifmr"),
    ]
    assert (
        "quant.cfg:3:1: tensor_quantize names input 1 of 'add' again (before at quant.cfg:1:1): the last wins"
        in warnings(plan)
    )


def test_all_layers_may_be_skipped_where_inputs_are_named() -> None:
    names = ", ".join(f'"{one.layer}"' for one in LAYERS)
    plan = resolve(f"skip_layers: [{names}]" + tensor())
    assert plan.enabled == ()
    with pytest.raises(ConfigError, match="skip all 8 layers"):
        resolve(f"skip_layers: [{names}]")


def test_inputs_named_in_python() -> None:
    config = QuantConfig(tensor_quantize=(TensorSettings("add", 0, IfmrSettings(search_step=0.05)),))
    plan = resolve_plan(config, LAYERS, other_nodes=NODES)
    assert cells(plan, "add")["search_step"] == 0.05
    with pytest.raises(ConfigError, match=r"^configuration: tensor_quantize names 'add': input_index is 5"):
        resolve_plan(QuantConfig(tensor_quantize=(TensorSettings("add", 5),)), LAYERS, other_nodes=NODES)


def test_the_model_tells_of_its_nodes(model: Path) -> None:
    rows, _ = plan_of_model(model, config=parse_simple_config(tensor()))
    assert rows["layer"].to_list() == ["conv", "fc", "maxpool"]
    with pytest.raises(ConfigError, match="tensor_quantize names 'relu': it is a Relu"):
        plan_of_model(model, config=parse_simple_config(tensor("relu")))


# NUQ's mapping file


def mapping(*names: str) -> str:
    def op(name: str, originals: list[str], compressed: bool) -> dict[str, Any]:
        values = [
            {"key": "_fe_weight_compress", "value": {"b": compressed}},
            {"key": "_datadump_original_op_names", "value": {"list": {"s": originals}}},
        ]
        return {"name": name, "type": "Conv2D", "attr": values}

    ops = [op(f"{name}_fused", [f"bn_{name}", name, f"relu_{name}"], True) for name in names]
    return json.dumps({"graph": [{"op": [*ops, op("x", ["fc"], False), {"name": "const", "type": "Const"}]}]})


def test_mapping_file_names_the_layers(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(mapping("conv", "volume"))
    config = parse_simple_config('nuq_config { mapping_file: "map.json" }', str(tmp_path / "quant.cfg"))
    plan = resolve_plan(config, LAYERS, other_nodes=NODES)
    assert [row.layer for row in plan.rows if row.weight.algorithm == "nuq"] == ["conv"]
    assert any("names 'volume', but NUQ is not for this Conv with a 3-D kernel: ARQ" in text for text in warnings(plan))


def test_mapping_file_is_looked_up_beside_the_configuration_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, working = tmp_path / "beside", tmp_path / "working"
    for folder in (beside, working):
        folder.mkdir()
    monkeypatch.chdir(working)
    with pytest.raises(ConfigError, match=r"neither '.*beside/map\.json' nor 'map\.json' is a file"):
        find_mapping("map.json", str(beside / "quant.cfg"))
    (working / "map.json").write_text("{}")
    assert find_mapping("map.json", str(beside / "quant.cfg")) == Path("map.json")
    (beside / "map.json").write_text("{}")
    assert find_mapping("map.json", str(beside / "quant.cfg")) == beside / "map.json"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"graph": 1}', '{"graph": [{"op": [{"attr": [1]}]}]}', "\udcff"])
def test_other_files_are_no_mapping_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"map\.json: (the mapping file cannot be read|no mapping file)"):
        read_mapping(path)


def test_mapping_file_of_another_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(mapping("other"))
    config = parse_simple_config('nuq_config { mapping_file: "map.json" }', str(tmp_path / "quant.cfg"))
    assert any("marks no layer of this model" in text for text in warnings(resolve_plan(config, LAYERS)))


def test_nuq_config_beats_common_and_types_and_loses_to_the_layer() -> None:
    text = (
        "nuq_config { }"
        + common("arq_quantize { }")
        + of_type("Gemm", "arq_quantize { }")
        + of_layer("conv", "arq_quantize { }")
    )
    plan = resolve(text)
    assert [row.layer for row in plan.rows if row.weight.algorithm == "nuq"] == ["fc", "proj"]


def test_nuq_config_built_in_python_is_told_without_a_mapping_file() -> None:
    plan = resolve_plan(QuantConfig(nuq=NuqSettings()), LAYERS)
    assert "configuration: nuq_config has no mapping_file: every layer within NUQ's limits is meant" in warnings(plan)


@needs_shared
def test_published_mapping_file(tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    path.write_bytes(gzip.decompress((SHARED / "cases" / "real" / "onnx_resnet101_fusion.json.gz").read_bytes()))
    found = read_mapping(path)
    assert len(found) == 10  # spec 13: ten of its convolutions
    assert ("BatchNormalization_314", "Conv_313", "Relu_315") in found


# Deprecated blocks


def test_deprecated_blocks_count_where_nothing_newer_is_given() -> None:
    text = (
        "conv_calibration_config { ifmr_quantize { } }\nfc_calibration_config { ifmr_quantize { search_step: 0.02 } }"
    )
    plan = resolve(text)
    assert cells(plan, "conv")["data_decided_by"] == "conv_calibration_config"
    assert cells(plan, "fc")["search_step"] == 0.02
    assert cells(plan, "pool")["data_decided_by"] == "default"
    assert [message.split(": ", 1)[1] for message in warnings(plan)] == [
        "conv_calibration_config is deprecated; use common_config or override_layer_types",
        "fc_calibration_config is deprecated; use common_config or override_layer_types",
    ]
    ignored = resolve(text + common("ifmr_quantize { }"))
    assert cells(ignored, "conv")["data_decided_by"] == "common_config"
    assert "conv_calibration_config is deprecated and has no effect beside" in str(ignored)


# config.json


def test_plan_and_config_json_say_the_same() -> None:
    text = (
        common("dmq_balancer { migration_strength: 0.3 } ifmr_quantize { dst_type: INT16 }")
        + of_layer("fc", "nuq_quantize { num_steps: 16 }")
        + of_layer("conv", "ada_quantize { reg_param: 0.5 }")
        + tensor("add", 1, "hfmg_quantize { }")
        + 'skip_layers: "up" fakequant_precision_mode: FORCE_FP16_QUANT'
    )
    config = parse_simple_config(text)
    plan = resolve_plan(config, LAYERS, other_nodes=NODES)
    written = json_config(config, plan)
    again = layerwise_config(written)
    same = resolve_plan(again, LAYERS, other_nodes=NODES)
    assert [(row.enabled, row.data, row.weight, row.migration_strength) for row in same.rows] == [
        (row.enabled, row.data, row.weight, row.migration_strength) for row in plan.rows
    ]
    assert [(one.layer, one.data) for one in same.tensors] == [(one.layer, one.data) for one in plan.tensors]
    assert json_config(again, same) == written
    named, _ = named_config(again, LAYERS, NODES)
    simple = resolve_plan(named, LAYERS, other_nodes=NODES)
    assert [(row.enabled, row.data, row.weight) for row in simple.rows] == [
        (row.enabled, row.data, row.weight) for row in plan.rows
    ]


def json_plan(text: str) -> Plan:
    return resolve_plan(layerwise_config(parse_json_config(text, "config.json")), LAYERS, other_nodes=NODES)


def test_layers_that_a_config_json_leaves_out_stay_in_float() -> None:
    plan = json_plan('{"conv":{"quant_enable":true},"fc":{"quant_enable":false},"proj":{}}')
    assert [row.layer for row in plan.enabled] == ["conv"]
    assert cells(plan, "conv")["enabled_decided_by"] == "config.json"
    assert cells(plan, "fc")["reason"] == "quant_enable is false (config.json:1:37)"
    assert cells(plan, "proj")["reason"] == "quant_enable is not written (config.json:1:59)"
    assert cells(plan, "up")["reason"] == "not in config.json"


def test_layer_of_a_config_json_without_activation_takes_the_defaults() -> None:
    plan = json_plan('{"conv":{"quant_enable":true,"weight_quant_params":{"channel_wise":false}}}')
    assert (cells(plan, "conv")["data_algorithm"], cells(plan, "conv")["search_step"]) == ("ifmr", 0.01)
    assert cells(plan, "conv")["channel_wise"] is False


JSON_REFUSED = {
    "no layer": (
        '{"cnv":{"quant_enable":true}}',
        "'cnv' is no layer of the model and no key of config.json; did you mean 'conv'",
    ),
    "no key": ('{"batch_nun":{}}', "'batch_nun' is no layer .*; did you mean 'batch_num'"),
    "other node": ('{"relu":{"quant_enable":true}}', "'relu' is a Relu, which is never quantized"),
    "none enabled": ('{"conv":{"quant_enable":false}}', "no layer of 8 has quant_enable: true"),
    "offset with a 3-D kernel": (
        '{"volume":{"quant_enable":true,"activation_quant_params":{"asymmetric":true}}}',
        "asymmetric: true for 'volume', but with a 3-D kernel it can only be symmetric",
    ),
    "channel_wise of a Gemm": (
        '{"fc":{"quant_enable":true,"weight_quant_params":{"channel_wise":true}}}',
        'layer "fc": channel_wise is true, but only Conv and ConvTranspose can have it',
    ),
}


@pytest.mark.parametrize(("text", "words"), JSON_REFUSED.values(), ids=JSON_REFUSED)
def test_config_json_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config\.json.*{words}"):
        json_plan(text)


# A run


def test_run_shows_what_is_asked_for_and_fits_what_is_applied(model: Path, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(mapping("fc"))
    path = tmp_path / "quant.cfg"
    path.write_text(
        'nuq_config { mapping_file: "map.json" }\n'
        + common("dmq_balancer { migration_strength: 0.3 } ifmr_quantize { dst_type: INT16 }")
        + of_layer("conv", "arq_quantize { quant_bits: 4 }")
        + tensor()
        + "joint_quant: true"
    )
    feeds = [{"x": np.random.default_rng(seed).standard_normal((1, 4, 8, 8), np.float32)} for seed in range(3)]
    run = calibrant.run(model, feeds, run=tmp_path / "m.run", config=path)
    rows = run.read("plan").select("layer", "data_bits", "weight_bits", "weight_algorithm", "migration_strength").rows()
    assert rows == [("conv", 8, 4, "arq", None), ("fc", 8, 8, "nuq", 0.3), ("maxpool", 8, None, None, None)]
    parts = run.read("quant_params").filter(pl.col("role").is_in(["data", "weight", "cluster"]))
    assert set(parts.select("role", "algorithm", "bits").rows()) == {
        ("data", "ifmr", 8), ("weight", "arq", 4), ("weight", "nuq", 8), ("cluster", "nuq", 8)
    }  # fmt: skip
    told = [text for text in run.read("events")["message"] if NOT_APPLIED in text]
    assert not [text for text in told if "nuq" in text or "quant_bits" in text]
    (tmp_path / "map.json").unlink()
    again = calibrant.export(run, prefix=tmp_path / "again" / "m")
    written = json.loads(Path(f"{again.info.fits['default'].prefix}_config.json").read_text())
    assert written["fc"]["weight_quant_params"]["wts_algo"] == "nuq_quantize"
    assert written["fc"]["dmq_balancer_param"] == 0.3
    assert written["tensor_quantize"][0]["layer_name"] == "maxpool"


def test_inputs_may_be_quantized_alone(model: Path) -> None:
    config = parse_simple_config('skip_layers: ["conv", "fc"]' + tensor(), "quant.cfg")
    assert plan_of_model(model, config=config)[0]["enabled"].to_list() == [False, False, True]


def test_balancer_that_no_layer_can_have_is_told() -> None:
    config = parse_simple_config(common("dmq_balancer { }"), "quant.cfg")
    plan = resolve_plan(config, [layer("pool", "AveragePool")])
    assert warnings(plan) == [
        "quant.cfg:1:17: common_config: dmq_balancer has no effect on AveragePool (1 layer): not balanced"
    ]


def test_the_precision_mode_shows_in_the_plan(tmp_path):
    model = models.save(models.conv_relu(), tmp_path / "m.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text("fakequant_precision_mode: FORCE_FP16_QUANT")
    assert not calibrant.plan(model)[0]["float16_step"].any()
    assert calibrant.plan(model, config=config)[0]["float16_step"].all()
