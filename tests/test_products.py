"""MatMul of two variables: off unless an override names the layer or type; then int8 without offset on both sides."""

from pathlib import Path
from typing import Any

import models
import naive
import numpy as np
import onnx
import pytest
from exporting import read_record
from onnx import numpy_helper

import calibrant
from calibrant.errors import ConfigError, RunError
from calibrant.export.files import ExportedFiles, export_files
from calibrant.export.verify import verify_export
from calibrant.rebuild import export_record

F32 = np.float32
LAYER = 'override_layer_configs { layer_name: "scores" calibration_config { } }'
TYPE = 'override_layer_types { layer_type: "MatMul" calibration_config { hfmg_quantize { } } }'


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 5, 4, seed=seed, scale=1.5)} for seed in range(count)]


def run(folder: Path, text: str, name: str = "a", **options: Any) -> tuple[calibrant.Run, ExportedFiles, Path]:
    model = models.save(models.attention(), folder / "m.onnx")
    config = folder / f"{name}.cfg"
    config.write_text(text)
    done = calibrant.run(
        model, samples(), run=folder / f"{name}.run", config=config, prefix=folder / name / "m", batch_size=4, **options
    )
    return done, export_files(folder / name / "m"), model


def node_of(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    done, files, _ = run(tmp_path, "")
    row = done.read("plan").filter(layer="scores").row(0, named=True)
    reason = "both inputs are variable; MatMul of two variables (symmetric int8) is off by default"
    assert (row["enabled"], row["reason"], row["enabled_decided_by"]) == (False, reason, "layer")
    assert "scores" not in read_record(files.record)
    assert done.read("layers").filter(layer="scores")["tensor_b"].to_list() != [None]


@pytest.mark.parametrize(
    ("text", "rule"), [(LAYER, 'override_layer_configs "scores"'), (TYPE, 'override_layer_types "MatMul"')]
)
def test_an_override_switches_it_on(text: str, rule: str, tmp_path: Path) -> None:
    done, files, model = run(tmp_path, text)
    row = done.read("plan").filter(layer="scores").row(0, named=True)
    assert (row["enabled"], row["enabled_decided_by"], row["asymmetric"], row["weight_algorithm"]) == (
        True,
        rule,
        False,
        "none",
    )
    entry = read_record(files.record)["scores"]
    assert (entry["offset_d"], len(entry["scale_w"])) == ([0], 1)
    deploy = onnx.load(files.deploy)
    scores = node_of(deploy, "scores")
    makers = {name: node for node in deploy.graph.node for name in node.output}
    quants = [
        {one.name: onnx.helper.get_attribute_value(one) for one in makers[name].attribute} for name in scores.input
    ]
    assert [makers[name].op_type for name in scores.input] == ["AscendQuant", "AscendQuant"]
    steps = entry["scale_d"][0], entry["scale_w"][0]
    assert [one["scale"] for one in quants] == [F32(1) / F32(step) for step in steps]
    assert [one["offset"] for one in quants] == [0, 0]
    word = next(numpy_helper.to_array(one) for one in deploy.graph.initializer if one.name == "scores.dequant.param")
    assert word.tolist() == [int((F32(steps[0]) * F32(steps[1])).view(np.uint32))]
    report = calibrant.verify(done)
    assert report.failures() == []
    assert report.findings == ()
    again = export_record(files.record, model, tmp_path / "again" / "m")
    for part in ("fake_quant", "deploy", "record", "quant_map"):
        assert getattr(files, part).read_bytes() == getattr(again, part).read_bytes()


def test_the_product_equals_whole_numbers_from_the_record(tmp_path: Path) -> None:
    _, files, _ = run(tmp_path, LAYER)
    entry, fake = read_record(files.record)["scores"], onnx.load(files.fake_quant)
    node, makers = node_of(fake, "scores"), {name: one for one in fake.graph.node for name in one.output}
    sources = []
    for name in node.input:
        for _ in range(5):
            name = makers[name].input[0]
        sources.append(name)
    output = next(one for one in fake.graph.node if one.op_type == "Mul" and one.input[0] == node.output[0]).output[0]
    fake.graph.output.extend(onnx.ValueInfoProto(name=name) for name in [*sources, output])
    x = samples(9)[-1]
    *_, first, second, found = models.run(fake, x)
    steps = entry["scale_d"][0], entry["scale_w"][0]
    codes = [
        np.array(naive.deploy_codes(v, s, 0, 8)).reshape(v.shape) for v, s in zip((first, second), steps, strict=True)
    ]
    total = naive.matrix_product(*codes)
    np.testing.assert_array_equal(found, total.astype(F32) * (F32(steps[0]) * F32(steps[1])))


def test_both_tensors_are_captured_only_where_it_is_on(tmp_path: Path) -> None:
    off, _, _ = run(tmp_path, "", "off")
    on, _, _ = run(tmp_path, LAYER, "on")
    assert on.read("tensors").height == off.read("tensors").height + 2
    rows = (
        on.read("quant_params")
        .join(on.read("layers").select("layer_id", "layer"), on="layer_id")
        .filter(layer="scores")
    )
    assert rows.select("role", "bits", "offset", "algorithm").rows() == [
        ("data", 8, 0, "ifmr"),
        ("weight", 8, 0, "ifmr"),
    ]
    with pytest.raises(RunError, match=r"layer 'scores' multiplies two variables, of which '.*' was not captured"):
        calibrant.fit(off.path, config=tmp_path / "on.cfg", name="later")


def test_its_config_json_gives_the_record_again(tmp_path: Path) -> None:
    _, files, _ = run(tmp_path, LAYER)
    _, again, _ = run(tmp_path, files.config.read_text(), "b")
    assert files.record.read_bytes() == again.record.read_bytes()


def test_an_offset_in_the_record_is_refused(tmp_path: Path) -> None:
    _, files, model = run(tmp_path, LAYER)
    head, entry = files.record.read_text().split('key: "scores"')
    record = tmp_path / "offset.txt"
    record.write_text(f'{head}key: "scores"{entry.replace("offset_d: 0", "offset_d: 3", 1)}')
    with pytest.raises(ConfigError, match="offset_d is 3; 0 is expected, a MatMul of two variables is symmetric"):
        export_record(record, model, tmp_path / "b" / "m")


@pytest.mark.parametrize("position", [0, 1])
def test_verify_finds_another_step_of_either_input(position: int, tmp_path: Path) -> None:
    _, files, _ = run(tmp_path, LAYER)
    deploy = onnx.load(files.deploy)
    value = node_of(deploy, "scores").input[position]
    quant = next(node for node in deploy.graph.node if value in node.output)
    scale = next(one for one in quant.attribute if one.name == "scale")
    scale.f = scale.f * 1.01
    files.deploy.write_bytes(deploy.SerializeToString())
    assert not verify_export(files, samples(1)).passed


def test_a_model_may_have_no_other_layer(tmp_path: Path) -> None:
    nodes = [
        models.node("Transpose", ["x"], "t", "transpose", perm=[0, 2, 1]),
        models.node("MatMul", ["x", "t"], "y", "scores"),
    ]
    proto = models.model(nodes, [models.value("x", ["N", 5, 4])], [models.value("y", ["N", 5, 5])])
    model, config = models.save(proto, tmp_path / "m.onnx"), tmp_path / "quant.cfg"
    config.write_text(LAYER)
    done = calibrant.run(model, samples(), run=tmp_path / "m.run", config=config, prefix=tmp_path / "out" / "m")
    assert done.read("plan")["enabled"].to_list() == [True]
    with pytest.raises(ConfigError, match=r"no layer that can be quantized \('scores': both inputs are variable"):
        calibrant.run(model, samples(), run=tmp_path / "other.run", prefix=tmp_path / "other" / "m")


@pytest.mark.parametrize(
    ("settings", "asked", "instead"),
    [
        ("ifmr_quantize { asymmetric: true }", "asymmetric: true", "symmetric"),
        ("nuq_quantize { }", "nuq_quantize", "8 bits on both sides"),
        ("arq_quantize { quant_bits: 4 }", "arq_quantize", "8 bits on both sides"),
    ],
)
def test_settings_that_it_cannot_have_are_warned_of(settings: str, asked: str, instead: str, tmp_path: Path) -> None:
    done, _, _ = run(tmp_path, LAYER.replace("{ } }", f"{{ {settings} }} }}"))
    said = done.read("events").filter(severity="warn")["message"].to_list()
    text = f'override_layer_configs "scores": {asked} has no effect on MatMul of two variables (1 layer): {instead}'
    assert any(message.endswith(text) for message in said)
