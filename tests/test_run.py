"""The run directory: what is a run, what is refused, tables, fits side by side, events."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from calibrant.errors import LayerNotFoundError, RunError, SchemaError
from calibrant.stats import run as run_module
from calibrant.stats.events import Event
from calibrant.stats.run import FitRecord, Run, RunInfo, create_run, open_run, remove_run
from calibrant.stats.tables import SCHEMAS, empty_frame, layers_frame

A_FIT = FitRecord("quant.cfg", "batch_num: 1", "00", False)


def make_info(**changes):
    fields = {
        "model": "m.onnx", "model_name": "m", "model_hash": "a", "data": "x.npz", "keep": "stats", "do_fusion": True,
        "skip_fusion_layers": (), "fix_input": {}, "versions": {}, "cpu": "test", "complete": True,
    }  # fmt: skip
    return RunInfo(**{**fields, **changes})


def plan_rows(fit, layers):
    row = dict.fromkeys(SCHEMAS["plan"])
    return pl.DataFrame([{**row, "fit": fit, "layer_id": i} for i in layers], schema=SCHEMAS["plan"])


def test_run_json_is_read_back_equal(tmp_path):
    fits = {"default": FitRecord("quant.cfg", "batch_num: 1", "00", False, "/out/m")}
    run = create_run(tmp_path / "r", make_info(fits=fits, skip_fusion_layers=("Conv_1",), seconds={"capture": 0.5}))
    assert open_run(tmp_path / "r").info == run.info


def test_every_table_is_empty_at_first_and_has_its_columns(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    for table, schema in SCHEMAS.items():
        assert run.read(table).schema == schema
        assert run.sql(f'select * from "{table}"').columns == list(schema)


def test_a_fit_is_replaced_and_others_stay(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    rest = {
        "search": empty_frame("search"),
        "quant_params": empty_frame("quant_params"),
        "balance": empty_frame("balance"),
    }
    run.replace_fit("default", {"plan": plan_rows("default", [0, 1]), **rest})
    run.replace_fit("hfmg", {"plan": plan_rows("hfmg", [0]), **rest})
    run.replace_fit("default", {"plan": plan_rows("default", [2]), **rest})
    assert run.read("plan").select("fit", "layer_id").rows() == [("default", 2), ("hfmg", 0)]


def test_events_of_a_stage_are_replaced_for_their_fit_only(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    run.replace_events(["capture"], None, [Event("capture", "info", "one")])
    run.replace_events(["fit"], "a", [Event("fit", "warn", "two", layer="Conv_0", sample=3)])
    run.replace_events(["fit"], "b", [Event("fit", "warn", "three")])
    run.replace_events(["fit"], "a", [Event("fit", "warn", "four")])
    assert sorted(run.read("events")["message"]) == ["four", "one", "three"]


def test_rows_of_other_columns_are_refused(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    with pytest.raises(
        SchemaError, match=r"table inputs: columns missing \['key', 'position', 'source'\], unknown \['keys'\]"
    ):
        run.write("inputs", pl.DataFrame({"sample": [0], "keys": ["x"]}))


def test_a_run_folder_is_not_made_over_something_else(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="not a run of calibrant; choose another --run folder"):
        create_run(tmp_path / "r", make_info())
    with pytest.raises(RunError, match="not a run of calibrant; it is not deleted"):
        remove_run(tmp_path / "r")
    assert (tmp_path / "r" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("place", ["update_info", "_write_atomically", "after"])
def test_an_interrupt_while_a_run_folder_is_made_leaves_nothing(tmp_path, monkeypatch, stands, place):
    folder = tmp_path / "a" / "r"
    if stands:
        folder.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    real = Run.update_info

    def interrupted(*given, **changes):
        if place == "after":
            real(*given, **changes)
        raise KeyboardInterrupt

    if place == "_write_atomically":
        monkeypatch.setattr(run_module, place, interrupted)
    else:
        monkeypatch.setattr(Run, "update_info", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_run(folder, make_info())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such folder; pass the folder that"),
        (lambda path: path.mkdir(), r"not a run of calibrant \(no run.json\)"),
        (lambda path: create_run(path, make_info(complete=False)), "the run is incomplete.*run again with --restart"),
        (
            lambda path: (path.mkdir(), (path / "run.json").write_text("{")),
            "run.json: not a run description of calibrant|schema",
        ),
        (lambda path: (path.mkdir(), (path / "run.json").write_text('{"schema_version": 99}')), "schema version 99"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text('{"schema_version": 1}')), "not a run description"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text("[]")), "not a run description"),
    ],
)
def test_what_is_no_complete_run_is_refused(tmp_path, make, message):
    make(tmp_path / "r")
    with pytest.raises(RunError, match=message):
        open_run(tmp_path / "r")


def test_unknown_table_and_tensor_name_the_nearest(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    with pytest.raises(LayerNotFoundError, match="no table 'tensor'; did you mean 'tensors'"):
        run.scan("tensor")
    with pytest.raises(LayerNotFoundError, match="no captured tensor 'x'"):
        run.captures("x")


def test_sql_errors_are_one_line_and_name_what_is_wrong(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    with pytest.raises(SchemaError, match="tensorz") as caught:
        run.sql("select * from tensorz")
    assert "\n" not in str(caught.value)
    assert run.sql("create table t as select 1 as a; select a from t").rows() == [(1,)]


def test_run_json_is_plain_json(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    assert json.loads((run.path / "run.json").read_text())["model_name"] == "m"
    assert not list(run.path.glob(".*partial"))


@pytest.mark.parametrize("name", ["[a]", "a*b?", "it's", "sample=3", "tensor_id=9"])
def test_a_run_may_lie_in_a_folder_of_any_name(tmp_path, name):
    run = create_run(tmp_path / name / "r", make_info())
    run.write("layers", layers_frame([]))
    run.write("inputs", pl.DataFrame({"sample": [7], "key": ["k"], "source": ["s"], "position": [0]}))
    assert run.read("inputs")["sample"].to_list() == [7]
    assert run.sql("select * from inputs").row(0) == (7, "k", "s", 0)


@pytest.mark.parametrize("query", ["", ";", "-- nothing"])
def test_an_empty_query_is_an_error(tmp_path, query):
    run = create_run(tmp_path / "r", make_info())
    with pytest.raises(SchemaError, match="asks nothing; pass a statement"):
        run.sql(query)


def test_a_type_that_polars_has_not_is_an_error_of_the_query(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    with pytest.raises(SchemaError, match="a type that Polars has not"):
        run.sql("select interval 1 day as i")


def test_a_table_that_cannot_be_written_is_named(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    (run.path / "tables/events.parquet").mkdir()
    with pytest.raises(RunError, match=r"events\.parquet: cannot be written .* free space on its disk"):
        run.write("events", empty_frame("events"))
    assert [path.name for path in (run.path / "tables").iterdir()] == ["events.parquet"]


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calibrant.stats.run._write_atomically", full)
    with pytest.raises(RunError, match="cannot make the run folder"):
        create_run(tmp_path / "deep" / "r", make_info())
    assert list(tmp_path.iterdir()) == []


def test_two_that_opened_the_run_before_either_wrote_undo_nothing_of_each_other(tmp_path):
    one = create_run(tmp_path / "r", make_info())
    other = open_run(one.path)
    one.update_info(fits={"a": A_FIT, "b": A_FIT}, seconds={"fit": 1.0})
    other.update_info(fits={"c": A_FIT}, seconds={"export": 2.0})
    one.update_info(fits={"b": A_FIT})  # takes "a" out, and knows nothing of "c"
    found = open_run(one.path).info
    assert sorted(found.fits) == ["b", "c"]
    assert found.seconds == {"fit": 1.0, "export": 2.0}


def test_writers_of_one_table_take_turns(tmp_path):
    path = create_run(tmp_path / "r", make_info()).path

    def write(layer):
        run = open_run(path)
        for view in ("statistics", "isolated", "whole"):
            row = {
                **dict.fromkeys(SCHEMAS["sensitivity"]),
                "fit": "a",
                "layer_id": layer,
                "view": view,
                "metric": "mse",
            }
            run.replace_sensitivity(pl.DataFrame([row], schema=SCHEMAS["sensitivity"]))
            run.replace_events(["sensitivity"], f"fit {layer}", [Event("sensitivity", "info", view)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    run = open_run(path)
    assert run.read("sensitivity").height == 8 * 3
    assert run.read("events").height == 8


@pytest.mark.parametrize(
    ("table", "advice"), [("sensitivity", "delete its file"), ("layers", "capture the run again with --restart")]
)
def test_a_damaged_table_says_how_to_get_it_again(tmp_path, table, advice):
    run = create_run(tmp_path / "r", make_info())
    run.write(table, empty_frame(table))
    (run.path / "tables" / f"{table}.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=rf"table '{table}' cannot be read .*; {advice}$"):
        run.read(table)


def test_a_run_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    run = create_run(tmp_path / "r", make_info())
    run.require_writable()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # a superuser may write anywhere
    with pytest.raises(RunError, match="cannot be written to, and its tables take what is measured; copy the run"):
        run.require_writable()


def test_a_dropped_fit_leaves_nothing(tmp_path):
    run = create_run(tmp_path / "r", make_info())
    run.update_info(fits={"a": A_FIT, "b": A_FIT})
    for fit in ("a", "b"):
        row = {**dict.fromkeys(SCHEMAS["sensitivity"]), "fit": fit, "layer_id": 0, "view": "whole", "metric": "mse"}
        run.replace_sensitivity(pl.DataFrame([row], schema=SCHEMAS["sensitivity"]))
        run.replace_events(["fit"], fit, [Event("fit", "info", "made")])
    run.drop_fit("a", ["fit"])
    assert (list(run.info.fits), list(open_run(run.path).info.fits)) == (["b"], ["b"])
    assert run.read("sensitivity")["fit"].to_list() == run.read("events")["fit"].to_list() == ["b"]
