"""config.json: AMCT's keys, order, indentation and separators, byte for byte."""

import json
from pathlib import Path

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.json_config import (
    JsonActivation,
    JsonConfig,
    JsonLayer,
    JsonWeight,
    format_json_config,
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
