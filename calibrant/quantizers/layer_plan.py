"""What was decided for each layer: the rows of the plan.

`calibrant.quantizers.plan` makes them; fits and exports read them.
"""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from calibrant.quantizers.options import ArqOptions, HfmgOptions, IfmrOptions
from calibrant.stats.events import Event
from calibrant.stats.tables import SCHEMAS


@dataclass(frozen=True, slots=True)
class DataPlan:
    """How the data of a layer is quantized; members of the other algorithm are None.

    Attributes:
        algorithm: ``ifmr`` or ``hfmg``.
        bits: width of a code.
        asymmetric: with an offset or not.
        max_percentile: IFMR: where the search for the upper clip end starts.
        min_percentile: IFMR: the same for the lower end.
        search_range: IFMR: first and last factor.
        search_step: IFMR: step between factors.
        num_of_bins: HFMG: bins of its histogram.
    """

    algorithm: Literal["ifmr", "hfmg"]
    bits: int
    asymmetric: bool
    max_percentile: float | None = None
    min_percentile: float | None = None
    search_range: tuple[float, float] | None = None
    search_step: float | None = None
    num_of_bins: int | None = None

    def options(self) -> IfmrOptions | HfmgOptions:
        """Return the options of the fit; equal plans give equal options.

        Raises:
            ConfigError: a value is out of its range.
        """
        if self.algorithm == "hfmg":
            given = {"num_of_bins": self.num_of_bins} if self.num_of_bins is not None else {}
            return HfmgOptions(bits=self.bits, asymmetric=self.asymmetric, **given)
        defaults = IfmrOptions()
        return IfmrOptions(
            bits=self.bits,
            asymmetric=self.asymmetric,
            max_percentile=_or(self.max_percentile, defaults.max_percentile),
            min_percentile=_or(self.min_percentile, defaults.min_percentile),
            search_range=defaults.search_range if self.search_range is None else self.search_range,
            search_step=_or(self.search_step, defaults.search_step),
        )


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """How the weight of a layer is quantized.

    Attributes:
        algorithm: ``arq``; ``none`` for AveragePool, which has no weight (its record says scale_w 1).
        bits: width of a code: 6, 7 or 8.
        channel_wise: one scale an output channel.
    """

    algorithm: Literal["arq", "none"]
    bits: int
    channel_wise: bool

    def options(self) -> ArqOptions:
        """Return the options of the fit."""
        return ArqOptions(bits=self.bits, channel_wise=self.channel_wise)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What happens to one layer, and which rule decided.

    A rule reads ``override_layer_configs "conv1"``, ``override_layer_types "Gemm"``, ``common_config``, ``activation_offset``,
    ``default``, ``skip_layers``, ``skip_layer_types "Gemm"`` or ``layer`` (the layer itself allows nothing else).

    Attributes:
        layer_id: position in topological order.
        layer: ONNX node name.
        op_type: ONNX type.
        tensor_id: the captured tensor on input 0, or None.
        enabled: whether the layer is quantized.
        reason: why not, or None.
        data: how its data is quantized, or would be.
        weight: how its weight is quantized, or would be.
        enabled_decided_by: rule behind `enabled`.
        data_decided_by: rule behind the data algorithm and its numbers.
        asymmetric_decided_by: rule behind `data.asymmetric`.
        weight_decided_by: rule behind the weight's values.
    """

    layer_id: int
    layer: str
    op_type: str
    tensor_id: int | None
    enabled: bool
    reason: str | None
    data: DataPlan
    weight: WeightPlan
    enabled_decided_by: str
    data_decided_by: str
    asymmetric_decided_by: str
    weight_decided_by: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One row a layer, in the order of the layers, and what a person should know about them.

    Attributes:
        rows: the decisions.
        events: notes of the configuration, inert settings, adjusted values.
    """

    rows: tuple[LayerPlan, ...]
    events: tuple[Event, ...]

    @property
    def enabled(self) -> tuple[LayerPlan, ...]:
        """The layers that are quantized."""
        return tuple(row for row in self.rows if row.enabled)

    def frame(self, fit: str) -> pl.DataFrame:
        """Return the `plan` table of one fit."""
        return pl.DataFrame([_table_row(fit, row) for row in self.rows], schema=SCHEMAS["plan"])


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _table_row(fit: str, row: LayerPlan) -> dict[str, object]:
    data, weight = row.data, row.weight
    start, end = data.search_range or (None, None)
    return {
        "fit": fit,
        "layer_id": row.layer_id,
        "layer": row.layer,
        "op_type": row.op_type,
        "enabled": row.enabled,
        "reason": row.reason,
        "data_algorithm": data.algorithm,
        "data_bits": data.bits,
        "asymmetric": data.asymmetric,
        "max_percentile": data.max_percentile,
        "min_percentile": data.min_percentile,
        "search_range_start": start,
        "search_range_end": end,
        "search_step": data.search_step,
        "num_of_bins": data.num_of_bins,
        "weight_algorithm": weight.algorithm,
        "weight_bits": weight.bits,
        "channel_wise": weight.channel_wise,
        "enabled_decided_by": row.enabled_decided_by,
        "data_decided_by": row.data_decided_by,
        "asymmetric_decided_by": row.asymmetric_decided_by,
        "weight_decided_by": row.weight_decided_by,
    }
