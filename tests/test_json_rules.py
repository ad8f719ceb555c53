"""config.json: every rule of AMCT's, each fault with its place; what is accepted; what is accepted with a warning."""

import re

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.json_config import parse_json_config
from calibrant.proto.layerwise import layerwise_config


def at_line_three(member: str) -> str:
    """A file whose layer 'conv' has a member in line 3, from column 9 on."""
    return '{"version":1,\n    "conv":{\n        ' + member + "\n}}"


def activation(members: str) -> str:
    return at_line_three('"activation_quant_params":{' + members + "}")


def weight(members: str) -> str:
    return at_line_three('"weight_quant_params":{' + members + "}")


A, W = 36, 32  # columns where the members of the two helpers begin

REJECTED = {
    # The text
    "empty": ("", "1:1", "a value is expected, but the end of the file stands there"),
    "no object": ("[1]", "1:1", "the file is a list; an object in braces"),
    "a word": ("quant", "1:1", "a value is expected, but 'quant' stands there"),
    "not closed": ('{"version":1', "1:13", "',' or '}' is expected, but the end of the file stands there; the bracket of line 1"),
    "more behind it": ("{} {}", "1:4", "the JSON text ends here, but '{' follows"),
    "comma at the end": ('{"version":1,}', "1:13", "a comma before '}'"),
    "no comma": ('{"version":1 "batch_num":1}', "1:14", "',' or '}' is expected"),
    "no colon": ('{"version" 1}', "1:12", "':' is expected after the key 'version'"),
    "comment": ('{// x\n"version":1}', "1:2", "JSON has no comments"),
    "hash comment": ('{"version":1,\n# x\n"batch_num":1}', "2:1", "JSON has no comments"),
    "single quotes": ("{'version':1}", "1:2", "JSON wants plain double quotes"),
    "typographic quotes": ("{“version”:1}", "1:2", "JSON wants plain double quotes"),
    "Python's True": ('{"do_fusion":True}', "1:14", "JSON writes true"),
    "Python's None": ('{"do_fusion":None}', "1:14", "JSON writes null"),
    "NaN": ('{"batch_num":NaN}', "1:14", "a finite number is expected"),
    "Infinity": ('{"batch_num":-Infinity}', "1:14", "a finite number is expected"),
    "too large": ('{"batch_num":1e999}', "1:14", "1e999 is not a finite number"),
    "leading zero": ('{"batch_num":01}', "1:14", "a value is expected, but '01' stands there"),
    "plus": ('{"batch_num":+1}', "1:14", "a value is expected, but '+1' stands there"),
    "open text": ('{"version', "1:2", "the text in quotes is not closed"),
    "line in a text": ('{"a\nb":1}', "1:4", "invalid control character"),
    "bad escape": (r'{"a\x":1}', "1:4", "invalid \\escape"),
    "half a surrogate": (r'{"\ud800":{}}', "1:2", "half of a surrogate pair"),
    "very deep": ("[" * 100, "1:33", "more than 32 levels of brackets"),
    "very long number": ('{"batch_num":' + "1" * 5000 + "}", "1:14", "a number of 5000 characters"),
    # Keys given twice, at each level
    "twice at the top": ('{"version":1,\n"version":1}', "2:1", "the key 'version' is given a second time (first in line 1)"),
    "a layer twice": ('{"a":{},\n "a":{}}', "2:2", "the key 'a' is given a second time"),
    "twice in a layer": (at_line_three('"quant_enable":true,"quant_enable":true'), "3:29", "the key 'quant_enable'"),
    "twice in the data": (activation('"num_bits":8,"num_bits":8'), f"3:{A + 13}", "the key 'num_bits'"),
    # The keys of the file
    "unknown key": ('{"batchnum":1}', "1:2", "unknown key 'batchnum'; did you mean 'batch_num'?"),
    "unknown key, nothing near": ('{"xyz":1}', "1:2", "known are version, batch_num"),
    "version": ('{"version":2}', "1:12", "version is 2; 1 is expected"),
    "version as text": ('{"version":"1"}', "1:12", 'version is "1"; 1 is expected'),
    "version as float": ('{"version":1.0}', "1:12", "version is 1.0; 1 is expected"),
    "version true": ('{"version":true}', "1:12", "version is true; 1 is expected"),
    "batch_num 0": ('{"batch_num":0}', "1:14", "batch_num is 0; a whole number of at least 1"),
    "batch_num -1": ('{"batch_num":-1}', "1:14", "batch_num is -1"),
    "batch_num false": ('{"batch_num":false}', "1:14", "batch_num is false"),
    "batch_num 1.5": ('{"batch_num":1.5}', "1:14", "batch_num is 1.5"),
    "batch_num text": ('{"batch_num":"2"}', "1:14", 'batch_num is "2"'),
    "batch_num huge": ('{"batch_num":4294967296}', "1:14", "at most 4294967295"),
    "activation_offset": ('{"activation_offset":1}', "1:22", "activation_offset is 1; true or false is expected"),
    "joint_quant": ('{"joint_quant":"true"}', "1:16", 'joint_quant is "true"; true or false'),
    "weight_offset": ('{"weight_offset":null}', "1:18", "weight_offset is null; true or false"),
    "do_fusion": ('{"do_fusion":0}', "1:14", "do_fusion is 0; true or false"),
    "precision mode": ('{"fakequant_precision_mode":"FP16"}', "1:29", 'is \'FP16\'; "DEFAULT" or "FORCE_FP16_QUANT"'),
    "precision mode as number": ('{"fakequant_precision_mode":1}', "1:29", "fakequant_precision_mode is 1"),
    "skip_fusion_layers": ('{"skip_fusion_layers":"conv"}', "1:23", "a list of layer names"),
    "skip_fusion_layers of numbers": ('{"skip_fusion_layers":["a",1]}', "1:28", "skip_fusion_layers holds 1; a name in quotes"),
    "skip_fusion_layers twice": ('{"skip_fusion_layers":["a",\n"a"]}', "2:1", "names 'a' a second time"),
    "tensor_quantize": ('{"tensor_quantize":{}}', "1:20", "tensor_quantize is an object; a list of objects"),
    "tensor_quantize of numbers": ('{"tensor_quantize":[1]}', "1:21", "is 1; an object in braces"),
    "no layer_name": ('{"tensor_quantize":[{"input_index":0}]}', "1:21", "layer_name is missing"),
    "no input_index": ('{"tensor_quantize":[{"layer_name":"p"}]}', "1:21", "input_index is missing"),
    "layer_name": ('{"tensor_quantize":[{"layer_name":1}]}', "1:35", "layer_name is 1; a text in quotes"),
    "input_index": ('{"tensor_quantize":[{"layer_name":"p","input_index":-1}]}', "1:53", "input_index is -1"),
    "tensor key": ('{"tensor_quantize":[{"layername":"p"}]}', "1:22", "did you mean 'layer_name'?"),
    # A layer
    "layer no object": ('{"conv":true}', "1:2", "unknown key 'conv'"),
    "layer key": (at_line_three('"quant_enabel":true'), "3:9", "layer 'conv': unknown key 'quant_enabel'; did you mean 'quant_enable'?"),
    "quant_enable": (at_line_three('"quant_enable":1'), "3:24", "layer 'conv': quant_enable is 1; true or false"),
    "retrain key": (at_line_three('"retrain_enable":true'), "3:9", "retrain_enable belongs to a retrain (QAT) config.json"),
    "dmq 1": (at_line_three('"dmq_balancer_param":1'), "3:30", "dmq_balancer_param is 1; a number between 0.2 and 0.8"),
    "dmq 0.1": (at_line_three('"dmq_balancer_param":0.1'), "3:30", "dmq_balancer_param is 0.1"),
    "dmq 0.9": (at_line_three('"dmq_balancer_param":0.9'), "3:30", "dmq_balancer_param is 0.9"),
    "dmq text": (at_line_three('"dmq_balancer_param":"0.5"'), "3:30", 'dmq_balancer_param is "0.5"'),
    # Its data
    "activation": (at_line_three('"activation_quant_params":[]'), "3:35", "activation_quant_params is a list; an object"),
    "activation key": (activation('"search_steps":0.01'), f"3:{A}", "did you mean 'search_step'?"),
    "data num_bits": (activation('"num_bits":7'), f"3:{A + 11}", "num_bits is 7; 4 or 8 or 16 is expected"),
    "data num_bits true": (activation('"num_bits":true'), f"3:{A + 11}", "num_bits is true"),
    "max_percentile 0.5": (activation('"max_percentile":0.5'), f"3:{A + 17}", "a number above 0.5 and at most 1"),
    "max_percentile 1.1": (activation('"max_percentile":1.1'), f"3:{A + 17}", "max_percentile is 1.1"),
    "min_percentile text": (activation('"min_percentile":"1"'), f"3:{A + 17}", 'min_percentile is "1"'),
    "search_range no list": (activation('"search_range":0.7'), f"3:{A + 15}", "a list of two numbers"),
    "search_range of one": (activation('"search_range":[0.7]'), f"3:{A + 15}", "a list of two numbers"),
    "search_range of three": (activation('"search_range":[0.7,1,1.3]'), f"3:{A + 15}", "a list of two numbers"),
    "search_range of texts": (activation('"search_range":["a","b"]'), f"3:{A + 15}", "a list of two numbers"),
    "search_range from 0": (activation('"search_range":[0,1]'), f"3:{A}", "a start above 0 and an end above the start"),
    "search_range empty": (activation('"search_range":[1,1]'), f"3:{A}", "search_range is [1,1]"),
    "search_step 0": (activation('"search_step":0'), f"3:{A + 14}", "search_step is 0; a number above 0"),
    "search_step too wide": (activation('"search_step":0.61'), f"3:{A}", "at most the width of the range, 0.6"),
    "range below the default step": (activation('"search_range":[1.0,1.001]'), f"3:{A}", "search_step is 0.01; at most the width"),
    "search_step tiny": (activation('"search_step":1e-9'), f"3:{A}", "at most 1000000 are tried"),
    "act_algo": (activation('"act_algo":"kl"'), f"3:{A + 11}", 'act_algo is \'kl\'; "ifmr" or "hfmg" is expected'),
    "act_algo as number": (activation('"act_algo":1'), f"3:{A + 11}", "act_algo is 1"),
    "asymmetric": (activation('"asymmetric":"yes"'), f"3:{A + 13}", 'asymmetric is "yes"; true or false'),
    "num_of_bins 1000": (activation('"num_of_bins":1000'), f"3:{A + 14}", "1024 or 2048 or 4096 or 8192"),
    "num_of_bins float": (activation('"num_of_bins":4096.0'), f"3:{A + 14}", "num_of_bins is 4096.0"),
    "ifmr keys with hfmg": (activation('"act_algo":"hfmg","search_step":0.01'), f"3:{A + 18}", "search_step belongs to ifmr"),
    "hfmg keys with ifmr": (activation('"num_of_bins":4096,"act_algo":"ifmr"'), f"3:{A}", "num_of_bins belongs to hfmg"),
    "keys of both": (activation('"num_of_bins":4096,"max_percentile":1.0'), f"3:{A}", "keep those of one algorithm"),
    # Its weight
    "weight": (at_line_three('"weight_quant_params":1'), "3:31", "weight_quant_params is 1; an object"),
    "weight key": (weight('"chanel_wise":true'), f"3:{W}", "did you mean 'channel_wise'?"),
    "weight num_bits": (weight('"num_bits":5'), f"3:{W + 11}", "num_bits is 5; 4 or 6 or 7 or 8"),
    "channel_wise": (weight('"channel_wise":1'), f"3:{W + 15}", "channel_wise is 1; true or false"),
    "wts_algo": (weight('"wts_algo":"arq"'), f"3:{W + 11}", "wts_algo is 'arq'; \"arq_quantize\" or"),
    "ada key with arq": (weight('"wts_algo":"arq_quantize","reg_param":0.01'), f"3:{W + 26}", "reg_param belongs to ada_quantize"),
    "nuq key with arq": (weight('"num_steps":32'), f"3:{W}", "num_steps belongs to nuq_quantize, but wts_algo is arq_quantize"),
    "nuq key with ada": (weight('"wts_algo":"ada_quantize","num_steps":32'), f"3:{W + 26}", "num_steps belongs to nuq_quantize"),
    "num_steps": (weight('"wts_algo":"nuq_quantize","num_steps":8'), f"3:{W + 38}", "num_steps is 8; 16 or 32"),
    "num_of_iteration": (weight('"wts_algo":"nuq_quantize","num_of_iteration":6'), f"3:{W + 45}", "num_of_iteration is 6"),
    "num_iteration": (weight('"wts_algo":"ada_quantize","num_iteration":-1'), f"3:{W + 42}", "num_iteration is -1"),
    "reg_param": (weight('"wts_algo":"ada_quantize","reg_param":1.0'), f"3:{W + 38}", "a number between 0 and 1"),
    "warm_start": (weight('"wts_algo":"ada_quantize","warm_start":0'), f"3:{W + 39}", "warm_start is 0"),
    "beta_range": (weight('"wts_algo":"ada_quantize","beta_range":[2,20]'), f"3:{W + 26}", "a start above the end"),
    "beta_range of one": (weight('"wts_algo":"ada_quantize","beta_range":[2]'), f"3:{W + 39}", "a list of two numbers"),
    "beta_range to 0": (weight('"wts_algo":"ada_quantize","beta_range":[2,0]'), f"3:{W + 26}", "an end above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name: str) -> None:
    text, place, words = REJECTED[name]
    with pytest.raises(ConfigError) as caught:
        parse_json_config(text, "config.json")
    message = str(caught.value)
    assert message.startswith(f"config.json:{place}: "), message
    assert words in message
    assert "\n" not in message


ACCEPTED = {
    "nothing": "{}",
    "batches": '{"batch_num":4294967295}',
    "null layer settings left out": '{"conv":{}}',
    "no data settings": '{"conv":{"quant_enable":true,"weight_quant_params":{"channel_wise":true}}}',
    "an older file": activation('"max_percentile":0.999999,"search_range":[0.7,1.3],"search_step":0.01,"act_algo":"ifmr"'),
    "step as wide as the range": activation('"search_range":[0.7,1.3],"search_step":0.6'),
    "whole numbers in a range": activation('"search_range":[1,2],"max_percentile":1'),
    "hfmg": activation('"act_algo":"hfmg","num_of_bins":8192'),
    "16 bits": activation('"num_bits":16'),
    "4 bits": weight('"num_bits":4'),
    "nuq": weight('"wts_algo":"nuq_quantize","num_steps":16,"num_of_iteration":0'),
    "ada": weight('"wts_algo":"ada_quantize","num_iteration":0,"beta_range":[20,2],"reg_param":0.1,"warm_start":0.2'),
    "balancer ends": '{"a":{"dmq_balancer_param":0.2},"b":{"dmq_balancer_param":0.8}}',
    "pseudo layer": '{"Conv::common":{"quant_enable":true}}',
    "default mode": '{"fakequant_precision_mode":"DEFAULT"}',
    "other line ends and blanks": '{\r\n\t"version" : 1\r\n}\r\n',
    "escapes in a name": r'{"l\u00e4yer/\"1\"":{"quant_enable":true}}',
    "Chinese name": '{"卷积":{"quant_enable":true}}',
    "a key inside another's value": '{"version":1,"a":{"quant_enable":true},"b":{"quant_enable":true}}',
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    config = parse_json_config(ACCEPTED[name], "config.json")
    assert config.notes == ()
    assert layerwise_config(config).json == config


WARNED = {
    "byte-order mark": ('\ufeff{"version":1}', "1:1", "byte-order mark"),
    "batch_num true": ('{"batch_num":true}', "1:2", "batch_num is true, which AMCT reads as 1"),
    "many candidates": (activation('"search_step":0.0005'), f"3:{A}", "search_step 0.0005 makes 1201 candidates"),
    "bins without an algorithm": (activation('"num_of_bins":2048'), f"3:{A}", "act_algo is not written; num_of_bins says"),
    "data of 4 bits": (activation('"num_bits":4'), f"3:{A}", "the data is quantized to INT8"),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_accepted_with_a_warning(name: str) -> None:
    text, place, words = WARNED[name]
    (note,) = parse_json_config(text, "config.json").notes
    assert note.severity == "warn"
    assert re.match(rf"config\.json:{place}: .*{re.escape(words)}", note.message), note.message


def test_batch_num_true_is_one() -> None:
    assert parse_json_config('{"batch_num":true}').batch_num == 1
