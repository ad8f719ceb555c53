"""The twins are witnesses, so they are proven first: against worked examples, AMCT's own results and plain arithmetic."""

import json
import math
import re
import tokenize
from fractions import Fraction
from pathlib import Path

import naive
import numpy as np
import pytest
from datasets import ALL, FINITE, dataset
from shared_material import SHARED, needs_shared

F32 = np.float32
SPEC_WEIGHT = np.array([[-1, 0.5, 0.25], [0, 0, 0], [0.3, 1.27, -0.64], [-2, -1, -0.5]], F32)
SPEC_DATA = np.array([-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 8], F32)


def test_twins_borrow_nothing_from_the_package():
    tests = Path(__file__).parent
    for name in ("naive.py", "datasets.py"):
        with (tests / name).open("rb") as source:
            names = {token.string for token in tokenize.tokenize(source.readline) if token.type == tokenize.NAME}
        assert not names & {"calibrant", "numba", "polars", "onnxruntime"}


@pytest.mark.parametrize("name", ALL)
def test_zoo_is_repeatable(name):
    first, second = dataset(name), dataset(name)
    assert first is not second
    assert first.dtype in (np.float32, np.float16)
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("name", FINITE)
def test_zoo_is_finite_where_it_says_so(name):
    assert np.isfinite(dataset(name)).all()
    assert dataset(name).size > 0


# ------------------------------------------------------------------------------------------------------ the histogram


def test_key_is_sign_exponent_and_leading_mantissa():
    assert naive.key_of(1.0) == 0x3F800000 >> 10
    assert naive.key_of(-1.0) == 0xBF800000 >> 10
    assert naive.key_of(1.0, mantissa_bits=0) == 127
    assert naive.key_of(1.4012984643e-45) == 0
    assert naive.bin_edges(naive.key_of(1.0)) == (1.0, 1.0 + 2.0**-13)
    assert naive.bin_edges(naive.key_of(-1.0)) == (-1.0 - 2.0**-13, -1.0)
    assert naive.bin_edges(naive.key_of(3.4028234663852886e38))[1] == 2.0**128


@pytest.mark.parametrize("name", FINITE)
def test_bins_hold_their_values(name):
    values = naive.finite_values(dataset(name))
    edges = [naive.bin_edges(naive.key_of(value)) for value in values if value]
    assert all(low <= value <= high for value, (low, high) in zip([v for v in values if v], edges, strict=True))


def test_histogram_counts_special_values_apart():
    got = naive.histogram(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 2.0, 2.0, -3.0], F32), kept=3)
    assert (got.n, got.n_zero, got.n_nan, got.n_inf, got.minimum, got.maximum) == (8, 2, 1, 2, -3.0, 2.0)
    assert got.counts == {naive.key_of(2.0): 2, naive.key_of(-3.0): 1}
    assert got.largest == [(2.0, 2), (0.0, 1)]
    assert got.smallest == [(-3.0, 1), (0.0, 2)]


def test_percentile_of_the_spec():
    grid = np.linspace(-1, 3, 17).astype(F32)
    assert naive.percentile_rank(17, 0.9) == 2
    assert naive.percentile(grid, 0.9) == 2.75
    assert naive.percentile(grid, 0.9, "min") == -0.75
    assert naive.percentile_rank(1_000_000, 0.999999) == 1
    assert naive.percentile_rank(2_000_000, 0.999999) == 2
    assert naive.percentile_rank(10**12, 1.0) == 1


def test_rebin_splits_by_proportion_and_keeps_the_total():
    bins = [(0.0, 1.0, 4), (1.0, 4.0, 6), (4.0, 4.0, 2)]
    assert naive.rebin(bins, 0.0, 4.0, 4) == [4, 2, 2, 4]
    assert naive.rebin(bins, 0.0, 4.0, 8) == [2, 2, 1, 1, 1, 1, 1, 3]
    assert naive.rebin([(2.0, 2.1, 7)], 2.05, 2.05, 8) == [0, 0, 0, 0, 7, 0, 0, 0]


def test_equal_width_counts_of_the_spec():
    first = np.array([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8], F32)
    assert naive.equal_width_counts(first, 8) == [2] * 8
    both = np.concatenate([first, np.array([-8, 0.25, 0.75, 1.25, 1.75, 8], F32)])
    assert naive.equal_width_counts(both, 8) == [1, 0, 0, 0, 8, 4, 4, 5]
    assert naive.equal_width_counts(np.full(5, 3, F32), 8) == [0, 0, 0, 0, 5, 0, 0, 0]


# ------------------------------------------------------------------------------------------------------------- sums


def test_sums():
    values = [1e16, 1.0, -1e16, 1.0]
    assert naive.ordered_sum(values) == 1.0  # the first 1.0 is lost
    assert naive.exact_sum(values) == 2.0
    assert naive.run_sum(values * 5) == 10.0  # lanes 0, 4, 8, 12 take 1e16, lanes 2, 6, 10, 14 its opposite
    assert naive.run_sum([1e16, *[0.0] * 7, 1.0, *[0.0] * 7, -1e16]) == 1.0  # lane 0 first, lane 8 to it at the end
    assert naive.exact_sum([0.1] * 10) == math.fsum([0.1] * 10) == 1.0
    assert naive.exact_sum([1e308, 1e308]) == math.inf
    assert naive.exact_sum([5e-324, -5e-324, -1e-320]) == -1e-320
    sample = np.array([[1, 2], [np.nan, -4]], F32)
    assert naive.moments(sample) == (4, 0, 1, 0, -4.0, 2.0, -1.0, 21.0)
    rows = naive.channel_moments([sample, sample * F32(2)], axis=1)
    assert rows[0][:4] == (4, 0, 2, 0)
    assert (rows[1].minimum, rows[1].maximum, rows[1].total, rows[1].total_squares) == (-8.0, 4.0, -6.0, 100.0)


# ------------------------------------------------------------------------------------------------------------ weights


ARQ_EXAMPLES = [
    (8, True, False, [0.0078125, 1, 0.01, 0.015625], [0] * 4, [-128, 64, 32, 0, 0, 0, 30, 127, -64, -128, -64, -32]),
    (
        8,
        True,
        True,
        [0.005882353, 1, 0.007490196, 0.007843138],
        [42, -128, -43, 127],
        [-128, 127, 84, -128, -128, -128, -3, 127, -128, -128, 0, 63],
    ),
    (8, False, False, [0.015625], [0], [-64, 32, 16, 0, 0, 0, 19, 81, -41, -128, -64, -32]),
    (4, True, False, [0.125, 1, 0.18142857, 0.25], [0] * 4, [-8, 4, 2, 0, 0, 0, 2, 7, -4, -8, -4, -2]),
]


@pytest.mark.parametrize(("bits", "channel_wise", "asymmetric", "scales", "offsets", "codes"), ARQ_EXAMPLES)
def test_arq_examples_of_the_spec(bits, channel_wise, asymmetric, scales, offsets, codes):
    found = naive.arq(SPEC_WEIGHT, bits, channel_wise, asymmetric)
    assert [affine.offset for affine in found] == offsets
    np.testing.assert_allclose([affine.scale for affine in found], np.array(scales, F32), rtol=1e-7)
    rows = SPEC_WEIGHT if channel_wise else SPEC_WEIGHT.reshape(1, -1)
    got = [code for row, affine in zip(rows, found, strict=True) for code in naive.quantize(row, *affine, bits)]
    assert got == codes


def test_arq_of_amcts_unit_test():
    rows = np.array([[-1] * 12, [0] * 12, [1] * 12, [-1, 0, 1] * 4], F32)
    found = naive.arq(rows, 8, channel_wise=True, asymmetric=True)
    assert [affine.offset for affine in found] == [127, -128, -128, -1]
    assert naive.quantize(rows[3, :3], *found[3], 8) == [-128, -1, 126]


def test_affine_rules():
    assert naive.affine_of_range(-1, 1, 8, asymmetric=False).scale == F32(1) / F32(127)  # a tie takes 127
    assert naive.affine_of_range(-1, 0.999, 8, asymmetric=False).scale == F32(1 / 128)
    assert naive.affine_of_range(-1e-9, 1e-9, 8, asymmetric=True) == (1, -128)
    assert naive.affine_of_range(0, 0, 8, asymmetric=False) == (1, 0)
    assert naive.affine_of_range(2, 3, 8, asymmetric=True).offset == -128
    assert naive.affine_of_range(-3, -2, 8, asymmetric=True).offset == 127


def test_codes_round_half_to_even_and_saturate():
    assert naive.quantize(np.array([0.25, 0.75, -0.25, 1e9, -1e9], F32), 0.5, 1, 8) == [1, 3, 1, 127, -128]
    assert naive.dequantize([-1, 1], 0.5, 1) == [-1.0, 0.0]
    # 255 / 51 by division is 5; by the reciprocal of 0.1 the quotient can move by one last place
    assert naive.deploy_codes(np.array([0.5, -0.5], F32), 0.1, 0, 8) == [5, -5]


def test_channels_first_of_a_grouped_transposed_convolution():
    weight = np.arange(4 * 3 * 2).reshape(4, 3, 2)  # 2 groups: inputs 0, 1 meet outputs 0..2; inputs 2, 3 outputs 3..5
    rows = naive.channels_first(weight, "ConvTranspose", 2)
    assert rows.tolist()[0] == [0, 1, 6, 7]
    assert rows.tolist()[5] == [16, 17, 22, 23]
    assert naive.channels_first(np.array([[1, 2], [3, 4], [5, 6]]), "Gemm", 1).tolist() == [[1, 3, 5], [2, 4, 6]]


def test_dmq_example_of_the_spec():
    data, weight = [2, 0, 16, 0, 1], [0.5, 0.2, 0.25, 0, 0]
    np.testing.assert_allclose(naive.dmq(data, weight, 0.5), [2, 10, 8, 1, 0.5], rtol=1e-12)
    np.testing.assert_allclose(naive.dmq(data, weight, 0.2), [2, 6.59754, 5.278032, 1, 0.329877], rtol=1e-6)
    np.testing.assert_allclose(naive.dmq(data, weight, 0.8), [2, 15.1571665, 12.125733, 1, 0.75785834], rtol=1e-7)
    assert naive.dmq([0, 0], [1, 2], 0.5) == [1.0, 1.0]


def test_bias_and_dequant_word_of_the_spec():
    assert naive.bias_codes(np.array([1, -2.5, 0.0005], F32), 0.5, np.array([0.01, 1, 0.001])) == [200, -5, 1]
    assert naive.bias_codes(np.array([0.25, 0.75], F32), 0.5, np.array([1])) == [0, 2]
    assert naive.dequant_word(F32(0.0078125) * F32(0.05)) == 0x39CCCCCD == 969723085


# -------------------------------------------------------------------------------------------------------------- IFMR

IFMR_EXAMPLES = [
    (1, 8, True, 31, 0.035607845, -100, 2.21700575e-5),
    (1, 8, False, 30, 0.062992126, 0, 5.8125061e-5),
    (1, 4, True, 33, 0.616, -6, 0.0310007988),
    (1, 4, False, 29, 1.1314286, 0, 0.0953873502),
    (-1, 8, True, 41, 0.03572549, 96, None),
    (-1, 8, False, 30, 0.0625, 0, None),
    (1, 16, True, 35, 1.434348e-4, -25796, None),
]


@pytest.mark.parametrize(("sign", "bits", "asymmetric", "index", "scale", "offset", "loss"), IFMR_EXAMPLES)
def test_ifmr_examples_of_the_spec(sign, bits, asymmetric, index, scale, offset, loss):
    search, losses, best = naive.ifmr(SPEC_DATA * F32(sign), bits, asymmetric, (1.0, 1.0))
    assert (len(losses), best) == (61, index)
    affine = naive.ifmr_affine(search, best)
    assert affine.offset == offset
    assert affine.scale == pytest.approx(scale, rel=1e-6)
    if loss is not None:
        assert losses[best] == pytest.approx(loss, rel=1e-4)  # AMCT's own is a float32 mean


def test_ifmr_percentile_examples_of_the_spec():
    grid = np.linspace(-1, 3, 17).astype(F32)
    search, _, best = naive.ifmr(grid, 8, False, (0.9, 0.9))
    assert (best, naive.ifmr_affine(search, best).scale) == (58, pytest.approx(0.027716536, rel=1e-6))
    search, _, best = naive.ifmr(grid, 4, True, (0.9, 0.9))
    assert (best, naive.ifmr_affine(search, best).offset) == (40, -5)


def test_ifmr_edges():
    assert len(naive.ifmr_ratios(0.7, 1.3, 0.01)) == 61
    assert len(naive.ifmr_ratios(0.8, 1.2, 0.02)) == 20
    search, losses, best = naive.ifmr(np.zeros(4, F32), 8, True)
    assert (best, losses[0], naive.ifmr_affine(search, 0)) == (0, 0.0, (1, -128))
    search, _, best = naive.ifmr(np.full(4, -2, F32), 8, True)
    assert (best, naive.ifmr_affine(search, 0)) == (0, (F32(2) / F32(255), 127))


def test_bin_loss_is_the_integral():
    for lower, upper, scale, low, high in [
        (0.0, 1.0, 0.3, -2.0, 2.0),
        (0.9, 1.7, 0.25, -1.0, 1.1),
        (-2.0, -0.4, 0.7, -0.9, 3.0),
        (5.0, 5.001, 0.1, -1.0, 1.0),
    ]:
        points = lower + (np.arange(200_000) + 0.5) / 200_000 * (upper - lower)
        errors = (np.rint(np.clip(points, low, high) / scale) * scale - points) ** 2
        assert naive.bin_loss(lower, upper, scale, low, high) == pytest.approx(errors.mean(), rel=1e-5)
    assert naive.bin_loss(0.4, 0.4, 0.3, -1, 1) == pytest.approx(0.01)
    assert naive.bin_loss(0.0, 64.0, 0.5, -100, 100) == pytest.approx(0.25 / 12)
    assert naive.energy_from_bins([(0.0, 1.0, 3), (2.0, 2.0, 1)]) == pytest.approx((1 + 4) / 4)


# -------------------------------------------------------------------------------------------------------------- HFMG


def test_hfmg_example_a_of_the_spec():
    counts = [1, 0, 0, 0, 8, 4, 4, 5]
    losses = [6.94806465, 52.8979562, 170.941004, 398.348958, 1334.48568]
    candidates, got, best, clip_min, clip_max, affine = naive.hfmg(counts, -8.0, 8.0, 8, asymmetric=True)
    assert candidates == [(0, 6), (0, 5), (0, 4), (0, 3), (0, 1)]
    np.testing.assert_allclose(got, losses, rtol=1e-8)
    assert (best, clip_min, clip_max) == (0, -8.0, 6.0)
    assert affine == (F32(14) / F32(255), 18)
    assert naive.hfmg(counts, -8.0, 8.0, 8, asymmetric=False)[5] == (0.0625, 0)
    assert naive.hfmg(counts, -8.0, 8.0, 4, asymmetric=True)[5] == (F32(14) / F32(15), 1)
    coarse = [52.9583333, 140.833333, 295.708333, 567.333333, 1496.33333]
    np.testing.assert_allclose(naive.hfmg(counts, -8.0, 8.0, 2, asymmetric=True)[1], coarse, rtol=1e-8)


def test_hfmg_example_b_of_the_spec():
    counts = [1, 1, 1, 60000, 100000, 80000, 59000, 2]
    candidates, losses, _, clip_min, clip_max, affine = naive.hfmg(counts, -8.0, 8.0, 8, asymmetric=True)
    assert candidates == [(3, 7), (3, 5)]
    np.testing.assert_allclose(losses, [74.325333, 80123.582059], rtol=1e-7)
    assert (clip_min, clip_max, affine.offset) == (-2.0, 8.0, -77)
    assert affine.scale == pytest.approx(0.039215688, rel=1e-7)
    narrow = naive.hfmg(counts, -8.0, 8.0, 4, asymmetric=True)
    assert narrow[1][0] == pytest.approx(9580.72396, rel=1e-8)
    assert (narrow[5].scale, narrow[5].offset) == (pytest.approx(0.66666669), -5)


def test_hfmg_constant():
    for value, scale, offset in [(3.0, F32(3) / F32(255), -128), (-3.0, F32(3) / F32(255), 127), (0.0, 1, -128)]:
        counts = naive.equal_width_counts(np.full(5, value, F32), 1024)
        assert naive.hfmg(counts, value, value, 8, asymmetric=True)[5] == (scale, offset)


@pytest.mark.parametrize("bits", [4, 8])
def test_hfmg_closed_form_is_the_integral(bits):
    counts = np.random.default_rng(1).integers(0, 50, 48)
    for left, right in [(0, 46), (5, 40), (20, 33)]:
        piecewise = naive.hfmg_loss(counts.tolist(), 0.37, left, right, bits)
        assert naive.hfmg_loss_by_formula(counts, 0.37, left, right, bits) == pytest.approx(piecewise, rel=1e-9)


# ------------------------------------------------------------------------------------------------------------- layers


def test_convolution_by_hand():
    x = np.arange(9).reshape(1, 1, 3, 3)
    kernel = np.array([1, 0, 0, -1]).reshape(1, 1, 2, 2)
    assert naive.convolution(x, kernel).ravel().tolist() == [-4, -4, -4, -4]
    padded = naive.convolution(x, kernel, pads=[1, 1, 0, 0], strides=[2, 2])
    assert padded[0, 0].tolist() == [[0, -2], [-6, -4]]
    dilated = naive.convolution(x, kernel, dilations=[2, 2])
    assert dilated.ravel().tolist() == [0 - 8]
    two = naive.convolution(np.ones((1, 2, 3), int), np.array([[[1, 1]], [[2, 2]]]), groups=2)
    assert two.tolist() == [[[2, 2], [4, 4]]]


def test_transposed_convolution_by_hand():
    x, kernel = np.array([[[1, 2, 3]]]), np.array([[[1, 10]]])
    assert naive.transposed_convolution(x, kernel).tolist() == [[[1, 12, 23, 30]]]
    assert naive.transposed_convolution(x, kernel, strides=[2]).tolist() == [[[1, 10, 2, 20, 3, 30]]]
    assert naive.transposed_convolution(x, kernel, strides=[3], output_padding=[1], pads=[1, 0]).tolist() == [
        [[10, 0, 2, 20, 0, 3, 30, 0]]
    ]
    grouped = naive.transposed_convolution(np.array([[[1], [2]]]), np.array([[[1], [2]], [[3], [4]]]), groups=2)
    assert grouped.tolist() == [[[1], [2], [6], [8]]]


def test_transposed_convolution_is_the_adjoint():
    rng = np.random.default_rng(2)
    attributes = {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2], "groups": 2}
    weight = rng.integers(-9, 9, (4, 3, 2, 2))  # Conv: C_out 4, C_in 6; ConvTranspose: C_in 4, C_out 6
    x = rng.integers(-9, 9, (1, 6, 5, 5))
    y = naive.convolution(x, weight, **attributes)
    other = rng.integers(-9, 9, y.shape)
    back = naive.transposed_convolution(other, weight, output_padding=[0, 0], **attributes)
    assert back.shape == x.shape
    assert int((y * other).sum()) == int((back * x).sum())


def test_matrix_product():
    a, b = np.arange(12).reshape(2, 2, 3), np.arange(6).reshape(3, 2)
    assert naive.matrix_product(a, b).tolist() == (a @ b).tolist()


def test_average_pool_by_hand():
    x = np.arange(1, 6).reshape(1, 1, 5)
    sums, counts = naive.average_pool(x, [2], strides=[2], pads=[1, 0])
    assert (sums.ravel().tolist(), counts.ravel().tolist()) == ([1, 5, 9], [1, 2, 2])
    assert naive.average_pool(x, [2], strides=[2], pads=[1, 0], count_include_pad=True)[1].ravel().tolist() == [2, 2, 2]
    sums, counts = naive.average_pool(x, [2], strides=[2], ceil_mode=True, count_include_pad=True)
    assert (sums.ravel().tolist(), counts.ravel().tolist()) == ([3, 7, 5], [2, 2, 1])
    assert naive.average_pool(x, [1], strides=[2], pads=[0, 1], ceil_mode=True)[0].ravel().tolist() == [1, 3, 5]


# ------------------------------------------------------------------------------------------------- AMCT's own results


def _cases(algorithm: str) -> list[dict]:
    return [c for c in json.loads((SHARED / "cases/vectors/amct.json").read_text()) if c["algorithm"] == algorithm]


@needs_shared
def test_twins_agree_with_amct():
    arrays = dict(np.load(SHARED / "cases/vectors/amct.npz"))
    for case in _cases("arq"):
        weight = arrays[case["input"]]
        found = naive.arq(weight, case["bits"], case["channel_wise"], case["asymmetric"])
        assert [affine.offset for affine in found] == case["offset"]
        np.testing.assert_allclose([affine.scale for affine in found], case["scale"], rtol=1e-6)
    for case in _cases("dmq"):
        data, weight = np.abs(arrays[case["data"]]).max(1), np.abs(arrays[case["weight"]]).max(1)
        found = naive.dmq(data.tolist(), weight.tolist(), case["migration_strength"])
        np.testing.assert_allclose(found, case["factor"], rtol=1e-5)


@needs_shared
def test_ifmr_twin_agrees_with_amct():
    arrays = dict(np.load(SHARED / "cases/vectors/amct.npz"))
    cases = [case for case in _cases("ifmr") if case["bits"] <= 8]
    right = 0
    for case in cases:
        grid = {"search_range": tuple(case["search_range"]), "step": case["search_step"]}
        percentiles = (case["max_percentile"], case["min_percentile"])
        search, _, best = naive.ifmr(arrays[case["input"]], case["bits"], case["asymmetric"], percentiles, **grid)
        scale, offset = naive.ifmr_affine(search, best)
        right += bool(np.isclose(scale, case["scale"], rtol=2e-6, atol=0)) and offset == case["offset"]
    assert right >= 0.98 * len(cases)


def test_no_test_file_hides_a_twin():
    """Naive computation lives in naive.py (style: a twin in the middle of a test file is a second truth)."""
    for path in Path(__file__).parent.glob("test_twins_*.py"):
        assert not re.search(r"^def (naive|slow|brute)", path.read_text(encoding="utf-8"), re.MULTILINE), path.name


def test_count_below_is_exact():
    assert naive.count_below([(0.0, 3.0, 1)], 1.0) == Fraction(1, 3)
