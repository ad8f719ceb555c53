"""How far the outputs of the model move: of one layer quantized alone, and of a whole fit."""

from collections.abc import Collection, Sequence
from math import inf, isnan

from calibrant.exported_fit import quantized_parts
from calibrant.ingest.data import Data
from calibrant.ingest.model import load_prepared
from calibrant.layer_views.chosen_samples import chosen_samples
from calibrant.layer_views.whole import WholeModel
from calibrant.sensitivity import sensitivity
from calibrant.stats.events import Progress
from calibrant.stats.run import Run


def noise_ratio(db: float) -> float:
    """Return noise over signal of an SQNR in dB; what cannot be compared is endless noise.

    Example:
        >>> noise_ratio(20.0), noise_ratio(float("inf")), noise_ratio(float("nan"))
        (0.01, 0.0, inf)
    """
    return inf if isnan(db) else 0.0 if db == inf else float(10 ** (-db / 10))


class Proof:
    """Measures fits of a run on the same samples.

    Args:
        run: the run.
        data: evaluation data, read once, or None for the samples that the capture kept.
        count: how many samples at most.
        progress: told of each step.

    Attributes:
        samples: how many there are.

    Raises:
        DataError: the data does not fit the model.
    """

    def __init__(self, run: Run, data: Data | None, count: int, progress: Progress) -> None:
        self._run, self._progress = run, progress
        self._prepared = load_prepared(run.model_folder)
        self._samples = chosen_samples(run, self._prepared, data, count)
        self.samples = len(self._samples)

    def alone(self, fit: str, layers: Collection[str], stage: str) -> dict[str, float]:
        """Return the output SQNR in dB of the model with each of these layers quantized alone; what is known is not measured again.

        Args:
            fit: the fit.
            layers: its layers to measure.
            stage: what progress calls it.
        """
        if not layers:
            return {}
        feeds = [sample.values for sample in self._samples]
        rows = sensitivity(
            self._run, fit=fit, views=("whole",), data=feeds, samples=self.samples, layers=layers,
            progress=lambda _, done, total: self._progress(stage, done, total),
        )  # fmt: skip
        return dict(rows.filter(metric="sqnr_db").select("layer", "value").iter_rows())

    def whole(self, fit: str) -> "WholeFit":
        """Return a fit, to be measured as a whole."""
        parts = quantized_parts(self._run, self._prepared, fit)
        return WholeFit(WholeModel(self._prepared, parts, self._samples), parts.names)


class WholeFit:
    """The model with everything quantized that a fit quantizes, or with some of it left in float."""

    def __init__(self, model: WholeModel, names: Sequence[str]) -> None:
        self._model, self._names = model, names

    @property
    def count(self) -> int:
        """How many layers it quantizes."""
        return len(self._names)

    def sqnr_db(self, but: Collection[str] = ()) -> float:
        """Return the output SQNR in dB with these layers left in float."""
        found = self._model.measure([name for name in self._names if name not in but])
        return next(one.value for one in found if one.metric == "sqnr_db")
