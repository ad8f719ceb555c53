"""Configurations as AMCT's manuals and samples print them: all are read, in the odd published form too."""

from pathlib import Path

import pytest
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.documents import detect_document
from calibrant.proto.retrain_config import canonical_retrain_text, parse_retrain_config, read_retrain_config
from calibrant.proto.settings import DmqSettings, IfmrSettings, NuqSettings, TensorSettings
from calibrant.proto.simple_config import canonical_text, parse_simple_config, read_simple_config

CONFIGS = Path(__file__).parent / "configs"
REAL = SHARED / "cases" / "real"
SIMPLE = ("atc_uniform", "atc_weight_only", "onnx_uniform", "onnx_hfmg", "onnx_nuq", "onnx_dmq")


@pytest.mark.parametrize("name", SIMPLE)
def test_sample_is_read_and_written_back(name: str) -> None:
    config = read_simple_config(CONFIGS / f"{name}.cfg")
    config.check_types()
    assert config.dialect == name.split("_")[0]
    assert parse_simple_config(canonical_text(config)) == config


@pytest.mark.parametrize(("name", "broken"), [("atc_uniform", 7), ("atc_weight_only", 2)])
def test_published_form_is_read_with_a_warning_for_each_broken_text(name: str, broken: int) -> None:
    path = CONFIGS / f"{name}_published.cfg"
    config = read_simple_config(path)
    assert sum("a text broken over lines" in note.message for note in config.notes) == broken
    assert config.dialect == "atc"
    assert config.text == path.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{path.name}:\d+:1: \w+: 'Optype' is no layer type of the atc dialect"):
        config.check_types()


def test_published_form_means_what_the_sample_means() -> None:
    text = (CONFIGS / "atc_uniform_published.cfg").read_text(encoding="utf-8")
    names = iter(["conv1", "DepthwiseConv2D", "conv2", "MatMulV2", "conv3", "pool1", "add1"])
    lines = [next(names) if line in ("Optype", "Opname") else line for line in text.split("\n")]
    assert parse_simple_config("\n".join(lines)) == read_simple_config(CONFIGS / "atc_uniform.cfg")


def test_omitted_lines_of_a_published_sample_are_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"onnx_hfmg_published\.cfg:4:1: '\.\.\.' stands for lines that were left out"
    ):
        read_simple_config(CONFIGS / "onnx_hfmg_published.cfg")


def test_values_that_are_not_applied_are_kept() -> None:
    tensors = (
        TensorSettings("max_pooling2d/MaxPool", 0, IfmrSettings(asymmetric=False)),
        TensorSettings("max_pooling2d_1/MaxPool", 0),
    )
    nuq = read_simple_config(CONFIGS / "onnx_nuq.cfg")
    assert nuq.nuq == NuqSettings("./nuq_files/resnet101_quantized.json", 32, 0)
    assert nuq.tensor_quantize == tensors
    assert nuq.tensor_quantize[1].place == f"{CONFIGS / 'onnx_nuq.cfg'}:54:1"
    dmq = read_simple_config(CONFIGS / "onnx_dmq.cfg")
    blocks = [dmq.common, dmq.override_types[0][1], dmq.override_layers[0][1]]
    assert [block.dmq for block in blocks if block] == [DmqSettings(0.5)] * 3
    weight_only = read_simple_config(CONFIGS / "atc_weight_only.cfg")
    assert weight_only.common is not None
    assert weight_only.common.weight_compress_only is True
    settings = weight_only.override_types[0][1].arq
    assert settings is not None
    assert (settings.asymmetric, settings.quant_bits) == (True, 6)


@needs_shared
def test_every_real_configuration_is_read_and_written_back() -> None:
    paths = sorted(REAL.glob("*.cfg"))
    assert len(paths) >= 12
    for path in paths:
        if detect_document(path) == "retrain":
            retrain = read_retrain_config(path)
            retrain.check_types()
            assert parse_retrain_config(canonical_retrain_text(retrain)) == retrain, path.name
        else:
            config = read_simple_config(path)
            config.check_types()
            assert parse_simple_config(canonical_text(config)) == config, path.name


@needs_shared
def test_samples_stand_in_the_references_as_typed() -> None:
    reference = next((SHARED / "seeds").glob("000_*.txt")).read_text(encoding="utf-8")
    for name in ("atc_uniform", "atc_weight_only"):
        assert (CONFIGS / f"{name}_published.cfg").read_text(encoding="utf-8").strip() in reference
    reference = next((SHARED / "seeds").glob("001_*.txt")).read_text(encoding="utf-8")
    for name in ("onnx_uniform", "onnx_nuq", "onnx_dmq", "onnx_hfmg_published"):
        typed = (CONFIGS / f"{name}.cfg").read_text(encoding="utf-8")
        assert "".join(typed.split()) in "".join(reference.split()), name
