"""The searches: from bins, from values end to end, in exact mode, and over a whole model."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np

from bench import bars
from bench.contest import Case, Contest, Figure, Medians, Setting, Work, alone, over, per
from bench.distributions import values_of
from bench.kernels import arq, magnitude
from calibrant.quantizers import HfmgOptions, IfmrOptions, fit_hfmg, fit_ifmr
from calibrant.stats import LogLinearHistogram

F32 = np.float32
IN_A_ROW = 4


def wide(bins: int) -> LogLinearHistogram:
    """A histogram with that many bins, all occupied: one value in the middle of each, half of them negative."""
    patterns = np.arange(bins // 2, dtype=np.uint32) + np.uint32((127 << 13) + (8 << 13) - bins // 2)
    values = ((patterns << np.uint32(10)) | np.uint32(512)).view(F32)
    return LogLinearHistogram.from_values(np.concatenate([values, -values]))


def numpy_ifmr(values: np.ndarray, bits: int = 8) -> int:
    """The search as numpy does it: one pass of in-place operations for each of 61 candidates."""
    low, high, work, losses = min(values.min(), F32(0)), max(values.max(), F32(0)), np.empty_like(values), []
    for multiple in (0.7 + np.arange(61) * 0.01).astype(F32):
        scale = (multiple * high - low) / F32(2**bits - 1)
        np.clip(values, low, multiple * high, out=work)
        np.divide(work, scale, out=work)
        np.rint(work, out=work)
        np.multiply(work, scale, out=work)
        np.subtract(work, values, out=work)
        np.square(work, out=work)
        losses.append(work.mean())
    return int(np.argmin(losses))


def ifmr_from_bins(setting: Setting) -> Contest:
    histogram = wide(setting.scaled(100_000, 100))
    return Contest({"calibrant": lambda: fit_ifmr(histogram, IfmrOptions())}, 12 * histogram.keys.size)


def hfmg_from_bins(setting: Setting) -> Contest:
    histogram = LogLinearHistogram.from_values(values_of("gaussian", setting.scaled(8e6, 1024)))
    histogram = histogram.merge(wide(setting.scaled(100_000, 100)))
    return Contest({"calibrant": lambda: fit_hfmg(histogram, HfmgOptions())}, 12 * histogram.keys.size)


@lru_cache(maxsize=1)
def fifty_histograms(count: int) -> tuple[LogLinearHistogram, ...]:
    """Statistics as of a model of 50 layers: ReLU and signed activations of various spread."""
    draw, found = np.random.default_rng(3), []
    for layer in range(50):
        values = draw.standard_normal(count, dtype=F32) * F32(draw.gamma(2, 1))
        found.append(LogLinearHistogram.from_values(np.maximum(values, 0) if layer % 2 else values))
    return tuple(found)


def fifty_layers(setting: Setting) -> Contest:
    histograms = fifty_histograms(setting.scaled(1e6, 1024))

    def search() -> None:
        for histogram in histograms:
            fit_ifmr(histogram, IfmrOptions())
            fit_hfmg(histogram, HfmgOptions())

    return Contest({"calibrant": search}, sum(12 * histogram.keys.size for histogram in histograms))


def ifmr_from_values(setting: Setting, times: int = 1) -> Contest:
    """Fit once, or some times in a row as a model has many tensors; the first call begins with cold caches."""
    values = values_of("gaussian", setting.scaled(8e6, 1024))

    def repeated(work: Callable[[], object]) -> Work:
        return per(lambda: [work() for _ in range(times)], times)

    works = {
        "calibrant": repeated(lambda: fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions())),
        "numpy": repeated(lambda: numpy_ifmr(values)),
    }
    return Contest(works, values.nbytes)


def exact_at_eight_bits(setting: Setting) -> Contest:
    values = values_of("gaussian", setting.scaled(1e6, 1024))
    histogram = LogLinearHistogram.from_values(values)
    works = {
        "exact fit": lambda: fit_ifmr(histogram, IfmrOptions(), values=values),
        "fit": lambda: fit_ifmr(histogram, IfmrOptions()),
        "histogram": lambda: LogLinearHistogram.from_values(values),
    }
    return Contest(works, values.nbytes)


def exact_at_sixteen_bits(setting: Setting) -> Contest:
    values = values_of("gaussian", setting.scaled(8e6, 1024))
    histogram, options = LogLinearHistogram.from_values(values), IfmrOptions(bits=16)
    works = {
        "calibrant": lambda: fit_ifmr(histogram, options, values=values),
        "numpy": lambda: numpy_ifmr(values, 16),
    }
    return Contest(works, values.nbytes)


def arq_of_a_model(setting: Setting) -> Contest:
    values = values_of("gaussian", setting.scaled(25e6, 1024))
    return Contest({"calibrant": arq(values), "np.abs().max()": magnitude(values)}, values.nbytes)


def added_passes(readings: Medians) -> float:
    return (readings["exact fit"] - readings["fit"]) / readings["histogram"]


def cases(setting: Setting) -> Iterator[Case]:
    milliseconds, faster = alone("calibrant"), over("numpy", "calibrant")
    yield Case(
        "searches/IFMR/100,000 bins", ifmr_from_bins, (Figure("milliseconds", milliseconds, "ms", bars.IFMR_MS),), 7
    )
    yield Case(
        "searches/HFMG/100,000 bins", hfmg_from_bins, (Figure("milliseconds", milliseconds, "ms", bars.HFMG_MS),), 7
    )
    seconds = Figure("seconds", lambda readings: readings["calibrant"] / 1e3, "s", bars.FIFTY_LAYERS_S)
    yield Case("searches/both/50 layers", fifty_layers, (seconds,), 3)
    than = "times faster than 61 numpy passes"
    yield Case(
        "searches/IFMR/8 M values, end to end", ifmr_from_values, (Figure(than, faster, bar=bars.IFMR_FASTER),), 5
    )
    in_a_row = partial(ifmr_from_values, times=IN_A_ROW)
    yield Case("searches/IFMR/8 M values, end to end, in a row", in_a_row, (Figure(than, faster),), 3)
    passes = Figure("histogram passes more than the fit on bins", added_passes, bar=bars.EXACT_PASSES)
    yield Case("searches/exact IFMR/8 bits, 1 M values", exact_at_eight_bits, (passes,), 9)
    yield Case(
        "searches/exact IFMR/16 bits, 8 M values",
        exact_at_sixteen_bits,
        (Figure(than, faster, bar=bars.EXACT_FASTER),),
        3,
    )
    times = Figure("times np.abs().max()", over("calibrant", "np.abs().max()"), bar=bars.ARQ)
    yield Case("searches/ARQ/25 M weights per channel", arq_of_a_model, (times,), 5)
