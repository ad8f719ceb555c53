"""config.json: AMCT's keys, order, indentation and separators, byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ConfigError
from calibrant.proto.json_config import (
    JsonActivation,
    JsonConfig,
    JsonLayer,
    JsonTensor,
    JsonWeight,
    format_json_config,
    parse_json_config,
    read_json_config,
    write_json_config,
)

IFMR = JsonActivation("ifmr", True, 8, 0.999999, 0.999999, (0.7, 1.3), 0.01)
CONFIG = JsonConfig(
    batch_num=2,
    skip_fusion_layers=("Conv_0",),
    layers={
        "Gemm_1": JsonLayer(False, JsonActivation("hfmg", False, num_of_bins=4096), JsonWeight(False)),
        "Conv_0": JsonLayer(True, IFMR, JsonWeight(True, 7)),
    },
)
TEXT = """\
{
    "version":1,
    "batch_num":2,
    "activation_offset":true,
    "joint_quant":false,
    "do_fusion":true,
    "skip_fusion_layers":[
        "Conv_0"
    ],
    "tensor_quantize":[],
    "Conv_0":{
        "quant_enable":true,
        "activation_quant_params":{
            "num_bits":8,
            "max_percentile":0.999999,
            "min_percentile":0.999999,
            "search_range":[
                0.7,
                1.3
            ],
            "search_step":0.01,
            "act_algo":"ifmr",
            "asymmetric":true
        },
        "weight_quant_params":{
            "num_bits":7,
            "channel_wise":true,
            "wts_algo":"arq_quantize"
        }
    },
    "Gemm_1":{
        "quant_enable":false,
        "activation_quant_params":{
            "num_bits":8,
            "act_algo":"hfmg",
            "asymmetric":false,
            "num_of_bins":4096
        },
        "weight_quant_params":{
            "num_bits":8,
            "channel_wise":false,
            "wts_algo":"arq_quantize"
        }
    }
}"""


def test_text_is_amcts_byte_for_byte() -> None:
    assert format_json_config(CONFIG) == TEXT


def test_the_layers_are_sorted_by_name_after_the_global_keys() -> None:
    layer = JsonLayer(True, IFMR, JsonWeight(True))
    names = ["b", "a/10", "a/9", "_", "Z"]
    written = list(json.loads(format_json_config(JsonConfig(layers=dict.fromkeys(names, layer)))))
    assert written[:7] == [
        "version", "batch_num", "activation_offset", "joint_quant", "do_fusion", "skip_fusion_layers", "tensor_quantize",
    ]  # fmt: skip
    assert written[7:] == ["Z", "_", "a/10", "a/9", "b"]


def test_file_holds_the_text(tmp_path: Path) -> None:
    path = tmp_path / "out" / "m_config.json"
    write_json_config(path, CONFIG)
    assert path.read_text(encoding="utf-8") == TEXT
    assert [one.name for one in path.parent.iterdir()] == ["m_config.json"]


@pytest.mark.parametrize("name", ["version", "batch_num", "tensor_quantize"])
def test_layer_named_like_a_key_is_refused(name: str) -> None:
    layer = JsonLayer(True, IFMR, JsonWeight(True))
    with pytest.raises(ConfigError, match=f"layer '{name}' has the name of a key of config.json"):
        format_json_config(JsonConfig(layers={name: layer}))


# Reading


def amct(content: Any) -> str:
    """AMCT's writer: json.dump with four spaces and without a space after the colon."""
    return json.dumps(content, indent=4, separators=(",", ":"))


DATA = {
    "num_bits": 8, "max_percentile": 0.999999, "min_percentile": 0.999999, "search_range": [0.7, 1.3],
    "search_step": 0.01, "act_algo": "ifmr", "asymmetric": True,
}  # fmt: skip
WEIGHT = {"num_bits": 8, "channel_wise": True, "wts_algo": "arq_quantize"}
SHAPE = {  # the shape of the specification, 2.1
    "version": 1, "batch_num": 2, "activation_offset": True, "joint_quant": False, "do_fusion": True,
    "skip_fusion_layers": [],
    "tensor_quantize": [{"layer_name": "pool1", "input_index": 0, "activation_quant_params": DATA}],
    "Conv_0": {"quant_enable": True, "activation_quant_params": DATA, "weight_quant_params": WEIGHT},
}  # fmt: skip


def test_the_text_is_read_back_equal() -> None:
    assert parse_json_config(TEXT) == CONFIG


def test_every_key_of_the_shape_is_read_and_written_byte_for_byte() -> None:
    config = parse_json_config(amct(SHAPE))
    assert config.tensor_quantize == (JsonTensor("pool1", 0, IFMR),)
    assert config.layers["Conv_0"] == JsonLayer(True, IFMR, JsonWeight(True))
    assert format_json_config(config) == amct(SHAPE)


ADA = {"num_bits": 8, "num_iteration": 10000, "reg_param": 0.01, "beta_range": [20, 2], "warm_start": 0.2}
VARIANTS = {
    "all global keys": {
        "version": 1, "batch_num": 1, "activation_offset": False, "joint_quant": True, "weight_offset": False,
        "do_fusion": False, "fakequant_precision_mode": "FORCE_FP16_QUANT", "skip_fusion_layers": ["a", "b"],
        "tensor_quantize": [],
    },
    "older file": {"version": 1, "fc": {"quant_enable": True, "activation_quant_params": {"act_algo": "ifmr"}}},
    "no data settings": {"fc": {"quant_enable": True, "weight_quant_params": {"num_bits": 8}}},
    "balancer": {"fc": {"quant_enable": True, "dmq_balancer_param": 0.5, "activation_quant_params": DATA}},
    "ada": {"fc": {"weight_quant_params": {**ADA, "channel_wise": True, "wts_algo": "ada_quantize"}}},
    "nuq": {"fc": {"weight_quant_params": {"num_steps": 32, "num_of_iteration": 1, "wts_algo": "nuq_quantize"}}},
    "pseudo layer": {"Conv::common": {"quant_enable": True}, "fc": {"quant_enable": False}},
    "no layer": {"version": 1, "batch_num": 1},
    "Chinese name": {"卷积": {"quant_enable": True}},
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_of_amcts_form_is_written_again_as_it_was(name: str) -> None:
    assert format_json_config(parse_json_config(amct(VARIANTS[name]))) == amct(VARIANTS[name])


def test_layers_and_keys_in_another_order_are_put_in_amcts() -> None:
    mixed = {"b": {"weight_quant_params": WEIGHT, "quant_enable": True}, "batch_num": 2, "version": 1, "a": {}}
    ordered = {
        "version": 1,
        "batch_num": 2,
        "a": {},
        "b": {"quant_enable": True, "weight_quant_params": WEIGHT},
    }
    assert format_json_config(parse_json_config(json.dumps(mixed))) == amct(ordered)


def test_the_default_precision_mode_is_not_written() -> None:
    assert format_json_config(parse_json_config('{"fakequant_precision_mode":"DEFAULT"}')) == "{}"


def test_every_key_has_a_position() -> None:
    text = '{"batch_num":2,\n "fc":{"quant_enable":true,\n  "activation_quant_params":{"asymmetric":false}}}'
    config = parse_json_config(text, "c.json")
    assert config.where("batch_num") == "c.json:1:2"
    assert config.where("fc") == "c.json:2:2"
    assert config.where("fc", "activation_quant_params", "asymmetric") == "c.json:3:30"
    assert config.where("fc", "activation_quant_params", "num_bits") == "c.json:3:3"
    assert config.where("version") == "c.json"


def test_a_file_with_a_byte_order_mark_is_read_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    config = read_json_config(path)
    assert config == CONFIG
    assert [note.severity for note in config.notes] == ["warn"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json: no such file; give the path of a JSON configuration"):
        read_json_config(tmp_path / "nothing.json")


# Round trips

maybe = st.none
flags = st.none() | st.booleans()
shares = st.floats(0.51, 1.0).map(lambda value: round(value, 6))
ranges = st.tuples(st.floats(0.1, 0.9), st.floats(1.1, 3.0))
ifmr = st.builds(
    JsonActivation, st.sampled_from(["ifmr", None]), flags, st.sampled_from([None, 4, 8, 16]), maybe() | shares, maybe() | shares,
    maybe() | ranges, maybe() | st.floats(0.001, 0.2),
)  # fmt: skip
hfmg = st.builds(
    JsonActivation, st.just("hfmg"), flags, st.sampled_from([None, 8, 16]),
    num_of_bins=st.sampled_from([None, 1024, 2048, 4096, 8192]),
)  # fmt: skip
arq = st.builds(JsonWeight, flags, st.sampled_from([None, 4, 6, 7, 8]), st.sampled_from([None, "arq_quantize"]))
nuq = st.builds(
    JsonWeight, flags, wts_algo=st.just("nuq_quantize"), num_steps=st.sampled_from([None, 16, 32]),
    num_of_iteration=st.none() | st.integers(0, 5),
)  # fmt: skip
ada = st.builds(
    JsonWeight, flags, wts_algo=st.just("ada_quantize"), num_iteration=st.none() | st.integers(0, 10**6),
    reg_param=st.none() | st.floats(0.001, 0.999), beta_range=st.none() | st.tuples(st.floats(3, 30), st.floats(0.1, 2.9)),
    warm_start=st.none() | st.floats(0.001, 0.999),
)  # fmt: skip
layers = st.builds(
    JsonLayer, flags, st.none() | ifmr | hfmg, st.none() | arq | nuq | ada, st.none() | st.floats(0.2, 0.8)
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
tensors = st.builds(JsonTensor, names, st.integers(0, 3), st.none() | ifmr | hfmg)
configs = st.builds(
    JsonConfig, st.none() | st.integers(1, 2**32 - 1), flags, flags, flags,
    st.none() | st.lists(names, unique=True, max_size=3).map(tuple), st.dictionaries(names, layers, max_size=4),
    st.none() | st.lists(tensors, max_size=2).map(tuple), flags, st.sampled_from([None, "FORCE_FP16_QUANT"]),
    st.sampled_from([None, 1]),
)  # fmt: skip


@settings(deadline=None)
@given(configs)
def test_what_is_written_is_read_equal_and_written_the_same(config: JsonConfig) -> None:
    text = format_json_config(config)
    found = parse_json_config(text)
    assert found == config
    assert format_json_config(found) == text
