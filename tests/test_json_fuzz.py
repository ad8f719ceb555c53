"""Mutated JSON configurations: whatever a text holds, it is read or refused with one `ConfigError` of one line."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.any_config import parse_calibration_config, parse_config
from calibrant.proto.json_config import JsonConfig, format_json_config, parse_json_config
from calibrant.proto.layerwise import layerwise_config
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json, parse_retrain_json

DATA = {
    "num_bits": 8, "max_percentile": 0.999999, "min_percentile": 0.999999, "search_range": [0.7, 1.3],
    "search_step": 0.01, "act_algo": "ifmr", "asymmetric": True,
}  # fmt: skip
CALIBRATION = {
    "version": 1, "batch_num": 2, "activation_offset": True, "joint_quant": False, "do_fusion": True,
    "fakequant_precision_mode": "FORCE_FP16_QUANT", "skip_fusion_layers": ["conv"],
    "tensor_quantize": [{"layer_name": "pool", "input_index": 0, "activation_quant_params": DATA}],
    "conv": {
        "quant_enable": True, "dmq_balancer_param": 0.5, "activation_quant_params": DATA,
        "weight_quant_params": {"num_bits": 8, "channel_wise": True, "wts_algo": "arq_quantize"},
    },
    "fc": {
        "quant_enable": False, "activation_quant_params": {"act_algo": "hfmg", "num_of_bins": 4096},
        "weight_quant_params": {"wts_algo": "ada_quantize", "beta_range": [20, 2], "reg_param": 0.01},
    },
}  # fmt: skip
RETRAIN = {
    "version": 1, "batch_num": 1,
    "conv": {
        "retrain_enable": True,
        "retrain_data_config": {"algo": "ulq_quantize", "clip_max": 3.0, "clip_min": -3.0, "dst_type": "INT8"},
        "retrain_weight_config": {"algo": "arq_retrain", "channel_wise": True, "dst_type": "INT8"},
        "regular_prune_enable": True,
        "regular_prune_config": {"prune_type": "filter_prune", "prune_ratio": 0.5, "ascend_optimized": True},
    },
}  # fmt: skip
ODD = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e300,
    10**30,
    "",
    "INT8",
    [],
    {},
    [1, 2],
    {"a": 1},
    "\n",
    "\u2028",
    float("nan"),
    float("inf"),
]
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\n",
    "\x00",
    "NaN",
    "-",
    "1e999",
    "\\ud800",
    "//",
    "'",
    "\ufeff",
    "true",
    "9" * 30,
]
SECONDS = 20.0


def replaced(content: Any, draw: random.Random) -> Any:
    """The content with one value, somewhere in it, replaced, renamed or left out."""
    if isinstance(content, dict) and content and draw.random() < 0.8:
        key = draw.choice(list(content))
        result = dict(content)
        what = draw.random()
        if what < 0.1:
            del result[key]
        elif what < 0.2:
            result[key[:-1]] = result.pop(key)
        else:
            result[key] = replaced(content[key], draw)
        return result
    if isinstance(content, list) and content and draw.random() < 0.6:
        return [replaced(one, draw) for one in content]
    return draw.choice(ODD)


def mutated(text: str, draw: random.Random) -> str:
    """The text with a few characters left out, doubled or put in."""
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 1, 1, 5, 40]))
        text = text[:start] + draw.choice([*PIECES, "", text[start:end] * 2]) + text[end:]
    return text


def outcome(read: Callable[[str, str], object], text: str) -> object:
    try:
        return read(text, "fuzz.json")
    except ConfigError as error:
        return error


def check(text: str) -> None:
    for read in (parse_json_config, parse_retrain_json, parse_config, parse_calibration_config):
        found = outcome(read, text)
        if isinstance(found, ConfigError):
            assert str(found).startswith("fuzz.json"), found
            assert "\n" not in str(found), found
        elif isinstance(found, JsonConfig):
            layerwise_config(found)
            assert parse_json_config(format_json_config(found)) == found
        elif isinstance(found, RetrainJson):
            assert parse_retrain_json(format_retrain_json(found)) == found


@pytest.mark.parametrize("content", [CALIBRATION, RETRAIN], ids=["calibration", "retrain"])
def test_values_of_every_kind_in_every_place(content: Any) -> None:
    draw, end = random.Random(5), time.monotonic() + SECONDS
    for _ in range(1500):
        changed = replaced(content, draw)
        check(json.dumps(changed, ensure_ascii=draw.random() < 0.5))
        if time.monotonic() > end:
            break


@pytest.mark.parametrize("content", [CALIBRATION, RETRAIN], ids=["calibration", "retrain"])
def test_texts_with_any_damage(content: Any) -> None:
    draw, end = random.Random(6), time.monotonic() + SECONDS
    text = json.dumps(content, indent=1)
    for _ in range(1500):
        check(mutated(text, draw))
        if time.monotonic() > end:
            break


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**5, "9" * 10**6, '"' + "\\" * 10**5, "{" + " " * 10**6])
def test_hostile_texts_end_soon(text: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError):
        parse_json_config(text)
    assert time.monotonic() - begin < 5
