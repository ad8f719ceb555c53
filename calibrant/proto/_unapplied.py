"""What this version reads and keeps but does not apply: one row a member, with what happens instead.

A member that becomes applied loses its row here, and nothing else about reading changes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from calibrant.proto._document import Section
from calibrant.proto._syntax import Place

NOT_APPLIED: Final = "is read but not applied in this version"


class _Row(NamedTuple):
    """When a member calls for a note, and the words after the member's name."""

    instead: str
    applies: Callable[[Any], bool] = bool
    shown: str = ""  # the value in the note, where it matters


def _always(_: Any) -> bool:
    return True


_ARQ_INSTEAD: Final = "ARQ with its defaults quantizes the weights"
_INT16: Final = _Row("the data is quantized to INT8", lambda value: value == 2, ": INT16")
_ROWS: Final[Mapping[tuple[str, str], _Row]] = {
    ("AMCTConfig", "joint_quant"): _Row("the data of each layer gets a scale of its own", shown=": true"),
    ("AMCTConfig", "weight_offset"): _Row("weights are quantized symmetrically, as the NPU needs it", shown=": true"),
    ("AMCTConfig", "enable_auto_nuq"): _Row("all weights are quantized uniformly", shown=": true"),
    ("AMCTConfig", "fakequant_precision_mode"): _Row("fake quantization stays in float32"),
    ("AMCTConfig", "nuq_config"): _Row("all weights are quantized uniformly", _always),
    ("AMCTConfig", "tensor_quantize"): _Row("input {0.input_index} of '{0.layer_name}' stays in float", _always),
    ("CalibrationConfig", "nuq_quantize"): _Row(_ARQ_INSTEAD, _always),
    ("CalibrationConfig", "ada_quantize"): _Row(_ARQ_INSTEAD, _always),
    ("CalibrationConfig", "dmq_balancer"): _Row("the data is not balanced", _always),
    ("CalibrationConfig", "weight_compress_only"): _Row(
        "weights are quantized symmetrically, and the data as well", shown=": true"
    ),
    ("ARQuantize", "quant_bits"): _Row("the weights are quantized to 8 bits", lambda value: value == 4, ": 4"),
    ("FMRQuantize", "dst_type"): _INT16,
    ("HFMGQuantize", "dst_type"): _INT16,
}
_DEPRECATED: Final = ("conv_calibration_config", "fc_calibration_config")


def unapplied(section: Section) -> Iterator[tuple[Place, str]]:
    """Yield a note for everything in a section and below it that is kept but not applied."""
    name_of_message = section.message.DESCRIPTOR.name
    for name, field in section.message.DESCRIPTOR.fields_by_name.items():
        if not section.written(name):
            continue
        if name in _DEPRECATED:
            text = f"{name} is deprecated and {NOT_APPLIED}: use common_config or override_layer_types"
            yield section.place_of(name), text
        if (row := _ROWS.get((name_of_message, name))) is not None:
            yield from _notes(section, name, row)
        if field.message_type is not None and name != "tensor_quantize":
            for inner in section.parts(name):
                yield from unapplied(inner)


def _notes(section: Section, name: str, row: _Row) -> Iterator[tuple[Place, str]]:
    value = section.value(name)
    values = value if section.message.DESCRIPTOR.fields_by_name[name].is_repeated else [value]
    for index, one in enumerate(values):
        if row.applies(one):
            place = section.place_of(name, index if len(values) > 1 else -1)
            yield place, f"{name}{row.shown} {NOT_APPLIED}: {row.instead.format(one)}"
