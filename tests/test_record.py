"""record.txt: AMCT's layout byte for byte, and nothing lost between writing and reading."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from record_entries import records
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.record import RecordEntry, format_record, parse_record, read_record, write_record

F = np.float32

CONV = RecordEntry("Conv_0", F(0.0235294122), -128, (F(0.00417), F(0.00391)), (0, 0))
CONV_TEXT = """\
record {
  key: "Conv_0"
  value {
    scale_d: 0.023529412
    offset_d: -128
    act_type: "INT8"
    op_data_type: 'FLOAT32'
    scale_w: 0.00417
    scale_w: 0.00391
    offset_w: 0
    offset_w: 0
    wts_type: "INT8"
  }
}
"""
POOL = RecordEntry(
    "MaxPool_3:0", F(0.05), -128, act_type=None, wts_type=None, op_data_type=None, is_tensor_quantize=True
)
POOL_TEXT = """\
record {
  key: "MaxPool_3:0"
  value {
    scale_d: 0.05
    offset_d: -128
    is_tensor_quantize: true
  }
}
"""


def test_layout_is_amcts() -> None:
    assert format_record([CONV, POOL]) == CONV_TEXT + POOL_TEXT


def test_entries_keep_their_order_and_read_back_equal() -> None:
    assert parse_record(POOL_TEXT + CONV_TEXT) == (POOL, CONV)


def test_published_one_line_form_is_read() -> None:
    text = 'record { key: "MaxPool_3:0" value { scale_d: 0.05 offset_d: -128 is_tensor_quantize: true } }'
    assert parse_record(text) == (POOL,)


def test_key_with_quotes_and_line_break_is_escaped() -> None:
    text = format_record([RecordEntry('a"b\\c\nd')])
    assert r'key: "a\"b\\c\nd"' in text
    assert parse_record(text)[0].key == 'a"b\\c\nd'


def test_every_member_is_written_and_read() -> None:
    entry = RecordEntry(
        "x", F(1e-5), 300, (F(1e20),), (0,), "INT16", "INT7", "FLOAT16", is_tensor_quantize=True,
        tensor_balance_factor=(F(0.5), F(2)), shift_bit=(3,), skip_fusion=False,
        fakequant_precision_mode="FORCE_FP16_QUANT", dst_type="INT8", channels=3, height=224, width=112,
    )  # fmt: skip
    text = format_record([entry])
    for line in (
        "scale_d: 1e-05",
        "scale_w: 1e+20",
        "shift_bit: 3",
        "skip_fusion: false",
        "op_data_type: 'FLOAT16'",
        "width: 112",
    ):
        assert f"    {line}\n" in text
    assert parse_record(text) == (entry,)


def test_infinite_scale_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "record.txt"
    with pytest.raises(ConfigError, match="record of 'Conv_0': scale_w is inf; a finite number is expected"):
        write_record(path, [CONV, RecordEntry("Conv_0", scale_w=(F("inf"),))])
    assert list(tmp_path.iterdir()) == []


def test_file_round_trip_makes_parents(tmp_path: Path) -> None:
    path = tmp_path / "out" / "m_record.txt"
    write_record(path, [CONV, POOL])
    assert path.read_bytes() == (CONV_TEXT + POOL_TEXT).encode()
    assert read_record(path) == (CONV, POOL)
    assert [one.name for one in path.parent.iterdir()] == ["m_record.txt"]


def test_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/record\.txt: cannot write"):
        write_record(tmp_path / "file" / "record.txt", [CONV])


def value(members: str) -> str:
    return f'record {{\n key: "a"\n value {{ {members} }} }}'


REJECTED = {
    "unknown field": (
        value("scale_e: 1"),
        "3:10",
        "unknown field 'scale_e' in SingleLayerRecord of a record file; did you mean",
    ),
    "wrong spelling of the entry": ('records { key: "a" }', "1:1", "unknown field 'records' .* did you mean 'record'"),
    "no key": ("record { value { scale_d: 1 } }", "1:1", "a record needs a key and a value"),
    "no value": ('record { key: "a" }', "1:1", "a record needs a key and a value"),
    "two of one key": ('record { key: "a" value { } }\n' * 2, "2:10", "'a' has a second record"),
    "scale zero": (value("scale_d: 0"), "3:10", "scale_d is 0; a finite number above 0"),
    "scale not a number": (value("scale_d: nan"), "3:10", "scale_d is nan"),
    "second weight scale": (value("scale_w: 1 scale_w: -1"), "3:21", "scale_w is -1"),
    "balance factor": (value("tensor_balance_factor: inf"), "3:10", "tensor_balance_factor is inf"),
    "offset beyond int8": (value("scale_d: 1 offset_d: 128"), "3:21", "offset_d is 128; a number from -128 to 127"),
    "offset beyond int16": (value('offset_d: 32768 act_type: "INT16"'), "3:10", "offset_d is 32768"),
    "weight offset": (value("scale_d: 1 scale_w: 1 offset_w: 2"), "3:32", "offset_w is 2; 0 is expected"),
    "uneven lengths": (value("scale_w: 1 scale_w: 1 offset_w: 0"), "3:32", "1 offset_w for 2 scale_w"),
    "not a record": ("scale_d: 0.5", "1:1", "unknown field 'scale_d'"),
}


@pytest.mark.parametrize(("text", "place", "words"), REJECTED.values(), ids=REJECTED)
def test_refused_with_line_and_column(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^record.txt:{place}: .*{words}"):
        parse_record(text, "record.txt")


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match="no such file; give the path of a record file"):
        read_record("no/record.txt")


@needs_shared
@pytest.mark.parametrize(
    ("name", "layers", "weights"), [("caffe_resnet50_record", 54, 26561), ("tf_mobilenet_v2_record", 54, 17057)]
)
def test_published_records_are_read(name: str, layers: int, weights: int) -> None:
    text = gzip.decompress((SHARED / "cases" / "real" / f"{name}.txt.gz").read_bytes()).decode()
    entries = parse_record(text, name)
    assert len(entries) == layers
    assert sum(len(entry.scale_w) for entry in entries) == weights
    assert parse_record(format_record(entries)) == entries


@given(records)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_equal(entries: tuple[RecordEntry, ...]) -> None:
    again = parse_record(format_record(entries))
    assert again == entries
    bits = [[F(scale).tobytes() for scale in entry.scale_w] for entry in entries]
    assert [[scale.tobytes() for scale in entry.scale_w] for entry in again] == bits
