"""Batches: which samples are joined, what fixed batches do, and what batch_num limits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibrant.errors import ConfigError, DataError, ModelError, RunError
from calibrant.ingest.batches import Limit, LimitedSamples, fixed_batch, join, make_batches, resolve_batch_size
from calibrant.ingest.capture_pass import singles_after
from calibrant.ingest.data import open_data
from calibrant.ingest.memory_plan import RunSize
from calibrant.ingest.model import ModelInput
from calibrant.ingest.samples import Sample, make_sample
from calibrant.ingest.verify_inputs import VerifyInputs, load_verify_inputs, save_verify_inputs

F32 = np.dtype("float32")
X = ModelInput("x", F32, ("N", "L"), 0)
STATE = ModelInput("state", F32, (2, "N", 3), 1)
RATE = ModelInput("rate", np.dtype("int64"), (), None)


def sample(value: float = 0, length: int = 4, rate: int = 8) -> Sample:
    values = {
        "x": np.full((1, length), value, np.float32),
        "state": np.full((2, 1, 3), value, np.float32),
        "rate": np.array(rate, np.int64),
    }
    return make_sample(values, "test", 0)


def sizes(samples: list[Sample], size: int) -> list[int]:
    return [len(batch.samples) for batch in make_batches(samples, [X, STATE, RATE], size)]


def test_batches_are_full_but_the_last() -> None:
    batches = list(make_batches([sample(i) for i in range(7)], [X], 3))
    assert [list(batch.numbers) for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_only_neighbours_of_equal_shape_are_joined() -> None:
    assert sizes([sample(length=n) for n in (5, 5, 7, 7, 7, 5)], 2) == [2, 2, 1, 1]


def test_a_scalar_input_is_the_same_in_all_samples_of_a_batch() -> None:
    assert sizes([sample(rate=r) for r in (8, 8, 16, 16, 16)], 8) == [2, 3]


def test_joining_along_each_batch_axis_with_repeated_filler() -> None:
    feed = join([sample(1), sample(2)], [X, STATE, RATE], 4)
    assert feed["x"][:, 0].tolist() == [1, 2, 2, 2]
    assert feed["state"].shape == (2, 4, 3)
    assert feed["state"][1, :, 2].tolist() == [1, 2, 2, 2]
    assert feed["rate"].shape == ()


def spec(*shape: int | str | None, axis: int | None = 0, name: str = "x") -> ModelInput:
    return ModelInput(name, F32, shape, axis)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([spec("N", 3)], None),
        ([spec(None, 3)], None),
        ([spec(4, 3)], 4),
        ([spec(2, "batch", 3, axis=1)], None),
        ([spec("N", 3), spec(1, 2, name="y")], 1),
        ([spec("N", 3), spec(axis=None, name="y")], None),
        ([spec(5, axis=None)], 1),
    ],
)
def test_fixed_batch(inputs: list[ModelInput], expected: int | None) -> None:
    assert fixed_batch(inputs) == expected


def test_different_fixed_batches() -> None:
    with pytest.raises(ModelError, match="different fixed batch sizes: 'x' 4, 'y' 2"):
        fixed_batch([spec(4, 3), spec(2, 3, name="y")])


def test_batch_size() -> None:
    assert resolve_batch_size([spec("N", 3)], None) == 8
    assert resolve_batch_size([spec("N", 3)], 5) == 5
    assert resolve_batch_size([spec(4, 3)], None) == 4
    assert resolve_batch_size([spec(4, 3)], 4) == 4
    with pytest.raises(ConfigError, match="--batch-size: 2, but the model takes batches of 4 only"):
        resolve_batch_size([spec(4, 3)], 2)
    with pytest.raises(ConfigError, match="--batch-size: 0 is no batch size"):
        resolve_batch_size([spec("N", 3)], 0)


def feeds(count: int) -> Iterator[dict[str, np.ndarray]]:
    return ({"x": np.full((1, 2), i, np.float32)} for i in range(count))


def npz(folder: Path, count: int) -> Path:
    np.savez(folder / "x.npz", x=np.zeros((count, 2), np.float32))
    return folder / "x.npz"


def test_batch_num_uses_the_first_samples(tmp_path: Path) -> None:
    samples = LimitedSamples(open_data(npz(tmp_path, 20), [X]), Limit(2, 4))
    assert samples.count == 8
    assert len(list(samples)) == 8
    assert [e.message for e in samples.events] == ["batch_num 2 x batch size 4: 20 samples given, 8 used"]


@pytest.mark.parametrize(("count", "given"), [(6, "6"), (9, "more than 6")])
def test_batch_num_on_a_stream(count: int, given: str) -> None:
    samples = LimitedSamples(open_data(feeds(count), [X]), Limit(2, 3))
    assert len(list(samples)) == 6
    assert samples.events[0].message == f"batch_num 2 x batch size 3: {given} samples given, 6 used"


def test_batch_num_beyond_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"asks for 24 samples, the data has 20; give more data"):
        LimitedSamples(open_data(npz(tmp_path, 20), [X]), Limit(3, 8))
    with pytest.raises(DataError, match=r"batch_num 3 x batch size 8 asks for 24 samples, the data has 5"):
        list(LimitedSamples(open_data(feeds(5), [X]), Limit(3, 8)))


def test_without_batch_num_all_samples_are_used() -> None:
    samples = LimitedSamples(open_data(feeds(5), [X]), None)
    assert len(list(samples)) == 5
    assert samples.count is None
    assert samples.events == []


# --- inputs kept for verify ---------------------------------------------------------------------------------------


def kept(samples: list[Sample]) -> list[str]:
    choice = VerifyInputs()
    for one in samples:
        choice.offer([one])
    return [s.key for s in choice.chosen()]


def test_verify_keeps_the_four_least_keys_in_any_order() -> None:
    samples = [sample(i) for i in range(20)]
    least = sorted(s.key for s in samples)[:4]
    assert kept(samples) == kept(samples[::-1]) == kept([*samples, *samples]) == least


def test_verify_keeps_at_most_64_mb_but_at_least_one() -> None:
    def big(value: int, megabytes: int) -> Sample:
        return Sample({"x": np.empty((1, megabytes << 18), np.float32)}, f"{value}", "test", 0)

    assert kept([big(i, 30) for i in range(4)]) == ["0", "1"]
    assert kept([big(i, 70) for i in range(2)]) == ["0"]


def test_verify_inputs_round_trip(tmp_path: Path) -> None:
    samples = [sample(1), sample(2, length=6)]
    samples[0].values["odd/name:0"] = np.arange(3)
    save_verify_inputs(tmp_path, [s.values for s in samples])
    loaded = load_verify_inputs(tmp_path)
    assert [list(feed) for feed in loaded] == [list(s.values) for s in samples]
    for feed, one in zip(loaded, samples, strict=True):
        for name, value in one.values.items():
            np.testing.assert_array_equal(feed[name], value)
            assert feed[name].dtype == value.dtype


def test_missing_verify_inputs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"kept model inputs cannot be read.*--data"):
        load_verify_inputs(tmp_path)


def test_from_a_sample_on_each_is_a_batch_of_its_own() -> None:
    batches = make_batches([sample(i) for i in range(8)], [X], 3, first=2, singly_from=8)
    assert [list(batch.numbers) for batch in batches] == [[2, 3, 4], [5, 6, 7], [8], [9]]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("at_once", [1, 2, 6])
@pytest.mark.parametrize("count", range(2, 60))
def test_samples_left_after_whole_rounds_run_alone_where_each_has_a_thread(
    count: int, at_once: int, threads: int
) -> None:
    left, start = count - 2, 2
    while left >= at_once * threads:
        left, start = left - at_once * threads, start + at_once * threads
    expected = start if left <= threads else None
    assert singles_after(2, count, RunSize(at_once, threads)) == expected
