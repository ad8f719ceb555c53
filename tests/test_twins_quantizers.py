"""Quantizers against their naive twins over the zoo: the same candidates, losses, choices and codes."""

import math

import naive
import numpy as np
import pytest
from datasets import FINITE, NON_FINITE, WEIGHTS, dataset

from calibrant.errors import CalibrantError, RangeError
from calibrant.quantizers import (
    ArqOptions,
    DmqOptions,
    HfmgOptions,
    IfmrOptions,
    data_quality,
    dequantize,
    fit_arq,
    fit_dmq,
    fit_hfmg,
    fit_ifmr,
    quantize,
    quantize_bias,
    weight_quality,
)
from calibrant.quantizers.affine import make_fit
from calibrant.stats import LogLinearHistogram

F32 = np.float32
FIT = [name for name in FINITE if name != "largest floats"]  # their range is no float32
SMALL = ["one value", "constant", "zeros", "integers", "relu6", "gaussian", "heavy tail", "micro", "float16 extremes"]
NEAR = 1e-9  # relative distance of losses that count as tied


def bins_of(histogram: LogLinearHistogram) -> list[tuple[float, float, int]]:
    return list(zip(*(np.asarray(column).tolist() for column in histogram.bins()), strict=True))


def root_mean_width(histogram: LogLinearHistogram) -> float:
    """How far, in the quadratic mean, a value can be from another value of its bin."""
    bins = bins_of(histogram)
    return math.sqrt(sum(count * (upper - lower) ** 2 for lower, upper, count in bins) / sum(bin_[2] for bin_ in bins))


def assert_first_least(losses, best: int) -> None:
    """The chosen loss is least, and nothing before it is clearly as good."""
    least = min(losses)
    assert losses[best] <= least * (1 + NEAR)
    assert all(loss >= least * (1 - NEAR) for loss in losses[:best])


# -------------------------------------------------------------------------------------------------------------- IFMR


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", FIT)
def test_exact_ifmr_equals_twin(name, bits, asymmetric):
    values = dataset(name)
    options = IfmrOptions(bits=bits, asymmetric=asymmetric)
    fit = fit_ifmr(LogLinearHistogram.from_values(values), options, values=values)
    search, losses, _ = naive.ifmr(values, bits, asymmetric)
    assert fit.candidates is not None
    best = fit.candidates.best
    assert_first_least(losses, best)
    scale, offset = naive.ifmr_affine(search, best)
    assert fit.loss == pytest.approx(
        losses[best], rel=1e-9, abs=1e-30 * float(scale) ** 2
    )  # 1e-15 of a step is nothing
    assert (float(fit.scale), int(fit.offset)) == (float(scale), offset)
    low, high = naive.code_range(bits)
    assert float(fit.clip_max) == pytest.approx(float(scale) * (high - offset), rel=1e-6)
    assert float(fit.clip_min) == pytest.approx(float(scale) * (low - offset), rel=1e-6)


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("name", FIT)
def test_ifmr_candidates_equal_twin(name, asymmetric):
    values = dataset(name)
    fit = fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions(asymmetric=asymmetric))
    search, _, _ = naive.ifmr(values, 8, asymmetric)
    found = fit.candidates
    assert found is not None
    assert not found.exact
    np.testing.assert_array_equal(found.scale, search.scales)
    affines = [naive.ifmr_affine(search, index) for index in range(61)]
    np.testing.assert_array_equal(found.offset, [affine.offset for affine in affines])
    np.testing.assert_allclose(found.clip_max, np.array(search.clips, np.float64), rtol=1e-6)


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", FIT)
def test_ifmr_losses_from_bins_are_the_integrals(name, bits, asymmetric):
    values = dataset(name).ravel()[:400]
    histogram = LogLinearHistogram.from_values(values)
    found = fit_ifmr(histogram, IfmrOptions(bits=bits, asymmetric=asymmetric)).candidates
    assert found is not None
    search, _, _ = naive.ifmr(values, bits, asymmetric)
    for index in {0, 30, 60, found.best}:
        truth = naive.loss_from_bins(bins_of(histogram), float(found.scale[index]), *naive.ifmr_bounds(search, index))
        assert found.loss[index] == pytest.approx(truth, rel=1e-6, abs=1e-300), index
    assert found.best == int(np.argmin(found.loss))


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", FIT)
def test_ifmr_from_bins_is_as_good_as_from_values(name, bits, asymmetric):
    """The distance to the grid changes no faster than the value, so bins mislead by their own width at most."""
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    fit = fit_ifmr(histogram, IfmrOptions(bits=bits, asymmetric=asymmetric))
    _, losses, best = naive.ifmr(values, bits, asymmetric)
    assert fit.candidates is not None
    chosen = math.sqrt(losses[fit.candidates.best])
    assert chosen <= math.sqrt(losses[best]) * (1 + NEAR) + 2 * root_mean_width(histogram)


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("percentile", [0.99, 0.75, 1.0])
@pytest.mark.parametrize("grid", [(0.8, 1.2, 0.02), (0.3, 1.7, 0.1), (1.0, 1.5, 0.5)])
def test_ifmr_options_reach_the_search(grid, percentile, asymmetric):
    values = dataset("heavy tail")
    start, end, step = grid
    options = IfmrOptions(8, asymmetric, percentile, 0.9, (start, end), step)
    fit = fit_ifmr(LogLinearHistogram.from_values(values), options, values=values)
    percentiles = (percentile, 0.9)
    search, losses, _ = naive.ifmr(values, 8, asymmetric, percentiles, search_range=(start, end), step=step)
    assert fit.candidates is not None
    assert fit.candidates.loss.size == len(losses)
    assert_first_least(losses, fit.candidates.best)
    assert float(fit.scale) == float(naive.ifmr_affine(search, fit.candidates.best).scale)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["gaussian", "heavy tail", "relu6", "integers", "float16 extremes"])
def test_exact_ifmr_reads_blocks_in_any_order(name, bits):
    values, options = dataset(name), IfmrOptions(bits=bits)
    histogram = LogLinearHistogram.from_values(values)
    whole = fit_ifmr(histogram, options, values=values)
    blocks = np.array_split(np.random.default_rng(3).permutation(values.ravel()), 7)
    pieces = fit_ifmr(histogram, options, values=blocks)
    assert whole.candidates is not None
    assert pieces.candidates is not None
    assert (pieces.loss, pieces.scale, pieces.candidates.best) == (whole.loss, whole.scale, whole.candidates.best)
    assert pieces.candidates.loss.tolist() == whole.candidates.loss.tolist()


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("name", ["gaussian", "heavy tail", "bimodal", "relu6", "integers", "negative"])
def test_exact_ifmr_finds_percentiles_that_the_extremes_do_not_reach(name, asymmetric):
    values = dataset(name)
    histogram = LogLinearHistogram(extremes_kept=20)
    histogram.update(values)
    fit = fit_ifmr(histogram, IfmrOptions(8, asymmetric, 0.9, 0.75), values=values)
    search, losses, _ = naive.ifmr(values, 8, asymmetric, (0.9, 0.75))
    assert fit.candidates is not None
    np.testing.assert_array_equal(fit.candidates.scale, search.scales)
    assert_first_least(losses, fit.candidates.best)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", NON_FINITE)
def test_values_that_are_no_numbers_are_refused(name, exact):
    values = dataset(name)
    histogram = LogLinearHistogram.from_values(values)
    with pytest.raises(CalibrantError, match=r"(?i)nan|inf|finite"):
        fit_ifmr(histogram, IfmrOptions(), values=values if exact else None)
    with pytest.raises(CalibrantError, match=r"(?i)nan|inf|finite"):
        fit_hfmg(histogram, HfmgOptions())


@pytest.mark.parametrize("asymmetric", [True, False])
def test_a_range_beyond_float32_is_an_error_or_a_usable_scale(asymmetric):
    histogram = LogLinearHistogram.from_values(dataset("largest floats"))
    for fit, options in (
        (fit_ifmr, IfmrOptions(asymmetric=asymmetric)),
        (fit_hfmg, HfmgOptions(asymmetric=asymmetric)),
    ):
        try:
            scale = float(fit(histogram, options).scale)
        except CalibrantError:
            continue
        assert math.isfinite(scale)
        assert math.isfinite(1 / scale)


# -------------------------------------------------------------------------------------------------------------- HFMG


def assert_hfmg_equals_twin(values: np.ndarray, num_of_bins: int, bits: int, asymmetric: bool) -> None:
    histogram = LogLinearHistogram.from_values(values)
    fit = fit_hfmg(histogram, HfmgOptions(bits=bits, asymmetric=asymmetric, num_of_bins=num_of_bins))
    counts = histogram.rebin(num_of_bins)
    low, high = histogram.minimum, histogram.maximum
    candidates, losses, best, _, _, _ = naive.hfmg(counts, low, high, bits, asymmetric)
    found = fit.candidates
    assert found is not None
    width = (high - low) / num_of_bins
    np.testing.assert_allclose(
        found.clip_min, [low + left * width for left, _ in candidates], rtol=1e-6, atol=width * 1e-4
    )
    np.testing.assert_allclose(
        found.clip_max, [low + (right + 1) * width for _, right in candidates], rtol=1e-6, atol=width * 1e-4
    )
    np.testing.assert_allclose(found.loss, losses, rtol=1e-6, atol=max(losses) * 1e-12)
    assert losses[found.best] <= losses[best] * (1 + 1e-6)
    left, right = candidates[found.best]
    clip = (low + left * width, low + (right + 1) * width)
    scale, offset = naive.affine_of_range(*clip, bits, asymmetric=asymmetric)
    assert float(fit.scale) == pytest.approx(float(scale), rel=3e-7)
    assert abs(int(fit.offset) - offset) <= (bits == 16)  # a last place of the scale moves a 16-bit offset


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("name", FIT)
def test_hfmg_equals_twin(name, asymmetric):
    assert_hfmg_equals_twin(dataset(name), 1024, 8, asymmetric)


@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize("name", SMALL)
def test_hfmg_of_other_widths_equals_twin(name, bits):
    assert_hfmg_equals_twin(dataset(name), 1024, bits, asymmetric=True)


def test_hfmg_of_many_bins_equals_twin():
    assert_hfmg_equals_twin(np.repeat(dataset("gaussian"), 60), 4096, 8, asymmetric=True)  # a step of three counts
    assert_hfmg_equals_twin(dataset("bimodal"), 8192, 8, asymmetric=False)


@pytest.mark.parametrize(("value", "offset"), [(3.0, -128), (-3.0, 127), (0.0, -128)])
def test_hfmg_of_a_constant_follows_the_spec(value, offset):
    fit = fit_hfmg(LogLinearHistogram.from_values(np.full(77, value, F32)), HfmgOptions())
    assert (float(fit.scale), int(fit.offset)) == (float(F32(3) / F32(255)) if value else 1.0, offset)


# --------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("channel_wise", [True, False])
@pytest.mark.parametrize("bits", [4, 6, 7, 8])
@pytest.mark.parametrize("name", WEIGHTS)
def test_arq_equals_twin(name, bits, channel_wise, asymmetric):
    weight = dataset(name)
    fit = fit_arq(weight, ArqOptions(bits=bits, channel_wise=channel_wise, asymmetric=asymmetric))
    expected = naive.arq(weight, bits, channel_wise, asymmetric)
    assert np.ravel(fit.scale).tolist() == [float(affine.scale) for affine in expected]
    assert np.ravel(fit.offset).tolist() == [affine.offset for affine in expected]
    assert fit.axis == (0 if channel_wise else None)
    rows = weight.reshape(weight.shape[0], -1) if channel_wise else weight.reshape(1, -1)
    truth = [naive.quantize(row, *affine, bits) for row, affine in zip(rows, expected, strict=True)]
    codes = quantize(weight, fit)
    assert codes.dtype == np.int8
    assert codes.reshape(len(rows), -1).tolist() == truth


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_quality_equals_twin(name):
    weight = dataset(name)
    rows = weight.reshape(weight.shape[0], -1)
    fit = fit_arq(weight.reshape(rows.shape), ArqOptions())
    quality = weight_quality(rows, fit)
    mse, sqnr_db, clip_rate = (np.ravel(column) for column in (quality.mse, quality.sqnr_db, quality.clip_rate))
    assert mse.shape == sqnr_db.shape == clip_rate.shape == (len(rows),)
    for index, row in enumerate(rows):
        scale = float(fit.scale[index])
        codes = naive.quantize(row, scale, 0, 8)
        wide = row.astype(np.float64)
        error = float(np.mean((np.array(codes) * scale - wide) ** 2))
        energy = float(np.mean(wide**2))
        assert mse[index] == pytest.approx(error, rel=1e-5, abs=energy * 1e-12)
        if error > energy * 1e-10:
            assert sqnr_db[index] == pytest.approx(10 * math.log10(energy / error), abs=1e-3)
        outside = np.mean((row < -128.5 * scale) | (row > 127.5 * scale))
        assert clip_rate[index] == pytest.approx(outside)


CHANNELS = [
    ([2, 0, 16, 0, 1], [0.5, 0.2, 0.25, 0, 0]),
    ([1, 1, 1], [1, 1, 1]),
    ([0, 0], [1, 2]),
    ([3, 4], [0, 0]),
    ([1e-8, 5], [2, 1e-9]),
    ([1e3, 1e-3, 7], [1e-3, 1e2, 0.3]),
    ([0.25], [4]),
]


@pytest.mark.parametrize("strength", [0.2, 0.35, 0.5, 0.8])
@pytest.mark.parametrize(("data", "weight"), CHANNELS)
def test_dmq_equals_twin(data, weight, strength):
    got = fit_dmq(np.array(data, F32), np.array(weight, F32), DmqOptions(migration_strength=strength))
    assert got.dtype == np.float32
    narrow = [np.array(values, F32).tolist() for values in (data, weight)]
    np.testing.assert_allclose(got, naive.dmq(*narrow, strength), rtol=1e-5)


@pytest.mark.parametrize("scale_d", [0.5, 0.0123, 3.7e-4])
def test_bias_equals_twin(scale_d):
    bias = np.concatenate([dataset("gaussian")[:64], np.array([0, 0.25, 0.75, -0.25, 1e-9], F32)])
    per_channel = np.geomspace(1e-3, 2, bias.size).astype(F32)
    for scale_w in (per_channel, np.array([0.5], F32)):
        got = quantize_bias(bias, F32(scale_d), scale_w)
        assert got.dtype == np.int32
        assert got.tolist() == naive.bias_codes(bias, scale_d, scale_w)


@pytest.mark.parametrize("bias", [2.0**31, -(2.0**31) - 256])
def test_bias_beyond_int32_names_its_channel(bias):
    with pytest.raises(RangeError, match="1"):
        quantize_bias(np.array([0, bias], F32), F32(1), np.array([1, 1], F32))


def test_bias_at_the_ends_of_int32():
    ends = np.array([-(2.0**31), 2.0**31 - 128], F32)
    assert quantize_bias(ends, F32(1), np.ones(2, F32)).tolist() == [-(2**31), 2**31 - 128]


# ----------------------------------------------------------------------------------------------- codes and quality

MAPS = [(0.05, 0, 8), (0.5, 17, 8), (1.0, -128, 8), (2e-4, -300, 16), (0.25, 3, 4), (1e-6, 127, 8), (7.0, 0, 16)]


@pytest.mark.parametrize(("scale", "offset", "bits"), MAPS)
@pytest.mark.parametrize("name", FINITE)
def test_codes_equal_twin(name, scale, offset, bits):
    values = dataset(name)
    fit = make_fit(np.asarray(F32(scale)), np.asarray(offset, np.int32), bits)
    with np.errstate(over="ignore"):
        codes = quantize(values, fit)
    assert codes.shape == values.shape
    assert codes.ravel().tolist() == naive.quantize(values, scale, offset, bits)
    few = codes.ravel()[:50]
    assert dequantize(few, fit).tolist() == [float(value) for value in naive.dequantize(few.tolist(), scale, offset)]


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("name", FIT)
def test_data_quality_is_the_integral_over_bins(name, asymmetric):
    values = dataset(name).ravel()[:800]
    histogram = LogLinearHistogram.from_values(values)
    fit = fit_ifmr(histogram, IfmrOptions(asymmetric=asymmetric, max_percentile=0.9, min_percentile=0.95))
    got, bins = data_quality(histogram, fit), bins_of(histogram)
    offset = int(fit.offset)
    reach = (float(fit.scale) * (-128 - offset), float(fit.scale) * (127 - offset))
    error, energy = naive.loss_from_bins(bins, float(fit.scale), *reach), naive.energy_from_bins(bins)
    assert got.mse == pytest.approx(error, rel=1e-5, abs=energy * 1e-12)
    if error > energy * 1e-9:
        assert got.sqnr_db == pytest.approx(10 * math.log10(energy / error), abs=0.01)
    ends = (reach[0] - float(fit.scale) / 2, reach[1] + float(fit.scale) / 2)  # nearer values round to the end
    edge = sum(c for low, high, c in bins if any(low <= end <= high for end in ends))
    wide = values.astype(np.float64)
    outside = np.sum((wide < ends[0]) | (wide > ends[1]))
    assert abs(got.clip_rate * values.size - outside) <= edge + 1e-6
