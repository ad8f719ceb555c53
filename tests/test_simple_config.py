"""Simple configurations: what is accepted, what is accepted with a warning, what is refused, and where each message points."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.simple_config import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NuqSettings,
    QuantConfig,
    TensorSettings,
    canonical_text,
    parse_simple_config,
    read_simple_config,
)

SAMPLE = """\
# global quantize parameter
batch_num : 2
activation_offset : true
joint_quant : false
skip_layers : "layer1.1.conv2"
skip_layer_types:"Conv"
do_fusion: true
skip_fusion_layers : "layer1.1.conv2"
common_config : {
    arq_quantize : {
        channel_wise : true
    }
    ifmr_quantize : {
        search_range_start : 0.7
        search_range_end : 1.3
        search_step : 0.01
        max_percentile : 0.999999
        min_percentile : 0.999999
         asymmetric : true
    }
}

override_layer_types : {
    layer_type : "Gemm"
    calibration_config : {
        arq_quantize : {
            channel_wise : false
        }
        ifmr_quantize : {
            search_range_start : 0.8
            search_range_end : 1.2
            search_step : 0.02
            max_percentile : 0.999999
            min_percentile : 0.999999
              asymmetric : false
        }
    }
}

override_layer_configs : {
    layer_name : "layer1.2.conv2"
    calibration_config : {
        arq_quantize : {
            channel_wise : true
        }
        hfmg_quantize : {
            num_of_bins : 2048
        }
    }
}
"""


def test_sample_of_the_reference_is_read_in_full() -> None:
    config = parse_simple_config(SAMPLE, "quant.cfg")
    narrow = IfmrSettings(0.8, 1.2, 0.02, 0.999999, 0.999999, asymmetric=False)
    assert config == QuantConfig(
        batch_num=2,
        skip_layers=("layer1.1.conv2",),
        skip_layer_types=("Conv",),
        skip_fusion_layers=("layer1.1.conv2",),
        common=CalibrationBlock(ifmr=IfmrSettings(asymmetric=True), arq=ArqSettings(channel_wise=True)),
        override_types=(("Gemm", CalibrationBlock(ifmr=narrow, arq=ArqSettings(channel_wise=False))),),
        override_layers=(
            ("layer1.2.conv2", CalibrationBlock(hfmg=HfmgSettings(2048), arq=ArqSettings(channel_wise=True))),
        ),
    )
    assert config.notes == ()
    assert config.source == "quant.cfg"
    assert config.text == SAMPLE


def test_positions_point_at_names_and_members() -> None:
    config = parse_simple_config(SAMPLE, "quant.cfg")
    assert config.where("batch_num") == "quant.cfg:2:1"
    assert config.where("skip_layers", "layer1.1.conv2") == "quant.cfg:5:1"
    assert config.where("override_layer_types", "Gemm") == "quant.cfg:24:5"
    assert config.where("override_layer_configs", "layer1.2.conv2") == "quant.cfg:41:5"
    assert config.where("skip_layers", "nowhere") == "quant.cfg"
    assert QuantConfig().where("batch_num") == "configuration"
    block = config.override_types[0][1]
    assert block.places["arq_quantize.channel_wise"] == "quant.cfg:27:13"
    assert block.places["ifmr_quantize"] == "quant.cfg:29:9"


def test_empty_text_gives_amct_defaults() -> None:
    assert parse_simple_config("") == QuantConfig()
    assert QuantConfig() == QuantConfig(None, activation_offset=True, joint_quant=False, do_fusion=True)


BLOCK = "common_config {{ {} }}"
IFMR = "common_config {{ ifmr_quantize {{ {} }} }}"
HFMG = "common_config {{ hfmg_quantize {{ {} }} }}"
ARQ = "common_config {{ arq_quantize {{ {} }} }}"


ACCEPTED = {
    "colon before a brace": ("common_config : { }", QuantConfig(common=CalibrationBlock())),
    "no colon before a brace": ("common_config { }", QuantConfig(common=CalibrationBlock())),
    "angle brackets": ("common_config < arq_quantize: < > >", QuantConfig(common=CalibrationBlock(arq=ArqSettings()))),
    "comment only": ("# nothing\n", QuantConfig()),
    "comment after a value": ("batch_num: 3 # three", QuantConfig(batch_num=3)),
    "list of texts": ('skip_layers: ["a", "b"]', QuantConfig(skip_layers=("a", "b"))),
    "empty list": ("skip_layers: []", QuantConfig()),
    "repeated texts": ('skip_layers: "a"\nskip_layers: "b"', QuantConfig(skip_layers=("a", "b"))),
    "separators": (
        'batch_num: 1; do_fusion: false, skip_layers: "a"',
        QuantConfig(1, do_fusion=False, skip_layers=("a",)),
    ),
    "single quotes": ("skip_layers: 'a\"b'", QuantConfig(skip_layers=('a"b',))),
    "adjacent texts": ("skip_layers: 'a' \"b\"\n'c'", QuantConfig(skip_layers=("abc",))),
    "escapes": (r'skip_layers: "a\"\n\\\101\x42"', QuantConfig(skip_layers=('a"\n\\AB',))),
    "unknown escape": (r'skip_layers: "C:\path"', QuantConfig(skip_layers=(r"C:\path",))),
    "hash inside a text": ('skip_layers: "a#b"', QuantConfig(skip_layers=("a#b",))),
    "Chinese name": ('skip_layers: "卷积/一"', QuantConfig(skip_layers=("卷积/一",))),
    "slashes": ('skip_layers: "/layer1/conv1/Conv"', QuantConfig(skip_layers=("/layer1/conv1/Conv",))),
    "True with a capital": ("joint_quant: False", QuantConfig()),
    "one as true": ("activation_offset: 0", QuantConfig(activation_offset=False)),
    "hexadecimal": ("batch_num: 0x10", QuantConfig(batch_num=16)),
    "version 1": ("version: 1", QuantConfig(version=1, dialect="atc")),
    "carriage returns": ("batch_num: 2\r\ndo_fusion: false\r\n", QuantConfig(2, do_fusion=False)),
    "float with f": (
        IFMR.format("search_step: 0.02f"),
        QuantConfig(common=CalibrationBlock(ifmr=IfmrSettings(search_step=0.02))),
    ),
    "integer for a float": (
        IFMR.format("max_percentile: 1"),
        QuantConfig(common=CalibrationBlock(ifmr=IfmrSettings(max_percentile=1.0))),
    ),
    "step as wide as the range": (
        IFMR.format("search_range_start: 0.9 search_range_end: 1.2 search_step: 0.3"),
        QuantConfig(common=CalibrationBlock(ifmr=IfmrSettings(0.9, 1.2, 0.3))),
    ),
    "one end of the range": (
        IFMR.format("search_range_end: 0.8"),
        QuantConfig(common=CalibrationBlock(ifmr=IfmrSettings(search_range_end=0.8))),
    ),
    "dst_type INT8": (IFMR.format("dst_type: INT8"), QuantConfig(common=CalibrationBlock(ifmr=IfmrSettings()))),
    "dst_type by number": (HFMG.format("dst_type: 1"), QuantConfig(common=CalibrationBlock(hfmg=HfmgSettings()))),
    **{
        f"bins {bins}": (
            HFMG.format(f"num_of_bins: {bins}"),
            QuantConfig(common=CalibrationBlock(hfmg=HfmgSettings(bins))),
        )
        for bins in (1024, 2048, 4096, 8192)
    },
    **{
        f"bits {bits}": (
            ARQ.format(f"quant_bits: {bits}"),
            QuantConfig(common=CalibrationBlock(arq=ArqSettings(quant_bits=bits))),
        )
        for bits in (6, 7, 8)
    },
    "switches at their defaults": (
        "joint_quant: false weight_offset: false enable_auto_nuq: false",
        QuantConfig(dialect="atc", weight_offset=False, enable_auto_nuq=False),
    ),
    "precision mode at its default": (
        "fakequant_precision_mode: DEFAULT",
        QuantConfig(fakequant_precision_mode="DEFAULT"),
    ),
    "weight_compress_only false": (
        BLOCK.format("weight_compress_only: false"),
        QuantConfig(dialect="atc", common=CalibrationBlock(weight_compress_only=False)),
    ),
    "weight asymmetric false": (
        ARQ.format("asymmetric: false"),
        QuantConfig(dialect="atc", common=CalibrationBlock(arq=ArqSettings(asymmetric=False))),
    ),
    "same name in other fields": (
        'skip_layers: "a" override_layer_configs { layer_name: "a" calibration_config { } }',
        QuantConfig(skip_layers=("a",), override_layers=(("a", CalibrationBlock()),)),
    ),
    "list of blocks": (
        'override_layer_types: [{ layer_type: "Conv" calibration_config { } }, { layer_type: "Gemm" calibration_config { } }]',
        QuantConfig(override_types=(("Conv", CalibrationBlock()), ("Gemm", CalibrationBlock()))),
    ),
}


@pytest.mark.parametrize(("text", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_without_a_word(text: str, expected: QuantConfig) -> None:
    config = parse_simple_config(text)
    assert config == expected
    assert [note for note in config.notes if note.severity == "warn"] == []


WARNED = {
    "override without a block": (
        'override_layer_types { layer_type: "Gemm" }',
        "1:1",
        "override_layer_types for 'Gemm' has no calibration_config: the defaults apply",
    ),
    "a value twice": (
        "batch_num: 2\nbatch_num: 3",
        "2:1",
        r"batch_num is given 2 times (lines 1, 2): the last one wins",
    ),
    "common_config twice": (
        "common_config { }\ncommon_config { }",
        "2:1",
        "common_config is given 2 times (lines 1, 2): the blocks are merged, later values win",
    ),
    "both algorithms": (
        BLOCK.format("ifmr_quantize { }\nhfmg_quantize { }"),
        "2:1",
        "ifmr_quantize and hfmg_quantize exclude each other (lines 1, 2): the last one, hfmg_quantize, wins",
    ),
    "many candidates": (IFMR.format("search_step: 0.0005"), "1:33", "search_step 0.0005 makes 1201 candidates"),
    "byte-order mark": ("\ufeffbatch_num: 2", "1:1", "the file begins with a byte-order mark"),
}


@pytest.mark.parametrize(("text", "place", "words"), WARNED.values(), ids=WARNED)
def test_accepted_with_a_warning(text: str, place: str, words: str) -> None:
    notes = [note for note in parse_simple_config(text, "quant.cfg").notes if note.severity == "warn"]
    assert len(notes) == 1
    assert notes[0].message.startswith(f"quant.cfg:{place}: ")
    assert words in notes[0].message


REJECTED = {
    "unknown field": ("batch_nun: 2", "1:1", "unknown field 'batch_nun' in AMCTConfig .*; did you mean 'batch_num'?"),
    "unknown field inside": (
        "common_config {\n  ifmr_quantize {\n    search_stepp: 1\n  }\n}",
        "3:5",
        "unknown field 'search_stepp' in FMRQuantize .*; did you mean 'search_step'?",
    ),
    "unknown field without a likeness": (
        "common_config { arq_quantize { zzz: 1 } }",
        "1:32",
        "unknown field 'zzz' .*; known here: channel_wise, asymmetric, quant_bits",
    ),
    "field of another block": (HFMG.format("search_step: 0.1"), "1:33", "unknown field 'search_step' in HFMGQuantize"),
    "retrain field": (
        "\nretrain_data_quant_config { }",
        "2:1",
        r"belongs to a retrain \(QAT\) or pruning configuration",
    ),
    "negative": ("batch_num: -1", "1:12", "batch_num: a whole number between 0 and 4294967295 is expected"),
    "fraction": ("batch_num: 1.5", "1:12", "batch_num: a whole number"),
    "too large": ("batch_num: 4294967296", "1:12", "batch_num: a whole number"),
    "text for a number": ('batch_num: "2"', "1:12", "batch_num: a whole number"),
    "word for a switch": ("do_fusion: yes", "1:12", "do_fusion: true or false is expected"),
    "number for a switch": ("do_fusion: 2", "1:12", "do_fusion: true or false is expected"),
    "bare word for a name": ("skip_layers: conv1", "1:14", 'skip_layers: a text in quotes such as "conv1" is expected'),
    "bare word in a list": ('skip_layers: ["a",\n conv1]', "2:2", "skip_layers: a text in quotes"),
    "word for a number": (IFMR.format("search_step: fast"), "1:46", "search_step: a number is expected"),
    "unknown member of an enum": (IFMR.format("dst_type: INT4"), "1:43", "dst_type: INT8 or INT16 is expected"),
    "value for a block": ("common_config: 3", "1:16", "common_config: a block in braces"),
    "block for a value": ("batch_num { }", "1:11", "batch_num: a whole number between 0 and 4294967295 is expected"),
    "missing colon": ("batch_num 2", "1:11", 'Expected ":"'),
    "missing brace": (
        "common_config {\n  arq_quantize { }\n",
        "2:18",
        'Expected "}"; the block common_config of line 1 is not closed',
    ),
    "brace too many": ("common_config { } }", "1:19", "not a simple configuration"),
    "open quote": ('skip_layers: "a', "1:14", "String missing ending quote"),
    "not UTF-8 in a text": (r'skip_layers: "\377"', r"1:\d+", "utf-8"),
    "omitted lines": ("batch_num: 1\n...\n", "2:1", r"'\.\.\.' stands for lines that were left out"),
    "prose": ("quantize everything please", "1:1", "unknown field 'quantize'"),
    "json": ('{"batch_num": 2}', "1:1", "not a simple configuration: .*; this looks like JSON"),
    "extension": ("[calibrant.extension]: 2", r"1:\d+", "not a simple configuration"),
    "lone minus": ("batch_num: -", "1:12", "batch_num: a whole number"),
    "batch_num zero": ("\nbatch_num: 0", "2:1", "batch_num is 0; at least 1 is expected"),
    "other version": ("version: 2", "1:1", "version is 2; 1 is the only version"),
    "range starts at zero": (
        IFMR.format("search_range_start: 0"),
        "1:33",
        "search_range_start is 0.0; a number above 0",
    ),
    "range starts below zero": (IFMR.format("search_range_start: -0.5"), "1:33", "search_range_start is -0.5"),
    "empty range": (
        IFMR.format("search_range_start: 1.2\nsearch_range_end: 1.2"),
        "1:33",
        "the search range 1.2 to 1.2 is empty",
    ),
    "range reversed by a default": (
        IFMR.format("search_range_end: 0.5"),
        "1:33",
        "the search range 0.7 to 0.5 is empty",
    ),
    "step zero": (IFMR.format("search_step: 0"), "1:33", "search_step is 0.0; a number above 0 is expected"),
    "step wider than the range": (
        IFMR.format("search_step: 0.7"),
        "1:33",
        "search_step is 0.7; at most .* 0.6, is expected",
    ),
    "step just wider": (
        IFMR.format("search_range_start: 0.9 search_range_end: 1.2 search_step: 0.3000001"),
        r"1:\d+",
        "search_step is 0.3000001; at most the width of the range, 0.3, is expected",
    ),
    "step far too small": (IFMR.format("search_step: 1e-9"), "1:33", "candidates; at most 1000000 are tried"),
    "percentile one half": (
        IFMR.format("max_percentile: 0.5"),
        "1:33",
        "max_percentile is 0.5; a number above 0.5 and at most 1",
    ),
    "percentile above one": (IFMR.format("min_percentile: 1.01"), "1:33", "min_percentile is 1.01; a number above 0.5"),
    "percentile in per cent": (IFMR.format("max_percentile: 99.9"), "1:33", "max_percentile is 99.9"),
    "not a number": (IFMR.format("search_step: nan"), "1:33", "search_step is nan; a finite number is expected"),
    "infinity": (IFMR.format("search_range_end: inf"), "1:33", "search_range_end is inf; a finite number is expected"),
    "overflow": (IFMR.format("search_range_end: 1e39"), "1:33", "search_range_end is inf"),
    "minus infinity": (IFMR.format("max_percentile: -infinity"), "1:33", "max_percentile is -inf"),
    "bins": (
        HFMG.format("num_of_bins: 1000"),
        "1:33",
        "num_of_bins is 1000; one of 1024, 2048, 4096, 8192 is expected",
    ),
    "bins zero": (HFMG.format("num_of_bins: 0"), "1:33", "num_of_bins is 0; one of"),
    "bits five": (ARQ.format("quant_bits: 5"), "1:32", "quant_bits is 5; one of 4, 6, 7, 8 is expected"),
    "bits sixteen": (ARQ.format("quant_bits: 16"), "1:32", "quant_bits is 16"),
    "weight asymmetric": (
        ARQ.format("asymmetric: true"),
        "1:32",
        "asymmetric: true is for weights with weight_compress_only",
    ),
    "migration strength": (
        BLOCK.format("dmq_balancer { migration_strength: 0.1 }"),
        "1:32",
        "migration_strength is 0.1; .* 0.2 to 0.8",
    ),
    "num_steps": (BLOCK.format("nuq_quantize { num_steps: 8 }"), "1:32", "num_steps is 8; one of 16, 32"),
    "num_of_iteration": (
        BLOCK.format("nuq_quantize { num_of_iteration: 6 }"),
        "1:32",
        "num_of_iteration is 6; one of 0, 1, 2, 3, 4, 5",
    ),
    "warm_start": (
        BLOCK.format("ada_quantize { warm_start: 1 }"),
        "1:32",
        "warm_start is 1.0; a number between 0 and 1",
    ),
    "beta range": (
        BLOCK.format("ada_quantize { beta_range_start: 2 }"),
        "1:32",
        "beta_range_start is 2.0; a number above",
    ),
    "layer skipped twice": (
        'skip_layers: "a"\nskip_layers: "a"',
        "2:1",
        "skip_layers names 'a' a second time .first at quant.cfg:1:1",
    ),
    "type skipped twice": ('skip_layer_types: ["Conv",\n"Conv"]', "2:1", "skip_layer_types names 'Conv' a second time"),
    "fusion skipped twice": ('skip_fusion_layers: ["a", "a"]', "1:27", "skip_fusion_layers names 'a' a second time"),
    "layer overridden twice": (
        'override_layer_configs { layer_name: "a" calibration_config { } }\n' * 2,
        "2:1",
        "override_layer_configs names 'a' a second time .first at quant.cfg:1:26",
    ),
    "override without a name": (
        "override_layer_configs { calibration_config { } }",
        "1:1",
        "override_layer_configs without layer_name",
    ),
    "override without a type": ("override_layer_types { }", "1:1", "override_layer_types without layer_type"),
    "bad value in an override": (
        'override_layer_types {\n layer_type: "Gemm"\n calibration_config {\n  hfmg_quantize { num_of_bins: 1 }\n } }',
        "4:19",
        "num_of_bins is 1",
    ),
    "tensor without an index": ('tensor_quantize { layer_name: "a" }', "1:1", "tensor_quantize without input_index"),
    "tensor without a name": ("tensor_quantize { input_index: 0 }", "1:1", "tensor_quantize without layer_name"),
}


@pytest.mark.parametrize(("text", "place", "words"), REJECTED.values(), ids=REJECTED)
def test_refused_with_line_and_column(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^quant.cfg:{place}: .*{words}") as caught:
        parse_simple_config(text, "quant.cfg")
    assert "\n" not in str(caught.value)


def test_last_of_two_algorithms_wins() -> None:
    config = parse_simple_config(
        BLOCK.format("hfmg_quantize { num_of_bins: 2048 } ifmr_quantize { search_step: 0.02 }")
    )
    assert config.common == CalibrationBlock(ifmr=IfmrSettings(search_step=0.02))


def test_return_to_the_first_algorithm_forgets_its_earlier_values() -> None:
    text = BLOCK.format("ifmr_quantize { search_step: 0.02 } hfmg_quantize { } ifmr_quantize { max_percentile: 0.9 }")
    assert parse_simple_config(text).common == CalibrationBlock(ifmr=IfmrSettings(max_percentile=0.9))


def test_common_config_twice_is_merged_field_by_field() -> None:
    first = IFMR.format("search_step: 0.02 max_percentile: 0.9")
    second = BLOCK.format("ifmr_quantize { search_step: 0.05 } arq_quantize { channel_wise: false }")
    config = parse_simple_config(first + second)
    expected = IfmrSettings(search_step=0.05, max_percentile=0.9)
    assert config.common == CalibrationBlock(ifmr=expected, arq=ArqSettings(channel_wise=False))
    assert [re.sub(r".*: (\w+) is given.*", r"\1", note.message) for note in config.notes] == [
        "common_config",
        "ifmr_quantize",
        "search_step",
    ]


def test_floats_are_the_shortest_decimal_of_their_float32() -> None:
    common = parse_simple_config(IFMR.format("search_range_start: 0.699999988 search_step: 0.0100000001")).common
    assert common is not None
    assert common.ifmr is not None
    assert common.ifmr.search_range_start == 0.7
    assert common.ifmr.search_step == 0.01


def test_int16_and_narrow_weights_are_kept_for_the_plan() -> None:
    common = parse_simple_config(
        BLOCK.format("ifmr_quantize { dst_type: INT16 } arq_quantize { quant_bits: 4 }")
    ).common
    assert common == CalibrationBlock(ifmr=IfmrSettings(dst_type="INT16"), arq=ArqSettings(quant_bits=4))


def test_notes_come_in_file_order() -> None:
    text = 'nuq_config { }\nbatch_num: 1\nbatch_num: 2\noverride_layer_types { layer_type: "Gemm" }'
    lines = [note.message.split(":")[1] for note in parse_simple_config(text).notes]
    assert lines == ["1", "3", "4"]


def test_file_with_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "quant.cfg"
    path.write_bytes(b"\xef\xbb\xbfbatch_num: 0")
    with pytest.raises(ConfigError, match=r"quant\.cfg:1:1: batch_num is 0"):
        read_simple_config(path)
    path.write_bytes(b"\xef\xbb\xbfbatch_num: 2\n")
    config = read_simple_config(path)
    assert config.batch_num == 2
    assert config.source == str(path)
    assert [note.severity for note in config.notes] == ["warn"]


UNREADABLE = {
    "GBK": ("batch_num: 1\n# 量化\n".encode("gbk"), "quant.cfg:2: not UTF-8 text"),
    "UTF-16": ("batch_num: 1".encode("utf-16"), "a binary or UTF-16 file"),
    "binary": (b"\x08\x01\x12\0\0\0", "a binary or UTF-16 file"),
    "huge": (b"#" * ((4 << 20) + 1), "larger than 4 MiB, which cannot be a simple configuration"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "quant.cfg"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_simple_config(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.cfg: no such file; give the path of a simple configuration"):
        read_simple_config(tmp_path / "none.cfg")
    with pytest.raises(ConfigError, match="cannot read a simple configuration: Is a directory"):
        read_simple_config(tmp_path)


def test_message_does_not_echo_a_whole_file() -> None:
    for text in ("a" * 100_000, f'skip_layers: "{"a" * 100_000}', f"batch_num: {'1' * 100_000}", "#" * 100_000 + "\n}"):
        with pytest.raises(ConfigError) as caught:
            parse_simple_config(text)
        assert len(str(caught.value)) < 600


def test_values_that_python_code_gives_are_checked() -> None:
    with pytest.raises(ConfigError, match="batch_num is 0; at least 1"):
        QuantConfig(batch_num=0)
    with pytest.raises(ConfigError, match="ifmr and hfmg are both given"):
        CalibrationBlock(ifmr=IfmrSettings(), hfmg=HfmgSettings())
    with pytest.raises(ConfigError, match="arq and ada are both given"):
        CalibrationBlock(arq=ArqSettings(), ada=AdaSettings())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown field"):
        parse_simple_config("common_config {" * 100_000)


POST_TRAINING = ("onnx_nuq_quant.cfg", "caffe_nuq_quant.cfg", "tf_yolo_quant.cfg", "tf_ascend_yolov3_calibration.cfg")


@needs_shared
@pytest.mark.parametrize("name", POST_TRAINING)
def test_published_configurations_are_read(name: str) -> None:
    config = read_simple_config(SHARED / "cases" / "real" / name)
    assert config.activation_offset
    assert [note for note in config.notes if note.severity == "warn"] == []
    assert (config.nuq is not None) == ("nuq" in name)
    assert parse_simple_config(canonical_text(config)) == config


@needs_shared
def test_samples_of_the_chinese_reference_are_read() -> None:
    reference = next((SHARED / "seeds").glob("001_*.txt")).read_text(encoding="utf-8")
    samples = [
        re.split(r"\n[^\n]*[\u4e00-\u9fff]", part)[0] for part in reference.split("# global quantize parameter")[1:]
    ]
    whole = [parse_simple_config(sample) for sample in samples if "..." not in sample]
    assert len(whole) == 3  # uniform, non-uniform, balanced
    assert {config.batch_num for config in whole} == {2}
    assert [len(config.tensor_quantize) for config in whole] == [2, 2, 0]
    assert [config.nuq is not None for config in whole] == [False, True, False]
    assert [config.common is not None and config.common.dmq is not None for config in whole] == [False, False, True]
    assert [config.notes for config in whole] == [(), (), ()]
    for sample in (sample for sample in samples if "..." in sample):
        with pytest.raises(ConfigError, match=r"'\.\.\.' stands for lines that were left out"):
            parse_simple_config(sample)


@needs_shared
def test_published_retrain_configurations_say_what_they_are() -> None:
    real = SHARED / "cases" / "real"
    others = [path for path in sorted(real.glob("*.cfg")) if path.name not in POST_TRAINING]
    assert len(others) >= 8
    for path in others:
        with pytest.raises(ConfigError, match=rf"{path.name}:\d+:\d+: \w+ belongs to a retrain"):
            read_simple_config(path)


booleans = st.one_of(st.none(), st.booleans())
types = st.sampled_from(["INT8", "INT16"])
ifmr_settings = st.builds(
    IfmrSettings,
    search_range_start=st.sampled_from([0.1, 0.5, 0.7]),
    search_range_end=st.sampled_from([1.0, 1.3, 2.5]),
    search_step=st.sampled_from([0.01, 0.05, 0.3]),
    max_percentile=st.sampled_from([0.51, 0.999999, 1.0]),
    min_percentile=st.sampled_from([0.9, 1.0]),
    asymmetric=booleans,
    dst_type=types,
)
hfmg_settings = st.builds(HfmgSettings, st.sampled_from([1024, 2048, 4096, 8192]), booleans, types)
arq_settings = st.builds(ArqSettings, booleans, st.sampled_from([4, 6, 7, 8]), st.sampled_from([None, False]))
weight_only_arq = st.builds(ArqSettings, booleans, st.sampled_from([6, 8]), booleans)
nuq_settings = st.builds(NuqSettings, st.none(), st.sampled_from([16, 32]), st.integers(0, 5))
ada_settings = st.builds(AdaSettings, st.integers(0, 9), st.sampled_from([0.01, 0.5]), channel_wise=booleans)
dmq_settings = st.none() | st.builds(DmqSettings, st.sampled_from([0.2, 0.5, 0.8]))
data_blocks = st.one_of(
    st.fixed_dictionaries({}),
    st.fixed_dictionaries({"ifmr": ifmr_settings}),
    st.fixed_dictionaries({"hfmg": hfmg_settings}),
)
weight_blocks = st.one_of(
    st.fixed_dictionaries({"weight_compress_only": booleans}),
    st.fixed_dictionaries({"arq": arq_settings, "weight_compress_only": booleans}),
    st.fixed_dictionaries({"arq": weight_only_arq, "weight_compress_only": st.just(True)}),
    st.fixed_dictionaries({"nuq": nuq_settings}),
    st.fixed_dictionaries({"ada": ada_settings}),
)
blocks = st.builds(
    lambda data, weights, dmq: CalibrationBlock(**data, **weights, dmq=dmq), data_blocks, weight_blocks, dmq_settings
)
letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
tensors = st.lists(
    st.builds(TensorSettings, letters, st.integers(0, 2**32 - 1), st.none() | ifmr_settings | hfmg_settings), max_size=3
).map(tuple)
names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), unique=True, max_size=4).map(tuple)
overrides = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"])), blocks), unique_by=lambda one: one[0], max_size=3
).map(tuple)
configs = st.builds(
    QuantConfig,
    batch_num=st.none() | st.integers(1, 2**32 - 1),
    activation_offset=st.booleans(),
    joint_quant=st.booleans(),
    do_fusion=st.booleans(),
    skip_layers=names,
    skip_layer_types=names,
    skip_fusion_layers=names,
    common=st.none() | blocks,
    override_types=overrides,
    override_layers=overrides,
    dialect=st.sampled_from(["onnx", "atc", "pytorch"]),
    version=st.sampled_from([None, 1]),
    enable_auto_nuq=booleans,
    weight_offset=booleans,
    calibrant_matmul_per_channel=booleans,
    fakequant_precision_mode=st.sampled_from([None, "DEFAULT", "FORCE_FP16_QUANT"]),
    nuq=st.none() | st.builds(NuqSettings, st.none() | letters, st.sampled_from([16, 32]), st.integers(0, 5)),
    tensor_quantize=tensors,
    conv_calibration=st.none() | blocks,
    fc_calibration=st.none() | blocks,
)


@given(configs)
@settings(max_examples=60, deadline=None)
def test_canonical_text_is_read_back_equal(config: QuantConfig) -> None:
    again = parse_simple_config(canonical_text(config), dialect=config.dialect)
    assert again == config
    assert canonical_text(again) == canonical_text(config)


@given(configs)
@settings(max_examples=60, deadline=None)
def test_the_dialect_is_detected_alike_from_the_canonical_text(config: QuantConfig) -> None:
    detected = parse_simple_config(canonical_text(config))
    assert parse_simple_config(canonical_text(detected)) == detected


PIECES = [
    *"{}[]<>:;,#\"'\\-.\n\t \r\0",
    "\ufeff",
    "common_config",
    "ifmr_quantize",
    "1e999",
    "nan",
    "-1",
    "true",
    "...",
    "卷",
    "\x85",
    "[a.b/c]",
]


def mutated(text: str, random_: random.Random) -> str:
    characters = list(text)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(characters) + 1)
        kind = random_.randrange(3)
        if kind == 0:
            characters.insert(at, random_.choice(PIECES))
        elif kind == 1:
            del characters[at : at + random_.randint(1, 8)]
        else:
            start = random_.randrange(len(characters) + 1)
            characters[at:at] = characters[start : start + random_.randint(1, 60)]
    return "".join(characters)


def test_mutated_text_raises_nothing_but_config_errors() -> None:
    random_ = random.Random(20)
    refused = 0
    for _ in range(1500):
        text = mutated(SAMPLE, random_)
        try:
            parse_simple_config(text)
        except ConfigError as error:
            refused += 1
            assert re.match(r"<text>:\d+:\d+: ", str(error)), str(error)  # noqa: PT017 (most inputs are refused, not all)
    assert 500 < refused < 1500


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_raises_nothing_but_config_errors(text: str) -> None:
    try:
        parse_simple_config(text)
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017 (some inputs are accepted)


def test_import_leaves_protobuf_alone() -> None:
    code = (
        "import sys, calibrant.proto, calibrant.proto.simple_config, calibrant.quantizers.plan;"
        "assert 'google.protobuf' not in sys.modules; calibrant.proto.parse_simple_config('');"
        "assert 'google.protobuf' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
