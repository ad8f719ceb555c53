"""Fits that are made to try something: under a name of their own, which leaves the run however the trying ends."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from calibrant import pipeline
from calibrant.proto.settings import CalibrationBlock
from calibrant.proto.simple_config import QuantConfig
from calibrant.simple_form import without
from calibrant.stats.events import Stage
from calibrant.stats.run import Run
from calibrant.suggest.facts import LayerFacts, layer_facts
from calibrant.suggest.fit_settings import FitSettings
from calibrant.suggest.remedies import Candidate

Blocks = Mapping[str, CalibrationBlock]

_STAGES: Final[tuple[Stage, ...]] = ("fit", "sensitivity", "evaluate")


class Trials:
    """Changes of a fit's configuration, fitted one after the other.

    Args:
        run: the run.
        fit: whose configuration is changed.
        settings: what that fit was asked to do.
        name: of what becomes of it; the trials' name is made of it and of the process.

    Attributes:
        name: of the trial fit.
    """

    def __init__(self, run: Run, fit: str, settings: FitSettings, name: str) -> None:
        self.name = f"{name}-trial-{os.getpid()}"
        self._run, self._fit, self._settings = run, fit, settings
        self._exact = run.fit_record(fit).exact
        self._made: QuantConfig | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the trial fit out of the run."""
        if self._made is not None:
            self._run.drop_fit(self.name, _STAGES)

    def make(self, blocks: Blocks, skipped: Collection[str] = ()) -> str:
        """Fit the configuration with these layers' settings changed and those layers left in float; return the fit's name."""
        base = without(self._settings.config, [*blocks, *skipped])
        config = replace(
            base, override_layers=(*base.override_layers, *blocks.items()), skip_layers=(*base.skip_layers, *skipped)
        )
        if config != self._made:
            self._made = config
            self.fit_as(config, self.name)
        return self.name

    def fit_as(self, config: QuantConfig, name: str) -> None:
        """Fit a configuration in the way of the fit that is changed."""
        pipeline.fit(self._run, config=config, name=name, exact=self._exact)

    def facts(self, blocks: Blocks) -> Mapping[int, LayerFacts]:
        """Return what the tables say of the layers with these settings."""
        return layer_facts(self._run, self.make(blocks) if blocks else self._fit)

    def candidates(self, blocks: Blocks) -> list[Candidate]:
        """Return the layers with these settings and all that decides about them."""
        return self._settings.candidates(self.facts(blocks), blocks)
