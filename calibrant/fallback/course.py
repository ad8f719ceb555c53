"""The course of a fallback on a run whose first fit quantizes everything: judge it, rank the layers, search, export what was chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibrant import pipeline
from calibrant.errors import RunError
from calibrant.export.files import export_files
from calibrant.fallback.binary import search_binary
from calibrant.fallback.greedy import search_greedy
from calibrant.fallback.judgement import Judge
from calibrant.fallback.metric_judge import copy_scores
from calibrant.fallback.outcome import AutoCalibration
from calibrant.fallback.own_strategy import Strategy, search_own
from calibrant.fallback.ranked_layers import Sensitivities, affordable_view, measure_layers
from calibrant.fallback.step_fits import StepFits, step_name
from calibrant.fallback.steps import Step, Steps, step_words, steps_frame
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.samples import Sample
from calibrant.ingest.verify_inputs import KEPT_SAMPLES
from calibrant.layer_views.measurement import View
from calibrant.stats.events import Event, Notice, Progress
from calibrant.stats.run import Run
from calibrant.whole_files import whole_file


@dataclass(frozen=True, slots=True)
class Search:
    """How to search, and what to make of what was found.

    Attributes:
        fit: name of the chosen fit.
        strategy: binary, greedy, or an object with AMCT's two verbs.
        view: how sensitive layers are found; None: the whole view where it is affordable, else the isolated one.
        metric: of the view, by which layers are ordered.
        limit: the greatest share of the multiply-accumulates in float.
        prefix: of the exported files, or None.
        samples: model inputs to rank layers on; empty for those that the capture kept.
        count: how many samples at most, of the captures as well.
        ranks_always: whether layers are ranked even where everything quantized reaches the goal.
    """

    fit: str
    strategy: Literal["binary", "greedy"] | Strategy = "binary"
    view: View | None = None
    metric: str = "sqnr_db"
    limit: float = 1.0
    prefix: str | None = None
    samples: Sequence[Sample] = ()
    count: int = 16
    ranks_always: bool = False


class Course:
    """Runs a search to its end.

    Args:
        run: a run whose fit ``auto-01`` quantizes everything.
        prepared: its model.
        judge: measures steps.
        goal: says the goal about a metric in words.
        search: how to search.
        progress: told of the layers that are ranked, and of export and verify.
        notice: told of each step.
    """

    def __init__(
        self,
        run: Run,
        prepared: PreparedModel,
        judge: Judge,
        goal: Callable[[str], str],
        search: Search,
        progress: Progress,
        notice: Notice,
    ) -> None:
        self._run, self._goal, self._search = run, goal, search
        self._progress, self._notice = progress, notice
        self._fits = StepFits(run, step_name(1), prepared)
        self._steps = Steps(run, self._fits, judge, judge.original(), notice)

    def outcome(self) -> AutoCalibration:
        """Search, export and verify; where every layer has to be rolled back, nothing is exported."""
        first = self._steps.take(())
        ranked = self._ranked() if self._search.ranks_always or not first.judgement.ok else None
        chosen = first if ranked is None or first.judgement.ok else self._searched(ranked)
        self._run.write("auto_steps", steps_frame(self._steps.taken, chosen))
        config = self._exported(first, chosen) if chosen.fit is not None else None
        return AutoCalibration(
            run=self._run,
            fit=self._search.fit if config else None,
            reached=chosen.judgement.ok,
            goal=self._goal(first.judgement.metric),
            layers=tuple(layer for layer in self._fits.layers if layer in chosen.fallen),
            macs_float=chosen.macs_float,
            before=first,
            after=chosen,
            steps=tuple(self._steps.taken),
            sensitivity=ranked,
            config=config,
        )

    def _ranked(self) -> Sensitivities:
        samples = self._search.samples
        view = self._search.view or affordable_view(self._fits.macs, self._fits.layers, len(samples) or KEPT_SAMPLES)
        try:
            return self._measured(view)
        except RunError:
            if self._search.view is not None or view == "isolated":
                raise
            return self._measured("isolated")  # no output of floats, say

    def _measured(self, view: View) -> Sensitivities:
        search = self._search
        return measure_layers(
            self._run, step_name(1), view, search.metric, search.samples, search.count, self._progress
        )

    def _searched(self, ranked: Sensitivities) -> Step:
        strategy, limit = self._search.strategy, self._search.limit
        if strategy == "binary":
            return search_binary(self._steps, ranked.order, limit)
        if strategy == "greedy":
            return search_greedy(self._steps, ranked.noise(), limit)
        return search_own(self._steps, strategy, ranked.values)

    def _exported(self, first: Step, chosen: Step) -> Path:
        """Make the chosen fit from the scales of its step, export and verify it, and return its quant.cfg."""
        name, heading = self._search.fit, self._heading(first, chosen)
        replaced = [Event("auto", "info", f"fit '{name}' is replaced")] if name in self._run.info.fits else []
        self._fits.make(name, chosen.fallen, heading)
        copy_scores(self._run, str(chosen.fit), name)
        pipeline.export(self._run, fit=name, prefix=self._search.prefix, progress=self._progress)
        pipeline.verify(self._run, fit=name, progress=self._progress)
        self._run.replace_events(["auto"], name, [*replaced, *self._events(chosen)])
        path = config_file(str(self._run.info.fits[name].prefix))
        with whole_file(path) as partial:
            partial.write_text(self._fits.skipping(chosen.fallen, name, heading).text, encoding="utf-8")
        return path

    def _heading(self, first: Step, chosen: Step) -> list[str]:
        before, after = first.judgement, chosen.judgement
        count = f"{len(chosen.fallen)} of {len(self._fits.layers)} layers in float, {100 * chosen.macs_float:.1f} % of the MACs"
        found = f"{before.value:.5g} with everything quantized, {after.value:.5g} with these layers in float"
        return [
            f"Found by calibrant auto for the model {self._run.info.model_name}: {count}.",
            f"{before.metric} {found}; goal: {self._goal(before.metric)}.",
        ]

    def _events(self, chosen: Step) -> list[Event]:
        found = [Event("auto", "info", step_words(chosen))]
        if not chosen.judgement.ok:
            goal = self._goal(chosen.judgement.metric)
            limit = f"at most {100 * self._search.limit:g} % of the MACs in float"
            text = f"the goal ({goal}) is not reached with {limit}; raise --max-float-macs"
            found.append(Event("auto", "warn", text))
        return found


def config_file(prefix: str) -> Path:
    """Return where the quant.cfg of an automatic fallback stands.

    Example:
        >>> config_file("out/resnet").as_posix(), config_file("out/").as_posix()
        ('out/resnet_auto.cfg', 'out/auto.cfg')
    """
    beside = export_files(prefix).config
    return beside.with_name(beside.name.removesuffix("config.json") + "auto.cfg")
