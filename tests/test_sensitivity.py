"""Which layers hurt, in three views: values against numpy, the planted outlier first, and nothing measured twice."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import polars as pl
import polars.testing
import pytest
from exporting import CASES, Case
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.errors import ConfigError, DataError, LayerNotFoundError, RunError
from calibrant.export import memory_session
from calibrant.export.files import export_files
from calibrant.export.metrics import METRICS
from calibrant.layer_views import isolated, study
from calibrant.layer_views.whole import WholeModel
from calibrant.sensitivity import VIEWS, ranking, sensitivity, worst_first

Feeds = list[dict[str, np.ndarray]]


def draw(shape: Sequence[int], count: int, seed: int = 1) -> Feeds:
    generator = models.rng(seed)
    return [{"x": generator.standard_normal(tuple(shape)).astype(np.float32)} for _ in range(count)]


def fitted(proto: onnx.ModelProto, feeds: Any, folder: Path, text: str = "", **options: Any) -> calibrant.Run:
    source = models.save(proto, folder / "m.onnx")
    run = calibrant.capture(source, feeds, run=folder / "r", config=written(folder, text), **options)
    return calibrant.fit(run, config=written(folder, text))


def written(folder: Path, text: str) -> Path:
    (folder / "quant.cfg").write_text(text)
    return folder / "quant.cfg"


def value_of(rows: pl.DataFrame, view: str, layer: str, metric: str) -> float:
    found = rows.filter(view=view, layer=layer, metric=metric)
    assert found.height == 1, (view, layer, metric)
    return float(found["value"][0])


def row_of(rows: pl.DataFrame, view: str, layer: str, metric: str) -> dict[str, Any]:
    return rows.filter(view=view, layer=layer, metric=metric).row(0, named=True)


def sqnr(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> float:
    a, b = (np.concatenate([one.ravel() for one in arrays]).astype(np.float64) for arrays in (x, y))
    return float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))


def cosines(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> np.ndarray:
    pairs = [(a.ravel().astype(np.float64), b.ravel().astype(np.float64)) for a, b in zip(x, y, strict=True)]
    return np.array([a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in pairs])


def exported(run: calibrant.Run, fit: str) -> Path:
    prefix = calibrant.export(run, fit=fit).info.fits[fit].prefix
    assert prefix is not None
    return export_files(prefix).fake_quant


def two_layers() -> onnx.ModelProto:
    """x -> Conv 'a/1' -> Relu -> Conv 'b/2' -> GlobalAveragePool-like mean -> y [N,4]."""
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "c", "a/1", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("Conv", ["r", "w2"], "d", "b/2"),
        models.node("ReduceMean", ["d"], "y", "mean", axes=[2, 3], keepdims=0),
    ]
    constants = {
        "w1": models.normal(5, 3, 3, 3),
        "b1": models.normal(5, seed=1),
        "w2": models.normal(4, 5, 3, 3, seed=2),
    }
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4])], constants)


def test_the_layer_with_a_planted_outlier_ranks_first_in_every_view(tmp_path: Path) -> None:
    """Rounding to a step s costs s^2 / 12 a value, and a step is range / 255.

    One channel of what conv4 reads is 0 nearly everywhere and reaches a range R far above the largest value r of the others, so that
    their step is R / r times larger than it would be without it, which costs 20 log10(R / r) dB of their SQNR. The outlier channel,
    being weighed by 1 / factor, brings conv4's output no more signal than another channel, which could make up for it. All other
    layers are at the same 40 dB or so.
    """
    feeds = draw((1, 8, 12, 12), 24)
    run = fitted(models.planted_outlier(), feeds, tmp_path)
    rows = sensitivity(run, data=feeds)
    reach = [max(float(np.abs(row).max()) for row in by_channel) for by_channel in channels_of(run, "r3")]
    loss = 20 * np.log10(reach[0] / max(reach[1:]))
    assert loss > 25
    for view in VIEWS:
        ranked = worst_first(rows.filter(view=view), "sqnr_db")
        first, second = ranked["value"][:2]
        assert ranked["layer"][0] == "conv4", view
        assert second - first > 20, view
        assert ranked["high"][0] < ranked["low"][1], view  # beyond what other samples could change
        assert ranking(run, view=view)[0] == "conv4"
    others = rows.filter(pl.col("layer") != "conv4", view="isolated", metric="sqnr_db")["value"]
    assert value_of(rows, "isolated", "conv4", "sqnr_db") == pytest.approx(others.median() - loss, abs=6)
    spreads = worst_first(rows.filter(view="statistics"), "channel_spread")
    assert spreads["layer"][0] == "conv4"
    assert spreads["value"][0] == pytest.approx(reach[0] / np.median(reach), rel=1e-6)


def channels_of(run: calibrant.Run, tensor: str) -> list[list[np.ndarray]]:
    arrays = [array[0] for _, array in run.captures(tensor)]
    return [[array[channel] for array in arrays] for channel in range(arrays[0].shape[0])]


def test_isolated_is_float_against_fake_quant_of_the_layer(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 5)
    run = fitted(models.conv_relu(), feeds, tmp_path)
    rows = sensitivity(run, views=["isolated"])
    x, y = (conv_outputs(path, feeds) for path in (run.prepared_file, exported(run, "default")))
    errors = [((a - b).astype(np.float64) ** 2).mean() for a, b in zip(x, y, strict=True)]
    expected = {
        "sqnr_db": sqnr(x, y), "cosine": cosines(x, y).mean(), "amct_similarity": (0.5 + 0.5 * cosines(x, y)).mean(),
        "mse": np.mean(errors),
    }  # fmt: skip
    assert {row["metric"]: row["samples"] for row in rows.iter_rows(named=True)} == dict.fromkeys(expected, 5)
    for metric, value in expected.items():
        assert value_of(rows, "isolated", "conv", metric) == pytest.approx(value, rel=1e-5), metric
    low, high = rows.filter(metric="mse").select("low", "high").row(0)
    assert min(errors) < low < np.mean(errors) < high < max(errors)


def conv_outputs(path: Path, feeds: Feeds) -> list[np.ndarray]:
    """What Relu 'relu' reads."""
    proto = onnx.load(path)
    name = next(node.input[0] for node in proto.graph.node if node.name == "relu")
    proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return [models.run(proto, feed, [name])[0] for feed in feeds]


def test_whole_is_the_export_with_all_other_layers_skipped(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 6)
    run = fitted(two_layers(), feeds, tmp_path)
    rows = sensitivity(run, views=["whole"], data=feeds)
    reference = [models.run(run.prepared_file, feed)[0] for feed in feeds]
    for layer, other in (("a/1", "b/2"), ("b/2", "a/1")):
        calibrant.fit(run, config=written(tmp_path, f'skip_layers: "{other}"'), name="one")
        found = [models.run(exported(run, "one"), feed)[0] for feed in feeds]
        same = np.mean([a.argmax() == b.argmax() for a, b in zip(reference, found, strict=True)])
        p, q = (np.exp(np.array(arrays).squeeze(1).astype(np.float64)) for arrays in (reference, found))
        p, q = (one / one.sum(axis=1, keepdims=True) for one in (p, q))
        assert value_of(rows, "whole", layer, "sqnr_db") == pytest.approx(sqnr(reference, found), rel=1e-9)
        assert value_of(rows, "whole", layer, "agreement") == same
        assert value_of(rows, "whole", layer, "kl") == pytest.approx((p * np.log(p / q)).sum(axis=1).mean(), rel=1e-6)


def test_statistics_are_sums_over_the_tables(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 5)
    run = fitted(models.conv_relu(bias=False), feeds, tmp_path)
    rows = sensitivity(run, views=["statistics"])
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    data, weight = (run.read("quant_params").filter(role=role).sort("channel") for role in ("data", "weight"))
    scale, offset = data["scale"][0], data["offset"][0]
    codes = np.clip(np.rint(x / scale) + offset, -128, 127)
    data_db = 10 * np.log10((x**2).sum() / ((x - (codes - offset) * scale) ** 2).sum())
    w = models.normal(4, 3, 3, 3).astype(np.float64)
    steps = weight["scale"].to_numpy().astype(np.float64)[:, None, None, None]
    weight_db = 10 * np.log10((w**2).sum() / ((w - np.clip(np.rint(w / steps), -128, 127) * steps) ** 2).sum())
    both = -10 * np.log10(10 ** (-data_db / 10) + 10 ** (-weight_db / 10))
    peaks = np.abs(x).max(axis=(0, 2, 3))
    magnitudes = np.sort(np.abs(x[x != 0]))
    expected = {
        "data_sqnr_db": data_db, "weight_sqnr_db": weight_db, "combined_sqnr_db": both, "channel_spread": peaks.max() / np.median(peaks),
        "range_spread": peaks.max() / magnitudes[int(np.ceil(0.999 * magnitudes.size)) - 1],
    }  # fmt: skip
    for metric, value in expected.items():
        assert value_of(rows, "statistics", "conv", metric) == pytest.approx(value, rel=2e-3), metric
    assert value_of(rows, "statistics", "conv", "clip_rate") == data["clip_rate"][0]
    assert rows.filter(pl.col("low").is_null())["metric"].to_list() == ["clip_rate", "weight_sqnr_db", "channel_spread"]
    row = row_of(rows, "statistics", "conv", "data_sqnr_db")
    powers = [(feed["x"].astype(np.float64) ** 2).mean() for feed in feeds]
    around = 10 * np.log10(np.array([min(powers), max(powers)]) / np.mean(powers))
    assert around[0] < row["low"] - row["value"] < 0 < row["high"] - row["value"] < around[1]


def expected_db(run: calibrant.Run, layer_id: int, x: np.ndarray, case: Case) -> float:
    """The SQNR that the moments of independent input channels let expect, one weight after the other (docs/sensitivity.md)."""
    data, weight = (
        run.read("quant_params").filter(role=r, layer_id=layer_id).sort("channel") for r in ("data", "weight")
    )
    arrays, (axis, out) = case.arrays(), AXES[case.op_type]
    w = arrays["w"].astype(np.float64)
    steps = np.resize(weight["scale"].to_numpy().astype(np.float64), case_channels(case))
    mean = x.mean(axis=tuple(i for i in range(x.ndim) if i != axis % x.ndim))
    power = (x**2).mean(axis=tuple(i for i in range(x.ndim) if i != axis % x.ndim))
    signal = noise = 0.0
    for o, step in enumerate(steps):
        level, error_level = float(arrays["b"].ravel()[o]) if "b" in arrays else 0.0, 0.0
        for c, taps in out(w, o, case.groups):
            errors = taps - np.clip(np.rint(taps / step), -128, 127) * step
            variance = power[c] - mean[c] ** 2
            level, error_level = level + mean[c] * taps.sum(), error_level + mean[c] * errors.sum()
            signal += variance * (taps**2).sum()
            noise += variance * (errors**2).sum() + data["mse"][0] * (taps**2).sum()
        signal, noise = signal + level**2, noise + error_level**2
    return float(10 * np.log10(signal / noise))


def case_channels(case: Case) -> int:
    assert case.weight is not None
    return {"Conv": case.weight[0], "ConvTranspose": case.weight[1] * case.groups}.get(case.op_type, case.weight[-1])


def conv_taps(w: np.ndarray, o: int, groups: int) -> list[tuple[int, np.ndarray]]:
    first = o // (w.shape[0] // groups) * w.shape[1]
    return [(first + c, w[o, c].ravel()) for c in range(w.shape[1])]


def transposed_taps(w: np.ndarray, o: int, groups: int) -> list[tuple[int, np.ndarray]]:
    group, inside, inputs = o // w.shape[1], o % w.shape[1], w.shape[0] // groups
    return [(group * inputs + c, w[group * inputs + c, inside].ravel()) for c in range(inputs)]


def matrix_taps(w: np.ndarray, o: int, groups: int) -> list[tuple[int, np.ndarray]]:
    return [(c, w[c, o : o + 1]) for c in range(w.shape[0])]


AXES: dict[str, Any] = {
    "Conv": (1, conv_taps), "ConvTranspose": (1, transposed_taps), "Gemm": (-1, matrix_taps), "MatMul": (-1, matrix_taps),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["Conv grouped", "Conv depthwise, two a group", "ConvTranspose grouped", "Gemm", "MatMul and Add", "Conv 1-D"],
)
def test_statistics_expect_the_output_from_moments_of_its_channels(name: str, tmp_path: Path) -> None:
    case, generator = CASES[name], models.rng(8)
    spread = [1] * len(case.x)
    spread[AXES[case.op_type][0]] = -1
    sizes = np.arange(1, case.x[AXES[case.op_type][0]] + 1).reshape(spread)
    feeds = [{"x": ((generator.standard_normal(case.x) + 0.3) * sizes).astype(np.float32)} for _ in range(4)]
    run = fitted(case.proto(), feeds, tmp_path)
    rows = sensitivity(run, views=["statistics"])
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    row = row_of(rows, "statistics", "layer", "sqnr_db")
    assert row["value"] == pytest.approx(expected_db(run, 0, x, case), abs=1e-3)
    assert row["low"] < row["value"] < row["high"]


def test_on_independent_data_the_expected_output_is_the_measured_one(tmp_path: Path) -> None:
    """Gaussian data is what the formula takes data for; padding and the small sample leave a few tenths of a dB."""
    text = 'override_layer_configs { layer_name: "conv1" calibration_config { %s } }'
    for name, settings in (
        ("plain", ""), ("alone", "weight_compress_only: true"), ("levels", "nuq_quantize { num_steps: 16 }"),
        ("balanced", "dmq_balancer { migration_strength: 0.5 }"),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        run = fitted(models.planted_outlier(), draw((1, 8, 12, 12), 8), tmp_path / name, text % settings)
        rows = sensitivity(run, layers=["conv1"], views=["statistics", "isolated"])
        expected, measured = (value_of(rows, view, "conv1", "sqnr_db") for view in ("statistics", "isolated"))
        assert expected == pytest.approx(measured, abs=0.5), name


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Which layers each view measures."""
    seen: dict[str, list[Any]] = {view: [] for view in VIEWS}

    def spy(place: Any, name: str, note: Callable[..., None]) -> None:
        original = getattr(place, name)

        def noting(*arguments: Any) -> Any:
            note(*arguments)
            return original(*arguments)

        monkeypatch.setattr(place, name, noting)

    spy(study, "measure_statistics", lambda run, fit, layers, *model: seen["statistics"].extend(layers))
    spy(isolated, "open_isolated", lambda prepared, parts, layer: seen["isolated"].append(layer.layer_id))
    spy(WholeModel, "measure", lambda model, chosen: seen["whole"].extend(chosen))
    return seen


def taken(seen: dict[str, list[Any]]) -> list[list[Any]]:
    """What was measured since the last question."""
    found = [list(seen[view]) for view in VIEWS]
    for layers in seen.values():
        layers.clear()
    return found


def test_nothing_is_measured_twice(tmp_path: Path, counted: dict[str, list[Any]]) -> None:
    feeds = draw((1, 3, 8, 8), 4)
    run = fitted(two_layers(), feeds, tmp_path)
    first = sensitivity(run, data=feeds)
    assert taken(counted) == [[0, 1], [0, 1], ["a/1", "b/2"]]
    assert sensitivity(run, data=feeds).equals(first)
    assert sensitivity(run, data=list(reversed(feeds))).equals(first)  # the same samples in another order
    assert taken(counted) == [[], [], []]

    one = 'override_layer_configs { layer_name: "b/2" calibration_config { hfmg_quantize {} } }'
    calibrant.fit(run, config=written(tmp_path, one))
    assert set(run.read("sensitivity")["layer_id"]) == {0}  # what was said of other scales is gone
    sensitivity(run, data=feeds)
    assert taken(counted) == [[1], [1], ["b/2"]]

    sensitivity(run, data=feeds, samples=3)
    assert taken(counted) == [[], [0, 1], ["a/1", "b/2"]]
    sensitivity(run, data=draw((1, 3, 8, 8), 4, seed=9), samples=3)
    assert taken(counted) == [[], [], ["a/1", "b/2"]]


def test_another_fit_takes_over_what_is_known_of_equal_layers(tmp_path: Path, counted: dict[str, list[Any]]) -> None:
    feeds = draw((1, 3, 8, 8), 4)
    run = fitted(two_layers(), feeds, tmp_path)
    first = sensitivity(run, data=feeds)
    taken(counted)
    calibrant.fit(run, config=written(tmp_path, 'skip_layers: "a/1"'), name="fewer")
    found = sensitivity(run, fit="fewer", data=feeds)
    assert taken(counted) == [[], [], []]
    assert found["layer"].unique().to_list() == ["b/2"]
    assert found.drop("fit").equals(first.filter(layer="b/2").drop("fit"))


def test_layers_are_measured_alone_where_asked(tmp_path: Path, counted: dict[str, list[Any]]) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    rows = sensitivity(run, layers=["b/2"], views=["isolated"])
    assert taken(counted) == [[], [1], []]
    assert rows["layer"].unique().to_list() == ["b/2"]


def test_what_was_finished_before_an_error_is_kept(
    tmp_path: Path, counted: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    measure = WholeModel.measure

    def stops(model: WholeModel, chosen: Sequence[str]) -> Any:
        if "b/2" in chosen:
            raise KeyboardInterrupt
        return measure(model, chosen)

    with monkeypatch.context() as patch:
        patch.setattr(WholeModel, "measure", stops)
        with pytest.raises(KeyboardInterrupt):
            sensitivity(run, views=["whole"])
    taken(counted)
    sensitivity(run, views=["whole"])
    assert taken(counted) == [[], [], ["b/2"]]


def test_a_run_of_statistics_alone_gives_the_same_isolated_values(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 4)
    (tmp_path / "raw").mkdir()
    (tmp_path / "stats").mkdir()
    raw = fitted(two_layers(), feeds, tmp_path / "raw")
    stats = fitted(two_layers(), feeds, tmp_path / "stats", keep="stats")
    expected, found = (sensitivity(run, views=["isolated"], data=feeds) for run in (raw, stats))
    pl.testing.assert_frame_equal(found, expected)
    (event,) = stats.read("events").filter(stage="sensitivity")["message"]
    assert event.startswith(
        "isolated: only statistics were kept, so the float model ran anew on 4 samples of the evaluation"
    )


def test_without_data_the_kept_inputs_serve_and_their_number_is_told(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 6), tmp_path, keep="stats")
    rows = sensitivity(run)
    assert rows.group_by("view").agg(pl.col("samples").unique().first()).sort("view").rows() == [
        ("isolated", 4), ("statistics", 6), ("whole", 4),
    ]  # fmt: skip
    messages = run.read("events").filter(stage="sensitivity")["message"]
    assert messages.str.contains("the 4 samples that the capture kept for verify; give evaluation data").to_list() == [
        True,
        True,
    ]


def test_samples_of_least_key_are_taken(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 6)
    run = fitted(two_layers(), feeds, tmp_path)
    least = run.read("inputs").sort("key")["sample"].head(2).to_list()
    rows = sensitivity(run, data=feeds, samples=2)
    (tmp_path / "two").mkdir()
    for view in ("isolated", "whole"):
        alone = sensitivity(run, data=[feeds[number] for number in least], samples=2, views=[view])
        assert alone.equals(rows.filter(view=view))


def test_one_sample_has_no_interval(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 1), tmp_path)
    rows = sensitivity(run)
    assert rows.select("low", "high").null_count().row(0) == (rows.height, rows.height)
    assert rows["value"].is_not_nan().all()


def test_a_fixed_batch_counts_each_kept_sample_once(tmp_path: Path) -> None:
    feeds = [{"x": models.normal(2, 3, 8, 8, seed=seed)} for seed in (0, 1)]
    run = fitted(models.fixed_batch(2), feeds, tmp_path)
    rows = sensitivity(run)
    assert set(rows["samples"]) == {4}
    odd = fitted_odd(tmp_path)
    assert set(sensitivity(odd)["samples"]) == {3}


def fitted_odd(folder: Path) -> calibrant.Run:
    """Three samples of a model that takes four at a time."""
    (folder / "odd").mkdir()
    np.savez(folder / "odd" / "x.npz", x=models.normal(3, 3, 8, 8))
    return fitted(models.fixed_batch(4), folder / "odd" / "x.npz", folder / "odd")


def test_the_output_that_fares_worst_counts(tmp_path: Path) -> None:
    """Two outputs from one input: each layer moves one of them alone, so that the other has no noise."""
    nodes = [models.node("Conv", ["x", "w1"], "a", "left"), models.node("Conv", ["x", "w2"], "b", "right")]
    shape = ["N", 2, 6, 6]
    proto = models.model(
        nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("a", shape), models.value("b", shape)],
        {"w1": models.normal(2, 3, 3, 3), "w2": models.normal(2, 3, 3, 3, seed=3)},
    )  # fmt: skip
    rows = sensitivity(fitted(proto, draw((1, 3, 8, 8), 3), tmp_path))
    for layer in ("left", "right"):
        whole, alone = (value_of(rows, view, layer, "sqnr_db") for view in ("whole", "isolated"))
        assert whole == pytest.approx(alone)  # here the layer is the whole model up to its output
    assert rows.filter(metric="agreement").is_empty()  # no output is a vector of classes


def test_a_model_without_float_outputs_has_no_whole_view(tmp_path: Path) -> None:
    nodes = [models.node("Conv", ["x", "w"], "c", "conv"), models.node("ArgMax", ["c"], "y", "best", axis=1)]
    proto = models.model(
        nodes, [models.value("x", ["N", 3, 8, 8])],
        [models.value("y", ["N", 1, 6, 6], onnx.TensorProto.INT64)], {"w": models.normal(4, 3, 3, 3)},
    )  # fmt: skip
    run = fitted(proto, draw((1, 3, 8, 8), 3), tmp_path)
    assert set(sensitivity(run)["view"]) == {"statistics", "isolated"}
    event = run.read("events").filter(stage="sensitivity", severity="warn").row(0, named=True)
    assert event["message"].startswith("whole: not measured, no output of the model is of floats")


def test_layers_of_every_kind_are_measured(tmp_path: Path) -> None:
    text = """
    override_layer_configs { layer_name: "query" calibration_config { weight_compress_only: true } }
    override_layer_configs { layer_name: "key" calibration_config { dmq_balancer { migration_strength: 0.5 } } }
    override_layer_configs { layer_name: "value" calibration_config { nuq_quantize { num_steps: 16 } } }
    override_layer_configs { layer_name: "scores" calibration_config {} }
    """
    run = fitted(models.attention(), draw((1, 5, 4), 4), tmp_path, text)
    rows = sensitivity(run)
    counts = dict(rows.filter(metric="sqnr_db").group_by("layer").len().iter_rows())
    assert counts == dict.fromkeys(["query", "key", "value", "scores"], 3)
    assert rows["value"].is_finite().all()
    assert rows.filter(layer="query", metric="data_sqnr_db").is_empty()  # its data stays in float
    assert row_of(rows, "statistics", "key", "data_sqnr_db")["low"] is None  # the divided data has no rows of samples
    balance = run.read("balance").sort("channel")["factor"].to_numpy()
    maxima = run.read("channels").filter(tensor_id=0).sort("channel")["abs_max"].to_numpy() / balance
    assert value_of(rows, "statistics", "key", "channel_spread") == pytest.approx(maxima.max() / np.median(maxima))


def test_constant_data_counts_once(tmp_path: Path) -> None:
    run = fitted(models.constant_activation(), draw((1, 3, 8, 8), 3), tmp_path)
    rows = sensitivity(run)
    assert row_of(rows, "isolated", "fixed", "sqnr_db")["samples"] == 1
    assert row_of(rows, "whole", "fixed", "sqnr_db")["samples"] == 3


def test_ranking_takes_the_view_that_says_most(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 4), tmp_path)
    with pytest.raises(RunError, match=r"no sensitivity of fit 'default' in view statistics; measure it with"):
        ranking(run)
    for view in VIEWS:
        rows = sensitivity(run, views=[view])
        values = {layer: value_of(rows, view, layer, "sqnr_db") for layer in ("a/1", "b/2")}
        assert ranking(run) == ranking(run, view=view) == sorted(values, key=values.__getitem__)
    mse = {layer: value_of(sensitivity(run), "isolated", layer, "mse") for layer in ("a/1", "b/2")}
    assert ranking(run, view="isolated", metric="mse") == sorted(mse, key=mse.__getitem__, reverse=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fit": "defalt"}, LayerNotFoundError, "no fit 'defalt'; did you mean 'default'"),
        ({"views": ["isolate"]}, ConfigError, "--view: 'isolate' is no view; did you mean 'isolated'"),
        ({"views": []}, ConfigError, "--view: no view given"),
        ({"samples": 0}, ConfigError, "--samples: 0 is no number of samples; expected at least 1"),
        ({"layers": ["a/11"]}, LayerNotFoundError, "no layer 'a/11'; did you mean 'a/1'"),
        ({"layers": ["b/2"]}, LayerNotFoundError, "layer 'b/2' is not quantized in fit 'default': .*skip_layers"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 2), tmp_path, 'skip_layers: "b/2"')
    with pytest.raises(error, match=words):
        sensitivity(run, **options)


def test_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 2), tmp_path)
    sensitivity(run, views=["isolated"])
    with pytest.raises(ConfigError, match="no metric 'cosin' in view isolated; did you mean 'cosine'"):
        ranking(run, metric="cosin")


def command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["sensitivity", *map(str, arguments)], catch_exceptions=False)


def test_the_command_prints_a_bar_table_worst_first(tmp_path: Path) -> None:
    feeds = draw((1, 8, 12, 12), 4)
    run = fitted(models.planted_outlier(), feeds, tmp_path)
    np.savez(tmp_path / "eval.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    done = command(run.path, "--data", tmp_path / "eval.npz", "--samples", "3")
    title, heading, _, first, *others = done.stdout.splitlines()
    assert title == "fit default: 6 layers by their SQNR in the view 'whole', worst first"
    assert re.split(" {2,}", heading)[:4] == ["layer", "type", "whole_db", "95 % interval"]
    assert first.startswith("conv4")
    assert first.endswith("█" * 20)
    assert len(others) == 5
    assert "info: whole: measured on 3 samples of the evaluation data" in done.stderr
    rows = sensitivity(run, data=str(tmp_path / "eval.npz"), samples=3)
    assert f"{value_of(rows, 'whole', 'conv4', 'sqnr_db'):.1f}" == first.split()[2]
    noises = 10 ** (-rows.filter(view="whole", metric="sqnr_db")["value"].to_numpy() / 10)
    assert f"{100 * noises.max() / noises.sum():.1f} %" in first


def test_the_command_gives_all_rows_to_machines(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    done = command(run.path, "--view", "isolated", "--layer", "b/2", "--format", "json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["layer"], row["view"]) for row in rows} == {("b/2", "isolated")}
    assert len(rows) == 4
    command(run.path, "-o", tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + run.read("sensitivity").height


def test_the_command_ranks_by_the_only_view_asked_for(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    command(run.path)
    assert "in the view 'statistics'" in command(run.path, "--view", "statistics").stdout


def test_chosen_raw_activations_are_measured_as_all_of_them_would_be(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 6)
    for name in ("all", "some"):
        (tmp_path / name).mkdir()
    everything, some = (
        fitted(two_layers(), feeds, tmp_path / name, keep=keep) for name, keep in (("all", "raw"), ("some", "raw:3"))
    )
    expected = sensitivity(everything, views=["isolated"], samples=3)
    pl.testing.assert_frame_equal(sensitivity(some, views=["isolated"]), expected)
    assert set(expected["samples"]) == {3}


def test_models_that_no_protobuf_holds_go_through_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    expected = sensitivity(run, views=["isolated", "whole"])
    (run.path / "tables" / "sensitivity.parquet").unlink()
    made = []
    write = memory_session.write_model
    monkeypatch.setattr(memory_session, "needs_external_data", lambda model: True)
    monkeypatch.setattr(memory_session, "write_model", lambda model, path: (made.append(path), write(model, path)))
    pl.testing.assert_frame_equal(sensitivity(run, views=["isolated", "whole"]), expected)
    assert (
        len(made) == 2 * 2 + 1 + 2
    )  # both forms of both layers, the float model, and the model with each layer quantized
    assert not any(path.parent.exists() for path in made)


def test_several_inputs_and_an_output_without_axes(tmp_path: Path) -> None:
    proto = models.two_inputs()
    proto.graph.node.append(models.node("ReduceMean", ["y"], "mean", "mean", keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(models.value("mean", []))
    feeds = [{"x": a["x"], "z": b["x"]} for a, b in zip(draw((1, 3, 8, 8), 3), draw((1, 3, 8, 8), 3, 2), strict=True)]
    rows = sensitivity(fitted(proto, feeds, tmp_path), data=feeds)
    for layer in ("conv_x", "conv_z"):
        assert np.isfinite(value_of(rows, "whole", layer, "sqnr_db"))
    assert set(rows.filter(view="whole")["metric"]) == {"sqnr_db", "kl"}


def test_nan_ranks_before_every_number() -> None:
    values = [30.0, float("nan"), 10.0, float("inf")]
    rows = pl.DataFrame({"layer_id": range(4), "view": "whole", "metric": "sqnr_db", "value": values})
    assert worst_first(rows, "sqnr_db")["layer_id"].to_list() == [1, 2, 0, 3]
    losses = rows.with_columns(metric=pl.lit("mse"))
    assert worst_first(losses, "mse")["layer_id"].to_list() == [1, 3, 0, 2]


def test_captures_without_the_chosen_samples_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 3), tmp_path)
    monkeypatch.setattr(study, "captured_samples", lambda run, count: {7: "a key", 8: "another"})
    assert sensitivity(run, views=["isolated"]).is_empty()
    events = run.read("events").filter(stage="sensitivity", severity="warn")
    assert events["layer"].to_list() == ["a/1", "b/2"]
    assert set(events["message"]) == {
        "isolated: not measured, its captures hold none of the chosen samples; capture the run again"
    }


def test_data_that_does_not_fit_is_refused_by_the_command(tmp_path: Path) -> None:
    run = fitted(two_layers(), draw((1, 3, 8, 8), 2), tmp_path)
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 3, 9, 8), np.float32))
    with pytest.raises(DataError, match=r"sample 0 \(wrong\.npz\[0\]\): input 'x' has shape \[1, 3, 9, 8\]"):
        command(run.path, "--data", tmp_path / "wrong.npz")
    with pytest.raises(RunError, match="no such folder"):
        command(tmp_path / "nothing")


@pytest.mark.parametrize(
    "pair",
    [
        (models.normal(3, 4), models.normal(3, 4, seed=1)),
        (np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)),
        (np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)),
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)),
        (np.float16([1, 2]), np.float16([1, 2.5])),
        (np.float32([1, np.inf]), np.float32([1, 3])),
        (np.float32([]), np.float32([])),
    ],
    ids=["normal", "zero reference", "zero output", "zeros", "float16", "infinite", "empty"],
)  # fmt: skip
def test_terms_taken_together_are_those_of_each_metric(pair: tuple[np.ndarray, np.ndarray]) -> None:
    each = [METRICS[name].per_sample(*pair, None) for name in isolated.ISOLATED_METRICS]
    np.testing.assert_equal(isolated.sample_terms(*pair), tuple(each))
