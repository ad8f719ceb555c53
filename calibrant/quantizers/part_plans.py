"""How the data and the weight of a layer are quantized: the two parts of its plan."""

from dataclasses import dataclass
from typing import Literal

from calibrant.proto.settings import AdaSettings
from calibrant.quantizers.options import ArqOptions, HfmgOptions, IfmrOptions, NuqOptions

WeightAlgorithm = Literal["arq", "nuq", "ada", "none", "arq_retrain", "ulq_retrain"]


@dataclass(frozen=True, slots=True)
class DataPlan:
    """How the data of a layer is quantized; members of the other algorithm are None.

    Attributes:
        algorithm: ``ifmr`` or ``hfmg``; ``ulq`` where training found the range.
        bits: width of a code.
        asymmetric: with an offset or not.
        max_percentile: IFMR: where the search for the upper clip end starts.
        min_percentile: IFMR: the same for the lower end.
        search_range: IFMR: first and last factor.
        search_step: IFMR: step between factors.
        num_of_bins: HFMG: bins of its histogram.
        half: whether its step is one of float16 (``FORCE_FP16_QUANT``).
    """

    algorithm: Literal["ifmr", "hfmg", "ulq"]
    bits: int
    asymmetric: bool
    max_percentile: float | None = None
    min_percentile: float | None = None
    search_range: tuple[float, float] | None = None
    search_step: float | None = None
    num_of_bins: int | None = None
    half: bool = False

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
        algorithm: ``arq``, ``nuq`` or ``ada``; ``none`` for AveragePool, which has no weight (its record says scale_w 1);
            ``arq_retrain`` or ``ulq_retrain`` where it was trained.
        bits: width of a code: 4, 6, 7 or 8.
        channel_wise: one scale an output channel.
        asymmetric: with an offset or not.
        num_steps: NUQ: number of levels.
        num_of_iteration: NUQ: rounds of refinement.
        ada: AdaRound: its settings.
    """

    algorithm: WeightAlgorithm
    bits: int
    channel_wise: bool
    asymmetric: bool = False
    num_steps: int | None = None
    num_of_iteration: int | None = None
    ada: AdaSettings | None = None

    def options(self) -> ArqOptions:
        """Return the options of the fit by ARQ."""
        return ArqOptions(bits=self.bits, channel_wise=self.channel_wise, asymmetric=self.asymmetric)

    def nuq_options(self) -> NuqOptions | None:
        """Return the options of the choice of levels that follows, or None where the codes stay uniform.

        Raises:
            ConfigError: a value is out of its range.
        """
        if self.algorithm != "nuq":
            return None
        given = {"num_steps": self.num_steps, "num_of_iteration": self.num_of_iteration}
        return NuqOptions(**{name: value for name, value in given.items() if value is not None})


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
