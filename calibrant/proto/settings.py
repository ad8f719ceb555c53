"""The algorithm blocks of a simple configuration as frozen dataclasses; None = not written.

Ranges and defaults are AMCT's; `calibrant.proto.simple_config` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from calibrant.errors import ConfigError

DataType = Literal["INT8", "INT16"]


@dataclass(frozen=True, slots=True)
class IfmrSettings:
    """Members of an ``ifmr_quantize`` block; what the block omits has the defaults of the schema.

    Attributes:
        search_range_start: first factor of the searched clip range, above 0.
        search_range_end: last factor, above the first.
        search_step: step between factors, above 0 and at most the width of the range.
        max_percentile: where the search for the upper clip end starts, in (0.5, 1].
        min_percentile: the same for the lower end.
        asymmetric: with an offset or not; None where not written, so that the next rule decides.
        dst_type: INT8 or INT16.
    """

    search_range_start: float = 0.7
    search_range_end: float = 1.3
    search_step: float = 0.01
    max_percentile: float = 0.999999
    min_percentile: float = 0.999999
    asymmetric: bool | None = None
    dst_type: DataType = "INT8"


@dataclass(frozen=True, slots=True)
class HfmgSettings:
    """Members of an ``hfmg_quantize`` block.

    Attributes:
        num_of_bins: 1024, 2048, 4096 or 8192.
        asymmetric: with an offset or not; None where not written.
        dst_type: INT8 or INT16.
    """

    num_of_bins: int = 4096
    asymmetric: bool | None = None
    dst_type: DataType = "INT8"


@dataclass(frozen=True, slots=True)
class ArqSettings:
    """Members of an ``arq_quantize`` block.

    Attributes:
        channel_wise: one scale an output channel; None where not written, so that the layer's type decides.
        quant_bits: width of a weight code as written: 4, 6, 7 or 8.
        asymmetric: weights with an offset, which only weight compression allows; None where not written.
    """

    channel_wise: bool | None = None
    quant_bits: int = 8
    asymmetric: bool | None = None


@dataclass(frozen=True, slots=True)
class NuqSettings:
    """Members of ``nuq_config`` or of a ``nuq_quantize`` block: weights on a few levels that are not equally far apart.

    Attributes:
        mapping_file: ATC's JSON of the compiled model, as written; None in a ``nuq_quantize`` block or where not written.
        num_steps: number of levels: 16 or 32.
        num_of_iteration: rounds of refinement, 0 to 5.
    """

    mapping_file: str | None = None
    num_steps: int = 32
    num_of_iteration: int = 1


@dataclass(frozen=True, slots=True)
class AdaSettings:
    """Members of an ``ada_quantize`` block (AdaRound, PyTorch).

    Attributes:
        num_iteration: steps of the optimization.
        reg_param: weight of the rounding term, in (0, 1).
        beta_range_start: first exponent of the annealing, above the last.
        beta_range_end: last exponent, above 0.
        warm_start: share of the steps without the rounding term, in (0, 1).
        channel_wise: one scale an output channel; None where not written.
    """

    num_iteration: int = 10000
    reg_param: float = 0.01
    beta_range_start: float = 20.0
    beta_range_end: float = 2.0
    warm_start: float = 0.2
    channel_wise: bool | None = None


@dataclass(frozen=True, slots=True)
class DmqSettings:
    """Members of a ``dmq_balancer`` block.

    Attributes:
        migration_strength: how much of the data's range moves into the weights, 0.2 to 0.8.
    """

    migration_strength: float = 0.5


DataSettings = IfmrSettings | HfmgSettings
WeightSettings = ArqSettings | NuqSettings | AdaSettings


@dataclass(frozen=True, slots=True)
class CalibrationBlock:
    """The settings of one ``calibration_config`` or of ``common_config``; None = not given.

    Attributes:
        ifmr: data by IFMR.
        hfmg: data by HFMG.
        arq: weights by ARQ.
        nuq: weights by NUQ.
        ada: weights by AdaRound.
        dmq: balance data and weights first.
        weight_compress_only: quantize the weights alone; None where not written.
        places: ``file:line:column`` of its members, by dotted name such as ``arq_quantize.quant_bits``.

    Raises:
        ConfigError: two data or two weight algorithms are given.
    """

    ifmr: IfmrSettings | None = None
    hfmg: HfmgSettings | None = None
    arq: ArqSettings | None = None
    nuq: NuqSettings | None = None
    ada: AdaSettings | None = None
    dmq: DmqSettings | None = None
    weight_compress_only: bool | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for rivals in (("ifmr", "hfmg"), ("arq", "nuq", "ada")):
            given = [name for name in rivals if getattr(self, name) is not None]
            if len(given) > 1:
                message = f"{' and '.join(given)} are both given; they exclude each other"
                raise ConfigError(message)

    @property
    def data(self) -> DataSettings | None:
        """The settings of the data algorithm, whichever was given."""
        return self.ifmr if self.hfmg is None else self.hfmg

    @property
    def weights(self) -> WeightSettings | None:
        """The settings of the weight algorithm, whichever was given."""
        return next((one for one in (self.arq, self.nuq, self.ada) if one is not None), None)


@dataclass(frozen=True, slots=True)
class TensorSettings:
    """One ``tensor_quantize``: an input of a layer that is quantized for the sake of faster transport.

    Attributes:
        layer: name of the node.
        input_index: which of its inputs, from 0.
        data: the algorithm; None where none was written: IFMR with its defaults.
        place: ``file:line:column``; empty where it was built in Python.
    """

    layer: str
    input_index: int
    data: DataSettings | None = None
    place: str = field(default="", compare=False)


NamedBlock = tuple[str, CalibrationBlock]
