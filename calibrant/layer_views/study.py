"""The measurements of one fit: what is known, what has to be measured, and keeping it in the run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import onnxruntime

from calibrant.errors import ModelError
from calibrant.export.partial import QuantizedParts
from calibrant.exported_fit import quantized_parts
from calibrant.ingest.data import Data
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, load_prepared
from calibrant.ingest.samples import Sample
from calibrant.layer_views.chosen_samples import captured_samples, chosen_samples, hash_of_keys
from calibrant.layer_views.isolated import CapturedData, ComputedData, LayerData, LayerSample, measure_isolated
from calibrant.layer_views.known import reuse_known
from calibrant.layer_views.measurement import Measurement, View, measurement_frame
from calibrant.layer_views.statistics import measure_statistics
from calibrant.layer_views.whole import WholeModel
from calibrant.stats.events import Event, Progress, Severity
from calibrant.stats.keep import Keep
from calibrant.stats.run import Run
from calibrant.stats.scales_hash import scales_hashes

_METHOD = "2"  # another number where the same samples would be measured otherwise


class Study:
    """Measures layers of a fit in several views.

    Args:
        run: the run.
        fit: name of the fit.
        data: evaluation data, or None.
        count: how many samples at most.
        layers: layer_id -> name of the layers to measure.
        progress: told after each step of a view.
    """

    def __init__(
        self, run: Run, fit: str, data: Data | None, count: int, layers: Mapping[int, str], progress: Progress
    ) -> None:
        self._run, self._fit, self._data, self._count = run, fit, data, count
        self._layers, self._progress = layers, progress
        self._events: list[Event] = []
        quant_params, balance, plan = (run.read(table).filter(fit=fit) for table in ("quant_params", "balance", "plan"))
        hashes = scales_hashes(quant_params, balance, plan)
        self._hashes = {layer: hashes[layer] for layer in layers}

    def measure(self, views: Sequence[View]) -> None:
        """Measure what is not known yet in these views; what was finished before an error is kept."""
        steps = {"statistics": self._statistics, "isolated": self._isolated, "whole": self._whole}
        try:
            for view in views:
                steps[view]()
        finally:
            self._run.replace_events(["sensitivity"], self._fit, self._events)

    @cached_property
    def _prepared(self) -> PreparedModel:
        return load_prepared(self._run.model_folder)

    @cached_property
    def _parts(self) -> QuantizedParts:
        return quantized_parts(self._run, self._prepared, self._fit)

    @cached_property
    def _samples(self) -> list[Sample]:
        return chosen_samples(self._run, self._prepared, self._data, self._count)

    def _statistics(self) -> None:
        data_hash = hash_of_keys([self._run.info.data_fingerprint or ""], "statistics", _METHOD)
        todo = reuse_known(self._run, self._fit, "statistics", self._hashes, data_hash)
        if todo:
            found = measure_statistics(self._run, self._fit, todo, self._prepared, self._parts)
            self._keep("statistics", data_hash, iter(found.items()))
            self._progress("statistics", len(todo), len(todo))

    def _isolated(self) -> None:
        data, keys = self._layer_data()
        data_hash = hash_of_keys(keys, "isolated", _METHOD, onnxruntime.__version__)
        todo = frozenset(reuse_known(self._run, self._fit, "isolated", self._hashes, data_hash))
        if todo:
            layers = [layer for layer in self._prepared.layers if layer.layer_id in todo]
            counted = _Counted(data, len(layers) * len(keys), self._progress)
            found = measure_isolated(self._prepared, self._parts, layers, counted)
            self._keep("isolated", data_hash, ((layer.layer_id, measured) for layer, measured in found))
            self._tell_missing(todo)

    def _tell_missing(self, todo: Collection[int]) -> None:
        """Name layers whose captures hold none of the chosen samples."""
        known = set(self._run.read("sensitivity").filter(fit=self._fit, view="isolated")["layer_id"])
        for layer in sorted(set(todo) - known):
            message = "isolated: not measured, its captures hold none of the chosen samples; capture the run again"
            self._events.append(Event("sensitivity", "warn", message, layer=self._layers[layer]))

    def _layer_data(self) -> tuple[LayerData, Collection[str]]:
        """Return where isolated layers get their data, and the keys of the samples."""
        if Keep.parse(self._run.info.keep).has_raw:
            chosen = captured_samples(self._run, self._count)
            return CapturedData(self._run, list(chosen)), list(chosen.values())
        self._note("info", f"isolated: only statistics were kept, so the float model ran anew on {self._origin()}")
        return ComputedData(self._run, self._prepared, self._samples), [sample.key for sample in self._samples]

    def _whole(self) -> None:
        keys = [sample.key for sample in self._samples]
        data_hash = hash_of_keys(keys, "whole", _METHOD, onnxruntime.__version__)
        self._note("info", f"whole: measured on {self._origin()}")
        if todo := reuse_known(self._run, self._fit, "whole", self._hashes, data_hash):
            try:
                self._keep("whole", data_hash, self._each_in_the_whole(todo))
            except ModelError as error:
                self._note("warn", f"whole: not measured, {error}")

    def _each_in_the_whole(self, layers: Sequence[int]) -> Iterator[tuple[int, list[Measurement]]]:
        self._progress("whole", 0, len(layers))
        model = WholeModel(self._prepared, self._parts, self._samples)
        for done, layer in enumerate(layers, 1):
            yield layer, model.measure((self._layers[layer],))
            self._progress("whole", done, len(layers))

    def _origin(self) -> str:
        count = len(self._samples)
        if self._data is None:
            return f"the {count} samples that the capture kept for verify; give evaluation data (--data) for a narrower interval"
        return f"{count} samples of the evaluation data, those of least content key"

    def _keep(self, view: View, data_hash: str, measured: Iterator[tuple[int, list[Measurement]]]) -> None:
        """Write what comes, also what came before an error."""
        found: dict[int, list[Measurement]] = {}
        try:
            found.update(measured)
        finally:
            if found:
                frame = measurement_frame(self._fit, view, found, self._hashes, data_hash)
                self._run.replace_sensitivity(frame)

    def _note(self, severity: Severity, message: str) -> None:
        self._events.append(Event("sensitivity", severity, message))


class _Counted:
    """Tells the progress of the data that isolated layers take."""

    def __init__(self, data: LayerData, total: int, progress: Progress) -> None:
        self._data, self._total, self._progress = data, total, progress

    def each(self, layers: Sequence[Layer]) -> Iterator[LayerSample]:
        """Yield what the data yields."""
        self._progress("isolated", 0, self._total)
        for done, one in enumerate(self._data.each(layers), 1):
            yield one
            self._progress("isolated", min(done, self._total), self._total)
        self._progress("isolated", self._total, self._total)
