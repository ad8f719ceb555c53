"""The options of an automatic fallback, and what is wrong with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibrant.errors import ConfigError, DataError, nearest
from calibrant.export.metrics import METRICS
from calibrant.export.user_metrics import user_metric
from calibrant.fallback.goal import Goal
from calibrant.fallback.step_fits import PREFIX
from calibrant.ingest.labels import Labels, read_labels
from calibrant.pipeline import check_new_fit_name
from calibrant.stats.keep import Keep

if TYPE_CHECKING:
    from calibrant.capturing import FixInput

STRATEGIES: Final = ("binary", "greedy")


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """How the one capture is made; as for `calibrant.run`.

    Attributes:
        batch_size: samples a batch.
        keep: ``raw``, ``raw:N`` or ``stats``.
        fix_input: inputs to turn into constants.
        memory: what the process may take at most.
        restart: replace an existing run.
    """

    batch_size: int | None = None
    keep: str | Keep = "raw"
    fix_input: "FixInput | None" = None
    memory: int | str | None = None
    restart: bool = False


def check_judging(data: object, evaluation: object, labels: object, evaluator: object, goal: "list[object]") -> None:
    """Refuse a call that has nothing, or too much, to judge by.

    Raises:
        ConfigError: the message says what to pass.
    """
    if evaluation is None and evaluator is None:
        message = "auto: nothing to judge by; pass evaluation data (--eval) or an evaluator (--evaluator)"
        raise ConfigError(message)
    if data is None and evaluator is None:
        message = "auto: no calibration data; pass --data, or an evaluator whose calibration(model_file) runs them"
        raise ConfigError(message)
    if evaluator is not None and any(one is not None for one in goal):
        message = "--metric, --max-drop, --min: an evaluator decides by its metric_eval what is good enough; leave them out, or it"
        raise ConfigError(message)
    if labels is not None and (evaluation is None or evaluator is not None):
        message = "--labels: belong to evaluation data that a metric judges; pass --eval and no --evaluator"
        raise ConfigError(message)


def check_search(strategy: object, max_float_macs: float, samples: int, fit: str) -> None:
    """Refuse options of the search that mean nothing.

    Raises:
        ConfigError: the message has the nearest name.
    """
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        message = f"--strategy: '{strategy}' is no strategy{nearest(strategy, STRATEGIES)}; strategies: {', '.join(STRATEGIES)}"
        raise ConfigError(message)
    if not isinstance(strategy, str) and not all(
        callable(getattr(strategy, verb, None)) for verb in ("initialize", "update_quant_config")
    ):
        message = f"strategy: {type(strategy).__name__} has not both methods initialize(…) and update_quant_config(…) of AMCT's strategies"
        raise ConfigError(message)
    if not 0 <= max_float_macs <= 1:
        message = f"--max-float-macs: {max_float_macs} is no share; expected 0 to 1 (or 0% to 100%)"
        raise ConfigError(message)
    if samples < 1:
        message = f"--samples: {samples} is no number of samples; expected at least 1"
        raise ConfigError(message)
    check_new_fit_name(fit)
    if fit.startswith(PREFIX):
        message = f"--fit: '{fit}' is a name of the steps of the search; choose one that does not begin with {PREFIX}"
        raise ConfigError(message)


def check_before_capture(goal: Goal | None, evaluation: object, labels: Labels | None) -> None:
    """Refuse what would fail after the capture and can be known before: missing files, labels that a metric needs, a user's metric.

    Raises:
        ConfigError, DataError: as `calibrant.evaluate`.
    """
    if isinstance(evaluation, str | Path) and not Path(evaluation).exists():
        message = f"{evaluation}: no such file or folder; --eval takes data as --data does"
        raise DataError(message)
    if labels is not None:
        read_labels(labels, evaluation)
    if goal is None or goal.metric is None:
        return
    if ":" in goal.metric:
        user_metric(goal.metric)
    elif METRICS[goal.metric].needs_labels and labels is None:
        message = f"--metric {goal.metric}: needs labels; pass --labels"
        raise ConfigError(message)
