"""Automatic fallback: the least choice of layers against brute force, fits against real ones, and nothing done twice."""

import json
from dataclasses import dataclass, field
from math import ceil, inf, log2, nan
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from run_tables import make_run
from shared_material import needs_shared, shared_inputs, shared_model
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.errors import ConfigError, DataError
from calibrant.export.comparison import ComparisonPass
from calibrant.export.files import export_files
from calibrant.export.outputs import OutputRunner
from calibrant.fallback.binary import least_prefix
from calibrant.fallback.goal import Drop, Goal, checked_goal, parse_drop
from calibrant.fallback.greedy import EVALUATIONS, search_greedy
from calibrant.fallback.judgement import Judgement
from calibrant.fallback.options import CaptureSettings
from calibrant.fallback.outcome import AutoCalibration
from calibrant.fallback.ranked_layers import AFFORDABLE, affordable_view
from calibrant.fallback.step_fits import StepFits
from calibrant.fallback.steps import Step
from calibrant.ingest import capture as capture_stage
from calibrant.ingest.data import open_data
from calibrant.ingest.model import load_prepared
from calibrant.ingest.second_pass import SecondPass
from calibrant.sensitivity import ranking
from calibrant.stats.report import run_report

Feeds = list[dict[str, np.ndarray]]


def draw(count: int, shape: tuple[int, ...] = (1, 8, 12, 12), seed: int = 1) -> Feeds:
    generator = models.rng(seed)
    return [{"x": generator.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def chain(layers: int = 50, width: int = 8) -> onnx.ModelProto:
    """x [N,width] -> Gemm 'fc/01' -> Gemm 'fc/02' -> … -> y: layers of equal size and about equal noise, rotations all of them."""
    generator, nodes, weights = models.rng(3), [], {}
    names = ["x", *(f"g{number}" for number in range(1, layers)), "y"]
    for number in range(1, layers + 1):
        rotation = np.linalg.qr(generator.standard_normal((width, width)))[0]
        weights[f"w{number}"] = rotation.astype(np.float32)
        nodes.append(models.node("Gemm", [names[number - 1], f"w{number}"], names[number], f"fc/{number:02}"))
    shapes = [models.value("x", ["N", width])], [models.value("y", ["N", width])]
    return models.model(nodes, *shapes, weights)


def planted(folder: Path) -> Path:
    return models.save(models.planted_outlier(), folder / "m.onnx")


def output_sqnr(run: calibrant.Run, fake_quant: Path, feeds: Feeds) -> float:
    x, y = (
        np.concatenate([models.run(path, feed)[0].ravel() for feed in feeds]).astype(np.float64)
        for path in (run.prepared_file, fake_quant)
    )
    return float(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))


def skipped(layers: Any) -> str:
    return "".join(f'skip_layers: "{layer}"\n' for layer in layers)


@dataclass
class Counts:
    """How often the costly things were done; a verify at the end runs the float model and the exported one once more."""

    captures: int = 0
    references: int = 0
    judged: list[str] = field(default_factory=list)

    def evaluations(self, verifies: int = 1) -> int:
        steps = [fit for fit in self.judged if fit.startswith("auto-")]
        assert len(steps) == len(set(steps))
        assert self.judged[len(steps) :] == ["default"] * verifies
        return len(steps) + self.references - verifies

    def reset(self) -> None:
        self.captures, self.references, self.judged = 0, 0, []


@pytest.fixture
def counts(monkeypatch) -> Counts:
    found = Counts()
    captured, reference, variant = (
        capture_stage.capture_activations,
        ComparisonPass.run_reference,
        ComparisonPass.run_variant,
    )

    def capture(*args: Any, **options: Any) -> Any:
        found.captures += 1
        return captured(*args, **options)

    def run_reference(self: ComparisonPass, runner: Any) -> None:
        found.references += 1
        reference(self, runner)

    def run_variant(self: ComparisonPass, given: Any) -> None:
        found.judged.append(given.fit)
        variant(self, given)

    def again(*_: Any) -> Any:
        message = "the data are captured a second time"
        raise AssertionError(message)

    monkeypatch.setattr(capture_stage, "capture_activations", capture)
    monkeypatch.setattr(ComparisonPass, "run_reference", run_reference)
    monkeypatch.setattr(ComparisonPass, "run_variant", run_variant)
    monkeypatch.setattr(SecondPass, "__call__", again)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> AutoCalibration:
    """planted_outlier at 30 dB; 26.7 dB with everything quantized."""
    folder = tmp_path_factory.mktemp("planted")
    return calibrant.auto_calibrate(
        planted(folder), draw(8), evaluation=draw(6, seed=9), metric="sqnr", minimum=30, run=folder / "r", prefix=folder / "out" / "m"
    )  # fmt: skip


# The search


@pytest.mark.parametrize("count", range(1, 70))
def test_halving_finds_the_least_length_in_few_questions(count):
    for least in range(1, count + 1):
        asked: list[int] = []

        def is_ok(length: int, least: int = least, asked: list[int] = asked) -> bool:
            asked.append(length)
            return length >= least

        assert least_prefix(count, is_ok) == least
        assert len(asked) == len(set(asked)) <= ceil(log2(count))
        assert count not in asked


def test_the_choice_is_the_shortest_prefix_that_reaches_the_goal(found, tmp_path):
    feeds, order = draw(6, seed=9), ranking(found.run, "auto-01", view="whole")
    values = []
    for length in range(len(order)):
        config = tmp_path / f"{length}.cfg"
        config.write_text(skipped(order[:length]))
        calibrant.export(calibrant.fit(found.run, config=config, name="brute"), fit="brute", prefix=tmp_path / "b")
        values.append(output_sqnr(found.run, export_files(tmp_path / "b").fake_quant, feeds))
    assert values == sorted(values)  # more layers in float are never worse here
    least = next(length for length, value in enumerate(values) if value >= 30)
    assert 1 <= least < len(order)
    assert set(found.layers) == set(order[:least])
    assert found.before.judgement.value == pytest.approx(values[0], abs=1e-6)
    assert found.after.judgement.value == pytest.approx(values[least], abs=1e-6)
    assert found.after.judgement.low < found.after.judgement.value < found.after.judgement.high
    assert found.reached


def test_fifty_layers_take_one_capture_and_eight_evaluations(tmp_path, counts):
    model, calibration, evaluation = (
        models.save(chain(), tmp_path / "m.onnx"),
        draw(200, (1, 8)),
        draw(8, (1, 8), seed=2),
    )
    common = {"evaluation": evaluation, "metric": "sqnr", "run": tmp_path / "r", "samples": 4}
    found = calibrant.auto_calibrate(model, calibration, minimum=30, **common)
    assert found.reached
    assert 0 < len(found.layers) < 50
    assert counts.captures == 1
    assert counts.evaluations() <= 8
    assert found.run.info.fits.keys() == {*counts.judged}
    counts.reset()  # The same run again, with another goal: no fit of the first search stays.
    lower = calibrant.auto_calibrate(model, calibration, minimum=-100, **common)
    assert lower.layers == ()
    assert lower.run.read("events").filter(stage="auto", fit="default")["message"][0] == "fit 'default' is replaced"
    assert lower.run.info.fits.keys() == set(lower.run.read("quant_params")["fit"]) == {"auto-01", "default"}
    assert (counts.captures, counts.evaluations()) == (0, 2)
    counts.reset()
    greedy = calibrant.auto_calibrate(model, calibration, minimum=30, strategy="greedy", **common)
    assert greedy.reached
    assert counts.captures == 0
    assert counts.evaluations() <= 2 + EVALUATIONS + ceil(log2(50))
    sets = [step.fallen for step in greedy.steps]
    assert len(sets) == len(set(sets))


def costly(cheap: int = 2) -> onnx.ModelProto:
    """Two branches of equal noise, 'cheap' with a sixteenth of the MACs of 'dear', into one output."""
    weights = {"w1": models.normal(8, 8, 1, 1, seed=1), "w2": models.normal(8, 8, 4, 4, seed=2, scale=0.075)}
    nodes = [
        models.node("Conv", ["x", "w1"], "a", "cheap"),
        models.node("Conv", ["x", "w2"], "b", "dear", pads=[1, 1, 2, 2]),
        models.node("Add", ["a", "b"], "y", "add"),
    ]
    return models.model(nodes, [models.value("x", ["N", 8, 12, 12])], [models.value("y", ["N", 8, 12, 12])], weights)


def test_greedy_prefers_the_layer_that_costs_less(tmp_path):
    model = models.save(costly(), tmp_path / "m.onnx")
    found = {
        limit: calibrant.auto_calibrate(
            model, draw(6), evaluation=draw(4, seed=3), metric="sqnr", minimum=1000.0, run=tmp_path / "r", strategy="greedy",
            max_float_macs=limit,
        )
        for limit in (0.5, 0.01)
    }  # fmt: skip
    assert found[0.5].layers == ("cheap",)
    assert found[0.5].macs_float == pytest.approx(1 / 17)  # 1 x 1 against 4 x 4
    assert found[0.5].fit == "default"
    assert not found[0.5].reached
    assert found[0.01].layers == ()
    assert (
        "is not reached with at most 1 % of the MACs"
        in found[0.01].run.read("events").filter(stage="auto")["message"][-1]
    )


class Additive:
    """Steps of a model whose noise is the sum of that of its quantized layers; `asked` counts them."""

    def __init__(self, noise: dict[str, float], macs: dict[str, float], least: float) -> None:
        self.noise, self.macs, self.least = noise, macs, least
        self.taken: list[frozenset[str]] = []

    def cost(self, layer: str) -> float:
        return self.macs[layer]

    def share(self, fallen: Any) -> float:
        return sum(self.macs[layer] for layer in set(fallen))

    def take(self, fallen: Any) -> Step:
        wanted = frozenset(fallen)
        if wanted not in self.taken:
            self.taken.append(wanted)
        loss = sum(noise for layer, noise in self.noise.items() if layer not in wanted)
        found = Judgement("loss", loss, None, None, ok=loss <= self.least, loss=loss, higher_is_better=False)
        return Step(1, "f", wanted, self.share(wanted), found)


@pytest.mark.parametrize("inflation", [1.0, 20.0])
def test_greedy_takes_as_many_steps_as_layers_where_noises_add_up(inflation):
    # gain per MAC: a 40, b 30, c 20, d 15; 7.5 is left when a, b and c are in float
    noise = {"d": 7.5, "c": 4.0, "b": 3.0, "a": 2.0}
    steps = Additive(noise, {"a": 0.05, "b": 0.1, "c": 0.2, "d": 0.5}, least=8.0)
    expected = {layer: inflation * value for layer, value in noise.items()}
    assert search_greedy(steps, expected, 1.0).fallen == {"a", "b", "c"}
    assert steps.taken == [frozenset(), {"a"}, {"a", "b"}, {"a", "b", "c"}]


def test_greedy_measures_again_what_was_thought_too_good():
    steps = Additive({"a": 1.0, "b": 4.0, "c": 3.0}, {"a": 0.1, "b": 0.1, "c": 0.1}, least=4.5)
    found = search_greedy(steps, {"a": 9.0, "b": 4.0, "c": 3.0}, 1.0)  # 'a' is thought to buy most, and buys least
    assert found.fallen == {"b"}
    assert steps.taken == [frozenset(), {"a"}, {"b"}]


def test_binary_keeps_to_the_limit_of_macs(tmp_path):
    model = planted(tmp_path)
    found = calibrant.auto_calibrate(
        model, draw(8), evaluation=draw(6, seed=9), metric="sqnr", minimum=500, run=tmp_path / "r", max_float_macs=0.5
    )
    assert len(found.layers) == 3  # six layers of equal size
    assert found.macs_float == pytest.approx(0.5)
    assert not found.reached
    assert found.prefix is not None


# Fits and files


def test_a_step_is_the_fit_that_its_skip_layers_give(found, tmp_path):
    config = tmp_path / "q.cfg"
    for step in found.steps:
        config.write_text(skipped(step.fallen))
        calibrant.fit(found.run, config=config, name="real")
        for table in ("search", "quant_params", "balance"):
            rows = [found.run.read(table).filter(fit=name).drop("fit") for name in (step.fit, "real")]
            assert_frame_equal(*rows)
        plans = [found.run.read("plan").filter(fit=name) for name in (step.fit, "real")]
        values = [
            plan.select(name for name in plan.columns if not name.endswith(("fit", "reason", "decided_by")))
            for plan in plans
        ]
        assert_frame_equal(*values)  # the step's configuration writes every default out, so that other rules decided


@pytest.mark.parametrize("which", ["quant_cfg", "config"])
def test_the_configuration_gives_the_same_record(found, which, tmp_path):
    files = export_files(str(found.prefix))
    config = found.config if which == "quant_cfg" else files.config
    again = calibrant.run(found.run.info.model, draw(8), run=tmp_path / "r", config=config, prefix=tmp_path / "m")
    assert export_files(tmp_path / "m").record.read_text() == files.record.read_text()
    assert again.read("plan").filter(pl.col("enabled"))["layer"].to_list() == [
        f"conv{number}" for number in range(1, 7) if f"conv{number}" not in found.layers
    ]


def test_scores_of_steps_stand_in_the_tables(found):
    steps = found.run.read("auto_steps")
    assert steps["step"].to_list() == list(range(1, len(found.steps) + 1))
    assert steps.filter(pl.col("chosen"))["fit"].to_list() == [found.after.fit]
    rows = found.run.read("evaluation").filter(pl.col("data") == "list", metric="sqnr_db", variant="fake_quant")
    scores = dict(rows.select("fit", "value").iter_rows())
    assert scores.keys() == {*(step.fit for step in found.steps), "default"}
    assert scores["default"] == scores[found.after.fit] == found.after.judgement.value


def test_everything_in_float_is_the_prepared_model_bit_for_bit(tmp_path, counts):
    found = calibrant.auto_calibrate(
        planted(tmp_path), draw(8), evaluation=draw(6, seed=9), metric="sqnr", minimum=500, run=tmp_path / "r", prefix=tmp_path / "m"
    )  # fmt: skip
    assert (found.fit, found.reached, found.macs_float, found.after.judgement.value) == (None, True, 1.0, inf)
    assert len(found.layers) == 6
    assert not export_files(tmp_path / "m").record.exists()
    assert "default" not in found.run.info.fits
    prepared = load_prepared(found.run.model_folder)
    from calibrant.export.memory_session import session_source
    from calibrant.export.partial import QuantizedParts, partial_fake_quant

    samples = list(open_data(draw(3, seed=4), prepared.inputs))
    with session_source(partial_fake_quant(prepared, QuantizedParts(()), ())) as source:
        outputs = list(OutputRunner(source, prepared.inputs).each(samples))
    expected = OutputRunner(found.run.prepared_file, prepared.inputs).each(samples)
    for one, other in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(one["y"], other["y"])


@pytest.mark.parametrize(
    "text",
    [
        "joint_quant: true\n",
        "common_config { hfmg_quantize { num_of_bins: 4096 } }\n",
        'skip_layers: "conv1"\n',
        'tensor_quantize { layer_name: "add" input_index: 0 }\n',
        'override_layer_configs { layer_name: "conv2" calibration_config { weight_compress_only: true } }\n',
    ],
)
def test_a_step_of_any_configuration_is_a_real_fit(text, tmp_path):
    generator = models.rng(4)
    weights = {f"w{number}": generator.normal(0, 0.2, (8, 8, 3, 3)).astype(np.float32) for number in range(1, 5)}
    nodes = [models.node("Conv", ["x", "w1"], "a", "conv1", pads=[1] * 4), models.node("Relu", ["a"], "r", "relu")]
    nodes += [models.node("Conv", ["r", f"w{n}"], f"b{n}", f"conv{n}", pads=[1] * 4) for n in (2, 3)]
    nodes += [models.node("Add", ["b2", "b3"], "s", "add"), models.node("Conv", ["s", "w4"], "y", "conv4")]
    shape = models.value("x", ["N", 8, 12, 12]), models.value("y", ["N", 8, None, None])
    model = models.save(models.model(nodes, [shape[0]], [shape[1]], weights), tmp_path / "m.onnx")
    (tmp_path / "q.cfg").write_text(text)
    found = calibrant.auto_calibrate(
        model,
        draw(6),
        evaluation=draw(4, seed=2),
        metric="sqnr",
        minimum=36,
        config=tmp_path / "q.cfg",
        run=tmp_path / "r",
    )
    assert found.layers
    fresh = calibrant.fit(found.run, config=found.config, name="fresh")
    rows = [fresh.read("quant_params").filter(fit=name).drop("fit", "decided_by") for name in ("default", "fresh")]
    assert_frame_equal(*rows)
    if "skip" in text:
        assert found.before.macs_float == pytest.approx(9 * 144 / (3 * 9 * 144 + 9 * 100))  # conv1; conv4 is not padded


def test_the_mapping_file_of_nuq_is_found_wherever_the_configuration_stands(tmp_path, monkeypatch):
    weights = {f"w{number}": models.normal(32, 32, 3, 3, seed=number, scale=0.08) for number in (1, 2)}
    nodes = [
        models.node("Conv", ["x", "w1"], "a", "conv1", pads=[1] * 4),
        models.node("Conv", ["a", "w2"], "y", "conv2", pads=[1] * 4),
    ]
    shapes = [models.value("x", ["N", 32, 8, 8])], [models.value("y", ["N", 32, 8, 8])]
    model, folder = models.save(models.model(nodes, *shapes, weights), tmp_path / "m.onnx"), tmp_path / "there"
    folder.mkdir()
    (folder / "q.cfg").write_text('nuq_config { mapping_file: "map.json" nuq_quantize { num_steps: 32 } }\n')
    (folder / "map.json").write_text(json.dumps({"graph": [{"op": [{
        "name": "conv2", "attr": [{"key": "_fe_weight_compress", "value": {"b": True}}]}]}]}))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = calibrant.auto_calibrate(
        model, draw(4, (1, 32, 8, 8)), evaluation=draw(4, (1, 32, 8, 8), seed=2), metric="sqnr", minimum=1,
        config=folder / "q.cfg", run=tmp_path / "r", prefix=tmp_path / "out" / "m",
    )  # fmt: skip
    fresh = calibrant.fit(found.run, config=found.config, name="fresh")
    rows = [
        fresh.read("plan").filter(fit=name, weight_algorithm="nuq")["layer"].to_list() for name in ("default", "fresh")
    ]
    assert rows == [["conv2"], ["conv2"]]


def test_without_raw_activations_balanced_layers_are_read_once_more_and_no_step_reads(tmp_path):
    (tmp_path / "q.cfg").write_text("common_config { dmq_balancer { migration_strength: 0.5 } }\n")
    found = calibrant.auto_calibrate(
        planted(tmp_path), draw(8), evaluation=draw(6, seed=9), metric="sqnr", minimum=45, run=tmp_path / "r",
        config=tmp_path / "q.cfg", capture=CaptureSettings(keep="stats"),
    )  # fmt: skip
    assert found.layers
    assert set(found.run.read("balance").filter(fit="default")["layer_id"]) == {
        number for number in range(6) if f"conv{number + 1}" not in found.layers
    }


def test_step_fits_refuse_no_layer_twice(found):
    fits = StepFits(found.run, "auto-01", load_prepared(found.run.model_folder))
    text = fits.skipping(["conv4"], "x", ["why"]).text
    assert text.startswith("# why\n")
    assert text.count('skip_layers: "conv4"') == 1


# The goal


def test_drops_are_read_as_numbers_and_percentages():
    assert parse_drop("0.5%") == Drop(0.005, is_percent=True)
    assert parse_drop(0.01) == Drop(0.01)
    for wrong in ("-1", "half", "1%%", "nan", "inf", ""):
        with pytest.raises(ConfigError, match=r"--max-drop '.*': expected a number of at least 0"):
            parse_drop(wrong)


@pytest.mark.parametrize(
    ("goal", "metric", "value", "reference", "expected"),
    [
        (Goal(drop=Drop(0.01)), "top1", 0.90, 0.91, True),
        (Goal(drop=Drop(0.01)), "top1", 0.89, 0.91, False),
        (Goal(drop=Drop(0.01)), "top1", 0.95, 0.91, True),
        (Goal(drop=Drop(0.01, is_percent=True)), "lines:exact", 198.0, 200.0, True),
        (Goal(drop=Drop(0.01, is_percent=True)), "lines:exact", 197.0, 200.0, False),
        (Goal(drop=Drop(0.2)), "kl", 0.1, 0.0, True),
        (Goal(drop=Drop(0.2)), "kl", 0.3, 0.0, False),
        (Goal("sqnr_db", least=24), "sqnr_db", 24.0, inf, True),
        (Goal("sqnr_db", least=24), "sqnr_db", nan, inf, False),
        (Goal(drop=Drop(0.01)), "cosine", nan, 1.0, False),
    ],
)
def test_a_goal_is_reached_within_its_bound(goal, metric, value, reference, expected):
    assert goal.is_reached(metric, value, reference) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("sqnr", None, None), "pass --min, in dB"),
        (("sqnr", "1%", None), "pass --min, in dB"),
        (("sqnr", "1%", 3.0), "two goals"),
        ((None, None, 3.0), "of which metric"),
        (("sqnr", None, nan), "expected a number"),
        (("kl", None, 3.0), "pass --max-drop"),
        (("kl", "1%", None), "in its own unit"),
        (("mse", None, None), "in its own unit"),
        (("sqn", None, 3.0), "no metric 'sqn'; did you mean 'sqnr'"),
    ],
)
def test_goals_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        checked_goal(*options)


def test_a_goal_that_the_float_model_misses_is_an_error(tmp_path):
    labels = np.zeros(6, np.int64)
    with pytest.raises(
        ConfigError, match=r"the float model itself has top1 .*, and the goal is top1 of at least 1: no choice"
    ):
        calibrant.auto_calibrate(
            models.save(chain(3), tmp_path / "m.onnx"), draw(4, (1, 8)), evaluation=draw(6, (1, 8), seed=5), labels=labels,
            metric="top1", minimum=1.0, run=tmp_path / "r",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to judge by"),
        ({"evaluation": [], "strategy": "bisect"}, "no strategy; strategies: binary, greedy"),
        ({"evaluation": [], "strategy": object()}, "has not both methods"),
        ({"evaluation": [], "view": "hole"}, "no view; did you mean 'whole'"),
        ({"evaluation": [], "max_float_macs": 1.5}, "no share"),
        ({"evaluation": [], "samples": 0}, "no number of samples"),
        ({"evaluation": [], "fit": "auto-03"}, "a name of the steps"),
        ({"evaluation": [], "fit": "a/b"}, "no name for a fit"),
        ({"evaluation": [], "metric": "top1"}, "--metric top1: needs labels"),
        ({"evaluation": [], "metric": "nowhere:f", "minimum": 1}, "'nowhere' cannot be imported"),
        ({"evaluator": object(), "metric": "top1"}, "an evaluator decides"),
        ({"evaluator": object(), "labels": [1]}, "--labels: belong to evaluation data"),
        ({"evaluation": [], "metric": "sqnr", "minimum": 1, "data": None}, "no calibration data"),
    ],
)
def test_options_that_contradict_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        calibrant.auto_calibrate("m.onnx", **{"data": [], **options})


def test_missing_evaluation_data_are_told_before_the_capture():
    with pytest.raises(DataError, match=r"nowhere\.npz: no such file or folder; --eval takes data"):
        calibrant.auto_calibrate("m.onnx", "x.npz", evaluation="nowhere.npz")


def test_the_whole_view_is_taken_where_it_is_affordable():
    assert affordable_view({"a": int(AFFORDABLE) // 4}, ["a", "b"], 2) == "whole"
    assert affordable_view({"a": int(AFFORDABLE)}, ["a", "b"], 2) == "isolated"


@pytest.mark.parametrize("view", ["isolated", "statistics"])
def test_other_views_rank_as_well(view, tmp_path):
    found = calibrant.auto_calibrate(
        planted(tmp_path),
        draw(8),
        evaluation=iter(draw(6, seed=9)),
        metric="sqnr",
        minimum=30,
        run=tmp_path / "r",
        view=view,
    )
    assert found.reached
    assert found.sensitivity.view == view
    assert found.sensitivity.order[0] == "conv4"


def test_pareto_marks_steps_that_no_other_beats(tmp_path):
    def step(number: int, share: float, value: float, *, better: bool) -> dict[str, Any]:
        return {"step": number, "fit": f"auto-{number:02}", "layers_float": number - 1, "macs_float": share, "metric": "m",
                "value": value, "higher_is_better": better, "ok": True, "chosen": False}  # fmt: skip

    up = [
        step(1, 0.0, 1.0, better=True),
        step(2, 0.2, 3.0, better=True),
        step(3, 0.3, 2.0, better=True),
        step(4, 0.4, 4.0, better=True),
    ]
    rows = run_report(make_run(tmp_path / "up", {"auto_steps": up}), "pareto")
    assert rows["on_front"].to_list() == [True, True, False, True]
    assert rows["macs_int8_percent"].to_list() == [100.0, 80.0, 70.0, 60.0]
    down = [step(1, 0.0, 3.0, better=False), step(2, 0.2, 1.0, better=False), step(3, 0.3, 2.0, better=False)]
    assert run_report(make_run(tmp_path / "down", {"auto_steps": down}), "pareto")["on_front"].to_list() == [
        True,
        True,
        False,
    ]


# The command


@pytest.fixture
def files(tmp_path) -> Path:
    models.save(chain(6), tmp_path / "m.onnx")
    for name, seed in (("x", 1), ("eval", 2)):
        data = np.concatenate([feed["x"] for feed in draw(24, (1, 8), seed=seed)])
        np.savez(tmp_path / f"{name}.npz", x=data)
    labels = np.array([models.run(chain(6), {"x": row[None]})[0].argmax() for row in data], np.int64)
    np.savez(tmp_path / "labelled.npz", x=data, labels=labels)
    return tmp_path


def auto(folder: Path, *options: str) -> Any:
    given = ["auto", str(folder / "m.onnx"), "--data", str(folder / "x.npz"), "--run", str(folder / "r"), *options]
    return CliRunner().invoke(app, given)


def test_the_command_prints_the_choice_with_intervals(files):
    result = auto(
        files,
        "--eval",
        str(files / "eval.npz"),
        "--metric",
        "sqnr",
        "--min",
        "36",
        "--prefix",
        str(files / "out" / "m"),
    )
    assert result.exit_code == 0, result.output
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)
    assert float(lines["sqnr_db_after"].split()[0]) >= 36 > float(lines["sqnr_db_before"].split()[0])
    for name in ("sqnr_db_before", "sqnr_db_after", "agreement_before", "agreement_after"):
        assert "(95 %: " in lines[name]
    assert lines["macs_in_float"].endswith(" %")
    assert Path(lines["quant_cfg"]) == files / "out" / "m_auto.cfg"
    assert Path(lines["deploy_model"]).is_file()
    assert lines["in_float"].startswith("fc/")
    assert "macs_int8_percent" in result.stdout
    assert "step 1: everything quantized" in result.stderr


def test_labels_beside_the_inputs_judge_by_top1(files):
    result = auto(files, "--eval", str(files / "labelled.npz"), "--labels", "labels", "--max-drop", "50%")
    assert result.exit_code == 0, result.output
    assert "goal: top1 at most 50 % worse than the float model" in result.stdout
    assert "top1_after: " in result.stdout
    assert "agreement_after: " in result.stdout


def test_without_a_metric_scores_of_classes_are_judged_by_agreement(files):
    result = auto(files, "--eval", str(files / "eval.npz"), "--max-drop", "60%")
    assert result.exit_code == 0, result.output
    assert "goal: agreement at most 60 % worse" in result.stdout


def test_a_metric_of_ones_own_judges(files):
    (files / "mine.py").write_text(
        "import numpy as np\n\n\ndef close(outputs, reference, labels):\n    return -float(np.abs(outputs['y'] - reference['y']).max())\n"
    )
    result = auto(
        files,
        "--eval",
        str(files / "eval.npz"),
        "--metric",
        f"{files / 'mine.py'}:close",
        "--min",
        "-0.05",
        "--strategy",
        "greedy",
    )
    assert result.exit_code == 0, result.output
    assert "goal: mine:close of at least -0.05" in result.stdout


def test_a_goal_out_of_reach_exports_nothing_and_fails(files):
    result = auto(
        files, "--eval", str(files / "eval.npz"), "--metric", "sqnr", "--min", "400", "--prefix", str(files / "m")
    )
    assert result.exit_code == 1
    assert "every layer would have to stay in float" in str(result.exception)
    assert not (files / "m_record.txt").exists()
    limited = auto(
        files, "--eval", str(files / "eval.npz"), "--metric", "sqnr", "--min", "400", "--max-float-macs", "40%"
    )
    assert limited.exit_code == 1
    assert "is not reached within --max-float-macs; what comes nearest was exported" in str(limited.exception)
    assert "layers_in_float: 2" in limited.stdout


def test_labels_of_another_length_are_refused(files):
    with pytest.raises(DataError, match="2 labels, but the data has 24 samples"):
        calibrant.auto_calibrate(
            files / "m.onnx",
            files / "x.npz",
            evaluation=files / "eval.npz",
            labels=[0, 1],
            metric="top1",
            run=files / "r",
        )


def test_several_outputs_are_judged_by_the_worst_or_by_one(tmp_path):
    weights = {"w1": models.normal(8, 8, seed=1), "w2": np.outer(10.0 ** np.arange(8), np.ones(8)).astype(np.float32)}
    nodes = [models.node("Gemm", ["x", f"w{n}"], f"y{n}", f"fc{n}") for n in (1, 2)]
    shapes = [models.value("x", ["N", 8])], [models.value(f"y{n}", ["N", 8]) for n in (1, 2)]
    model = models.save(models.model(nodes, *shapes, weights), tmp_path / "m.onnx")
    common = {"evaluation": draw(8, (1, 8), seed=2), "metric": "cosine", "max_drop": 1.0, "run": tmp_path / "r"}
    both = calibrant.auto_calibrate(model, draw(8, (1, 8)), **common)
    rows = both.run.read("evaluation").filter(fit="auto-01", metric="cosine", variant="fake_quant")
    assert rows.height == 2
    assert both.before.judgement.value == rows["value"].min()
    one = calibrant.auto_calibrate(model, draw(8, (1, 8)), output="y1", **common)
    assert one.before.judgement.value == rows.filter(output="y1")["value"][0]


def test_a_model_that_gives_classes_alone_is_ranked_by_isolated_layers(tmp_path):
    proto = chain(6)
    proto.graph.node.append(models.node("ArgMax", ["y"], "class", "argmax", axis=1, keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(models.value("class", ["N"], onnx.TensorProto.INT64))
    (tmp_path / "q.cfg").write_text(
        "common_config { ifmr_quantize { max_percentile: 0.6 } }\n"
    )  # clips until classes change
    found = calibrant.auto_calibrate(
        models.save(proto, tmp_path / "m.onnx"), draw(40, (1, 8)), evaluation=draw(60, (1, 8), seed=2), max_drop="1%", run=tmp_path / "r",
        config=tmp_path / "q.cfg",
    )  # fmt: skip
    assert found.goal == "agreement at most 1 % worse than the float model"
    assert not found.before.judgement.ok
    assert found.sensitivity.view == "isolated"
    assert found.after.judgement.value >= 0.99


@needs_shared
@pytest.mark.slow
def test_efficientnet_reaches_24_db_with_a_sixth_of_the_macs_in_float(tmp_path, counts):
    data = shared_inputs(tmp_path / "in")
    found = calibrant.auto_calibrate(
        shared_model("efficientnet_lite0_bn"), data / "efficientnet_lite0_bn.npz", evaluation=data / "efficientnet_lite0_bn.eval.npz",
        metric="sqnr", minimum=24, max_float_macs=0.15, run=tmp_path / "r", samples=4,
    )  # fmt: skip
    assert found.reached
    assert found.after.judgement.value >= 24
    assert found.macs_float <= 0.15
    agreement = found.after.judgement.score("agreement")
    assert agreement["low"] <= agreement["value"] <= agreement["high"]
    assert counts.captures == 1
    assert counts.evaluations() <= 8


def test_a_forced_dialect_holds_for_the_configuration_of_auto(tmp_path) -> None:
    (tmp_path / "quant.cfg").write_text('skip_layer_types: "Convolution"\n')
    model = models.save(models.planted_outlier(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=models.rng(1).standard_normal((4, 8, 12, 12)).astype(np.float32))
    arguments = ["auto", str(model), "--data", str(tmp_path / "x.npz"), "--eval", str(tmp_path / "x.npz")]
    done = CliRunner().invoke(app, [*arguments, "--config", str(tmp_path / "quant.cfg"), "--dialect", "onnx"])
    assert isinstance(done.exception, ConfigError)
    assert "skip_layer_types: 'Convolution'" in str(done.exception)
