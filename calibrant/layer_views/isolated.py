"""Quantized layers alone, on the data that reaches them in the float model."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from calibrant.export.isolated import IsolatedLayer, data_tensors, open_isolated
from calibrant.export.metrics import METRICS, Array, Terms, cosine, power_and_noise
from calibrant.export.partial import QuantizedParts
from calibrant.ingest.batches import Batch
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.opening import open_runner
from calibrant.ingest.samples import Sample
from calibrant.ingest.session import ActivationSession
from calibrant.layer_views.measurement import Measurement, of_metric
from calibrant.stats.captures import CONSTANT_SAMPLE, read_capture_rows
from calibrant.stats.run import Run

ISOLATED_METRICS: Final = ("sqnr_db", "cosine", "mse", "amct_similarity")
_CHOSEN: Final = tuple(METRICS[name] for name in ISOLATED_METRICS)

Data = tuple[Array, ...]  # one sample of what a layer computes from
LayerSample = tuple[Layer, Data, bool]  # the last says whether it is the layer's last sample


class LayerData(Protocol):
    """Gives the data of layers, layer by layer or sample by sample, whichever costs least."""

    def each(self, layers: Sequence[Layer]) -> Iterator[LayerSample]:
        """Yield samples of all these layers' data."""


def sample_terms(reference: Array, output: Array) -> tuple[Terms, ...]:
    """Return the terms of `ISOLATED_METRICS` of one sample: what each metric's own `per_sample` gives, in two passes instead of four.

    Example:
        >>> import numpy as np
        >>> sample_terms(np.float32([3, 4]), np.float32([3, 4]))
        ((25.0, 0.0), (1.0,), (0.0,), (1.0,))
    """
    power, noise = power_and_noise(reference, output)
    angle = cosine(reference, output)
    alike = 1.0 if not reference.any() else 0.5 + 0.5 * angle if output.any() else 0.0
    return (power, noise), (angle,), (noise / max(reference.size, 1),), (alike,)


class _Terms:
    """Terms of each metric, collected sample by sample."""

    def __init__(self, alone: IsolatedLayer) -> None:
        self._alone = alone
        self._terms: list[list[Terms]] = [[] for _ in _CHOSEN]

    def add(self, data: Data) -> None:
        found = sample_terms(*self._alone.outputs(data))
        for one, terms in zip(found, self._terms, strict=True):
            terms.append(one)

    def measurements(self) -> list[Measurement]:
        return [of_metric(metric, terms) for metric, terms in zip(_CHOSEN, self._terms, strict=True)]


def measure_isolated(
    prepared: PreparedModel, parts: QuantizedParts, layers: Sequence[Layer], data: LayerData
) -> Iterator[tuple[Layer, list[Measurement]]]:
    """Yield the measurements of each layer, run alone in float and quantized.

    Args:
        prepared: the float model.
        parts: what the fit quantizes.
        layers: which of its layers to measure.
        data: where their data comes from.

    Raises:
        DataError: onnxruntime fails on a layer.
    """
    opened: dict[int, _Terms] = {}
    for layer, sample, is_last in data.each(layers):
        if layer.layer_id not in opened:
            opened[layer.layer_id] = _Terms(open_isolated(prepared, parts, layer))
        opened[layer.layer_id].add(sample)
        if is_last:
            yield layer, opened.pop(layer.layer_id).measurements()


class CapturedData:
    """Data out of a run's captures.

    Args:
        run: a run that kept raw activations.
        samples: numbers of the samples to read, in the order in which they come.
    """

    def __init__(self, run: Run, samples: Sequence[int]) -> None:
        self._run, self._samples = run, samples
        self._ids = dict(run.read("tensors").select("tensor", "tensor_id").iter_rows())

    def each(self, layers: Sequence[Layer]) -> Iterator[LayerSample]:
        """Yield the data of one layer after the other."""
        for layer in layers:
            found = list(self._data(layer))
            for number, data in enumerate(found, 1):
                yield layer, data, number == len(found)

    def _data(self, layer: Layer) -> Iterator[Data]:
        columns = [self._tensor(name) for name in data_tensors(layer)]
        longest = max(map(len, columns))  # beside a tensor that is the same for all samples, it is repeated
        yield from zip(*(column * longest if len(column) == 1 else column for column in columns), strict=True)

    def _tensor(self, name: str) -> list[Array]:
        wanted = frozenset(self._samples)
        found = {
            int(number): row
            for numbers, rows in read_capture_rows(self._run.path, self._ids[name], wanted)
            for number, row in zip(numbers, rows, strict=True)
            if number in wanted or number == CONSTANT_SAMPLE
        }
        return [found[number] for number in (*self._samples, CONSTANT_SAMPLE) if number in found]


class ComputedData:
    """Data that the float model computes anew, one sample at a time; nothing is kept.

    Args:
        run: whose model to run.
        prepared: its prepared model.
        samples: model inputs.
    """

    def __init__(self, run: Run, prepared: PreparedModel, samples: Sequence[Sample]) -> None:
        self._run, self._prepared, self._samples = run, prepared, samples

    def each(self, layers: Sequence[Layer]) -> Iterator[LayerSample]:
        """Yield the data of all layers, one sample after the other.

        Raises:
            DataError: onnxruntime refuses a sample.
        """
        tensors = self._prepared.tensors
        session = ActivationSession(self._run.prepared_file, tensors)
        runner = open_runner(session.run, iter(self._samples), self._prepared).runner
        for number, sample in enumerate(self._samples):
            rows = runner.rows(Batch(number, (sample,)))
            values = {tensor.name: row[0].values[0] for tensor, row in zip(tensors, rows, strict=True)}
            for layer in layers:
                data = tuple(values[name] for name in data_tensors(layer))
                yield layer, data, number == len(self._samples) - 1
