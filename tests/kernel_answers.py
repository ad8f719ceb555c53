"""A representative part of the kernels on small data, as text: run once compiled and once with the jit off, to compare.

``python kernel_answers.py`` prints the answers as JSON; floats in hexadecimal, so that equal text is equal bits.
"""

import json
import sys
from collections.abc import Iterable

import numpy as np
from datasets import dataset

from calibrant.quantizers import HfmgOptions, IfmrOptions, data_quality, fit_hfmg, fit_ifmr
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.histogram import CountScratch, LogLinearHistogram

NAMES = ["relu6", "denormals", "all kinds", "float16 extremes", "zeros of both signs"]


def text(value: object) -> str:
    """A number as exact text."""
    return value.hex() if isinstance(value, float) else str(value)


def texts(values: Iterable[object]) -> list[str]:
    """Numbers as exact text."""
    return [text(value) for value in values]


def statistics(name: str) -> list[list[str]]:
    """Samples, channels and histogram of one data set, in two batches."""
    batch = np.resize(dataset(name).ravel(), (4, 3, 11))
    tensor, scratch = TensorStatistics(1, channel_axis=1), CountScratch()
    samples = [tensor.update(batch[:3], [0, 1, 2], scratch=scratch), tensor.update(batch[3:], [3], scratch=scratch)]
    frames = [*samples, tensor.channels_frame(), *tensor.histogram.to_tables()]
    return [texts(value for row in frame.rows() for value in row) for frame in frames]


def fits(name: str) -> list[list[str]]:
    """Losses and choices of both searches, from bins and from values."""
    values = dataset(name).ravel()[:120]
    histogram = LogLinearHistogram.from_values(values)
    ifmr = IfmrOptions(search_step=0.1)
    found = [
        fit_ifmr(histogram, ifmr),
        fit_ifmr(histogram, ifmr, values=values),
        fit_hfmg(histogram, HfmgOptions(bits=4, num_of_bins=1024)),
    ]
    answers = [texts([float(fit.scale), int(fit.offset), fit.loss]) for fit in found]
    answers += [texts(fit.candidates.loss.tolist()) for fit in found if fit.candidates is not None]
    quality = data_quality(histogram, found[0])
    return [*answers, texts([quality.mse, quality.sqnr_db, quality.clip_rate]), texts(histogram.rebin(1024).tolist())]


def answers() -> dict[str, list[list[str]]]:
    """All answers by data set and part."""
    found = {f"statistics of {name}": statistics(name) for name in NAMES}
    return found | {f"fits of {name}": fits(name) for name in ("relu6", "constant", "integers")}


if __name__ == "__main__":
    json.dump(answers(), sys.stdout)
