"""What a configuration asks of one layer, within what the layer can have.

Limits are AMCT's: no scales per channel for Gemm, MatMul and AveragePool; 6 and 7 weight bits for Conv with a 2-D kernel alone;
no offset on data of 3-D kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from calibrant.errors import ConfigError
from calibrant.proto.simple_config import ArqSettings, CalibrationBlock, HfmgSettings, IfmrSettings, QuantConfig
from calibrant.quantizers.layer_plan import DataPlan, WeightPlan
from calibrant.stats.events import Severity
from calibrant.stats.tables import LayerRow

CHANNEL_WISE_DEFAULT: Final[Mapping[str, bool]] = {  # AMCT's, by ONNX type; also the types that can be quantized
    "Conv": True,
    "ConvTranspose": True,
    "Gemm": False,
    "MatMul": False,
    "AveragePool": False,
}
DATA_BITS: Final = 8  # INT16 is read and reported, not applied
NARROW_BITS: Final = (6, 7)
DEFAULT: Final = "default"
OFFSET: Final = "activation_offset"
COMMON: Final = "common_config"
TYPES: Final = "override_layer_types"
LAYERS: Final = "override_layer_configs"


class Adjustment(NamedTuple):
    """A setting that a layer cannot have, and what it gets instead.

    Attributes:
        severity: ``warn`` where the configuration means this layer or type, ``info`` where it speaks of all layers.
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
        field: ``override_layer_configs``, ``override_layer_types``, ``common_config`` or ``default``.
        name: the layer or type that an override names, else empty.
        block: its settings.
    """

    field: str = DEFAULT
    name: str = ""
    block: CalibrationBlock = CalibrationBlock()  # noqa: RUF009 (frozen)

    @property
    def rule(self) -> str:
        """The words of the plan: ``override_layer_types "Gemm"`` or ``common_config``."""
        return f'{self.field} "{self.name}"' if self.field in (TYPES, LAYERS) else self.field


class LayerSettings:
    """Settings of one layer; `adjustments` tells what it could not have.

    Args:
        config: what the user asked for.
        row: the layer.
        chosen: the block that rules it.
        quantized: whether the layer will be quantized; an impossible setting of a skipped layer is no error.
    """

    def __init__(self, config: QuantConfig, row: LayerRow, chosen: Chosen, *, quantized: bool) -> None:
        self.adjustments: list[Adjustment] = []
        self._config = config
        self._row = row
        self._chosen = chosen
        self._quantized = quantized

    def data(self) -> tuple[DataPlan, str, str]:
        """Return the plan of the data, the rule behind it, and the rule behind its `asymmetric`.

        Raises:
            ConfigError: the layer's own override asks for an offset that it cannot have.
        """
        given = self._chosen.block.data
        rule = DEFAULT if given is None else self._chosen.rule
        settings = IfmrSettings() if given is None else given
        asymmetric, asymmetric_rule = self._asymmetric(settings)
        if isinstance(settings, HfmgSettings):
            return DataPlan("hfmg", DATA_BITS, asymmetric, num_of_bins=settings.num_of_bins), rule, asymmetric_rule
        plan = DataPlan(
            "ifmr",
            DATA_BITS,
            asymmetric,
            max_percentile=settings.max_percentile,
            min_percentile=settings.min_percentile,
            search_range=(settings.search_range_start, settings.search_range_end),
            search_step=settings.search_step,
        )
        return plan, rule, asymmetric_rule

    def weight(self) -> tuple[WeightPlan, str]:
        """Return the plan of the weight and the rule behind it.

        Raises:
            ConfigError: an override asks for 6 or 7 bits where only 8 are possible.
        """
        given = self._chosen.block.arq
        rule = DEFAULT if given is None else self._chosen.rule
        settings = ArqSettings() if given is None else given
        bits, channel_wise = self._bits(settings.quant_bits), self._channel_wise(settings.channel_wise)
        if self._row.op_type == "AveragePool":
            return WeightPlan("none", bits, channel_wise), rule
        return WeightPlan("arq", bits, channel_wise), rule

    def _asymmetric(self, settings: IfmrSettings | HfmgSettings) -> tuple[bool, str]:
        value, rule, where = self._wanted_asymmetric(settings)
        if not value or self._row.kernel_rank != 3:
            return value, rule
        if rule.startswith(LAYERS) and self._quantized:
            message = (
                f"{where}: asymmetric: true for '{self._row.layer}', but with a 3-D kernel it can only be symmetric"
            )
            raise ConfigError(message)
        severity: Severity = "warn" if rule.startswith(TYPES) else "info"
        self._adjust(severity, f"{where}: {rule}: asymmetric data is impossible with 3-D kernels", "symmetric")
        return False, "layer"

    def _wanted_asymmetric(self, settings: IfmrSettings | HfmgSettings) -> tuple[bool, str, str]:
        """Return the value of the chain, its rule and its place."""
        if settings.asymmetric is not None:
            return settings.asymmetric, self._chosen.rule, self._where(f"{_member(settings)}.asymmetric")
        common = self._config.common or CalibrationBlock()
        of_common = common.data or IfmrSettings()
        if type(of_common) is type(settings) and of_common.asymmetric is not None:
            place = common.places.get(f"{_member(of_common)}.asymmetric", self._config.where(COMMON))
            return of_common.asymmetric, COMMON, place
        return self._config.activation_offset, OFFSET, self._config.where(OFFSET)

    def _channel_wise(self, asked: bool | None) -> bool:
        possible = CHANNEL_WISE_DEFAULT.get(self._row.op_type, False)
        if not asked or possible:
            return possible if asked is None else asked
        severity: Severity = "info" if self._chosen.field == COMMON else "warn"
        self._ineffective(
            severity, "channel_wise", "channel_wise: true", self._row.op_type, "one scale for the whole tensor"
        )
        return False

    def _bits(self, asked: int) -> int:
        row, chosen = self._row, self._chosen
        if asked not in NARROW_BITS:  # 4 is reported when the file is read
            return 8
        if row.op_type == "Conv" and row.kernel_rank == 2:
            return asked
        names_it = chosen.field == LAYERS or (chosen.field == TYPES and row.op_type != "Conv")
        if names_it and self._quantized:
            where = self._where("arq_quantize.quant_bits")
            message = f"{where}: {chosen.rule}: quant_bits is {asked}, but only a Conv with a 2-D kernel can have 6 or 7; use 8"
            raise ConfigError(message)
        kind = f"Conv with a {row.kernel_rank}-D kernel" if row.op_type == "Conv" else row.op_type
        self._ineffective("warn", "quant_bits", f"quant_bits: {asked}", kind, "8 bits")
        return 8

    def _ineffective(self, severity: Severity, member: str, asked: str, kind: str, given: str) -> None:
        where = self._where(f"arq_quantize.{member}")
        self._adjust(severity, f"{where}: {self._chosen.rule}: {asked} has no effect on {kind}", given)

    def _adjust(self, severity: Severity, asked: str, given: str) -> None:
        self.adjustments.append(Adjustment(severity, asked, given))

    def _where(self, member: str) -> str:
        chosen = self._chosen
        return chosen.block.places.get(member, self._config.where(chosen.field, chosen.name))


def _member(settings: IfmrSettings | HfmgSettings) -> str:
    return "hfmg_quantize" if isinstance(settings, HfmgSettings) else "ifmr_quantize"
