"""``compression_optimize_conf``: from text to `CompressionOptimizeConf`."""

import re
from typing import Final

from calibrant.proto._canonical import quoted
from calibrant.proto._document import OPTIMIZE, Section, located, read_section, repetitions
from calibrant.proto.optimize_conf import CompressionOptimizeConf
from calibrant.proto.simple_config import ConfigNote

_TEXTS: Final = ("input_data_dir", "input_shape", "config_file", "infer_soc", "log", "infer_ip")
_BARE: Final = re.compile(
    rf"^(?P<head>[ \t]*(?:{'|'.join(_TEXTS)})[ \t]*:[ \t]*)(?P<value>[^\s\"'\u201c\u2018{{#][^\s\"'{{}}#]*)(?=[ \t\r]*(?:#.*)?$)",
    re.MULTILINE,
)


def read(text: str, source: str, *, byte_order_mark: bool = False) -> CompressionOptimizeConf:
    """Read the text of a ``compression_optimize_conf``; see `optimize_conf.parse_optimize_conf`."""
    plain = _BARE.sub(lambda found: found["head"] + quoted(found["value"]), text)  # ATC takes bare paths as well
    root, oddities = read_section(plain, OPTIMIZE, source, byte_order_mark=byte_order_mark)
    if not root.has("calibration"):
        root.reject("calibration", "no calibration block; write calibration { input_data_dir: … config_file: … }")
    section = root.child("calibration")
    warnings = sorted([*oddities, *repetitions(root)])
    return CompressionOptimizeConf(
        input_data=_list(section.optional("input_data_dir"), ","),
        input_shapes=_shapes(section),
        config_file=section.optional("config_file"),
        infer_soc=section.optional("infer_soc"),
        log=section.optional("log"),
        enable_first_layer_quantization=root.optional("enable_first_layer_quantization"),
        source=source,
        text=text,
        notes=tuple(ConfigNote("warn", located(source, place, words)) for place, words in warnings),
        positions={one.name: part.spot(one.name) for part in (root, section) for one in part.fields},
    )


def _list(text: str | None, separator: str) -> tuple[str, ...]:
    parts = (part.strip() for part in (text or "").split(separator))
    return tuple(part for part in parts if part)


def _shapes(section: Section) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found: dict[str, tuple[int, ...]] = {}
    for part in _list(section.optional("input_shape"), ";"):
        name, _, dimensions = part.rpartition(":")
        sizes = tuple(size.strip() for size in dimensions.split(","))
        if not name.strip() or not all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes):
            text = f"input_shape: '{part}' is no shape; name:size,size,… is expected, several with ; between them"
            section.reject("input_shape", text)
        if name.strip() in found:
            section.reject("input_shape", f"input_shape names '{name.strip()}' a second time; delete one")
        found[name.strip()] = tuple(map(int, sizes))
    return tuple(found.items())
