"""AMCT's evaluators: an object with `calibration`, `evaluate` and `metric_eval`, taken as it is whatever it derives from."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.errors import CalibrantError, ConfigError, first_line
from calibrant.export.files import write_model
from calibrant.export.partial import QuantizedParts, partial_fake_quant
from calibrant.fallback.judgement import Judgement
from calibrant.ingest.model import PreparedModel
from calibrant.stats.run import Run

VERBS: Final = ("calibration", "evaluate", "metric_eval")
_METRIC: Final = "metric_eval"


class AutoCalibrationEvaluatorBase:
    """A base for evaluators, in the place of AMCT's; deriving from it is not needed."""

    def calibration(self, model_file: str) -> None:
        """Run the model at `model_file` on the calibration data, in sessions of onnxruntime.

        It is called, once, only where no calibration data is given otherwise; what `onnxruntime.InferenceSession.run` is fed
        meanwhile is the data.
        """
        raise NotImplementedError

    def evaluate(self, model_file: str) -> Any:
        """Return the metric of the model at `model_file`, of any type."""
        raise NotImplementedError

    def metric_eval(self, original_metric: Any, new_metric: Any) -> tuple[bool, float]:
        """Return whether the new metric is good enough beside that of the float model, and how much was lost."""
        raise NotImplementedError


class UserEvaluator:
    """An evaluator, checked.

    Args:
        given: the object.
        needs_calibration: whether `calibration` will be called.

    Raises:
        ConfigError: it lacks a verb, or is a class instead of an object of it.
    """

    def __init__(self, given: object, *, needs_calibration: bool) -> None:
        if isinstance(given, type):
            message = f"evaluator: {given.__name__} is a class; pass an object of it, {given.__name__}(...)"
            raise ConfigError(message)
        verbs = VERBS if needs_calibration else VERBS[1:]
        if missing := [verb for verb in verbs if not callable(getattr(given, verb, None))]:
            message = (
                f"evaluator: {type(given).__name__} has no {', '.join(missing)}; expected an object with the methods "
                f"{', '.join(f'{verb}(…)' for verb in verbs)} (docs/auto.md)"
            )
            raise ConfigError(message)
        self._given, self._name = given, type(given).__name__

    def calibration(self, model: Path) -> None:
        """Let it run its calibration data.

        Raises:
            ConfigError: it raised.
        """
        self._called("calibration", lambda: self._verb("calibration")(str(model)))

    def evaluate(self, model: Path) -> Any:
        """Return what it finds of a model, of any type but None.

        Raises:
            ConfigError: it raised, or returned None.
        """
        found = self._called("evaluate", lambda: self._verb("evaluate")(str(model)))
        if found is None:
            message = (
                f"evaluator: {self._name}.evaluate returned None; expected the metric of the model, of any other type"
            )
            raise ConfigError(message)
        return found

    def metric_eval(self, original: Any, new: Any) -> tuple[bool, float]:
        """Return whether a metric is good enough, and the loss.

        Raises:
            ConfigError: it raised, or returned something else.
        """
        found = self._called("metric_eval", lambda: self._verb("metric_eval")(original, new))
        if isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], bool | np.bool_):  # ok, loss
            loss = np.asarray(found[1])
            if loss.size == 1 and loss.dtype.kind in "bif":
                return bool(found[0]), float(loss.reshape(()))
        message = (
            f"evaluator: {self._name}.metric_eval returned {found!r:.80}; expected (bool, float): "
            "whether the metric is good enough, and what is lost"
        )
        raise ConfigError(message)

    def _verb(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._given, name)
        return found

    def _called(self, verb: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except CalibrantError:
            raise
        except Exception as error:  # whatever a method of the user's raises
            message = f"evaluator: {self._name}.{verb} raised {type(error).__name__}: {first_line(error)}; mend it"
            raise ConfigError(message) from error


class EvaluatorJudge:
    """A `Judge` by an evaluator, which gets each model as a file that is deleted afterwards.

    Args:
        run: whose prepared model is the original.
        prepared: that model.
        evaluator: the evaluator.
    """

    def __init__(self, run: Run, prepared: PreparedModel, evaluator: UserEvaluator) -> None:
        self._run, self._prepared, self._evaluator = run, prepared, evaluator
        self._original = evaluator.evaluate(run.prepared_file)

    def original(self) -> Judgement:
        """Return what the evaluator says of the float model beside itself.

        Raises:
            ConfigError: it is not good enough.
        """
        ok, loss = self._evaluator.metric_eval(self._original, self._original)
        if not ok:
            message = (
                "evaluator: metric_eval refuses the float model beside itself "
                f"(metric {self._original!r:.60}, loss {loss:g}): nothing can be good enough; check metric_eval"
            )
            raise ConfigError(message)
        return self._judgement(ok, loss)

    def judge(self, fit: str, parts: QuantizedParts, chosen: Sequence[str]) -> Judgement:
        """Write the model with these parts quantized and ask the evaluator."""
        del fit
        with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
            path = Path(folder) / f"{self._run.info.model_name}_fake_quant_model.onnx"
            write_model(partial_fake_quant(self._prepared, parts, chosen), path)
            found = self._evaluator.evaluate(path)
        return self._judgement(*self._evaluator.metric_eval(self._original, found))

    def _judgement(self, ok: bool, loss: float) -> Judgement:
        return Judgement(_METRIC, loss, None, None, ok=ok, loss=loss, higher_is_better=False)


__all__ = ["VERBS", "AutoCalibrationEvaluatorBase", "EvaluatorJudge", "UserEvaluator"]
