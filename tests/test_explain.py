"""One page on a layer: every figure against numpy, advice that its figures support and that a configuration takes."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import app
from calibrant.errors import LayerNotFoundError
from calibrant.layer_page.page import LayerPage
from calibrant.layer_page.text import page_lines
from calibrant.proto.simple_config import parse_simple_config
from calibrant.sensitivity import sensitivity

Feeds = list[dict[str, np.ndarray]]


def draw(shape: tuple[int, ...], count: int, seed: int = 1) -> Feeds:
    generator = models.rng(seed)
    return [{"x": generator.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def written(folder: Path, text: str) -> Path:
    (folder / "quant.cfg").write_text(text)
    return folder / "quant.cfg"


def fitted(proto: onnx.ModelProto, feeds: Any, folder: Path, text: str = "", **options: Any) -> calibrant.Run:
    source = models.save(proto, folder / "m.onnx")
    run = calibrant.capture(source, feeds, run=folder / "r", config=written(folder, text), **options)
    return calibrant.fit(run, config=written(folder, text))


def advised(page: LayerPage) -> dict[str, str]:
    return {advice.action: advice.evidence for advice in page.advice}


def quantized(x: np.ndarray, run: calibrant.Run, layer_id: int) -> np.ndarray:
    """The data after its quantizer, in float64."""
    row = run.read("quant_params").filter(role="data", layer_id=layer_id).row(0, named=True)
    codes = np.clip(np.rint(x / row["scale"]) + row["offset"], -128, 127)
    return (codes - row["offset"]) * row["scale"]


def decibels(x: np.ndarray, y: np.ndarray) -> float:
    return float(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))


def test_a_page_holds_the_figures_of_its_layer(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 6)
    run = fitted(models.conv_relu(), feeds, tmp_path)
    page = calibrant.explain(run, "conv")
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    assert (page.op_type, page.quantized, page.reason, page.parameters) == ("Conv", True, None, 4 * 3 * 9 + 4)
    assert page.data is not None
    assert (page.data.tensor, page.data.values, page.data.minimum, page.data.maximum) == ("x", x.size, x.min(), x.max())
    assert page.data.sqnr_db == pytest.approx(decibels(x, quantized(x, run, 0)), abs=0.01)
    w = models.normal(4, 3, 3, 3)
    assert page.weight is not None
    assert (page.weight.minimum, page.weight.maximum, page.weight.scales) == (w.min(), w.max(), 4)
    decided = {decision.group: decision.decided_by for decision in page.decisions}
    assert decided["offset of the data"] == "activation_offset"
    assert decided["weight"] == "default"

    assert page.histogram is not None
    low, high = page.histogram.low, page.histogram.high
    assert low == min(x.min(), page.data.clip_min)
    assert high == max(x.max(), page.data.clip_max)
    expected, _ = np.histogram(x, bins=len(page.histogram.counts), range=(low, high))
    assert sum(page.histogram.counts) == pytest.approx(x.size)
    assert np.abs(np.array(page.histogram.counts) - expected).max() <= 2  # bins that an edge cuts

    table = run.read("search").filter(layer_id=0).sort("candidate")
    assert page.search is not None
    assert [candidate.loss for candidate in page.search.candidates] == table["loss"].to_list()
    assert page.search.best == int(np.argmin(table["loss"]))
    assert page.search.tried == 61  # AMCT's multiples 0.7 to 1.3 in steps of 0.01


def test_samples_and_channels_that_stand_out(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 6)
    feeds[2]["x"][0, 1, 0, 0] = 9.5
    feeds[4]["x"] *= np.float32(0.1)
    feeds[4]["x"][0, 2] = 0
    run = fitted(models.conv_relu(), feeds, tmp_path)
    page = calibrant.explain(run, "conv")
    highest = max(float(feed["x"].max()) for number, feed in enumerate(feeds) if number != 2)
    values = [decibels(feed["x"].astype(np.float64), quantized(feed["x"].astype(np.float64), run, 0)) for feed in feeds]
    notes = [(note.sample, note.source, note.why) for note in page.samples]
    assert notes[0] == (2, "feed 2[0]", f"sets the maximum 9.5; without it {highest:.6g}")
    assert notes[2] == (4, "feed 4[0]", f"lowest SQNR: {min(values):.1f} dB")
    assert min(values) == values[4]
    assert page.exact_samples
    maxima = np.abs(np.concatenate([feed["x"] for feed in feeds])).max(axis=(0, 2, 3))
    data = [note for note in page.channels if note.side == "data"]
    assert (data[0].channel, data[0].why) == (1, f"reaches 9.5, {9.5 / np.median(maxima):.2f} times the median channel")
    weights = run.read("quant_params").filter(role="weight").sort("sqnr_db")["channel"].to_list()
    assert [note.channel for note in page.channels if note.side == "weight"] == weights[:3]
    assert "see whether the sample that sets the range belongs there, or take more" in advised(page)


def test_without_raw_activations_sample_figures_are_estimates(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 4)
    feeds[1]["x"] *= np.float32(0.1)
    run = fitted(models.conv_relu(), feeds, tmp_path, keep="stats")
    page = calibrant.explain(run, "conv")
    x = feeds[1]["x"].astype(np.float64)
    everything = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    mse = ((everything - quantized(everything, run, 0)) ** 2).mean()
    lowest = next(note for note in page.samples if note.why.startswith("lowest"))
    assert not page.exact_samples
    assert lowest.sample == 1
    estimate = float(lowest.why.removeprefix("lowest SQNR (estimated): ").removesuffix(" dB"))
    assert estimate == pytest.approx(10 * np.log10((x**2).mean() / mse), abs=0.06)


def test_dead_channels_are_named(tmp_path: Path) -> None:
    feeds = draw((1, 3, 8, 8), 3)
    for feed in feeds:
        feed["x"][:, 1] = 0
    proto = models.conv_relu()
    weight = models.normal(4, 3, 3, 3)
    weight[2] = 0
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    page = calibrant.explain(fitted(proto, feeds, tmp_path), "conv")
    assert ("data", 1, "always 0") in [(note.side, note.channel, note.why) for note in page.channels]
    assert 2 not in [note.channel for note in page.channels if note.side == "weight"]
    assert any("1 of 4 output channels are dead" in note.message or "dead" in note.message for note in page.events)


def test_the_planted_outlier_is_named_and_its_first_advice_mends_it(tmp_path: Path) -> None:
    feeds = draw((1, 8, 12, 12), 8)
    run = fitted(models.planted_outlier(), feeds, tmp_path)
    rows = sensitivity(run, data=feeds)
    page = calibrant.explain(run, "conv4")
    first = page.advice[0]
    assert first.action == "balance data and weight (DMQ)"
    assert first.evidence.startswith("input channel 0 reaches ")
    assert "leave it in float" in advised(page)
    measured = {(one.view, one.metric): one for one in page.measured}
    for view in ("statistics", "isolated", "whole"):
        one = measured[view, "sqnr_db"]
        assert (one.rank, one.of) == (1, 6)
        assert one.value == rows.filter(view=view, metric="sqnr_db", layer="conv4")["value"][0]
    calibrant.fit(run, config=written(tmp_path, first.config), name="better")
    better = sensitivity(run, fit="better", data=feeds, views=["whole"])
    gain = better.filter(layer="conv4", metric="sqnr_db")["value"][0] - measured["whole", "sqnr_db"].value
    assert gain > 10
    assert calibrant.explain(run, "conv4", fit="better").data.balanced
    assert "balance data and weight (DMQ)" not in advised(calibrant.explain(run, "conv4", fit="better"))


def heavy_tail(feeds: Feeds) -> None:
    for feed in feeds:
        feed["x"][0, 0, 0, 0] = 60.0  # 1 of 1,728 values


def one_sided(feeds: Feeds) -> None:
    for feed in feeds:
        feed["x"][:] = np.abs(feed["x"])


def even(feeds: Feeds) -> None:
    for feed in feeds:
        feed["x"][:] = np.clip(feed["x"], -1, 1)


def one_far_sample(feeds: Feeds) -> None:
    feeds[0]["x"] *= 3


@pytest.mark.parametrize(
    ("change", "text", "action", "words"),
    [
        (heavy_tail, "", "search the range by HFMG", "99.9 % of the values other than 0 stay within"),
        (heavy_tail, "", "start the search at a lower percentile", "the range reaches"),
        (one_sided, "activation_offset: false", "give the data an offset", "leaves 50 % of the codes unused"),
        (even, "", "quantize symmetrically", "the data goes from -1 to 1"),
        (
            even, "common_config { ifmr_quantize { max_percentile: 0.8 min_percentile: 0.8 search_range_end: 1.0 } }",
            "start the search at the whole range", "the range clips ",
        ),
        (one_far_sample, "", "see whether the sample that sets the range belongs there, or take more", "one sample alone reaches"),
        (one_sided, "", "calibrate with more samples", "the range comes from 5 of them"),
    ],
)  # fmt: skip
def test_advice_follows_from_the_figures(change: Any, text: str, action: str, words: str, tmp_path: Path) -> None:
    feeds = draw((1, 3, 24, 24), 5)
    change(feeds)
    proto = models.dynamic_shapes()
    page = calibrant.explain(fitted(proto, feeds, tmp_path, text), "conv")
    found = advised(page)
    assert action in found, found
    assert words in found[action]
    for advice in page.advice:
        if advice.config and not advice.config.startswith("calibrant"):
            parse_simple_config(advice.config, "advice")
    plain = calibrant.explain(fitted_plain(tmp_path), "conv")
    assert action not in advised(plain) or action == "calibrate with more samples"


def fitted_plain(folder: Path) -> calibrant.Run:
    """Data in which nothing stands out: uniform, of a range with an offset."""
    (folder / "plain").mkdir()
    generator = models.rng(3)
    feeds = [{"x": generator.uniform(-0.7, 1, (1, 3, 24, 24)).astype(np.float32)} for _ in range(5)]
    return fitted(models.dynamic_shapes(), feeds, folder / "plain")


def test_a_weight_of_uneven_columns_wants_a_scale_for_each(tmp_path: Path) -> None:
    nodes = [models.node("MatMul", ["x", "w"], "y", "fc")]
    weight = models.normal(16, 6) * np.float32([1, 1, 1, 1, 1, 0.01]) * np.float32(0.02)
    weight[0, 0] = 1.0
    proto = models.model(nodes, [models.value("x", ["N", 16])], [models.value("y", ["N", 6])], {"w": weight})
    run = fitted(proto, draw((1, 16), 40), tmp_path)
    page = calibrant.explain(run, "fc")
    advice = next(one for one in page.advice if one.action == "a weight scale for each output column")
    assert "the weight is what limits it" in advice.evidence
    assert advice.config == "calibrant fit RUN --matmul-per-channel --name per_channel"


def test_layers_that_stay_in_float_say_why(tmp_path: Path) -> None:
    feeds = draw((1, 5, 4), 3)
    run = fitted(models.attention(), feeds, tmp_path, 'skip_layers: "query"')
    skipped, refused = calibrant.explain(run, "query"), calibrant.explain(run, "scores")
    assert not skipped.quantized
    assert skipped.reason is not None
    assert "skip_layers" in skipped.reason
    assert skipped.data is not None
    assert skipped.data.scale is None
    assert skipped.histogram is not None
    assert skipped.advice == ()
    layers = run.read("layers").filter(layer="scores")
    assert refused.reason == layers["reason"][0]
    lines = page_lines(refused)
    assert lines[2] == "Why it stays in float"
    assert lines[3] == f"  {refused.reason}"


def test_names_with_slashes_and_wrong_ones(tmp_path: Path) -> None:
    nodes = [models.node("Conv", ["x", "w"], "y", '/a/b.0/"conv"')]
    shapes = [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 6, 6])]
    run = fitted(models.model(nodes, *shapes, {"w": models.normal(4, 3, 3, 3)}), draw((1, 3, 8, 8), 3), tmp_path)
    heavy = calibrant.explain(run, '/a/b.0/"conv"')
    assert heavy.layer == '/a/b.0/"conv"'
    with pytest.raises(LayerNotFoundError, match=re.escape("no layer '/a/b.1/conv'; did you mean '/a/b.0/\"conv\"'")):
        calibrant.explain(run, "/a/b.1/conv")
    with pytest.raises(
        LayerNotFoundError, match=re.escape("no layer 'b.0'; it is part of '/a/b.0/\"conv\"'; calibrant sql")
    ):
        calibrant.explain(run, "b.0")
    with pytest.raises(LayerNotFoundError, match="no fit 'defaul'; did you mean 'default'"):
        calibrant.explain(run, '/a/b.0/"conv"', fit="defaul")


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ("query", 'override_layer_configs { layer_name: "query" calibration_config { weight_compress_only: true } }'),
        ("key", "common_config { dmq_balancer { migration_strength: 0.5 } }"),
        ("value", "common_config { nuq_quantize { num_steps: 16 } }"),
        ("value", "common_config { hfmg_quantize { num_of_bins: 4096 } }"),
        ("scores", 'override_layer_configs { layer_name: "scores" calibration_config {} }'),
        ("query", "common_config { ifmr_quantize { dst_type: INT16 } }"),
    ],
)
def test_every_kind_of_layer_has_a_page(layer: str, text: str, tmp_path: Path) -> None:
    run = fitted(models.attention(), draw((1, 5, 4), 3), tmp_path, text)
    sensitivity(run)
    page = calibrant.explain(run, layer)
    assert page.quantized
    lines = page_lines(page)
    assert lines[0].startswith(f"{layer}: MatMul")
    assert all("None" not in line for line in lines)
    assert {"Plan", "Data", "Sensitivity"} < set(lines)


def test_a_page_of_one_sample_of_zeros(tmp_path: Path) -> None:
    run = fitted(models.conv_relu(), [{"x": np.zeros((1, 3, 8, 8), np.float32)}], tmp_path)
    page = calibrant.explain(run, "conv")
    assert page.histogram is not None
    assert sum(page.histogram.counts) == 3 * 8 * 8
    assert page_lines(page)


def test_the_histogram_is_drawn_with_its_clip_lines(tmp_path: Path) -> None:
    page = calibrant.explain(fitted(models.conv_relu(), draw((1, 3, 8, 8), 4), tmp_path), "conv")
    assert page.histogram is not None
    assert page.data is not None
    lines = page_lines(page)
    start = lines.index("Histogram of the data (log scale)")
    chart = [line[12:] for line in lines[start + 1 : start + 8]]
    filled = [any(len(row) > column and row[column] != " " for row in chart) for column in range(64)]
    assert filled == [count > 0 for count in page.histogram.counts]
    tallest = int(np.argmax(page.histogram.counts))
    assert chart[0][tallest] == "█"
    marks = lines[start + 9][12:]
    width = page.histogram.high - page.histogram.low
    for end in (page.data.clip_min, page.data.clip_max):
        place = min(63, int((end - page.histogram.low) / width * 64))
        assert marks[place] == "▲"
    assert f"clip {page.data.clip_min:.6g} and {page.data.clip_max:.6g}" in marks


def command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)


def test_the_command_prints_plain_text_or_json(tmp_path: Path) -> None:
    run = fitted(models.conv_relu(), draw((1, 3, 8, 8), 3), tmp_path)
    page = calibrant.explain(run, "conv")
    text = command(run.path, "conv").stdout
    assert text.splitlines() == page_lines(page)
    assert "\x1b" not in text
    found = json.loads(command(run.path, "conv", "--format", "json").stdout)
    assert found == json.loads(json.dumps(asdict(page)))
    command(run.path, "conv", "-o", tmp_path / "page.txt")
    assert (tmp_path / "page.txt").read_text() == text


def test_a_layer_whose_measurements_are_nan_has_the_first_place(tmp_path: Path) -> None:
    run = fitted(models.conv_relu(), draw((1, 3, 8, 8), 3), tmp_path, keep="stats")
    feeds = draw((1, 3, 8, 8), 2, seed=2)
    feeds[1]["x"][0, 0, 4, 4] = np.nan
    sensitivity(run, data=feeds, views=["isolated"])
    page = calibrant.explain(run, "conv")
    assert {(one.rank, one.of, np.isnan(one.value)) for one in page.measured if one.metric == "cosine"} == {
        (1, 1, True)
    }


def test_a_name_neither_breaks_a_line_nor_steers_the_terminal(tmp_path: Path) -> None:
    proto, name = models.conv_relu(), "two\nlines\x1b[2J"
    next(node for node in proto.graph.node if node.op_type == "Conv").name = name
    run = fitted(proto, draw((1, 3, 8, 8), 3), tmp_path)
    text = command(run.path, name).stdout
    assert text.startswith(r"two\nlines\x1b[2J: Conv,")
    assert "\x1b" not in text
    found = CliRunner().invoke(app, ["sensitivity", str(run.path), "--view", "statistics"])
    assert [line for line in found.stdout.splitlines() if line.startswith(r"two\nlines\x1b[2J  Conv")]
    assert "\x1b" not in found.output


def test_json_has_no_numbers_that_json_has_not(tmp_path: Path) -> None:
    run = fitted(models.conv_relu(), [{"x": np.zeros((1, 3, 8, 8), np.float32)}], tmp_path)
    text = command(run.path, "conv", "--format", "json").stdout
    assert not {"NaN", "Infinity"} & set(text.replace(",", " ").split())
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
