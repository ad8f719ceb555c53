"""What kind of configuration a file is, told by its content."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from calibrant.errors import ConfigError

if TYPE_CHECKING:
    from calibrant.proto._syntax import Field

DocumentKind = Literal["ptq", "retrain", "json", "retrain-json", "compression-optimize-conf"]
_RETRAIN_KEY: Final = re.compile(
    r'"(?:retrain_enable|retrain_data_config|retrain_weight_config|regular_prune_\w+)"\s*:'
)


def detect_document(path: Path | str) -> DocumentKind:
    """Tell what kind of configuration a file is; whether it is a good one is for its reader to say.

    Args:
        path: a file in UTF-8.

    Returns:
        ``ptq`` (simple configuration), ``retrain`` (its sibling for QAT and pruning), ``json`` and ``retrain-json`` (AMCT's
        config.json of either) or ``compression-optimize-conf`` (ATC's file).

    Raises:
        ConfigError: the file cannot be read as text, or is a record.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "quant.cfg")
        ...     _ = path.write_text("retrain_data_quant_config { ulq_quantize { } }")
        ...     detect_document(path)
        'retrain'
    """
    from calibrant.proto import _document  # here, so that protobuf loads only when a file is read

    text, _ = _document.read_text(Path(path), _document.ANY)
    return document_kind(text, str(path))


def document_kind(text: str, source: str = "<text>") -> DocumentKind:
    """Tell what kind of configuration a text is; see `detect_document`.

    Raises:
        ConfigError: it is a record.
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return "retrain-json" if _is_retrain_json(text) else "json"
    return _kind_of_text(text, source)


def _is_retrain_json(text: str) -> bool:
    """Whether a layer speaks of retraining; a text that is no JSON is judged by its keys, and refused by its reader."""
    try:
        layers = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return _RETRAIN_KEY.search(text) is not None
    values = layers.values() if isinstance(layers, dict) else ()
    keys = {key for layer in values if isinstance(layer, dict) for key in layer}
    return any(_RETRAIN_KEY.fullmatch(f'"{key}":') for key in keys)


def _kind_of_text(text: str, source: str) -> DocumentKind:
    from calibrant.proto._document import CONFIGURATION, OPTIMIZE, RECORD, RETRAIN
    from calibrant.proto._syntax import Walk
    from calibrant.proto._tidy import tidy

    names = set(_names(Walk(tidy(text, source).text).fields))
    known = {
        kind.name: set(kind.message.DESCRIPTOR.fields_by_name) for kind in (CONFIGURATION, RETRAIN, OPTIMIZE, RECORD)
    }
    simple = known[CONFIGURATION.name]
    if names & (known[OPTIMIZE.name] - simple):
        return "compression-optimize-conf"
    if names & (known[RETRAIN.name] - simple):
        return "retrain"
    if names & known[RECORD.name]:
        message = f"{source}: a record, not a configuration; give it as a record"
        raise ConfigError(message)
    return "ptq"


def _names(fields: "list[Field]") -> Iterator[str]:
    """Yield the names of the fields at the top and one level below: an override may hold the only telling one."""
    for field in fields:
        yield field.name
        yield from (child.name for child in field.children)
