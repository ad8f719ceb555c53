"""ATC's JSON of a compiled model, from which AMCT takes the layers that may be quantized non-uniformly.

An op stands for one or more nodes of the original model, in ``_datadump_original_op_names``; those that may be quantized
non-uniformly have ``_fe_weight_compress`` true.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from calibrant.errors import ConfigError

_COMPRESSED: Final = "_fe_weight_compress"
_ORIGINALS: Final = "_datadump_original_op_names"


def find_mapping(written: str, source: str | None) -> Path:
    """Return the mapping file that a configuration names: beside the configuration, else in the working folder.

    Args:
        written: the path as the configuration has it.
        source: the configuration's file, or None.

    Raises:
        ConfigError: in neither place; names both.
    """
    beside = Path(source).parent / written if source is not None else Path(written)
    places = list(dict.fromkeys((beside, Path(written))))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        tried = " nor ".join(f"'{place}'" for place in places)
        message = f"mapping_file: {'neither ' if len(places) > 1 else 'no file '}{tried}{' is a file' if len(places) > 1 else ''}"
        raise ConfigError(f"{message}; give ATC's JSON of the quantized model, or leave mapping_file out")  # noqa: EM102
    return found


def read_mapping(path: Path) -> tuple[tuple[str, ...], ...]:
    """Return, for every op that may be quantized non-uniformly, the names of the original nodes it stands for.

    An op that names no originals stands for the node of its own name.

    Raises:
        ConfigError: the file cannot be read, or is no JSON of ATC's.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: the mapping file cannot be read ({error}); ATC's JSON of the quantized model is expected"
        raise ConfigError(message) from error
    try:
        return tuple(_names(op) for op in _ops(content) if _attributes(op).get(_COMPRESSED, {}).get("b") is True)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        message = f"{path}: no mapping file: graph[0].op with name, type and attr is expected (ATC's JSON of the model)"
        raise ConfigError(message) from error


def _ops(content: Any) -> Iterator[Mapping[str, Any]]:
    for graph in content["graph"]:
        yield from graph["op"]


def _attributes(op: Mapping[str, Any]) -> Mapping[str, Any]:
    return {pair["key"]: pair["value"] for pair in op.get("attr", ())}


def _names(op: Mapping[str, Any]) -> tuple[str, ...]:
    originals = _attributes(op).get(_ORIGINALS, {}).get("list", {}).get("s", ())
    return tuple(map(str, originals)) or (str(op["name"]),)
