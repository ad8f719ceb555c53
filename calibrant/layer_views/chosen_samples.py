"""Which samples a measurement takes: those of least content key, so that neither their order nor their number elsewhere matters."""

import hashlib
import heapq
from collections.abc import Iterable

from calibrant.ingest.data import Data, open_data
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.samples import Sample
from calibrant.ingest.verify_inputs import load_verify_inputs
from calibrant.stats.keep import Keep
from calibrant.stats.run import Run


def chosen_samples(run: Run, prepared: PreparedModel, data: Data | None, count: int) -> list[Sample]:
    """Return up to `count` model inputs, those of least content key.

    Args:
        run: gives the inputs that its capture kept for verify, each once, where there are no data.
        prepared: its model.
        data: evaluation data, or None.
        count: how many at most.

    Raises:
        DataError: the data does not fit the model.
        RunError: the kept inputs are damaged.
    """
    source = load_verify_inputs(run.path) if data is None else data
    samples: Iterable[Sample] = open_data(source, prepared.inputs)
    if data is None:  # a fixed batch is filled up with repeated ones
        samples = {sample.key: sample for sample in samples}.values()
    return heapq.nsmallest(count, samples, key=lambda sample: sample.key)


def captured_samples(run: Run, count: int) -> dict[int, str]:
    """Return up to `count` samples whose activations were kept, number -> content key; those of least key."""
    kept = Keep.parse(run.info.keep).samples
    rows = run.read("inputs").select("key", "sample").rows()
    return {number: key for key, number in sorted(rows)[: count if kept is None else min(count, kept)]}


def hash_of_keys(keys: Iterable[str], *about: str) -> str:
    """Return one hash of samples, in any order, and of words that say how they are measured."""
    text = "\n".join([*about, *sorted(keys)])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
