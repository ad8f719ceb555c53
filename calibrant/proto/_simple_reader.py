"""Simple configuration: from the merged message to `QuantConfig`, with notes and the place of every name."""

from typing import TYPE_CHECKING, Final, Literal, cast

from calibrant.proto._block_reader import BlockReader, nuq_settings
from calibrant.proto._dialect import Detected, detect
from calibrant.proto._document import CONFIGURATION, Section, located, read_section, repetitions
from calibrant.proto.settings import CalibrationBlock, NamedBlock, NuqSettings, TensorSettings
from calibrant.proto.simple_config import ConfigNote, Dialect, PrecisionMode, QuantConfig

if TYPE_CHECKING:
    from calibrant.proto._syntax import Place

Severity = Literal["warn", "info"]
_SINGULAR: Final = (
    "batch_num", "activation_offset", "joint_quant", "do_fusion", "version", "enable_auto_nuq", "weight_offset",
    "fakequant_precision_mode", "nuq_config", "common_config", "conv_calibration_config", "fc_calibration_config",
    "calibrant_matmul_per_channel",
)  # fmt: skip


def read(text: str, source: str, *, dialect: Dialect | None = None, byte_order_mark: bool = False) -> QuantConfig:
    """Read the text of a simple configuration; see `simple_config.parse_simple_config`."""
    root, oddities = read_section(text, CONFIGURATION, source, byte_order_mark=byte_order_mark)
    reader = _Reader(root)
    reader.warnings.extend(oddities)
    return reader.config(text, dialect)


class _Reader:
    """Reads one configuration and gathers notes and positions on the way."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.blocks = BlockReader()
        self.warnings: list[tuple[Place, str]] = self.blocks.warnings
        self.positions: dict[tuple[str, str], str] = {}

    def config(self, text: str, forced: Dialect | None) -> QuantConfig:
        root = self.root
        detected = detect(root)
        self._check_globals()
        skip_layers, skip_types, skip_fusion = map(
            self._names, ("skip_layers", "skip_layer_types", "skip_fusion_layers")
        )
        types = self._overrides("override_layer_types", "layer_type")
        layers = self._overrides("override_layer_configs", "layer_name")
        common, conv, fc = map(self._block, ("common_config", "conv_calibration_config", "fc_calibration_config"))
        nuq, tensors = self._nuq(), self._tensors()
        self.warnings.extend(repetitions(root))
        return QuantConfig(
            batch_num=root.optional("batch_num"),
            activation_offset=root.value("activation_offset"),
            joint_quant=root.value("joint_quant"),
            do_fusion=root.value("do_fusion"),
            skip_layers=skip_layers,
            skip_layer_types=skip_types,
            skip_fusion_layers=skip_fusion,
            common=common,
            override_types=types,
            override_layers=layers,
            dialect=forced or detected.dialect,
            dialect_reason="asked for" if forced else detected.reason,
            version=root.optional("version"),
            enable_auto_nuq=root.optional("enable_auto_nuq"),
            calibrant_matmul_per_channel=root.optional("calibrant_matmul_per_channel"),
            weight_offset=root.optional("weight_offset"),
            fakequant_precision_mode=self._precision_mode(),
            nuq=nuq,
            tensor_quantize=tensors,
            conv_calibration=conv,
            fc_calibration=fc,
            source=root.source,
            text=text,
            notes=self._notes(detected, forced),
            positions=self.positions,
        )

    def _mark(self, section: Section, field: str, name: str = "", index: int = -1) -> None:
        self.positions[field, name] = section.spot(field, index)

    def _check_globals(self) -> None:
        root = self.root
        for name in _SINGULAR:
            if root.has(name):
                self._mark(root, name)
        if root.value("batch_num") == 0:
            root.reject("batch_num", "batch_num is 0; at least 1 is expected (leave it out to use all data)")
        if root.value("version") != 1:
            root.reject("version", f"version is {root.value('version')}; 1 is the only version there is")

    def _precision_mode(self) -> PrecisionMode | None:
        name = "fakequant_precision_mode"
        return cast("PrecisionMode", self.root.enum_name(name)) if self.root.has(name) else None

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

    def _block(self, name: str) -> CalibrationBlock | None:
        return self.blocks.block(self.root.child(name)) if self.root.has(name) else None

    def _overrides(self, field: str, key: str) -> tuple[NamedBlock, ...]:
        found = []
        for index, section in enumerate(self.root.children(field)):
            if not section.has(key):
                self.root.reject(field, f"{field} without {key}; say which one is meant", index)
            name = section.value(key)
            self._once(self.root, field, name, index)
            self.positions[field, name] = section.spot(key)  # the name itself rather than the opening brace
            if not section.has("calibration_config"):
                text = f"{field} for '{name}' has no calibration_config: the defaults apply to it, not common_config"
                self.blocks.warn(self.root, field, text, index)
            found.append((name, self.blocks.block(section.child("calibration_config"))))
        return tuple(found)

    def _nuq(self) -> NuqSettings | None:
        if not self.root.has("nuq_config"):
            return None
        section = self.root.child("nuq_config")
        if not section.has("mapping_file"):
            text = "nuq_config has no mapping_file (ATC's JSON of the quantized model): every layer within its limits is meant"
            self.blocks.warn(self.root, "nuq_config", text)
        steps = nuq_settings(section.child("nuq_quantize"))
        return NuqSettings(section.optional("mapping_file"), steps.num_steps, steps.num_of_iteration)

    def _tensors(self) -> tuple[TensorSettings, ...]:
        return tuple(self._tensor(one, index) for index, one in enumerate(self.root.children("tensor_quantize")))

    def _tensor(self, section: Section, index: int) -> TensorSettings:
        for name in ("layer_name", "input_index"):
            if not section.has(name):
                self.root.reject("tensor_quantize", f"tensor_quantize without {name}", index)
        place = self.root.spot("tensor_quantize", index)
        layer, position = section.value("layer_name"), section.value("input_index")
        return TensorSettings(layer, position, self.blocks.data(section), place)

    def _notes(self, detected: Detected, forced: Dialect | None) -> tuple[ConfigNote, ...]:
        """Return the notes in file order."""
        found: list[tuple[Place, Severity, str]] = [(place, "warn", text) for place, text in self.warnings]
        if forced is not None or not detected.is_plain:
            doubtful = bool(detected.doubt) if forced is None else forced != detected.dialect
            found.append((detected.place, "warn" if doubtful else "info", detected.note(forced)))
        source = self.root.source
        return tuple(ConfigNote(severity, located(source, place, text)) for place, severity, text in sorted(found))
