"""The command line: exit codes, what goes to stdout and stderr, and one clear line for each kind of bad input."""

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import models
import numpy as np
import onnx
import polars as pl
import pytest

from calibrant.cli import main as cli


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> str:
        return self.err.strip().splitlines()[-1]


@pytest.fixture
def calibrant(monkeypatch, capsys):
    """Run the command in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Outcome(0 if code is None else int(code), captured.out, captured.err)

    return run


@pytest.fixture
def model(tmp_path) -> Path:
    return models.save(models.conv_bn(), tmp_path / "small.onnx")


def input_shape(path: Path) -> tuple[str, list[int]]:
    graph = onnx.load(path).graph
    dims = graph.input[0].type.tensor_type.shape.dim
    return graph.input[0].name, [d.dim_value or 1 for d in dims][1:]


@pytest.fixture
def data(tmp_path, model) -> Path:
    name, shape = input_shape(model)
    path = tmp_path / "samples.npz"
    np.savez(path, **{name: np.random.default_rng(0).standard_normal((6, *shape), dtype=np.float32)})
    return path


@pytest.fixture
def done(calibrant, model, data, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    outcome = calibrant("run", model, "--data", data)
    assert outcome.code == 0, outcome.err
    return tmp_path / "small.run"


def test_run_names_its_files_as_absolute_paths_on_stdout(calibrant, model, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = calibrant("run", model, "--data", data, "--prefix", "deep/er/m", "--run", "a/b.run")
    assert outcome.code == 0, outcome.err
    lines = dict(line.split(": ", 1) for line in outcome.out.splitlines())
    low, high = map(float, lines.pop("output_sqnr_interval").split(" to "))
    assert 20 < low <= float(lines.pop("output_sqnr_db")) <= high
    assert list(lines) == ["run", "fake_quant_model", "deploy_model", "record", "quant_map", "config"]
    for path in lines.values():
        assert Path(path).is_absolute()
        assert Path(path).exists()
    assert lines["deploy_model"] == str(tmp_path / "deep/er/m_deploy_model.onnx")


def test_an_empty_base_name_gives_amcts_names(calibrant, model, data, tmp_path):
    out = tmp_path / "out"
    assert calibrant("run", model, "--data", data, "--prefix", f"{out}/", "--run", tmp_path / "r").code == 0
    assert {path.name for path in out.iterdir()} >= {"deploy_model.onnx", "fake_quant_model.onnx", "record.txt"}


def test_a_complete_run_is_reused_and_says_so(calibrant, done, model, data):
    before = (done / "tables/histograms.parquet").stat().st_mtime_ns
    assert calibrant("run", model, "--data", data).code == 0
    assert (done / "tables/histograms.parquet").stat().st_mtime_ns == before
    events = calibrant("sql", done, "select message from events where stage = 'capture'", "--format", "csv").out
    assert "capture skipped" in events


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--keep", "stats"], "keep is raw, asked for stats"),
        (["--fix-input", "nothing=1"], "the model has no input of that name"),
    ],
)
def test_other_options_on_an_existing_run_are_refused(calibrant, done, model, data, more, message):
    outcome = calibrant("run", model, "--data", data, *more)
    assert outcome.code == 1
    assert message in outcome.error


def test_other_data_on_an_existing_run_is_refused_and_restart_replaces_it(calibrant, done, model, data, tmp_path):
    name, shape = input_shape(model)
    other = tmp_path / "other.npz"
    np.savez(other, **{name: np.ones((3, *shape), np.float32)})
    outcome = calibrant("run", model, "--data", other)
    assert outcome.code == 1
    assert "samples.npz (6 samples) has other content; pass --restart to replace this run" in outcome.error
    assert calibrant("run", model, "--data", other, "--restart").code == 0
    assert calibrant("sql", done, "select count(*) from inputs", "--format", "csv").out.split()[1] == "3"


def test_another_model_on_an_existing_run_is_refused(calibrant, done, data, tmp_path):
    other = models.save(models.conv_relu(), tmp_path / "other.onnx")
    outcome = calibrant("run", other, "--data", data, "--run", done)
    assert outcome.code == 1
    assert "small.onnx has other content" in outcome.error or "unknown" in outcome.error


def test_a_folder_that_is_no_run_is_never_touched(calibrant, model, data, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "one.txt").write_text("keep me")
    for more in ([], ["--restart"]):
        outcome = calibrant("run", model, "--data", data, "--run", folder, *more)
        assert outcome.code == 1
        assert "left untouched" in outcome.error
    assert [path.name for path in folder.iterdir()] == ["one.txt"]


def test_an_incomplete_run_is_refused_with_the_advice(calibrant, done, model, data):
    text = (done / "run.json").read_text().replace('"complete": true', '"complete": false')
    (done / "run.json").write_text(text)
    outcome = calibrant("run", model, "--data", data)
    assert outcome.code == 1
    assert re.search("incomplete.*--restart", outcome.error)
    assert calibrant("run", model, "--data", data, "--restart").code == 0


def test_stages_alone_give_what_run_gives(calibrant, model, data, done, tmp_path):
    folder = tmp_path / "stages.run"
    for command in (
        ("capture", model, "--data", data, "--run", folder, "--batch-size", 2), ("fit", folder), ("export", folder), ("verify", folder),
    ):  # fmt: skip
        outcome = calibrant(*command)
        assert outcome.code == 0, outcome.err
    name = "export/small_record.txt"
    assert (folder / name).read_text() == (done / name).read_text()


def test_sql_formats(calibrant, done, tmp_path):
    query = "select 1 as a, 0.1::float as b, null::integer as c, 'x,\"y' as d"
    assert calibrant("sql", done, query, "--format", "csv").out == 'a,b,c,d\n1,0.1,,"x,""y"\n'
    assert json.loads(calibrant("sql", done, query, "--format", "json").out) == {
        "a": 1,
        "b": 0.1,
        "c": None,
        "d": 'x,"y',
    }
    assert calibrant("sql", done, query, "--format", "parquet", "-o", tmp_path / "q.parquet").code == 0
    assert pl.read_parquet(tmp_path / "q.parquet").columns == ["a", "b", "c", "d"]
    assert "no file" not in calibrant("sql", done, query).err
    assert (
        calibrant("sql", done, query, "--format", "parquet").error
        == "error: --format parquet: needs a file; pass -o FILE"
    )
    assert "did you mean 'json'" in calibrant("sql", done, query, "--format", "jsn").error
    assert "cannot be written" in calibrant("sql", done, query, "--format", "csv", "-o", tmp_path / "no/q.csv").error


def test_floats_in_csv_are_the_shortest_that_read_back(calibrant, done):
    rows = calibrant("sql", done, "select scale from quant_params", "--format", "csv").out.split()[1:]
    stored = calibrant_scales(done)
    assert [np.float32(row) for row in rows] == stored
    assert all(len(row) <= 15 for row in rows)


def calibrant_scales(done: Path) -> list[np.float32]:
    return [np.float32(v) for v in pl.read_parquet(done / "tables/quant_params.parquet")["scale"].to_list()]


def test_every_report_runs(calibrant, done):
    listed = calibrant("report", "--list").out
    titles = dict(line.split(": ", 1) for line in listed.splitlines())
    assert {"layers", "clip_rate", "range_samples"} <= set(titles)
    for name in titles:
        against = ["--against", done] if name == "compare_runs" else []
        outcome = calibrant("report", done, name, "--format", "csv", *against)
        assert outcome.code == 0, outcome.err
        assert calibrant("report", name, name, "--sql").out.startswith(f"-- {titles[name]}\n")
    assert "did you mean 'clip_rate'" in calibrant("report", done, "clip-rate").error
    assert calibrant("report").code == 2


def test_a_report_without_a_name_is_a_bar_table_worst_first(calibrant, done):
    lines = calibrant("report", done).out.splitlines()
    assert lines[0].split()[:3] == ["layer", "error", "%"]
    assert [line.split()[0] for line in lines[2:]] == pl.read_csv(
        StringIO(calibrant("report", done, "ranking", "--format", "csv").out)
    )["layer"].to_list()
    bars = [len(line) - len(line.rstrip("█▏▎▍▌▋▊▉")) for line in lines[2:]]
    assert bars == sorted(bars, reverse=True)
    assert bars[0] > 0


def test_an_html_report_is_written_and_what_cannot_be_one_is_refused(calibrant, done, tmp_path):
    outcome = calibrant("report", done, "-o", tmp_path / "report.html", "--against", done)
    assert outcome.out == f"report: {(tmp_path / 'report.html').resolve()}\n"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    error = calibrant("report", done, "layers", "-o", tmp_path / "x.html").error
    assert "report 'layers': an HTML page holds the whole run" in error
    assert "choose a writable file" in calibrant("report", done, "-o", tmp_path / "no" / "x.html").error
    assert not (tmp_path / "no").exists()


def test_runs_are_compared_in_three_tables_or_one_file(calibrant, done):
    out = calibrant("diff", done, done).out
    assert "What the runs were made from" in out
    assert "Layers, the greatest loss first" in out
    table = pl.read_csv(StringIO(calibrant("diff", done, done, "--format", "csv").out))
    assert set(table["change_db"]) == {0.0}
    assert "no fit 'other'" in calibrant("diff", done, done, "--fit", "other").error


def test_statements_are_read_from_stdin_where_no_query_is_given(calibrant, done, monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", StringIO("select 1 as one;\nselect *\nfrom nowhere;\n.format csv\nselect 2\nas two")
    )
    outcome = calibrant("sql", done)
    assert outcome.out == "one\n---\n  1\ntwo\n2\n"
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1
    assert "nowhere" in outcome.err
    assert "a bin of a tensor" in calibrant("sql", done, ".schema histograms").out
    assert calibrant("sql", done, "select count(*) as n from against.layers", "--against", done).out.split()[-1] > "0"


def test_layers_report_ranks_every_quantized_layer(calibrant, done):
    table = pl.read_csv(StringIO(calibrant("report", done, "--format", "csv").out))
    assert table["sqnr_db"].is_sorted()
    assert set(table["layer"]) == {"conv"} or table.height >= 1


def test_usage_errors_are_2(calibrant, tmp_path):
    assert calibrant("run").code == 2
    assert calibrant("nonsense").code == 2
    assert calibrant("run", "m.onnx", "--data", "x", "--keep", "everything").code == 2
    assert calibrant("export", "a.run", "--record", "r.txt", "--model", "m.onnx").code == 2
    assert calibrant("export", "a.run", "--model", "m.onnx").code == 2
    assert calibrant("export", "--record", "r.txt").code == 2
    assert calibrant("--help").code == 0


def test_traceback_is_shown_only_when_asked(model, tmp_path):
    command = [sys.executable, "-m", "calibrant", "run", str(tmp_path / "none.onnx"), "--data", "x.npz"]
    plain = subprocess.run(command, capture_output=True, text=True)
    assert plain.returncode == 1
    assert "Traceback" not in plain.stderr
    asked = subprocess.run([*command, "--traceback"], capture_output=True, text=True)
    assert asked.returncode == 1
    assert "Traceback" in asked.stderr


def broken_model(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BAD_MODELS = {
    "missing": (lambda tmp: tmp / "none.onnx", r"none\.onnx: no such file"),
    "text": (lambda tmp: broken_model(tmp / "t.onnx", b"hello"), r"t\.onnx: not an ONNX model"),
    "empty file": (lambda tmp: broken_model(tmp / "e.onnx", b""), r"e\.onnx"),
    "folder": (lambda tmp: tmp, "not a file|is a folder|no such file"),
    "no layers": (lambda tmp: models.save(models.if_model(), tmp / "if.onnx"), "no layer to quantize.*--fix-input"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models(calibrant, data, tmp_path, case):
    make, message = BAD_MODELS[case]
    outcome = calibrant("run", make(tmp_path), "--data", data, "--run", tmp_path / "r")
    assert outcome.code == 1
    assert re.search(message, outcome.error)
    assert not (tmp_path / "r").exists()


def save_npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def bad_data(kind: str, name: str, shape: list[int], tmp: Path) -> Path:
    good = np.ones((3, *shape), np.float32)
    spoiled = good.copy()
    spoiled.reshape(3, -1)[1, 0] = np.nan if kind == "nan" else np.inf
    arrays = {
        "unknown name": {"imput_" + name: good}, "dtype": {name: good.astype(np.float64)},
        "rank": {name: np.ones((3, 2), np.float32)}, "empty": {name: good[:0]}, "nan": {name: spoiled}, "inf": {name: spoiled},
        "extra": {name: good, "label": good},
    }  # fmt: skip
    return save_npz(tmp / "bad.npz", **arrays[kind])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("unknown name", "no input|unknown|not an input"),
        ("dtype", "float64.*float32|float32.*float64"),
        ("rank", "sample 0"),
        ("empty", "no samples"),
        ("nan", r"1 NaN.*sample 1|sample 1.*1 NaN"),
        ("inf", r"1 infinit.*sample 1|sample 1.*1 infinit"),
        ("extra", "label"),
    ],
)
def test_bad_data(calibrant, model, tmp_path, kind, message):
    name, shape = input_shape(model)
    outcome = calibrant("run", model, "--data", bad_data(kind, name, shape, tmp_path), "--run", tmp_path / "deep" / "r")
    assert outcome.code == 1
    assert re.search(message, outcome.error), outcome.error
    assert "bad.npz" in outcome.error
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('skip_layers: "con"', r"quant\.cfg:1:.*'con'"),
        ("activation_offset: true\nbatch_nun: 1", r"quant\.cfg:2:1.*batch_nun.*batch_num"),
        ("batch_num: 2", "batch_num 2.*16.*6|6 samples.*16"),
        ("common_config { ifmr_quantize { max_percentile: 0.3 } }", r"quant\.cfg:1:.*max_percentile"),
    ],
)
def test_bad_configurations(calibrant, model, data, tmp_path, text, message):
    config = tmp_path / "quant.cfg"
    config.write_text(text)
    outcome = calibrant("run", model, "--data", data, "--config", config, "--run", tmp_path / "r")
    assert outcome.code == 1
    assert re.search(message, outcome.error), outcome.error
    assert not (tmp_path / "r").exists()


def test_an_unwritable_folder(calibrant, model, data, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = calibrant("run", model, "--data", data, "--run", tmp_path / "file" / "r")
    assert outcome.code == 1
    assert "cannot make the run folder" in outcome.error
    outcome = calibrant("run", model, "--data", data, "--run", tmp_path / "r", "--prefix", tmp_path / "file" / "m")
    assert outcome.code == 1
    assert "cannot write to folder" in outcome.error


def test_batch_num_limits_the_samples_and_says_so(calibrant, model, data, tmp_path):
    config = tmp_path / "quant.cfg"
    config.write_text("batch_num: 2")
    run = tmp_path / "r"
    assert calibrant("run", model, "--data", data, "--config", config, "--batch-size", 2, "--run", run).code == 0
    assert calibrant("sql", run, "select count(*) from inputs", "--format", "csv").out.split()[1] == "4"
    message = calibrant(
        "sql", run, "select message from events where message like '%batch_num%'", "--format", "csv"
    ).out
    assert "6" in message
    assert "4" in message


def test_fail_on_turns_events_into_an_exit_code(calibrant, done):
    outcome = calibrant("fit", done, "--fail-on", "error")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("query", "form", "message"),
    [
        (
            "select [1, 2] as a",
            "csv",
            r"column 'a' of type List\(Int32\) has no text there; use --format json or parquet",
        ),
        ("select 'x'::blob as a", "csv", "column 'a' of type Binary has no text there; use --format parquet"),
        ("select ['x'::blob] as a", "json", r"column 'a' of type List\(Binary\) has no text there"),
    ],
)
def test_columns_without_a_text_form_are_refused(calibrant, done, query, form, message):
    outcome = calibrant("sql", done, query, "--format", form)
    assert outcome.code == 1
    assert re.search(message, outcome.error)


def test_an_output_that_is_a_folder_is_refused(calibrant, done):
    assert "is a folder; pass -o FILE" in calibrant("sql", done, "select 1", "-o", ".").error


def test_a_path_that_the_system_refuses_is_no_fault_of_calibrant(calibrant, model, data):
    error = calibrant("capture", model, "--data", data, "--run", "r" * 300).error
    assert "File name too long; use another place" in error
    assert "fault" not in error


@pytest.mark.parametrize("prefix", ["", ".", "..", "deep/.."])
def test_a_prefix_that_ends_in_a_folder_has_no_base_name(calibrant, done, tmp_path, monkeypatch, prefix):
    (tmp_path / "place/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "place")
    assert calibrant("export", done, "--prefix", prefix).code == 0
    assert (tmp_path / "place" / prefix / "deploy_model.onnx").is_file()
    assert calibrant("verify", done).code == 0


def test_a_linked_run_folder_is_replaced_behind_its_link(calibrant, model, data, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for more in ([], ["--restart"]):
        assert calibrant("capture", model, "--data", data, "--run", tmp_path / "link", *more).code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/run.json").is_file()
    assert not list(tmp_path.glob(".*partial"))


def test_a_forced_dialect_holds_to_the_export(calibrant, model, data, tmp_path):
    config = tmp_path / "quant.cfg"
    config.write_text(
        'override_layer_types { layer_type: "Conv2D" calibration_config { ifmr_quantize { asymmetric: false } } }'
    )
    run = tmp_path / "r"
    outcome = calibrant("run", model, "--data", data, "--config", config, "--run", run, "--dialect", "atc")
    assert outcome.code == 0, outcome.err
    decided = calibrant(
        "sql", run, "select distinct asymmetric_decided_by from plan where enabled", "--format", "csv"
    ).out
    assert "override_layer_types" in decided
    assert calibrant("export", run).code == 0


def test_plan_prints_few_columns_and_files_hold_all(calibrant, tmp_path):
    path = models.save(models.planted_outlier(), tmp_path / "m.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text(
        'activation_offset: false\nskip_layers: "conv1"\noverride_layer_configs { layer_name: "conv2" calibration_config '
        "{ hfmg_quantize { num_of_bins: 1024 asymmetric: true } arq_quantize { channel_wise: false } dmq_balancer { } } }\n"
    )
    done = calibrant("plan", path, "--config", config)
    heading, _, *rows = [re.split(" {2,}", line) for line in done.out.splitlines()]
    assert heading == ["layer", "op_type", "enabled", "data", "weight", "decided_by", "reason"]
    found = {row[0]: row[1:] for row in rows}
    assert found["conv1"][:3] == ["Conv", "no", "skip_layers"]
    assert found["conv2"][2:4] == ["hfmg 8 bits, offset, balanced 0.5", "arq 8 bits"]
    assert 'override_layer_configs "conv2"' in found["conv2"][4]
    assert found["conv3"][2:4] == ["ifmr 8 bits", "arq 8 bits a channel"]
    assert "--format csv" in done.err
    assert "num_of_bins" in calibrant("plan", path, "--config", config, "--format", "csv").out


def test_a_fit_tells_its_own_events_only(calibrant, model, data, tmp_path):
    run, config = tmp_path / "m.run", tmp_path / "quant.cfg"
    config.write_text("weight_offset: true")
    for _ in range(2):
        first = calibrant("run", model, "--data", data, "--run", run, "--config", config)
    assert "capture skipped" in first.err
    assert "weight_offset" in first.err
    other = calibrant("fit", run, "--name", "other", "--fail-on", "warn")
    assert other.code == 0
    assert "info:" not in other.err
    assert "weight_offset" not in other.err
    again = calibrant("fit", run, "--name", "other", "--config", config, "--fail-on", "warn")
    assert again.code == 1
    assert "fit 'other'" in again.err
