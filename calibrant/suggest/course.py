"""The course of a suggestion: try remedies, keep what is proved, then leave in float what still hurts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log10
from typing import TYPE_CHECKING, Final

from calibrant.ingest.data import Data
from calibrant.proto.simple_config import parse_simple_config
from calibrant.sensitivity import quantized_names
from calibrant.simple_form import without
from calibrant.stats.events import Progress
from calibrant.stats.run import Run
from calibrant.suggest.fit_settings import fit_settings
from calibrant.suggest.left_in_float import SKIP_GAIN_DB, Skip, worth_skipping
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
from calibrant.suggest.trials import Trials

if TYPE_CHECKING:
    from calibrant.proto.settings import CalibrationBlock

LEAST_SHARE: Final = 0.01  # of the summed noise of all layers; below it a layer is not worth a line in a configuration
LEAST_GAIN: Final = 0.8  # of its noise before is the most that a remedy may leave: 1 dB


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


@dataclass(frozen=True, slots=True)
class _Proved:
    """A remedy that helps a layer, and the noise of it that stays in the outputs."""

    noise: float
    remedy: Remedy
    one: Candidate


class Course:
    """Finds and proves suggestions for one fit; see `calibrant.suggest.suggest` for the arguments."""

    def __init__(self, run: Run, fit: str, name: str, data: Data | None, limits: Limits, progress: Progress) -> None:
        self._run, self._fit, self._name, self._limits = run, fit, name, limits
        self._settings = fit_settings(run, fit)
        self._proof, self._progress = Proof(run, data, limits.samples, progress), progress
        self._trials = Trials(run, fit, self._settings, name)
        self._items: list[Suggestion] = []
        self._blocks: dict[str, CalibrationBlock] = {}
        self._noise: dict[str, float] = {}  # of each layer quantized alone, over the signal of the outputs
        self._total = 0.0

    def suggestions(self) -> Suggestions:
        """Run the course; the improved fit stands in the run afterwards, and nothing else of it."""
        with self._trials:
            self._noise = self._measured(self._fit, [one.row.layer for one in self._settings.layers], "measure")
            self._total = sum(self._noise.values())
            before = self._proof.whole(self._fit).sqnr_db()
            self._improve([CHANNEL_WISE_WEIGHTS])
            self._improve(self._others())
            self._progress("try float", 0, 1)
            after = self._leave_in_float(self._drop_until_better(before))
            self._progress("try float", 1, 1)
            return self._finished(before, after)

    def _others(self) -> list[Remedy]:
        balancing = [BALANCING] if self._run.info.has_all_activations else []
        return [OTHER_ALGORITHM, OTHER_SYMMETRY, *balancing, *([WIDE_DATA] if self._limits.int16 else [])]

    def _measured(self, fit: str, layers: Sequence[str], stage: str) -> dict[str, float]:
        return {layer: noise_ratio(db) for layer, db in self._proof.alone(fit, layers, stage).items()}

    def _improve(self, remedies: Sequence[Remedy]) -> None:
        """Give each layer the remedy that is proved to leave the least noise of it in the outputs."""
        candidates = [one for one in self._trials.candidates(self._blocks) if self._is_worth(one)]
        best: dict[str, _Proved] = {}
        for remedy in remedies:
            for found in self._tried(remedy, [one for one in candidates if remedy.suits(one)]):
                layer = found.one.row.layer
                if layer not in best or found.noise < best[layer].noise:
                    best[layer] = found
        for found in best.values():
            self._take(found)

    def _tried(self, remedy: Remedy, chosen: Sequence[Candidate]) -> Iterator[_Proved]:
        """Fit layers with a remedy, and yield those that it is proved to help."""
        if not chosen:
            return
        blocks = {**self._blocks, **{one.row.layer: remedy.apply(one) for one in chosen}}
        facts = self._trials.facts(blocks)
        hopeful = {
            one.row.layer: one
            for one in chosen
            if (found := facts.get(one.row.layer_id)) is not None
            and (not remedy.by_noise or found.noise <= LEAST_GAIN * one.facts.noise)
        }
        for layer, noise in self._measured(self._trials.name, list(hopeful), f"try {remedy.name}").items():
            if self._is_better(layer, noise):
                yield _Proved(noise, remedy, hopeful[layer])

    def _is_worth(self, one: Candidate) -> bool:
        return self._noise.get(one.row.layer, 0.0) >= LEAST_SHARE * self._total > 0

    def _is_better(self, layer: str, noise: float) -> bool:
        before = self._noise[layer]
        return noise <= LEAST_GAIN * before and before - noise >= LEAST_SHARE * self._total

    def _take(self, found: _Proved) -> None:
        one, remedy = found.one, found.remedy
        layer, (name, change) = one.row.layer, remedy.words(one)
        before, after = _decibels(self._noise[layer]), _decibels(found.noise)
        self._items.append(Suggestion(layer, name, change, remedy.evidence(one), before, after))
        self._blocks[layer] = remedy.apply(one)
        self._noise[layer] = found.noise

    def _whole_db(self, skipped: Sequence[str] = ()) -> float:
        """Fit what was taken so far, with layers left in float, and measure it as a whole."""
        return self._proof.whole(self._trials.make(self._blocks, skipped)).sqnr_db()

    def _drop_until_better(self, before: float) -> float:
        """Take suggestions back, those that promise least first, until the whole model's output is better than before."""
        after = self._whole_db()
        while self._items and not after > before:
            least = min(self._blocks, key=self._gain)
            self._items = [one for one in self._items if one.layer != least]
            del self._blocks[least]
            after = self._whole_db()
        return after

    def _gain(self, layer: str) -> float:
        own = [one for one in self._items if one.layer == layer]
        return noise_ratio(own[0].before_db) - noise_ratio(own[-1].after_db)

    def _leave_in_float(self, db: float) -> float:
        """Leave layers in float, and return what the fit without them measures."""
        worst = sorted(
            filter(self._is_worth, self._trials.candidates(self._blocks)), key=lambda one: -self._noise[one.row.layer]
        )
        whole = self._proof.whole(self._trials.make(self._blocks))
        found = list(worth_skipping(whole, db, worst, self._settings.macs, self._limits.max_float_macs))
        after = db
        while found and not (after := self._whole_db([one.layer for one in found])) >= db + SKIP_GAIN_DB:
            found.pop()  # fitted anew, the others came out otherwise than they were measured
        for skip in found:
            self._skip(skip)
        return after if found else db

    def _skip(self, skip: Skip) -> None:
        noise = f"quantized alone it leaves an output SQNR of {_decibels(self._noise[skip.layer]):.1f} dB"
        evidence = f"{noise}; {100 * skip.share:.2g} % of the MACs"
        self._items = [item for item in self._items if item.layer != skip.layer]
        self._blocks.pop(skip.layer, None)
        change = "left in float (skip_layers)"
        self._items.append(Suggestion(skip.layer, "skip", change, evidence, skip.before_db, skip.after_db))

    def _finished(self, before: float, after: float) -> Suggestions:
        """Make the fit from the text itself, so that the file is what was proved."""
        base = without(self._settings.config, [one.layer for one in self._items])
        text = suggested_text(base, self._blocks, self._items, self._heading(before, after))
        self._trials.fit_as(parse_simple_config(text, f"{self._name}.cfg", dialect=base.dialect), self._name)
        places = {one.row.layer: place for place, one in enumerate(self._settings.layers)}
        items = sorted(self._items, key=lambda one: places[one.layer])
        return Suggestions(tuple(items), before, after, self._proof.samples, text, tuple(self._notes()))

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

    def _notes(self) -> Iterator[str]:
        """Say what was not tried, and why."""
        if not self._run.info.has_all_activations:
            yield "balancing was not tried: it needs the activations of all samples, which this run did not keep (--keep raw)"
        plain = {one.row.layer for one in self._settings.layers}
        others = [layer for layer in quantized_names(self._run, self._fit, None).values() if layer not in plain]
        if others:
            yield (
                f"left as they are: {len(others)} quantized layers, the first '{others[0]}'; those of joint_quant and "
                "weight_compress_only, and products of two variables, are not changed one by one"
            )
        yield from self._not_tried_in_float()

    def _not_tried_in_float(self) -> Iterator[str]:
        """Say which layers that hurt were not tried in float."""
        hurting = [one for one in self._trials.candidates({}) if self._is_worth(one)]
        unknown = [one.row.layer for one in hurting if one.row.macs is None]
        budget = self._limits.max_float_macs * self._settings.macs
        heavy = [one.row for one in hurting if one.row.macs is not None and one.row.macs > budget]
        if unknown:
            yield (
                f"not tried in float because their MACs are unknown (shapes that vary; --fix-input): {len(unknown)} layers, "
                f"the first '{unknown[0]}'"
            )
        if heavy:
            worst = max(heavy, key=lambda row: self._noise[row.layer])
            share = 100 * (worst.macs or 0) / self._settings.macs
            yield (
                f"not tried in float because they are beyond --max-float-macs: {len(heavy)} layers, the one that hurts most "
                f"'{worst.layer}' with {share:.2g} % of the MACs"
            )


def _decibels(noise: float) -> float:
    return inf if noise == 0 else -10 * log10(noise)
