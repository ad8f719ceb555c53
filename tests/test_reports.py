"""Every shipped report on tables small enough to answer by hand, and on runs that lack what it may use."""

import math

import polars as pl
import pytest
from run_tables import data, layer, make_run, tensor

from calibrant.errors import ConfigError, LayerNotFoundError
from calibrant.stats.catalog import _SQL_TYPES
from calibrant.stats.report import list_reports, run_report
from calibrant.stats.tables import SCHEMAS

REPORTS = {report.name: report for report in list_reports()}


def rows(run, name, *columns, **options):
    return run_report(run, name, **options).select(columns).rows()


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_answers_on_a_run_without_rows(tmp_path, name):
    run = make_run(tmp_path / "r", {})
    against = run if REPORTS[name].is_comparison else None
    assert run_report(run, name, against=against).height == 0


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_has_a_title(name):
    assert REPORTS[name].query.startswith(f"-- {REPORTS[name].title}\n")
    assert len(REPORTS[name].title) > 20


def test_ranking_adds_the_errors_of_data_and_weight_and_puts_the_worst_first(tmp_path):
    # b: data 20 dB = 1 %, weight 8 * 0.01 / (4 + 4) = 1 % of the power: 2 % of the power, sqrt(0.02) = 14.142 % of the signal
    # a: data 40 dB alone: 1 % of the signal; c: one scale for both channels, (4 + 4) * 0.01 / (8 + 8) = 0.5 % of the power
    run = make_run(
        tmp_path / "r",
        {
            "layers": [layer(0, "a"), layer(1, "b"), layer(2, "c")],
            "weights": [{"layer_id": i, "channel": c, "n": 4, "sum_sq": 4.0 * i} for i in (1, 2) for c in (0, 1)],
            "quant_params": [
                data(0, sqnr_db=40.0, clip_rate=0.0),
                data(1, sqnr_db=20.0, clip_rate=0.25),
                *({"fit": "default", "layer_id": 1, "role": "weight", "channel": c, "mse": 0.01} for c in (0, 1)),
                {"fit": "default", "layer_id": 2, "role": "weight", "mse": 0.01},
            ],
        },
    )
    found = rows(run, "ranking", "layer", "error_percent", "sqnr_db", "data_db", "weight_db", "clip_rate")
    assert found == [
        ("b", 14.142, 16.99, 20.0, 20.0, 0.25),
        ("c", 7.071, 23.01, None, 23.01, None),
        ("a", 1.0, 40.0, 40.0, None, 0.0),
    ]


@pytest.mark.parametrize("channel", [0, None])
def test_the_weight_of_a_balanced_layer_is_measured_against_itself(tmp_path, channel):
    # As multiplied, its noise is 0.01 a value at 20 dB, so its signal 1 a value; the weight as in the model has 0.25 a value.
    tables = {
        "layers": [layer(0, "a")],
        "weights": [{"layer_id": 0, "channel": 0, "n": 4, "sum_sq": 1.0}],
        "quant_params": [
            data(0, sqnr_db=60.0),
            {"fit": "default", "layer_id": 0, "role": "weight", "channel": channel, "mse": 0.01, "sqnr_db": 20.0},
        ],
        "balance": [{"fit": "default", "layer_id": 0, "channel": 0, "factor": 0.5}],
    }
    run = make_run(tmp_path / "r", tables)
    assert rows(run, "ranking", "weight_db") == rows(run, "layers", "weight_db") == [(20.0,)]


def test_ranking_goes_by_the_first_view_that_all_layers_of_the_fit_have(tmp_path):
    def measured(view, *values):
        row = {"fit": "default", "view": view, "metric": "sqnr_db", "samples": 4}
        return [{**row, "layer_id": i, "value": v, "low": v - 1, "high": v + 1} for i, v in enumerate(values)]

    tables = {
        "layers": [layer(0, "a"), layer(1, "b")],
        "quant_params": [data(0, sqnr_db=10.0), data(1, sqnr_db=40.0)],
        "sensitivity": [*measured("whole", 35.0), *measured("isolated", 25.0, 20.0)],
    }
    columns = ("layer", "ranked_by", "ranked_percent", "isolated_db", "whole_db", "whole_low", "whole_high")
    partly = make_run(tmp_path / "r", tables)
    assert rows(partly, "ranking", *columns) == [
        ("b", "isolated", 10.0, 20.0, None, None, None),
        ("a", "isolated", 5.6234, 25.0, 35.0, 34.0, 36.0),
    ]
    tables["sensitivity"] += measured("whole", 35.0, 20.0)[1:]
    assert rows(make_run(tmp_path / "s", tables), "ranking", *columns[:3]) == [
        ("b", "whole", 10.0),
        ("a", "whole", 1.7783),
    ]
    tables["sensitivity"] = measured("whole", 20.0)
    unmeasured = rows(make_run(tmp_path / "t", tables), "ranking", *columns[:3])
    assert unmeasured == [("a", "data and weight", 31.6228), ("b", "data and weight", 1.0)]
    tables["sensitivity"] += measured("statistics", 40.0, 20.0)
    assert rows(make_run(tmp_path / "u", tables), "ranking", *columns[:3]) == [
        ("b", "statistics", 10.0),
        ("a", "statistics", 1.0),
    ]
    values = [("b", "isolated", 20.0), ("a", "isolated", 25.0), ("a", "whole", 35.0)]
    assert rows(partly, "sensitivity", "layer", "view", "value") == values


def test_evaluation_shows_every_variant(tmp_path):
    row = {"fit": "default", "metric": "top1", "samples": 10}
    values = {"fp32": 0.9, "fake_quant": 0.8}
    table = [{**row, "variant": variant, "value": value} for variant, value in values.items()]
    run = make_run(tmp_path / "r", {"evaluation": table})
    assert rows(run, "evaluation", "variant", "value") == [("fake_quant", 0.8), ("fp32", 0.9)]


def test_clip_gain_is_what_the_best_range_saves_against_the_narrowest_that_clips_nothing(tmp_path):
    # Range [-8, 8]. Candidates +-4 (best, loss 1), +-8 (loss 10: nothing clipped) and +-16 (loss 40): gain 10 log10(10 / 1) = 10 dB
    candidates = [(4.0, 1.0, True), (8.0, 10.0, False), (16.0, 40.0, False)]
    search = [
        {"fit": "default", "layer_id": 0, "tensor_id": 0, "algorithm": "ifmr", "candidate": i, "clip_min": -clip, "clip_max": clip,
         "scale": clip / 128, "loss": loss, "is_best": best}
        for i, (clip, loss, best) in enumerate(candidates)
    ]  # fmt: skip
    tables = {
        "layers": [layer(0, "a")], "tensors": [tensor(0, "t", -8.0, 8.0)], "search": search,
        "quant_params": [data(0, clip_rate=0.001)],
    }  # fmt: skip
    columns = ("layer", "clip_rate", "gain_db", "is_against_whole_range", "range_share")
    assert rows(make_run(tmp_path / "r", tables), "clip_gain", *columns) == [("a", 0.001, 10.0, True, 0.5)]
    # Balanced data is divided, so that the tensor's range is not the one: the widest stands for it, 10 log10(40 / 1).
    tables["balance"] = [{"fit": "default", "layer_id": 0, "channel": 0, "factor": 0.5}]
    assert rows(make_run(tmp_path / "b", tables), "clip_gain", *columns) == [("a", 0.001, 16.02, False, None)]
    del tables["balance"]
    # Where no candidate holds the whole range, the widest stands for it: 10 log10(10 / 1) again.
    tables["search"] = search[:2]
    tables["tensors"] = [tensor(0, "t", -9.0, 9.0)]
    assert rows(make_run(tmp_path / "s", tables), "clip_gain", "gain_db", "is_against_whole_range") == [(10.0, False)]


def test_channel_imbalance_is_the_greatest_maximum_over_the_median(tmp_path):
    run = make_run(
        tmp_path / "r",
        {
            "layers": [layer(0, "a")],
            "tensors": [tensor(0, "t", 0.0, 8.0), tensor(1, "u", 0.0, 1.0), tensor(2, "one", 0.0, 1.0)],
            "channels": [
                *({"tensor_id": 0, "channel": c, "abs_max": v} for c, v in enumerate((1.0, 2.0, 8.0))),
                *({"tensor_id": 1, "channel": c, "abs_max": v} for c, v in enumerate((0.0, 0.0, 1.0))),
                {"tensor_id": 2, "channel": 0, "abs_max": 1.0},
            ],
            "weights": [{"layer_id": 0, "channel": c, "abs_max": v} for c, v in enumerate((3.0, 1.0))],
        },
    )
    found = rows(run, "channel_imbalance", "name", "role", "imbalance", "greatest_channel", "channels")
    assert found == [("u", "data", math.inf, 2, 3), ("t", "data", 4.0, 2, 3), ("a", "weight", 1.5, 0, 2)]


def test_dead_and_constant_channels_are_told_apart(tmp_path):
    def channel(number, least, greatest, n=10):
        return {"tensor_id": 0, "channel": number, "min": least, "max": greatest, "n": n}

    run = make_run(
        tmp_path / "r",
        {
            "layers": [layer(0, "a")],
            "tensors": [tensor(0, "t", 0.0, 8.0)],
            "channels": [channel(0, 0.0, 0.0), channel(1, 2.0, 2.0), channel(2, 0.0, 1.0), channel(3, 0.0, 0.0), channel(4, 1.0, 1.0, 1)],
            "weights": [{"layer_id": 0, "channel": c, "min": 0.0, "max": 0.0, "n": 9} for c in range(14)],
        },
    )  # fmt: skip
    found = rows(run, "dead_channels", "name", "role", "kind", "still_channels", "channels", "which")
    assert found == [
        ("a", "weight", "dead", 14, 14, "0 1 2 3 4 5 6 7 8 9 10 11 …"),
        ("t", "data", "dead", 2, 5, "0 3"),
        ("t", "data", "constant", 1, 5, "1"),
    ]


def sample(number, least, greatest, total, tensor_id=0):
    return {"tensor_id": tensor_id, "sample": number, "n": 10, "min": least, "max": greatest, "sum": total}


def test_drift_compares_the_last_quarter_with_the_first(tmp_path):
    # 8 samples: quarters of 2. Maxima 1, 1, …, 5, 5 over a width of 10: drift 0.4. Means 0.1 to 0.8 rise evenly: trend 1.
    maxima = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 5.0, 5.0]
    steady = [sample(i, 0.0, 1.0, 5.0, tensor_id=1) for i in range(8)]
    rising = [sample(i, 0.0, top, float(i + 1)) for i, top in enumerate(maxima)]
    alone = [sample(0, 0.0, 1.0, 5.0, tensor_id=2), sample(-1, 0.0, 9.0, 5.0, tensor_id=2)]
    tensors = [tensor(0, "rising", 0.0, 10.0), tensor(1, "steady", 0.0, 1.0), tensor(2, "one sample", 0.0, 1.0)]
    run = make_run(tmp_path / "r", {"tensors": tensors, "samples": rising + steady + alone})
    first, second = rows(
        run, "sample_drift", "tensor", "drift", "trend", "mean_first", "mean_last", "max_first", "max_last"
    )
    assert first[:3] == ("rising", 0.4, 1.0)
    assert first[3:] == pytest.approx((0.15, 0.75, 1.0, 5.0))
    assert second[:3] == ("steady", 0.0, None)


def test_samples_that_set_ranges_are_counted_only_where_they_do_so_alone(tmp_path):
    run = make_run(
        tmp_path / "r",
        {
            "inputs": [{"sample": s, "key": f"k{s}", "source": "x.npz", "position": s} for s in range(3)],
            "samples": [
                sample(0, -1.0, 1.0, 0.0), sample(1, -1.0, 2.0, 0.0), sample(2, -0.5, 5.0, 0.0),
                sample(0, -1.0, 3.0, 0.0, 1), sample(1, -2.0, 3.0, 0.0, 1), sample(2, -3.0, 1.0, 0.0, 1),
            ],
        },
    )  # fmt: skip
    assert rows(run, "sample_extremes", "sample", "source", "sets_max", "sets_min", "tensors") == [
        (2, "x.npz", 1, 1, 2)
    ]


def join(node, index, tensor_id=None, seen="itself", op="Concat", first=None, channels=None):
    known = (
        {}
        if tensor_id is None
        else {"tensor_id": tensor_id, "seen": seen, "first_channel": first, "channels": channels}
    )
    return {
        "node": node,
        "op_type": op,
        "input_index": index,
        "value": f"{node}.{'y' if index is None else index}",
        **known,
    }


def test_joins_of_ranges_that_differ_more_than_20_times(tmp_path):
    tensors = [tensor(0, "wide", -50.0, 10.0), tensor(1, "narrow", -1.0, 2.0), tensor(2, "negative", -40.0, 1.0)]
    channels = [{"tensor_id": 0, "channel": c, "min": -top, "max": top} for c, top in enumerate((50.0, 10.0, 1.0, 2.0))]
    run = make_run(
        tmp_path / "r",
        {
            "tensors": tensors,
            "channels": channels,
            "joins": [
                join("whole", 0, 0), join("whole", 1, 1), join("whole", None),  # 50 / 2 = 25
                join("relu", 0, 2, "before Relu"), join("relu", 1, 0),  # the Relu leaves 1 of 40: 50 / 1
                join("near", 0, 0), join("near", 1, 2),  # 50 / 40
                join("parts", 0, 0, first=0, channels=2), join("parts", 1, 0, first=2, channels=2),  # 50 / 2
                join("unknown", 0), join("unknown", 1, 0),
                join("add", 0, op="Add"), join("add", 1, 1, op="Add"), join("add", None, 0, op="Add"),  # at least 50 - 2
            ],
        },
    )  # fmt: skip
    found = rows(run, "join_ranges", "node", "ratio", "is_bound", "wide_input", "wide", "narrow_input", "narrow")
    assert found == [
        ("relu", 50.0, False, "relu.1", 50.0, "relu.0", 1.0),
        ("parts", 25.0, False, "parts.0", 50.0, "parts.1", 2.0),
        ("whole", 25.0, False, "whole.0", 50.0, "whole.1", 2.0),
        ("add", 24.0, True, "add.0", 48.0, "add.1", 2.0),
    ]


def test_biases_outside_int32_are_told_with_what_they_would_need(tmp_path):
    # scale_d 2^-20, weight maximum 127 * 2^-20, so the weight asks for 2^-20: codes of bias * 2^40; 2^31 codes hold 2^-9.
    scale = 2.0**-20
    weight = {"fit": "default", "role": "weight", "bits": 8}
    run = make_run(
        tmp_path / "r",
        {
            "layers": [layer(0, "a"), layer(1, "b")],
            "weights": [{"layer_id": i, "channel": c, "abs_max": 127 * scale} for i in (0, 1) for c in (0, 1)],
            "biases": [
                {"layer_id": 0, "channel": 0, "value": 2.0**-8}, {"layer_id": 0, "channel": 1, "value": 2.0**-12},
                {"layer_id": 1, "channel": 0, "value": -(2.0**-9) * 0.75}, {"layer_id": 1, "channel": 1, "value": 0.0},
            ],
            "quant_params": [
                data(0, scale=scale), data(1, scale=scale),
                {**weight, "layer_id": 0, "channel": 0, "scale": 4 * scale, "decided_by": "bias range"},
                {**weight, "layer_id": 0, "channel": 1, "scale": scale, "decided_by": "arq"},
                {**weight, "layer_id": 1, "scale": scale, "decided_by": "arq"},
            ],
        },
    )  # fmt: skip
    found = rows(run, "bias_range", "layer", "channel", "int32_wanted", "int32_used", "is_raised")
    assert found == [("a", 0, 2.0, 0.5, True), ("b", 0, 0.75, 0.75, False)]


def test_fits_of_both_algorithms_are_compared_where_they_disagree(tmp_path):
    run = make_run(
        tmp_path / "r",
        {
            "layers": [layer(0, "a"), layer(1, "b")],
            "tensors": [tensor(0, "t", -8.0, 8.0), tensor(1, "u", -1.0, 1.0)],
            "quant_params": [
                data(0, scale=0.5, sqnr_db=30.0), data(1, scale=0.5, sqnr_db=30.0),
                data(0, "h", algorithm="hfmg", scale=0.25, sqnr_db=33.5), data(1, "h", algorithm="hfmg", scale=0.52, sqnr_db=31.0),
                data(0, "h16", algorithm="hfmg", scale=0.01, sqnr_db=70.0, bits=16),
            ],
        },
        fits=("default", "h", "h16"),
    )  # fmt: skip
    found = rows(run, "algorithms_disagree", "layer", "scale_ratio", "hfmg_gain_db", "ifmr_fit", "hfmg_fit")
    assert found == [("a", 0.5, 3.5, "default", "h")]


def test_two_runs_are_compared_layer_by_layer(tmp_path):
    def tables(sqnr, *names):
        return {
            "layers": [layer(i, name) for i, name in enumerate(names)],
            "tensors": [tensor(i, name, -1.0, 1.0) for i, name in enumerate(names)],
            "quant_params": [data(i, scale=0.5, sqnr_db=sqnr) for i in range(len(names))],
        }

    here, there = (
        make_run(tmp_path / "r", tables(30.0, "a", "old")),
        make_run(tmp_path / "s", tables(28.0, "new", "a")),
    )
    found = rows(here, "compare_runs", "layer", "quantized_in", "change_db", "scale_ratio", against=there)
    assert found == [("new", "only there", None, None), ("old", "only here", None, None), ("a", "both", -2.0, 1.0)]


def test_reports_of_one_and_of_two_runs_are_not_mistaken(tmp_path):
    run = make_run(tmp_path / "r", {})
    with pytest.raises(
        ConfigError, match=r"report 'compare_runs' compares two runs; pass the second one with --against RUN2"
    ):
        run_report(run, "compare_runs")
    with pytest.raises(ConfigError, match=r"report 'layers' asks one run; with --against there is: compare_runs"):
        run_report(run, "layers", against=run)


def test_columns_that_an_earlier_version_did_not_write_are_null(tmp_path):
    run = make_run(tmp_path / "r", {})
    old = pl.DataFrame({"fit": ["default"], "variant": ["fp32"], "metric": ["top1"], "value": [0.5], "samples": [4]})
    old.write_parquet(run.path / "tables" / "evaluation.parquet")
    assert rows(run, "evaluation", "variant", "value", "low") == [("fp32", 0.5, None)]
    found = run.sql("select * from evaluation").schema
    assert dict(found) == dict(SCHEMAS["evaluation"])


@pytest.mark.parametrize(
    "kind", sorted({dtype for schema in SCHEMAS.values() for dtype in schema.values()}, key=str), ids=str
)
def test_every_type_of_a_table_can_be_null_in_sql(kind):
    assert type(kind) in _SQL_TYPES


def test_rows_of_one_fit_are_kept_and_an_unknown_fit_names_the_nearest(tmp_path):
    run = make_run(
        tmp_path / "r",
        {"layers": [layer(0, "a")], "quant_params": [data(0, sqnr_db=1.0), data(0, "hfmg", sqnr_db=2.0)]},
        fits=("default", "hfmg"),
    )
    assert rows(run, "ranking", "fit", "data_db", fit="hfmg") == [("hfmg", 2.0)]
    with pytest.raises(LayerNotFoundError, match=r"no fit 'hfm'; did you mean 'hfmg'\?; fits: default, hfmg"):
        run_report(run, "ranking", "hfm")
