"""Records of the ONNX, PyTorch, Caffe and TensorFlow flavours: every field is read, the flavour is told from the fields."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.record import PruneGroup, format_record, parse_record, parse_record_file, read_record_file

F = np.float32

ONNX = """\
record {
  key: "Conv_0"
  value {
    scale_d: 0.0235294122
    offset_d: -128
    act_type: "INT8"
    op_data_type: 'FLOAT32'
    scale_w: 0.00417
    offset_w: 0
    wts_type: "INT8"
  }
}
record {
  key: "MaxPool_3:0"
  value { scale_d: 0.05 offset_d: -128 is_tensor_quantize: true }
}
"""
PYTORCH = """\
record {
  key: "layer1.0.conv1"
  value {
    scale_d: 0.00392156886
    offset_d: -128
    scale_w: 0.00106807391
    scale_w: 0.00104224426
    offset_w: 0
    offset_w: 0
    tensor_balance_factor: 0.948409557
    tensor_balance_factor: 1.04744744
    skip_fusion: false
    dst_type: "INT8"
    act_type: "INT8"
    wts_type: "INT7"
    fakequant_precision_mode: "FORCE_FP16_QUANT"
  }
}
record {
  key: "lstm"
  value { scale_d: 0.5 offset_d: 1 scale_w: 0.25 offset_w: 0 scale_h: 0.125 offset_h: -3 scale_r: 2 scale_r: 4 offset_r: 0 offset_r: 0 }
}
record {
  key: "attention"
  kv_cache_value { scale: 0.1 scale: 0.2 offset: 3 offset: -4 }
}
prune_record {
  producer {
    name: "conv1"
    attr { name: "type" type: STRING s: "Conv2d" }
    attr { name: "begin" type: INT i: 0 }
  }
  consumer { name: "bn1" attr { name: "end" type: INT i: 64 } }
  consumer { name: "conv2" }
}
prune_record {
  selective_prune { name: "fc" attr { name: "mask_shape" type: INTS ints: 3 ints: 32 } }
}
"""
CAFFE = """\
record { key: "conv1" value { scale_d: 1.07450986 offset_d: -14 scale_w: 0.0044 offset_w: 0 channels: 3 height: 224 width: 112 } }
"""
TENSORFLOW = """\
record { key: "net/conv/Conv2D" value { scale_d: 0.0235 offset_d: -128 scale_w: 0.0128 offset_w: 0 shift_bit: 1 skip_fusion: true } }
"""


@pytest.mark.parametrize(
    ("text", "flavour"), [(ONNX, "onnx"), (PYTORCH, "pytorch"), (CAFFE, "caffe"), (TENSORFLOW, "tensorflow")]
)
def test_flavour_is_told_and_text_comes_back(text: str, flavour: str) -> None:
    file = parse_record_file(text, "record.txt")
    assert (file.flavour, file.source, file.notes) == (flavour, "record.txt", ())
    assert parse_record(format_record(file.entries)) == file.entries


def test_pytorch_fields() -> None:
    conv, lstm, attention = parse_record(PYTORCH)
    assert (conv.scale_w, conv.offset_w) == ((F(0.00106807391), F(0.00104224426)), (0, 0))
    assert conv.tensor_balance_factor == (F(0.948409557), F(1.04744744))
    assert (conv.skip_fusion, conv.dst_type, conv.wts_type) == (False, "INT8", "INT7")
    assert conv.fakequant_precision_mode == "FORCE_FP16_QUANT"
    assert (lstm.scale_h, lstm.offset_h, lstm.scale_r, lstm.offset_r) == (F(0.125), -3, (F(2), F(4)), (0, 0))
    assert (attention.kv_scale, attention.kv_offset) == ((F(0.1), F(0.2)), (3, -4))
    assert (attention.scale_d, attention.scale_w, attention.act_type) == (None, (), None)


def test_cache_entry_is_written_without_an_empty_value() -> None:
    assert format_record(parse_record(PYTORCH)[2:]) == (
        'record {\n  key: "attention"\n  kv_cache_value {\n    scale: 0.1\n    scale: 0.2\n'
        "    offset: 3\n    offset: -4\n  }\n}\n"
    )


def test_pruning_is_kept() -> None:
    assert parse_record_file(PYTORCH, "r.txt").prunes == (
        PruneGroup(("conv1",), ("bn1", "conv2"), None, "r.txt:27:1"),
        PruneGroup((), (), "fc", "r.txt:36:1"),
    )


def test_caffe_and_tensorflow_fields() -> None:
    (caffe,), (tensorflow,) = parse_record(CAFFE), parse_record(TENSORFLOW)
    assert (caffe.channels, caffe.height, caffe.width) == (3, 224, 112)
    assert (tensorflow.shift_bit, tensorflow.skip_fusion) == ((1,), True)


def test_old_nuq_record_has_its_centres() -> None:
    listed = ", ".join(str(number) for number in range(-8, 8))
    assert parse_record(f'record {{ key: "a" value {{ cluster: [{listed}] }} }}')[0].cluster == tuple(range(-8, 8))


def test_fields_that_two_flavours_have_count_for_onnx() -> None:
    assert parse_record_file('record { key: "a" value { act_type: "INT8" } }').flavour == "onnx"


def test_fields_of_several_flavours_are_a_warning() -> None:
    text = '\n record { key: "a" value { channels: 3 op_data_type: "FLOAT16" } }'
    (note,) = parse_record_file(text, "r.txt").notes
    assert note.severity == "warn"
    assert note.message == "r.txt:2:2: fields of several flavours: channels (caffe), op_data_type (onnx); all are read"


def test_overwritten_values_are_a_warning() -> None:
    text = 'record {\n key: "a"\n value { scale_d: 1 }\n value { scale_d: 2 offset_d: 3 }\n}'
    file = parse_record_file(text, "r.txt")
    assert (file.entries[0].scale_d, file.entries[0].offset_d) == (F(2), 3)
    assert [note.message for note in file.notes] == [
        "r.txt:4:2: value is given 2 times: the blocks are merged",
        "r.txt:4:10: scale_d is given 2 times: the last one wins",
    ]


def test_every_form_of_protobuf_text_is_read() -> None:
    text = """
        # made by hand
        record: < key: 'a' "b\\t\\303\\251" ; value: { scale_w: [1, 2,
            4] offset_w: [0,0,0], offset_d: -0x10 } >  # a hexadecimal offset
        record: [ { key: "c" value {} }, { key: "d" value { skip_fusion: t } } ]
    """
    first, second, third = parse_record(text)
    assert (first.key, first.scale_w, first.offset_d) == ("ab\té", (F(1), F(2), F(4)), -16)
    assert (second.key, third.key, third.skip_fusion) == ("c", "d", True)


def test_places_of_fields_are_kept_beside_the_value() -> None:
    text = 'record {\n key: "a"\n value {\n  scale_w: 1\n  scale_w: 2 } kv_cache_value { scale: 1 } }'
    (entry,) = parse_record(text, "r.txt")
    assert entry.where["key"] == "r.txt:2:2"
    assert entry.where["scale_w"] == "r.txt:5:3"
    assert entry.where["kv_cache_value.scale"] == "r.txt:5:33"
    assert "where" not in repr(entry)


MISTAKES = {
    "field of a cache": ('record { key: "a" kv_cache_value { scales: 1 } }', "1:36", "'scales' .*did you mean 'scale'"),
    "field of a pruned node": ('prune_record { producer { nmae: "c" } }', "1:27", "'nmae' .*did you mean 'name'"),
    "member of an entry": ('record { key: "a" kv_cache { } }', "1:19", "did you mean 'kv_cache_value'"),
    "scale_h misspelt": (
        'record { key: "a" value { scaleh: 1 } }', "1:27", "unknown field 'scaleh' .*did you mean 'scale_",
    ),
    "kind of an attribute": (
        'prune_record { producer { attr { type: WORD } } }', "1:40", "type: UNDEFINED or FLOAT or INT or STRING",
    ),
    "type without quotes": ('record { key: "a" value { act_type: INT8 } }', "1:37", "act_type: a text in quotes"),
    "negative size": ('record { key: "a" value { channels: -1 } }', "1:37", "channels: a whole number between 0 and"),
    "open block": ('record {\n key: "a"\n value { scale_d: 1 }\n', "3:21", "the block record of line 1 is not closed"),
    "no key": ('record { key: "" value { } }', "1:1", "a record needs a key and a value"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_with_line_and_column(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^r.txt:{place}: .*{words}"):
        parse_record(text, "r.txt")


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "record.txt"
    path.write_text("\ufeff" + CAFFE, encoding="utf-8")
    assert read_record_file(path).entries == parse_record(CAFFE)


@needs_shared
@pytest.mark.parametrize(
    ("name", "flavour"), [("caffe_resnet50_record", "caffe"), ("tf_mobilenet_v2_record", "tensorflow")]
)
def test_flavour_of_published_records(name: str, flavour: str) -> None:
    text = gzip.decompress((SHARED / "cases" / "real" / f"{name}.txt.gz").read_bytes()).decode()
    file = parse_record_file(text, name)
    assert (file.flavour, file.notes, file.prunes) == (flavour, (), ())
