"""The prepared model saved and checked beside its capture: which error wins, and that nothing stays behind, whatever ends first."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import calibrant
from calibrant.errors import DataError, ModelError
from calibrant.ingest import saving
from calibrant.ingest.model import PreparedModel, load_prepared, prepare_model
from calibrant.ingest.model_message import ModelMessage
from calibrant.ingest.saving import saved_beside
from calibrant.ingest.session import loads
from calibrant.stats.events import Progress
from tests import models

Array = npt.NDArray[Any]
SECONDS = 60  # until a thread that waits for what never comes gives up


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("save")] == []


def no_progress(*_: object) -> None:
    pass


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedModel:
    return prepare_model(models.save(models.conv_relu(), tmp_path / "m.onnx"))


@pytest.fixture
def refused(tmp_path: Path) -> PreparedModel:
    return prepare_model(refused_model(tmp_path))


def refused_model(folder: Path) -> Path:
    """Save a model that onnxruntime refuses for a node behind all that is captured."""
    proto = models.conv_relu()
    proto.graph.node.append(models.node("Frobnicate", [proto.graph.output[0].name], "z", "strange", domain="my.domain"))
    proto.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    proto.graph.output[0].name = "z"
    return models.save(proto, folder / "refused.onnx")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the check begin only once this is set."""
    event = threading.Event()

    def checks_later(model: ModelMessage) -> bool:
        assert event.wait(SECONDS)
        return loads(model)

    monkeypatch.setattr(saving, "loads", checks_later)
    return event


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once the thread has saved and checked, well or not."""
    event, save = threading.Event(), saving.save_checked

    def saves(*given: object) -> None:
        try:
            save(*given)  # type: ignore[arg-type]
        finally:
            event.set()

    monkeypatch.setattr(saving, "save_checked", saves)
    return event


def run_beside(
    prepared: PreparedModel, folder: Path, block: Callable[[Progress], None], progress: Progress = no_progress
) -> None:
    """Run a block beside the saving of a model."""
    with saved_beside(prepared, folder, progress) as report:
        block(report)


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's files."""
    return sorted(file.name for file in folder.iterdir())


def wrong_samples(_report: Progress) -> None:
    message = "the samples are wrong"
    raise DataError(message)


def test_what_was_saved_is_the_model(prepared: PreparedModel, tmp_path: Path) -> None:
    run_beside(prepared, tmp_path, lambda _report: None)
    assert load_prepared(tmp_path / "model").tensors == prepared.tensors


def test_the_block_runs_while_the_check_waits(
    prepared: PreparedModel, tmp_path: Path, held: threading.Event, ended: threading.Event
) -> None:
    steps: list[int] = []

    def block(report: Progress) -> None:
        report("capture", 1, 2)
        assert not ended.is_set()
        held.set()

    run_beside(prepared, tmp_path, block, lambda _stage, done, _total: steps.append(done))
    assert steps == [1]
    assert ended.is_set()


def test_the_error_of_the_model_wins_where_it_comes_last(
    refused: PreparedModel, tmp_path: Path, held: threading.Event, ended: threading.Event
) -> None:
    def block(report: Progress) -> None:
        assert not ended.is_set()
        threading.Timer(0.1, held.set).start()
        wrong_samples(report)

    with pytest.raises(ModelError, match=r"onnxruntime refuses the model: .*Frobnicate"):
        run_beside(refused, tmp_path, block)


def test_the_error_of_the_model_wins_where_it_comes_first(
    refused: PreparedModel, tmp_path: Path, ended: threading.Event
) -> None:
    def block(report: Progress) -> None:
        assert ended.wait(SECONDS)
        wrong_samples(report)

    with pytest.raises(ModelError, match=r"onnxruntime refuses the model: .*Frobnicate"):
        run_beside(refused, tmp_path, block)


def test_an_error_of_the_block_alone_stays_what_it_is(prepared: PreparedModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the samples are wrong"):
        run_beside(prepared, tmp_path, wrong_samples)


def test_a_refused_model_ends_the_block_at_its_next_batch(refused: PreparedModel, tmp_path: Path) -> None:
    def block(report: Progress) -> None:
        for batch in range(SECONDS * 100):
            report("capture", batch, 0)
            time.sleep(0.01)
        pytest.fail("it went on")

    with pytest.raises(ModelError, match="onnxruntime refuses"):
        run_beside(refused, tmp_path, block)


def test_an_interrupt_waits_for_the_thread_and_stays_an_interrupt(
    refused: PreparedModel, tmp_path: Path, held: threading.Event, ended: threading.Event
) -> None:
    def block(_report: Progress) -> None:
        threading.Timer(0.1, held.set).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_beside(refused, tmp_path, block)
    assert ended.is_set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_a_full_disk_is_told_as_such(prepared: PreparedModel, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "prepared.onnx").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device"):
        run_beside(prepared, tmp_path, wrong_samples)


def test_weights_in_files_are_saved_before_the_block(tmp_path: Path) -> None:
    path, names = tmp_path / "m.onnx", list[str]()
    onnx.save(models.conv_relu(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    run_beside(prepare_model(path), tmp_path, lambda _report: names.extend(names_in(tmp_path / "model")))
    assert names == ["prepared.onnx", "prepared.onnx.data"]


def test_a_model_is_saved_before_the_block_where_nothing_may_run_beside(
    prepared: PreparedModel, tmp_path: Path
) -> None:
    with saved_beside(prepared, tmp_path, no_progress, alone=True):
        names = names_in(tmp_path / "model")
    assert names == ["prepared.onnx"]


def captured(model: Path, folder: Path, samples: Sequence[Mapping[str, Array]]) -> object:
    return calibrant.capture(model, samples, run=folder / "run")


GOOD: Final = ({"x": np.ones((1, 3, 8, 8), np.float32)},)
BAD: Final = ({"x": np.full((1, 3, 8, 8), np.nan, np.float32)},)


def test_a_capture_leaves_nothing_where_the_model_and_the_samples_are_bad(
    tmp_path: Path, held: threading.Event
) -> None:
    model = refused_model(tmp_path)
    threading.Timer(0.3, held.set).start()
    with pytest.raises(ModelError, match=r"onnxruntime refuses the model: .*Frobnicate"):
        captured(model, tmp_path, BAD)
    assert names_in(tmp_path) == ["refused.onnx"]


def test_a_capture_of_bad_samples_says_so_where_the_model_is_good(tmp_path: Path) -> None:
    model = models.save(models.conv_relu(), tmp_path / "m.onnx")
    with pytest.raises(DataError, match="NaN"):
        captured(model, tmp_path, BAD)
    assert names_in(tmp_path) == ["m.onnx"]


def test_a_capture_leaves_nothing_where_the_disk_is_full_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    def full(_prepared: PreparedModel, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "prepared.onnx").write_bytes(b"half")
        assert held.wait(SECONDS)
        raise OSError(ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(saving, "save_prepared", full)
    threading.Timer(0.3, held.set).start()
    model = models.save(models.conv_relu(), tmp_path / "m.onnx")
    with pytest.raises(OSError, match="No space left on device"):
        captured(model, tmp_path, GOOD)
    assert names_in(tmp_path) == ["m.onnx"]


def test_an_interrupted_capture_leaves_nothing(tmp_path: Path, held: threading.Event) -> None:
    def samples() -> Iterator[Mapping[str, Array]]:
        yield from GOOD
        threading.Timer(0.3, held.set).start()
        raise KeyboardInterrupt

    model = models.save(models.conv_relu(), tmp_path / "m.onnx")
    with pytest.raises(KeyboardInterrupt):
        calibrant.capture(model, samples(), run=tmp_path / "run")
    assert names_in(tmp_path) == ["m.onnx"]


def test_an_old_run_stays_where_the_new_model_is_refused(tmp_path: Path) -> None:
    captured(models.save(models.conv_relu(), tmp_path / "m.onnx"), tmp_path, GOOD)
    before = calibrant.open_run(tmp_path / "run").info
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        calibrant.capture(refused_model(tmp_path), GOOD, run=tmp_path / "run", restart=True)
    assert calibrant.open_run(tmp_path / "run").info == before
    assert names_in(tmp_path) == ["m.onnx", "refused.onnx", "run"]
