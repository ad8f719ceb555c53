"""The HTML report as a file: self-contained, small, whole, and safe whatever a model calls its layers. test_browser opens it."""

import base64
import hashlib
import html
import json
import re

import numpy as np
import pytest
from report_runs import report_run
from run_tables import data, layer, make_run, tensor

import calibrant
from calibrant.errors import ExportError
from calibrant.proto.simple_config import QuantConfig, canonical_text
from calibrant.report_page.content import layer_sheets, page_content
from calibrant.report_page.fit_details import CANDIDATES, FitDetails
from calibrant.report_page.page import page_text
from calibrant.report_page.summary import run_summary
from calibrant.stats.run import FitRecord

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "{{library}}",
    "<!--<script>",
    "\u2028 & \"quoted\" 'name'",
    "模型/层",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return report_run(tmp_path_factory.mktemp("runs") / "r", [*HOSTILE, *(f"/block.{i}/Conv" for i in range(4))])


@pytest.fixture(scope="module")
def text(run):
    return page_text(run)


def scripts(text):
    """(attributes, content) of every script element, as HTML reads them: up to the first end tag."""
    return re.findall(r"<script([^>]*)>(.*?)</script", text, re.DOTALL | re.IGNORECASE)


def test_the_page_asks_for_nothing(text):
    markup = re.sub(r"<script.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(?:src|href)\s*=\s*(?![\"']?#)", markup)
    assert "@import" not in text[: text.index("</style>")]
    assert "url(" not in text[: text.index("</style>")]


def test_the_policy_lets_only_the_page_s_own_two_scripts_run(text):
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    running = [content for attributes, content in scripts(text) if "application/json" not in attributes]
    hashes = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in running]
    assert len(running) == 2
    sources = " ".join(f"'sha256-{one}'" for one in hashes)
    assert f"script-src {sources};" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy


def test_hostile_names_stay_data(run, text):
    found = scripts(text)
    assert len(found) == 3 + 9  # the content, two scripts, and nine layers
    names = [
        html.unescape(re.search(r'data-layer="([^"]*)"', attributes)[1])
        for attributes, _ in found
        if "data-layer" in attributes
    ]
    assert names[:5] == list(HOSTILE)
    content = json.loads(next(body for attributes, body in found if 'id="content"' in attributes))
    assert list(content["run"]["layers"])[:5] == list(HOSTILE)
    before_scripts = text[: text.index('id="content"')]
    assert "<img src=x" not in text
    assert "<!--" not in before_scripts


def test_the_page_is_one_small_file(text):
    assert len(text.encode()) < 2_000_000


def test_a_sheet_holds_what_the_tables_say(run):
    sheets = dict(layer_sheets(run, None))
    sheet = sheets["/block.0/Conv"]
    assert sum(sheet["histogram"]["counts"]) == sheet["histogram"]["n"] == 4000
    assert len(sheet["histogram"]["counts"]) == 200
    assert sheet["data_channels"]["channels"] == 24
    fit = sheet["fits"]["default"]
    assert fit["loss"]["ratio"][fit["loss"]["best"]] == 1
    assert max(fit["loss"]["ratio"]) == 2  # 1 + ((0 - 30) / 30)^2
    assert fit["plan"][1] == ["data", "data_algorithm ifmr, data_bits 8", "default"]
    assert fit["measured"] == [["whole", "sqnr_db", 25, 19, 21, 4]]
    assert "measured" not in sheet["fits"]["hfmg"]
    inputs = page_content(run, None)["run"]["inputs"]
    assert inputs[1] == ["hfmg", "</td>Add", 1, "hfmg", 8, 0.125, -3, -15.62, 16.25, 33.25]


def test_a_page_of_two_runs_holds_both_and_layers_that_one_of_them_lacks(tmp_path):
    here, there = report_run(tmp_path / "a", ["a", "gone"]), report_run(tmp_path / "b", ["new", "a"])
    sheets = dict(layer_sheets(here, there))
    assert list(sheets) == ["a", "gone", "new"]
    assert "against" in sheets["a"]
    assert "against" not in sheets["gone"]
    assert sheets["new"]["fits"] == {}
    content = page_content(here, there)
    assert [row["layer"] for row in content["against"]["rows"]["default"]] == ["new", "a"]


def test_numbers_that_json_has_not_are_left_out(tmp_path):
    tables = {
        "layers": [layer(0, "exact"), layer(1, "constant"), layer(2, "empty")],
        "tensors": [tensor(0, "t", 0.0, 1.0, n_zero=0, n_nan=0, n_inf=0, n=0), tensor(1, "u", 2.0, 2.0, n_zero=0, n_nan=0, n_inf=0, n=0),
                    tensor(2, "v", None, None, n_zero=0, n_nan=5, n_inf=0, n=5)],
        "histograms": [], "extremes": [],
        "quant_params": [data(0, sqnr_db=np.inf, scale=1.0, mse=0.0), data(1, sqnr_db=-np.inf, scale=1.0), data(2, sqnr_db=None)],
        "search": [{"fit": "default", "layer_id": 0, "tensor_id": 0, "clip_min": -1.0, "clip_max": 1.0, "loss": 0.0, "is_best": True}],
        "evaluation": [{"fit": "default", "variant": "fake_quant", "metric": "sqnr_db", "output": name, "value": value, "samples": 1}
                       for name, value in {"a": np.inf, "b": np.nan, "c": -np.inf, "d": None}.items()],
    }  # fmt: skip
    run = make_run(tmp_path / "r", tables)
    content = page_content(run, None)
    json.dumps(content, allow_nan=False)
    found = {row["output"]: row["value"] for row in content["run"]["evaluation"]}
    assert found == {"a": "infinite", "b": "not a number", "c": "minus infinite", "d": None}
    assert all("histogram" not in sheet for _, sheet in layer_sheets(run, None))
    json.dumps(dict(layer_sheets(run, None)), allow_nan=False)


def test_the_head_says_where_the_configuration_came_from(tmp_path):
    fits = {
        "default": FitRecord(None, canonical_text(QuantConfig()), "00", exact=False),
        "python": FitRecord(None, canonical_text(QuantConfig(batch_num=1)), "01", exact=False),
        "file": FitRecord("/etc/quant.cfg", "batch_num: 1", "02", exact=True),
    }
    run = make_run(tmp_path / "r", {}, fits=(), samples=9)
    run.update_info(fits=fits)
    summary = run_summary(run)
    sources = {name: fit["source"] for name, fit in summary["fits"].items()}
    assert sources == {"default": "AMCT's defaults", "python": "given in Python", "file": "/etc/quant.cfg"}
    assert summary["samples"] == 9


def test_data_that_python_gave_is_not_called_by_its_type(tmp_path):
    rows = [
        {"fit": "default", "variant": "fp32", "metric": "top1", "value": 1.0, "samples": 2, "data": text}
        for text in ("list", "/x/list")
    ]
    summary = run_summary(make_run(tmp_path / "r", {"evaluation": rows}, data="list"))
    assert summary["data"] is None
    assert ["Data", "given in Python"] in summary["facts"]
    assert sorted(row["data"] for row in summary["evaluation"]) == ["/x/list", "given in Python"]
    assert run_summary(make_run(tmp_path / "s", {}, data="/x/list"))["data"] == "/x/list"


def test_a_run_without_a_fit_has_a_page(tmp_path):
    tables = {"layers": [layer(0, "a")], "tensors": [], "histograms": [], "extremes": []}
    assert page_text(make_run(tmp_path / "r", tables, fits=())).startswith("<!doctype html>")


def test_long_searches_are_thinned_and_keep_their_best(tmp_path):
    rows = [
        {"fit": "default", "layer_id": 0, "tensor_id": 0, "algorithm": "hfmg", "candidate": c, "clip_min": 0.0, "clip_max": 1.0 + c,
         "loss": 2.0 if c == 777 else 5.0, "is_best": c == 777, "exact": True}
        for c in range(1001)
    ]  # fmt: skip
    curve = FitDetails(make_run(tmp_path / "r", {"search": rows})).of("default", 0)["loss"]
    assert len(curve["width"]) <= CANDIDATES + 1
    assert curve["width"][curve["best"]] == 778
    assert curve["ratio"][curve["best"]] == 1


def test_a_page_is_written_whole_or_not_at_all(run, tmp_path):
    with pytest.raises(ExportError, match=r"is a folder; pass -o FILE.html"):
        calibrant.write_report(run, tmp_path)
    with pytest.raises(ExportError, match="cannot be written"):
        calibrant.write_report(run, tmp_path / "nowhere" / "r.html")
    assert list(tmp_path.iterdir()) == []
    assert calibrant.write_report(run, tmp_path / "r.html", against=run).stat().st_size > 900_000
