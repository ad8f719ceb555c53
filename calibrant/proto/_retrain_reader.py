"""Retrain configuration: from the merged message to `RetrainConfig`, with every value checked, notes and places."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, NoReturn, cast

from calibrant.errors import ConfigError
from calibrant.proto._document import RETRAIN, START, Section, located, read_section, repetitions
from calibrant.proto._numbers import inside, number
from calibrant.proto.op_types import Dialect, dialect_of
from calibrant.proto.retrain_config import (
    ArqRetrainSettings,
    AutoPruneSettings,
    FilterPruneSettings,
    NamedRetrainBlock,
    PruneSettings,
    RetrainBlock,
    RetrainConfig,
    RetrainType,
    SelectivePruneSettings,
    UlqRetrainSettings,
    UlqSettings,
    WeightRetrainSettings,
)
from calibrant.proto.simple_config import ConfigNote, PrecisionMode

if TYPE_CHECKING:
    from calibrant.proto._syntax import Field, Place

Severity = Literal["warn", "info"]
_TYPE_FIELDS: Final = ("skip_layer_types", "quant_skip_types", "regular_prune_skip_types")
_AUTO_PRUNE: Final = ("compress_ratio", "ascend_optimized", "max_prune_ratio", "test_iteration")
_PAIRS: Final = (("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4"))  # data, weight
_NOT_APPLIED: Final = "is read but not applied in this version"
_NO_PRUNING: Final = f"{_NOT_APPLIED}: nothing is pruned"


def read(text: str, source: str, *, dialect: Dialect | None = None, byte_order_mark: bool = False) -> RetrainConfig:
    """Read the text of a retrain configuration; see `retrain_config.parse_retrain_config`."""
    root, oddities = read_section(text, RETRAIN, source, byte_order_mark=byte_order_mark)
    reader = _Reader(root)
    for place, words in oddities:
        reader.notes.append((place, "warn", words))
    return reader.config(text, dialect)


class _Reader:
    """Reads one configuration and gathers notes and positions on the way."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.notes: list[tuple[Place, Severity, str]] = []
        self.positions: dict[tuple[str, str], str] = {}

    def config(self, text: str, forced: Dialect | None) -> RetrainConfig:
        root = self.root
        self._check_globals()
        block = self._block(root)
        self.positions.update({(name, ""): place for name, place in block.places.items()})
        if block.data or block.weight:
            _check_pair(root, block.data or UlqSettings(), block.weight or ArqRetrainSettings())
        self.notes.extend((place, "warn", words) for place, words in repetitions(root))
        return RetrainConfig(
            batch_num=root.optional("batch_num"),
            data=block.data,
            weight=block.weight,
            skip_layers=self._names("skip_layers"),
            skip_layer_types=self._names("skip_layer_types"),
            quant_skip_layers=self._names("quant_skip_layers"),
            quant_skip_types=self._names("quant_skip_types"),
            regular_prune_skip_layers=self._names("regular_prune_skip_layers"),
            regular_prune_skip_types=self._names("regular_prune_skip_types"),
            override_types=self._overrides("override_layer_types", "layer_type"),
            override_layers=self._overrides("override_layer_configs", "layer_name"),
            prune=block.prune,
            auto_prune=self._auto_prune(),
            fakequant_precision_mode=self._precision_mode(),
            version=root.optional("version"),
            dialect=self._dialect(forced),
            source=root.source,
            text=text,
            notes=self._sorted_notes(),
            positions=self.positions,
        )

    def _warn(self, section: Section, name: str, text: str, index: int = -1) -> None:
        self.notes.append((section.place_of(name, index), "warn", text))

    def _check_globals(self) -> None:
        root = self.root
        if root.value("batch_num") == 0:
            root.reject("batch_num", "batch_num is 0; at least 1 is expected")
        if root.value("version") != 1:
            root.reject("version", f"version is {root.value('version')}; 1 is the only version there is")

    def _precision_mode(self) -> PrecisionMode | None:
        name = "fakequant_precision_mode"
        if not self.root.has(name):
            return None
        if self.root.value(name):
            self._warn(self.root, name, f"{name} {_NOT_APPLIED}: fake quantization stays in float32")
        return cast("PrecisionMode", self.root.enum_name(name))

    def _names(self, field: str) -> tuple[str, ...]:
        for index, name in enumerate(self.root.value(field)):
            if (field, name) in self.positions:
                first = self.positions[field, name]
                self._warn(self.root, field, f"{field} names '{name}' a second time (first at {first})", index)
            else:
                self.positions[field, name] = self.root.spot(field, index)
        return tuple(dict.fromkeys(self.root.value(field)))

    def _overrides(self, field: str, key: str) -> tuple[NamedRetrainBlock, ...]:
        found = []
        for index, section in enumerate(self.root.children(field)):
            if not section.has(key):
                self.root.reject(field, f"{field} without {key}; say which one is meant", index)
            name = section.value(key)
            if (field, name) in self.positions:
                first = self.positions[field, name]
                section.reject(key, f"{field} names '{name}' a second time (first at {first}); delete one")
            self.positions[field, name] = section.spot(key)
            block = self._block(section)
            if block.data and block.weight:
                _check_pair(section, block.data, block.weight)
            found.append((name, block))
        return tuple(found)

    def _block(self, section: Section) -> RetrainBlock:
        """Read the three blocks that the root and every override may have."""
        members = ("retrain_data_quant_config", "retrain_weight_quant_config", "prune_config")
        written = (field for field in section.fields if field.name in members)
        places = {name: located(section.source, place, "")[:-2] for field in written for name, place in _below(field)}
        return RetrainBlock(self._data(section), self._weight(section), self._prune(section), places)

    def _data(self, section: Section) -> UlqSettings | None:
        inner = _algorithm(section, "retrain_data_quant_config", "ulq_quantize")
        if inner is None:
            return None
        clip_max, clip_min = _clip_ends(inner.child("clip_max_min")) if inner.has("clip_max_min") else (None, None)
        return UlqSettings(clip_max, clip_min, inner.optional("fixed_min"), self._dst_type(inner))

    def _weight(self, section: Section) -> WeightRetrainSettings | None:
        outer = "retrain_weight_quant_config"
        if (inner := _algorithm(section, outer, "arq_retrain")) is not None:
            return ArqRetrainSettings(inner.optional("channel_wise"), self._dst_type(inner))
        if (inner := _algorithm(section, outer, "ulq_retrain")) is not None:
            return UlqRetrainSettings(inner.optional("channel_wise"), self._dst_type(inner))
        return None

    def _dst_type(self, section: Section) -> RetrainType:
        name = cast("RetrainType", section.enum_name("dst_type"))
        if name != "INT8":
            self._warn(
                section, "dst_type", f"dst_type: {name} is accepted, but AMCT's manual supports INT8 alone today"
            )
        return name

    def _prune(self, section: Section) -> PruneSettings | None:
        if not section.has("prune_config"):
            return None
        self._warn(section, "prune_config", f"prune_config {_NO_PRUNING}")
        config = section.child("prune_config")
        if (inner := _algorithm(config, "filter_pruner", "balanced_l2_norm_filter_prune")) is not None:
            if not inner.has("prune_ratio"):
                _reject(inner, "balanced_l2_norm_filter_prune without prune_ratio; give the share to leave out")
            return FilterPruneSettings(inside(inner, "prune_ratio", 0, 1), inner.value("ascend_optimized"))
        if (inner := _algorithm(config, "n_out_of_m_pruner", "l1_selective_prune")) is not None:
            return SelectivePruneSettings(update_freq=inner.value("update_freq"))
        self._warn(section, "prune_config", "prune_config names no algorithm (filter_pruner or n_out_of_m_pruner)")
        return None

    def _auto_prune(self) -> AutoPruneSettings | None:
        root = self.root
        written = [name for name in _AUTO_PRUNE if root.has(name)]
        if not written:
            return None
        self._warn(root, written[0], f"{written[0]} (automatic pruning) {_NO_PRUNING}")
        return AutoPruneSettings(
            compress_ratio=number(root, "compress_ratio") if root.has("compress_ratio") else None,
            ascend_optimized=root.optional("ascend_optimized"),
            max_prune_ratio=inside(root, "max_prune_ratio", 0, 1) if root.has("max_prune_ratio") else None,
            test_iteration=root.optional("test_iteration"),
        )

    def _dialect(self, forced: Dialect | None) -> Dialect:
        """Return whose type names these are: those of PyTorch unless a name says otherwise."""
        names = [
            (name, self.root.place_of(field, i))
            for field in _TYPE_FIELDS
            for i, name in enumerate(self.root.value(field))
        ]
        overrides = self.root.children("override_layer_types")
        names.extend((section.value("layer_type"), section.place_of("layer_type")) for section in overrides)
        foreign = [(place, name, dialect_of(name)) for name, place in names if dialect_of(name) not in (None, "onnx")]
        place, name, detected = min(foreign, default=(START, "", None))
        used = forced or detected or "pytorch"
        if forced is not None:
            self.notes.append((place, "info", f"read as the {used} dialect, as asked"))
        elif used != "pytorch":
            words = f"read as the {used} dialect, told by the type '{name}'; give the dialect to force another"
            self.notes.append((place, "info", words))
        return used

    def _sorted_notes(self) -> tuple[ConfigNote, ...]:
        source = self.root.source
        return tuple(ConfigNote(severity, located(source, place, text)) for place, severity, text in sorted(self.notes))


def _algorithm(section: Section, outer: str, inner: str) -> Section | None:
    """Return the block of an algorithm inside another block, None where it was not given."""
    if not section.has(outer) or not section.child(outer).has(inner):
        return None
    return section.child(outer).child(inner)


def _below(field: "Field", prefix: str = "") -> Iterator[tuple[str, "Place"]]:
    """Yield the dotted name and place of a field and of everything in it."""
    name = f"{prefix}{field.name}"
    yield name, field.place
    for child in field.children:
        yield from _below(child, f"{name}.")


def _clip_ends(section: Section) -> tuple[float, float]:
    for name in ("clip_max", "clip_min"):
        if not section.has(name):
            _reject(section, f"clip_max_min without {name}; both ends are given together or not at all")
    clip_max, clip_min = number(section, "clip_max"), number(section, "clip_min")
    if clip_max <= 0:
        section.reject("clip_max", f"clip_max is {clip_max}; a number above 0 is expected")
    if clip_min >= 0:
        section.reject("clip_min", f"clip_min is {clip_min}; a number below 0 is expected")
    return clip_max, clip_min


def _check_pair(section: Section, data: UlqSettings, weight: WeightRetrainSettings) -> None:
    if (data.dst_type, weight.dst_type) in _PAIRS:
        return
    known = ", ".join(f"{one} with {other}" for one, other in _PAIRS)
    name = "retrain_weight_quant_config" if section.has("retrain_weight_quant_config") else "retrain_data_quant_config"
    text = f"data of {data.dst_type} with weights of {weight.dst_type} is impossible; possible are {known}"
    section.reject(name, text)


def _reject(section: Section, text: str) -> NoReturn:
    raise ConfigError(located(section.source, section.place, text))
