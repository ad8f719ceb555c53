"""Retrain (QAT) and pruning configurations: what is read, where messages point, and that nothing is lost on the way back to text."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import ConfigError
from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    AutoPruneSettings,
    FilterPruneSettings,
    RetrainBlock,
    RetrainConfig,
    SelectivePruneSettings,
    UlqRetrainSettings,
    UlqSettings,
    canonical_retrain_text,
    parse_retrain_config,
    read_retrain_config,
)

CONFIGS = Path(__file__).parent / "configs"


def test_configuration_with_every_member_is_read_in_full() -> None:
    config = read_retrain_config(CONFIGS / "retrain_full.cfg")
    config.check_types()
    assert config == RetrainConfig(
        batch_num=2,
        data=UlqSettings(3.0, -3.0, fixed_min=True),
        weight=ArqRetrainSettings(channel_wise=True),
        skip_layers=("layer1.0.conv1",),
        skip_layer_types=("Linear",),
        quant_skip_layers=("layer1.0.conv2",),
        quant_skip_types=("ConvTranspose2d",),
        regular_prune_skip_layers=("layer2.0.conv1",),
        regular_prune_skip_types=("Conv2d",),
        override_types=(("Linear", RetrainBlock(weight=UlqRetrainSettings(channel_wise=False))),),
        override_layers=(
            ("conv1", RetrainBlock(data=UlqSettings(fixed_min=False), prune=SelectivePruneSettings(update_freq=2))),
        ),
        prune=FilterPruneSettings(0.3, ascend_optimized=False),
    )
    assert [note.message.split("cfg:")[1] for note in config.notes] == [
        "39:5: prune_config is read but not applied in this version: nothing is pruned",
        "47:1: prune_config is read but not applied in this version: nothing is pruned",
    ]


def test_places_of_names_and_members() -> None:
    path = CONFIGS / "retrain_full.cfg"
    config = read_retrain_config(path)
    assert config.where("skip_layers", "layer1.0.conv1") == f"{path}:18:1"
    assert config.where("override_layer_types", "Linear") == f"{path}:25:5"
    assert config.where("retrain_weight_quant_config.arq_retrain.channel_wise") == f"{path}:14:9"
    assert config.where("nowhere") == str(path)
    places = config.override_layers[0][1].places
    assert places["retrain_data_quant_config.ulq_quantize.fixed_min"] == f"{path}:36:13"


def test_empty_text_gives_the_defaults() -> None:
    assert parse_retrain_config("") == RetrainConfig()
    assert RetrainConfig().dialect == "pytorch"
    assert UlqSettings().dst_type == "INT8"


def test_automatic_pruning_is_kept() -> None:
    config = parse_retrain_config(
        "compress_ratio: 1.25\nascend_optimized: true\nmax_prune_ratio: 0.8\ntest_iteration: 1"
    )
    assert config.auto_prune == AutoPruneSettings(1.25, True, 0.8, 1)


@pytest.mark.parametrize(
    ("data", "weight", "possible"),
    [(data, weight, (data, weight) in {("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4")})
     for data in ("INT4", "INT8", "INT16") for weight in ("INT4", "INT8", "INT16")],
)  # fmt: skip
@pytest.mark.parametrize("outer", ["{}", 'override_layer_types {{ layer_type : "Linear" {} }}'])
def test_pairs_of_widths(data: str, weight: str, possible: bool, outer: str) -> None:
    blocks = (
        f"retrain_data_quant_config {{ ulq_quantize {{ dst_type : {data} }} }}"
        f" retrain_weight_quant_config {{ ulq_retrain {{ dst_type : {weight} }} }}"
    )
    if possible:
        parse_retrain_config(outer.format(blocks))
        return
    with pytest.raises(ConfigError, match=f"data of {data} with weights of {weight} is impossible"):
        parse_retrain_config(outer.format(blocks))


def test_name_given_twice_counts_once() -> None:
    config = parse_retrain_config('quant_skip_layers : "a"\nquant_skip_layers : ["b", "a"]', "q.cfg")
    assert config.quant_skip_layers == ("a", "b")
    assert [note.message for note in config.notes] == [
        "q.cfg:2:27: quant_skip_layers names 'a' a second time (first at q.cfg:1:1)"
    ]


def test_dialect_is_told_by_type_names_and_can_be_forced() -> None:
    text = 'quant_skip_types : "Conv2D"'
    assert parse_retrain_config(text).dialect == "atc"
    assert [note.severity for note in parse_retrain_config(text).notes] == ["info"]
    assert parse_retrain_config('quant_skip_types : "Conv2d"').notes == ()
    forced = parse_retrain_config(text, "q.cfg", dialect="pytorch")
    with pytest.raises(
        ConfigError,
        match=r"^q\.cfg:1:1: quant_skip_types: 'Conv2D' is no layer type of the pytorch dialect, but one of atc",
    ):
        forced.check_types()


def test_values_that_python_code_gives_are_checked() -> None:
    with pytest.raises(ConfigError, match="batch_num is 0; at least 1"):
        RetrainConfig(batch_num=0)
    with pytest.raises(ConfigError, match="clip_max and clip_min are given together"):
        UlqSettings(clip_max=1.0)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.cfg: no such file; give the path of a retrain \(QAT\) or pruning"):
        read_retrain_config(tmp_path / "none.cfg")
    path = tmp_path / "bom.cfg"
    path.write_bytes(b"\xef\xbb\xbfbatch_num : 2")
    assert [note.message for note in read_retrain_config(path).notes] == [
        f"{path}:1:1: the file begins with a byte-order mark, which AMCT refuses; it was left out"
    ]


booleans = st.none() | st.booleans()
ratios = st.sampled_from([0.1, 0.3, 0.999])
ends = st.sampled_from([(None, None), (1.0, -1.0), (0.1, -3e38)])
datas = st.builds(lambda ends, fixed: UlqSettings(*ends, fixed_min=fixed), ends, booleans)
weight_settings = st.one_of(
    st.builds(kind, booleans, st.sampled_from(["INT8", "INT4"])) for kind in (ArqRetrainSettings, UlqRetrainSettings)
)
prunes = st.builds(FilterPruneSettings, ratios, st.booleans()) | st.builds(
    SelectivePruneSettings, update_freq=st.integers(0, 2**32 - 1)
)
blocks = st.builds(RetrainBlock, st.none() | datas, st.none() | weight_settings, st.none() | prunes)
letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.lists(letters, unique=True, max_size=3).map(tuple)
overrides = st.lists(st.tuples(letters, blocks), unique_by=lambda one: one[0], max_size=3).map(tuple)
auto_prunes = st.builds(
    AutoPruneSettings, st.sampled_from([1.25, 2.0]), booleans, st.none() | ratios, st.none() | st.integers(0, 9)
)
configs = st.builds(
    RetrainConfig,
    batch_num=st.none() | st.integers(1, 2**32 - 1),
    data=st.none() | datas,
    weight=st.none() | weight_settings,
    skip_layers=names,
    skip_layer_types=names,
    quant_skip_layers=names,
    quant_skip_types=names,
    regular_prune_skip_layers=names,
    regular_prune_skip_types=names,
    override_types=overrides,
    override_layers=overrides,
    prune=st.none() | prunes,
    auto_prune=st.none() | auto_prunes,
    fakequant_precision_mode=st.sampled_from([None, "DEFAULT", "FORCE_FP16_QUANT"]),
    version=st.sampled_from([None, 1]),
    dialect=st.sampled_from(["onnx", "atc", "pytorch"]),
)


@given(configs)
@settings(max_examples=60, deadline=None)
def test_canonical_text_is_read_back_equal(config: Any) -> None:
    again = parse_retrain_config(canonical_retrain_text(config), dialect=config.dialect)
    assert again == config
    assert canonical_retrain_text(again) == canonical_retrain_text(config)
