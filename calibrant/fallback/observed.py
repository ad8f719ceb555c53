"""What the sessions of onnxruntime are fed while code of the user's runs."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime

from calibrant.export.array_log import ArrayLog


@contextmanager
def observed_feeds(inputs: Collection[str], log: ArrayLog) -> Iterator[None]:
    """Keep the feeds of every `onnxruntime.InferenceSession.run` of this process while the block runs, and restore it afterwards.

    Runs of sessions that are fed other inputs are let through unseen (an evaluator may have a model of its own before it), and so
    are `run_with_iobinding` and `run_with_ort_values`, whose values lie elsewhere.

    Args:
        inputs: names that a feed must have, all of them; others that it has are left out.
        log: where the feeds are kept.

    Example:
        >>> with ArrayLog() as log, observed_feeds(["x"], log):
        ...     len(log)
        0
    """
    original = onnxruntime.InferenceSession.run
    names = sorted(inputs)

    def run(session: Any, output_names: Any, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        found = original(session, output_names, input_feed, run_options)
        if set(names) <= set(input_feed):
            log.append({name: np.asarray(input_feed[name]) for name in names})
        return found

    onnxruntime.InferenceSession.run = run
    try:
        yield
    finally:
        onnxruntime.InferenceSession.run = original
