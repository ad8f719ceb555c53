"""The measured promises of the histogram and the quantizers, each with its bar."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from bench.timing import Sample, Work, measure
from calibrant.quantizers import ArqOptions, HfmgOptions, IfmrOptions, fit_arq, fit_hfmg, fit_ifmr
from calibrant.stats import LogLinearHistogram

F32 = np.float32


@dataclass(frozen=True)
class Case:
    """One promise.

    Attributes:
        name: what is measured.
        prepare: makes our work and, for a ratio, numpy's.
        bar: most milliseconds of ours, or most (`faster` false) or least (`faster` true) of the ratio.
        faster: whether the ratio is numpy's time over ours instead of ours over numpy's.
        repeats: timed rounds.
    """

    name: str
    prepare: Callable[[float], tuple[Work, Work | None]]
    bar: float | None
    faster: bool = False
    repeats: int = 7


@dataclass(frozen=True)
class Outcome:
    """What a case measured; `figure` is the number that the bar bounds."""

    name: str
    ours: Sample
    numpy: Sample | None
    figure: float
    bar: float | None
    met: bool

    def row(self) -> str:
        """Return a row of the Markdown table."""
        figure = f"{self.figure:.2f} ms" if self.numpy is None else f"{self.figure:.2f} x"
        bar, verdict = ("-", "-") if self.bar is None else (f"{self.bar:g}", "yes" if self.met else "NO")
        return f"| {self.name} | {self.ours} | {self.numpy or '-'} | {figure} | {bar} | {verdict} |"

    def record(self) -> dict[str, object]:
        """Return plain data for the results file."""
        return asdict(self)


def run(case: Case, size: float) -> Outcome:
    """Measure one case on `size` times its input."""
    ours, theirs = case.prepare(size)
    samples = measure([ours] if theirs is None else [ours, theirs], case.repeats)
    if theirs is None:
        figure = samples[0].median
    else:
        figure = samples[1].median / samples[0].median if case.faster else samples[0].median / samples[1].median
    met = case.bar is None or (figure >= case.bar if case.faster else figure <= case.bar)
    return Outcome(case.name, samples[0], samples[1] if theirs is not None else None, figure, case.bar, met)


def gaussian(millions: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(int(millions * 1e6), dtype=F32)


def wide(bins: int) -> LogLinearHistogram:
    """A histogram with that many bins, all occupied: one value in the middle of each, half of them negative."""
    patterns = np.arange(bins // 2, dtype=np.uint32) + np.uint32((127 << 13) + (8 << 13) - bins // 2)
    values = ((patterns << np.uint32(10)) | np.uint32(512)).view(F32)
    return LogLinearHistogram.from_values(np.concatenate([values, -values]))


def histogram_update(threads: int) -> Callable[[float], tuple[Work, Work]]:
    def prepare(size: float) -> tuple[Work, Work]:
        values = gaussian(64 * size)
        return lambda: LogLinearHistogram.from_values(values, threads=threads), values.max

    return prepare


def numpy_ifmr(values: np.ndarray) -> int:
    """The search as numpy does it: one pass of in-place operations for each of 61 candidates."""
    low, high, work, losses = min(values.min(), F32(0)), max(values.max(), F32(0)), np.empty_like(values), []
    for multiple in (0.7 + np.arange(61) * 0.01).astype(F32):
        scale = (multiple * high - low) / F32(255)
        np.clip(values, low, multiple * high, out=work)
        np.divide(work, scale, out=work)
        np.rint(work, out=work)
        np.multiply(work, scale, out=work)
        np.subtract(work, values, out=work)
        np.square(work, out=work)
        losses.append(work.mean())
    return int(np.argmin(losses))


def ifmr_from_array(size: float) -> tuple[Work, Work]:
    values = gaussian(8 * size)
    return lambda: fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions()), lambda: numpy_ifmr(values)


def ifmr_exact(size: float) -> tuple[Work, Work]:
    values = gaussian(8 * size)
    histogram = LogLinearHistogram.from_values(values)
    return lambda: fit_ifmr(histogram, IfmrOptions(), values=values), lambda: numpy_ifmr(values)


def ifmr_from_bins(size: float) -> tuple[Work, None]:
    histogram = wide(int(100_000 * size))
    return lambda: fit_ifmr(histogram, IfmrOptions()), None


def hfmg_from_bins(size: float) -> tuple[Work, None]:
    histogram = LogLinearHistogram.from_values(gaussian(8 * size)).merge(wide(int(100_000 * size)))
    return lambda: fit_hfmg(histogram, HfmgOptions()), None


def hfmg_from_gaussian(size: float) -> tuple[Work, None]:
    histogram = LogLinearHistogram.from_values(gaussian(8 * size))
    return lambda: fit_hfmg(histogram, HfmgOptions()), None


def arq(size: float) -> tuple[Work, Work]:
    weight = gaussian(25 * size).reshape(-1, 500)
    return lambda: fit_arq(weight, ArqOptions()), lambda: np.abs(weight).max()


CASES = (
    Case("histogram update, 64 M Gaussian, 1 thread, against np.max", histogram_update(1), None, repeats=5),
    Case("histogram update, 64 M Gaussian, 2 threads, against np.max", histogram_update(2), 4.0, repeats=5),
    Case("IFMR from an array of 8 M, times faster than 61 numpy passes", ifmr_from_array, 40.0, faster=True, repeats=3),
    Case("exact IFMR on 8 M raw values, times faster than 61 numpy passes", ifmr_exact, None, faster=True, repeats=3),
    Case("fit_ifmr from 100,000 bins", ifmr_from_bins, 15.0),
    Case("fit_hfmg from 100,000 bins", hfmg_from_bins, 10.0),
    Case("fit_hfmg, 8 M Gaussian", hfmg_from_gaussian, 10.0),
    Case("fit_arq of 25 M weights in 50,000 channels, against np.abs(w).max()", arq, 3.0),
)
