"""How one layer is trained for quantization: what a retrain configuration says, as its quantizers need it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from calibrant.errors import ConfigError
from calibrant.proto.retrain_json import RetrainJson, RetrainJsonData, RetrainJsonLayer, RetrainJsonWeight
from calibrant.quantizers import layer_limits as limits
from calibrant.stats.events import Event
from calibrant.stats.tables import LayerRow

BITS: Final[Mapping[str, int]] = {"INT4": 4, "INT8": 8, "INT16": 16}
WeightAlgorithm = Literal["arq_retrain", "ulq_retrain"]


@dataclass(frozen=True, slots=True)
class DataSettings:
    """How the data of a layer is quantized.

    Attributes:
        bits: width of a code: 4, 8 or 16.
        asymmetric: with an offset or not.
        clip_max: first upper clip end, or None where IFMR finds both.
        clip_min: first lower clip end.
        fixed_min: whether the lower end stays 0.
        frozen: whether the ends stay as they are configured.
    """

    bits: int = 8
    asymmetric: bool = True
    clip_max: float | None = None
    clip_min: float | None = None
    fixed_min: bool = False
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class WeightSettings:
    """How the weight of a layer is quantized.

    Attributes:
        algorithm: ``arq_retrain`` or ``ulq_retrain``.
        bits: width of a code: 4 or 8.
        channel_wise: one scale an output channel.
    """

    algorithm: WeightAlgorithm = "arq_retrain"
    bits: int = 8
    channel_wise: bool = True


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """How a layer is trained.

    Attributes:
        layer: its name in the model.
        data: of its input.
        weight: of its weight.
        batch_num: batches from which IFMR takes the first clip ends.
    """

    layer: str
    data: DataSettings
    weight: WeightSettings
    batch_num: int = 1


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """What the caller decides besides the configuration.

    Attributes:
        strict_amct: use 8 bits whatever ``dst_type`` says, as AMCT does today.
        freeze: leave configured clip ends as they are.
    """

    strict_amct: bool = False
    freeze: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedLayers:
    """The layers that are trained, in the order of the model, and what a person should know."""

    settings: tuple[LayerSettings, ...]
    events: tuple[Event, ...]


def resolve_settings(
    config: RetrainJson,
    layers: Mapping[str, LayerRow],
    producers: Mapping[str, str],
    options: SettingsOptions | None = None,
) -> ResolvedLayers:
    """Decide how each layer of a model is trained.

    Args:
        config: a retrain config.json.
        layers: the layers that can be trained, by name.
        producers: what makes the input of a layer, by the layer's name: ``Relu`` or something else.
        options: what the caller decides besides.

    Raises:
        ConfigError: ``channel_wise: true`` for a layer that has one scale, or no layer to train; says where.

    Example:
        >>> row = LayerRow(0, "fc", "Gemm", 0, "w", "b", 10, 4, 1, 0, None, 50, True, None)
        >>> from calibrant.proto.retrain_json import parse_retrain_json
        >>> found = resolve_settings(parse_retrain_json('{"fc":{"retrain_enable":true}}'), {"fc": row}, {"fc": "Relu"})
        >>> found.settings[0].data.fixed_min, found.settings[0].weight.channel_wise
        (True, False)
    """
    resolution = _Resolution(config, options or SettingsOptions())
    found = [
        resolution.layer(row, given, producers.get(name, ""))
        for name, row in layers.items()
        if (given := config.layers.get(name)) is not None and given.retrain_enable
    ]
    resolution.say_untrained(layers)
    if not found:
        message = (
            f"{config.source or 'config.json'}: no layer of the model has retrain_enable: true; enable at least one"
        )
        raise ConfigError(message)
    return ResolvedLayers(tuple(found), tuple(resolution.events))


class _Resolution:
    """One pass over the layers; gathers events on the way."""

    def __init__(self, config: RetrainJson, options: SettingsOptions) -> None:
        self.config = config
        self.options = options
        self.events: list[Event] = []

    def layer(self, row: LayerRow, given: RetrainJsonLayer, producer: str) -> LayerSettings:
        data, weight = given.data or RetrainJsonData(), given.weight or RetrainJsonWeight()
        data_bits, weight_bits = self._bits(row, data, weight)
        return LayerSettings(
            row.layer,
            self._data(row, data, data_bits, producer),
            WeightSettings(weight.algo or "arq_retrain", weight_bits, self._channel_wise(row, weight)),
            self.config.batch_num or 1,
        )

    def say_untrained(self, layers: Mapping[str, LayerRow]) -> None:
        for name in layers:
            given = self.config.layers.get(name)
            if given is None:
                self._event("info", name, f"layer '{name}' is not in the file and stays in float")
            elif given.retrain_enable is None:
                self._event(
                    "warn", name, f"layer '{name}' has no retrain_enable and stays in float; write true to train it"
                )

    def _event(self, severity: Literal["info", "warn"], layer: str, text: str, *path: str) -> None:
        place = self.config.where(layer, *path)
        self.events.append(Event("fit", severity, f"{place}: {text}", layer))

    def _bits(self, row: LayerRow, data: RetrainJsonData, weight: RetrainJsonWeight) -> tuple[int, int]:
        asked = BITS[data.dst_type or "INT8"], BITS[weight.dst_type or "INT8"]
        if asked == (8, 8):
            return asked
        words = f"{data.dst_type or 'INT8'} data with {weight.dst_type or 'INT8'} weights of '{row.layer}'"
        if self.options.strict_amct:
            self._event("info", row.layer, f"{words}: 8 bits are used, as AMCT does (strict_amct)")
            return 8, 8
        reason = _narrower(row, *asked)
        if reason is not None:
            self._event("warn", row.layer, f"{words}: 8 bits are used, since {reason}")
            return 8, 8
        self._event(
            "info", row.layer, f"{words} are trained as asked; AMCT uses 8 bits today (strict_amct does so too)"
        )
        return asked

    def _data(self, row: LayerRow, data: RetrainJsonData, bits: int, producer: str) -> DataSettings:
        fixed = producer == "Relu" if data.fixed_min is None else data.fixed_min
        if data.fixed_min and data.clip_min is not None:
            text = f"clip_min {data.clip_min:g} of '{row.layer}' is ignored: fixed_min is true, so the lower end is 0"
            self._event("warn", row.layer, text, "retrain_data_config", "clip_min")
        frozen = self.options.freeze and data.clip_max is not None
        asymmetric = limits.layer_allows(limits.OFFSET, row)
        return DataSettings(bits, asymmetric, data.clip_max, data.clip_min, fixed, frozen)

    def _channel_wise(self, row: LayerRow, weight: RetrainJsonWeight) -> bool:
        possible = limits.CHANNEL_WISE_DEFAULT[row.op_type]
        if weight.channel_wise and not possible:
            place = self.config.where(row.layer, "retrain_weight_config", "channel_wise")
            message = f"{place}: channel_wise is true for the Linear '{row.layer}', which has one scale; write false"
            raise ConfigError(message)
        return possible if weight.channel_wise is None else weight.channel_wise


def _narrower(row: LayerRow, data_bits: int, weight_bits: int) -> str | None:
    """Return why a layer cannot have these widths, or None."""
    if data_bits == 16 and not limits.takes_int16(row):
        return "only Conv and ConvTranspose of up to two dimensions and Linear with a bias take INT16 data"
    if weight_bits == 4 and not limits.takes_four_bits(row):
        return "INT4 weights need one group and an even number of input channels"
    return None
