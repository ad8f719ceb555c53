"""The plan of retraining: which rule decides each value of each layer, and what cannot be."""

from pathlib import Path
from typing import Any

import pytest
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    FilterPruneSettings,
    RetrainConfig,
    UlqRetrainSettings,
    UlqSettings,
    parse_retrain_config,
    read_retrain_config,
)
from calibrant.quantizers.retrain_plan import RetrainPlan, resolve_retrain_plan
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow


def layer(name: str, op_type: str = "Conv", kernel_rank: int = 2, reason: str | None = None) -> LayerRow:
    return LayerRow(0, name, op_type, 0, "w", "b", 8, 4, 1, kernel_rank, None, 10, reason is None, reason)


LAYERS = [
    layer("conv"),
    layer("conv2"),
    layer("fc", "Gemm", 0),
    layer("pool", "AveragePool"),
    layer("inner", reason="lies inside If"),
]
NODES = {"conv": ModelNode("Conv", 3), "conv2": ModelNode("Conv", 3, producer="Relu")}


def resolve(text: str) -> RetrainPlan:
    return resolve_retrain_plan(parse_retrain_config(text, "retrain.cfg"), LAYERS, NODES)


def cells(plan: RetrainPlan, name: str) -> dict[str, Any]:
    return plan.frame().filter(layer=name).row(0, named=True)


def data(text: str = "") -> str:
    return f"retrain_data_quant_config {{ ulq_quantize {{ {text} }} }} "


def weight(text: str = "", algorithm: str = "arq_retrain") -> str:
    return f"retrain_weight_quant_config {{ {algorithm} {{ {text} }} }} "


def of_layer(name: str, text: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}"\n{text} }} '


def of_type(name: str, text: str) -> str:
    return f'override_layer_types {{ layer_type: "{name}"\n{text} }} '


FILTER = "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.3 } } } "


def test_defaults() -> None:
    plan = resolve_retrain_plan(RetrainConfig(), LAYERS, NODES)
    assert plan.events == ()
    assert [row.layer for row in plan.rows] == ["conv", "conv2", "fc", "pool"]
    assert [row.data for row in plan.rows] == [
        UlqSettings(fixed_min=False), UlqSettings(fixed_min=True), UlqSettings(fixed_min=False), UlqSettings(fixed_min=False),
    ]  # fmt: skip
    assert [row.weight for row in plan.rows] == [ArqRetrainSettings(one) for one in (True, True, False, False)]
    assert {row.fixed_min_decided_by for row in plan.rows} == {"producer"}
    assert {(row.enabled, row.enabled_decided_by, row.data_decided_by, row.prune) for row in plan.rows} == {
        (True, "default", "default", None)
    }


SHOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "data for all": (
        data("clip_max_min { clip_max: 3 clip_min: -2 } dst_type: INT16"),
        "conv",
        {"clip_max": 3.0, "clip_min": -2.0, "data_type": "INT16", "data_decided_by": "retrain_data_quant_config"},
    ),
    "weights for all": (
        weight("channel_wise: false", "ulq_retrain"),
        "conv",
        {
            "weight_algorithm": "ulq_retrain",
            "channel_wise": False,
            "weight_decided_by": "retrain_weight_quant_config",
        },
    ),
    "fixed_min": (
        data("fixed_min: false"),
        "conv2",
        {"fixed_min": False, "fixed_min_decided_by": "retrain_data_quant_config"},
    ),
    "type": (
        of_type("Conv2d", data("dst_type: INT4") + weight("dst_type: INT4")),
        "conv",
        {"data_type": "INT4", "weight_type": "INT4", "weight_decided_by": 'override_layer_types "Conv2d"'},
    ),
    "layer over type, taken whole": (
        of_type("Conv2d", data("fixed_min: true") + weight("channel_wise: false"))
        + of_layer("conv", weight("", "ulq_retrain")),
        "conv",
        {
            "weight_algorithm": "ulq_retrain",
            "channel_wise": True,
            "data_decided_by": "default",
            "fixed_min": False,
            "weight_decided_by": 'override_layer_configs "conv"',
        },
    ),
    "skip_layers": ('skip_layers: "conv"', "conv", {"retrain_enable": False, "enabled_decided_by": "skip_layers"}),
    "quant_skip_layers": (
        'quant_skip_layers: "conv" ' + FILTER,
        "conv",
        {"retrain_enable": False, "reason": "named in quant_skip_layers (retrain.cfg:1:1)", "prune_ratio": 0.3},
    ),
    "skip_layer_types": (
        'skip_layer_types: "Linear"',
        "fc",
        {"retrain_enable": False, "enabled_decided_by": 'skip_layer_types "Linear"'},
    ),
    "quant_skip_types": ('quant_skip_types: "Linear"', "fc", {"retrain_enable": False}),
    "override beats skip": (
        'skip_layers: "conv" ' + of_layer("conv", weight()),
        "conv",
        {"retrain_enable": True, "enabled_decided_by": 'override_layer_configs "conv"'},
    ),
    "override of a type beats skip": (
        'quant_skip_types: "Conv2d" ' + of_type("Conv2d", data()),
        "conv2",
        {"retrain_enable": True, "enabled_decided_by": 'override_layer_types "Conv2d"'},
    ),
    "override that only prunes does not": (
        'skip_layers: "conv" ' + of_layer("conv", FILTER),
        "conv",
        {"retrain_enable": False, "prune_type": "filter_prune", "prune_decided_by": 'override_layer_configs "conv"'},
    ),
    "pruning": (
        FILTER,
        "conv",
        {"prune_ratio": 0.3, "ascend_optimized": True, "prune_decided_by": "prune_config"},
    ),
    "pruning of a pool": (FILTER, "pool", {"prune_type": None, "prune_decided_by": "layer"}),
    "regular_prune_skip_layers": (
        FILTER + 'regular_prune_skip_layers: "conv"',
        "conv",
        {"prune_type": None, "prune_decided_by": "regular_prune_skip_layers", "retrain_enable": True},
    ),
    "regular_prune_skip_types": (
        FILTER + 'regular_prune_skip_types: "Conv2d"',
        "conv",
        {"prune_type": None, "prune_decided_by": 'regular_prune_skip_types "Conv2d"'},
    ),
    "selective pruning": (
        "prune_config { n_out_of_m_pruner { l1_selective_prune { update_freq: 2 } } }",
        "conv",
        {"prune_type": "selective_prune", "update_freq": 2},
    ),
    "INT4 for all leaves pools in float": (
        data("dst_type: INT4") + weight("dst_type: INT4"),
        "pool",
        {"retrain_enable": False, "reason": "an AveragePool cannot have INT4", "enabled_decided_by": "layer"},
    ),
    "channel_wise for all leaves Gemm at one scale": (weight("channel_wise: true"), "fc", {"channel_wise": False}),
}


@pytest.mark.parametrize(("text", "name", "expected"), SHOWN.values(), ids=SHOWN)
def test_rules(text: str, name: str, expected: dict[str, Any]) -> None:
    found = cells(resolve(text), name)
    assert {column: found[column] for column in expected} == expected


@pytest.mark.parametrize("pair", [("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4")])
def test_widths_that_go_together(pair: tuple[str, str]) -> None:
    text = of_layer("conv", data(f"dst_type: {pair[0]}") + weight(f"dst_type: {pair[1]}"))
    assert (cells(resolve(text), "conv")["data_type"], cells(resolve(text), "conv")["weight_type"]) == pair


@pytest.mark.parametrize("pair", [("INT4", "INT8"), ("INT16", "INT4"), ("INT16", "INT16"), ("INT8", "INT16")])
def test_widths_that_do_not(pair: tuple[Any, Any]) -> None:
    built = RetrainConfig(data=UlqSettings(dst_type=pair[0]), weight=UlqRetrainSettings(dst_type=pair[1]))
    with pytest.raises(ConfigError, match=f"'conv': data of {pair[0]} with weights of {pair[1]} is impossible"):
        resolve_retrain_plan(built, LAYERS)


REFUSED = {
    "a half of an override": (of_layer("conv", data("dst_type: INT4")), "2:1", "data of INT4 with weights of INT8"),
    "INT4 of a pool": (
        of_layer("pool", data("dst_type: INT4") + weight("dst_type: INT4")),
        "2:1",
        'override_layer_configs "pool": dst_type is INT4, but an AveragePool cannot have it',
    ),
    "INT4 of pools": (
        of_type("AvgPool2d", data("dst_type: INT4") + weight("dst_type: INT4")),
        "2:1",
        'override_layer_types "AvgPool2d": dst_type is INT4',
    ),
    "channel_wise of Linear": (of_type("Linear", weight("channel_wise: true")), "2:45", "channel_wise is true, but only"),
    "layer": (of_layer("cnv", data()), "1:26", "names 'cnv', but the model has no such layer; did you mean 'conv'?"),
    "skipped layer": ('quant_skip_layers: "conv3"', "1:1", "names 'conv3', but the model has no such layer; did you mean 'conv'?"),
    "refused layer": ('skip_layers: "inner"', "1:1", "which cannot be quantized: lies inside If"),
    "type": ('quant_skip_types: "Linaer"', "1:1", "did you mean 'Linear'?"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_an_error_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(text)
    assert str(caught.value).startswith(f"retrain.cfg:{place}: ")
    assert words in str(caught.value)


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"retrain\.cfg: no layer is left to train"):
        resolve('skip_layer_types: ["Conv2d", "Linear", "AvgPool2d"]')
    assert not any(row.enabled for row in resolve('quant_skip_types: ["Conv2d", "Linear", "AvgPool2d"] ' + FILTER).rows)


def test_an_override_that_wins_over_a_skip_is_told() -> None:
    plan = resolve('skip_layers: "conv"\n' + of_layer("conv", weight()))
    assert [event.message for event in plan.events if event.layer == "conv"] == [
        "retrain.cfg:2:26: override_layer_configs 'conv' wins over skip_layers"
    ]


def test_pruning_built_in_python() -> None:
    plan = resolve_retrain_plan(RetrainConfig(prune=FilterPruneSettings(0.5, ascend_optimized=False)), LAYERS)
    assert plan.frame().filter(layer="fc")["ascend_optimized"].to_list() == [False]


@needs_shared
@pytest.mark.parametrize("name", ["torch_retrain.cfg", "torch_prune_retrain.cfg", "torch_selective_prune_retrain.cfg"])
def test_published_configurations_resolve(name: str) -> None:
    config = read_retrain_config(Path(SHARED) / "cases" / "real" / name)
    named = {
        *config.skip_layers, *config.quant_skip_layers, *config.regular_prune_skip_layers,
        *(layer_name for layer_name, _ in config.override_layers),
    }  # fmt: skip
    plan = resolve_retrain_plan(config, [*LAYERS, *map(layer, sorted(named))])
    assert {row.layer for row in plan.rows} >= named
