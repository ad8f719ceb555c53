"""ULQ and ARQ in training: AMCT's vectors, the formulas of the spec, and finite differences of a smooth twin.

The twin keeps what rounding added at the point, in steps, and lets everything else move: its derivative is what a straight-through
gradient means.
"""

import json

import numpy as np
import pytest
from shared_material import SHARED, needs_shared
from torch_material import torch

from calibrant.quantizers import ArqOptions, fit_arq
from calibrant.quantizers.qat import fake_quantize_arq, fake_quantize_ulq, fake_quantize_weight_ulq
from calibrant.quantizers.qat.arq import arq_scale
from calibrant.quantizers.qat.ulq import ulq_parameters

VECTORS = SHARED / "cases" / "vectors"


def gradients(function, *values):
    """Return the result of a function and the gradients of its values, weighted by `weights` of the result."""
    inputs = [torch.tensor(value, dtype=torch.float32, requires_grad=True) for value in values]
    result = function(*inputs)
    (result * torch.from_numpy(weights(result.shape))).sum().backward()
    return result.detach().numpy(), [one.grad.numpy() for one in inputs]


def weights(shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def slopes(twin, point, names=("clip_max", "clip_min"), step=1e-6):
    """Return central differences of the weighted sum of a float64 twin."""
    found = []
    for name in names:
        ends = [twin(**{**point, name: point[name] + side * step}) for side in (1, -1)]
        found.append(float((weights(ends[0].shape) * (ends[0] - ends[1])).sum() / (2 * step)))
    return found


@needs_shared
def test_vectors_of_amct():
    arrays = np.load(VECTORS / "amct.npz")
    cases = [case for case in json.loads((VECTORS / "amct.json").read_text()) if case["algorithm"] == "ulq"]
    assert len(cases) == 12
    for case in cases:
        x = torch.from_numpy(arrays[case["input"]]).requires_grad_()
        high, low = (torch.tensor(case[name], requires_grad=True) for name in ("clip_max", "clip_min"))
        y = fake_quantize_ulq(x, high, low, case["bits"], asymmetric=case["asymmetric"])
        y.sum().backward()
        scale, offset = ulq_parameters(high.detach(), low.detach(), case["bits"])
        assert float(scale) == pytest.approx(case["scale"], rel=1e-6)
        assert int(offset) == case["offset"]
        assert float(y.detach().double().sum()) == pytest.approx(case["output_sum"], rel=1e-4)
        assert float(x.grad.sum()) == case["grad_input_sum"]
        assert float(high.grad) == pytest.approx(case["grad_clip_max"], rel=1e-4, abs=2e-3)
        assert float(low.grad) == pytest.approx(case["grad_clip_min"], rel=1e-4, abs=2e-3)


def test_the_worked_example_of_the_spec():
    x = torch.tensor([-1.5, -0.3, 0, 0.7, 1.9, 3.2], requires_grad=True)
    high, low = torch.tensor(3.0, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    y = fake_quantize_ulq(x, high, low, 8)
    y.sum().backward()
    expected = [-1.00392157, -0.298039216, 0, 0.705882353, 1.89803922, 2.99607843]
    assert y.detach().numpy() == pytest.approx(expected, rel=1e-6)
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]
    assert [float(high.grad), float(low.grad)] == pytest.approx([0.99950980, 1.00049020], rel=1e-5)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("clips", [(1.3, -0.7), (2.0, -0.01), (0.4, 0.0)])
def test_clip_ends_against_differences_of_a_smooth_twin(bits, clips):
    x = np.random.default_rng(3).normal(size=400).astype(np.float32)
    steps, (high, low) = 2**bits - 1, clips
    scale = (high - low) / steps
    cut = np.clip(x.astype(np.float64), low, high)
    rounding = np.rint(cut / scale) - cut / scale

    def twin(clip_max, clip_min):
        return np.clip(x.astype(np.float64), clip_min, clip_max) + (clip_max - clip_min) / steps * rounding

    inside = (
        np.abs(x[:, None] - np.array(clips)).min(1) > scale
    )  # the ends of the codes lie up to half a step beside the clip ends
    x, rounding = x[inside], rounding[inside]
    _, (to_x, to_high, to_low) = gradients(lambda *given: fake_quantize_ulq(*given, bits), x, high, low)
    expected = slopes(twin, {"clip_max": high, "clip_min": low})
    assert [float(to_high), float(to_low)] == pytest.approx(expected, rel=2e-3, abs=2e-3)
    assert np.array_equal(to_x, np.where((x > low) & (x < high), weights(x.shape), 0))


@pytest.mark.parametrize("clips", [(1.3, -0.7), (0.5, -1.1)])
def test_ends_without_offset_against_differences_of_a_smooth_twin(clips):
    x = np.random.default_rng(4).normal(size=300).astype(np.float32)
    high, low = clips
    larger, count = max(high, -low), 127 if high >= -low else 128
    scale = larger / count
    ratio = np.clip(x / np.float64(scale), -128, 127)
    rounding = np.where((ratio > -128) & (ratio < 127), np.rint(ratio) - ratio, 0)

    def twin(clip_max, clip_min):
        scale = (clip_max if high >= -low else -clip_min) / count
        return np.clip(x.astype(np.float64), -128 * scale, 127 * scale) + scale * rounding

    _, (_, to_high, to_low) = gradients(lambda *given: fake_quantize_ulq(*given, 8, asymmetric=False), x, high, low)
    assert [float(to_high), float(to_low)] == pytest.approx(
        slopes(twin, {"clip_max": high, "clip_min": low}), rel=2e-3, abs=2e-3
    )
    assert (float(to_low) == 0) == (high >= -low)


def test_weight_steps_against_differences_of_a_smooth_twin():
    rows = np.random.default_rng(6).normal(size=(3, 50)).astype(np.float32)
    scale, low, high = np.array([0.1, 0.2, 0.4]), -8, 7
    ratio = rows / scale[:, None]
    rounding = np.where((ratio >= low) & (ratio <= high), np.rint(ratio) - ratio, 0)
    given = weights(rows.shape)

    def twin(steps):
        wide = steps[:, None]
        return np.where((ratio >= low) & (ratio <= high), rows + wide * rounding, np.clip(ratio, low, high) * wide)

    numeric = [
        (given * (twin(scale + step) - twin(scale - step))).sum() / 2e-6 / np.sqrt(50 * high)
        for step in 1e-6 * np.eye(3)
    ]
    _, (to_rows, to_scale) = gradients(lambda *values: fake_quantize_weight_ulq(*values, 4), rows, scale)
    assert to_scale == pytest.approx(numeric, rel=1e-3, abs=1e-4)
    assert np.array_equal(to_rows, given), "the weight's gradient is the one it is given, outside the range too"


def test_the_worked_example_of_a_weight_step():
    rows, scale = torch.tensor([[-1.5, -0.26, 0.1, 0.9]]), torch.tensor([0.01], requires_grad=True)
    fake_quantize_weight_ulq(rows, scale, 8).sum().backward()
    assert float(scale.grad) == pytest.approx(-5.679082, rel=1e-5)


def test_a_negative_step_counts_by_its_size():
    rows = torch.tensor([[0.26, -0.1]])
    steps = [torch.tensor([value], requires_grad=True) for value in (0.1, -0.1)]
    results = [fake_quantize_weight_ulq(rows, step, 8) for step in steps]
    for result in results:
        result.sum().backward()
    assert torch.equal(*results)
    assert float(steps[0].grad) == -float(steps[1].grad) != 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("channel_wise", [True, False])
def test_arq_in_training_has_the_scales_of_the_fit(bits, channel_wise):
    weight = np.random.default_rng(1).normal(size=(5, 3, 3, 3)).astype(np.float32)
    weight[2] = 0
    weight[3, 0, 0, 0] = -9
    rows = torch.from_numpy(weight).reshape(5 if channel_wise else 1, -1)
    fit = fit_arq(weight, ArqOptions(bits, channel_wise))
    assert np.array_equal(arq_scale(rows, bits).numpy(), np.ravel(fit.scale))


def test_arq_passes_the_gradient_straight_through():
    rows = np.float32([[-1, 0.502, 0.3]])
    result, (to_rows,) = gradients(lambda one: fake_quantize_arq(one, 8), rows)
    assert result.tolist() == [[-1, 0.5, pytest.approx(38 / 128)]]
    assert np.array_equal(to_rows, weights(rows.shape))


def test_two_passes_before_one_step():
    """The ends may be mended in place between a forward pass and its backward pass."""
    high, low = torch.tensor(1.0, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    first = fake_quantize_ulq(torch.tensor([2.0]), high, low, 8)
    with torch.no_grad():
        high.fill_(3.0)
    (first + fake_quantize_ulq(torch.tensor([2.0]), high, low, 8)).sum().backward()
    assert torch.isfinite(high.grad)
