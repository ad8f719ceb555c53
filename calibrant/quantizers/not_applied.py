"""What this version resolves and shows but does not apply: one row a feature, with what happens instead.

This is the only place that knows. A feature that becomes applied loses its row here: its plan is then the one that is fitted,
and nothing warns of it any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from calibrant.quantizers.part_plans import WeightPlan

if TYPE_CHECKING:
    from calibrant.quantizers.layer_plan import LayerPlan

WORDS: Final = "is read but not applied in this version"


class Feature(NamedTuple):
    """Something that a layer may be asked to have.

    Attributes:
        asked: whether a layer's plan has it.
        lower: the plan that holds instead.
        instead: the same in words.
        members: where a block asks for it, by dotted name.
    """

    asked: Callable[["LayerPlan"], bool]
    lower: Callable[["LayerPlan"], "LayerPlan"]
    instead: str
    members: tuple[str, ...]


def _uniform(row: "LayerPlan") -> "LayerPlan":
    return replace(row, weight=WeightPlan("arq", 8, row.weight.channel_wise, row.weight.asymmetric))


_ARQ: Final = "ARQ quantizes the weights to 8 bits"
FEATURES: Final[Mapping[str, Feature]] = {
    "ada_quantize": Feature(lambda row: row.weight.algorithm == "ada", _uniform, _ARQ, ("ada_quantize",)),
}
OF_MODEL: Final[Mapping[str, str]] = {  # settings of the whole model, by field
    "weight_offset": "weight_offset: true {}: weights are quantized symmetrically, as the NPU needs it",
    "enable_auto_nuq": "enable_auto_nuq: true {}: no layer is chosen for NUQ",
}


def not_applied(row: "LayerPlan") -> tuple[str, ...]:
    """Return the features that a layer is asked to have and does not get."""
    return tuple(name for name, feature in FEATURES.items() if feature.asked(row))


def lowered(row: "LayerPlan") -> "LayerPlan":
    """Return the plan of a layer as this version applies it."""
    for name in not_applied(row):
        row = FEATURES[name].lower(row)
    return row
