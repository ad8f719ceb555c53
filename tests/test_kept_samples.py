"""`--keep raw:N`: the activations of N samples chosen by content, the statistics of all."""

from pathlib import Path
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import onnx
import polars as pl
import pytest
from capturing import assert_same_tables, capture, captured, nothing_left, table

import calibrant
from calibrant.errors import DataError, RunError
from calibrant.ingest import writer
from calibrant.ingest.samples import sample_key

Array = npt.NDArray[Any]

COUNT = 11
DMQ = "conv_calibration_config: { dmq_balancer: { migration_strength: 0.5 } }"


def images(count: int = COUNT) -> Array:
    return np.random.default_rng(5).normal(size=(count, 3, 8, 8)).astype(np.float32)


def least(x: Array, count: int) -> set[bytes]:
    """The inputs of the samples with the least content keys."""
    return {v.tobytes() for v in sorted(x, key=lambda v: sample_key({"x": v[None]}))[:count]}


def kept_inputs(folder: Path) -> list[bytes]:
    return [row.tobytes() for row in captured(folder, 0).values()]


def by_content(folder: Path, tensor_id: int) -> dict[bytes, bytes]:
    inputs, rows = captured(folder, 0), captured(folder, tensor_id)
    assert list(inputs) == list(rows)
    return {inputs[sample].tobytes(): rows[sample].tobytes() for sample in inputs}


@pytest.mark.parametrize("kept", [1, 4, COUNT, COUNT + 5])
def test_the_choice_depends_on_content_alone(tmp_path: Path, kept: int) -> None:
    x = images()
    capture(models.depthwise(3), [{"x": x}], tmp_path / "all", batch_size=4)
    expected = by_content(tmp_path / "all", 1)
    orders = (np.arange(COUNT), np.arange(COUNT)[::-1], np.random.default_rng(0).permutation(COUNT))
    for number, (order, size) in enumerate(zip(orders, (4, 1, 3), strict=True)):
        folder = tmp_path / str(number)
        capture(models.depthwise(3), [{"x": x[order]}], folder, batch_size=size, keep=f"raw:{kept}")
        assert set(kept_inputs(folder)) == least(x, kept)
        assert list(captured(folder, 0)) == sorted(captured(folder, 0))
        assert by_content(folder, 1).items() <= expected.items()
        assert_same_tables(folder, tmp_path / "all")
        assert not [p for p in (folder / "captures").rglob("*") if p.suffix != ".parquet" and p.is_file()]
        assert not (folder / "captures" / ".chosen").exists()


def test_samples_keep_the_numbers_of_the_data(tmp_path: Path) -> None:
    capture(models.depthwise(3), [{"x": images()}], tmp_path, batch_size=4, keep="raw:3")
    keys = table(tmp_path, "inputs").sort("key")["sample"][:3].to_list()
    assert list(captured(tmp_path, 0)) == list(captured(tmp_path, 1)) == sorted(keys)


def test_equal_samples_count_each(tmp_path: Path) -> None:
    x = images(2)
    feeds = [{"x": x[i : i + 1]} for i in (0, 1, 0, 1, 0)]
    capture(models.depthwise(3), feeds, tmp_path, keep="raw:4")
    found = kept_inputs(tmp_path)
    assert len(found) == 4
    (first,) = least(x, 1)
    assert found.count(first) == min(4, [0, 1, 0, 1, 0].count(0 if x[0].tobytes() == first else 1))


@pytest.mark.parametrize(
    ("proto", "data"),
    [
        (models.fixed_batch(3), [{"x": images(3)}, {"x": images(6)[3:]}]),
        (models.dynamic_shapes(), [{"x": np.ones((1, 3, 5 + i % 2, 6), np.float32) * i} for i in range(5)]),
    ],
    ids=["fixed batch", "varying shapes"],
)
def test_other_kinds_of_models(tmp_path: Path, proto: onnx.ModelProto, data: list[dict[str, Array]]) -> None:
    capture(proto, data, tmp_path / "all")
    capture(proto, iter(data), tmp_path / "two", keep="raw:2")
    for tensor_id in range(len(table(tmp_path / "all", "tensors"))):
        everything, two = captured(tmp_path / "all", tensor_id), captured(tmp_path / "two", tensor_id)
        assert len(two) == 2
        for sample, row in two.items():
            np.testing.assert_array_equal(row, everything[sample])
    assert_same_tables(tmp_path / "all", tmp_path / "two")


def test_an_event_says_what_is_kept(tmp_path: Path) -> None:
    result = capture(models.depthwise(3), [{"x": images()}], tmp_path, keep="raw:3")
    assert [event.message for event in result.events] == [
        "--keep raw:3: the activations of 3 of 11 samples are kept, those of least content key; statistics are of all"
    ]


def test_the_disk_is_estimated_for_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "x.npz", x=images())
    needed: list[tuple[int, str]] = []
    monkeypatch.setattr("calibrant.ingest.capture_pass.check_disk", lambda _, size, what: needed.append((size, what)))
    capture(models.depthwise(3), tmp_path / "x.npz", tmp_path / "run", keep="raw:5", batch_size=2)
    assert needed == [(5 * 2 * 3 * 8 * 8 * 4, "of 5 samples will take")]  # samples, tensors, elements, bytes


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: writer.CaptureWriter, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.CaptureWriter, "append", full)
    with pytest.raises(RunError, match=r"cannot be written: .*No space left on device"):
        capture(models.depthwise(3), [{"x": images()}], tmp_path, keep="raw:3")
    assert nothing_left(tmp_path)


# --- the stages on such a run ------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(models.depthwise(3).SerializeToString())
    return path


@pytest.fixture
def run(tmp_path: Path, model: Path) -> calibrant.Run:
    return calibrant.capture(model, [{"x": images()}], run=tmp_path / "r", keep="raw:4")


def test_python_and_sql_see_what_is_kept(run: calibrant.Run) -> None:
    assert run.info.keep == "raw:4"
    samples = [sample for sample, _ in run.captures("r")]
    assert len(samples) == 4
    assert run.sql("select distinct sample from captures order by all")["sample"].to_list() == samples
    assert run.sql("select count(*) as n from inputs")["n"].item() == COUNT


def test_what_needs_all_activations_says_so(run: calibrant.Run) -> None:
    part = "only the activations of 4 of 11 samples were kept .--keep raw:4.; capture again with --keep raw"
    with pytest.raises(RunError, match=f"fit --exact needs the activations of all samples, and {part}"):
        calibrant.fit(run, exact=True)
    with pytest.raises(RunError, match=f"calibrant stats needs the activations of all samples, and {part}"):
        calibrant.stats(run)
    assert calibrant.fit(run).info.fits


def test_as_many_as_there_are_serve_as_all(tmp_path: Path, model: Path) -> None:
    run = calibrant.capture(model, [{"x": images()}], run=tmp_path / "r", keep=f"raw:{COUNT}")
    before = run.read("samples").sort("tensor_id", "sample")
    calibrant.fit(run, exact=True)
    assert calibrant.stats(run).read("samples").sort("tensor_id", "sample").equals(before)


def test_a_run_is_reused_for_the_same_choice_only(tmp_path: Path, model: Path, run: calibrant.Run) -> None:
    again = calibrant.capture(model, [{"x": images()}], run=run.path, keep="raw:4")
    assert "capture skipped" in again.read("events")["message"].str.join(" ").item()
    with pytest.raises(RunError, match="keep is raw:4, asked for raw; pass --restart"):
        calibrant.capture(model, [{"x": images()}], run=run.path)


def test_balancing_reads_the_data_once_more(tmp_path: Path, model: Path) -> None:
    config = tmp_path / "dmq.cfg"
    config.write_text(DMQ, encoding="utf-8")
    runs = {}
    for keep in ("raw", "raw:4", "stats"):
        runs[keep] = calibrant.run(model, [{"x": images()}], run=tmp_path / keep, config=config, keep=keep)
    tables = [run.read("quant_params") for run in runs.values()]
    assert tables[1].equals(tables[0])
    assert tables[2].equals(tables[0])
    assert runs["raw"].read("balance").height
    said = runs["raw:4"].read("events").filter(pl.col("message").str.contains("a second time"))["message"].item()
    assert "since only the activations of 4 of 11 samples were kept" in said
    with pytest.raises(DataError, match="reads it twice where not all activations are kept, and it can be read once"):
        calibrant.run(model, iter([{"x": images()}]), run=tmp_path / "once", config=config, keep="raw:4")
