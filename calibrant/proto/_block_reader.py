"""The algorithm blocks of a simple configuration: from sections of the merged message to the dataclasses, every value checked.

Ranges and defaults: AMCT's (configuration reference, validations and defaults).
"""

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeVar

from calibrant.proto._document import Section
from calibrant.proto._numbers import inside, one_of, percentile, positive, within
from calibrant.proto.settings import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DataSettings,
    DataType,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NuqSettings,
)

if TYPE_CHECKING:
    from calibrant.proto._syntax import Place

Settings = TypeVar("Settings")

NUMS_OF_BINS: Final = (1024, 2048, 4096, 8192)
WEIGHT_BITS: Final = (4, 6, 7, 8)
NUQ_STEPS: Final = (16, 32)
MANY_CANDIDATES: Final = 1000  # AMCT's default has 61; each costs a pass over the histogram
MAX_CANDIDATES: Final = 1_000_000  # beyond it even the table of candidates does not fit


class BlockReader:
    """Reads blocks; `warnings` gathers what is odd in them."""

    def __init__(self) -> None:
        self.warnings: list[tuple[Place, str]] = []

    def warn(self, section: Section, name: str, text: str, index: int = -1) -> None:
        """Keep a warning at a field."""
        self.warnings.append((section.place_of(name, index), text))

    def block(self, section: Section) -> CalibrationBlock:
        """Read a ``CalibrationConfig``."""
        places: dict[str, str] = {}
        block = CalibrationBlock(
            ifmr=_part(section, "ifmr_quantize", self._ifmr, places),
            hfmg=_part(section, "hfmg_quantize", _hfmg, places),
            arq=_part(section, "arq_quantize", _arq, places),
            nuq=_part(section, "nuq_quantize", nuq_settings, places),
            ada=_part(section, "ada_quantize", _ada, places),
            dmq=_part(section, "dmq_balancer", _dmq, places),
            weight_compress_only=section.optional("weight_compress_only"),
            places=places,
        )
        if section.has("weight_compress_only"):
            places["weight_compress_only"] = section.spot("weight_compress_only")
        _check_weight_offset(section, block)
        return block

    def data(self, section: Section) -> DataSettings | None:
        """Read the data algorithm of a ``TensorQuantize``."""
        ifmr = _part(section, "ifmr_quantize", self._ifmr, {})
        return ifmr if ifmr is not None else _part(section, "hfmg_quantize", _hfmg, {})

    def _ifmr(self, section: Section) -> IfmrSettings:
        start, end = positive(section, "search_range_start"), positive(section, "search_range_end")
        if start >= end:
            name = "search_range_start" if section.has("search_range_start") else "search_range_end"
            text = f"the search range {start} to {end} is empty; search_range_start must be below search_range_end"
            section.reject(name, text)
        return IfmrSettings(
            search_range_start=start,
            search_range_end=end,
            search_step=self._search_step(section, start, end),
            max_percentile=percentile(section, "max_percentile"),
            min_percentile=percentile(section, "min_percentile"),
            asymmetric=section.optional("asymmetric"),
            dst_type=_dst_type(section),
        )

    def _search_step(self, section: Section, start: float, end: float) -> float:
        step = positive(section, "search_step")
        width = Decimal(repr(end)) - Decimal(repr(start))
        if Decimal(repr(step)) > width:
            section.reject(
                "search_step", f"search_step is {step}; at most the width of the range, {width}, is expected"
            )
        count = int(width / Decimal(repr(step))) + 1
        if count > MAX_CANDIDATES:
            section.reject(
                "search_step", f"search_step {step} makes {count} candidates; at most {MAX_CANDIDATES} are tried"
            )
        if count > MANY_CANDIDATES:
            self.warn(
                section,
                "search_step",
                f"search_step {step} makes {count} candidates, so the search is slow (default: 61)",
            )
        return step


def nuq_settings(section: Section) -> NuqSettings:
    """Read a ``NUQuantize``."""
    return NuqSettings(
        num_steps=one_of(section, "num_steps", NUQ_STEPS),
        num_of_iteration=one_of(section, "num_of_iteration", range(6)),
    )


def _part(
    section: Section, name: str, reader: Callable[[Section], Settings], places: dict[str, str]
) -> Settings | None:
    if not section.has(name):
        return None
    inner = section.child(name)
    places[name] = section.spot(name)
    for field in inner.fields:
        places[f"{name}.{field.name}"] = inner.spot(field.name)
    return reader(inner)


def _hfmg(section: Section) -> HfmgSettings:
    return HfmgSettings(
        one_of(section, "num_of_bins", NUMS_OF_BINS), section.optional("asymmetric"), _dst_type(section)
    )


def _dst_type(section: Section) -> DataType:
    return "INT16" if section.enum_name("dst_type") == "INT16" else "INT8"


def _arq(section: Section) -> ArqSettings:
    bits = one_of(section, "quant_bits", WEIGHT_BITS)
    return ArqSettings(section.optional("channel_wise"), bits, section.optional("asymmetric"))


def _ada(section: Section) -> AdaSettings:
    start, end = positive(section, "beta_range_start"), positive(section, "beta_range_end")
    if start <= end:
        text = f"beta_range_start is {start}; a number above beta_range_end, {end}, is expected"
        section.reject("beta_range_start", text)
    return AdaSettings(
        num_iteration=section.value("num_iteration"),
        reg_param=inside(section, "reg_param", 0, 1),
        beta_range_start=start,
        beta_range_end=end,
        warm_start=inside(section, "warm_start", 0, 1),
        channel_wise=section.optional("channel_wise"),
    )


def _dmq(section: Section) -> DmqSettings:
    return DmqSettings(within(section, "migration_strength", 0.2, 0.8))


def _check_weight_offset(section: Section, block: CalibrationBlock) -> None:
    if block.arq is not None and block.arq.asymmetric and not block.weight_compress_only:
        text = "asymmetric: true is for weights with weight_compress_only: true alone; set that, or asymmetric: false"
        section.child("arq_quantize").reject("asymmetric", text)
