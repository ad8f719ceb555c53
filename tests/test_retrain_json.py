"""The config.json of retraining: AMCT's text byte for byte, every rule, and its way to and from a simple configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ConfigError
from calibrant.proto.retrain_config import RetrainConfig, canonical_retrain_text, parse_retrain_config
from calibrant.proto.retrain_conversion import retrain_config_of
from calibrant.proto.retrain_json import (
    RetrainJson,
    RetrainJsonData,
    RetrainJsonLayer,
    RetrainJsonPrune,
    RetrainJsonWeight,
    format_retrain_json,
    parse_retrain_json,
    read_retrain_json,
    write_retrain_json,
)
from calibrant.quantizers.retrain_layers import check_retrain_json, retrain_layers
from calibrant.stats.tables import LayerRow

SAMPLE = """\
{
    "version":1,
    "batch_num":1,
    "conv1":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":true,
            "dst_type":"INT8"
        }
    },
    "layer1.0.conv1":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":true,
            "dst_type":"INT8"
        }
    },
    "fc":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":false,
            "dst_type":"INT8"
        }
    }
}"""
"""The sample of AMCT's guide to quantization-aware training."""


def row(name: str, op_type: str = "Conv", *, rank: int = 2, reason: str | None = None) -> LayerRow:
    return LayerRow(0, name, op_type, 0, "w", "b", 8, 4, 1, rank, None, 10, reason is None, reason)


LAYERS = [row("conv1"), row("layer1.0.conv1"), row("fc", "Gemm", rank=0)]


def resolved(text: str, layers: list[LayerRow] = LAYERS) -> RetrainJson:
    return retrain_layers(parse_retrain_config(text, "r.cfg"), layers).json


def test_the_defaults_of_a_model_are_the_guides_sample_byte_for_byte() -> None:
    assert format_retrain_json(retrain_layers(RetrainConfig(), LAYERS).json) == SAMPLE


def test_the_sample_is_read_and_written_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out" / "config.json"
    write_retrain_json(path, parse_retrain_json(SAMPLE))
    assert path.read_text(encoding="utf-8") == SAMPLE
    assert list(read_retrain_json(path).layers) == ["conv1", "layer1.0.conv1", "fc"]


PRUNED = {
    "version": 1, "batch_num": 2, "fakequant_precision_mode": "FORCE_FP16_QUANT",
    "a": {
        "retrain_enable": True,
        "retrain_data_config": {
            "algo": "ulq_quantize", "clip_max": 3.0, "clip_min": -3.0, "fixed_min": False, "dst_type": "INT8",
        },
        "retrain_weight_config": {"algo": "ulq_retrain", "channel_wise": False, "dst_type": "INT4"},
        "regular_prune_enable": True,
        "regular_prune_config": {
            "prune_type": "filter_prune", "algo": "balanced_l2_norm_filter_prune", "prune_ratio": 0.3,
            "ascend_optimized": True,
        },
    },
    "b": {
        "retrain_enable": False,
        "regular_prune_enable": True,
        "regular_prune_config": {
            "prune_type": "selective_prune", "algo": "l1_selective_prune", "n_out_of_m_type": "M4N2", "update_freq": 0,
        },
    },
}  # fmt: skip


def test_every_key_is_read_and_written_again_as_it_was() -> None:
    text = json.dumps(PRUNED, indent=4, separators=(",", ":"))
    config = parse_retrain_json(text)
    assert format_retrain_json(config) == text
    (note,) = config.notes
    assert "regular_prune_config of 2 layers is read and kept, but calibrant prunes nothing" in note.message


# Rules


def data(members: str) -> str:
    return '{"a":{"retrain_enable":true,\n"retrain_data_config":{' + members + "}}}"


def weight(members: str) -> str:
    return '{"a":{"retrain_enable":true,\n"retrain_weight_config":{' + members + "}}}"


def prune(members: str) -> str:
    return '{"a":{"regular_prune_enable":true,\n"regular_prune_config":{' + members + "}}}"


D, W, P = 24, 26, 25
REJECTED = {
    "no layer": ("{}", "1:1", "no layer has retrain_enable: true"),
    "none enabled": ('{"a":{"retrain_enable":false},"b":{}}', "1:1", "enable at least one"),
    "version": ('{"version":2}', "1:12", "version is 2; 1 is expected"),
    "batch_num": ('{"batch_num":0}', "1:14", "batch_num is 0"),
    "mode": ('{"fakequant_precision_mode":"x"}', "1:29", "FORCE_FP16_QUANT"),
    "a key of calibration": ('{"joint_quant":true}', "1:2", "unknown key 'joint_quant'"),
    "misspelt": ('{"batchnum":1}', "1:2", "did you mean 'batch_num'?"),
    "layer twice": ('{"a":{},"a":{}}', "1:9", "the key 'a' is given a second time"),
    "layer key": ('{"a":{"retrain_enabled":true}}', "1:7", "layer 'a': unknown key 'retrain_enabled'; did you mean"),
    "calibration layer": ('{"a":{"quant_enable":true}}', "1:7", "quant_enable belongs to a config.json of calibration"),
    "retrain_enable": ('{"a":{"retrain_enable":1}}', "1:24", "retrain_enable is 1; true or false"),
    "data no object": ('{"a":{"retrain_data_config":1}}', "1:29", "retrain_data_config is 1; an object"),
    "data algo": (data('"algo":"ifmr"'), f"2:{D + 7}", 'algo is \'ifmr\'; "ulq_quantize" is expected'),
    "data key": (data('"clip_mx":1'), f"2:{D}", "did you mean 'clip_max'?"),
    "clip_max alone": (data('"clip_max":1'), f"2:{D}", "clip_max without clip_min; write both or neither"),
    "clip_min alone": (data('"clip_min":-1'), f"2:{D}", "clip_min without clip_max"),
    "clip_max 0": (data('"clip_max":0,"clip_min":-1'), f"2:{D + 11}", "clip_max is 0; a number above 0"),
    "clip_min 0": (data('"clip_max":1,"clip_min":0'), f"2:{D + 24}", "clip_min is 0; a number below 0"),
    "clip_max text": (data('"clip_max":"1","clip_min":-1'), f"2:{D + 11}", "a number above 0"),
    "fixed_min": (data('"fixed_min":0'), f"2:{D + 12}", "fixed_min is 0; true or false"),
    "data type": (data('"dst_type":"INT32"'), f"2:{D + 11}", 'dst_type is \'INT32\'; "INT4" or "INT8" or "INT16"'),
    "weight algo": (weight('"algo":"arq"'), f"2:{W + 7}", '"arq_retrain" or "ulq_retrain"'),
    "weight key": (weight('"channelwise":true'), f"2:{W}", "did you mean 'channel_wise'?"),
    "channel_wise": (weight('"channel_wise":1'), f"2:{W + 15}", "channel_wise is 1"),
    "weight type": (weight('"dst_type":"INT16"'), f"2:{W + 11}", '"INT4" or "INT8" is expected'),
    "prune type": (prune('"prune_type":"x"'), f"2:{P + 13}", '"filter_prune" or "selective_prune"'),
    "no prune type": (prune('"prune_ratio":0.5'), "2:24", "prune_type is missing"),
    "ratio": (prune('"prune_type":"filter_prune","prune_ratio":1'), f"2:{P + 42}", "prune_ratio is 1; a number between 0 and 1"),
    "no ratio": (prune('"prune_type":"filter_prune"'), "2:24", "prune_ratio is missing"),
    "key of the other": (prune('"prune_type":"selective_prune","prune_ratio":0.5'), f"2:{P + 31}", "unknown key 'prune_ratio'"),
    "algo of the other": (
        prune('"prune_type":"selective_prune","algo":"balanced_l2_norm_filter_prune"'), f"2:{P + 38}", "l1_selective_prune",
    ),
    "update_freq": (prune('"prune_type":"selective_prune","update_freq":-1'), f"2:{P + 45}", "update_freq is -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name: str) -> None:
    text, place, words = REJECTED[name]
    with pytest.raises(ConfigError) as caught:
        parse_retrain_json(text, "config.json")
    assert str(caught.value).startswith(f"config.json:{place}: "), str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("of_data", "of_weight", "allowed"),
    [
        ("INT8", "INT8", True), ("INT4", "INT4", True), ("INT16", "INT8", True), ("INT8", "INT4", True),
        ("INT4", "INT8", False), ("INT16", "INT4", False),
    ],
)  # fmt: skip
def test_pairs_of_widths(of_data: str, of_weight: str, allowed: bool) -> None:
    layer = {
        "retrain_enable": True,
        "retrain_data_config": {"dst_type": of_data},
        "retrain_weight_config": {"dst_type": of_weight},
    }
    text = json.dumps({"a": layer})
    if allowed:
        assert parse_retrain_json(text).layers["a"].retrain_enable
        return
    with pytest.raises(ConfigError, match=f"data is {of_data} and weights are {of_weight}"):
        parse_retrain_json(text)


# The guide's table: a key of config.json and the field that it stands for, both ways

ULQ, ARQ = "retrain_data_quant_config { ulq_quantize { %s } }", "retrain_weight_quant_config { arq_retrain { %s } }"
TABLE: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "batch_num": ("batch_num: 7", (), {"batch_num": 7}),
    "retrain_data_config.algo": (ULQ % "", ("retrain_data_config",), {"algo": "ulq_quantize"}),
    "clip_max / clip_min": (
        ULQ % "clip_max_min { clip_max: 3.5 clip_min: -2.5 }", ("retrain_data_config",), {"clip_max": 3.5, "clip_min": -2.5},
    ),
    "fixed_min": (ULQ % "fixed_min: true", ("retrain_data_config",), {"fixed_min": True}),
    "retrain_data_config.dst_type": (ULQ % "dst_type: INT16", ("retrain_data_config",), {"dst_type": "INT16"}),
    "retrain_weight_config.algo": (ARQ % "", ("retrain_weight_config",), {"algo": "arq_retrain"}),
    "retrain_weight_config.algo, ULQ": (
        "retrain_weight_quant_config { ulq_retrain { } }", ("retrain_weight_config",), {"algo": "ulq_retrain"},
    ),
    "channel_wise": (ARQ % "channel_wise: false", ("retrain_weight_config",), {"channel_wise": False}),
    "retrain_weight_config.dst_type": (ARQ % "dst_type: INT4", ("retrain_weight_config",), {"dst_type": "INT4"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_field_becomes_its_key(name: str) -> None:
    text, path, expected = TABLE[name]
    written = json.loads(format_retrain_json(resolved(text, LAYERS[:1])))
    part = written["conv1"][path[0]] if path else written
    assert {key: part[key] for key in expected} == expected


@pytest.mark.parametrize("name", TABLE)
def test_a_key_becomes_its_field(name: str) -> None:
    text, path, members = TABLE[name]
    layer: dict[str, Any] = {"retrain_enable": True}
    content: dict[str, Any] = {"conv1": layer}
    (layer.setdefault(path[0], {}) if path else content).update(members)
    config = retrain_config_of(parse_retrain_json(json.dumps(content)))
    expected = parse_retrain_config(text)
    found = dict(config.override_layers).get("conv1")
    assert config.batch_num == expected.batch_num
    if expected.data is not None:
        assert found is not None
        assert found.data == expected.data
    if expected.weight is not None:
        assert found is not None
        assert found.weight == expected.weight


# Resolution


def test_a_layer_beats_its_type_which_beats_the_rest_and_is_taken_whole() -> None:
    found = resolved(
        """
        retrain_data_quant_config { ulq_quantize { fixed_min: true } }
        retrain_weight_quant_config { ulq_retrain { } }
        override_layer_types { layer_type: "Gemm" retrain_weight_quant_config { arq_retrain { } } }
        override_layer_configs { layer_name: "conv1" retrain_data_quant_config { ulq_quantize { dst_type: INT8 } } }
        """
    ).layers
    assert [found[name].data.fixed_min for name in ("conv1", "layer1.0.conv1", "fc")] == [None, True, None]
    assert [found[name].weight.algo for name in ("conv1", "layer1.0.conv1", "fc")] == [
        "arq_retrain",
        "ulq_retrain",
        "arq_retrain",
    ]


def test_an_override_beats_a_skip_unless_it_speaks_of_pruning_alone() -> None:
    block = "override_layer_configs {{ layer_name: '{}' {} }}"
    quant = block.format("conv1", "retrain_weight_quant_config { arq_retrain { } }")
    only_prune = block.format(
        "layer1.0.conv1", "prune_config { n_out_of_m_pruner { l1_selective_prune { update_freq: 3 } } }"
    )
    found = resolved(f"quant_skip_types: 'Conv2d' {quant} {only_prune}").layers
    assert [layer.retrain_enable for layer in found.values()] == [True, False, True]
    assert found["layer1.0.conv1"].prune == RetrainJsonPrune(
        "selective_prune", "l1_selective_prune", n_out_of_m_type="M4N2", update_freq=3
    )


@pytest.mark.parametrize("skip", ["skip_layers: 'fc'", "quant_skip_layers: 'fc'", "skip_layer_types: 'Linear'"])
def test_skips(skip: str) -> None:
    assert [layer.retrain_enable for layer in resolved(skip).layers.values()] == [True, True, False]


def test_pruning_of_all_and_what_it_leaves_out() -> None:
    ratio = "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.25 } } }"
    found = resolved(f"{ratio} regular_prune_skip_layers: 'fc'").layers
    assert [layer.regular_prune_enable for layer in found.values()] == [True, True, None]
    assert found["conv1"].prune.prune_ratio == 0.25


def test_channel_wise_of_a_fully_connected_layer_is_one_scale_with_a_warning() -> None:
    found = retrain_layers(parse_retrain_config(ARQ % "channel_wise: true"), LAYERS)
    assert [layer.weight.channel_wise for layer in found.json.layers.values()] == [True, True, False]
    assert "channel_wise: true has no effect on Gemm 'fc'" in found.events[-1].message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("skip_layers: 'conv2'", "r.cfg:1:1: skip_layers names 'conv2', but the model has no such layer; did you mean"),
        ("override_layer_configs { layer_name: 'fcc' }", "names 'fcc', but the model has no such layer; did you mean 'fc'?"),
        ("quant_skip_layers: 'bad'", "quant_skip_layers names 'bad', which cannot be quantized: it is odd"),
        ("skip_layers: ['conv1','layer1.0.conv1','fc']", "r.cfg: no layer is left to train"),
    ],
)  # fmt: skip
def test_what_cannot_mean_anything_for_a_model(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(text, [*LAYERS, row("bad", reason="it is odd")])
    assert words in str(caught.value)


def test_a_file_is_checked_against_a_model() -> None:
    layers = [*LAYERS, row("late"), row("bad", reason="it is odd")]
    (event,) = check_retrain_json(parse_retrain_json(SAMPLE, "c.json"), layers)
    assert event.message == "c.json: layer 'late' is not in the file and stays in float"
    with pytest.raises(ConfigError, match=r"c.json:1:2: 'conv' is no layer of the model.*; did you mean 'conv1'\?"):
        check_retrain_json(parse_retrain_json('{"conv":{"retrain_enable":true}}', "c.json"), layers)
    with pytest.raises(ConfigError, match="layer 'bad' cannot be quantized: it is odd"):
        check_retrain_json(parse_retrain_json('{"bad":{"retrain_enable":true}}'), layers)


# Round trips

floats = st.floats(0.01, 100.0).map(lambda value: float(f"{value:.4g}"))
clips = st.none() | st.tuples(floats, floats)
types = st.sampled_from([("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4")])
prunes = (
    st.none()
    | st.builds(
        RetrainJsonPrune, st.just("filter_prune"), st.just("balanced_l2_norm_filter_prune"),
        st.floats(0.01, 0.99).map(lambda value: round(value, 3)), st.booleans(),
    )
    | st.builds(
        RetrainJsonPrune, st.just("selective_prune"), st.just("l1_selective_prune"), n_out_of_m_type=st.just("M4N2"),
        update_freq=st.integers(0, 99),
    )
)  # fmt: skip


@st.composite
def full_layers(draw: st.DrawFn) -> RetrainJsonLayer:
    """A layer with every value that AMCT writes."""
    of_data, of_weight = draw(types)
    clip = draw(clips)
    clip_max, clip_min = (None, None) if clip is None else (clip[0], -clip[1])
    found = RetrainJsonData("ulq_quantize", clip_max, clip_min, draw(st.none() | st.booleans()), of_data)
    algorithm = draw(st.sampled_from(["arq_retrain", "ulq_retrain"]))
    pruned = draw(prunes)
    enabled = None if pruned is None else True
    return RetrainJsonLayer(True, found, RetrainJsonWeight(algorithm, draw(st.booleans()), of_weight), enabled, pruned)


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=6)
files = st.builds(
    RetrainJson, st.integers(1, 1000), st.dictionaries(names, full_layers(), min_size=1, max_size=4),
    st.sampled_from([None, "FORCE_FP16_QUANT"]),
)  # fmt: skip


@settings(deadline=None)
@given(files)
def test_what_is_written_is_read_equal(config: RetrainJson) -> None:
    text = format_retrain_json(config)
    assert parse_retrain_json(text) == config
    assert format_retrain_json(parse_retrain_json(text)) == text


@settings(deadline=None)
@given(files)
def test_a_file_survives_the_way_through_a_simple_configuration(config: RetrainJson) -> None:
    text = canonical_retrain_text(retrain_config_of(config))
    simple = parse_retrain_config(text, dialect="pytorch")
    layers = [row(name) for name in config.layers]
    assert retrain_layers(simple, layers).json == config


def test_what_a_simple_configuration_cannot_say_is_told() -> None:
    text = '{"a":{"retrain_enable":true},\n"b":{"retrain_enable":false,"retrain_data_config":{}}}'
    config = retrain_config_of(parse_retrain_json(text, "c.json"))
    assert config.quant_skip_layers == ("b",)
    assert [note.message for note in config.notes] == [
        "c.json:2:1: layer 'b' is not trained; its settings are left out, since an override would train it"
    ]


def test_absent_layers_of_a_model_are_skipped() -> None:
    config = retrain_config_of(parse_retrain_json('{"a":{"retrain_enable":true}}'), ["b", "c"])
    assert config.quant_skip_layers == ("b", "c")
