"""Strategies of the user's own, with the two verbs of AMCT's: `initialize` and `update_quant_config`."""

from collections.abc import Mapping
from typing import Any, Protocol

from calibrant.errors import ConfigError
from calibrant.fallback.steps import Step, Steps


class Strategy(Protocol):
    """What AMCT's AutoCalibrationStrategyBase promises."""

    def initialize(self, ranking_info: dict[str, float]) -> None:
        """Take the similarity of each layer, float against quantized."""

    def update_quant_config(self, metric_eval: tuple[bool, float]) -> Mapping[str, Any]:
        """Return ``roll_back_config`` (layer -> whether it stays quantized) and ``stop_flag`` for the last step's judgement."""


def search_own(steps: Steps, strategy: Strategy, ranking: Mapping[str, float]) -> Step:
    """Return the step that a strategy ends with, as AMCT runs it.

    Raises:
        ConfigError: it returns something else than AMCT's, names other layers, or does not end.
    """
    strategy.initialize(dict(ranking))
    step, before = steps.take(()), None
    for _ in range(len(ranking) + 1):
        answer = strategy.update_quant_config((step.judgement.ok, step.judgement.loss))
        fallen, stops = _read(answer, ranking)
        if stops and fallen == before:
            return step
        step, before = steps.take(fallen), fallen
        if stops or len(fallen) == len(ranking):
            return step
    message = f"strategy: {type(strategy).__name__} has not set stop_flag after {len(ranking) + 1} steps; let it end"
    raise ConfigError(message)


def _read(answer: Any, ranking: Mapping[str, float]) -> tuple[frozenset[str], bool]:
    try:
        stays, stops = dict(answer["roll_back_config"]), bool(answer["stop_flag"])
    except (TypeError, KeyError, ValueError) as error:
        message = "strategy: update_quant_config returned no roll_back_config (layer -> bool) and stop_flag; expected AMCT's dict of both"
        raise ConfigError(message) from error
    for layer in stays:
        if layer not in ranking:
            message = f"strategy: update_quant_config names '{layer}', which is not among the quantized layers that it was given"
            raise ConfigError(message)
    return frozenset(layer for layer, quantized in stays.items() if not quantized), stops
