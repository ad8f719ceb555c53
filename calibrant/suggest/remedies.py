"""What can be changed about a layer: each remedy says which layers it suits and how it changes their settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log10
from typing import Final, Literal

from calibrant.proto.settings import ArqSettings, CalibrationBlock, DmqSettings, HfmgSettings, IfmrSettings
from calibrant.quantizers.layer_limits import CHANNEL_WISE, OFFSET, layer_allows, takes_int16
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.stats.tables import LayerRow
from calibrant.suggest.facts import LayerFacts

RemedyName = Literal["channel_wise", "algorithm", "symmetry", "dmq", "int16"]

_LEAST_OUTLIERS: Final = 4.0  # below that ratio of channel maxima balancing has nothing to move
_INT32: Final = 2**31
_GREATEST_STEP: Final = 2**15 * 2**7  # of a 16-bit code and an 8-bit weight


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layer with all that decides about it.

    Attributes:
        row: its row of `layers`.
        plan: its row of the plan.
        facts: what the tables say.
        block: its settings.
    """

    row: LayerRow
    plan: LayerPlan
    facts: LayerFacts
    block: CalibrationBlock


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that suits some layers.

    Attributes:
        name: of the remedy.
        suits: whether a layer can have it.
        apply: the settings of a layer with it.
        words: the change in the words of a quant.cfg, and the name that the suggestion gets.
        evidence: what speaks for it.
        by_noise: whether the noise of data and weight in the tables foretells what it gives; balancing moves noise between the two.
    """

    name: RemedyName
    suits: Callable[[Candidate], bool]
    apply: Callable[[Candidate], CalibrationBlock]
    words: Callable[[Candidate], tuple[str, str]]
    evidence: Callable[[Candidate], str]
    by_noise: bool = True


def is_plain(plan: LayerPlan) -> bool:
    """Whether a layer is quantized on its own: data and weight (or a window without weights), no shared scale."""
    return plan.enabled and not plan.weight_only and plan.joint is None and not plan.tensors


def migration_strength(outliers: float) -> float:
    """Return the strength for an outlier ratio: 0.5 (AMCT's default) at 10, less for larger outliers, within AMCT's 0.2 to 0.8.

    AMCT's guide gives the direction and no formula; this one is ours: 0.8 - 0.3 log10(ratio), rounded to 0.05.

    Args:
        outliers: greatest channel maximum of the data over the median one.

    Example:
        >>> [migration_strength(ratio) for ratio in (1, 10, 30, 100, 1e6)]
        [0.8, 0.5, 0.35, 0.2, 0.2]
    """
    strength = 0.8 - 0.3 * log10(max(outliers, 1.0))
    return round(min(max(round(strength / 0.05) * 0.05, 0.2), 0.8), 2)


def _per_channel(one: Candidate) -> CalibrationBlock:
    return replace(one.block, arq=replace(one.block.arq or ArqSettings(), channel_wise=True))


def _other_algorithm(one: Candidate) -> CalibrationBlock:
    data = one.block.data or IfmrSettings()
    if isinstance(data, HfmgSettings):
        return replace(one.block, hfmg=None, ifmr=IfmrSettings(asymmetric=data.asymmetric))
    return replace(one.block, ifmr=None, hfmg=HfmgSettings(asymmetric=data.asymmetric))


def _with_data(one: Candidate, **changes: object) -> CalibrationBlock:
    data = replace(one.block.data or IfmrSettings(), **changes)  # type: ignore[arg-type]  # names of fields of both kinds
    name = "hfmg" if isinstance(data, HfmgSettings) else "ifmr"
    return replace(one.block, **{name: data})  # type: ignore[arg-type]


def _strength(one: Candidate) -> float:
    return migration_strength(one.facts.outliers)


def _sums_stay_in_int32(one: Candidate) -> bool:
    """Whether no data at all can make a sum of 16-bit codes leave int32, with half of it left for the bias."""
    return one.facts.products * _GREATEST_STEP <= _INT32 // 2


CHANNEL_WISE_WEIGHTS: Final = Remedy(
    "channel_wise",
    suits=lambda one: (
        one.plan.weight.algorithm == "arq"
        and not one.plan.weight.channel_wise
        and one.row.weight is not None
        and layer_allows(CHANNEL_WISE, one.row)
    ),
    apply=_per_channel,
    words=lambda _: ("channel_wise", "one weight scale a channel (channel_wise: true)"),
    evidence=lambda one: (
        f"its greatest channel of weights is {one.facts.weight_spread:.3g} times the median one; weight SQNR {one.facts.weight_db:.1f} dB"
    ),
)
OTHER_ALGORITHM: Final = Remedy(
    "algorithm",
    suits=lambda one: one.plan.data.bits == 8,
    apply=_other_algorithm,
    words=lambda one: (
        ("ifmr", "IFMR instead of HFMG") if one.block.hfmg is not None else ("hfmg", "HFMG instead of IFMR")
    ),
    evidence=lambda one: (
        f"data SQNR {one.facts.data_db:.1f} dB, {100 * one.facts.clip_rate:.2g} % of the values clipped"
    ),
)
OTHER_SYMMETRY: Final = Remedy(
    "symmetry",
    suits=lambda one: layer_allows(OFFSET, one.row),
    apply=lambda one: _with_data(one, asymmetric=not one.plan.data.asymmetric),
    words=lambda one: (
        ("symmetric", "data without offset (asymmetric: false)")
        if one.plan.data.asymmetric
        else ("asymmetric", "data with offset (asymmetric: true)")
    ),
    evidence=lambda one: (
        f"its data lies between {one.facts.low:.4g} and {one.facts.high:.4g}; data SQNR {one.facts.data_db:.1f} dB"
    ),
)
BALANCING: Final = Remedy(
    "dmq",
    suits=lambda one: (
        one.row.weight is not None
        and one.plan.migration_strength is None
        and one.plan.weight.algorithm == "arq"
        and one.facts.outliers >= _LEAST_OUTLIERS
    ),
    apply=lambda one: replace(one.block, dmq=DmqSettings(_strength(one))),
    words=lambda one: ("dmq", f"balancing (dmq_balancer, migration_strength: {_strength(one):g})"),
    evidence=lambda one: (
        f"its greatest channel of data is {one.facts.outliers:.3g} times the median one (the larger the outliers, the smaller the strength)"
    ),
    by_noise=False,
)
WIDE_DATA: Final = Remedy(
    "int16",
    suits=lambda one: one.plan.data.bits == 8 and takes_int16(one.row) and _sums_stay_in_int32(one),
    apply=lambda one: _with_data(one, dst_type="INT16"),
    words=lambda _: ("int16", "data of 16 bits (dst_type: INT16; ATC refuses it today)"),
    evidence=lambda one: (
        f"data SQNR {one.facts.data_db:.1f} dB; sums of its {one.facts.products} products stay in int32 whatever the data"
    ),
)
