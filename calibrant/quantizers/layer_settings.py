"""What a configuration asks of one layer, within what the layer can have.

A setting that a layer cannot have is an error where an override means this layer or type, and falls back with an event where the
block speaks of more layers than this one. Limits: `calibrant.quantizers.layer_limits`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from calibrant.errors import ConfigError
from calibrant.proto.op_types import OpType
from calibrant.proto.settings import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DataSettings,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NuqSettings,
    WeightSettings,
)
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers import layer_limits as limits
from calibrant.quantizers.part_plans import DataPlan, WeightPlan
from calibrant.stats.events import Severity
from calibrant.stats.tables import LayerRow

DEFAULT: Final = "default"
LAYER: Final = "layer"
OFFSET: Final = "activation_offset"
COMMON: Final = "common_config"
TYPES: Final = "override_layer_types"
LAYERS: Final = "override_layer_configs"
JSON: Final = "config.json"
NUQ_CONFIG: Final = "nuq_config"
PER_CHANNEL: Final = "calibrant_matmul_per_channel"

DST_TYPE: Final = ("ifmr_quantize.dst_type", "hfmg_quantize.dst_type")
DATA_BITS: Final = {"INT8": 8, "INT16": 16}
NARROW_BITS: Final = (6, 7)
STRENGTHS: Final = (0.2, 0.8)
_ALONE: Final = "a layer with weight_compress_only: true"


class Adjustment(NamedTuple):
    """A setting that a layer cannot have, and what it gets instead.

    Attributes:
        severity: ``warn`` where it probably is not what was meant, ``info`` where the configuration speaks of all layers.
        asked: ``file:line:column: rule: setting has no effect on …``.
        given: what holds instead.
    """

    severity: Severity
    asked: str
    given: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The block that rules a layer.

    Attributes:
        field: ``override_layer_configs``, ``override_layer_types``, ``common_config``, ``config.json`` or ``default``.
        name: the layer or type that an override names, else empty.
        block: its settings.
        named: what the type of a type override means, else None.
    """

    field: str = DEFAULT
    name: str = ""
    block: CalibrationBlock = CalibrationBlock()  # noqa: RUF009 (frozen)
    named: OpType | None = None

    @property
    def rule(self) -> str:
        """The words of the plan: ``override_layer_types "Gemm"`` or ``common_config``."""
        return f'{self.field} "{self.name}"' if self.field in (TYPES, LAYERS) else self.field

    @property
    def words(self) -> str:
        """The rule in a message: a file that speaks of each layer says which one."""
        return f'layer "{self.name}"' if self.field == JSON else self.rule

    def place(self, config: QuantConfig, *members: str) -> str:
        """Return ``file:line:column`` of the first of these members that is written, else of the block."""
        places, field = self.block.places, LAYERS if self.field == JSON else self.field
        return next((places[one] for one in members if one in places), config.where(field, self.name))

    def can_only_mean_layers_outside(self, limit: limits.Limit) -> bool:
        """Whether no layer that the block speaks of, other than by accident, can be within a limit."""
        if self.field in (LAYERS, JSON):
            return True
        return self.named is not None and not limits.type_allows(limit, self.named)


class WeightDecision(NamedTuple):
    """The plan of a weight and the rules behind it and behind its `asymmetric`."""

    plan: WeightPlan
    rule: str
    asymmetric_rule: str


class LayerSettings:
    """Settings of one layer; `adjustments` tells what it could not have.

    Args:
        config: what the user asked for.
        row: the layer.
        levels: the blocks that speak of it, the strongest first.
        quantized: whether the layer will be quantized; an impossible setting of a skipped layer is no error.
        nuq: what ``nuq_config`` asks of this layer, or None.
        dilated: whether the layer's node is dilated.
    """

    def __init__(
        self,
        config: QuantConfig,
        row: LayerRow,
        levels: Sequence[Chosen],
        *,
        quantized: bool,
        nuq: NuqSettings | None = None,
        dilated: bool = False,
    ) -> None:
        self.adjustments: list[Adjustment] = []
        self.chosen = levels[0] if levels else Chosen()
        self._config = config
        self._row = row
        self._levels = levels
        self._quantized = quantized
        self._nuq = nuq
        self._dilated = dilated

    # Data

    def data(self) -> tuple[DataPlan, str, str]:
        """Return the plan of the data, the rule behind it, and the rule behind its `asymmetric`.

        Raises:
            ConfigError: an override asks for an offset or for 16 bits that the layer cannot have.
        """
        given = self.chosen.block.data
        rule = DEFAULT if given is None else self.chosen.rule
        settings = IfmrSettings() if given is None else given
        asymmetric, asymmetric_rule = self._asymmetric(settings)
        return data_plan(settings, self._data_bits(settings), asymmetric=asymmetric), rule, asymmetric_rule

    def _data_bits(self, settings: DataSettings) -> int:
        member = f"{data_member(settings)}.dst_type"
        if settings.dst_type != "INT16" or limits.takes_int16(self._row):
            return DATA_BITS[settings.dst_type]
        if self.chosen.can_only_mean_layers_outside(limits.INT16):
            self._refuse(member, "dst_type is INT16", "only 1-D and 2-D Conv and ConvTranspose, and Gemm with a bias,")
        without = " without a bias" if self._row.op_type == "Gemm" else ""
        self._ineffective("warn", member, "dst_type: INT16", f"{limits.kind(self._row)}{without}", "INT8")
        return 8

    def _asymmetric(self, settings: DataSettings) -> tuple[bool, str]:
        value, source = self._wanted_asymmetric(settings)
        if not value or limits.layer_allows(limits.OFFSET, self._row):
            return value, source.rule
        where = source.place(self._config, f"{data_member(settings)}.asymmetric")
        if self._quantized and source.can_only_mean_layers_outside(limits.OFFSET):
            message = f"{where}: asymmetric: true for '{source.name}', but with a 3-D kernel it can only be symmetric"
            raise ConfigError(message)
        severity: Severity = "warn" if source.field == TYPES else "info"
        self._adjust(severity, f"{where}: {source.words}: asymmetric data is impossible with 3-D kernels", "symmetric")
        return False, LAYER

    def _wanted_asymmetric(self, settings: DataSettings) -> tuple[bool, Chosen]:
        """Return the value of the chain and where it stands."""
        if settings.asymmetric is not None:
            return settings.asymmetric, self.chosen
        return inherited_asymmetric(self._config, settings)

    # Weight

    def weight(self) -> WeightDecision:
        """Return the plan of the weight and the rules behind it.

        Raises:
            ConfigError: an override asks for a width, an algorithm, an offset or scales that the layer cannot have.
        """
        given = self.chosen.block.weights
        rule = DEFAULT if given is None else self.chosen.rule
        settings, rule = self._weight_settings(given, rule)
        asymmetric, asymmetric_rule = self._weight_asymmetric(settings)
        channel_wise, bits = self._channel_wise(settings), 8
        if channel_wise and self._takes_columns(settings) and not _asks_channel_wise(settings):
            rule = PER_CHANNEL
        if isinstance(settings, ArqSettings):
            bits = self._weight_bits(settings.quant_bits)
        if self._row.op_type == "AveragePool":
            return WeightDecision(WeightPlan("none", bits, channel_wise), rule, DEFAULT)
        plan = _weight_plan(settings, bits, channel_wise=channel_wise, asymmetric=asymmetric)
        return WeightDecision(plan, rule, asymmetric_rule)

    def _weight_settings(self, given: WeightSettings | None, rule: str) -> tuple[WeightSettings, str]:
        """Return what a layer gets of what was written: NUQ and AdaRound are for some layers alone."""
        alone = self.weight_only()[0]
        if self._nuq is not None and not alone and (given is None or self.chosen.field != LAYERS):
            return self._nuq, NUQ_CONFIG
        if isinstance(given, NuqSettings) and alone:
            self._ineffective("warn", "nuq_quantize", "nuq_quantize", _ALONE, "ARQ")
            return ArqSettings(), DEFAULT
        if isinstance(given, NuqSettings) and not limits.takes_nuq(self._row, dilated=self._dilated):
            return self._plain_weights("nuq_quantize", limits.NUQ, "an undilated 2-D Conv of one group, Gemm or MatMul")
        if isinstance(given, AdaSettings) and not limits.layer_allows(limits.WEIGHTS, self._row):
            return self._plain_weights("ada_quantize", limits.WEIGHTS, "a layer with a weight")
        return ArqSettings() if given is None else given, rule

    def _plain_weights(self, member: str, limit: limits.Limit, able: str) -> tuple[WeightSettings, str]:
        if self.chosen.can_only_mean_layers_outside(limit):
            self._refuse(member, f"{member} is given", f"only {able}")
        kind, detail = limits.kind(self._row), ""
        if limits.layer_allows(limit, self._row):
            detail = " in groups" if self._row.groups > 1 else " with dilation"
        instead = "ARQ" if limits.layer_allows(limits.WEIGHTS, self._row) else "it has no weight"
        self._ineffective("warn", member, member, f"{kind}{detail}", instead)
        return ArqSettings(), DEFAULT

    def _channel_wise(self, settings: WeightSettings) -> bool:
        asked = _asks_channel_wise(settings)
        possible = limits.CHANNEL_WISE_DEFAULT.get(self._row.op_type, False) or self._takes_columns(settings)
        if not asked or possible:
            return possible if asked is None else asked
        member = f"{_weight_member(settings)}.channel_wise"
        if self.chosen.can_only_mean_layers_outside(limits.CHANNEL_WISE):
            able = (
                f" it ({PER_CHANNEL}: true lets others)" if limits.layer_allows(limits.BY_COLUMN, self._row) else " it"
            )
            self._refuse(member, "channel_wise is true", "only Conv and ConvTranspose", able)
        severity: Severity = "info" if self.chosen.field == COMMON else "warn"
        given = "one scale for the whole tensor"
        self._ineffective(severity, member, "channel_wise: true", self._row.op_type, given)
        return False

    def _takes_columns(self, settings: WeightSettings) -> bool:
        """Whether the weight may have one scale an output column, which AMCT does not offer."""
        wanted = bool(self._config.calibrant_matmul_per_channel) and not isinstance(settings, NuqSettings)
        return wanted and limits.layer_allows(limits.BY_COLUMN, self._row)

    def _weight_bits(self, asked: int) -> int:
        member = "arq_quantize.quant_bits"
        if asked == 4 and self.weight_only()[0]:
            self._ineffective("warn", member, "quant_bits: 4", _ALONE, "8 bits")
            return 8
        if asked == 4 and not limits.takes_four_bits(self._row):
            self._ineffective("warn", member, "quant_bits: 4", _why_not_four(self._row), "8 bits")
            return 8
        if asked not in NARROW_BITS or limits.layer_allows(limits.NARROW, self._row):
            return asked
        if self.chosen.can_only_mean_layers_outside(limits.NARROW):
            self._refuse(member, f"quant_bits is {asked}", "only a Conv with a 2-D kernel", " 6 or 7; use 8")
        self._ineffective("warn", member, f"quant_bits: {asked}", limits.kind(self._row), "8 bits")
        return 8

    def _weight_asymmetric(self, settings: WeightSettings) -> tuple[bool, str]:
        """Return the value of the chain: the nearest block that says it; only with weights alone it can be true."""
        own = settings.asymmetric if isinstance(settings, ArqSettings) else None
        if own and not self.chosen.block.weight_compress_only and self._quantized:
            where = self._where("arq_quantize.asymmetric")
            able = "weights with weight_compress_only: true alone; set that, or asymmetric: false"
            message = f"{where}: {self.chosen.words}: asymmetric: true is for {able}"
            raise ConfigError(message)
        said = [(one.block.arq.asymmetric, one.rule) for one in self._levels if one.block.arq is not None]
        value, rule = next(((bool(value), rule) for value, rule in said if value is not None), (False, DEFAULT))
        if value and not self.weight_only()[0]:
            return False, DEFAULT
        return value, rule

    # Both

    def weight_only(self) -> tuple[bool, str]:
        """Return whether the weight alone is quantized, and the rule behind it."""
        asked = self.chosen.block.weight_compress_only
        return bool(asked), DEFAULT if asked is None else self.chosen.rule

    def check_weight_only(self) -> None:
        """Say where settings of the data mean nothing since the weight alone is quantized."""
        data = self.chosen.block.data
        if self.weight_only()[0] and data is not None:
            member = data_member(data)
            given = "it asks for the weights alone"
            self._ineffective("warn", member, member, _ALONE, given)

    def nothing_to_compress(self) -> str | None:
        """Return why the layer stays in float although its weight alone is asked for: it has none."""
        if not self.weight_only()[0] or (
            limits.layer_allows(limits.WEIGHTS, self._row) and self._row.weight is not None
        ):
            return None
        member = "weight_compress_only"
        self._ineffective("warn", member, f"{member}: true", self._row.op_type, "it has no weight and stays in float")
        return f"{member}: true, and it has no weight"

    def check_product(self) -> None:
        """Say which settings mean nothing for a MatMul of two variables: it has no weight, and its data no offset."""
        data, weights, kind = self.chosen.block.data, self.chosen.block.weights, "MatMul of two variables"
        severity: Severity = "warn" if self.chosen.field == LAYERS else "info"
        if data is not None and data.asymmetric:
            self._ineffective(severity, f"{data_member(data)}.asymmetric", "asymmetric: true", kind, "symmetric")
        if weights is not None and weights != ArqSettings():
            member = "nuq_quantize" if isinstance(weights, NuqSettings) else _weight_member(weights)
            self._ineffective(severity, member, member, kind, "8 bits on both sides")

    def balancer(self) -> tuple[float | None, str]:
        """Return the migration strength, None without balancing, and the rule behind it.

        Raises:
            ConfigError: an override asks for it on a layer without a weight; or it is out of its range.
        """
        asked = self.chosen.block.dmq
        if asked is None:
            return None, DEFAULT
        self._check_strength(asked)
        if self.weight_only()[0]:
            self._ineffective("warn", "dmq_balancer", "dmq_balancer", _ALONE, "not balanced")
            return None, LAYER
        if limits.layer_allows(limits.WEIGHTS, self._row) and self._row.weight is not None:
            return asked.migration_strength, self.chosen.rule
        if self.chosen.can_only_mean_layers_outside(limits.WEIGHTS):
            self._refuse("dmq_balancer", "dmq_balancer is given", "only a layer with a weight")
        self._ineffective("warn", "dmq_balancer", "dmq_balancer", self._row.op_type, "not balanced")
        return None, LAYER

    def _check_strength(self, asked: DmqSettings) -> None:
        low, high = STRENGTHS
        if not low <= asked.migration_strength <= high:
            where = self._where("dmq_balancer.migration_strength")
            message = (
                f"{where}: migration_strength is {asked.migration_strength}; a number from {low} to {high} is expected"
            )
            raise ConfigError(message)

    def _refuse(self, member: str, asked: str, able: str, rest: str = " it") -> None:
        """Raise unless the layer is skipped anyway."""
        if self._quantized:
            message = f"{self._where(member)}: {self.chosen.words}: {asked}, but {able} can have{rest}"
            raise ConfigError(message)

    def _ineffective(self, severity: Severity, member: str, asked: str, kind: str, given: str) -> None:
        self._adjust(severity, f"{self._where(member)}: {self.chosen.words}: {asked} has no effect on {kind}", given)

    def _adjust(self, severity: Severity, asked: str, given: str) -> None:
        self.adjustments.append(Adjustment(severity, asked, given))

    def _where(self, member: str) -> str:
        return self.chosen.place(self._config, member)


def _asks_channel_wise(settings: WeightSettings) -> bool | None:
    return None if isinstance(settings, NuqSettings) else settings.channel_wise


def data_plan(settings: DataSettings, bits: int, *, asymmetric: bool) -> DataPlan:
    """Return the plan of data that an algorithm block describes."""
    if isinstance(settings, HfmgSettings):
        return DataPlan("hfmg", bits, asymmetric, num_of_bins=settings.num_of_bins)
    return DataPlan(
        "ifmr",
        bits,
        asymmetric,
        max_percentile=settings.max_percentile,
        min_percentile=settings.min_percentile,
        search_range=(settings.search_range_start, settings.search_range_end),
        search_step=settings.search_step,
    )


def _weight_plan(settings: WeightSettings, bits: int, *, channel_wise: bool, asymmetric: bool) -> WeightPlan:
    if isinstance(settings, NuqSettings):
        return WeightPlan("nuq", bits, channel_wise, asymmetric, settings.num_steps, settings.num_of_iteration)
    if isinstance(settings, AdaSettings):
        return WeightPlan("ada", bits, channel_wise, asymmetric, ada=replace(settings, channel_wise=channel_wise))
    return WeightPlan("arq", bits, channel_wise, asymmetric)


def inherited_asymmetric(config: QuantConfig, settings: DataSettings) -> tuple[bool, Chosen]:
    """Return `asymmetric` where a block does not say it: `common_config`'s for the same algorithm, else ``activation_offset``."""
    common = config.common or CalibrationBlock()
    of_common = common.data or IfmrSettings()
    if type(of_common) is type(settings) and of_common.asymmetric is not None:
        return of_common.asymmetric, Chosen(COMMON, "", common)
    return config.activation_offset, Chosen(OFFSET)


def data_member(settings: DataSettings) -> str:
    """Return the name of an algorithm's block."""
    return "hfmg_quantize" if isinstance(settings, HfmgSettings) else "ifmr_quantize"


def _weight_member(settings: WeightSettings) -> str:
    return "ada_quantize" if isinstance(settings, AdaSettings) else "arq_quantize"


def _why_not_four(row: LayerRow) -> str:
    if not limits.layer_allows(limits.WEIGHTS, row):
        return row.op_type
    return (
        f"{limits.kind(row)} in groups"
        if row.groups > 1
        else f"{limits.kind(row)} with an odd number of input channels"
    )


def omitted(chosen: Chosen, weaker: Sequence[Chosen], op_type: str) -> Iterator[tuple[str, Chosen]]:
    """Yield the parts that a block omits, each with the strongest weaker block that has it."""
    has_weight = op_type != "AveragePool"
    for part, members, matters in (
        ("data", ("data",), True),
        ("weight", ("weights",), has_weight),
        ("balancer", ("dmq",), has_weight),
        ("weight_compress_only", ("weight_compress_only",), has_weight),
    ):
        if matters and getattr(chosen.block, members[0]) is None:
            found = next((one for one in weaker if getattr(one.block, members[0])), None)
            if found is not None:
                yield part, found
