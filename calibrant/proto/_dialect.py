"""Whose dialect a simple configuration is written in, told by its type names and fields."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from calibrant.proto._document import START, Section
from calibrant.proto._syntax import Place
from calibrant.proto.op_types import Dialect, dialect_of

_ATC: Final[tuple[Dialect, ...]] = ("atc",)
_NOT_ATC: Final[tuple[Dialect, ...]] = ("onnx", "pytorch")
_FIELDS: Final[Mapping[tuple[str, str], tuple[Dialect, ...]]] = {
    ("AMCTConfig", "version"): _ATC,
    ("AMCTConfig", "enable_auto_nuq"): _ATC,
    ("AMCTConfig", "weight_offset"): _ATC,
    ("AMCTConfig", "conv_calibration_config"): _ATC,
    ("AMCTConfig", "fc_calibration_config"): _ATC,
    ("CalibrationConfig", "weight_compress_only"): _ATC,
    ("ARQuantize", "asymmetric"): _ATC,
    ("AMCTConfig", "batch_num"): _NOT_ATC,
    ("AMCTConfig", "nuq_config"): _NOT_ATC,
    ("AMCTConfig", "fakequant_precision_mode"): _NOT_ATC,
    ("CalibrationConfig", "nuq_quantize"): _NOT_ATC,
    ("CalibrationConfig", "hfmg_quantize"): _NOT_ATC,
    ("CalibrationConfig", "dmq_balancer"): _NOT_ATC,
    ("TensorQuantize", "hfmg_quantize"): _NOT_ATC,
    ("CalibrationConfig", "ada_quantize"): ("pytorch",),
}
_FAMILIES: Final[Mapping[Dialect, str]] = {
    "onnx": "amct_onnx",
    "atc": "ATC, Caffe, TensorFlow",
    "pytorch": "amct_pytorch",
}


class Evidence(NamedTuple):
    """Something that only some dialects have."""

    place: Place
    label: str
    dialects: tuple[Dialect, ...]


class Detected(NamedTuple):
    """A dialect and why.

    Attributes:
        dialect: the dialect.
        place: where the deciding evidence stands.
        reason: the evidence in words.
        doubt: evidence for another dialect in words, else empty.
    """

    dialect: Dialect
    place: Place = START
    reason: str = "nothing says otherwise"
    doubt: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether nobody needs to be told."""
        return self.dialect == "onnx" and not self.doubt

    def note(self, forced: Dialect | None) -> str:
        """Return what to tell the reader."""
        used = forced or self.dialect
        words = f"read as the {used} dialect ({_FAMILIES[used]})"
        if forced is None:
            return f"{words}, told by {self.reason}{self.doubt}; give the dialect to force another"
        told = "" if forced == self.dialect else f", although it looks like {self.dialect}, told by {self.reason}"
        return f"{words}, as asked{told}"


def detect(root: Section) -> Detected:
    """Tell the dialect: a type name that only one dialect has decides, else the fields, else it is ONNX's.

    ONNX's names are understood in every dialect, so a foreign name among them decides.
    """
    types, members = list(_type_evidence(root)), sorted(_field_evidence(root))
    foreign = [one for one in types if one.dialects != ("onnx",)]
    if foreign:
        return _decided(foreign[0].dialects[0], foreign)
    return _decided("onnx", types) if types else _by_fields(members)


def _by_fields(members: Sequence[Evidence]) -> Detected:
    families = {one.dialects for one in members}
    if ("pytorch",) in families:
        return _decided("pytorch", members)
    return _decided("atc" if families == {_ATC} else "onnx", members)


def _decided(dialect: Dialect, evidence: Sequence[Evidence]) -> Detected:
    first = next((one for one in evidence if dialect in one.dialects), None)
    if first is None:
        return Detected(dialect)
    return Detected(dialect, first.place, first.label, _doubt(dialect, evidence))


def _doubt(dialect: Dialect, evidence: Iterable[Evidence]) -> str:
    against = [one for one in evidence if dialect not in one.dialects]
    if not against:
        return ""
    return f", although {against[0].label} belongs to {' and '.join(against[0].dialects)}"


def _type_evidence(root: Section) -> Iterator[Evidence]:
    names = [(name, root.place_of("skip_layer_types", i)) for i, name in enumerate(root.value("skip_layer_types"))]
    overrides = root.children("override_layer_types")
    names.extend((section.value("layer_type"), section.place_of("layer_type")) for section in overrides)
    for name, place in sorted(names, key=lambda one: one[1]):
        if (dialect := dialect_of(name)) is not None:
            yield Evidence(place, f"the type '{name}' of line {place.line}", (dialect,))


def _field_evidence(section: Section) -> Iterator[Evidence]:
    message = section.message.DESCRIPTOR
    for name, field in message.fields_by_name.items():
        if not section.written(name):
            continue
        if (dialects := _FIELDS.get((message.name, name))) is not None:
            place = section.place_of(name)
            yield Evidence(place, f"{name} of line {place.line}", dialects)
        if field.message_type is not None:
            for inner in section.parts(name):
                yield from _field_evidence(inner)
