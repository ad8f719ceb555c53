"""AMCT's evaluators and accuracy_based_auto_calibration: unmodified evaluators, result files as valid JSON, honest errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

import calibrant
from calibrant import amct
from calibrant.cli.app import app
from calibrant.errors import ConfigError, DataError
from calibrant.export.array_log import ArrayLog
from calibrant.export.files import export_files
from calibrant.fallback.observed import observed_feeds

Feeds = list[dict[str, np.ndarray]]
RUN = onnxruntime.InferenceSession.run


def draw(count: int, seed: int = 1) -> Feeds:
    generator = models.rng(seed)
    return [{"x": generator.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(count)]


class Evaluator:
    """As a user of AMCT writes it: no base, sessions of its own, SQNR in dB against the float model's outputs."""

    def __init__(self, least: float = 28.5) -> None:
        self.least = least
        self.calibrated: list[str] = []
        self.evaluated: list[str] = []
        self.reference: np.ndarray | None = None

    def calibration(self, model_file: str) -> None:
        self.calibrated.append(model_file)
        session = onnxruntime.InferenceSession(model_file, providers=["CPUExecutionProvider"])
        batch = np.empty((2, 8, 12, 12), np.float32)
        for first in range(0, 8, 2):  # one buffer for all batches
            batch[:] = np.concatenate([feed["x"] for feed in draw(8)[first : first + 2]])
            session.run(None, {"x": batch})

    def evaluate(self, model_file: str) -> float:
        self.evaluated.append(model_file)
        found = np.concatenate([models.run(Path(model_file), feed)[0] for feed in draw(4, seed=9)]).astype(np.float64)
        if self.reference is None:
            self.reference = found
        noise = ((found - self.reference) ** 2).sum()
        return float("inf") if noise == 0 else float(10 * np.log10((self.reference**2).sum() / noise))

    def metric_eval(self, original_metric: float, new_metric: float) -> tuple[bool, float]:
        del original_metric
        return bool(new_metric >= self.least), -new_metric


def saved(folder: Path) -> Path:
    return models.save(models.planted_outlier(), folder / "m.onnx")


def without(verb: str) -> object:
    kept = {name: getattr(Evaluator, name) for name in ("calibration", "evaluate", "metric_eval") if name != verb}
    return type("Partial", (), kept)()


def returning(**answers: Any) -> Evaluator:
    made = Evaluator()
    for verb, answer in answers.items():
        setattr(made, verb, answer if callable(answer) else lambda *_, answer=answer: answer)
    return made


def test_calibration_is_called_once_and_what_it_feeds_is_the_data(tmp_path):
    evaluator, model = Evaluator(), saved(tmp_path)
    found = calibrant.auto_calibrate(model, evaluator=evaluator, run=tmp_path / "a", view="whole")
    assert evaluator.calibrated == [str(model)]
    assert found.run.info.samples == 8
    given = Evaluator()
    same = calibrant.auto_calibrate(model, draw(8), evaluator=given, run=tmp_path / "b", view="whole")
    assert given.calibrated == []
    assert same.run.info.data_fingerprint == found.run.info.data_fingerprint
    assert same.layers == found.layers != ()
    assert_frame_equal(found.run.read("quant_params"), same.run.read("quant_params"))
    assert len(given.evaluated) == 1 + len(same.steps)
    assert not any(Path(path).exists() for path in given.evaluated[1:])
    assert onnxruntime.InferenceSession.run is RUN


def test_a_metric_and_an_evaluator_of_equal_mind_choose_alike(tmp_path):
    model = saved(tmp_path)
    by_metric = calibrant.auto_calibrate(
        model, draw(8), evaluation=draw(4, seed=9), metric="sqnr", minimum=28.5, run=tmp_path / "a", view="isolated"
    )
    by_evaluator = calibrant.auto_calibrate(model, draw(8), evaluator=Evaluator(), run=tmp_path / "a", view="isolated")
    assert by_metric.layers == by_evaluator.layers != ()
    assert by_evaluator.after.judgement.loss == pytest.approx(-by_metric.after.judgement.value, abs=1e-6)
    greedy = calibrant.auto_calibrate(
        model, draw(8), evaluator=Evaluator(), run=tmp_path / "a", view="whole", strategy="greedy"
    )
    assert greedy.reached


def test_batch_num_counts_the_batches_that_calibration_runs(tmp_path):
    (tmp_path / "q.cfg").write_text("batch_num: 3\n")
    found = calibrant.auto_calibrate(
        saved(tmp_path), evaluator=Evaluator(0), config=tmp_path / "q.cfg", run=tmp_path / "r"
    )
    assert found.run.info.samples == 6


def observe_and_fail(session: Any, feed: dict[str, np.ndarray], log: ArrayLog) -> None:
    with observed_feeds(["x"], log):
        session.run(["y"], feed)
        raise ZeroDivisionError


def test_sessions_are_restored_after_an_error_and_other_inputs_are_let_through():
    other = onnxruntime.InferenceSession(models.conv_relu().SerializeToString(), providers=["CPUExecutionProvider"])
    data = np.zeros((1, 3, 8, 8), np.float32)
    with ArrayLog() as log:
        with observed_feeds(["image"], log):
            assert other.run(None, {"x": data})[0].shape == (1, 4, 8, 8)
        assert len(log) == 0
        with pytest.raises(ZeroDivisionError):
            observe_and_fail(other, {"x": data}, log)
        assert [entry["x"].shape for entry in log] == [(1, 3, 8, 8)]
    assert onnxruntime.InferenceSession.run is RUN


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (without("evaluate"), r"Partial has no evaluate; expected an object with the methods calibration\(…\), evaluate\(…\)"),
        (without("calibration"), "Partial has no calibration"),
        (Evaluator, r"Evaluator is a class; pass an object of it, Evaluator\("),
        (returning(metric_eval=True), r"metric_eval returned True; expected \(bool, float\)"),
        (returning(metric_eval=(1.0, True, 3)), "metric_eval returned"),
        (returning(metric_eval=("yes", 0.1)), "metric_eval returned"),
        (returning(metric_eval=(False, 0.1)), r"refuses the float model beside itself \(metric inf, loss 0.1\)"),
        (returning(evaluate=None), "evaluate returned None"),
        (returning(evaluate=lambda _: 1 / 0), "Evaluator.evaluate raised ZeroDivisionError: division by zero; mend it"),
        (amct.AutoCalibrationEvaluatorBase(), "AutoCalibrationEvaluatorBase.calibration raised NotImplementedError"),
    ],
)  # fmt: skip
def test_evaluators_that_do_not_do_what_they_must_are_refused(evaluator, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        calibrant.auto_calibrate(saved(tmp_path), evaluator=evaluator, run=tmp_path / "r")
    assert onnxruntime.InferenceSession.run is RUN


def test_a_calibration_that_runs_nothing_is_an_error(tmp_path):
    with pytest.raises(
        DataError,
        match=r"fed no onnxruntime.InferenceSession.run with the model's inputs 'x'.*pass the calibration data",
    ):
        calibrant.auto_calibrate(saved(tmp_path), evaluator=returning(calibration=None), run=tmp_path / "r")
    assert not (tmp_path / "r").exists()


# accuracy_based_auto_calibration


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.cfg").write_text("batch_num: 4\n")
    calibrant.run(
        saved(tmp_path), draw(8), run=tmp_path / "first", prefix=tmp_path / "config" / "m", config=tmp_path / "q.cfg", batch_size=2
    )  # fmt: skip
    return tmp_path


def calibrated(folder: Path, evaluator: object, **options: Any) -> Any:
    return amct.accuracy_based_auto_calibration(
        str(folder / "m.onnx"), evaluator, str(folder / "config" / "m_config.json"), str(folder / "log" / "record.txt"),
        str(folder / "out" / "m"), **options,
    )  # fmt: skip


def test_the_result_files_are_amcts_and_valid_json(work):
    found = calibrated(work, Evaluator())
    history = json.loads((work / "amct_log" / "accuracy_based_auto_calibration_record.json").read_text())
    ranking = json.loads((work / "out" / "accuracy_based_auto_calibration_ranking_information.json").read_text())
    final = work / "out" / "accuracy_based_auto_calibration_final_config.json"
    layers = [f"conv{number}" for number in range(1, 7)]
    assert sorted(layer for layer, _ in ranking) == layers
    values = [value for _, value in ranking]
    assert values == sorted(values)
    assert 0.9 < values[0] < 1
    assert ranking[0][0] == "conv4"
    assert history[0] == {
        "roll_back_config": dict.fromkeys((layer for layer, _ in ranking), True),
        "metric_eval": [False, history[0]["metric_eval"][1]],
    }
    rolled = [[layer for layer, stays in entry["roll_back_config"].items() if not stays] for entry in history]
    order = [layer for layer, _ in ranking]
    assert all(names == order[: len(names)] for names in rolled)
    assert set(found.layers) in [set(names) for names in rolled]
    assert all(entry["metric_eval"][0] is (-entry["metric_eval"][1] >= 28.5) for entry in history)
    enabled = {
        name: layer["quant_enable"] for name, layer in json.loads(final.read_text()).items() if isinstance(layer, dict)
    }
    assert enabled == {layer: layer not in found.layers for layer in layers}
    assert not list((work / "out").glob("temp*"))
    calibrant.run(work / "m.onnx", draw(8), run=work / "again", config=final, prefix=work / "again_m", batch_size=2)
    assert export_files(work / "again_m").record.read_text() == (work / "log" / "record.txt").read_text()


def test_everything_rolled_back_deletes_the_models_and_says_so_in_the_record(work):
    calibrated(work, Evaluator())
    assert export_files(work / "out" / "m").deploy.is_file()
    found = calibrated(work, Evaluator(least=500))
    assert found.fit is None
    assert not export_files(work / "out" / "m").deploy.exists()
    assert not (work / "log" / "record.txt").exists()
    history = json.loads((work / "amct_log" / "accuracy_based_auto_calibration_record.json").read_text())
    assert not any(history[-1]["roll_back_config"].values())
    assert history[-1]["metric_eval"] == [True, None]  # -inf is no number of JSON


class OneByOne:
    """A strategy with AMCT's two verbs: one layer more a step."""

    def initialize(self, ranking_info: dict[str, float]) -> None:
        self.order = sorted(ranking_info, key=ranking_info.__getitem__)
        self.count = 0

    def update_quant_config(self, metric_eval: tuple[bool, float]) -> dict[str, Any]:
        self.count += not metric_eval[0]
        config = {layer: index >= self.count for index, layer in enumerate(self.order)}
        return {"roll_back_config": config, "stop_flag": metric_eval[0]}


def test_a_strategy_of_ones_own_ends_where_it_says(work):
    binary, own = calibrated(work, Evaluator()), calibrated(work, Evaluator(), strategy=OneByOne())
    assert own.layers == binary.layers
    assert [len(step.fallen) for step in own.steps] == list(range(len(own.layers) + 1))


def endless(answer: Callable[[], Any]) -> object:
    verbs = {"initialize": lambda _self, _ranking: None, "update_quant_config": lambda _self, _metric: answer()}
    return type("Endless", (), verbs)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "BinarySerch"}, "strategy: 'BinarySerch' is none; did you mean 'BinarySearch'"),
        ({"sensitivity": "Cosine"}, "sensitivity: 'Cosine' is none"),
        ({"sensitivity": object()}, "objects of AMCT's classes are not taken, got object"),
        ({"strategy": endless(lambda: {"roll_back_config": {}, "stop_flag": False})}, "has not set stop_flag after 7 steps"),
        ({"strategy": endless(lambda: {"stop_flag": False})}, "returned no roll_back_config"),
        ({"strategy": endless(lambda: {"roll_back_config": {"con": False}, "stop_flag": False})}, "names 'con', which is not among"),
    ],
)  # fmt: skip
def test_wrong_strategies_and_sensitivities_are_refused(options, message, work):
    with pytest.raises(ConfigError, match=message):
        calibrated(work, Evaluator(), **options)
    assert not (work / "out" / "m_record.txt").exists()


# The command

EVALUATOR = """
import numpy as np
import onnxruntime

X = np.random.default_rng(1).standard_normal((8, 8, 12, 12)).astype(np.float32)

class Judge:
    def calibration(self, model_file):
        self.evaluate(model_file)

    def evaluate(self, model_file):
        return onnxruntime.InferenceSession(model_file, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]

    def metric_eval(self, original_metric, new_metric):
        loss = float(((original_metric - new_metric) ** 2).sum() / (original_metric ** 2).sum())
        return loss < 1e-3, loss
"""


@pytest.mark.parametrize(
    ("more", "given"),
    [("", ":Judge"), ("", ""), ("customize = Judge()\n", ":customize"), ("customize = Judge()\n", "")],
)
def test_the_command_takes_an_evaluator_out_of_a_file(more, given, tmp_path):
    (tmp_path / "judge.py").write_text(EVALUATOR + more)
    result = CliRunner().invoke(
        app,
        ["auto", str(saved(tmp_path)), "--evaluator", f"{tmp_path / 'judge.py'}{given}", "--run", str(tmp_path / "r")],
    )
    assert result.exit_code == 0, result.output
    assert "goal: metric_eval of the evaluator" in result.stdout


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (EVALUATOR, ":Juge", "has no 'Juge'; did you mean 'Judge'"),
        ("x = 1\n", "", "nothing there fits; name the object"),
        (EVALUATOR + "a, b = Judge(), Judge()\n", "", "several fit: a, b; name the object"),
        ("raise RuntimeError('no')\n", ":Judge", "cannot be imported: RuntimeError: no"),
        (EVALUATOR.replace("class Judge:", "class Judge:\n    def __init__(self, path): ..."), ":Judge", r"Judge\(\) raised TypeError"),
    ],
)  # fmt: skip
def test_files_without_an_evaluator_are_refused(text, given, message, tmp_path):
    (tmp_path / "judge.py").write_text(text)
    result = CliRunner().invoke(app, ["auto", "m.onnx", "--evaluator", f"{tmp_path / 'judge.py'}{given}"])
    assert result.exit_code == 1
    with pytest.raises(ConfigError, match=message):
        raise result.exception
