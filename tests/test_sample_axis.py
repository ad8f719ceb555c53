"""The probe: where tensors hold their samples, found by comparing bits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from calibrant.ingest.model import CapturedTensor, ModelInput
from calibrant.ingest.sample_axis import Kind, Layout, Probe, equal_bits, probe
from calibrant.ingest.samples import Sample, make_sample
from calibrant.ingest.session import InferenceError

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
F32 = np.dtype("float32")
DYNAMIC = ModelInput("x", F32, ("N", 2, 4), 0)
FIXED = ModelInput("x", F32, (4, 2, 4), 0)
SINGLE = ModelInput("x", F32, (1, 2, 4), 0)
TENSOR = CapturedTensor(0, "t", "node", False, 1, ("N", 2, 4))


def samples(count: int = 3) -> list[Sample]:
    values = np.random.default_rng(0).normal(size=(count, 1, 2, 4)).astype(np.float32)
    return [make_sample({"x": v}, "test", i) for i, v in enumerate(values)]


def probed(model: Callable[[Array], Array], spec: ModelInput = DYNAMIC, count: int = 3) -> Probe:
    def run(feed: Feed) -> list[Array]:
        return [model(feed["x"])]

    return probe(run, samples(count), [spec], [TENSOR])


def rounded(x: Array) -> Array:
    """The same for a sample alone and in a batch but for its last bit."""
    return x if len(x) == 1 else np.nextafter(x, np.float32(np.inf))


CASES: list[tuple[str, Callable[[Array], Array], Layout]] = [
    ("plain", lambda x: x + 1, Layout(Kind.SPLIT, 0)),
    ("second axis", lambda x: np.moveaxis(x, 0, 1), Layout(Kind.SPLIT, 1)),
    ("last axis", lambda x: np.moveaxis(x, 0, -1), Layout(Kind.SPLIT, 2)),
    ("merged, sample outer", lambda x: x.reshape(-1, 4), Layout(Kind.SPLIT, 0)),
    ("merged, sample inner", lambda x: np.swapaxes(x, 0, 1).reshape(-1, 4), Layout(Kind.SPLIT, 0, is_inner=True)),
    ("merged in the middle", lambda x: np.moveaxis(x, 2, 0).reshape(4, -1), Layout(Kind.SPLIT, 1)),
    ("dead", lambda x: np.zeros_like(x), Layout(Kind.SPLIT, 0)),
    ("constant", lambda _: np.arange(6, dtype=np.float32).reshape(2, 3), Layout(Kind.CONSTANT)),
]


@pytest.mark.parametrize(("model", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("spec", [DYNAMIC, FIXED], ids=["dynamic", "fixed"])
def test_layouts(model: Callable[[Array], Array], expected: Layout, count: int, spec: ModelInput) -> None:
    found = probed(model, spec, count)
    assert not found.one_by_one
    layout = found.layouts[0]
    assert (layout.kind, layout.axis) == (expected.kind, expected.axis)
    if count > 1:  # one sample alone cannot tell the order inside a merged axis
        assert layout == expected


@pytest.mark.parametrize(("model", "expected"), [case[1:] for case in CASES[:7]], ids=[case[0] for case in CASES[:7]])
def test_rows_are_the_samples_alone(model: Callable[[Array], Array], expected: Layout) -> None:
    alone = [model(s.values["x"]) for s in samples(5)]
    together = model(np.concatenate([s.values["x"] for s in samples(5)]))
    rows = expected.split(together, 5)
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, np.stack(alone))


def test_a_constant_is_an_event() -> None:
    found = probed(CASES[-1][1])
    assert [e.message for e in found.events] == [
        "tensor 't': no sample axis, and equal alone and in a batch of 2: constant, counted once"
    ]


def test_last_bits_that_differ_make_the_model_run_one_by_one() -> None:
    found = probed(rounded)
    assert found.one_by_one
    assert found.layouts == (Layout(Kind.SPLIT, 0),)
    assert [e.severity for e in found.events] == ["info"]
    assert "values differ alone and in a batch of 2 by up to" in found.events[0].message


def test_samples_that_mix_are_a_warning() -> None:
    found = probed(lambda x: x - x.mean(axis=0, keepdims=True, dtype=np.float32))
    assert found.one_by_one
    assert [e.severity for e in found.events] == ["warn"]


def test_a_tensor_that_can_neither_be_split_nor_is_constant() -> None:
    found = probed(lambda x: x.sum(axis=0, dtype=np.float32))
    assert found.one_by_one
    assert found.layouts == (Layout(Kind.WHOLE),)
    assert "no axis holds the samples, yet values differ" in found.events[0].message


def test_a_model_that_refuses_batches() -> None:
    def run(feed: Feed) -> list[Array]:
        if len(feed["x"]) > 1:
            message = "cannot reshape"
            raise InferenceError(message)
        return [feed["x"]]

    found = probe(run, samples(), [DYNAMIC], [TENSOR])
    assert found.one_by_one
    assert found.events[0].message.endswith("onnxruntime refuses a batch of 2: cannot reshape")


def test_fixed_batches_are_compared_by_position_and_say_so() -> None:
    def by_position(x: Array) -> Array:
        return np.nextafter(x, np.where(np.arange(len(x)) == 0, np.inf, x[:, 0, 0])[:, None, None].astype(np.float32))

    assert "compared at two positions of a batch, none ran alone" in probed(lambda x: x, FIXED).events[0].message
    assert probed(by_position, FIXED).one_by_one
    weighted = np.arange(4, dtype=np.float32)[:, None, None]
    mixed = probed(lambda x: (x * weighted).sum(axis=0, dtype=np.float32), FIXED)
    assert mixed.layouts == (Layout(Kind.WHOLE),)
    assert mixed.events[-1].severity == "warn"


def test_batches_of_one_need_no_probe() -> None:
    def never(_: Feed) -> Sequence[Array]:
        raise AssertionError

    found = probe(never, samples(1), [SINGLE], [TENSOR])  # type: ignore[arg-type]
    assert not found.one_by_one
    assert found.layouts == (Layout(Kind.SPLIT, 0),)


def test_bits_are_compared_not_values() -> None:
    nan, zero = np.array([np.nan], np.float32), np.array([0.0], np.float32)
    assert equal_bits(nan, nan)
    assert not equal_bits(zero, -zero)
    assert not equal_bits(zero, zero[None])
    assert equal_bits(zero.astype(np.float16), zero.astype(np.float16))
