"""Simple configuration: from the merged message to the dataclasses, with every value checked.

Ranges and defaults: AMCT's (configuration reference, validations and defaults).
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from calibrant.proto._document import CONFIGURATION, START, Section, located, merge_text, repetitions
from calibrant.proto.simple_config import (
    ArqSettings,
    CalibrationBlock,
    ConfigNote,
    DataType,
    HfmgSettings,
    IfmrSettings,
    NamedBlock,
    QuantConfig,
)

if TYPE_CHECKING:
    from calibrant.proto._syntax import Place

Settings = TypeVar("Settings")

NOT_APPLIED: Final = "is read but not applied in this version"
NUMS_OF_BINS: Final = (1024, 2048, 4096, 8192)
WEIGHT_BITS: Final = (4, 6, 7, 8)
NUQ_STEPS: Final = (16, 32)
MANY_CANDIDATES: Final = 1000  # AMCT's default has 61; each costs a pass over the histogram
MAX_CANDIDATES: Final = 1_000_000  # beyond it even the table of candidates does not fit


def read(text: str, source: str, *, byte_order_mark: bool) -> QuantConfig:
    """Read the text of a simple configuration; see `simple_config.parse_simple_config`."""
    reader = _Reader(merge_text(text, CONFIGURATION, source))
    if byte_order_mark:
        reader.warnings.append((START, "the file begins with a byte-order mark, which AMCT refuses; it was left out"))
    return reader.config(text)


class _Reader:
    """Reads one configuration and gathers notes and positions on the way."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.warnings: list[tuple[Place, str]] = []
        self.positions: dict[tuple[str, str], str] = {}

    def config(self, text: str) -> QuantConfig:
        root = self.root
        self._check_globals()
        skips = {name: self._names(name) for name in ("skip_layers", "skip_layer_types", "skip_fusion_layers")}
        common = self._block(root.child("common_config")) if root.has("common_config") else None
        types = self._overrides("override_layer_types", "layer_type")
        layers = self._overrides("override_layer_configs", "layer_name")
        self._read_only_members()
        self.warnings.extend(repetitions(root))
        return QuantConfig(
            batch_num=root.optional("batch_num"),
            activation_offset=root.value("activation_offset"),
            joint_quant=root.value("joint_quant"),
            do_fusion=root.value("do_fusion"),
            **skips,
            common=common,
            override_types=types,
            override_layers=layers,
            source=root.source,
            text=text,
            notes=self._notes(),
            positions=self.positions,
        )

    def _warn(self, section: Section, name: str, text: str, index: int = -1) -> None:
        self.warnings.append((section.place_of(name, index), text))

    def _mark(self, section: Section, field: str, name: str = "", index: int = -1) -> None:
        self.positions[field, name] = located(section.source, section.place_of(field, index), "").removesuffix(": ")

    def _check_globals(self) -> None:
        root = self.root
        for name in ("batch_num", "activation_offset", "joint_quant", "do_fusion", "common_config"):
            if root.has(name):
                self._mark(root, name)
        if root.value("batch_num") == 0:
            root.reject("batch_num", "batch_num is 0; at least 1 is expected (leave it out to use all data)")
        if root.value("version") != 1:
            root.reject("version", f"version is {root.value('version')}; 1 is the only version there is")

    def _names(self, name: str) -> tuple[str, ...]:
        values = tuple(self.root.value(name))
        for index, value in enumerate(values):
            self._once(self.root, name, value, index)
        return values

    def _once(self, section: Section, field: str, name: str, index: int) -> None:
        if (field, name) in self.positions:
            first = self.positions[field, name]
            section.reject(field, f"{field} names '{name}' a second time (first at {first}); delete one", index)
        self._mark(section, field, name, index)

    def _overrides(self, field: str, key: str) -> tuple[NamedBlock, ...]:
        found = []
        for index, section in enumerate(self.root.children(field)):
            if not section.has(key):
                self.root.reject(field, f"{field} without {key}; say which one is meant", index)
            name = section.value(key)
            self._once(self.root, field, name, index)
            self._mark_name(field, name, section, key)
            if not section.has("calibration_config"):
                text = f"{field} for '{name}' has no calibration_config: the defaults apply to it, not common_config"
                self._warn(self.root, field, text, index)
            found.append((name, self._block(section.child("calibration_config"))))
        return tuple(found)

    def _mark_name(self, field: str, name: str, section: Section, key: str) -> None:
        """Point at the name inside the override rather than at its opening brace."""
        self.positions[field, name] = section.at(key, "").removesuffix(": ")

    def _notes(self) -> tuple[ConfigNote, ...]:
        """Return the warnings in file order."""
        return tuple(
            ConfigNote("warn", located(self.root.source, place, text)) for place, text in sorted(self.warnings)
        )

    def _block(self, section: Section) -> CalibrationBlock:
        places: dict[str, str] = {}
        ifmr = self._part(section, "ifmr_quantize", self._ifmr, places)
        hfmg = self._part(section, "hfmg_quantize", self._hfmg, places)
        arq = self._part(section, "arq_quantize", self._arq, places)
        self._read_only_algorithms(section)
        return CalibrationBlock(ifmr=ifmr, hfmg=hfmg, arq=arq, places=places)

    def _part(
        self, section: Section, name: str, reader: Callable[[Section], Settings], places: dict[str, str]
    ) -> Settings | None:
        if not section.has(name):
            return None
        inner = section.child(name)
        places[name] = section.at(name, "").removesuffix(": ")
        for field in inner.fields:
            places[f"{name}.{field.name}"] = inner.at(field.name, "").removesuffix(": ")
        return reader(inner)

    def _ifmr(self, section: Section) -> IfmrSettings:
        start, end = _positive(section, "search_range_start"), _positive(section, "search_range_end")
        if start >= end:
            name = "search_range_start" if section.has("search_range_start") else "search_range_end"
            text = f"the search range {start} to {end} is empty; search_range_start must be below search_range_end"
            section.reject(name, text)
        return IfmrSettings(
            search_range_start=start,
            search_range_end=end,
            search_step=self._search_step(section, start, end),
            max_percentile=_percentile(section, "max_percentile"),
            min_percentile=_percentile(section, "min_percentile"),
            asymmetric=section.optional("asymmetric"),
            dst_type=self._dst_type(section),
        )

    def _search_step(self, section: Section, start: float, end: float) -> float:
        step = _positive(section, "search_step")
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
            self._warn(
                section,
                "search_step",
                f"search_step {step} makes {count} candidates, so the search is slow (default: 61)",
            )
        return step

    def _hfmg(self, section: Section) -> HfmgSettings:
        bins = _one_of(section, "num_of_bins", NUMS_OF_BINS)
        return HfmgSettings(bins, section.optional("asymmetric"), self._dst_type(section))

    def _dst_type(self, section: Section) -> DataType:
        name = (
            section.message.DESCRIPTOR.fields_by_name["dst_type"]
            .enum_type.values_by_number[section.value("dst_type")]
            .name
        )
        if name == "INT8":
            return "INT8"
        self._warn(section, "dst_type", f"dst_type: {name} {NOT_APPLIED}: the data is quantized to INT8")
        return "INT16"

    def _arq(self, section: Section) -> ArqSettings:
        bits = _one_of(section, "quant_bits", WEIGHT_BITS)
        if bits == 4:
            self._warn(section, "quant_bits", f"quant_bits: 4 {NOT_APPLIED}: the weights are quantized to 8 bits")
        return ArqSettings(section.optional("channel_wise"), bits)

    def _read_only_algorithms(self, section: Section) -> None:
        self._weight_only(section)
        if section.has("nuq_quantize"):
            _check_nuq(section.child("nuq_quantize"))
            self._warn(
                section, "nuq_quantize", f"nuq_quantize {NOT_APPLIED}: ARQ with its defaults quantizes the weights"
            )
        if section.has("ada_quantize"):
            _check_ada(section.child("ada_quantize"))
            self._warn(
                section, "ada_quantize", f"ada_quantize {NOT_APPLIED}: ARQ with its defaults quantizes the weights"
            )
        if section.has("dmq_balancer"):
            _within(section.child("dmq_balancer"), "migration_strength", 0.2, 0.8)
            self._warn(section, "dmq_balancer", f"dmq_balancer {NOT_APPLIED}: the data is not balanced")

    def _weight_only(self, section: Section) -> None:
        arq = section.child("arq_quantize")
        asymmetric = section.has("arq_quantize") and arq.value("asymmetric")
        only = section.value("weight_compress_only")
        if asymmetric and not only:
            text = (
                "asymmetric: true is for weights with weight_compress_only: true alone; set that, or asymmetric: false"
            )
            arq.reject("asymmetric", text)
        if only:
            text = (
                f"weight_compress_only: true {NOT_APPLIED}: weights are quantized symmetrically, and the data as well"
            )
            self._warn(section, "weight_compress_only", text)

    def _read_only_members(self) -> None:
        root = self.root
        for name, instead in _READ_ONLY_SWITCHES.items():
            if root.value(name):
                self._warn(root, name, f"{name}: true {NOT_APPLIED}: {instead}")
        if root.value("fakequant_precision_mode"):
            self._warn(
                root,
                "fakequant_precision_mode",
                f"fakequant_precision_mode {NOT_APPLIED}: fake quantization stays in float32",
            )
        if root.has("nuq_config"):
            self._nuq_config(root.child("nuq_config"))
        for name in ("conv_calibration_config", "fc_calibration_config"):
            if root.has(name):
                self._block(root.child(name))
                self._warn(
                    root, name, f"{name} is deprecated and {NOT_APPLIED}: use common_config or override_layer_types"
                )
        for index, section in enumerate(root.children("tensor_quantize")):
            self._tensor_quantize(section, index)

    def _nuq_config(self, section: Section) -> None:
        if not section.has("mapping_file"):
            self.root.reject("nuq_config", "nuq_config without mapping_file; give ATC's JSON of the quantized model")
        if section.has("nuq_quantize"):
            _check_nuq(section.child("nuq_quantize"))
        self._warn(self.root, "nuq_config", f"nuq_config {NOT_APPLIED}: all weights are quantized uniformly")

    def _tensor_quantize(self, section: Section, index: int) -> None:
        for name in ("layer_name", "input_index"):
            if not section.has(name):
                self.root.reject("tensor_quantize", f"tensor_quantize without {name}", index)
        self._part(section, "ifmr_quantize", self._ifmr, {})
        self._part(section, "hfmg_quantize", self._hfmg, {})
        layer, position = section.value("layer_name"), section.value("input_index")
        text = f"tensor_quantize {NOT_APPLIED}: input {position} of '{layer}' stays in float"
        self._warn(self.root, "tensor_quantize", text, index)


_READ_ONLY_SWITCHES: Final = {
    "joint_quant": "the data of each layer gets a scale of its own",
    "weight_offset": "weights are quantized symmetrically, as the NPU needs it",
    "enable_auto_nuq": "all weights are quantized uniformly",
}


def shortest_float(value: float) -> float:
    """Return the float64 that is written like the float32 `value`: 0.7 instead of 0.699999988.

    Example:
        >>> shortest_float(0.699999988079071)
        0.7
    """
    return float(str(np.float32(value)))


def _number(section: Section, name: str) -> float:
    value = float(section.value(name))
    if not math.isfinite(value):
        section.reject(name, f"{name} is {value}; a finite number is expected")
    return shortest_float(value)


def _positive(section: Section, name: str) -> float:
    value = _number(section, name)
    if value <= 0:
        section.reject(name, f"{name} is {value}; a number above 0 is expected")
    return value


def _percentile(section: Section, name: str) -> float:
    value = _number(section, name)
    if not 0.5 < value <= 1:
        section.reject(name, f"{name} is {value}; a number above 0.5 and at most 1 is expected")
    return value


def _within(section: Section, name: str, low: float, high: float) -> float:
    value = _number(section, name)
    if not low <= value <= high:
        section.reject(name, f"{name} is {value}; a number from {low} to {high} is expected")
    return value


def _inside(section: Section, name: str, low: float, high: float) -> None:
    value = _number(section, name)
    if not low < value < high:
        section.reject(name, f"{name} is {value}; a number between {low} and {high} is expected")


def _one_of(section: Section, name: str, allowed: Sequence[int]) -> int:
    value: Any = section.value(name)
    if value not in allowed:
        section.reject(name, f"{name} is {value}; one of {', '.join(map(str, allowed))} is expected")
    return int(value)


def _check_nuq(section: Section) -> None:
    _one_of(section, "num_steps", NUQ_STEPS)
    _one_of(section, "num_of_iteration", range(6))


def _check_ada(section: Section) -> None:
    _inside(section, "reg_param", 0, 1)
    _inside(section, "warm_start", 0, 1)
    start, end = _number(section, "beta_range_start"), _positive(section, "beta_range_end")
    if start <= end:
        section.reject(
            "beta_range_start", f"beta_range_start is {start}; a number above beta_range_end, {end}, is expected"
        )
