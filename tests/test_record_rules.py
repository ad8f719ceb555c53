"""The rules of AMCT's record reader that need no model, each with values that keep and values that break it."""

import numpy as np
import pytest

from calibrant.errors import ConfigError
from calibrant.proto.record import RecordEntry, parse_record, parse_record_file
from calibrant.proto.record_rules import check_entries

F = np.float32
SIXTEEN = "cluster: [" + ", ".join(["-128"] * 15 + ["127"]) + "]"

ACCEPTED = [
    "",
    "scale_d: 1e-45",
    "scale_d: 3.4e38",
    "offset_d: -128",
    "offset_d: 127",
    'offset_d: -32768 act_type: "INT16"',
    'offset_d: 32767 act_type: "INT16"',
    'offset_d: 32767 act_type: "INT16" act_type: "INT16"',
    "scale_w: 1 offset_w: 0",
    "scale_w: 1 scale_w: 2",
    "scale_w: 1 scale_w: 2 offset_w: -128 offset_w: 127",
    "scale_w: 1 scale_w: 2 offset_w: 0 offset_w: -0",
    "shift_bit: 0 shift_bit: 0",
    "shift_bit: 1 shift_bit: 16",
    "tensor_balance_factor: 1.1920929e-07 tensor_balance_factor: 8388608",
    *(f'act_type: "{name}"' for name in ("INT4", "INT8", "INT16")),
    *(f'wts_type: "{name}"' for name in ("INT4", "INT6", "INT7", "INT8")),
    *(f'dst_type: "{name}"' for name in ("INT4", "INT8")),
    *(f"op_data_type: '{name}'" for name in ("FLOAT32", "FLOAT16")),
    *(f"fakequant_precision_mode: '{name}'" for name in ("DEFAULT", "FORCE_FP16_QUANT")),
    SIXTEEN,
    f"{SIXTEEN} {SIXTEEN}",
    "scale_h: 1 offset_h: -128 scale_r: 1 offset_r: 0",
]
REJECTED = {
    "scale_d: 0": (1, "scale_d is 0; a finite number above 0 is expected"),
    "scale_d: -1": (1, "scale_d is -1; a finite"),
    "scale_d: inf": (1, "scale_d is inf; a finite"),
    "scale_d: 1e39": (1, "scale_d is inf; a finite"),
    "scale_d: 1e-46": (1, "scale_d is 0; a finite"),
    "scale_w: 1 scale_w: nan": (12, "scale_w is nan; a finite"),
    "scale_h: -0.0": (1, "scale_h is -0; a finite"),
    "scale_r: 1 scale_r: 0": (12, "scale_r is 0; a finite"),
    "offset_d: 128": (1, "offset_d is 128; a number from -128 to 127"),
    "offset_d: -129": (1, "offset_d is -129; a number from -128 to 127"),
    'offset_d: 128 act_type: "INT8"': (1, "offset_d is 128"),
    'offset_d: 32768 act_type: "INT16"': (1, "offset_d is 32768; a number from -32768 to 32767"),
    "offset_h: 200": (1, "offset_h is 200; a number from -128 to 127"),
    "scale_d: 1 scale_w: 1 offset_w: 1": (23, "offset_w is 1; 0 is expected, weights are symmetric"),
    "scale_d: 1 scale_w: [1, 2] offset_w: [0, -1]": (42, "offset_w is -1; 0 is expected"),
    "scale_w: 1 offset_w: 128": (12, "offset_w is 128; a number from -128 to 127"),
    "scale_r: 1 offset_r: 7": (12, "offset_r is 7; 0 is expected"),
    "offset_w: 0": (1, "1 offset_w for 0 scale_w; as many are expected"),
    "scale_w: 1 offset_w: [0, 0]": (26, "2 offset_w for 1 scale_w"),
    "shift_bit: 17": (1, "shift_bit is 17; all 0, or all from 1 to 16, are expected"),
    "shift_bit: 1 shift_bit: 0": (14, "shift_bit is 0; all 0, or all from 1 to 16"),
    "tensor_balance_factor: 1e-7": (1, "tensor_balance_factor is 1e-07; a number from 1.19209e-07 to 8.38861e"),
    "tensor_balance_factor: 1 tensor_balance_factor: 8388609": (26, "tensor_balance_factor is 8.38861e"),
    'act_type: "INT7"': (1, "act_type is 'INT7'; INT4, INT8 or INT16 is expected; did you mean 'INT"),
    'wts_type: "INT16"': (1, "wts_type is 'INT16'; INT4, INT6, INT7 or INT8 is expected"),
    'dst_type: "INT16"': (1, "dst_type is 'INT16'; INT4 or INT8 is expected"),
    'op_data_type: "float16"': (1, "op_data_type is 'float16'; FLOAT32 or FLOAT16 is expected; did you mean 'FLOAT16'"),
    'fakequant_precision_mode: "FP16"': (1, "'FP16'; DEFAULT or FORCE_FP16_QUANT is expected"),
    "cluster: 1": (1, "1 centres in cluster; 16 or 32 are expected"),
    f"{SIXTEEN} cluster: 128": (len(SIXTEEN) + 2, "cluster is 128; a centre from -128 to 127"),
}


def entry_text(members: str) -> str:
    return f'record {{ key: "a" value {{\n{members} }} }}'


@pytest.mark.parametrize("members", ACCEPTED)
def test_accepted(members: str) -> None:
    assert parse_record(entry_text(members))[0].key == "a"


@pytest.mark.parametrize(("members", "expected"), REJECTED.items())
def test_rejected(members: str, expected: tuple[int, str]) -> None:
    column, words = expected
    with pytest.raises(ConfigError) as caught:
        parse_record(entry_text(members), "r.txt")
    assert str(caught.value).startswith(f"r.txt:2:{column}: ")
    assert words in str(caught.value)


def test_cache_of_uneven_lengths() -> None:
    with pytest.raises(ConfigError, match=r"^r\.txt:1:48: 1 offsets for 2 scales; as many are expected"):
        parse_record('record { key: "a" kv_cache_value{ scale: [1,2] offset: 1 } }', "r.txt")


def test_entries_without_a_file_are_named_by_their_key() -> None:
    with pytest.raises(ConfigError, match=r"^record of 'a': offset_d is 128; a number"):
        check_entries([RecordEntry("a", F(1), 128)])
    with pytest.raises(ConfigError, match=r"^record of 'a': 'a' has a second record"):
        check_entries([RecordEntry("a"), RecordEntry("a")])
    with pytest.raises(ConfigError, match="an entry has no key"):
        check_entries([RecordEntry("")])


def test_missing_types_only_warn_and_once() -> None:
    members = "scale_d: 1 offset_d: 0 scale_w: 1 offset_w: 0"
    text = f'record {{ key: "a" value {{ {members} }} }}\nrecord {{ key: "b" value {{ {members} act_type: "INT8" }} }}'
    notes = check_entries(parse_record_file(text, "r.txt").entries)
    assert [(note.severity, note.message) for note in notes] == [
        ("warn", "r.txt:1:10: 1 entry has no act_type (the first is 'a'): INT8 is assumed"),
        ("warn", "r.txt:1:10: 2 entries have no wts_type (the first is 'a'): INT8 is assumed"),
    ]


def test_dst_type_stands_for_both_types() -> None:
    text = entry_text('scale_d: 1 scale_w: 1 dst_type: "INT8"')
    assert check_entries(parse_record(text)) == ()
