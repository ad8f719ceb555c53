"""The settings of every layer of a fit, as blocks of a quant.cfg that can be changed one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from calibrant.errors import ConfigError
from calibrant.exported_fit import fit_configuration
from calibrant.ingest.parameters import Parameters
from calibrant.proto.json_config import JsonConfig
from calibrant.proto.layerwise import layerwise_config
from calibrant.proto.retrain_json import RetrainJson
from calibrant.proto.settings import CalibrationBlock
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.plan import LayerPlan, Plan, json_config, resolve_plan
from calibrant.simple_form import simple_form
from calibrant.stats.run import Run
from calibrant.stats.tables import LayerRow, layer_rows
from calibrant.suggest.facts import LayerFacts
from calibrant.suggest.remedies import Candidate, is_plain


class PlannedLayer(NamedTuple):
    """A layer with its plan."""

    row: LayerRow
    plan: LayerPlan


@dataclass(frozen=True)
class FitSettings:
    """What a fit was asked to do.

    Attributes:
        config: as a simple configuration, which overrides can be added to.
        layers: the layers that are quantized on their own, in topological order.
        blocks: their settings, by name.
        macs: multiply-accumulates of a sample of all layers that could be quantized.
    """

    config: QuantConfig
    layers: tuple[PlannedLayer, ...]
    blocks: Mapping[str, CalibrationBlock]
    macs: int

    def candidates(self, facts: Mapping[int, LayerFacts], blocks: Mapping[str, CalibrationBlock]) -> list[Candidate]:
        """Return the layers with facts and with these settings in the place of their own."""
        return [
            Candidate(row, plan, facts[row.layer_id], blocks.get(row.layer, self.blocks[row.layer]))
            for row, plan in self.layers
            if row.layer_id in facts
        ]


def fit_settings(run: Run, fit: str) -> FitSettings:
    """Read what a fit was asked to do.

    Raises:
        ConfigError: it is the fit of a trained model, whose scales were learned.
    """
    config = fit_configuration(run, fit)
    if isinstance(config, RetrainJson):
        message = f"{run.path}: fit '{fit}' has the scales of a trained model; nothing is searched there, train again with other settings"
        raise ConfigError(message)
    rows = layer_rows(run.read("layers"))
    plan = _plan(run, fit, config, rows)
    written = _layerwise(json_config(config, plan))
    planned = [PlannedLayer(row, one) for row, one in zip(rows, plan.rows, strict=True) if is_plain(one)]
    return FitSettings(
        config=simple_form(config, rows),
        layers=tuple(planned),
        blocks={one.row.layer: written[one.row.layer] for one in planned},
        macs=sum(row.macs or 0 for row in rows if row.quantizable),
    )


def _plan(run: Run, fit: str, config: QuantConfig, rows: list[LayerRow]) -> Plan:
    fitted = run.read("plan").filter(fit=fit)
    nuq = fitted.filter(weight_algorithm="nuq")["layer"].to_list()
    plan = resolve_plan(config, rows, other_nodes=Parameters(run.model_folder).nodes, nuq=nuq)
    enabled = set(fitted.filter(pl.col("enabled"))["layer_id"])
    return replace(plan, rows=tuple(replace(row, enabled=row.layer_id in enabled) for row in plan.rows))


def _layerwise(config: JsonConfig) -> dict[str, CalibrationBlock]:
    return dict(layerwise_config(config).override_layers)
