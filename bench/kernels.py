"""The kernels on 1, 8 and 64 million values, and on several kinds of values."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from bench import bars
from bench.contest import Case, Contest, Figure, Setting, Work, alone, over, per
from bench.distributions import KINDS, values_of
from calibrant.quantizers import (
    ArqOptions,
    DmqOptions,
    HfmgOptions,
    IfmrOptions,
    NuqOptions,
    fit_arq,
    fit_dmq,
    fit_hfmg,
    fit_ifmr,
    fit_nuq,
)
from calibrant.stats import LogLinearHistogram
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.input_channels import data_maxima, weight_maxima

MILLIONS: Final = (1, 8, 64)
WEIGHT: Final = (64, 9)  # input channels and taps of a kernel; as many output channels as the size gives
SEARCHED: Final = [kind for kind in KINDS if kind != "uniform bits"]  # a search takes finite values only

Maker = Callable[[np.ndarray], Work]


@lru_cache(maxsize=2)
def histogram_of(kind: str, count: int) -> LogLinearHistogram:
    return LogLinearHistogram.from_values(values_of(kind, count))


def as_activation(values: np.ndarray) -> np.ndarray:
    """Shape values like a batch of eight samples of 32 channels."""
    return values[: values.size // 256 * 256].reshape(8, 32, -1)


def as_weight(values: np.ndarray) -> np.ndarray:
    """Shape values like the weight of a 3 x 3 convolution."""
    inputs, taps = WEIGHT
    each = inputs * taps
    return values[: max(values.size // each, 1) * each].reshape(-1, inputs, 3, 3)


def histogram(threads: int) -> Maker:
    return lambda values: lambda: LogLinearHistogram.from_values(values, threads=threads)


def statistics(values: np.ndarray) -> Work:
    batch = as_activation(values)
    return lambda: TensorStatistics(0, channel_axis=1).update(batch, range(8))


def channel_maxima(values: np.ndarray) -> Work:
    batch = as_activation(values)
    return lambda: data_maxima(batch, "Conv")


def arq(values: np.ndarray) -> Work:
    weight = as_weight(values)
    return lambda: fit_arq(weight, ArqOptions())


def dmq(values: np.ndarray) -> Work:
    weight = as_weight(values)
    data = np.linspace(1, 9, WEIGHT[0], dtype=np.float32)
    return lambda: fit_dmq(data, weight_maxima(weight, "Conv", 1), DmqOptions())


def nuq(values: np.ndarray) -> Work:
    codes = np.clip(np.rint(values.astype(np.float32) * 32), -128, 127).astype(np.int8)
    return lambda: fit_nuq(codes, NuqOptions())


def maximum(values: np.ndarray) -> Work:
    return lambda: values.max()


def magnitude(values: np.ndarray) -> Work:
    return lambda: np.abs(values).max()


def sized(
    name: str, kind: str, millions: float, ours: Maker, theirs: Maker, rival: str, *, bar: Any = None, threads: int = 1
) -> Case:
    """A kernel on values of a kind against a pass of numpy over them."""

    def prepare(setting: Setting) -> Contest:
        values = values_of(kind, setting.scaled(millions * 1e6, 1024))
        return Contest({"calibrant": ours(values), rival: theirs(values)}, values.nbytes, threads)

    suffix = "" if threads == 1 else f"/{threads} threads"
    title = f"kernels/{name}/{kind}/{millions:g} M{suffix}"
    return Case(title, prepare, (Figure(f"times {rival}", over("calibrant", rival), bar=bar),))


def searched(name: str, kind: str, millions: float, search: Callable[[LogLinearHistogram], object]) -> Case:
    """A search on the histogram of values of a kind."""

    def prepare(setting: Setting) -> Contest:
        found = histogram_of(kind, setting.scaled(millions * 1e6, 1024))
        return Contest({"calibrant": lambda: search(found)}, found.keys.nbytes + found.counts.nbytes)

    return Case(f"kernels/{name}/{kind}/{millions:g} M", prepare, (Figure("milliseconds", alone("calibrant"), "ms"),))


def small_tensors() -> Case:
    """Many tensors of 10,000 values, one histogram each."""

    def prepare(setting: Setting) -> Contest:
        count = setting.scaled(500, 10)
        tensors = values_of("gaussian", count * 10_000).reshape(count, -1)
        each = {
            "calibrant": lambda: [LogLinearHistogram.from_values(tensor) for tensor in tensors],
            "np.max": lambda: [tensor.max() for tensor in tensors],
        }
        return Contest({name: per(work, count) for name, work in each.items()}, 40_000)

    figure = Figure("milliseconds a tensor", alone("calibrant"), "ms", bars.SMALL_TENSOR_MS)
    return Case("kernels/histogram/tensors of 10,000 values", prepare, (figure,))


PASSES: Final[dict[str, tuple[Maker, Maker, str]]] = {
    "histogram": (histogram(1), maximum, "np.max"),
    "samples, channels and histogram": (statistics, maximum, "np.max"),
    "channel maxima": (channel_maxima, maximum, "np.max"),
    "ARQ": (arq, magnitude, "np.abs().max()"),
    "DMQ": (dmq, magnitude, "np.abs().max()"),
    "NUQ": (nuq, maximum, "np.max"),
}
SEARCHES: Final[dict[str, Callable[[LogLinearHistogram], object]]] = {
    "IFMR": lambda found: fit_ifmr(found, IfmrOptions()),
    "HFMG": lambda found: fit_hfmg(found, HfmgOptions()),
}


def cases(setting: Setting) -> Iterator[Case]:
    """All cases, those of one array next to each other."""
    for millions in MILLIONS:
        yield from _of_kind("gaussian", millions)
    yield sized("histogram", "gaussian", 64, histogram(2), maximum, "np.max", bar=bars.HISTOGRAM_TWO_THREADS, threads=2)
    for kind in KINDS:
        if kind != "gaussian":
            yield from _of_kind(kind, 8)
            yield sized("histogram", kind, 64, histogram(1), maximum, "np.max", bar=bars.HISTOGRAM.get(kind))
    yield small_tensors()


def _of_kind(kind: str, millions: float) -> Iterator[Case]:
    for name, (ours, theirs, rival) in PASSES.items():
        if name in ("histogram", "samples, channels and histogram") or kind in SEARCHED:
            bar = bars.HISTOGRAM.get(kind) if (name, millions) == ("histogram", 64) else None
            yield sized(name, kind, millions, ours, theirs, rival, bar=bar)
    for name, search in SEARCHES.items():
        if kind in SEARCHED:
            yield searched(name, kind, millions, search)
