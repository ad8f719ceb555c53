"""What training learned as a fit: AMCT's vectors, the spec's example, and what is refused; no PyTorch."""

import json

import numpy as np
import pytest
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError, RangeError
from calibrant.quantizers import UlqOptions, dequantize, fit_ulq, quantize
from calibrant.quantizers.ulq import fit_weight_ulq

VECTORS = SHARED / "cases" / "vectors"


@needs_shared
def test_vectors_of_amct():
    arrays = np.load(VECTORS / "amct.npz")
    cases = [case for case in json.loads((VECTORS / "amct.json").read_text()) if case["algorithm"] == "ulq"]
    assert len(cases) == 12
    for case in cases:
        fit = fit_ulq(case["clip_max"], case["clip_min"], UlqOptions(case["bits"], case["asymmetric"]))
        assert (float(fit.scale), int(fit.offset)) == (pytest.approx(case["scale"], rel=1e-6), case["offset"])
        values = dequantize(quantize(arrays[case["input"]], fit), fit)
        assert float(values.astype(np.float64).sum()) == pytest.approx(case["output_sum"], rel=1e-4)


def test_the_worked_example_of_the_spec():
    fit = fit_ulq(3.0, -1.0, UlqOptions())
    assert (float(fit.scale), int(fit.offset), fit.algorithm) == (pytest.approx(4 / 255), -64, "ulq")
    values = dequantize(quantize(np.float32([-1.5, -0.3, 0, 0.7, 1.9, 3.2]), fit), fit)
    assert values == pytest.approx([-1.00392157, -0.298039216, 0, 0.705882353, 1.89803922, 2.99607843], rel=1e-6)
    assert (float(fit.clip_min), float(fit.clip_max)) == (values[0], values[-1])


@pytest.mark.parametrize(
    ("ends", "bits", "asymmetric", "expected"),
    [
        ((3.0, 0.5), 8, True, (3 / 255, -128)),  # the range is widened to hold zero
        ((3.0, 0.0), 4, True, (3 / 15, -8)),
        ((1.0, -1.0), 16, True, (2 / 65535, 0)),  # -32768 + 32767.5 rounds to 0: half to even
        ((1.0, -2.0), 8, False, (2 / 128, 0)),
        ((2.0, -1.0), 8, False, (2 / 127, 0)),
        ((1e-9, 0.0), 8, True, (1.0, -128)),  # the floor of a scale
    ],
)
def test_scale_and_offset(ends, bits, asymmetric, expected):
    fit = fit_ulq(*ends, UlqOptions(bits, asymmetric))
    assert (float(fit.scale), int(fit.offset)) == (pytest.approx(expected[0], rel=1e-6), expected[1])


@pytest.mark.parametrize("ends", [(1.0, 2.0), (1.0, 1.0), (float("nan"), -1.0), (float("inf"), 0.0)])
def test_ends_that_training_lost_are_refused(ends):
    with pytest.raises(RangeError, match=r"clip range \[.*\]: two finite ends in ascending order were expected"):
        fit_ulq(*ends, UlqOptions())


def test_learned_weight_steps():
    fit = fit_weight_ulq(np.float32([-0.5, 0.25, 1e-7]), 8)
    assert fit.scale.tolist() == pytest.approx([0.5, 0.25, 1.1e-6], rel=1e-6)
    assert (fit.axis, fit.offset.tolist(), fit.algorithm) == (0, [0, 0, 0], "ulq_retrain")
    one = fit_weight_ulq(np.float32(0.5), 4)
    assert (one.axis, one.scale.shape, one.bits) == (None, (), 4)
    with pytest.raises(RangeError, match="1 learned weight steps are not finite"):
        fit_weight_ulq(np.float32([0.5, np.nan]), 8)


def test_bits_are_those_of_amct():
    with pytest.raises(ConfigError, match="bits is 6, but must be one of 4, 8, 16"):
        UlqOptions(bits=6)
