"""Leaves those layers in float first whose fallback buys most per multiply-accumulate, measured as they are taken.

What a layer is thought to buy is its share of the summed noise of all layers, each quantized alone in the whole model; what it does
buy is measured by a step. The layer that comes first is kept where its measured gain still puts it first, else it goes back into the
queue with what was measured (lazy evaluation, Minoux 1978).
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Final

from calibrant.fallback.binary import least_prefix
from calibrant.fallback.steps import Step, Steps

EVALUATIONS: Final = 16  # steps that measure single layers; what is left is halved, in ceil(log2(layers)) more at most
LEAST_COST: Final = (
    0.0005  # share of the MACs that any layer counts as: float beside int8 costs, however small the layer
)


class _Greedy:
    """The state of one search."""

    def __init__(self, steps: Steps, noise: Mapping[str, float], limit: float) -> None:
        self._steps, self._limit = steps, limit
        self.current = steps.take(())
        total = sum(value for value in noise.values() if isfinite(value)) or 1.0
        loss = self.current.judgement.loss if isfinite(self.current.judgement.loss) else 1.0
        self._expected = {layer: value / total * abs(loss) for layer, value in noise.items()}
        self._measured: dict[str, float] = {}

    def ranked(self) -> list[str]:
        """Return the layers that may still go to float, the one that buys most per MAC first; the last one never does."""
        fallen = self.current.fallen
        left = [one for one in self._expected if one not in fallen]
        if len(left) <= 1:
            return []
        allowed = [one for one in left if self._steps.share([*fallen, one]) <= self._limit]
        trust = self._trust()
        return sorted(
            allowed, key=lambda one: self._gain(one, trust) / max(self._steps.cost(one), LEAST_COST), reverse=True
        )

    def _gain(self, layer: str, trust: float) -> float:
        return self._measured.get(layer, trust * self._expected[layer])

    def _trust(self) -> float:
        """Return what part of the expected gains was measured up to now, as if one more layer had kept its promise.

        Noises of layers that are quantized one at a time add up to more than they are together.
        """
        expected = sum(self._expected[one] for one in self._measured)
        if not 0 < expected < inf:
            return 1.0
        found, one_more = sum(max(0.0, gain) for gain in self._measured.values()), expected / len(self._measured)
        return min(1.0, (found + one_more) / (expected + one_more))

    def advance(self) -> bool:
        """Measure the layer that comes first, and keep it where it still does; return whether there is more to try."""
        order = self.ranked()
        if not order or self._gain(order[0], self._trust()) <= 0:
            return False
        found = self._steps.take({*self.current.fallen, order[0]})
        self._measured[order[0]] = gain = self.current.judgement.loss - found.judgement.loss
        if found.judgement.ok or (gain > 0 and self.ranked()[0] == order[0]):
            self.current = found
        return True


def search_greedy(steps: Steps, noise: Mapping[str, float], limit: float) -> Step:
    """Return the first step that reaches the goal, or the last one within the limit.

    Args:
        steps: takes the steps.
        noise: of each quantized layer, noise over signal of the outputs with that layer alone quantized.
        limit: the greatest share of the MACs in float.
    """
    state = _Greedy(steps, noise, limit)
    before = len(steps.taken)
    while not state.current.judgement.ok and len(steps.taken) - before < EVALUATIONS:
        if not state.advance():
            break
    if state.current.judgement.ok:
        return state.current
    fallen = [layer for layer in noise if layer in state.current.fallen]
    left = _affordable(steps, state, limit)
    rest = [] if limit < 1 else [layer for layer in noise if layer not in {*fallen, *left}]
    return _halved(steps, fallen, [*left, *rest], limit)


def _affordable(steps: Steps, state: _Greedy, limit: float) -> list[str]:
    """Return the layers that still fit together under the limit, in their order."""
    found: list[str] = []
    for layer in state.ranked():
        if steps.share([*state.current.fallen, *found, layer]) <= limit:
            found.append(layer)
    return found


def _halved(steps: Steps, fallen: list[str], left: list[str], limit: float) -> Step:
    """Halve over what is left behind what is in float already."""
    if not left:
        return steps.take(fallen)
    is_all = limit >= 1
    last = len(left) if is_all else len(left) + 1
    found = least_prefix(last, lambda length: steps.take([*fallen, *left[:length]]).judgement.ok)
    return steps.take([*fallen, *left[: min(found, len(left))]])


__all__ = ["EVALUATIONS", "LEAST_COST", "search_greedy"]
