"""ATC's compression_optimize_conf, and telling the kinds of configuration apart."""

import gzip
from pathlib import Path

import pytest
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError
from calibrant.proto.documents import detect_document, document_kind
from calibrant.proto.optimize_conf import CompressionOptimizeConf, parse_optimize_conf, read_optimize_conf

CONFIGS = Path(__file__).parent / "configs"


def test_bare_values_are_read() -> None:
    path = CONFIGS / "compression_optimize.cfg"
    conf = read_optimize_conf(path)
    assert conf == CompressionOptimizeConf(
        input_data=("./data.bin", "d2.bin"),
        input_shapes=(("in", (16, 16)), ("in1", (16, 16))),
        config_file="simple_config.txt",
        infer_soc="Ascend310P3",
        log="info",
        enable_first_layer_quantization=True,
        source=str(path),
    )
    assert conf.notes == ()
    assert conf.where("config_file") == f"{path}:6:5"
    assert conf.where("infer_ip") == str(path)


def test_quoted_values_mean_the_same() -> None:
    bare = "calibration: {{\n input_data_dir: {0}./a b.bin{0}\n input_shape: {0}scope/x:0:1,3{0}\n}}"
    conf = parse_optimize_conf(bare.format('"'))
    assert conf.input_data == ("./a b.bin",)
    assert conf.input_shapes == (("scope/x:0", (1, 3)),)
    text = "calibration {\n config_file: {}quant.cfg{}\n}"
    assert parse_optimize_conf(text.replace("{}", "'")) == parse_optimize_conf(text.replace("{}", ""))


def test_places_in_bare_files_are_those_of_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^q\.cfg:3:5: input_shape: 'in:x' is no shape"):
        parse_optimize_conf("calibration:\n{\n    input_shape: in:x\n}", "q.cfg")
    with pytest.raises(ConfigError, match=r"^q\.cfg:4:5: unknown field 'config_files' .*did you mean 'config_file'"):
        parse_optimize_conf("calibration:\n{\n    log: info\n    config_files: a\n}", "q.cfg")


KINDS = {
    "": "ptq",
    "batch_num: 1": "ptq",
    'skip_layers: "a"': "ptq",
    "common_config { }": "ptq",
    "nonsense": "ptq",
    'override_layer_types { layer_type: "Conv2d" }': "ptq",
    'override_layer_types { layer_type: "Conv2d" retrain_weight_quant_config { } }': "retrain",
    "retrain_data_quant_config { }": "retrain",
    "prune_config { }": "retrain",
    "quant_skip_layers: “a”": "retrain",
    "compress_ratio: 2": "retrain",
    "calibration: { }": "compression-optimize-conf",
    "enable_first_layer_quantization: true": "compression-optimize-conf",
    "{}": "json",
    "\ufeff\n {": "json",
    '{"version": 1, "conv1": {"quant_enable": true}}': "json",
    '{"version": 1, "conv1": {"retrain_enable": true}}': "retrain-json",
    '{"version": 1, "conv1": {"retrain_weight_config": {}}}': "retrain-json",
    '{"conv1": {"regular_prune_enable": false}}': "retrain-json",
    '{"conv1": {"retrain_enable": true}': "retrain-json",
    '{"retrain_enable": {"quant_enable": true}}': "json",
    '{"a": [1, "retrain_enable"]}': "json",
    "{" * 100_000: "json",
}


@pytest.mark.parametrize(("text", "kind"), KINDS.items(), ids=lambda text: text[:60])
def test_kind_of_a_text(text: str, kind: str) -> None:
    assert document_kind(text) == kind


def test_record_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "record.txt"
    path.write_text('record {\n  key: "conv1"\n  value { scale_d: 1 }\n}\n')
    with pytest.raises(ConfigError, match=r"record\.txt: a record, not a configuration"):
        detect_document(path)


RETRAIN = ("tf_sample_", "torch_")


@needs_shared
def test_kind_of_real_files(tmp_path: Path) -> None:
    for path in sorted((SHARED / "cases" / "real").glob("*.cfg")):
        assert detect_document(path) == ("retrain" if path.name.startswith(RETRAIN) else "ptq"), path.name
    mapping = tmp_path / "fusion.json"
    mapping.write_bytes(gzip.decompress((SHARED / "cases" / "real" / "onnx_resnet101_fusion.json.gz").read_bytes()))
    assert detect_document(mapping) == "json"
