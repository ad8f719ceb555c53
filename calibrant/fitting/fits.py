"""What one calibration found: the fit of each tensor and of each weight, and which of them a layer uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from calibrant.errors import ConfigError
from calibrant.fitting.balancing import is_balanced
from calibrant.fitting.levels import Levels
from calibrant.quantizers.affine import Fit
from calibrant.quantizers.plan import DataPlan, LayerPlan, TensorPlan
from calibrant.quantizers.quality import DataQuality, WeightQuality
from calibrant.stats.events import Event

# tensor, settings, and: the layer where the data is balanced for it alone, or the Add whose branches share a scale
DataKey = tuple[int, DataPlan, int | str | None]


@dataclass(frozen=True, eq=False)
class DataFit:
    """The quantizer of a tensor.

    Attributes:
        fit: scale and offset, one each.
        quality: of the tensor's values under it.
        events: what a person should know of it.
    """

    fit: Fit
    quality: DataQuality
    events: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class WeightFit:
    """The quantizer of a layer's weight.

    Attributes:
        fit: one scale, or one an output channel.
        quality: one value a scale.
        bias: of the layer, float32, or None where it has none or it stays in float.
        decided_by: what decided each scale.
        events: what a person should know of it.
        levels: the few values that NUQ leaves, or None.
    """

    fit: Fit
    quality: WeightQuality
    bias: npt.NDArray[np.float32] | None
    decided_by: tuple[str, ...]
    events: tuple[Event, ...]
    levels: Levels | None


@dataclass(frozen=True, eq=False)
class Fits:
    """All fits of one calibration.

    Attributes:
        name: of the calibration.
        rows: the plans of the quantized layers.
        inputs: quantized inputs of other nodes -> key in `data`.
        seconds: layer_id of a product of two variables -> key in `data` of its second input.
        data: each distinct tensor and settings -> its fit.
        weights: layer_id -> the fit of its weight, or None where the layer has none.
    """

    name: str
    rows: Sequence[LayerPlan]
    inputs: Mapping[TensorPlan, DataKey]
    seconds: Mapping[int, DataKey]
    data: Mapping[DataKey, DataFit]
    weights: Mapping[int, WeightFit | None]

    def events(self) -> list[Event]:
        """Return what the fits have to say: of the data, then of the weights."""
        of_weights = (one.events for one in self.weights.values() if one is not None)
        return list(chain(*(one.events for one in self.data.values()), *of_weights))


def data_key(row: LayerPlan) -> DataKey:
    """Return which fit the data of a layer uses.

    Raises:
        ConfigError: the layer's input was not captured.
    """
    if row.tensor_id is None:
        message = f"layer '{row.layer}' has no captured input; capture the run again"
        raise ConfigError(message)
    return row.tensor_id, row.applied.data, row.joint or (row.layer_id if is_balanced(row) else None)


def data_of(row: LayerPlan, data: Mapping[DataKey, DataFit]) -> DataFit | None:
    """Return the fit of a layer's data; None where its weight alone is quantized."""
    return None if row.applied.weight_only else data[data_key(row)]
