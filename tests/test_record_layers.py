"""A record against the layers of a model: names, lengths, and what a kind of layer can have."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from exporting import CASES, prepare

from calibrant.errors import ConfigError
from calibrant.export.record_layers import check_record, fusion_skips, kept_apart, layers_of_record
from calibrant.ingest.model import PreparedModel, prepare_model
from calibrant.proto.record import PruneGroup, RecordEntry, parse_record, parse_record_file

F = np.float32


def entry(key: str, channels: int = 1, **values: object) -> RecordEntry:
    """An entry that keeps every rule, but for `values`."""
    made = {"scale_d": F(0.02), "offset_d": -5, "scale_w": (F(0.01),) * channels, "offset_w": (0,) * channels}
    return RecordEntry(key, **{**made, **values})  # type: ignore[arg-type]


def check(prepared: PreparedModel, *entries: RecordEntry) -> list[str]:
    nodes = {node.name for node in prepared.model.graph if node.name}
    return [event.message for event in check_record(entries, prepared.layers, nodes)]


@pytest.fixture
def conv(tmp_path: Path) -> PreparedModel:
    """Conv 'conv' of 3 to 4 channels, Relu 'relu'."""
    return prepare(models.conv_relu(), tmp_path)


GOOD = {
    "one scale": entry("conv"),
    "a scale a channel": entry("conv", 4),
    "factors": entry("conv", tensor_balance_factor=(F(1), F(2), F(0.5))),
    "narrow weights": entry("conv", wts_type="INT6"),
    "wide data": entry("conv", act_type="INT16", offset_d=30000),
    "shift": entry("conv", 4, shift_bit=(1, 2, 3, 4)),
    "fusion alone": RecordEntry("conv", skip_fusion=True),
    "an input": RecordEntry("relu:0", F(0.1), 0, is_tensor_quantize=True),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_kept_rules_are_no_event(conv: PreparedModel, good: RecordEntry) -> None:
    assert check(conv, good) == []


BAD = {
    "wrong name": (entry("convv"), "the model has no such layer; did you mean 'conv'?"),
    "foreign name": (entry("xyz"), "the model has no such layer; its layers are conv"),
    "never quantized": (entry("relu"), "a node of its type is never quantized; delete the entry"),
    "no data scale": (entry("conv", scale_d=None), "no scale_d; was the calibration completed?"),
    "no data offset": (entry("conv", offset_d=None), "no offset_d"),
    "no weight scale": (entry("conv", 0), "0 scale_w; the Conv needs one, or 4 (one an output channel)"),
    "three channels": (entry("conv", 3), "3 scale_w; the Conv needs one, or 4"),
    "no weight offset": (entry("conv", 4, offset_w=()), "4 scale_w but 0 offset_w; as many (all 0) are expected"),
    "two factors": (entry("conv", tensor_balance_factor=(F(1), F(1))), "2 tensor_balance_factor; 3, one an input channel"),
    "two shifts": (entry("conv", 4, shift_bit=(1, 1)), "2 shift_bit for 4 scale_w"),
    "a rule without model": (entry("conv", offset_d=128), "offset_d is 128; a number from -128 to 127"),
    "tensor without index": (RecordEntry("relu", F(1), 0, is_tensor_quantize=True), "the key of a tensor is 'node:index'"),
    "tensor of no node": (RecordEntry("rely:0", F(1), 0, is_tensor_quantize=True), "no node 'rely'; did you mean 'relu'"),
    "tensor without scale": (RecordEntry("relu:0", is_tensor_quantize=True), "no scale_d; a tensor needs one"),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "words"), BAD.values(), ids=BAD)
def test_broken_rules(conv: PreparedModel, bad: RecordEntry, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(conv, bad)
    assert str(caught.value).startswith(f"record of '{bad.key}': ")
    assert words in str(caught.value)


def test_empty_record() -> None:
    with pytest.raises(ConfigError, match=r"^r\.txt: an empty record; it needs an entry for each layer"):
        check_record([], (), source="r.txt")


def test_place_in_the_file_is_named(conv: PreparedModel) -> None:
    text = 'record {\n  key: "conv"\n  value {\n    scale_d: 1 offset_d: 0\n    scale_w: [1, 2]\n  }\n}'
    with pytest.raises(ConfigError, match=r"^r\.txt:5:18: record of 'conv': 2 scale_w"):
        check(conv, *parse_record(text, "r.txt"))
    with pytest.raises(ConfigError, match=r"^r\.txt:2:3: record of 'cnv': the model has no such layer"):
        check(conv, *parse_record(text.replace("conv", "cnv"), "r.txt"))


def test_missing_types_warn(conv: PreparedModel) -> None:
    assert check(conv, entry("conv", act_type=None, wts_type=None)) == [
        "record: 1 entry has no act_type (the first is 'conv'): INT8 is assumed",
        "record: 1 entry has no wts_type (the first is 'conv'): INT8 is assumed",
    ]


def test_layer_that_cannot_be_quantized(tmp_path: Path) -> None:
    proto = models.conv_relu()
    proto.graph.node.append(models.node("GlobalAveragePool", ["y"], "z", "mean"))
    proto.graph.output.append(models.value("z", ["N", 4, 1, 1]))
    words = r"record of 'mean': the GlobalAveragePool cannot be quantized: .*; delete the entry"
    with pytest.raises(ConfigError, match=words):
        check(prepare(proto, tmp_path), entry("conv"), entry("mean"))


@pytest.mark.parametrize(
    ("name", "channels"),
    [("Conv grouped", 6), ("ConvTranspose grouped", 6), ("Conv depthwise, two a group", 6), ("Conv 1-D", 4)],
)
def test_scales_of_output_channels_over_all_groups(tmp_path: Path, name: str, channels: int) -> None:
    assert check(prepare(CASES[name].proto(), tmp_path), entry("layer", channels)) == []


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("Gemm", {"channels": 4}, "4 scale_w; the Gemm needs one, or 5"),
        ("MatMul", {"channels": 3}, "3 scale_w; the MatMul needs one, or 5"),
        ("AveragePool", {"scale_w": (F(0.5),)}, "scale_w is 0.5; 1 is expected, an AveragePool has no weight"),
        ("AveragePool", {"scale_w": (F(1),), "tensor_balance_factor": (F(1),)}, "which has no weight to balance"),
        ("Conv 3-D", {"offset_d": 1}, "offset_d is 1; 0 is expected, data of a 3-D kernel is symmetric"),
        ("Conv 1-D", {"wts_type": "INT7"}, "wts_type is INT7, which only a Conv with a 2-D kernel can have"),
        ("Gemm", {"wts_type": "INT6"}, "wts_type is INT6, which only a Conv with a 2-D kernel"),
        ("Conv grouped", {"tensor_balance_factor": (F(1),) * 2}, "2 tensor_balance_factor; 4, one an input channel"),
    ],
)
def test_what_a_kind_of_layer_cannot_have(tmp_path: Path, name: str, values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(prepare(CASES[name].proto(), tmp_path), entry("layer", **values))  # type: ignore[arg-type]


UNAPPLIED = {
    "kv_cache_value": entry("conv", kv_scale=(F(1),)),
    "LSTM or GRU": entry("conv", scale_r=(F(1),)),
    "dst_type INT4": entry("conv", dst_type="INT4"),
}


@pytest.mark.parametrize(("words", "bad"), UNAPPLIED.items())
def test_what_would_change_the_models_is_refused(conv: PreparedModel, words: str, bad: RecordEntry) -> None:
    with pytest.raises(ConfigError, match=f"record of '{bad.key}': .*{words}.*: this version cannot apply it"):
        layers_of_record([bad], conv.layers)


def test_what_changes_nothing_is_taken(conv: PreparedModel) -> None:
    harmless = entry(
        "conv", tensor_balance_factor=(F(1),) * 3, shift_bit=(0,), fakequant_precision_mode="DEFAULT", dst_type="INT8"
    )
    (found,) = layers_of_record([harmless], conv.layers)
    assert (found.layer.name, found.data_bits, found.weight_bits) == ("conv", 8, 8)


def test_factors_are_those_of_the_record(conv: PreparedModel) -> None:
    (found,) = layers_of_record([entry("conv", tensor_balance_factor=(F(1), F(2), F(0.5)))], conv.layers)
    assert found.balance is not None
    assert found.balance.tolist() == [1, 2, 0.5]


def test_pruning_is_refused(conv: PreparedModel) -> None:
    text = 'prune_record { producer { name: "conv" } consumer { name: "bn" } }'
    file = parse_record_file(text, "r.txt")
    with pytest.raises(ConfigError, match=r"^r\.txt:1:1: prune_record of 'conv', 'bn': this version cannot apply it"):
        layers_of_record([entry("conv")], conv.layers, file.prunes)
    with pytest.raises(ConfigError, match="prune_record of no layer"):
        layers_of_record([entry("conv")], conv.layers, [PruneGroup((), (), None, "r.txt:1:1")])


def test_values_are_those_of_the_record(conv: PreparedModel) -> None:
    scales = tuple(F(number) for number in (0.5, 0.25, 0.125, 1))
    given = entry("conv", 4, scale_w=scales, act_type="INT16", offset_d=-3000, wts_type="INT7")
    (found,) = layers_of_record([given], conv.layers)
    assert (found.scale_d, found.offset_d, found.data_bits, found.weight_bits) == (F(0.02), -3000, 16, 7)
    assert found.scale_w.tolist() == [0.5, 0.25, 0.125, 1]
    assert found.scale_w.dtype == np.float32


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scale_d": F(1e-40)}, "scale_d is 1e-40, and 1/scale_d or the largest value leaves float32"),
        ({"scale_d": F(3e38)}, "scale_d is 3e.38, and 1/scale_d or the largest value"),
        ({"scale_w": (F(3e38),)}, "scale_w reaches from 3e.38 to 3e.38: .* the largest weight leaves float32"),
        ({"scale_d": F(1e-30), "scale_w": (F(1e-30),)}, r"scale_d \* scale_w or the largest weight leaves float32"),
        ({"scale_d": F(1e30), "scale_w": (F(1e30),)}, r"scale_d \* scale_w or the largest weight leaves float32"),
    ],
)
def test_scales_beyond_float32(conv: PreparedModel, values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        layers_of_record([entry("conv", **values)], conv.layers)  # type: ignore[arg-type]


def test_nothing_to_quantize(conv: PreparedModel) -> None:
    with pytest.raises(ConfigError, match=r"^r\.txt: no entry has scales, so there is nothing to quantize"):
        layers_of_record([RecordEntry("conv", skip_fusion=True)], conv.layers, source="r.txt")


def test_only_convolutions_are_kept_from_fusion(tmp_path: Path) -> None:
    proto = models.model(
        [models.node("Conv", ["x", "w"], "c", "conv"), models.node("MatMul", ["c", "w2"], "y", "matmul")],
        [models.value("x", ["N", 3, 4, 4])],
        [models.value("y", ["N", 2, 4, 5])],
        {"w": models.normal(2, 3, 1, 1), "w2": models.normal(4, 5)},
    )
    onnx.checker.check_model(proto)
    layers = prepare(proto, tmp_path).layers
    entries = [RecordEntry(name, skip_fusion=True) for name in ("matmul", "conv", "other")]
    assert fusion_skips([*entries, RecordEntry("conv", skip_fusion=False)], layers) == ("conv",)


def test_convolutions_before_a_norm_are_kept_apart(tmp_path: Path, conv: PreparedModel) -> None:
    path = models.save(models.conv_bn(), tmp_path / "norm.onnx")
    assert kept_apart(prepare_model(path, do_fusion=False)) == {"conv"}
    assert kept_apart(prepare_model(path)) == kept_apart(conv) == frozenset()
