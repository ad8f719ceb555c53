"""One layer at a time quantized in the whole model: how far its outputs move from the float model's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from calibrant.errors import ModelError
from calibrant.export.memory_session import session_source
from calibrant.export.metrics import METRICS, Array, has_classes
from calibrant.export.outputs import OutputRunner
from calibrant.export.partial import QuantizedParts, partial_fake_quant
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.samples import Sample
from calibrant.layer_views.measurement import Measurement, of_metric, worst

Outputs = Mapping[str, Sequence[Array]]  # of each output, one array a sample
WHOLE_METRICS: Final = ("sqnr_db", "kl", "agreement")


class WholeModel:
    """The float model's outputs, computed once, and models with chosen layers quantized held against them.

    Args:
        prepared: the float model.
        parts: what the fit quantizes.
        samples: what to run; at least one.

    Raises:
        ModelError: onnxruntime refuses the model, or none of its outputs is of floats.
        DataError: it refuses a sample.
    """

    def __init__(self, prepared: PreparedModel, parts: QuantizedParts, samples: Sequence[Sample]) -> None:
        self._prepared, self._parts, self._samples = prepared, parts, samples
        found = self.outputs(())
        self._reference = {name: arrays for name, arrays in found.items() if _is_float(arrays)}
        if not self._reference:
            message = "no output of the model is of floats, so that nothing tells how far quantizing moves it"
            raise ModelError(message)

    def outputs(self, chosen: Sequence[str]) -> dict[str, list[Array]]:
        """Return the outputs of the model with these layers quantized, each output's in the order of the samples."""
        model = partial_fake_quant(self._prepared, self._parts, chosen)
        with session_source(model) as source:
            runner = OutputRunner(source, self._prepared.inputs, name="the model of " + (", ".join(chosen) or "floats"))
        found = list(runner.each(self._samples))
        return {name: [one[name] for one in found] for name in runner.outputs}

    def measure(self, chosen: Sequence[str]) -> list[Measurement]:
        """Return how far the outputs of the model with these layers quantized are from the float model's; of several outputs, the worst."""
        return list(self._measured(self.outputs(chosen)))

    def _measured(self, outputs: Outputs) -> Iterator[Measurement]:
        for metric in (METRICS[name] for name in WHOLE_METRICS):
            found = [
                of_metric(metric, [metric.per_sample(*pair, None) for pair in zip(arrays, outputs[name], strict=True)])
                for name, arrays in self._reference.items()
                if not metric.needs_classes or all(map(has_classes, arrays))
            ]
            if found:
                yield worst(metric, found)


def _is_float(arrays: Sequence[Array]) -> bool:
    return all(np.issubdtype(array.dtype, np.floating) for array in arrays)
