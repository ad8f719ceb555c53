"""Compile every kernel that a run needs, so that times can be told apart from compilation."""

import time

import numpy as np


def compile_kernels() -> float:
    """Call every kernel once on small arrays; return the seconds it took (little where the cache is warm).

    Example:
        >>> compile_kernels() >= 0
        True
    """
    from calibrant.quantizers import (
        ArqOptions,
        HfmgOptions,
        IfmrOptions,
        data_quality,
        fit_arq,
        fit_hfmg,
        fit_ifmr,
        weight_quality,
    )
    from calibrant.stats.collector import TensorStatistics
    from calibrant.stats.histogram import LogLinearHistogram
    from calibrant.stats.parquet_columns import differences

    start = time.perf_counter()
    ramp = np.linspace(-1, 3, 2**10, dtype=np.float32)
    statistics = TensorStatistics(0, channel_axis=1)
    for size in (
        2**8,
        2**8,
        2**19,
        2**8,
    ):  # sorted, added to what was sorted, counted in the flat table, counted in pages
        statistics.update(np.resize(ramp, (2, 2, size)), [0, 1])
    statistics.channels_frame()
    differences(np.arange(3))
    histogram = statistics.histogram
    for fitted in (fit_ifmr(histogram, IfmrOptions()), fit_hfmg(histogram, HfmgOptions())):
        data_quality(histogram, fitted)
    fit_ifmr(LogLinearHistogram.from_values(ramp), IfmrOptions(bits=16), values=ramp)
    finer = np.linspace(-1, 3, 2**12, dtype=np.float32)
    fit_ifmr(LogLinearHistogram.from_values(finer), IfmrOptions(bits=4))  # few codes beside the bins
    for weight in (
        ramp.reshape(4, -1),
        np.frombuffer(ramp.tobytes(), np.float32).reshape(4, -1),
    ):  # a file's is read-only
        weight_quality(weight, fit_arq(weight, ArqOptions()))
    return time.perf_counter() - start
