"""Two runs side by side: what they are of, accuracy on the same data, layers; and the bar table of one."""

import polars as pl
import pytest
from run_tables import data, layer, make_run

import calibrant
from calibrant.cli.bar_table import BAR_HEADINGS, bar_table
from calibrant.errors import EmptyDataError, LayerNotFoundError


def tables(**sqnr):
    return {
        "layers": [layer(i, name) for i, name in enumerate(sqnr)],
        "quant_params": [
            data(i, sqnr_db=value, scale=0.5, clip_min=-64.0, clip_max=63.5) for i, value in enumerate(sqnr.values())
        ],
    }


def evaluated(value, fingerprint, variant="fake_quant"):
    return {
        "fit": "default",
        "variant": variant,
        "metric": "top1",
        "value": value,
        "samples": 8,
        "data": f"{fingerprint}.npz",
        "data_fingerprint": fingerprint,
    }


def test_layers_are_paired_by_name_and_the_greatest_loss_comes_first(tmp_path):
    here = make_run(tmp_path / "a", tables(a=30.0, b=40.0, old=20.0))
    there = make_run(tmp_path / "b", tables(b=45.0, new=20.0, a=27.5))
    found = calibrant.diff(here, there).layers
    columns = ("layer", "quantized_in", "change_db", "sqnr_db_here", "sqnr_db_there", "scale_here")
    rows = found.select(columns).rows()
    assert set(rows[:2]) == {("old", "only here", None, 20.0, None, 0.5), ("new", "only there", None, None, 20.0, None)}
    assert rows[2:] == [("a", "both", -2.5, 30.0, 27.5, 0.5), ("b", "both", 5.0, 40.0, 45.0, 0.5)]
    assert found.columns[:3] == ["layer", "quantized_in", "change_db"]


def test_only_what_differs_of_the_settings_is_told(tmp_path):
    here = make_run(tmp_path / "a", {}, samples=4, versions={"calibrant": "0.1.0", "numpy": "2.3"})
    there = make_run(tmp_path / "b", {}, samples=9, versions={"calibrant": "0.1.0", "numpy": "2.4"})
    assert calibrant.diff(here, there).settings.rows() == [("samples", "4", "9"), ("version of numpy", "2.3", "2.4")]


def test_accuracy_is_compared_on_the_same_data_only(tmp_path):
    here = make_run(tmp_path / "a", {"evaluation": [evaluated(0.9, "same"), evaluated(1.0, "other", "fp32")]})
    there = make_run(tmp_path / "b", {"evaluation": [evaluated(0.75, "same"), evaluated(1.0, "another", "fp32")]})
    found = calibrant.diff(here, there).evaluation
    shown = found.select("variant", "metric", "data", "here", "there").rows()
    assert shown == [("fake_quant", "top1", "same.npz", 0.9, 0.75)]
    assert found["change"].to_list() == pytest.approx([-0.15])


def test_two_fits_of_one_run_are_compared(tmp_path):
    rows = {
        "layers": [layer(0, "a")],
        "quant_params": [data(0, sqnr_db=30.0), data(0, "hfmg", sqnr_db=31.0, algorithm="hfmg")],
    }
    run = make_run(tmp_path / "r", rows, fits=("default", "hfmg"))
    found = calibrant.diff(run, run, against_fit="hfmg")
    assert found.layers.select("change_db", "algorithm_here", "algorithm_there").rows() == [(1.0, "ifmr", "hfmg")]
    assert found.settings.rows() == [("fit", "default", "hfmg")]
    with pytest.raises(LayerNotFoundError, match="no fit 'hfm'; did you mean 'hfmg'"):
        calibrant.diff(run, run, fit="hfm")


def test_a_run_without_a_fit_says_how_to_make_one(tmp_path):
    run = make_run(tmp_path / "r", {}, fits=())
    with pytest.raises(EmptyDataError, match=r"no fit yet; make one with: calibrant fit .*r$"):
        calibrant.diff(run, run)


RANKED = pl.DataFrame(
    [
        ("/a/very/long/name/of/a/layer/that/goes/on/and/on/Conv", 1.0, 20.0, None, "whole", 10.0),
        ("b", 2.5, None, None, "whole", 2.5),
    ],
    schema={
        "layer": pl.String,
        "error_percent": pl.Float64,
        "data_db": pl.Float64,
        "weight_db": pl.Float64,
        "ranked_by": pl.String,
        "ranked_percent": pl.Float64,
    },
    orient="row",
)


def test_bars_are_in_proportion_and_fit_the_width():
    lines = bar_table(RANKED, 80)
    assert all(len(line) <= 80 for line in lines)
    heads, _, worst, best = lines
    assert heads.split() == [
        "layer",
        "error",
        "%",
        "data_db",
        *BAR_HEADINGS["whole"][: len(worst) - heads.index("noise")].split(),
    ]
    assert worst.count("█") == 4 * best.count("█")
    assert "…" in worst
    assert best.split()[:2] == ["b", "2.50"]


def test_a_plain_terminal_gets_plain_characters():
    lines = bar_table(RANKED, 60, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert lines[2].count("#") == pytest.approx(4 * lines[3].count("#"), abs=2)


def test_a_bar_table_of_nothing_says_so():
    assert bar_table(RANKED.head(0), 80)[-1] == "(no rows)"


def test_what_one_run_does_not_tell_is_empty(tmp_path):
    here = make_run(tmp_path / "a", tables(a=20.0), versions={"calibrant": "0.1.0"})
    there = make_run(tmp_path / "b", tables(a=20.0), versions={})
    assert calibrant.diff(here, there).settings.rows() == [("version of calibrant", "0.1.0", None)]
