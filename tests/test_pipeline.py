"""The stages together, through the Python API: what is promised of a run holds for real models."""

import json
from pathlib import Path

import models
import numpy as np
import onnx
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from shared_material import needs_shared, shared_inputs, shared_model

import calibrant
from calibrant import capturing
from calibrant.errors import ConfigError, EmptyDataError, ExportError, LayerNotFoundError, RangeError, RunError
from calibrant.proto.record import read_record

STATISTICS = ("tensors", "layers", "histograms", "extremes", "channels", "weights")
DECISIONS = ("plan", "search", "quant_params")


def samples_of(path: Path, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Random feeds of one sample each for every input of a model."""
    generator, feeds = np.random.default_rng(seed), []
    for _ in range(count):
        feed = {}
        for value in onnx.load(path).graph.input:
            shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            is_integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            feed[value.name] = (
                generator.integers(0, 4, shape)
                if is_integer
                else generator.standard_normal(shape).astype(np.float32) * np.float32(generator.uniform(0.5, 2))
            )
        feeds.append(feed)
    return feeds


@pytest.fixture
def model(tmp_path) -> Path:
    return models.save(models.conv_bn(), tmp_path / "small.onnx")


@pytest.fixture
def done(model, tmp_path) -> calibrant.Run:
    return calibrant.run(model, samples_of(model, 5), run=tmp_path / "small.run")


def config(tmp_path: Path, text: str, name: str = "quant.cfg") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def record_bytes(run: calibrant.Run, fit: str = "default") -> bytes:
    return Path(f"{run.info.fits[fit].prefix}_record.txt").read_bytes()


def events(run: calibrant.Run, *, stage: str) -> str:
    return "\n".join(run.read("events").filter(stage=stage)["message"])


BUILDERS = {
    "conv_bn": models.conv_bn, "depthwise": models.depthwise, "conv1d": models.conv1d, "conv3d": models.conv3d,
    "conv_transpose": models.conv_transpose, "gemm": models.gemm, "matmul_add": models.matmul_add,
    "average_pool": models.average_pool, "two_inputs": models.two_inputs, "integer_input": models.integer_input,
    "shared_weight": models.shared_weight, "tied_embedding": models.tied_embedding, "constant_weights": models.constant_weights,
    "weights_as_inputs": models.weights_as_inputs, "nameless": models.nameless, "sample_axis_1": models.sample_axis_1,
    "merged_axes": models.merged_axes, "fixed_batch": models.fixed_batch,
}  # fmt: skip


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_kind_of_model_runs_verifies_and_recomputes(kind, tmp_path):
    path = models.save(BUILDERS[kind](), tmp_path / f"{kind}.onnx")
    feeds = samples_of(path, 3)
    if kind == "weights_as_inputs":
        fed = {value.name for value in onnx.load(path).graph.input} - {
            t.name for t in onnx.load(path).graph.initializer
        }
        feeds = [{name: array for name, array in feed.items() if name in fed} for feed in feeds]
    run = calibrant.run(path, feeds, run=tmp_path / "r")
    report = calibrant.verify(run)
    assert report.passed
    assert report.layers
    assert all(check.bit_equal for check in report.layers)
    before = {table: run.read(table) for table in (*STATISTICS, "samples")}
    calibrant.stats(run)
    for table, frame in before.items():
        assert_frame_equal(run.read(table), frame, check_exact=True)


@pytest.mark.parametrize(
    "kind", ["conv_bn", "matmul_add", "two_inputs", "sample_axis_1", "merged_axes", "average_pool"]
)
def test_grouping_changes_nothing(kind, tmp_path):
    path = models.save(BUILDERS[kind](), tmp_path / f"{kind}.onnx")
    feeds = samples_of(path, 7)
    feeds.append(feeds[0])
    runs = []
    for number, (size, order) in enumerate(
        [(1, slice(None)), (3, slice(None, None, -1)), (8, slice(None)), (5, slice(None, None, -1))]
    ):
        keep = "raw" if number % 2 else "stats"
        runs.append(calibrant.run(path, feeds[order], run=tmp_path / f"r{number}", batch_size=size, keep=keep))
    for other in runs[1:]:
        for table in (*STATISTICS, *DECISIONS):
            assert_frame_equal(other.read(table), runs[0].read(table), check_exact=True)
        assert record_bytes(other) == record_bytes(runs[0])
        assert other.info.data_fingerprint == runs[0].info.data_fingerprint


def test_captures_give_back_what_the_model_was_fed(tmp_path):
    path = models.save(models.conv_relu(), tmp_path / "m.onnx")
    feeds = samples_of(path, 4)
    run = calibrant.capture(path, feeds, run=tmp_path / "r")
    name = next(iter(feeds[0]))
    got = list(run.captures(name))
    assert [sample for sample, _ in got] == [0, 1, 2, 3]
    for (_, array), feed in zip(got, feeds, strict=True):
        np.testing.assert_array_equal(array, feed[name])


def test_a_reader_and_an_iterable_give_the_same(model, tmp_path):
    feeds = samples_of(model, 4)

    class Reader:
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self):
            return next(self.rest, None)

    one = calibrant.run(model, Reader(), run=tmp_path / "one")
    two = calibrant.run(model, (feed for feed in feeds), run=tmp_path / "two")
    assert record_bytes(one) == record_bytes(two)


def test_fits_stand_side_by_side_and_a_name_is_replaced(done, tmp_path):
    first = record_bytes(done)
    hfmg = config(tmp_path, "common_config { hfmg_quantize { num_of_bins: 1024 } }")
    calibrant.fit(done, config=hfmg, name="hfmg")
    assert set(done.read("quant_params").filter(role="data")["algorithm"]) == {"ifmr", "hfmg"}
    calibrant.export(done, fit="hfmg", prefix=tmp_path / "out" / "h")
    assert calibrant.verify(done, fit="hfmg").passed
    reopened = calibrant.open_run(done.path)
    assert reopened.info.fits["hfmg"].prefix == str(tmp_path / "out" / "h")
    assert record_bytes(reopened) == first
    calibrant.fit(reopened, name="hfmg")
    rows = reopened.read("quant_params").drop("fit")
    default, other = (rows.filter(reopened.read("quant_params")["fit"] == name) for name in ("default", "hfmg"))
    assert_frame_equal(default, other)


def test_a_fit_ignores_batch_num_and_says_so(done, tmp_path):
    calibrant.fit(done, config=config(tmp_path, "batch_num: 3"))
    assert "batch_num 3 is ignored: the fit uses all 5 samples" in events(done, stage="fit")


def test_a_fit_refuses_other_fusion_with_the_advice(done, tmp_path):
    with pytest.raises(ConfigError, match=r"quant\.cfg: asks for do_fusion False.*calibrant run --restart"):
        calibrant.fit(done, config=config(tmp_path, "do_fusion: false"))


def test_exact_needs_raw_values_and_says_so_in_the_search(done, model, tmp_path):
    calibrant.fit(done, name="exact", exact=True)
    rows = done.read("search")
    assert rows.filter(fit="exact", is_best=True)["exact"].all()
    found = rows.filter(fit="exact", algorithm="ifmr").unique(["tensor_id", "candidate"])
    (told,) = [message for message in events(done, stage="fit").splitlines() if message.startswith("exact search")]
    assert f"{found['exact'].sum()} of {found.height} candidates were summed over the raw values" in told
    assert not rows.filter(fit="default")["exact"].any()
    kept = calibrant.capture(model, samples_of(model, 2), run=tmp_path / "s", keep="stats")
    with pytest.raises(RunError, match="only statistics were kept; capture again with --keep raw"):
        calibrant.fit(kept, exact=True)
    with pytest.raises(RunError, match="only statistics were kept"):
        calibrant.stats(kept)


def test_no_fusion_keeps_batch_normalization(model, tmp_path):
    run = calibrant.run(model, samples_of(model, 2), run=tmp_path / "r", config=config(tmp_path, "do_fusion: false"))
    prepared = onnx.load(run.model_folder / "prepared.onnx")
    assert "BatchNormalization" in {node.op_type for node in prepared.graph.node}


def test_skipped_layers_stay_in_float_with_the_rule_that_decided(tmp_path):
    path = models.save(models.shared_weight(), tmp_path / "m.onnx")
    names = calibrant.capture(path, samples_of(path, 2), run=tmp_path / "a").read("layers")["layer"]
    skip = config(tmp_path, f'skip_layers: "{names[0]}"')
    run = calibrant.run(path, samples_of(path, 2), run=tmp_path / "b", config=skip)
    row = run.read("plan").filter(layer=names[0]).row(0, named=True)
    assert not row["enabled"]
    assert row["enabled_decided_by"] == "skip_layers"
    assert names[0] not in {entry.key for entry in read_record(Path(f"{run.info.fits['default'].prefix}_record.txt"))}
    written = json.loads(Path(f"{run.info.fits['default'].prefix}_config.json").read_text())
    assert written[names[0]]["quant_enable"] is False
    assert written[names[1]]["quant_enable"] is True


def test_an_unknown_fit_and_an_unexported_fit_are_named(done):
    with pytest.raises(LayerNotFoundError, match="no fit 'defualt'; did you mean 'default'"):
        calibrant.export(done, fit="defualt")
    calibrant.fit(done, name="new")
    with pytest.raises(ExportError, match="fit 'new' has not been exported; run calibrant export first"):
        calibrant.verify(done, fit="new")
    for name in ("", "a/b", "tab\t"):
        with pytest.raises(ConfigError, match="is no name for a fit"):
            calibrant.fit(done, name=name)


def test_verify_takes_other_data(done, model):
    assert calibrant.verify(done, data=samples_of(model, 2, seed=9)).samples == 2


def test_provenance_is_complete(done, model):
    info = done.info
    assert info.model == str(model)
    assert info.samples == 5
    assert {"calibrant", "onnxruntime", "numpy", "python"} <= set(info.versions)
    assert info.cpu
    assert {"ingest", "capture", "fit", "export", "verify"} <= set(info.seconds)
    assert len(info.fits["default"].config_hash) == 64


def test_a_failing_capture_leaves_the_old_run_when_it_was_to_be_replaced(done, model):
    feeds = samples_of(model, 2)
    next(iter(feeds[1].values()))[...] = np.nan
    with pytest.raises(calibrant.CalibrantError, match="NaN"):
        calibrant.run(model, feeds, run=done.path, restart=True)
    assert calibrant.open_run(done.path).info.samples == 5
    assert [path.name for path in done.path.parent.iterdir() if "partial" in path.name] == []


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("mnist_resnet", 10),
        ("mnist_vit", 20),
        ("mnist_denoise", 8),
        ("silero_vad_op18_ifless", 8),
        ("basic_pitch_nmp", 25),
    ],
)
def test_real_models_run_and_verify(name, least, tmp_path):
    data = shared_inputs(tmp_path) / f"{name}.npz"
    fixed = {"sr": 16000} if name.startswith("silero") else None
    run = calibrant.run(shared_model(name), data, run=tmp_path / "r", keep="stats", fix_input=fixed)
    assert run.read("plan").filter(pl.col("enabled"), pl.col("op_type") != "AveragePool").height >= least
    assert calibrant.verify(run).passed


def test_values_that_no_scale_can_hold_name_their_tensor(tmp_path):
    path = models.save(models.conv_relu(), tmp_path / "m.onnx")
    data = [{"x": np.full((1, 3, 8, 8), 3e38, np.float32)}]
    run = calibrant.capture(path, data, run=tmp_path / "r")
    with pytest.raises(RangeError, match=r"tensor 'x': .* overflows float32"):
        calibrant.fit(run)


def test_a_tensor_without_values_is_named(tmp_path):
    proto = models.model(
        [models.node("MatMul", ["x", "w"], "y", "matmul")],
        [models.value("x", ["N", "T", 4])],
        [models.value("y", ["N", "T", 6])],
        {"w": models.normal(4, 6)},
    )
    run = calibrant.capture(
        models.save(proto, tmp_path / "m.onnx"), [{"x": np.zeros((1, 0, 4), np.float32)}], run=tmp_path / "r"
    )
    with pytest.raises(EmptyDataError, match="tensor 'x': histogram holds no values"):
        calibrant.fit(run)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "the table 'tensors' is gone; make it again with calibrant stats"),
        (
            lambda path: path.write_bytes(b"junk"),
            "table 'tensors' cannot be read .* capture the run again with --restart",
        ),
    ],
)
def test_a_damaged_table_is_named(done, damage, message):
    damage(done.path / "tables/tensors.parquet")
    with pytest.raises(RunError, match=message):
        calibrant.fit(done.path, name="again")
    if "stats" in message:
        calibrant.fit(calibrant.stats(done.path), name="again")


def test_a_run_that_another_process_makes_meanwhile_is_left_alone(model, tmp_path, monkeypatch):
    looks = iter([False])  # the other's run.json comes after the first look
    monkeypatch.setattr(capturing, "is_run", lambda folder: next(looks, True))
    (tmp_path / "r").mkdir()
    monkeypatch.setattr(capturing, "_refuse_foreign_folder", lambda folder: (folder / "run.json").touch())
    with pytest.raises(RunError, match="exists and is a run; choose another --run folder"):
        calibrant.capture(model, samples_of(model, 2), run=tmp_path / "r")
    assert (tmp_path / "r/run.json").read_bytes() == b""


def test_a_failing_capture_leaves_what_others_put_beside_it(model, tmp_path):
    feeds = samples_of(model, 2)
    next(iter(feeds[1].values()))[...] = np.nan

    def feeding():
        yield feeds[0]
        (tmp_path / "new" / "notes.txt").write_text("somebody else's")
        yield feeds[1]

    with pytest.raises(calibrant.CalibrantError, match="NaN"):
        calibrant.run(model, feeding(), run=tmp_path / "new" / "r")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]
