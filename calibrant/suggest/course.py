"""The course of a suggestion: try remedies, keep what is proved, then leave in float what still hurts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log10
from typing import Final

from calibrant import pipeline
from calibrant.ingest.data import Data
from calibrant.proto.settings import CalibrationBlock
from calibrant.proto.simple_config import QuantConfig, parse_simple_config
from calibrant.simple_form import without
from calibrant.stats.events import Progress
from calibrant.stats.run import Run
from calibrant.suggest.facts import LayerFacts, layer_facts
from calibrant.suggest.fit_settings import fit_settings
from calibrant.suggest.proof import Proof, noise_ratio
from calibrant.suggest.remedies import (
    BALANCING,
    CHANNEL_WISE_WEIGHTS,
    OTHER_ALGORITHM,
    OTHER_SYMMETRY,
    WIDE_DATA,
    Candidate,
    Remedy,
)
from calibrant.suggest.suggestion import Suggestion, Suggestions, suggested_text

LEAST_SHARE: Final = 0.01  # of the summed noise of all layers; below it a layer is not worth a line in a configuration
LEAST_GAIN: Final = 0.8  # of its noise before is the most that a remedy may leave: 1 dB
SKIP_GAIN_DB: Final = 0.5  # of the whole model's output that a layer in float must give
ENOUGH_DB: Final = 40.0  # output SQNR from which no layer is left in float
MISSES: Final = 3  # layers that gave too little before the search for more to leave in float ends


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a suggestion goes.

    Attributes:
        samples: to measure outputs on, at most.
        int16: whether data of 16 bits is tried.
        max_float_macs: the greatest share of the multiply-accumulates that may be left in float.
    """

    samples: int
    int16: bool
    max_float_macs: float


class Course:
    """Finds and proves suggestions for one fit; see `calibrant.suggest.suggest` for the arguments."""

    def __init__(self, run: Run, fit: str, name: str, data: Data | None, limits: Limits, progress: Progress) -> None:
        self._run, self._fit, self._name, self._limits = run, fit, name, limits
        self._progress = progress
        self._settings = fit_settings(run, fit)
        self._proof = Proof(run, data, limits.samples, progress)
        self._facts = layer_facts(run, fit)
        self._exact = run.fit_record(fit).exact
        self._items: list[Suggestion] = []
        self._blocks: dict[str, CalibrationBlock] = {}
        self._noise: dict[str, float] = {}
        self._total = 0.0

    def suggestions(self) -> Suggestions:
        """Run the course; the improved fit stands in the run afterwards."""
        names = [one.row.layer for one in self._settings.layers]
        self._noise = self._measured(self._fit, names)
        self._total = sum(self._noise.values())
        before = self._proof.whole(self._fit).sqnr_db()
        self._improve([CHANNEL_WISE_WEIGHTS])
        self._improve(self._others())
        self._make_fit()
        after = self._drop_until_better(before)
        after = self._leave_in_float(after)
        return self._finished(before, after)

    def _others(self) -> list[Remedy]:
        balancing = [BALANCING] if self._run.info.has_all_activations else []
        return [OTHER_ALGORITHM, OTHER_SYMMETRY, *balancing, *([WIDE_DATA] if self._limits.int16 else [])]

    def _measured(self, fit: str, layers: Sequence[str]) -> dict[str, float]:
        return {layer: noise_ratio(db) for layer, db in self._proof.alone(fit, layers).items()}

    def _improve(self, remedies: Sequence[Remedy]) -> None:
        """Give each layer the remedy that is proved to leave the least noise of it in the outputs."""
        facts = self._current_facts()
        candidates = self._settings.candidates(facts, self._blocks)
        best: dict[str, tuple[float, Remedy, Candidate]] = {}
        for remedy in remedies:
            for one, noise in self._tried(remedy, candidates):
                if noise < best.get(one.row.layer, (self._noise[one.row.layer],))[0]:
                    best[one.row.layer] = (noise, remedy, one)
        for noise, remedy, one in best.values():
            self._take(noise, remedy, one)

    def _current_facts(self) -> Mapping[int, LayerFacts]:
        if not self._blocks:
            return self._facts
        self._make_fit()
        return layer_facts(self._run, self._name)

    def _tried(self, remedy: Remedy, candidates: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
        """Fit the layers that a remedy suits with it, and return those that it is proved to help, with the noise that stays."""
        chosen = [one for one in candidates if self._is_worth(one) and remedy.suits(one)]
        if not chosen:
            return []
        self._make_fit({one.row.layer: remedy.apply(one) for one in chosen})
        hopeful = [one for one in chosen if self._is_hopeful(remedy, one, layer_facts(self._run, self._name))]
        measured = self._measured(self._name, [one.row.layer for one in hopeful])
        return [(one, measured[one.row.layer]) for one in hopeful if self._is_better(one, measured[one.row.layer])]

    def _is_worth(self, one: Candidate) -> bool:
        return self._noise[one.row.layer] >= LEAST_SHARE * self._total > 0

    def _is_hopeful(self, remedy: Remedy, one: Candidate, facts: Mapping[int, LayerFacts]) -> bool:
        found = facts.get(one.row.layer_id)
        return found is not None and (not remedy.by_noise or found.noise <= LEAST_GAIN * one.facts.noise)

    def _is_better(self, one: Candidate, noise: float) -> bool:
        before = self._noise[one.row.layer]
        return noise <= LEAST_GAIN * before and before - noise >= LEAST_SHARE * self._total

    def _take(self, noise: float, remedy: Remedy, one: Candidate) -> None:
        layer, (name, change) = one.row.layer, remedy.words(one)
        before, after = _decibels(self._noise[layer]), _decibels(noise)
        self._items.append(Suggestion(layer, name, change, remedy.evidence(one), before, after))
        self._blocks[layer] = remedy.apply(one)
        self._noise[layer] = noise

    def _make_fit(self, more: Mapping[str, CalibrationBlock] | None = None) -> None:
        self._fit_with(self._config({**self._blocks, **(more or {})}))

    def _fit_with(self, config: QuantConfig) -> None:
        pipeline.fit(self._run, config=config, name=self._name, exact=self._exact)

    def _config(self, blocks: Mapping[str, CalibrationBlock]) -> QuantConfig:
        base = without(self._settings.config, list(blocks))
        return replace(base, override_layers=(*base.override_layers, *blocks.items()))

    def _drop_until_better(self, before: float) -> float:
        """Take suggestions back, those that promise least first, until the whole model's output is better than before."""
        after = self._proof.whole(self._name).sqnr_db()
        while self._items and not after > before:
            gains = {layer: self._gain(layer) for layer in self._blocks}
            least = min(gains, key=gains.__getitem__)
            self._items = [one for one in self._items if one.layer != least]
            del self._blocks[least]
            self._make_fit()
            after = self._proof.whole(self._name).sqnr_db()
        return after

    def _gain(self, layer: str) -> float:
        own = [one for one in self._items if one.layer == layer]
        return noise_ratio(own[0].before_db) - noise_ratio(own[-1].after_db)

    def _leave_in_float(self, db: float) -> float:
        """Leave layers in float, the one with most noise first, where the whole model's output gains by it."""
        whole, misses, macs = self._proof.whole(self._name), 0, 0
        skipped: list[str] = []
        facts = self._current_facts()
        for one in sorted(
            self._settings.candidates(facts, self._blocks), key=lambda each: -self._noise[each.row.layer]
        ):
            own = one.row.macs or 0
            if misses >= MISSES or db >= ENOUGH_DB or not self._is_worth(one):
                break
            if macs + own > self._limits.max_float_macs * self._settings.macs or len(skipped) + 1 == len(facts):
                continue
            self._progress("suggest", len(skipped) + misses, 0)
            found = whole.sqnr_db([*skipped, one.row.layer])
            if not found >= db + SKIP_GAIN_DB:
                misses += 1
                continue
            self._skip(one, own, db, found)
            skipped, macs, db = [*skipped, one.row.layer], macs + own, found
        return db

    def _skip(self, one: Candidate, macs: int, before: float, after: float) -> None:
        layer = one.row.layer
        share = 100 * macs / self._settings.macs if self._settings.macs else 0.0
        evidence = f"quantized alone it leaves an output SQNR of {_decibels(self._noise[layer]):.1f} dB; {share:.2g} % of the MACs"
        self._items = [item for item in self._items if item.layer != layer]
        self._blocks.pop(layer, None)
        self._items.append(Suggestion(layer, "skip", "left in float (skip_layers)", evidence, before, after))

    def _finished(self, before: float, after: float) -> Suggestions:
        """Make the fit from the text itself, so that the file is what was proved."""
        notes = self._notes()
        base = without(self._settings.config, [one.layer for one in self._items])
        text = suggested_text(base, self._blocks, self._items, self._heading(before, after))
        self._fit_with(parse_simple_config(text, f"{self._name}.cfg", dialect=base.dialect))
        items = sorted(self._items, key=lambda one: [each.row.layer for each in self._settings.layers].index(one.layer))
        return Suggestions(tuple(items), before, after, self._proof.samples, text, notes)

    def _heading(self, before: float, after: float) -> list[str]:
        what = (
            f"Suggested by calibrant for the model {self._run.info.model_name}, as a change of the fit '{self._fit}'."
        )
        if not self._items:
            return [what, f"No change was found that is proved to help; output SQNR {before:.1f} dB."]
        measured = (
            f"Output SQNR on {self._proof.samples} samples: {before:.1f} dB before, {after:.1f} dB with these changes."
        )
        return [what, measured]

    def _notes(self) -> tuple[str, ...]:
        if self._run.info.has_all_activations:
            return ()
        return (
            "balancing was not tried: it needs the activations of all samples, which this run did not keep (--keep raw)",
        )


def _decibels(noise: float) -> float:
    return inf if noise == 0 else -10 * log10(noise)
