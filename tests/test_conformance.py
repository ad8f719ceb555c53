"""AMCT's own results, through the public API; the same vectors and bars as the issue's script."""

import json

import numpy as np
import pytest
from shared_material import SHARED

from calibrant import quantizers
from calibrant.stats import LogLinearHistogram

VECTORS = SHARED / "cases" / "vectors" / "amct.json"

pytestmark = pytest.mark.skipif(not VECTORS.is_file(), reason="AMCT's vectors do not stand beside the checkout")


@pytest.fixture(scope="module")
def arrays():
    return dict(np.load(VECTORS.with_suffix(".npz")))


def cases(algorithm):
    return [case for case in json.loads(VECTORS.read_text()) if case["algorithm"] == algorithm]


def share(verdicts):
    return sum(verdicts) / len(verdicts)


def agrees(fit, case):
    return abs(float(fit.scale) / case["scale"] - 1) <= 2e-6 and int(fit.offset) == case["offset"]


def ifmr_options(case):
    names = ("bits", "asymmetric", "max_percentile", "min_percentile", "search_step")
    return quantizers.IfmrOptions(search_range=tuple(case["search_range"]), **{name: case[name] for name in names})


def ifmr_of(values, case, *, exact):
    histogram = LogLinearHistogram.from_values(values)
    return quantizers.fit_ifmr(histogram, ifmr_options(case), values=values if exact else None)


def test_ifmr_on_values_is_amcts(arrays):
    verdicts = [agrees(ifmr_of(arrays[case["input"]], case, exact=True), case) for case in cases("ifmr")]
    assert share(verdicts) >= 0.97


def test_ifmr_on_the_histogram_is_amcts_at_eight_bits(arrays):
    eight = [case for case in cases("ifmr") if case["bits"] == 8]
    assert share([agrees(ifmr_of(arrays[case["input"]], case, exact=False), case) for case in eight]) >= 0.95


def test_hfmg_is_amcts_within_a_bin(arrays):
    verdicts = []
    for case in cases("hfmg"):
        values = arrays[case["input"]]
        options = quantizers.HfmgOptions(case["bits"], case["asymmetric"], case["num_of_bins"])
        fit = quantizers.fit_hfmg(LogLinearHistogram.from_values(values), options)
        step_of_a_bin = float(values.max() - values.min()) / case["num_of_bins"] / (2 ** case["bits"] - 1)
        near = abs(float(fit.scale) - case["scale"]) <= 1.01 * step_of_a_bin
        verdicts.append(near and abs(int(fit.offset) - case["offset"]) <= 1)
    assert share(verdicts) >= 0.95


def test_arq_is_amcts_in_every_code(arrays):
    for case in cases("arq"):
        options = quantizers.ArqOptions(case["bits"], case["channel_wise"], case["asymmetric"])
        weight = arrays[case["input"]]
        fit = quantizers.fit_arq(weight, options)
        codes = quantizers.quantize(weight, fit).astype(np.int64)
        np.testing.assert_allclose(np.ravel(fit.scale), case["scale"], rtol=1e-6)
        assert np.ravel(fit.offset).tolist() == case["offset"]
        assert (int(codes.sum()), codes.ravel()[:16].tolist()) == (case["quantized_sum"], case["quantized_first16"])


def test_dmq_is_amcts(arrays):
    for case in cases("dmq"):
        data, weight = (np.abs(arrays[case[side]]).max(1) for side in ("data", "weight"))
        options = quantizers.DmqOptions(case["migration_strength"])
        np.testing.assert_allclose(quantizers.fit_dmq(data, weight, options), case["factor"], rtol=1e-5)
