"""A capture in small runs on several workers: the same files every time, the first error, nothing left behind, bounded memory."""

import math
import os
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import models
import naive
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import polars as pl
import pytest
from blocked_models import CASES, Case, Feed, Graph, chain, images
from capture_twins import assert_activations_are, assert_tables_are, exposing, one_at_a_time, twins
from test_memory import grouped

import calibrant
from calibrant.errors import DataError, ModelError
from calibrant.ingest.batches import Batch
from calibrant.ingest.model import CapturedTensor, ModelInput
from calibrant.ingest.recorder import Recorder
from calibrant.ingest.runner import BatchRunner, Rows
from calibrant.ingest.sample_axis import Kind, Layout, Probe
from calibrant.ingest.samples import make_sample
from calibrant.ingest.session import InferenceError

Array = npt.NDArray[Any]

KEEPS = ("raw", "raw:2", "stats")


@pytest.fixture(params=[1, 2, 5], ids=["1 core", "2 cores", "5 cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many cores, and threads that take turns as often as they can."""
    return with_cores(monkeypatch, request.param)


def with_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    return count


@pytest.fixture(autouse=True)
def _frequent_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """No thread outlives a capture, however it ends."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def fragile() -> Graph:
    """x [N,3,H,W] -> Conv 'c' of large weights -> Relu 'r' -> Conv 'd', which takes no image narrower than 3 -> Sigmoid 's'.

    A value of 1e37 in x makes 'r' infinite; in 's' nothing is infinite ever.
    """
    g = Graph(x=["N", 3, "H", "W"])
    g.conv("x", "c", (3, 16))
    g.weights["w_c"] = np.abs(g.weights["w_c"]) * np.float32(100)
    g.add("Relu", "c", "r")
    g.conv("r", "d", (16, 24), pads=[0, 0, 0, 0])
    g.add("Sigmoid", "d", "s")
    g.look("s", 24)
    return g


def feeds_with(count: int = 9, **bad: Sequence[int]) -> list[Feed]:
    """Images of which some are bad: overflow, nan, inf or narrow."""
    feeds = images(count, 3, 5, 4)
    for index in bad.get("overflow", ()):
        feeds[index]["x"][0, 1, 2, 1] = 1e37
    for index in bad.get("nan", ()):
        feeds[index]["x"][0, 0, 0, 0] = np.nan
    for index in bad.get("inf", ()):
        feeds[index]["x"][0, 2, 4, :2] = np.inf
    for index in bad.get("narrow", ()):
        feeds[index] = {"x": feeds[index]["x"][..., :2]}
    return feeds


def files_of(folder: Path, *names: str) -> dict[str, bytes]:
    """The bytes of every file below some folders."""
    found = (path for name in names for path in sorted((folder / name).rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# --- the same files ----------------------------------------------------------------------------------------------

SAME = ("residuals in a row", "concatenated along channels", "images of many sizes", "a value that no sample changes")


@pytest.mark.parametrize("name", SAME)
def test_captures_of_the_same_data_are_the_same_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CASES[name]()
    path, first = models.save(found.proto, tmp_path / "m.onnx"), dict[str, bytes]()
    for number, count in enumerate((2, 2, 1, 5)):
        with_cores(monkeypatch, count)
        calibrant.capture(path, found.feeds, run=tmp_path / str(number), batch_size=2)
        files = files_of(tmp_path / str(number), "tables", "captures", "model")
        first = first or files
        assert list(files) == list(first)
        assert [one for one in files if files[one] != first[one]] == []


def test_samples_of_uneven_size_stay_in_order(tmp_path: Path, cores: int) -> None:
    """The first of each run takes far longer than the others, so that workers finish in another order than they began."""
    feeds = [images(1, 3, *((17, 40) if i % 4 == 0 else (3, 3 + i % 2)), seed=i)[0] for i in range(24)]
    found = Case(fragile().proto(), feeds, ("x", "r", "s"))
    path = models.save(found.proto, tmp_path / "m.onnx")
    run = calibrant.capture(path, iter(feeds), run=tmp_path / "run", batch_size=cores)
    expected = twins(run.prepared_file, found.observed, feeds)
    assert_tables_are(run.path, expected, range(len(feeds)))
    assert_activations_are(run.path, expected, range(len(feeds)), None)
    inputs = run.read("inputs")
    assert inputs["sample"].to_list() == inputs["source"].str.extract(r"feed (\d+)").cast(int).to_list()
    assert inputs["sample"].to_list() == list(range(len(feeds)))


def test_a_caller_that_reuses_its_array(tmp_path: Path, cores: int) -> None:
    found, buffer = chain(16, (4, 4), 17), np.empty((1, 3, 4, 4), np.float32)

    def feeds() -> Iterator[Feed]:
        for feed in found.feeds:
            buffer[...] = feed["x"]
            yield {"x": buffer}
            buffer[...] = np.nan

    path = models.save(found.proto, tmp_path / "m.onnx")
    run = calibrant.capture(path, feeds(), run=tmp_path / "run", batch_size=cores)
    expected = twins(run.prepared_file, found.observed, found.feeds)
    assert_tables_are(run.path, expected, range(17))
    assert_activations_are(run.path, expected, range(17), None)


def test_two_captures_at_once(tmp_path: Path) -> None:
    path = models.save(CASES["dense block"]().proto, tmp_path / "m.onnx")
    feeds = [images(9, 3, 4, 4, seed=seed) for seed in range(2)]

    def one(number: int) -> Path:
        return calibrant.capture(path, feeds[number % 2], run=tmp_path / str(number), keep="stats", batch_size=2).path

    alone = [files_of(one(number), "tables") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        together = [files_of(folder, "tables") for folder in pool.map(one, range(2, 6))]
    for number, files in enumerate(together):
        assert [name for name in files if files[name] != alone[number % 2][name]] == []


PARTED = ("residuals in a row", "residual, all observed", "dense block", "pools of 24 channels", "images of many sizes")


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("name", PARTED)
def test_tensors_observed_in_groups_are_the_same(
    name: str, groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little memory the data is read once for each group of tensors, and no bit depends on what else is observed."""
    found = CASES[name]()
    grouped(monkeypatch, groups)
    path, order = models.save(found.proto, tmp_path / "m.onnx"), range(len(found.feeds))
    for keep, kept in (("raw", None), ("raw:2", 2)):
        run = calibrant.capture(path, found.feeds, run=tmp_path / "run", keep=keep, batch_size=2, restart=True)
        expected = twins(run.prepared_file, found.observed, found.feeds)
        assert_tables_are(run.path, expected, order)
        assert_activations_are(run.path, expected, order, kept)


# --- the first error ---------------------------------------------------------------------------------------------


def first_fault(proto: onnx.ModelProto, observed: Sequence[str], feeds: Sequence[Feed]) -> str:
    """What has to be said: the first sample that has NaN or infinity, and the first of its tensors."""
    arrays = one_at_a_time(proto, observed, feeds)
    for sample in range(len(feeds)):
        for name in observed:
            found = naive.histogram(arrays[name][sample])
            counts = [(found.n_nan, "NaN", "NaN"), (found.n_inf, "infinity", "infinities")]
            told = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
            if told:
                node = "a model input" if name == "x" else f"node 'n_{name}'"
                return f"tensor '{name}'.*{node}.*: {' and '.join(told)} in sample {sample} "
    raise AssertionError


BAD: dict[str, dict[str, Sequence[int]]] = {
    "in the middle of the model": {"overflow": [4]},
    "in the input": {"nan": [7]},
    "the last sample": {"overflow": [8]},
    "the first sample": {"inf": [0]},
    "an early sample late in the model": {"overflow": [3], "nan": [4, 5], "inf": [6]},
    "everywhere behind": {"nan": range(2, 9)},
    "one early, all late": {"overflow": [5, 6, 7, 8], "nan": [7, 8]},
}


@pytest.mark.parametrize("name", BAD)
def test_the_first_bad_sample_and_tensor_are_named(name: str, tmp_path: Path, cores: int) -> None:
    proto, feeds = fragile().proto(), feeds_with(**BAD[name])
    path, told = models.save(proto, tmp_path / "m.onnx"), first_fault(proto, ("x", "r", "s"), feeds)
    for keep, batch_size in zip((*KEEPS, "stats"), (8, 1, 3, 2), strict=True):
        with pytest.raises(DataError, match=told):
            calibrant.capture(path, feeds, run=tmp_path / "new/run", keep=keep, batch_size=batch_size)
        assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"], cores


def test_a_tensor_between_others_is_named(tmp_path: Path, cores: int) -> None:
    """Many tensors behind the first bad one are bad as well, on branches that nothing orders."""
    g = Graph(x=["N", 3, 4, 3])
    for i, channels in enumerate((16, 24, 40, 8)):
        g.conv("x", f"c{i}", (3, channels))
        g.add("Exp", f"c{i}", f"e{i}")
        g.look(f"e{i}", channels)
    for i in range(4):
        g.weights[f"w_c{i}"] *= np.float32(1 if i == 0 else 3)
        g.weights[f"b_c{i}"] += np.float32(1)
    feeds = images(7, 3, 4, 3)
    feeds[4]["x"] += np.float32(5 * 17)
    feeds[6]["x"] *= np.float32(1e4)
    proto, observed = g.proto(), ("x", "e0", "e1", "e2", "e3")
    path, told = models.save(proto, tmp_path / "m.onnx"), first_fault(proto, observed, feeds)
    messages = set()
    for batch_size in (1, 2, 4, 8) * 2:
        with pytest.raises(DataError, match=told) as error:
            calibrant.capture(path, feeds, run=tmp_path / "run", keep="stats", batch_size=batch_size)
        messages.add(str(error.value))
    assert len(messages) == 1, cores


@pytest.mark.parametrize("narrow", [[0], [2, 7], [8], [3, 4, 5]])
def test_the_first_sample_that_onnxruntime_refuses_is_named(narrow: list[int], tmp_path: Path, cores: int) -> None:
    path = models.save(fragile().proto(), tmp_path / "m.onnx")
    feeds = feeds_with(narrow=narrow, nan=[8] if narrow == [2, 7] else ())
    for keep, batch_size in zip(KEEPS, (8, 2, 1), strict=True):
        with pytest.raises(DataError, match=f"sample {narrow[0]} .*: onnxruntime cannot run the model on it"):
            calibrant.capture(path, feeds, run=tmp_path / "run", keep=keep, batch_size=batch_size)
        assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"], cores


@pytest.mark.parametrize(("nan", "narrow"), [(1, 2), (1, 5), (1, 8), (4, 5)])
def test_the_first_bad_sample_is_named_whatever_is_wrong_with_it(
    nan: int, narrow: int, tmp_path: Path, cores: int
) -> None:
    """A sample has NaN, and onnxruntime refuses a later one, which it may see before the values of the first are counted."""
    path, feeds = models.save(fragile().proto(), tmp_path / "m.onnx"), feeds_with(nan=[nan], narrow=[narrow])
    for batch_size in (1, 2, 3, 8):
        with pytest.raises(DataError, match=f"tensor 'x' .*: 1 NaN in sample {nan} "):
            calibrant.capture(path, feeds, run=tmp_path / "run", batch_size=batch_size)
        assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"], cores


def test_a_model_that_onnxruntime_refuses_is_the_error_whatever_the_data(tmp_path: Path, cores: int) -> None:
    """The node that it does not know lies behind everything that is observed, so that a capture could run."""
    proto = fragile().proto()
    proto.graph.node.append(models.node("Frobnicate", [proto.graph.output[0].name], "z", "strange", domain="my.domain"))
    proto.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    proto.graph.output[0].name = "z"
    path = models.save(proto, tmp_path / "m.onnx")
    for feeds in (feeds_with(), feeds_with(nan=[0]), feeds_with(narrow=[1]), feeds_with(overflow=[8])):
        with pytest.raises(ModelError, match=r"onnxruntime refuses the model: .*Frobnicate"):
            calibrant.capture(path, feeds, run=tmp_path / "a/run", batch_size=2)
        assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"], cores


def test_a_capture_that_fails_leaves_the_run_that_stands(tmp_path: Path) -> None:
    path = models.save(fragile().proto(), tmp_path / "m.onnx")
    run = calibrant.capture(path, feeds_with(), run=tmp_path / "run")
    before = files_of(run.path, ".")
    for feeds in (feeds_with(overflow=[6]), feeds_with(narrow=[5])):
        with pytest.raises(DataError):
            calibrant.capture(path, feeds, run=tmp_path / "run", batch_size=2, restart=True)
    assert files_of(run.path, ".") == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.onnx", "run"]


# --- interrupts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("at", [0, 1, 6, 11, 12])
def test_progress_that_raises_leaves_nothing(at: int, error: type[BaseException], tmp_path: Path, cores: int) -> None:
    path = models.save(chain(24, (5, 3)).proto, tmp_path / "m.onnx")

    def stop(_: str, done: int, __: int) -> None:
        if done >= at:
            raise error

    feeds, keep = images(12, 3, 5, 3), KEEPS[(at + cores) % 3]
    with pytest.raises(error):
        calibrant.capture(path, feeds, run=tmp_path / "a/run", keep=keep, batch_size=2, progress=stop)
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]
    assert calibrant.capture(path, feeds, run=tmp_path / "a/run").info.samples == 12


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_data_that_raises_leaves_nothing(at: int, error: type[BaseException], tmp_path: Path, cores: int) -> None:
    path = models.save(chain(24, (5, 3)).proto, tmp_path / "m.onnx")

    def feeds() -> Iterator[Feed]:
        for i, feed in enumerate(images(12, 3, 5, 3)):
            if i == at:
                raise error
            yield feed

    with pytest.raises((error, calibrant.CalibrantError)):
        calibrant.capture(path, feeds(), run=tmp_path / "a/run", keep=KEEPS[(at + cores) % 3], batch_size=2)
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


# --- progress ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "count", "batch_size"),
    [("npz", 17, 4), ("npz", 1, 8), ("list", 5, 2), ("list", 8, 8), ("iterator", 9, 1), ("iterator", 17, 3)],
)
def test_progress_rises_to_the_total(source: str, count: int, batch_size: int, tmp_path: Path, cores: int) -> None:
    path, feeds = models.save(chain(16, (3, 3)).proto, tmp_path / "m.onnx"), images(count, 3, 3, 3)
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    data = {"npz": tmp_path / "x.npz", "list": feeds, "iterator": iter(feeds)}[source]
    seen: list[tuple[str, int, int]] = []
    callers = set()

    def progress(*step: Any) -> None:
        seen.append(step)
        callers.add(threading.current_thread())

    calibrant.capture(path, data, run=tmp_path / "run", keep="stats", batch_size=batch_size, progress=progress)
    assert callers == {threading.main_thread()}, cores
    done, totals = [step[1] for step in seen], {step[2] for step in seen}
    assert {step[0] for step in seen} == {"capture"}
    assert seen[0] == ("capture", 0, 0)
    assert seen[-1] == ("capture", count, count)
    assert done == sorted(done)
    assert totals <= {0, count}  # 0 where it is not known yet
    assert len(set(done)) > math.ceil(count / batch_size)  # told at least once a batch, and at the start


def test_a_constant_is_of_the_first_batch_whichever_was_folded_first(tmp_path: Path) -> None:
    """Its NaN come before those that they caused in the samples, as with one thread."""
    tensors = [CapturedTensor(number, name, name.upper(), False, 1, None) for number, name in enumerate("ca")]
    layouts = [Layout(Kind.CONSTANT, None), Layout(Kind.SPLIT, 0)]
    values = np.full((1, 1, 4), np.nan, np.float32)
    batch = Batch(0, (make_sample({"x": np.ones((1, 4), np.float32)}, "x", 0),))
    with Recorder(tmp_path, tensors, layouts, keep_raw=False) as recorder:
        recorder.record({0: [Rows((-1,), values)], 1: [Rows((1,), values)]})
        first = recorder.record({0: [Rows((-1,), values)], 1: [Rows((0,), values)]})
        with pytest.raises(DataError, match=r"tensor 'c' .* in all samples"):
            recorder.finish(batch, first)


def test_values_of_a_constant_go_to_the_table_once_in_the_order_of_the_batches(tmp_path: Path) -> None:
    tensors, layouts = [CapturedTensor(0, "c", "C", False, 1, None)], [Layout(Kind.CONSTANT, None)]
    batches = [Batch(first, (make_sample({"x": np.ones((1, 4), np.float32)}, "x", first),)) for first in range(3)]
    with Recorder(tmp_path, tensors, layouts, keep_raw=False) as recorder:
        found = {
            batch.first: recorder.record({0: [Rows((-1,), np.full((1, 1, 4), batch.first % 2, np.float32))]})
            for batch in reversed(batches)
        }
        for batch in batches:
            recorder.finish(batch, found[batch.first])
        recorder.close()
    rows = pl.read_parquet(tmp_path / "tables" / "samples" / "*.parquet")
    assert rows["max"].to_list() == [0, 1]
    assert recorder.folds[0].statistics.counters()["n"] == 8


def test_a_sample_that_is_refused_alone_though_not_with_others_is_named() -> None:
    def run(feed: Mapping[str, Array]) -> list[Array]:
        if len(feed["x"]) == 1:
            message = "no"
            raise InferenceError(message)
        return [feed["x"]]

    inputs = [ModelInput("x", np.dtype("float32"), ("N", 4), 0)]
    tensors = [CapturedTensor(0, "x", "", True, 1, None)]
    runner = BatchRunner(run, inputs, tensors, Probe((Layout(Kind.SPLIT, 0),), False, ()))
    samples = tuple(make_sample({"x": np.full((1, 4), n, np.float32)}, "x.npz", n) for n in (4, 5))
    with pytest.raises(DataError, match=r"^sample 4 \(x.npz\[4\]\): onnxruntime cannot run the model on it: no"):
        runner.rows(Batch(4, samples))


@pytest.mark.parametrize("step", ["first rename", "second rename", "removal"])
def test_an_interrupt_while_a_new_run_takes_the_place_of_an_old_one(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two stands there, whole, and nothing lies beside it."""
    path = models.save(chain(24, (9, 9)).proto, tmp_path / "m.onnx")
    place, old, new = tmp_path / "runs" / "r", images(2, 3, 9, 9), images(3, 3, 9, 9)
    calibrant.capture(path, old, run=place, keep="stats")
    real, moved = Path.rename, [0]

    def rename(source: Path, target: Path) -> Path:
        moved[0] += source.is_dir()
        if source.is_dir() and moved[0] == {"first rename": 1, "second rename": 2}.get(step):
            raise KeyboardInterrupt
        return real(source, target)

    def interrupted(folder: Path) -> None:
        (folder / "run.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", rename)
    if step == "removal":
        monkeypatch.setattr(calibrant.capturing, "remove_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrant.capture(path, new, run=place, keep="stats", restart=True)
    assert [one.name for one in place.parent.iterdir()] == ["r"]
    assert calibrant.open_run(place).info.samples == (3 if step == "removal" else 2)


# --- memory ------------------------------------------------------------------------------------------------------


def test_few_samples_are_read_ahead(tmp_path: Path, cores: int) -> None:
    """Two batches of 4, the next, and one that each worker is at: no more of 96 samples are read and not yet done."""
    path = models.save(chain(24, (9, 9)).proto, tmp_path / "m.onnx")
    done, ahead = [0], [0]

    def feeds() -> Iterator[Feed]:
        for i, feed in enumerate(images(96, 3, 9, 9)):
            ahead[0] = max(ahead[0], i - done[0])
            yield feed

    def progress(_: str, samples: int, __: int) -> None:
        done[0] = samples

    calibrant.capture(path, feeds(), run=tmp_path / "run", keep="stats", batch_size=4, progress=progress)
    assert ahead[0] <= 4 * (cores + 3)


@pytest.mark.parametrize("keep", ["raw:2", "stats"])
def test_the_peak_of_memory_does_not_grow(keep: str, tmp_path: Path, cores: int) -> None:
    """Counted by numpy's allocations: the peaks of 64 samples of 0.5 MB and of 16 differ by a few samples at most."""
    g = Graph(x=["N", 32, 64, 64])
    g.conv("x", "c", (32, 16), (1, 1), strides=[2, 2])
    g.add("Relu", "c", "r")
    g.look("r", 16)
    path, sample_bytes = models.save(g.proto(), tmp_path / "m.onnx"), 32 * 64 * 64 * 4

    def peak(count: int) -> int:
        feeds = ({"x": np.full((1, 32, 64, 64), i, np.float32)} for i in range(count))
        tracemalloc.start()
        calibrant.capture(path, feeds, run=tmp_path / str(count), keep=keep, batch_size=2)
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reached

    peak(4)  # what is loaded and compiled once
    assert peak(64) - peak(16) < (12 + 2 * cores) * sample_bytes


# --- what the expectations stand on ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["residuals in a row", "pools of 24 channels", "activations of 16 channels", "attention"]
)
def test_the_options_of_a_capture_are_all_optimizations_in_order(name: str) -> None:
    """The plain session takes its options from the package; these give the same bits as onnxruntime's own level "all"."""
    found = CASES[name]()
    names = [one for one in found.observed if one not in found.feeds[0]]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 1
    source = exposing(found.proto, names).SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    expected = one_at_a_time(found.proto, names, found.feeds[:1])
    for output, array in zip(names, session.run(names, dict(found.feeds[0])), strict=True):
        assert array.tobytes() == expected[output][0].tobytes(), output
