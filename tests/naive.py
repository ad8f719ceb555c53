"""Slow, obvious twins of everything that computes in calibrant, written from the definitions; nothing here comes from the package.

Real values are Python floats (float64) or exact fractions; float32 appears only where a definition says so.
"""

import itertools
import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

FLT_EPSILON = 1.192092896e-7
F32 = np.float32

# ---------------------------------------------------------------------------------------------------- float patterns


def float_bits(value: float) -> int:
    """The IEEE-754 single precision pattern of a value."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def bits_float(bits: int) -> float:
    """The value of a single precision pattern."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def key_of(value: float, mantissa_bits: int = 13) -> int:
    """The histogram bin of a finite value: sign, exponent and the leading mantissa bits."""
    return float_bits(value) >> (23 - mantissa_bits)


def bin_edges(key: int, mantissa_bits: int = 13) -> tuple[float, float]:
    """Both nominal edges of a bin, ascending; every value of the bin lies between."""
    shift = 23 - mantissa_bits
    near, far = bits_float(key << shift), bits_float(((key + 1) << shift) - 1)
    outer = far + (far - bits_float(((key + 1) << shift) - 2)) if shift else far  # one more last place: the next bin
    return (near, outer) if key >> (8 + mantissa_bits) == 0 else (outer, near)


# --------------------------------------------------------------------------------------------- the log-linear histogram


class Histogram(NamedTuple):
    """Everything that the statistic of a tensor must know."""

    counts: dict[int, int]  # key -> count, ascending keys, zero apart
    n: int
    n_zero: int
    n_nan: int
    n_inf: int
    minimum: float
    maximum: float
    largest: list[tuple[float, int]]  # descending
    smallest: list[tuple[float, int]]  # ascending


def finite_values(array: np.ndarray) -> list[float]:
    """The finite values in element order, as Python floats, without negative zero."""
    return [value + 0.0 for value in array.astype(F32).ravel().tolist() if math.isfinite(value)]


def multiset(ordered: Sequence[float], kept: int) -> list[tuple[float, int]]:
    """The first `kept` values with their counts; the last count is what fits."""
    return list(Counter(ordered[:kept]).items())


def histogram(array: np.ndarray, mantissa_bits: int = 13, kept: int = 4096) -> Histogram:
    """Count every value by its pattern."""
    everything = array.astype(F32).ravel().tolist()
    finite = sorted(finite_values(array))
    counts = Counter(key_of(value, mantissa_bits) for value in finite if value != 0)
    return Histogram(
        counts=dict(sorted(counts.items())),
        n=len(everything),
        n_zero=sum(value == 0 for value in finite),
        n_nan=sum(math.isnan(value) for value in everything),
        n_inf=sum(math.isinf(value) for value in everything),
        minimum=finite[0] if finite else math.nan,
        maximum=finite[-1] if finite else math.nan,
        largest=multiset(finite[::-1], kept),
        smallest=multiset(finite, kept),
    )


def percentile_rank(n: int, p: float) -> int:
    """Which of n ordered values, counted from the outer end with 1, AMCT's percentile takes."""
    return 1 if 1 - p < FLT_EPSILON else max(1, n - math.floor(p * n))


def percentile(array: np.ndarray, p: float, side: str = "max") -> float:
    """AMCT's percentile: an order statistic of the finite values, without interpolation."""
    ordered = sorted(finite_values(array), reverse=side == "max")
    return ordered[percentile_rank(len(ordered), p) - 1]


def value_bins(array: np.ndarray, mantissa_bits: int = 13) -> list[tuple[float, float, int]]:
    """(lower edge, upper edge, count) ascending in value, the zeros as the bin [0, 0]."""
    whole = histogram(array, mantissa_bits)
    bins = [(*bin_edges(key, mantissa_bits), count) for key, count in whole.counts.items()]
    return sorted(bins + ([(0.0, 0.0, whole.n_zero)] if whole.n_zero else []))


def count_below(bins: Sequence[tuple[float, float, int]], edge: float) -> Fraction:
    """How many values lie below an edge; a bin that the edge cuts gives its share by proportion."""
    total = Fraction(0)
    for lower, upper, count in bins:
        if upper <= edge and lower < edge:
            total += count
        elif lower < edge:
            total += count * (Fraction(edge) - Fraction(lower)) / (Fraction(upper) - Fraction(lower))
    return total


def rebin(bins: Sequence[tuple[float, float, int]], low: float, high: float, num_of_bins: int) -> list[int]:
    """Equal-width counts over [low, high] from uneven bins, rounded cumulatively; a single value fills the middle bin."""
    total = sum(count for _, _, count in bins)
    if low == high:
        return [total if index == num_of_bins // 2 else 0 for index in range(num_of_bins)]
    inside = [(max(lower, low), min(upper, high), count) for lower, upper, count in bins]
    width = (Fraction(high) - Fraction(low)) / num_of_bins
    below = [round(count_below(inside, low + index * width)) for index in range(num_of_bins)]
    return [after - before for before, after in itertools.pairwise([*below, total])]


def equal_width_counts(array: np.ndarray, num_of_bins: int) -> list[int]:
    """The equal-width histogram of raw values by exact arithmetic; the greatest value is in the last bin."""
    finite = [Fraction(value) for value in finite_values(array)]
    low, high = min(finite), max(finite)
    counts = [0] * num_of_bins
    for value in finite:
        index = num_of_bins // 2 if low == high else math.floor((value - low) * num_of_bins / (high - low))
        counts[min(index, num_of_bins - 1)] += 1
    return counts


# ------------------------------------------------------------------------------------------------- samples and channels


class Moments(NamedTuple):
    n: int
    n_zero: int
    n_nan: int
    n_inf: int
    minimum: float
    maximum: float
    total: float
    total_squares: float


def ordered_sum(values: Sequence[float]) -> float:
    """Add one by one in float64, left to right."""
    total = 0.0
    for value in values:
        total += value
    return total


def run_sum(values: Sequence[float]) -> float:
    """Sum neighbours in sixteen lanes (value i in lane i % 16, each lane in order), then the lanes by halves; not finite is zero."""
    lanes = [0.0] * 16
    for i, value in enumerate(values):
        lanes[i % 16] += value if math.isfinite(value) else 0.0
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[j] + lanes[j + half] for j in range(half)]
    return lanes[0]


def channel_sums(sample: np.ndarray, axis: int | None, power: int) -> list[float]:
    """The sum of each channel of a sample (one channel where there is no axis): its runs of neighbours one after the other."""
    if axis is None:
        return [run_sum([value**power for value in sample.astype(F32).ravel().tolist()])]
    last = axis % sample.ndim
    runs = sample.astype(F32).reshape(
        math.prod(sample.shape[:last]), sample.shape[last], math.prod(sample.shape[last + 1 :])
    )
    return [
        ordered_sum([run_sum([value**power for value in runs[outer, channel].tolist()]) for outer in range(len(runs))])
        for channel in range(runs.shape[1])
    ]


def moments(array: np.ndarray, axis: int | None = None) -> Moments:
    """What the table of samples says of one sample; its sums add the sums of its channels, one after the other."""
    everything, finite = array.astype(F32).ravel().tolist(), finite_values(array)
    return Moments(
        n=len(everything),
        n_zero=sum(value == 0 for value in everything),
        n_nan=sum(math.isnan(value) for value in everything),
        n_inf=sum(math.isinf(value) for value in everything),
        minimum=min(finite, default=math.nan),
        maximum=max(finite, default=math.nan),
        total=ordered_sum(channel_sums(array, axis, 1)),
        total_squares=ordered_sum(channel_sums(array, axis, 2)),
    )


def channel_moments(samples: Sequence[np.ndarray], axis: int) -> list[Moments]:
    """Moments of each channel over all samples; the samples' sums are added exactly and rounded once."""
    rows = []
    sums, squares = ([channel_sums(sample, axis, power) for sample in samples] for power in (1, 2))
    for channel in range(samples[0].shape[axis]):
        parts = [moments(np.take(sample, channel, axis=axis)) for sample in samples]
        rows.append(
            Moments(
                n=sum(part.n for part in parts),
                n_zero=sum(part.n_zero for part in parts),
                n_nan=sum(part.n_nan for part in parts),
                n_inf=sum(part.n_inf for part in parts),
                minimum=min((part.minimum for part in parts if not math.isnan(part.minimum)), default=math.nan),
                maximum=max((part.maximum for part in parts if not math.isnan(part.maximum)), default=math.nan),
                total=exact_sum([sample[channel] for sample in sums]),
                total_squares=exact_sum([sample[channel] for sample in squares]),
            )
        )
    return rows


def exact_sum(values: Sequence[float]) -> float:
    """The sum in exact fractions, rounded once (half to even) to float64; infinite where float64 ends."""
    total = sum((Fraction(value) for value in values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


# ------------------------------------------------------------------------------------------------------ weight layout


def channels_first(weight: np.ndarray, op_type: str, groups: int) -> np.ndarray:
    """One row an output channel, its elements in the order input channel, kernel."""
    if op_type in {"Gemm", "MatMul"}:
        return np.array([[weight[(*spot, n)] for spot in _spots(weight.shape[:-1])] for n in range(weight.shape[-1])])
    if op_type != "ConvTranspose":
        return np.array([weight[channel].ravel() for channel in range(weight.shape[0])])
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    rows = []
    for group, output in itertools.product(range(groups), range(outputs)):
        rows.append(np.concatenate([weight[group * inputs + i, output].ravel() for i in range(inputs)]))
    return np.array(rows)


# --------------------------------------------------------------------------------------------------- the affine map


def code_range(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def quantize(values: np.ndarray, scale: float, offset: int, bits: int) -> list[int]:
    """Codes in element order: divide in float32, round half to even, add, clamp."""
    low, high = code_range(bits)
    with np.errstate(over="ignore"):
        quotients = [float(F32(value) / F32(scale)) for value in values.ravel()]
    return [int(clamp(round(q) + offset if math.isfinite(q) else q, low, high)) for q in quotients]


def deploy_codes(values: np.ndarray, scale: float, offset: int, bits: int) -> list[int]:
    """Codes as the exported models compute them: multiply by float32(1 / scale)."""
    low, high = code_range(bits)
    inverse = F32(1) / F32(scale)
    return [int(clamp(round(float(F32(value) * inverse)) + offset, low, high)) for value in values.ravel()]


def dequantize(codes: Sequence[int], scale: float, offset: int) -> list[np.float32]:
    return [F32(code - offset) * F32(scale) for code in codes]


class Affine(NamedTuple):
    scale: np.float32
    offset: int


def affine_of_range(low: float, high: float, bits: int, *, asymmetric: bool) -> Affine:
    """Plain minimum and maximum in float32: spec 0.1, 0.2 and 1.1."""
    least, greatest = code_range(bits)
    if asymmetric:
        low32, high32 = F32(min(low, 0.0)), F32(max(high, 0.0))
        scale = (high32 - low32) / F32(greatest - least)
    else:
        low32, high32 = F32(low), F32(high)
        steps = -least if abs(high32) < abs(low32) else greatest
        scale = max(abs(low32), abs(high32)) / F32(steps)
    if scale < F32(FLT_EPSILON):
        return Affine(F32(1), least if asymmetric else 0)
    return Affine(scale, round(float(F32(least) - low32 / scale)) if asymmetric else 0)


# ----------------------------------------------------------------------------------------------------------- IFMR


class IfmrSearch(NamedTuple):
    low: np.float32  # what values are clamped to from below; symmetric searches use minus the candidate
    clips: list[np.float32]
    scales: list[np.float32]
    offset_low: np.float32 | None  # None: symmetric
    bits: int


def ifmr_ratios(start: float, end: float, step: float) -> list[np.float32]:
    return [F32(start + index * step) for index in range(math.ceil((end - start) / step))]


def ifmr_search(
    top: float,
    bottom: float,
    bits: int,
    asymmetric: bool,
    search_range: tuple[float, float] = (0.7, 1.3),
    step: float = 0.01,
) -> IfmrSearch:
    """All candidates from the two percentiles."""
    most, least = F32(max(0.0, top)), F32(min(0.0, bottom))
    low_code, high_code = code_range(bits)
    if asymmetric:
        reach, steps = most, high_code - low_code
    else:
        reach, steps = max(most, -least), -low_code if most < -least else high_code
    clips = [ratio * reach for ratio in ifmr_ratios(*search_range, step)]
    base = least if asymmetric else F32(0)
    scales = [(clip - base) / F32(steps) for clip in clips]
    scales = [F32(1) if scale < F32(FLT_EPSILON) else scale for scale in scales]
    return IfmrSearch(least, clips, scales, least if asymmetric else None, bits)


def ifmr_bounds(search: IfmrSearch, index: int) -> tuple[float, float]:
    clip = float(search.clips[index])
    return (-clip if search.offset_low is None else float(search.low)), clip


def ifmr_loss(array: np.ndarray, search: IfmrSearch, index: int) -> float:
    """Mean squared error of one candidate over the raw values: every error in float32 as AMCT has it, added in float64."""
    low, high = (F32(bound) for bound in ifmr_bounds(search, index))
    values, scale = np.array(finite_values(array), F32), search.scales[index]
    errors = np.rint(np.clip(values, low, high) / scale) * scale - values
    return math.fsum(error * error for error in errors.tolist()) / len(values)


def ifmr_losses(array: np.ndarray, search: IfmrSearch) -> list[float]:
    """All candidates' mean squared errors over the raw values: errors in float32, summed in float64 without loss."""
    values, losses = array.astype(F32).ravel(), []
    for index, scale in enumerate(search.scales):
        low, high = (F32(bound) for bound in ifmr_bounds(search, index))
        errors = np.rint(np.clip(values, low, high) / scale) * scale - values
        losses.append(math.fsum((errors.astype(np.float64) ** 2).tolist()) / values.size)
    return losses


def ifmr_affine(search: IfmrSearch, index: int) -> Affine:
    scale = search.scales[index]
    if search.offset_low is None:
        return Affine(scale, 0)
    return Affine(scale, -round(float(search.offset_low / scale)) - 2 ** (search.bits - 1))


def ifmr(
    array: np.ndarray, bits: int, asymmetric: bool, percentiles: tuple[float, float] = (0.999999, 0.999999), **grid
):
    """Search on the raw values: (search, losses, index of the first least loss)."""
    top, bottom = percentile(array, percentiles[0], "max"), percentile(array, percentiles[1], "min")
    search = ifmr_search(top, bottom, bits, asymmetric, **grid)
    losses = [ifmr_loss(array, search, index) for index in range(len(search.clips))]
    return search, losses, losses.index(min(losses))


# ------------------------------------------------------------------------------ integrals of the rounding error over bins


def cell_pieces(
    lower: float, upper: float, scale: float, low: float, high: float
) -> Iterator[tuple[float, float, float]]:
    """Cut [lower, upper] where the quantized value changes; yields (from, to, quantized value)."""
    first = math.floor(clamp(lower, low, high) / scale - 0.5)
    last = math.ceil(clamp(upper, low, high) / scale + 0.5)
    borders = [(index + 0.5) * scale for index in range(first, last + 1)]
    inner = sorted({border for border in [*borders, low, high] if lower < border < upper})
    for left, right in itertools.pairwise([lower, *inner, upper]):
        middle = clamp(left + (right - left) / 2, low, high)
        yield left, right, round(middle / scale) * scale


def bin_loss(lower: float, upper: float, scale: float, low: float, high: float) -> float:
    """Mean of (x - q(x))**2 over a bin of uniform density; a bin of width 0 is a point."""
    if lower == upper:
        return (lower - round(clamp(lower, low, high) / scale) * scale) ** 2
    parts = [((b - q) ** 3 - (a - q) ** 3) / 3 for a, b, q in cell_pieces(lower, upper, scale, low, high)]
    return math.fsum(parts) / (upper - lower)


def loss_from_bins(bins: Sequence[tuple[float, float, int]], scale: float, low: float, high: float) -> float:
    """Mean squared error of quantizing everything in the bins."""
    total = sum(count for _, _, count in bins)
    return math.fsum(count * bin_loss(lower, upper, scale, low, high) for lower, upper, count in bins) / total


def energy_from_bins(bins: Sequence[tuple[float, float, int]]) -> float:
    """Mean of x**2 over the bins."""
    total = sum(count for _, _, count in bins)
    squares = [count * (lower * lower + lower * upper + upper * upper) / 3 for lower, upper, count in bins]
    return math.fsum(squares) / total


# ----------------------------------------------------------------------------------------------------------- HFMG


def hfmg_candidates(counts: Sequence[int]) -> list[tuple[int, int]]:
    """The greedy walk of spec 3.2: (first bin, last bin) of every candidate."""
    left, right, stop = 0, len(counts) - 1, math.ceil(len(counts) / 4)
    step = max(math.ceil(Fraction(sum(counts), 100000)), 1)
    found = []
    while right - left > stop:
        from_left, gathered = left, 0
        while gathered < step and from_left < right:
            gathered += counts[from_left]
            from_left += 1
        from_right, gathered = right, 0
        while gathered < step and from_right > from_left:
            gathered += counts[from_right]
            from_right -= 1
        if right - from_right >= from_left - left:
            right = from_right
        else:
            left = from_left
        found.append((left, right))
    return found


def hfmg_loss(counts: Sequence[int], width: float, left: int, right: int, bits: int) -> float:
    """Squared distance to the nearest allowed cell centre, integrated over every source bin piece by piece."""
    cells = 2**bits
    cell = width * (right - left + 1) / cells
    if cell < FLT_EPSILON:
        return 0.0
    parts = []
    for index, count in enumerate(counts):
        begin, end = (index - left) * width, (index + 1 - left) * width
        first, last = (int(clamp(math.floor(edge / cell), 0, cells - 1)) for edge in (begin, end))
        borders = [begin, *(border * cell for border in range(first + 1, last + 1)), end]
        for number, (a, b) in enumerate(itertools.pairwise(borders)):
            centre = (first + number + 0.5) * cell
            parts.append(count / width * ((b - centre) ** 3 - (a - centre) ** 3) / 3)
    return math.fsum(parts)


def hfmg_loss_by_formula(counts: np.ndarray, width: float, left: int, right: int, bits: int) -> float:
    """The same by the closed form of spec 3.3, for histograms with many bins."""
    cells = 2**bits
    cell = width * (right - left + 1) / cells
    if cell < FLT_EPSILON:
        return 0.0
    begin = (np.arange(len(counts)) - left) * width
    end = begin + width
    first, last = (np.clip(np.floor(edge / cell), 0, cells - 1) for edge in (begin, end))
    from_first, to_last = begin - (first + 0.5) * cell, end - (last + 0.5) * cell
    half = cell / 2
    whole = (to_last**3 - from_first**3) / 3
    cut = (half**3 - from_first**3 + (last - first - 1) * 2 * half**3 + to_last**3 + half**3) / 3
    return float(np.sum(np.asarray(counts) / width * np.where(first == last, whole, cut)))


def hfmg(counts: Sequence[int], low: float, high: float, bits: int, asymmetric: bool):
    """(candidates, losses, best index, clip_min, clip_max, affine) from equal-width counts over [low, high]."""
    width = (high - low) / len(counts)
    candidates = hfmg_candidates(counts)
    loss = hfmg_loss if len(counts) <= 64 else hfmg_loss_by_formula
    losses = [loss(counts, width, left, right, bits) for left, right in candidates]
    best = losses.index(min(losses))
    clip_min, clip_max = low + candidates[best][0] * width, low + (candidates[best][1] + 1) * width
    return (
        candidates,
        losses,
        best,
        clip_min,
        clip_max,
        affine_of_range(clip_min, clip_max, bits, asymmetric=asymmetric),
    )


# --------------------------------------------------------------------------------------------------- ARQ, DMQ, bias


def arq(weight: np.ndarray, bits: int, channel_wise: bool, asymmetric: bool) -> list[Affine]:
    """One affine map a row, or one for all."""
    rows = weight.astype(F32).reshape(weight.shape[0], -1) if channel_wise else weight.astype(F32).reshape(1, -1)
    return [affine_of_range(float(min(row)), float(max(row)), bits, asymmetric=asymmetric) for row in rows]


def dmq(data: Sequence[float], weight: Sequence[float], strength: float) -> list[float]:
    """Balance factors of spec 5, in float64."""
    dead_data, dead_weight = ([value < FLT_EPSILON for value in values] for values in (data, weight))
    regular = [not (d or w) for d, w in zip(dead_data, dead_weight, strict=True)]
    if not any(regular):
        return [1.0] * len(data)
    plain = [a**strength / w ** (1 - strength) if r else 0.0 for a, w, r in zip(data, weight, regular, strict=True)]
    data_reach = max(a / f for a, f, r in zip(data, plain, regular, strict=True) if r)
    weight_reach = max(w * f for w, f, r in zip(weight, plain, regular, strict=True) if r)
    factors = []
    for a, w, f, no_data, no_weight in zip(data, weight, plain, dead_data, dead_weight, strict=True):
        if no_data and no_weight:
            factors.append(1.0)
        elif no_data:
            factors.append(weight_reach / w)
        else:
            factors.append(a / data_reach if no_weight else f)
    return factors


def bias_codes(bias: np.ndarray, scale_d: float, scale_w: np.ndarray) -> list[int]:
    """int32 biases: float32 product of the scales, float32 quotient, half to even."""
    scales = np.broadcast_to(np.asarray(scale_w, F32).ravel(), bias.shape)
    return [round(float(F32(b) / (F32(scale_d) * s))) for b, s in zip(bias, scales, strict=True)]


def dequant_word(scale: float, shift: int = 0, offset: int = 0) -> int:
    """The uint64 parameter of AscendDequant: float32 pattern, shift at bit 32, offset at bit 40."""
    return float_bits(F32(scale)) | (shift & 0xFF) << 32 | (offset & 0xFF) << 40


# -------------------------------------------------------------------------------------------- layers on whole numbers


class Window(NamedTuple):
    """How a kernel moves over the spatial axes."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]  # begins, then ends
    dilations: tuple[int, ...]

    def reach(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def padding(self, axis: int) -> int:
        return self.pads[axis] + self.pads[len(self.kernel) + axis]


def window(kernel: Sequence[int], strides=None, pads=None, dilations=None) -> Window:
    rank = len(kernel)
    return Window(
        tuple(kernel), tuple(strides or [1] * rank), tuple(pads or [0] * 2 * rank), tuple(dilations or [1] * rank)
    )


def same_pads(view: Window, space: Sequence[int], *, lower: bool) -> list[int]:
    """ONNX's SAME_UPPER and SAME_LOWER: as many outputs as strides fit, the odd cell at the end or the beginning."""
    outputs = [-(-size // stride) for size, stride in zip(space, view.strides, strict=True)]
    totals = [max((n - 1) * view.strides[i] + view.reach(i) - space[i], 0) for i, n in enumerate(outputs)]
    begins = [total - total // 2 if lower else total // 2 for total in totals]
    return begins + [total - begin for total, begin in zip(totals, begins, strict=True)]


def _spots(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in shape))


def _inside(spot: Sequence[int], shape: Sequence[int]) -> bool:
    return all(0 <= index < size for index, size in zip(spot, shape, strict=True))


def _source(view: Window, out: Sequence[int], tap: Sequence[int]) -> tuple[int, ...]:
    rank = range(len(view.kernel))
    return tuple(out[i] * view.strides[i] + tap[i] * view.dilations[i] - view.pads[i] for i in rank)


def convolution(x: np.ndarray, weight: np.ndarray, groups: int = 1, **attributes) -> np.ndarray:
    """ONNX Conv of whole numbers, (N, C_in, …) and (C_out, C_in / groups, …); padding is 0."""
    view = window(weight.shape[2:], **attributes)
    space = x.shape[2:]
    out_space = tuple((space[i] + view.padding(i) - view.reach(i)) // view.strides[i] + 1 for i in range(len(space)))
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    out = np.zeros((x.shape[0], weight.shape[0], *out_space), np.int64)
    for sample, channel in itertools.product(range(x.shape[0]), range(weight.shape[0])):
        first = channel // outputs * inputs
        for spot, tap in itertools.product(_spots(out_space), _spots(view.kernel)):
            source = _source(view, spot, tap)
            if _inside(source, space):
                for i in range(inputs):
                    product = int(x[(sample, first + i, *source)]) * int(weight[(channel, i, *tap)])
                    out[(sample, channel, *spot)] += product
    return out


def transposed_convolution(x: np.ndarray, weight: np.ndarray, groups: int = 1, output_padding=None, **attributes):
    """ONNX ConvTranspose of whole numbers: every input is spread over the outputs that its taps reach."""
    view = window(weight.shape[2:], **attributes)
    space, rank = x.shape[2:], range(len(view.kernel))
    more = output_padding or [0] * len(view.kernel)
    out_space = tuple(view.strides[i] * (space[i] - 1) + more[i] + view.reach(i) - view.padding(i) for i in rank)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    out = np.zeros((x.shape[0], outputs * groups, *out_space), np.int64)
    for sample, channel, output in itertools.product(range(x.shape[0]), range(weight.shape[0]), range(outputs)):
        to = channel // inputs * outputs + output
        for spot, tap in itertools.product(_spots(space), _spots(view.kernel)):
            target = tuple(spot[i] * view.strides[i] + tap[i] * view.dilations[i] - view.pads[i] for i in rank)
            if _inside(target, out_space):
                product = int(x[(sample, channel, *spot)]) * int(weight[(channel, output, *tap)])
                out[(sample, to, *target)] += product
    return out


def matrix_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(…, M, K) times (…, K, N) in whole numbers; leading axes are broadcast."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = np.broadcast_to(a, (*lead, *a.shape[-2:])), np.broadcast_to(b, (*lead, *b.shape[-2:]))
    out = np.zeros((*lead, a.shape[-2], b.shape[-1]), np.int64)
    for spot in _spots(out.shape):
        batch, row, column = spot[:-2], spot[-2], spot[-1]
        out[spot] = sum(int(left[(*batch, row, k)]) * int(right[(*batch, k, column)]) for k in range(b.shape[-2]))
    return out


def _pool_size(size: int, reach: int, begin: int, end: int, stride: int, ceil_mode: bool) -> int:
    """Windows along an axis; a last window that would start in the end padding is left out (ONNX opset 19)."""
    if not ceil_mode:
        return (size + begin + end - reach) // stride + 1
    count = -(-(size + begin + end - reach) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count


def average_pool(x: np.ndarray, kernel: Sequence[int], *, count_include_pad=False, ceil_mode=False, **attributes):
    """Sum and number of counted elements of every window, (sums, counts): the average is their quotient."""
    view = window(kernel, **attributes)
    space, rank = x.shape[2:], len(kernel)
    out_space = tuple(
        _pool_size(space[i], view.reach(i), view.pads[i], view.pads[rank + i], view.strides[i], ceil_mode)
        for i in range(rank)
    )
    sums, counts = (np.zeros((*x.shape[:2], *out_space), np.int64) for _ in range(2))
    padded = [space[i] + view.padding(i) for i in range(rank)]
    for head, spot, tap in itertools.product(_spots(x.shape[:2]), _spots(out_space), _spots(view.kernel)):
        source = _source(view, spot, tap)
        real = _inside(source, space)
        on_padding = _inside([source[i] + view.pads[i] for i in range(rank)], padded)
        counts[(*head, *spot)] += real or (count_include_pad and on_padding)
        sums[(*head, *spot)] += int(x[(*head, *source)]) if real else 0
    return sums, counts


def nearest_centre(code: int, centres: Sequence[int]) -> int:
    """The lower of two centres that are equally near."""
    return min(sorted(set(centres)), key=lambda centre: (abs(code - centre), centre))


def nuq_loss(codes: Sequence[int], centres: Sequence[int]) -> int:
    return sum((code - nearest_centre(code, centres)) ** 2 for code in codes)


def nuq_best_loss(codes: Sequence[int], steps: int) -> int:
    """Try every choice of whole-number centres between the least and the greatest code."""
    values = range(min(codes), max(codes) + 1)
    return min(nuq_loss(codes, chosen) for chosen in itertools.combinations(values, min(steps, len(values))))


def nuq_seeded_centres(codes: Sequence[int], steps: int) -> list[int]:
    """The codes in the middles of equal shares, then one pass of Lloyd's, rounded half to even."""
    ordered, seeds = sorted(codes), set()
    for step in range(steps):
        rank = Fraction((2 * step + 1) * len(ordered), 2 * steps)
        seeds.add(next(code for place, code in enumerate(ordered, 1) if place >= rank))
    members = {seed: [code for code in ordered if nearest_centre(code, list(seeds)) == seed] for seed in seeds}
    return sorted({round(Fraction(sum(own), len(own))) for own in members.values()})


def pack_nibbles(codes: np.ndarray, axis: int) -> np.ndarray:
    """Two 4-bit codes a byte along an axis: the even one in the low half."""
    shape = list(codes.shape)
    shape[axis] //= 2
    packed = np.zeros(shape, np.int8)
    for place in np.ndindex(*shape):
        even, odd = list(place), list(place)
        even[axis], odd[axis] = 2 * place[axis], 2 * place[axis] + 1
        byte = (int(codes[tuple(even)]) & 0xF) | (int(codes[tuple(odd)]) & 0xF) << 4
        packed[place] = byte - 256 if byte > 127 else byte
    return packed
