"""Models side by side on the same data: every number of the tables from onnxruntime's outputs and plain Python."""

import shutil
import sys
import weakref

import models
import naive_metrics as naive
import numpy as np
import onnx
import pytest

import calibrant
from calibrant.cli import main as cli
from calibrant.errors import CalibrantError, ConfigError, DataError, LayerNotFoundError, ModelError, ShapeError
from calibrant.evaluation import evaluate, evaluate_models, evaluation, optimizations_note
from calibrant.export.cpu import has_vnni
from calibrant.export.outputs import OutputRunner
from calibrant.ingest.model import ModelInput

X4 = [ModelInput("x", np.dtype("float32"), ("N", 4), 0)]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run of the Gemm model with one exported fit and one that is not."""
    folder = tmp_path_factory.mktemp("evaluation")
    model = models.save(models.gemm(), folder / "m.onnx")
    run = calibrant.run(
        model, [{"x": models.normal(64, 4)}], run=folder / "r", keep="stats", prefix=folder / "out" / "m"
    )
    calibrant.fit(run, name="other")
    return run


@pytest.fixture
def run(template, tmp_path):
    """A copy of the run, so that each test starts with the same tables."""
    return calibrant.open_run(shutil.copytree(template.path, tmp_path / "r"))


@pytest.fixture
def x():
    return models.normal(40, 4, seed=9)


def rows_of(path, x):
    return [models.run(path, {"x": row[None]})[0] for row in x]


def value(frame, **where):
    return frame.filter(**where).row(0, named=True)


def fake_quant(run):
    return f"{run.info.fits['default'].prefix}_fake_quant_model.onnx"


def test_every_number_is_that_of_plain_python(run, x):
    labels = np.arange(40) % 6
    found = evaluate(
        run, [{"x": x}], labels=labels, metrics=["top1", "top5", "sqnr", "agreement", "mse"], fits=["default"]
    )
    reference, output = rows_of(run.prepared_file, x), rows_of(fake_quant(run), x)
    expected = {
        "top1": naive.top(output, labels, 1),
        "top5": naive.top(output, labels, 5),
        "sqnr_db": naive.sqnr_db(reference, output),
        "agreement": naive.agreement(reference, output),
        "mse": naive.mean([naive.mse(a, b) for a, b in zip(reference, output, strict=True)]),
    }
    own = found.filter(variant="fake_quant", fit="default")
    assert own["metric"].to_list() == list(expected)
    assert own["value"].to_list() == pytest.approx(list(expected.values()), rel=1e-9)
    assert (own["low"] <= own["value"]).all()
    assert (own["value"] <= own["high"]).all()
    assert found["samples"].unique().to_list() == [40]
    assert value(found, variant="fp32", metric="top1")["value"] == naive.top(reference, labels, 1)
    assert found.filter(variant="fp32")["metric"].to_list() == ["top1", "top5"]
    stored = run.read("evaluation").filter(variant="fp32", metric="top5").row(0, named=True)
    assert stored == value(found, variant="fp32", metric="top5")


def test_the_interval_is_that_of_plain_resampling(run, x):
    found = value(evaluate(run, [{"x": x}], metrics=["mse"], fits=["default"]), metric="mse")
    pairs = zip(rows_of(run.prepared_file, x), rows_of(fake_quant(run), x), strict=True)
    expected = naive.bootstrap([naive.mse(a, b) for a, b in pairs], naive.mean)
    assert (found["low"], found["high"]) == pytest.approx(expected, rel=0.1)


def test_right_labels_are_right_and_permuted_ones_are_not(run, x):
    labels = [naive.argmax(naive.flat(row)) for row in rows_of(run.prepared_file, x)]
    assert value(evaluate(run, [{"x": x}], labels=labels), variant="fp32", metric="top1")["value"] == 1
    moved = [(label + 1) % 6 for label in labels]
    found = value(evaluate(run, [{"x": x}], labels=moved), variant="fp32", metric="top1")
    assert (found["value"], found["low"], found["high"]) == (0, 0, 0)


def test_an_unexported_fit_scores_as_its_export_does(run, x):
    found = evaluation(run, [{"x": x}], metrics=["sqnr"], fits=["other"])
    assert [event.message for _, event in found.events] == [
        "fit 'other' is evaluated from a temporary export: it has not been exported"
    ]
    assert run.info.fits["other"].prefix is None
    exported = calibrant.export(run, fit="other", prefix=run.path / "out" / "o")
    again = evaluation(exported, [{"x": x}], metrics=["sqnr"], fits=["other"])
    assert not again.events
    assert again.scores["value"].to_list() == found.scores["value"].to_list()


def test_files_of_another_fit_at_the_prefix_are_not_taken(run, x):
    calibrant.fit(run, name="symmetric", config=_symmetric(run.path))
    calibrant.export(run, fit="symmetric", prefix=run.path / "p")
    calibrant.export(run, fit="default", prefix=run.path / "p")
    found = evaluation(run, [{"x": x}], fits=["symmetric"], metrics=["sqnr"])
    assert "are of other scales" in found.events[0][1].message


def _symmetric(folder):
    path = folder / "symmetric.cfg"
    path.write_text("activation_offset: false")
    return path


def test_by_default_the_exported_fits_are_compared(run, x):
    assert evaluate(run, [{"x": x}])["fit"].unique().to_list() == ["default"]


def test_verify_and_evaluate_do_not_overwrite_each_other(run, x):
    before = value(run.read("evaluation"), variant="fake_quant", data="verify")
    evaluate(run, [{"x": x}])
    calibrant.verify(run)
    table = run.read("evaluation").filter(fit="default", variant="fake_quant", metric="sqnr_db")
    assert sorted(table["samples"]) == [before["samples"], 40]
    assert value(table, data="verify") == before


def test_a_new_fit_drops_what_was_measured_of_the_old(run, x):
    evaluate(run, [{"x": x}], labels=np.zeros(40, int))
    calibrant.fit(run, name="default", config=_symmetric(run.path))
    assert run.read("evaluation")["variant"].unique().to_list() == ["fp32"]
    assert run.read("class_agreement").is_empty()


def test_agreement_by_class_counts_by_hand(tmp_path, run):
    """Four inputs are four classes; the other model swaps classes 1 and 2 and breaks half of class 3."""
    swap = np.eye(4, dtype=np.float32)[[0, 2, 1, 3]]
    reference, other = (
        models.save(
            models.model(
                [models.node("MatMul", ["x", "w"], "y", "mm")], [models.value("x", ["N", 4])], [models.value("y", ["N", 4])],
                {"w": weight},
            ),
            tmp_path / name,
        )
        for name, weight in (("a.onnx", np.eye(4, dtype=np.float32)), ("b.onnx", swap))
    )  # fmt: skip
    x = np.eye(4, dtype=np.float32)[[0, 0, 1, 1, 1, 2, 3]]
    found = evaluate_models(reference, {"swap": other}, [{"x": x}], X4).classes
    columns = ("class_id", "samples", "agreement", "confused_with")
    assert found.select(columns).rows() == [(0, 2, 1, None), (1, 3, 0, 2), (2, 1, 0, 1), (3, 1, 1, None)]
    assert found.filter(class_id=3).select("low", "high").row(0) == (None, None)


def test_several_outputs_have_their_rows_and_one_can_be_chosen(tmp_path):
    proto = models.sample_axis_1()
    run = calibrant.run(
        models.save(proto, tmp_path / "m.onnx"),
        [{"x": models.normal(8, 4), "state": models.normal(2, 8, 6, seed=1)}], run=tmp_path / "r",
    )  # fmt: skip
    data = [{"x": models.normal(5, 4, seed=2), "state": models.normal(2, 5, 6, seed=3)}]
    found = evaluate(run, data, labels=np.zeros(5, int))
    assert found.filter(metric="sqnr_db")["output"].to_list() == ["y", "state_out"]
    assert found.filter(metric="top1")["output"].unique().to_list() == ["y"]
    assert found.filter(metric="agreement")["output"].to_list() == ["y"]  # a state of [2, 1, 6] is no vector of scores
    alone = evaluate(run, data, output="state_out", metrics=["sqnr"])
    assert value(alone, metric="sqnr_db")["value"] == value(found, metric="sqnr_db", output="state_out")["value"]
    with pytest.raises(ConfigError, match="no output 'stat_out'; did you mean 'state_out'"):
        evaluate(run, data, output="stat_out")


def test_samples_of_unequal_shape(tmp_path):
    proto = models.dynamic_shapes()
    run = calibrant.run(models.save(proto, tmp_path / "m.onnx"), [{"x": models.normal(4, 3, 8, 8)}], run=tmp_path / "r")
    feeds = [{"x": models.normal(1, 3, size, 6, seed=size)} for size in (5, 8, 7)]
    found = value(evaluate(run, feeds, metrics=["sqnr"]), metric="sqnr_db")
    pairs = [[models.run(path, feed)[0] for feed in feeds] for path in (run.prepared_file, fake_quant(run))]
    assert found["value"] == pytest.approx(naive.sqnr_db(*pairs))


def test_scalar_outputs(tmp_path):
    nodes = [models.node("Mul", ["x", "two"], "m", "mul"), models.node("ReduceSum", ["m"], "y", "sum", keepdims=0)]

    def scaled(factor, name):
        return models.save(
            models.model(nodes, [models.value("x", ["N", 4])], [models.value("y", [])], {"two": np.float32([factor])}),
            tmp_path / name,
        )

    found = evaluate_models(scaled(2, "a.onnx"), {"b": scaled(3, "b.onnx")}, [{"x": np.ones((6, 4), np.float32)}], X4)
    expected = 10 * np.log10(8**2 / 4**2)  # 2 * 4 against 3 * 4
    assert value(found.scores, metric="sqnr_db")["value"] == pytest.approx(expected)
    assert found.scores["metric"].to_list() == ["sqnr_db"]  # one number has neither classes nor an angle
    assert found.classes.is_empty()


def test_data_that_can_be_read_once_is_enough(run, x):
    again = evaluate(run, [{"x": x}], metrics=["sqnr"])
    once = evaluate(run, iter([{"x": x}]), metrics=["sqnr"])
    assert once["value"].to_list() == again["value"].to_list()


def test_one_sample_has_no_interval(run, x):
    found = value(evaluate(run, [{"x": x[:1]}]), metric="sqnr_db")
    assert found["value"] > 0
    assert (found["low"], found["high"]) == (None, None)


def test_fused_variants_stand_beside_the_others(run, x):
    found = evaluate(run, [{"x": x}], metrics=["sqnr"], fused=True, models={"again": fake_quant(run)})
    assert found.select("fit", "variant").rows() == [
        (None, "fp32_fused"), ("default", "fake_quant"), ("default", "fake_quant_fused"), (None, "again"),
        (None, "again_fused"),
    ]  # fmt: skip
    assert value(found, variant="again")["value"] == value(found, variant="fake_quant")["value"]


def test_the_note_says_why_optimizations_are_off():
    assert "saturate on x86 CPUs without VNNI" in optimizations_note()
    assert has_vnni("processor : 0\nflags : fpu avx_vnni\n")
    assert not has_vnni("flags\t\t: fpu avx2 avx512f\n")


def affine(folder, name, weight, bias):
    initializers = {"w": np.asarray(weight, np.float32), "b": np.asarray(bias, np.float32)}
    nodes = [models.node("Gemm", ["x", "w", "b"], "y", "gemm")]
    inputs, outputs = [models.value("x", ["N", 4])], [models.value("y", ["N", len(bias)])]
    return models.save(models.model(nodes, inputs, outputs, initializers), folder / name)


@pytest.mark.parametrize(
    ("weight", "bias", "complaint"),
    [
        (np.zeros((4, 5)), [0, 0, 3, 0, 0], "is the same for all 32 samples, where that of fp32 differs"),
        (np.full((4, 5), 0.01), [0, 0, 3, 0, 0], "puts all 32 samples into class 2, where fp32 has 5 classes"),
        (np.full((4, 5), 0.01), [0] * 5, "has one value throughout in each of 32 samples"),
        (np.full((4, 5), np.nan), [0] * 5, "has NaN or infinity in 32 of 32 samples, where fp32 has none"),
    ],
)
def test_collapsed_outputs_are_told(tmp_path, weight, bias, complaint):
    """A net of five classes whose int8 version answers the same to every question."""
    good = affine(tmp_path, "good.onnx", models.normal(4, 5), [0] * 5)
    bad = affine(tmp_path, "bad.onnx", weight, bias)
    data = [{"x": models.normal(32, 4, seed=2)}]
    found = evaluate_models(good, {"bad": bad, "same": good}, data, X4)
    messages = [event.message for _, event in found.events]
    assert len(messages) == 1
    assert messages[0].startswith("bad: output 'y' ")
    assert complaint in messages[0]
    assert not evaluate_models(bad, {"same": bad}, data, X4).events  # the float model does so itself


def test_a_collapsed_fit_is_an_event_of_the_run(run, x):
    calibrant.export(run, prefix=run.path / "p" / "m")
    affine(run.path / "p", "m_fake_quant_model.onnx", np.zeros((4, 6)), [0] * 6)
    found = evaluate(run, [{"x": x}], metrics=["sqnr"])
    assert value(found, fit="default")["value"] == pytest.approx(0)  # the noise is the signal itself
    event = run.read("events").filter(stage="evaluate").row(0, named=True)
    assert (event["severity"], event["fit"]) == ("warn", "default")
    assert "fake_quant of fit 'default': output 'y' is the same for all 40 samples" in event["message"]
    calibrant.export(run, prefix=run.path / "p" / "m")
    evaluate(run, [{"x": x}])
    assert run.read("events").filter(stage="evaluate").is_empty()


def test_other_models_are_matched_by_name_or_place(tmp_path, x):
    good = affine(tmp_path, "good.onnx", models.normal(4, 5), [0] * 5)
    proto = onnx.load(good)
    proto.graph.output[0].name = proto.graph.node[0].output[0] = "logits"
    renamed = models.save(proto, tmp_path / "renamed.onnx")
    found = evaluate_models(good, {"renamed": renamed}, [{"x": x}], X4).scores
    assert value(found, metric="sqnr_db")["value"] == np.inf
    wide = models.save(models.gemm(), tmp_path / "wide.onnx")
    with pytest.raises(
        ShapeError, match=r"'wide': output 'y', sample 0: shape \[1, 6\], that of the float model is \[1, 5\]"
    ):
        evaluate_models(good, {"wide": wide}, [{"x": x}], X4)
    double = models.save(models.model(
        [models.node("Relu", ["x"], "a", "r1"), models.node("Abs", ["x"], "b", "r2")], [models.value("x", ["N", 4])],
        [models.value("a", ["N", 4]), models.value("b", ["N", 4])],
    ), tmp_path / "double.onnx")  # fmt: skip
    with pytest.raises(ModelError, match="'double': no output 'y'; its outputs are 'a', 'b'"):
        evaluate_models(good, {"double": double}, [{"x": x}], X4)


def test_wrong_names_and_options_are_told(run, x, tmp_path):
    data = [{"x": x}]
    with pytest.raises(LayerNotFoundError, match="no fit 'defalt'; did you mean 'default'"):
        evaluate(run, data, fits=["defalt"])
    with pytest.raises(ConfigError, match="--metric top1: needs labels"):
        evaluate(run, data, metrics=["top1"])
    with pytest.raises(ConfigError, match="the name 'fp32' is taken"):
        evaluate(run, data, models={"fp32": run.prepared_file})
    with pytest.raises(DataError, match="39 labels, but the data has 40 samples"):
        evaluate(run, iter(data), labels=np.zeros(39, int))
    with pytest.raises(
        DataError, match=r"label 6 of sample 3 is no class of 'fp32': output 'y', which has 6 \(0 to 5\)"
    ):
        evaluate(run, data, labels=[0, 1, 2, 6] + [0] * 36)
    empty = calibrant.capture(models.save(models.gemm(), tmp_path / "g.onnx"), data, run=tmp_path / "no_fit")
    with pytest.raises(ConfigError, match="no fits, and neither --model nor --dumps"):
        evaluate(empty, data)


# Labels


def test_labels_come_from_arrays_files_and_the_data(run, x, tmp_path):
    labels = (np.arange(40) % 6).astype(np.int64)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "both.npz", x=x, y=labels)
    np.save(tmp_path / "y.npy", labels)
    np.savez(tmp_path / "y.npz", y=labels)
    np.savez(tmp_path / "many.npz", y=labels, z=labels + 1)
    plain, both = tmp_path / "x.npz", tmp_path / "both.npz"
    ways = [
        (plain, labels), (plain, list(labels)), (plain, tmp_path / "y.npy"), (plain, str(tmp_path / "y.npz")),
        (plain, f"{tmp_path / 'many.npz'}:y"), (both, "y"), (plain, labels[:, None]),
    ]  # fmt: skip
    values = {value(evaluate(run, data, labels=given), metric="top1", variant="fp32")["value"] for data, given in ways}
    assert values == {naive.top(rows_of(run.prepared_file, x), labels, 1)}


def test_wrong_labels_are_named(run, x, tmp_path):
    np.savez(tmp_path / "both.npz", x=x, labels=np.zeros(40, int))
    np.savez(tmp_path / "many.npz", y=np.zeros(40), z=np.zeros(40))
    both, data = tmp_path / "both.npz", [{"x": x}]
    with pytest.raises(DataError, match=r"--labels label: no such file, and no array of .*did you mean 'labels'"):
        evaluate(run, both, labels="label")
    with pytest.raises(DataError, match=r"many\.npz: holds several arrays; name one as .*many\.npz:KEY, of y, z"):
        evaluate(run, data, labels=tmp_path / "many.npz")
    with pytest.raises(DataError, match="holds no array 'q'"):
        evaluate(run, data, labels=f"{tmp_path / 'many.npz'}:q")
    with pytest.raises(DataError, match="rows of unequal length; expected numbers or texts, one entry a sample"):
        evaluate(run, data, labels=[[0], [1, 2]])
    with pytest.raises(DataError, match=r"type float64; top1 and top5 expect one whole number a sample"):
        evaluate(run, data, labels=np.zeros(40), metrics=["top1"])
    with pytest.raises(DataError, match=r"one value \(3\) for all samples"):
        evaluate(run, data, labels=np.array(3))
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"broken\.npy: cannot be read"):
        evaluate(run, data, labels=tmp_path / "broken.npy")
    (tmp_path / "y.txt").write_text("1")
    with pytest.raises(DataError, match=r"y\.txt: of type '\.txt'"):
        evaluate(run, data, labels=tmp_path / "y.txt")


# Metrics of the user's own

OWN = """
import numpy as np

def greatest(outputs, reference, labels):
    assert outputs["y"].shape == reference["y"].shape == (40, 6)
    return outputs["y"].max()

def per_sample(outputs, reference, labels):
    return np.asarray(labels) == outputs["y"].argmax(1)

def leaves(outputs, reference, labels):
    raise SystemExit(3)

def fails(outputs, reference, labels):
    raise KeyError("text")

def short(outputs, reference, labels):
    return np.zeros(3)

def words(outputs, reference, labels):
    return "good"

nothing = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics_of_a_test.py").write_text(OWN)
    (tmp_path / "leaving_module_of_a_test.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    yield "own_metrics_of_a_test"
    sys.modules.pop("own_metrics_of_a_test", None)


def test_a_function_gives_one_number_or_one_a_sample(run, x, own):
    labels = np.arange(40) % 6
    names = [f"{own}:greatest", f"{own}.py:per_sample"]
    before = list(sys.path)
    found = evaluate(run, [{"x": x}], labels=labels, metrics=names)
    assert sys.path == before
    output = np.concatenate(rows_of(fake_quant(run), x))
    one = value(found, variant="fake_quant", metric=f"{own}:greatest")
    assert (one["value"], one["low"], one["high"], one["output"]) == (pytest.approx(output.max()), None, None, None)
    each = value(found, variant="fake_quant", metric=f"{own}:per_sample")
    assert each["value"] == naive.top(rows_of(fake_quant(run), x), labels, 1)
    assert each["low"] < each["value"] < each["high"]
    assert found.filter(variant="fp32").height == 2


def test_a_function_itself_is_a_metric(run, x):
    def lines(outputs, reference, labels):
        return labels is None and float(np.abs(outputs["y"] - reference["y"]).max())

    found = evaluate(run, [{"x": x}], metrics=[lines, "max_abs"])
    rows = dict(found.filter(variant="fake_quant").select("metric", "value").rows())
    assert len(rows) == 2
    assert rows["max_abs"] == pytest.approx(next(rows[name] for name in rows if name.endswith("lines")))


def test_a_function_gets_arrays_that_it_cannot_change(run, x):
    def overwrites(outputs, reference, labels):
        reference["y"][:] = 0

    with pytest.raises(ConfigError, match="raised ValueError for 'fp32': assignment destination is read-only"):
        evaluate(run, [{"x": x}], metrics=[overwrites])


def test_a_file_finds_the_modules_beside_it_also_while_it_runs(run, x, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside_the_metric.py").write_text("VALUE = 4.0\n")
    (tmp_path / "sub" / "scored.py").write_text(BESIDE)
    before = list(sys.path)
    found = evaluate(run, [{"x": x}], metrics=[f"{tmp_path}/sub/scored.py:late"])
    sys.modules.pop("beside_the_metric")
    assert found["value"].unique().to_list() == [4.0]
    assert sys.path == before


BESIDE = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Kept:
    value: float
def late(outputs, reference, labels):
    import beside_the_metric
    return Kept(beside_the_metric.VALUE).value
"""


def test_functions_that_would_share_a_name_are_refused_and_metrics_count_once(run, x):
    twins = [lambda *_: 1.0, lambda *_: 2.0]
    with pytest.raises(ConfigError, match="two functions have this name; give each a name of its own"):
        evaluate(run, [{"x": x}], metrics=twins)
    found = evaluate(run, [{"x": x}], metrics=["sqnr", "sqnr_db", twins[0], twins[0]], fits=["default"])
    assert found.filter(variant="fake_quant")["metric"].n_unique() == found.filter(variant="fake_quant").height == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OWN:leaves", "raised SystemExit for 'fp32': 3; mend the function"),
        ("leaving_module_of_a_test.py:f", "cannot be imported: SystemExit: 0"),
        ("OWN:fails", "raised KeyError for 'fp32': 'text'; mend the function"),
        (
            "OWN:short",
            r"returned ndarray of shape \(3,\) and type float64 for 'fp32'; expected one number, or .*\(40,\)",
        ),
        ("OWN:words", "returned str for 'fp32'"),
        ("OWN:gratest", "has no function 'gratest'; did you mean 'greatest'"),
        ("OWN:nothing", "'nothing' is no function"),
        ("nowhere_to_be_found:f", "'nowhere_to_be_found' cannot be imported: ModuleNotFoundError"),
        ("missing.py:f", r"'missing\.py' cannot be imported: FileNotFoundError"),
        (":f", "expected module:function or file.py:function"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(run, x, own, name, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(run, [{"x": x}], metrics=[name.replace("OWN", own)])


# The command


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr()

    return call


def test_the_command_prints_the_table_and_the_reason(run, x, tmp_path, command):
    np.savez(tmp_path / "eval.npz", x=x, y=np.arange(40) % 6)
    code, printed = command(
        "evaluate", run.path, "--data", tmp_path / "eval.npz", "--labels", "y", "--metric", "top1", "--metric", "sqnr",
        "--model", f"again={fake_quant(run)}",
    )  # fmt: skip
    assert code == 0
    assert "graph optimizations are off" in printed.err
    lines = [line.split() for line in printed.out.splitlines()]
    assert lines[0] == ["fit", "variant", "metric", "value", "low", "high", "samples"]
    assert [line[:2] for line in lines[2:]] == [
        ["fp32", "top1"], ["default", "fake_quant"], ["default", "fake_quant"], ["again", "top1"], ["again", "sqnr_db"]
    ]  # fmt: skip
    code, printed = command(
        "evaluate", run.path, "--data", tmp_path / "eval.npz", "--labels", "y", "--classes", "--format", "csv"
    )
    assert printed.out.splitlines()[0] == "fit,variant,output,class_id,samples,agreement,low,high,confused_with"


def test_parquet_without_a_file_is_refused_before_anything_runs(run, x, tmp_path, command):
    np.savez(tmp_path / "eval.npz", x=x)
    before = run.read("evaluation").height
    code, printed = command("evaluate", run.path, "--data", tmp_path / "eval.npz", "--format", "parquet")
    assert code == 1
    assert printed.err == "error: --format parquet: needs a file; pass -o FILE\n"
    assert run.read("evaluation").height == before


def test_a_collapse_can_fail_the_command(tmp_path, run, x, command):
    np.savez(tmp_path / "eval.npz", x=x)
    dead = affine(tmp_path, "dead.onnx", np.zeros((4, 6)), [0] * 6)
    arguments = ("evaluate", run.path, "--data", tmp_path / "eval.npz", "--model", dead)
    code, printed = command(*arguments)
    assert code == 0
    assert "warn: dead: output 'y' is the same for all 40 samples" in printed.err
    code, printed = command(*arguments, "--fail-on", "warn")
    assert code == 1
    assert printed.err.splitlines()[-1].startswith("error: 1 outputs collapsed at --fail-on, the first: dead:")


def test_names_are_given_once(run, x, tmp_path, command):
    np.savez(tmp_path / "eval.npz", x=x)
    code, printed = command(
        "evaluate", run.path, "--data", tmp_path / "eval.npz", "--model", "a=1.onnx", "--model", "a=2.onnx"
    )
    assert code == 1
    assert "--model a=2.onnx: the name 'a' is given twice" in printed.err


def test_a_missing_model_is_told(run, x):
    with pytest.raises(CalibrantError, match=r"missing\.onnx\): no such file"):
        evaluate(run, [{"x": x}], models={"m": "missing.onnx"})


def test_inputs_that_the_run_has_fixed_are_fed_to_the_source_model(tmp_path, x):
    """y = gemm(x) * k; the run's model has k = 3 inside, its source takes k."""
    proto = models.gemm()
    proto.graph.node[0].output[0] = "g"
    proto.graph.node.append(models.node("Mul", ["g", "k"], "y", "mul"))
    proto.graph.input.append(models.value("k", []))
    source = models.save(proto, tmp_path / "m.onnx")
    run = calibrant.run(source, [{"x": x}], run=tmp_path / "r", fix_input={"k": 3}, keep="stats")
    found = evaluate(run, [{"x": x}], models={"source": source}, metrics=["max_abs"])
    assert value(found, variant="source")["value"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(ModelError, match=r"'source' .*input 'k': the data has no values for it"):
        evaluate_models(run.prepared_file, {"source": source}, [{"x": x}], X4)


def test_a_deploy_model_is_no_model_for_onnxruntime(run, x):
    deploy = f"{run.info.fits['default'].prefix}_deploy_model.onnx"
    with pytest.raises(ModelError, match="Ascend operators run on the NPU: dump their outputs there"):
        evaluate(run, [{"x": x}], models={"deploy": deploy})


def test_nan_in_the_data_is_no_alarm_where_the_float_model_has_it_too(run, x):
    broken = x.copy()
    broken[3, 0] = np.nan
    found = evaluation(run, [{"x": broken}])
    assert not found.events
    assert found.classes.filter(class_id=-1)["samples"].to_list() == [1]  # the float model has no class for it either


def test_one_session_is_open_at_a_time(run, x, monkeypatch):
    """The weights of two models are never held at once."""
    alive, most = weakref.WeakSet(), []
    opened = OutputRunner.__init__

    def counted(self, *arguments, **options):
        opened(self, *arguments, **options)
        alive.add(self)
        most.append(len(alive))

    monkeypatch.setattr(OutputRunner, "__init__", counted)
    evaluate(run, [{"x": x}], labels=np.zeros(40, int), models={"again": fake_quant(run)}, fused=True)
    assert most == [1] * 6


def test_a_model_may_end_in_the_class_itself(tmp_path, x):
    def classifier(name, weight):
        nodes = [
            models.node("MatMul", ["x", "w"], "m", "mm"),
            models.node("ArgMax", ["m"], "y", "top", axis=1, keepdims=0),
        ]
        outputs = [models.value("y", ["N"], onnx.TensorProto.INT64)]
        return models.save(models.model(nodes, [models.value("x", ["N", 4])], outputs, {"w": weight}), tmp_path / name)

    weight = models.normal(4, 6)
    good, near = classifier("a.onnx", weight), classifier("b.onnx", weight + models.normal(4, 6, seed=1, scale=0.1))
    expected, got = (
        [naive.argmax(list(row)) for row in x @ w] for w in (weight, weight + models.normal(4, 6, seed=1, scale=0.1))
    )
    found = evaluate_models(good, {"near": near}, [{"x": x}], X4, labels=expected, metrics=["top1", "agreement"]).scores
    share = sum(a == b for a, b in zip(expected, got, strict=True)) / 40
    assert 0.3 < share < 1
    assert found.select("variant", "metric", "value").rows() == [
        ("fp32", "top1", 1), ("near", "top1", share), ("near", "agreement", share)
    ]  # fmt: skip
