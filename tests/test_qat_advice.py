"""The tuning path of AMCT's guide: each step's rows against a run whose answers are known, and the edited files."""

import json
from pathlib import Path
from typing import Any

import models
import naive
import numpy as np
import onnx
import polars as pl
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.errors import ConfigError
from calibrant.proto.retrain_config import parse_retrain_config
from calibrant.proto.retrain_json import parse_retrain_json
from calibrant.qat_advice import advise_qat
from calibrant.qat_facts import module_of
from calibrant.quantizers.retrain_advice import LayerFacts, advise
from calibrant.quantizers.retrain_edits import edited_config, edited_json

F = np.float32


def network() -> onnx.ModelProto:
    """x -> Conv '/stem/Conv' -> Relu -> Conv '/body/body.0/Conv' -> Add of its own weight's twin -> Gemm '/fc/Gemm'.

    The second and the third convolution share one weight; one channel of the first weight is a thousand times the others.
    """
    weight = models.normal(4, 3, 3, 3)
    weight[0] *= 1000
    tensors = {
        "stem.weight": weight, "body.0.weight": models.normal(4, 4, 1, 1, seed=1), "fc.weight": models.normal(5, 256, seed=2),
        "fc.bias": models.normal(5, seed=3),
    }  # fmt: skip
    nodes = [
        models.node("Conv", ["x", "stem.weight"], "c", "/stem/Conv", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "/relu/Relu"),
        models.node("Conv", ["r", "body.0.weight"], "d", "/body/body.0/Conv"),
        models.node("Conv", ["d", "body.0.weight"], "e", "/body/body.0_1/Conv"),
        models.node("Flatten", ["e"], "f", "/flat/Flatten"),
        models.node("Gemm", ["f", "fc.weight", "fc.bias"], "y", "/fc/Gemm", transB=1),
        models.node("GlobalAveragePool", ["r"], "g", "/pool/GlobalAveragePool"),
    ]
    outputs = [models.value("y", ["N", 5]), models.value("g", ["N", 4, 1, 1])]
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], outputs, tensors)


def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 8, 8, seed=seed, scale=1.0 + seed / 4)} for seed in range(8)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advice")
    model = models.save(network(), folder / "model.onnx")
    calibrant.run(model, feeds(), run=folder / "m.run", prefix=folder / "m", batch_size=2)
    return folder / "m.run"


def layer(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "retrain_enable": True,
        "retrain_data_config": {"algo": "ulq_quantize", "dst_type": "INT8"},
        "retrain_weight_config": {"algo": "arq_retrain", "channel_wise": True, "dst_type": "INT8"},
    }
    made["retrain_enable"] = changes.pop("enable", True)
    made["retrain_weight_config"]["channel_wise"] = changes.pop("channel_wise", True)
    made["retrain_data_config"] = {"algo": "ulq_quantize", **changes, "dst_type": "INT8"}
    return made


def text(layers: dict[str, Any], batch_num: int = 1) -> str:
    return json.dumps({"version": 1, "batch_num": batch_num, **layers}, indent=4, separators=(",", ":"))


def written(folder: Path, content: str, name: str = "config.json") -> Path:
    (folder / name).write_text(content)
    return folder / name


def one(table: pl.DataFrame, topic: str, name: str | None, key: str) -> dict[str, Any]:
    rows = table.filter(pl.col("topic") == topic, pl.col("layer").eq_missing(name), pl.col("key") == key)
    assert rows.height == 1
    return rows.row(0, named=True)


# Each step.


def test_clip_intervals_come_from_the_observed_ends(run: Path, tmp_path: Path) -> None:
    inputs = np.concatenate([feed["x"] for feed in feeds()])
    given = layer(clip_max=float(inputs.max()) * 2, clip_min=float(inputs.min()) * 0.1)
    path = written(tmp_path, text({"/stem/Conv": given, "/fc/Gemm": layer(channel_wise=False)}))
    advice = advise_qat(path, run)
    rows = [one(advice.table, "clips", "/stem/Conv", key) for key in ("clip_max", "clip_min")]
    for row, (low, high) in zip(
        rows, ((0.3 * inputs.max(), 1.7 * inputs.max()), (1.7 * inputs.min(), 0.3 * inputs.min())), strict=True
    ):
        assert row["severity"] == "warn"
        first, _, second = row["proposed"].partition(" to ")
        assert float(first) == pytest.approx(low, rel=1e-5)
        assert float(second) == pytest.approx(high, rel=1e-5)
    edited = json.loads(advice.text)["/stem/Conv"]["retrain_data_config"]
    assert edited["clip_max"] == pytest.approx(1.7 * inputs.max(), rel=1e-4)
    assert edited["clip_max"] <= 1.7 * inputs.max()
    assert edited["clip_min"] == pytest.approx(0.3 * inputs.min(), rel=1e-4)
    assert edited["clip_min"] <= 0.3 * inputs.min()


def test_data_that_is_never_negative_has_no_lower_interval(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/body/body.0/Conv": layer(), "/stem/Conv": layer()}))
    row = one(advise_qat(path, run).table, "clips", "/body/body.0/Conv", "clip_min")
    assert (row["severity"], row["proposed"]) == ("info", None)
    assert "no negative value" in row["evidence"]


@pytest.mark.parametrize(
    ("name", "given", "proposed"),
    [
        ("/body/body.0/Conv", False, "true"),
        ("/body/body.0/Conv", True, None),
        ("/body/body.0/Conv", None, None),
        ("/stem/Conv", True, "false"),
        ("/fc/Gemm", True, "false"),
        ("/fc/Gemm", False, None),
    ],
)
def test_fixed_min_follows_the_producer(
    run: Path, tmp_path: Path, name: str, given: bool | None, proposed: str | None
) -> None:
    data = {} if given is None else {"fixed_min": given}
    path = written(tmp_path, text({name: layer(channel_wise=False, **data), "/x": layer()}))
    row = one(advise_qat(path, run, disable=0).table, "fixed_min", name, "fixed_min")
    assert row["proposed"] == proposed
    assert row["edited"] == (proposed is not None)
    assert row["severity"] == ("info" if proposed is None else "warn")


def weight_sqnr_db(weight: np.ndarray, *, channel_wise: bool) -> float:
    rows, signal, noise = weight.reshape(weight.shape[0] if channel_wise else 1, -1), 0.0, 0.0
    for values, grid in zip(rows, naive.arq(weight, 8, channel_wise, False), strict=True):
        found = np.array(naive.dequantize(naive.quantize(values, grid.scale, 0, 8), grid.scale, 0), np.float64)
        signal, noise = (
            signal + float((values.astype(np.float64) ** 2).sum()),
            noise + float(((values - found) ** 2).sum()),
        )
    return 10 * np.log10(signal / noise)


def test_weight_sqnr_both_ways(run: Path, tmp_path: Path) -> None:
    weight = models.normal(4, 4, 1, 1, seed=1)
    path = written(
        tmp_path, text({"/body/body.0/Conv": layer(channel_wise=False), "/fc/Gemm": layer(channel_wise=False)})
    )
    row = one(advise_qat(path, run).table, "channel_wise", "/body/body.0/Conv", "channel_wise")
    wanted = [weight_sqnr_db(weight, channel_wise=wise) for wise in (True, False)]
    assert row["evidence"].startswith(
        f"SQNR of its weight: {wanted[0]:.1f} dB with one scale an output channel, {wanted[1]:.1f} dB"
    )


def test_channel_wise_is_proposed_where_it_gains_and_can_be(tmp_path: Path) -> None:
    config = parse_retrain_json(
        text({"conv": layer(channel_wise=False), "near": layer(channel_wise=False), "fc": layer(channel_wise=True)})
    )
    facts = [
        LayerFacts("conv", "Conv", by_channel_db=44.0, by_tensor_db=40.0),
        LayerFacts("near", "Conv", by_channel_db=44.0, by_tensor_db=42.0),
        LayerFacts("fc", "Gemm", by_channel_db=44.0, by_tensor_db=40.0),
    ]
    rows = {row.layer: row for row in advise(config, facts, batch_size=8, samples=8) if row.topic == "channel_wise"}
    assert [(rows[name].severity, rows[name].proposed) for name in ("conv", "near", "fc")] == [
        ("warn", "true"), ("info", None), ("error", "false"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batch_num", "batch_size", "spread", "proposed"),
    [
        (1, 8, 0.5, 6),  # (0.5 / 0.05)² = 100 samples are more than the guide's 50: 6 batches of 8 fit
        (1, 8, 0.1, None),  # (0.1 / 0.05)² = 4 samples
        (1, 2, 0.1, 2),
        (7, 8, 0.1, 6),  # 56 samples
        (1, 64, 0.5, None),  # one batch is the least
        (3, 64, 0.5, 1),
        (None, 8, None, None),
    ],
)
def test_number_of_batches(batch_num: int | None, batch_size: int, spread: float | None, proposed: int | None) -> None:
    config = parse_retrain_json('{"fc":{"retrain_enable":true}}')
    config = edited_json(config, {None: {} if batch_num is None else {"batch_num": batch_num}})
    rows = advise(config, [LayerFacts("fc", "Gemm", spread=spread)], batch_size=batch_size, samples=16)
    (row,) = (row for row in rows if row.topic == "samples")
    assert row.edit == proposed
    assert f"{batch_num or 1} x {batch_size} = {(batch_num or 1) * batch_size} samples" in row.evidence


def test_worst_layers_are_proposed_to_stay_in_float() -> None:
    names = ["a", "b", "c", "off"]
    config = parse_retrain_json(text({name: layer(enable=name != "off") for name in names}))
    facts = [
        LayerFacts(name, "Conv", rank=rank, measured="told") for name, rank in zip(names, (3, 1, 2, 4), strict=True)
    ]
    for disable, wanted in ((0, []), (1, ["b"]), (2, ["b", "c"]), (9, ["b", "c"])):  # one has to be trained
        rows = advise(config, facts, batch_size=8, samples=8, disable=disable)
        assert [row.layer for row in rows if row.topic == "sensitivity" and row.edit is False] == wanted
    ranked = [row.layer for row in rows if row.topic == "sensitivity"]
    assert ranked == ["b", "c", "a"]


def test_ranking_is_that_of_the_run(run: Path, tmp_path: Path) -> None:
    from calibrant.sensitivity import ranking

    names = ["/stem/Conv", "/body/body.0/Conv", "/fc/Gemm"]
    path = written(tmp_path, text({name: layer(channel_wise=False) for name in names}))
    table = advise_qat(path, run).table.filter(topic="sensitivity")
    assert table["layer"].to_list() == [
        name for name in ranking(run, view="statistics") if name in names and "body" not in name
    ]


def test_reused_layers(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/body/body.0/Conv": layer(), "/stem/Conv": layer()}))
    advice = advise_qat(path, run)
    row = one(advice.table, "keys", "/body/body.0/Conv", "retrain_enable")
    assert "it has the weight of /body/body.0_1/Conv" in row["evidence"]
    assert json.loads(advice.text)["/body/body.0/Conv"]["retrain_enable"] is False


def test_unknown_names_have_their_place_and_the_nearest(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/stem/Conv": layer(), "/fc/Gem": layer(channel_wise=False)}))
    advice = advise_qat(path, run)
    row = one(advice.table, "keys", "/fc/Gem", "/fc/Gem")
    assert (row["severity"], row["proposed"], row["edited"]) == ("error", "did you mean '/fc/Gemm'?", False)
    assert f"{path}:16:5: " in row["evidence"]
    assert "/fc/Gem" in json.loads(advice.text)


def test_layers_that_cannot_be_quantized(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/stem/Conv": layer(), "/pool/GlobalAveragePool": layer()}))
    row = one(advise_qat(path, run).table, "keys", "/pool/GlobalAveragePool", "retrain_enable")
    assert (row["severity"], row["proposed"]) == ("error", "false")
    assert "GlobalAveragePool is not quantized" in row["evidence"]


def test_layer_that_is_there_twice(run: Path, tmp_path: Path) -> None:
    content = text({"/stem/Conv": layer()}).rstrip("}\n ") + '}},"/stem/Conv":{"retrain_enable":false}}'
    path = written(tmp_path, content)
    table = advise_qat(path, run).table
    assert one(table, "keys", "/stem/Conv", "/stem/Conv")["proposed"] == "delete all but one"
    with pytest.raises(ConfigError, match="layer '/stem/Conv' is there more than once; delete all but one"):
        advise_qat(path, run, output=tmp_path / "next.json")
    assert not (tmp_path / "next.json").exists()


def test_lower_end_beside_a_fixed_one_is_ignored(run: Path, tmp_path: Path) -> None:
    path = written(
        tmp_path, text({"/stem/Conv": layer(clip_max=3.0, clip_min=-3.0, fixed_min=True), "/fc/Gemm": layer()})
    )
    row = one(advise_qat(path, run).table, "fixed_min", "/stem/Conv", "clip_min")
    assert (row["severity"], row["evidence"]) == ("warn", "fixed_min is true, so that clip_min is ignored")


# Files.


def test_edited_file_is_amct_form_with_nothing_else_changed(run: Path, tmp_path: Path) -> None:
    layers = {
        "/stem/Conv": layer(fixed_min=True),
        "/fc/Gemm": layer(channel_wise=False),
        "/fc/Gem": layer(enable=False),
    }
    path = written(tmp_path, text(layers))
    advice = advise_qat(path, run, disable=0, output=tmp_path / "next.json")
    assert (tmp_path / "next.json").read_text() == advice.text
    wanted = json.loads(path.read_text())
    wanted["batch_num"] = json.loads(advice.text)["batch_num"]
    wanted["/stem/Conv"]["retrain_data_config"]["fixed_min"] = False
    assert advice.text == json.dumps(wanted, indent=4, separators=(",", ":"))


def test_second_walk_finds_nothing_left(run: Path, tmp_path: Path) -> None:
    path = written(
        tmp_path, text({"/stem/Conv": layer(clip_max=1e3, clip_min=-1e3, channel_wise=False), "/fc/Gemm": layer()})
    )
    advise_qat(path, run, disable=0, output=tmp_path / "next.json")
    again = advise_qat(tmp_path / "next.json", run, disable=0)
    assert again.table.filter(pl.col("edited")).is_empty()


CFG = """# tuned by hand
batch_num: 1
quant_skip_layers: "/fc/Gem"
regular_prune_skip_layers: "/stm/Conv"
override_layer_configs {
  layer_name: "/stem/Conv"
  retrain_data_quant_config { ulq_quantize { clip_max_min { clip_max: 1000 clip_min: -2 } } }
  retrain_weight_quant_config { ulq_retrain { channel_wise: true } }
}
"""


def test_simple_configuration_in_and_out(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, CFG, "retrain.cfg")
    advice = advise_qat(path, run, disable=1, output=tmp_path / "next.cfg")
    config = parse_retrain_config((tmp_path / "next.cfg").read_text())
    worst = advice.table.filter(topic="sensitivity", proposed="false")["layer"].to_list()
    reused = ["/body/body.0/Conv", "/body/body.0_1/Conv"]
    assert sorted(config.quant_skip_layers) == sorted(["/fc/Gem", *reused, *worst])
    assert one(advice.table, "keys", "/fc/Gem", "/fc/Gem")["proposed"] == "did you mean '/fc/Gemm'?"
    assert one(advice.table, "keys", "/stm/Conv", "/stm/Conv")["proposed"] == "did you mean '/stem/Conv'?"
    assert config.regular_prune_skip_layers == ("/stm/Conv",)
    assert any("comment (1)" in event.message for event in advice.events)
    again = advise_qat(tmp_path / "next.cfg", run, disable=0)
    assert again.table.filter(pl.col("edited")).is_empty()


def test_override_keeps_what_was_not_edited() -> None:
    config = parse_retrain_config(CFG)
    resolved = parse_retrain_json(text({"/stem/Conv": layer(clip_max=1000.0, clip_min=-2.0)}))
    resolved = edited_json(resolved, {})
    ((name, block),) = edited_config(config, {"/stem/Conv": {"clip_max": 5.0}}, resolved).override_layers
    assert name == "/stem/Conv"
    assert block.data is not None
    assert (block.data.clip_max, block.data.clip_min) == (5.0, -2.0)


def test_skipped_layer_loses_its_override_since_that_would_win() -> None:
    edited = edited_config(
        parse_retrain_config(CFG), {"/stem/Conv": {"retrain_enable": False}}, parse_retrain_json(text({"a": layer()}))
    )
    assert edited.override_layers == ()
    assert edited.quant_skip_layers == ("/fc/Gem", "/stem/Conv")


SKIPPING = """batch_num: 1
skip_layer_types: "Conv"
retrain_data_quant_config { ulq_quantize { clip_max_min { clip_max: 1000000.0 clip_min: -1000000.0 } } }
retrain_weight_quant_config { arq_retrain { channel_wise: false } }
"""


def test_skipped_layers_are_not_switched_on_by_an_edit(run: Path, tmp_path: Path) -> None:
    advice = advise_qat(written(tmp_path, SKIPPING, "r.cfg"), run, disable=0, output=tmp_path / "next.cfg")
    row = one(advice.table, "clips", "/stem/Conv", "clip_max")
    assert (row["severity"], row["edited"]) == ("info", False)
    assert row["evidence"].endswith("; the layer is not trained")
    assert one(advice.table, "clips", "/fc/Gemm", "clip_max")["edited"]
    config = parse_retrain_config((tmp_path / "next.cfg").read_text())
    assert [name for name, _ in config.override_layers] == ["/fc/Gemm"]


def test_output_that_is_a_folder_and_a_wrong_fit_are_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SKIPPING, "r.cfg")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^\.: cannot write: Is a directory; choose a writable place$"):
        advise_qat(path, run, output=".")
    events = advise_qat(path, run, fit="defualt").events
    assert any(
        "no fit 'defualt', so that layers are not ranked; did you mean 'default'?" in event.message for event in events
    )


def test_bare_batch_num_is_read_as_retraining(run: Path, tmp_path: Path) -> None:
    advice = advise_qat(written(tmp_path, "batch_num: 1\n", "r.cfg"), run)
    assert "nothing in it tells calibration from retraining" in advice.events[0].message
    assert one(advice.table, "samples", None, "batch_num")["value"] == "1"


def test_calibration_files_are_refused(run: Path, tmp_path: Path) -> None:
    for name, content in (("c.json", '{"fc":{"quant_enable":true}}'), ("q.cfg", "activation_offset: true\n")):
        with pytest.raises(ConfigError, match="a configuration of retraining is expected"):
            advise_qat(written(tmp_path, content, name), run)


@pytest.mark.parametrize(
    ("node", "module"),
    [("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"), ("/f/f.0/f.0.1/Conv", "f.0.1"), ("/fc/Gemm", "fc"), ("Conv_0", None)],
)  # fmt: skip
def test_modules_of_exported_nodes(node: str, module: str | None) -> None:
    assert module_of(node) == module


def test_configuration_may_name_modules(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"stem": layer(fixed_min=True), "fc": layer(channel_wise=False)}))
    advice = advise_qat(path, run, disable=0)
    assert any("2 layers are matched by the names of their PyTorch modules" in event.message for event in advice.events)
    assert one(advice.table, "fixed_min", "stem", "fixed_min")["proposed"] == "false"
    assert advice.table.filter(topic="keys", severity="error").is_empty()
    assert json.loads(advice.text)["stem"]["retrain_data_config"]["fixed_min"] is False


def test_run_without_fit_is_not_ranked(tmp_path: Path) -> None:
    model = models.save(network(), tmp_path / "model.onnx")
    calibrant.capture(model, feeds()[:2], run=tmp_path / "c.run", keep="stats")
    path = written(tmp_path, text({"/stem/Conv": layer(), "/fc/Gemm": layer(channel_wise=False)}))
    advice = advise_qat(path, tmp_path / "c.run")
    assert advice.table.filter(topic="sensitivity").is_empty()
    assert any(event.severity == "warn" and "no fit 'default'" in event.message for event in advice.events)


def test_impossible_numbers(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/stem/Conv": layer()}))
    with pytest.raises(ConfigError, match="batch_size is 0; at least 1 is expected"):
        advise_qat(path, run, batch_size=0)
    with pytest.raises(ConfigError, match="config and output are the same file"):
        advise_qat(path, run, output=path)


def test_command_prints_the_table_and_writes_the_file(run: Path, tmp_path: Path) -> None:
    path = written(tmp_path, text({"/stem/Conv": layer(fixed_min=True), "/fc/Gemm": layer(channel_wise=False)}))
    done = CliRunner().invoke(
        app, ["qat", "advise", str(path), "--run", str(run), "-o", str(tmp_path / "n.json"), "--findings"]
    )
    assert done.exit_code == 0
    assert "fixed_min" in done.stdout
    assert f"config: {tmp_path / 'n.json'}" in done.stdout
    rows = CliRunner().invoke(app, ["qat", "advise", str(path), "--run", str(run), "--format", "json"])
    assert {json.loads(line)["topic"] for line in rows.stdout.splitlines() if line.startswith("{")} >= {
        "samples",
        "clips",
    }
