"""The rules of AMCT's text configurations in one table: what is accepted, what is accepted with a warning, what is refused and where.

A row is a text and what is expected of it: nothing at all for a text that is accepted without a warning, else the place and some
words of the warning or error.
"""

import re
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from calibrant.errors import ConfigError
from calibrant.proto import documents
from calibrant.proto.optimize_conf import parse_optimize_conf
from calibrant.proto.retrain_config import parse_retrain_config
from calibrant.proto.simple_config import ConfigNote, parse_simple_config, read_simple_config

CONFIGS = Path(__file__).parent / "configs"


class Case(NamedTuple):
    kind: Literal["ptq", "retrain", "optimize"]
    text: str
    outcome: Literal["accept", "warn", "reject"]
    place: str = ""
    words: str = ""


def accept(text: str, kind: Literal["ptq", "retrain", "optimize"] = "ptq") -> Case:
    return Case(kind, text, "accept")


def warn(text: str, place: str, words: str, kind: Literal["ptq", "retrain", "optimize"] = "ptq") -> Case:
    return Case(kind, text, "warn", place, words)


def reject(text: str, place: str, words: str, kind: Literal["ptq", "retrain", "optimize"] = "ptq") -> Case:
    return Case(kind, text, "reject", place, words)


def ifmr(text: str) -> str:
    return f"common_config {{\nifmr_quantize {{\n{text}\n}} }}"


def hfmg(text: str) -> str:
    return f"common_config {{\nhfmg_quantize {{\n{text}\n}} }}"


def arq(text: str) -> str:
    return f"common_config {{\narq_quantize {{\n{text}\n}} }}"


def ada(text: str) -> str:
    return f"common_config {{\nada_quantize {{\n{text}\n}} }}"


def ulq(text: str) -> str:
    return f"retrain_data_quant_config {{ ulq_quantize {{\n{text}\n}} }}"


def weights(text: str) -> str:
    return f"retrain_weight_quant_config {{ arq_retrain {{\n{text}\n}} }}"


def prune(text: str) -> str:
    return f"prune_config {{ filter_pruner {{ balanced_l2_norm_filter_prune {{\n{text}\n}} }} }}"


SWITCHES = ("activation_offset", "joint_quant", "do_fusion", "weight_offset", "enable_auto_nuq")
IFMR_NUMBERS = ("search_range_start", "search_range_end", "search_step", "max_percentile", "min_percentile")
NAME_LISTS = ("skip_layers", "skip_layer_types", "skip_fusion_layers")
RETRAIN_LISTS = (
    "skip_layers", "skip_layer_types", "quant_skip_layers", "quant_skip_types", "regular_prune_skip_layers",
    "regular_prune_skip_types",
)  # fmt: skip

SYNTAX = {
    "nothing": accept(""),
    "colon and brace": accept("common_config : { }"),
    "brace alone": accept("common_config { }"),
    "comments": accept("# one\nbatch_num : 2 # two\n"),
    "list": accept('skip_layers : ["a", "b"]'),
    "one a line": accept('skip_layers : "a"\nskip_layers : "b"'),
    "unknown field": reject("\n batch_size : 2", "2:2", "unknown field 'batch_size' in AMCTConfig"),
    "unknown field in a block": reject(hfmg("bins : 2"), "3:1", "unknown field 'bins' in HFMGQuantize"),
    "misspelt field": reject("skip_layer : 'a'", "1:1", "did you mean 'skip_layers'"),
    "brace missing": reject("common_config {\n", "1:15", "the block common_config of line 1 is not closed"),
    "brace too many": reject("batch_num : 2 }", "1:15", "not a simple configuration"),
    "colon missing": reject("batch_num 2", "1:11", 'Expected ":"'),
    "omitted lines": reject("batch_num : 1\n...", "2:1", "stands for lines that were left out"),
    "ellipsis": reject("common_config {\n  …\n}", "2:3", "stands for lines that were left out"),
    "quote missing": reject('skip_layers : "a\ndo_fusion : true\n', "1:15", "String missing ending quote"),
    "quote missing before another": reject('skip_layers : "a\nskip_layers : "b"\n', "1:15", "missing ending quote"),
    "retrain field": reject("quant_skip_layers : 'a'", "1:1", "quant_skip_layers belongs to a retrain"),
    "record": reject("record { }", "1:1", "record belongs to a record file"),
    "JSON": reject('{"batch_num": 1}', "1:1", "looks like JSON"),
}

ODDITIES = {
    "broken text": warn('skip_layers : "\nconv1\n"', "1:15", 'broken over lines was read as "conv1"'),
    "broken text in a list": warn('skip_layers : ["a", "\nb"]', "1:21", 'was read as "b"'),
    "typographic double quotes": warn("skip_layers : “conv1”", "1:15", "“ was read as"),
    "typographic single quotes": warn("skip_layers : \u2018conv1\u2019", "1:15", "\u2018 was read as '"),
    "plain and typographic quotes": warn('skip_layers : "conv1”', "1:15", "” was read as"),
    "full-width colon": warn("batch_num\uff1a2", "1:10", "full-width '\uff1a' was read as ':'"),
    "full-width brace": warn("common_config \uff5b }", "1:15", "full-width '\uff5b' was read as '{'"),
    "full-width comma": warn("skip_layers : ['a'\uff0c 'b']", "1:19", "full-width '\uff0c' was read as ','"),
    "full-width digit": warn("batch_num : \uff12", "1:13", "full-width '\uff12' was read as '2'"),
    "zero-width space": warn("batch_num : 2\n\u200b", "2:1", "invisible character (U+200B)"),
    "byte-order mark": warn("\ufeffbatch_num : 2", "1:1", "byte-order mark"),
    "full-width stop": reject("batch_num : 2\u3002", "1:14", "not a simple configuration"),
    "odd characters inside a name": accept("skip_layers : '“\uff12”…...'"),
    "odd characters inside a comment": accept("# “\uff1a ... …\n"),
    "place after an odd text": reject('skip_layers : "\nconv1\n"\nbatch_num : 0', "4:1", "batch_num is 0"),
    "place on the line of an odd text": reject('skip_layers : ["\nconv1\n", 2]', "3:4", "a text in quotes"),
}

GLOBALS = {
    "version 1": accept("version : 1"),
    "version 2": reject("\nversion : 2", "2:1", "version is 2; 1 is the only"),
    "version below 0": reject("version : -1", "1:1", "version is -1"),
    "version a text": reject("version : '1'", "1:11", "version: a whole number"),
    "batch_num 1": accept("batch_num : 1"),
    "batch_num 0": reject("batch_num : 0", "1:1", "batch_num is 0; at least 1"),
    "batch_num below 0": reject("batch_num : -2", "1:13", "batch_num: a whole number between 0 and"),
    "batch_num a fraction": reject("batch_num : 2.5", "1:13", "batch_num: a whole number"),
    "batch_num a text": reject("batch_num : '2'", "1:13", "batch_num: a whole number"),
    "precision mode default": accept("fakequant_precision_mode : DEFAULT"),
    "precision mode": accept("fakequant_precision_mode : FORCE_FP16_QUANT"),
    "precision mode unknown": reject("fakequant_precision_mode : FP32", "1:28", "DEFAULT or FORCE_FP16_QUANT"),
    "scalar twice": warn("batch_num : 1\nbatch_num : 2", "2:1", "given 2 times (lines 1, 2): the last one wins"),
    "scalar thrice on a line": warn("batch_num:1 batch_num:2 batch_num:3", "1:25", "3 times (at 1:1, 1:13, 1:25)"),
    "common_config twice": warn("common_config { }\ncommon_config { }", "2:1", "the blocks are merged"),
    "NUQ without a mapping file": warn("nuq_config { }", "1:1", "nuq_config has no mapping_file"),
    "NUQ steps": reject("nuq_config { mapping_file : 'm' nuq_quantize { num_steps : 20 } }", "1:48", "one of 16, 32"),
    "conv_calibration_config": accept("conv_calibration_config { }"),
    "fc_calibration_config": accept("fc_calibration_config { }"),
    **{f"{name} true": accept(f"{name} : true") for name in ("activation_offset", "do_fusion")},
    **{f"{name} false": accept(f"{name} : false") for name in SWITCHES},
    **{
        f"{name} a word": reject(f"{name} : on", f"1:{len(name) + 4}", "true or false is expected") for name in SWITCHES
    },
    **{f"{name} 2": reject(f"{name} : 2", f"1:{len(name) + 4}", "true or false is expected") for name in SWITCHES},
}

NAMES = {
    **{
        f"{name} without quotes": reject(f"{name} : conv1", f"1:{len(name) + 4}", "a text in quotes")
        for name in NAME_LISTS
    },
    **{f"{name} twice": reject(f"{name} : 'a'\n{name} : 'a'", "2:1", "names 'a' a second time") for name in NAME_LISTS},
    "override of a layer twice": reject(
        "override_layer_configs { layer_name : 'a' calibration_config { } }\n" * 2, "2:1", "names 'a' a second time"
    ),
    "override of a type twice": reject(
        "override_layer_types { layer_type : 'Gemm' calibration_config { } }\n" * 2, "2:1", "names 'Gemm' a second time"
    ),
    "override without calibration_config": warn(
        "override_layer_types { layer_type : 'Gemm' }", "1:1", "the defaults apply"
    ),
    "override without a layer": reject(
        "override_layer_configs { calibration_config { } }", "1:1", "without layer_name"
    ),
    "override without a type": reject("override_layer_types { calibration_config { } }", "1:1", "without layer_type"),
    "skipped and overridden": accept(
        "skip_layers : 'a' override_layer_configs { layer_name : 'a' calibration_config { } }"
    ),
    "tensor": accept("tensor_quantize { layer_name : 'p' input_index : 0 }"),
    "tensor without a layer": reject("tensor_quantize { input_index : 0 }", "1:1", "without layer_name"),
    "tensor without an index": reject("tensor_quantize { layer_name : 'p' }", "1:1", "without input_index"),
    "tensor below 0": reject("tensor_quantize { layer_name : 'p' input_index : -1 }", "1:50", "a whole number"),
    "tensor with a bad algorithm": reject(
        "tensor_quantize { layer_name : 'p' input_index : 0\nhfmg_quantize { num_of_bins : 1 } }",
        "2:17",
        "num_of_bins is 1",
    ),
}

DATA = {
    **{f"{name} not finite": reject(ifmr(f"{name} : nan"), "3:1", "finite number is expected") for name in IFMR_NUMBERS},
    **{f"{name} infinite": reject(ifmr(f"{name} : inf"), "3:1", "finite number is expected") for name in IFMR_NUMBERS},
    **{f"{name} a text": reject(ifmr(f"{name} : '1'"), f"3:{len(name) + 4}", "a number is expected") for name in IFMR_NUMBERS},
    "percentile one": accept(ifmr("max_percentile : 1.0 min_percentile : 1")),
    "percentile above one half": accept(ifmr("max_percentile : 0.500001")),
    **{
        f"{name} {value}": reject(ifmr(f"{name} : {value}"), "3:1", "above 0.5 and at most 1")
        for name in ("max_percentile", "min_percentile")
        for value in ("0.5", "0", "-1", "1.0001")
    },
    "range starts at 0": reject(ifmr("search_range_start : 0"), "3:1", "above 0"),
    "range is a point": reject(ifmr("search_range_start : 1.3"), "3:1", "the search range 1.3 to 1.3 is empty"),
    "range reversed": reject(ifmr("search_range_end : 0.6"), "3:1", "the search range 0.7 to 0.6 is empty"),
    "step 0": reject(ifmr("search_step : 0"), "3:1", "above 0"),
    "step below 0": reject(ifmr("search_step : -0.1"), "3:1", "above 0"),
    "step as wide as the range": accept(ifmr("search_step : 0.6")),
    "step wider than the range": reject(ifmr("search_step : 0.61"), "3:1", "at most the width of the range, 0.6"),
    "many candidates": warn(ifmr("search_step : 0.0001"), "3:1", "6001 candidates"),
    "asymmetric": accept(ifmr("asymmetric : true")),
    "asymmetric a number": reject(ifmr("asymmetric : 3"), "3:14", "true or false"),
    **{f"{bins} bins": accept(hfmg(f"num_of_bins : {bins}")) for bins in (1024, 2048, 4096, 8192)},
    **{f"{bins} bins refused": reject(hfmg(f"num_of_bins : {bins}"), "3:1", "one of 1024, 2048") for bins in (0, 512, 16384)},
    "bins below 0": reject(hfmg("num_of_bins : -1"), "3:15", "a whole number"),
    "IFMR then HFMG": warn("common_config { ifmr_quantize { }\nhfmg_quantize { } }", "2:1", "hfmg_quantize, wins"),
    "HFMG then IFMR": warn("common_config { hfmg_quantize { }\nifmr_quantize { } }", "2:1", "ifmr_quantize, wins"),
    "HFMG with a step": reject(hfmg("search_step : 0.1"), "3:1", "unknown field 'search_step' in HFMGQuantize"),
    "IFMR with bins": reject(ifmr("num_of_bins : 1024"), "3:1", "unknown field 'num_of_bins' in FMRQuantize"),
    "data of 8 bits": accept(ifmr("dst_type : INT8")),
    "data of 16 bits": accept(ifmr("dst_type : INT16")),
    "data of 4 bits": reject(ifmr("dst_type : INT4"), "3:12", "INT8 or INT16 is expected"),
}  # fmt: skip

WEIGHTS = {
    **{f"{bits} bits": accept(arq(f"quant_bits : {bits}")) for bits in (4, 6, 7, 8)},
        **{f"{bits} bits refused": reject(arq(f"quant_bits : {bits}"), "3:1", "one of 4, 6, 7, 8") for bits in (0, 5, 9, 16)},
    "channel_wise": accept(arq("channel_wise : true")),
    "channel_wise a text": reject(arq("channel_wise : 'true'"), "3:16", "true or false"),
    "offset of weights alone": accept("common_config {\nweight_compress_only : true arq_quantize { asymmetric : true } }"),
    "offset of weights": reject(arq("asymmetric : true"), "3:1", "weight_compress_only: true alone"),
    "offset of weights refused outright": reject(
        "common_config {\nweight_compress_only : false\narq_quantize { asymmetric : true } }", "3:16", "weight_compress_only"
    ),
    "no offset of weights": accept(arq("asymmetric : false")),
    "two weight algorithms": reject("common_config { arq_quantize { }\nnuq_quantize { num_steps : 1 } }", "2:16", "num_steps"),
    "NUQ": accept("common_config { nuq_quantize { num_steps : 16 } }"),
    "NUQ iterations": reject("common_config { nuq_quantize { num_of_iteration : 6 } }", "1:32", "one of 0, 1, 2, 3, 4, 5"),
    "AdaRound": accept(ada("num_iteration : 100")),
    "AdaRound iterations": reject(ada("num_iteration : -1"), "3:17", "a whole number"),
    **{f"AdaRound {name} {value}": reject(ada(f"{name} : {value}"), "3:1", "between 0 and 1")
       for name in ("reg_param", "warm_start") for value in ("0", "1", "-0.5")},
    "AdaRound beta": reject(ada("beta_range_start : 2"), "3:1", "above beta_range_end, 2.0"),
    "AdaRound beta end": reject(ada("beta_range_end : 0"), "3:1", "above 0"),
    **{f"DMQ {value}": accept(f"common_config {{ dmq_balancer {{ migration_strength : {value} }} }}")
       for value in ("0.2", "0.5", "0.8")},
    **{f"DMQ {value}": reject(f"common_config {{ dmq_balancer {{ migration_strength : {value} }} }}", "1:32", "0.2 to 0.8")
       for value in ("0.19", "0.81", "1")},
}  # fmt: skip

RETRAIN = {
    "nothing": accept("", "retrain"),
    "batch_num 0": reject("batch_num : 0", "1:1", "batch_num is 0", "retrain"),
    "version 3": reject("version : 3", "1:1", "version is 3", "retrain"),
    "PTQ field": reject("common_config { }", "1:1", "common_config belongs to a simple configuration", "retrain"),
    "unknown field": reject(ulq("clip : 1"), "2:1", "unknown field 'clip' in ActULQquantize", "retrain"),
    "clip ends": accept(ulq("clip_max_min { clip_max : 1 clip_min : -1 }"), "retrain"),
    "clip_max alone": reject(ulq("clip_max_min { clip_max : 1 }"), "2:1", "clip_max_min without clip_min", "retrain"),
    "clip_min alone": reject(ulq("clip_max_min { clip_min : -1 }"), "2:1", "clip_max_min without clip_max", "retrain"),
    "clip_max 0": reject(ulq("clip_max_min { clip_max : 0 clip_min : -1 }"), "2:16", "above 0", "retrain"),
    "clip_min 0": reject(ulq("clip_max_min { clip_max : 1 clip_min : 0 }"), "2:29", "below 0", "retrain"),
    "clip_max infinite": reject(ulq("clip_max_min { clip_max : inf clip_min : -1 }"), "2:16", "finite", "retrain"),
    "fixed_min": accept(ulq("fixed_min : false"), "retrain"),
    "fixed_min a number": reject(ulq("fixed_min : 7"), "2:13", "true or false", "retrain"),
    "data of 8 bits": accept(ulq("dst_type : INT8"), "retrain"),
    "data of 16 bits": warn(ulq("dst_type : INT16"), "2:1", "INT16 is accepted", "retrain"),
    "data of 4 bits": reject(ulq("dst_type : INT4"), "1:1", "data of INT4 with weights of INT8 is impossible", "retrain"),
    "data of 2 bits": reject(ulq("dst_type : INT2"), "2:12", "INT4 or INT8 or INT16", "retrain"),
    "weights of 4 bits": warn(weights("dst_type : INT4"), "2:1", "INT4 is accepted", "retrain"),
    "weights of 16 bits": reject(weights("dst_type : INT16"), "1:1", "data of INT8 with weights of INT16", "retrain"),
    "weights by ULQ": accept("retrain_weight_quant_config { ulq_retrain { channel_wise : true } }", "retrain"),
    "both weight algorithms": warn(
        "retrain_weight_quant_config { ulq_retrain { }\narq_retrain { } }", "2:1", "arq_retrain, wins", "retrain"
    ),
    "override with both": reject(
        "override_layer_configs { layer_name : 'a' " + ulq("dst_type : INT4") + weights("") + "}", "3:4",
        "data of INT4 with weights of INT8", "retrain",
    ),
    "override of a type twice": reject(
        "override_layer_types { layer_type : 'Linear' }\n" * 2, "2:24", "names 'Linear' a second time", "retrain"
    ),
    "override without a layer": reject("override_layer_configs { }", "1:1", "without layer_name", "retrain"),
    "pruning": warn(prune("prune_ratio : 0.3"), "1:1", "nothing is pruned", "retrain"),
    "pruning without a ratio": reject(prune(""), "1:32", "without prune_ratio", "retrain"),
    **{f"pruning {value}": reject(prune(f"prune_ratio : {value}"), "2:1", "between 0 and 1", "retrain")
       for value in ("0", "1", "1.5", "-0.1")},
    "pruning without an algorithm": warn("prune_config { filter_pruner { } }", "1:1", "names no algorithm", "retrain"),
    "selective pruning": warn(
        "prune_config { n_out_of_m_pruner { l1_selective_prune { n_out_of_m_type : M4N2 } } }", "1:1", "nothing", "retrain"
    ),
    "selective pruning of another kind": reject(
        "prune_config { n_out_of_m_pruner { l1_selective_prune { n_out_of_m_type : M8N4 } } }", "1:75", "M4N2", "retrain"
    ),
    "automatic pruning": warn("compress_ratio : 1.25", "1:1", "automatic pruning", "retrain"),
    **{f"{name} twice": warn(f"{name} : 'a'\n{name} : 'a'", "2:1", "names 'a' a second time", "retrain")
       for name in RETRAIN_LISTS},
    "broken text": warn('skip_layers : "\nconv1\n"', "1:15", 'was read as "conv1"', "retrain"),
    "scalar twice": warn("batch_num : 1\nbatch_num : 2", "2:1", "the last one wins", "retrain"),
}  # fmt: skip

OPTIMIZE = {
    "quoted": accept('calibration : { input_data_dir : "a.bin" }', "optimize"),
    "bare": accept("calibration {\n  input_data_dir : ./a.bin,b.bin\n}", "optimize"),
    "bare with a comment": accept("calibration {\n  config_file : quant.cfg  # ours\n}", "optimize"),
    "no block": reject("", "1:1", "no calibration block", "optimize"),
    "unknown field": reject("calibration { input_data : 'a' }", "1:15", "did you mean 'input_data_dir'", "optimize"),
    "shape without a name": reject("calibration {\ninput_shape : '1,3'\n}", "2:1", "'1,3' is no shape", "optimize"),
    "shape with a word": reject("calibration {\ninput_shape : 'x:1,-1'\n}", "2:1", "is no shape", "optimize"),
    "shape twice": reject("calibration {\ninput_shape : 'x:1;x:2'\n}", "2:1", "names 'x' a second time", "optimize"),
    "path twice": warn("calibration {\nlog : info\nlog : debug\n}", "3:1", "log is given 2 times", "optimize"),
    "quantization in it": reject("batch_num : 1", "1:1", "batch_num belongs to a simple configuration", "optimize"),
}

TABLES = {
    "syntax": SYNTAX,
    "oddity": ODDITIES,
    "global": GLOBALS,
    "name": NAMES,
    "data": DATA,
    "weight": WEIGHTS,
    "retrain": RETRAIN,
    "optimize": OPTIMIZE,
}
CASES = {f"{table}: {name}": case for table, cases in TABLES.items() for name, case in cases.items()}


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 120
    assert {case.outcome for case in CASES.values()} == {"accept", "warn", "reject"}


def notes_of(case: Case) -> tuple[ConfigNote, ...]:
    if case.kind == "retrain":
        return parse_retrain_config(case.text, "q.cfg").notes
    if case.kind == "optimize":
        return parse_optimize_conf(case.text, "q.cfg").notes
    return parse_simple_config(case.text, "q.cfg").notes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rule(case: Case) -> None:
    if case.outcome == "reject":
        with pytest.raises(ConfigError, match=rf"^q\.cfg:(?:{case.place}): .*{re.escape(case.words)}") as caught:
            notes_of(case)
        assert "\n" not in str(caught.value)
        return
    warnings = [note.message for note in notes_of(case) if note.severity == "warn"]
    if case.outcome == "accept":
        assert warnings == []
        return
    found = [text for text in warnings if text.startswith(f"q.cfg:{case.place}: ") and case.words in text]
    assert len(found) == 1, warnings


REFUSED = {
    "misspelt_field": (
        "5:9",
        "unknown field 'serach_step' in FMRQuantize of a simple configuration; did you mean 'search_step'?",
    ),
    "omitted_lines": ("6:5", "'...' stands for lines that were left out"),
    "number_of_bins": ("4:27", "num_of_bins is 3000; one of 1024, 2048, 4096, 8192 is expected"),
    "weight_offset": ("7:13", "asymmetric: true is for weights with weight_compress_only: true alone"),
    "negative_batches": ("2:13", "batch_num: a whole number between 0 and 4294967295 is expected"),
    "not_a_number": ("4:9", "min_percentile is nan; a finite number is expected"),
    "open_block": (
        "5:1",
        "unknown field 'do_fusion' in CalibrationConfig; it belongs to a simple configuration itself: a brace is missing",
    ),
    "same_layer_twice": ("5:1", "names 'conv1' a second time (first at {path}:2:5)"),
    "open_quote": ("1:15", "String missing ending quote"),
    "step_too_wide": ("5:9", "search_step is 0.5; at most the width of the range, 0.4, is expected"),
    "foreign_type": ("4:1", "'DepthwiseConv2' is no layer type of the atc dialect; did you mean 'DepthwiseConv2D'?"),
    "retrain_one_end": ("3:9", "clip_max_min without clip_min"),
    "retrain_bits": ("3:1", "data of INT16 with weights of INT4 is impossible"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_file(name: str) -> None:
    path = CONFIGS / "refused" / f"{name}.cfg"
    place, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        read_and_check(path)
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert words.format(path=path) in str(caught.value)


def read_and_check(path: Path) -> None:
    if documents.detect_document(path) == "retrain":
        parse_retrain_config(path.read_text(encoding="utf-8"), str(path))
    else:
        read_simple_config(path).check_types()


def test_every_refused_file_is_in_the_table() -> None:
    assert {path.stem for path in (CONFIGS / "refused").glob("*.cfg")} == set(REFUSED)


def test_thousands_of_names_are_read_in_one_pass() -> None:
    text = "".join(f'skip_layers : "layer{number}"\n' for number in range(20_000))
    assert len(parse_simple_config(text).skip_layers) == 20_000
