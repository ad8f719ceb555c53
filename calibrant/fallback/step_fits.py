"""The fits of the steps: each has the scales of the fit with everything quantized, without the layers that are rolled back."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from calibrant import pipeline
from calibrant.errors import ConfigError
from calibrant.export.partial import QuantizedParts
from calibrant.exported_fit import fit_configuration, quantized_parts
from calibrant.fitting.captured_tensors import with_products
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.parameters import Parameters
from calibrant.proto.retrain_json import RetrainJson
from calibrant.proto.simple_config import QuantConfig, parse_simple_config, quoted
from calibrant.quantizers.plan import resolve_plan
from calibrant.sensitivity import quantized_names
from calibrant.simple_form import simple_form, without, written_lines
from calibrant.stats.events import Event
from calibrant.stats.run import FitRecord, Run
from calibrant.stats.tables import FIT_TABLES, empty_frame, layer_rows

PREFIX: Final = "auto-"  # of the names of the steps' fits
_STAGES: Final = ("fit", "export", "verify", "evaluate", "sensitivity", "auto")


def step_name(number: int) -> str:
    """Return the name of a step's fit.

    Example:
        >>> step_name(1)
        'auto-01'
    """
    return f"{PREFIX}{number:02}"


def drop_step_fits(run: Run) -> None:
    """Take the fits of an earlier search out of a run, all but the first one."""
    old = [name for name in run.info.fits if name.startswith(PREFIX) and name != step_name(1)]
    for name in old:
        run.replace_fit(name, {table: empty_frame(table) for table in FIT_TABLES})
        run.replace_events(_STAGES, name, [])
    if old:
        run.update_info(fits={name: record for name, record in run.info.fits.items() if name not in old})


@dataclass(frozen=True)
class Skipping:
    """A quant.cfg with more layers skipped.

    Attributes:
        config: the configuration, read from `text`.
        text: its text.
    """

    config: QuantConfig
    text: str


class StepFits:
    """Makes fits of a run that roll layers of its first one back.

    Args:
        run: the run.
        first: the fit with everything quantized.
        prepared: the run's model.

    Attributes:
        layers: names of the layers that `first` quantizes, in topological order.
        macs: their multiply-accumulates of a sample; 0 where shapes are unknown.

    Raises:
        ConfigError: the fit is of a trained model.
    """

    def __init__(self, run: Run, first: str, prepared: PreparedModel) -> None:
        self._run, self._first, self._prepared = run, first, prepared
        self._rows = layer_rows(run.read("layers"))
        config = fit_configuration(run, first)
        if isinstance(config, RetrainJson):
            message = f"{run.path}: fit '{first}' has the scales of a trained model; train again with layers left out"
            raise ConfigError(message)
        self._base = simple_form(config, self._rows)
        self._parts = quantized_parts(run, prepared, first)
        self._nodes = Parameters(run.model_folder).nodes
        plan = run.read("plan").filter(pl.col("fit") == first)
        self._is_joint = plan["joint"].is_not_null().any()
        self._nuq = plan.filter(weight_algorithm="nuq")["layer"].to_list()
        self.layers = list(quantized_names(run, first, None).values())
        self.macs = {row.layer: row.macs or 0 for row in self._rows if row.quantizable}

    def skipping(self, fallen: Collection[str], name: str, heading: Sequence[str] = ()) -> Skipping:
        """Return the configuration of the first fit with these layers skipped as well.

        Args:
            fallen: names of layers, all in float.
            name: of the fit, for messages.
            heading: lines of a comment on top.
        """
        lines = [*(f"# {line}" for line in heading), *written_lines(without(self._base, fallen))]
        lines += [f"skip_layers: {quoted(layer)}" for layer in self.layers if layer in fallen]
        text = "".join(f"{line}\n" for line in lines)
        return Skipping(parse_simple_config(text, f"{name}.cfg", dialect=self._base.dialect), text)

    def make(self, name: str, fallen: Collection[str], heading: Sequence[str] = ()) -> QuantizedParts:
        """Put the fit into the run without searching anything again, and return what it quantizes.

        Layers of `joint_quant` share scales, so that there the fit is searched anew, on the same statistics.

        Args:
            name: of the fit; one of that name is replaced.
            fallen: the layers that are rolled back; not all.
            heading: of its configuration, as for `skipping`.
        """
        skipping = self.skipping(fallen, name, heading)
        if self._is_joint:
            pipeline.fit(self._run, config=skipping.config, name=name)
            return quantized_parts(self._run, self._prepared, name)
        self._copy(name, fallen, skipping)
        return self._parts.only([one for one in self._parts.names if one not in fallen])

    def parts(self) -> QuantizedParts:
        """Return what the first fit quantizes, encoded."""
        return self._parts

    def _copy(self, name: str, fallen: Collection[str], skipping: Skipping) -> None:
        plan = with_products(
            self._run, resolve_plan(skipping.config, self._rows, other_nodes=self._nodes, nuq=self._nuq)
        )
        out = [row.layer_id for row in self._rows if row.layer in fallen]
        kept = pl.col("layer_id").is_null() | ~pl.col("layer_id").is_in(out)
        frames = {
            table: self._run.read(table).filter(pl.col("fit") == self._first, kept).with_columns(fit=pl.lit(name))
            for table in FIT_TABLES
            if table != "plan"
        }
        self._run.replace_fit(name, {**frames, "plan": plan.frame(name)})
        self._record(name, skipping)

    def _record(self, name: str, skipping: Skipping) -> None:
        first = self._run.info.fits[self._first]
        record = FitRecord(
            config_source=f"{name}.cfg",
            config_text=skipping.text,
            config_hash=hashlib.sha256(skipping.text.encode()).hexdigest(),
            exact=first.exact,
            config_dialect=skipping.config.dialect,
            matmul_per_channel=first.matmul_per_channel,
        )
        self._run.update_info(fits={**self._run.info.fits, name: record})
        note = Event(
            "fit", "info", f"the scales are those of fit '{self._first}', without the layers that are rolled back"
        )
        self._run.replace_events(["fit", "evaluate"], name, [note])
