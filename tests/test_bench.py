"""The measurements run, on small inputs; their figures are for `just bench` alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(monkeypatch):
    """The bench's modules, which are no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import __main__ as command
    from bench import bars, contest, table

    return {"main": command.main, "bars": bars, "contest": contest, "table": table}


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


def small(tmp_path, *words):
    done = run("--size", "0.001", "--rounds", "1", "--out", str(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    (saved,) = tmp_path.glob("*.json")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    return rows, json.loads(saved.read_text())


def test_every_kernel_and_search_is_measured(tmp_path):
    rows, saved = small(tmp_path, "kernels", "searches")
    assert rows[0].startswith("| case | figure | measured | bar | met | calibrant | against | floor | threads |")
    names = {case["name"] for case in saved["cases"]}
    for kernel in (
        "histogram",
        "samples, channels and histogram",
        "channel maxima",
        "ARQ",
        "DMQ",
        "NUQ",
        "IFMR",
        "HFMG",
    ):
        assert {f"kernels/{kernel}/gaussian/{millions} M" for millions in (1, 8, 64)} <= names
    for kind in (
        "uniform bits",
        "one constant",
        "two alternating constants",
        "blocks of constants",
        "relu, 90 % zeros",
        "float16",
    ):
        assert f"kernels/histogram/{kind}/64 M" in names
    assert len(rows) - 1 == sum(len(case["figures"]) for case in saved["cases"])
    for case in saved["cases"]:
        assert all(figure["median"] >= 0 or "more than" in figure["name"] for figure in case["figures"])
        assert case["bytes_moved"] > 0
        assert case["floor_ms"] > 0


def test_captures_reports_and_memory_are_measured_without_any_model(tmp_path):
    rows, saved = small(tmp_path, "captures/", "stored/", "memory/", "reports/layers", "reports/compare_runs")
    figures = {figure["name"] for case in saved["cases"] for figure in case["figures"]}
    assert {
        "--keep stats, times the exposing session",
        "the same, beyond the first batch",
        "what --keep raw adds, times np.save",
    } <= figures
    assert {f"times faster than quantize_static {method}" for method in ("MinMax", "Entropy", "Percentile")} <= figures
    assert {"times pyarrow.dataset and the maximum", "peak of 32 batches, times that of 4"} <= figures
    assert len(rows) > 12
    assert set(saved["machine"]) >= {"cpu", "cores", "python", "numpy"}
    assert str(tmp_path) not in json.dumps(saved)


def test_the_list_names_each_case_once_and_measures_nothing(bench, capsys):
    assert bench["main"](["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert len(names) == len(set(names)) > 100
    assert {name.partition("/")[0] for name in names} == {
        "kernels", "searches", "cold start", "reports", "captures", "stored", "memory",
    }  # fmt: skip


def test_words_choose_and_none_that_matches_is_an_error(bench, capsys):
    assert bench["main"](["--list", "histogram/GAUSSIAN"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "kernels/histogram/gaussian/1 M"
    assert bench["main"](["nothing of that name"]) == 2
    assert "no case matches nothing of that name; --list names them" in capsys.readouterr().err


def test_a_case_that_fails_costs_no_other(bench, tmp_path, capsys, monkeypatch):
    import bench.__main__ as command

    contest = bench["contest"]

    def broken(_):
        raise ValueError("no such model")

    figures = (contest.Figure("milliseconds", contest.alone("ours"), "ms"),)
    cases = [
        contest.Case("a/broken", broken, figures),
        contest.Case("a/fine", lambda _: contest.Contest({"ours": list}), figures),
    ]
    monkeypatch.setattr(command, "chosen", lambda setting, words: iter(cases))
    assert command.main(["--json", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "case failed: a/broken: ValueError: no such model" in told.err
    assert [case["name"] for case in json.loads(told.out)["cases"]] == ["a/fine"]


def test_what_a_busy_machine_leaves_open_is_no_number(bench):
    from bench.captures import beyond_the_first_batch

    readings = {"stats": 40.0, "stats one batch": 22.0, "exposing": 20.0, "exposing one batch": 8.0}
    assert beyond_the_first_batch(readings) == 1.5
    unknown = beyond_the_first_batch({**readings, "stats": 20.0})
    assert unknown != unknown
    assert not bench["bars"].CAPTURE.is_met(unknown)


@pytest.fixture
def outcome(bench):
    """What a case measured: 12, 10 and 14 ms against 4 ms each."""
    contest = bench["contest"]
    figures = (
        contest.Figure("times np.max", contest.over("ours", "np.max"), bar=bench["bars"].at_most(2)),
        contest.Figure("milliseconds", contest.alone("ours"), "ms"),
    )
    readings = {"ours": (12.0, 10.0, 14.0), "np.max": (4.0, 4.0, 4.0)}
    return contest.Outcome("family/case", readings, ((3.0, 2.5, 3.5), (12.0, 10.0, 14.0)), 8_000_000, 1.5, 1, figures)


def test_a_row_has_median_spread_bar_and_floor(bench, outcome):
    assert list(bench["table"].rows(outcome)) == [
        "| family/case | times np.max | 3 x ± 17% | <= 2 | NO | 12 ± 17% | np.max 4 ± 0% | 1.50 ms (8 MB) | 1 |",
        "| family/case | milliseconds | 12 ms ± 17% | - | - | 12 ± 17% | np.max 4 ± 0% | 1.50 ms (8 MB) | 1 |",
    ]
    assert bench["table"].missed([outcome]) == ["bar missed: family/case: 3 x (times np.max), bar <= 2"]


def test_the_table_of_a_document_is_put_between_its_marks(bench, outcome, tmp_path):
    table, path = bench["table"], tmp_path / "performance.md"
    rows = (
        "| family/case | times np.max | 9 x ± 1% | <= 2 | NO |\n| other/case | times np.max | 1 x ± 1% | <= 2 | yes |"
    )
    path.write_text(f"before\n{table.BEGIN}\nold\n{table.SHORT}\n{rows}\n{table.END}\nafter\n")
    table.refresh([outcome], path)
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| family/case | times np.max | 3 x ± 17% | <= 2 | NO |" in lines
    assert lines[-3] == "| other/case | times np.max | 1 x ± 1% | <= 2 | yes |"  # was not measured
    assert sum("family/case" in line for line in lines) == 1
    assert sum(line.startswith("| case |") for line in lines) == 1
    assert "old" not in lines
    assert not any("milliseconds" in line for line in lines)  # no bar
    (tmp_path / "empty.md").write_text("nothing\n")
    with pytest.raises(ValueError, match=r"empty\.md: no lines '<!-- bench: begin -->'"):
        table.refresh([outcome], tmp_path / "empty.md")


def test_contestants_alternate_and_a_reading_is_taken_as_it_is(bench, tmp_path):
    contest, order = bench["contest"], []

    def prepare(_):
        return contest.Contest(
            {
                "ours": lambda: order.append("ours") or contest.Reading(6.0),
                "theirs": lambda: order.append("theirs") or contest.Reading(2.0),
            }
        )

    case = contest.Case("a/b", prepare, (contest.Figure("times", contest.over("ours", "theirs")),), rounds=2)
    found = contest.run(case, contest.Setting(1.0, tmp_path))
    assert order == ["ours", "theirs"] * 3  # one round untimed
    assert (found.values, found.floor_ms) == (((3.0, 3.0),), None)


def test_real_models_are_those_with_samples_the_largest_first(bench, tmp_path):
    from bench.models import find_models

    for name, size in (("small", 1), ("large", 9), ("alone", 5)):
        (tmp_path / f"{name}.onnx").write_bytes(bytes(size))
    data = tmp_path / "data"
    data.mkdir()
    for name in ("small", "large"):
        (data / f"{name}.npz").write_bytes(b"")
    assert [model.stem for model, _ in find_models(tmp_path, data)] == ["large", "small"]
    assert find_models(tmp_path, None) == find_models(None, None) == ()


@pytest.mark.parametrize(("at_most", "value", "met"), [(True, 2.0, True), (True, 2.1, False), (False, 1.9, False)])
def test_a_bar_is_a_limit_from_above_or_below(bench, at_most, value, met):
    bars = bench["bars"]
    assert (bars.at_most(2) if at_most else bars.at_least(2)).is_met(value) is met
