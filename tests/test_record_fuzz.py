"""Whatever the text: a record, or a ConfigError of one line, soon."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ConfigError
from calibrant.proto.record import RecordFile, format_record, parse_record, parse_record_file

SEED_TEXT = """# head
record {
  key: "Conv_0"
  value {
    scale_d: 0.0235 offset_d: -128 act_type: "INT8" op_data_type: 'FLOAT32'
    scale_w: [0.1, 0.2] offset_w: 0 offset_w: 0 wts_type: "INT8" skip_fusion: true shift_bit: 3
    tensor_balance_factor: 0.5 scale_h: 0.1 offset_h: 3 scale_r: 1 offset_r: 0
    channels: 3 height: 224 width: 112 dst_type: "INT8" fakequant_precision_mode: "DEFAULT"
  }
  kv_cache_value { scale: 0.1 offset: 3 }
}
record < key: 'Pool:0' value: { scale_d: 1e-3 offset_d: 0 is_tensor_quantize: true } >
prune_record {
  producer { name: "conv1" attr { name: "begin" type: INT i: 0 } attr { name: "s" type: STRING s: "x" ints: [1, 2] } }
  consumer { name: "b" } selective_prune { name: "c" }
}
"""
PIECES = (
    *"{}<>[]:,;\"'\\#\n\r\t\0\u3000“0",
    "\\377", "\\x", "\\u12", "record", "value", "key", "scale_d", "nan", "inf", "-", "1e400", "99999999999999999999",
    "0x1", "true", "[a.b.c/d]", "...", "type", "ints", "cluster: 1", "1.5", "-1", 'record{key:"z" value{}}', "{" * 50,
)  # fmt: skip
COUNT = 3000


def mutated(draw: random.Random) -> str:
    """The seed text with one to four cuts, insertions, replacements or repetitions."""
    text = SEED_TEXT
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.randrange(8))
        new = draw.choice(
            ["", draw.choice(PIECES), text[start : start + draw.randrange(200)], draw.choice(text or " ")]
        )
        text = text[:start] + new + text[end:]
    return text


def outcome(text: str) -> RecordFile | str:
    try:
        return parse_record_file(text, "r.txt")
    except ConfigError as error:
        return str(error)


def test_seed_text_is_a_record() -> None:
    assert isinstance(outcome(SEED_TEXT), RecordFile)


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_records_are_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    start, read = time.process_time(), 0
    for _ in range(COUNT):
        found = outcome(mutated(draw))
        if isinstance(found, RecordFile):
            read += 1
            assert parse_record(format_record(found.entries)) == found.entries
        else:
            assert found.startswith("r.txt:")
            assert "\n" not in found
            assert len(found) < 1000
    assert 0 < read < COUNT
    assert time.process_time() - start < 60


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_any_text(text: str) -> None:
    outcome(text)


@pytest.mark.parametrize(
    "text",
    ["record {" * 100_000, "record { value { " * 50_000, "[" * 100_000, "scale_w: [" + "1," * 100_000, '"' * 100_000,
     'record { key: "' + "a" * 1_000_000, "\n" * 300_000 + "x", "record { key: " + '"a" ' * 100_000],
    ids=["deep", "deeper", "brackets", "open list", "quotes", "long key", "late", "many texts"],
)  # fmt: skip
def test_long_nonsense_is_refused_soon(text: str) -> None:
    start = time.process_time()
    assert isinstance(outcome(text), str)
    assert time.process_time() - start < 10
