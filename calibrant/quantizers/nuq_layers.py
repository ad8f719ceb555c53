"""Which layers ``nuq_config`` means: those of its mapping file, or all that fit NUQ's limits."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from calibrant.errors import ConfigError
from calibrant.proto.nuq_mapping import find_mapping, read_mapping
from calibrant.proto.settings import NuqSettings
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_limits import kind, takes_nuq
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

_FIELD = "nuq_config"


def nuq_layers(
    config: QuantConfig,
    layers: Sequence[LayerRow],
    nodes: Mapping[str, ModelNode],
    known: Collection[str] | None = None,
) -> tuple[frozenset[str], list[Event]]:
    """Return the names of the layers that ``nuq_config`` means, and what a person should know about them.

    Args:
        config: what the user asked for.
        layers: the model's layers.
        nodes: the model's nodes, which tell of dilations.
        known: the layers of an earlier resolution; None: the mapping file is read.

    Raises:
        ConfigError: the mapping file is missing or none; says ``file:line:column``.
    """
    if config.nuq is None:
        return frozenset(), []
    able = {row.layer for row in layers if row.quantizable and takes_nuq(row, dilated=_is_dilated(row, nodes))}
    if known is not None:
        return frozenset(known) & able, []
    if config.nuq.mapping_file is None:
        return frozenset(able), list(_unmapped(config))
    meant = list(dict.fromkeys(_mapped(config, config.nuq, {row.layer for row in layers})))
    return frozenset(meant) & able, list(_remarks(config, [row for row in layers if row.layer in meant], able))


def _mapped(config: QuantConfig, nuq: NuqSettings, layers: Collection[str]) -> Iterator[str]:
    """Yield the layers that the mapping file marks: of each op the first original node that is a layer."""
    where = config.where(_FIELD)
    try:
        ops = read_mapping(find_mapping(nuq.mapping_file or "", config.source))
    except ConfigError as error:
        message = f"{where}: {_FIELD}: {error}"
        raise ConfigError(message) from error
    for names in ops:
        yield from [name for name in names if name in layers][:1]


def _unmapped(config: QuantConfig) -> Iterator[Event]:
    if not config.text:  # the reader of a text has said it
        text = f"{config.where(_FIELD)}: {_FIELD} has no mapping_file: every layer within NUQ's limits is meant"
        yield Event("fit", "warn", text)


def _remarks(config: QuantConfig, meant: Sequence[LayerRow], able: Collection[str]) -> Iterator[Event]:
    where = config.where(_FIELD)
    if not meant:
        text = (
            f"{where}: {_FIELD}: the mapping file marks no layer of this model for compression; is it of another model?"
        )
        yield Event("fit", "warn", text)
    for row in meant:
        if row.layer not in able:
            text = f"{where}: {_FIELD}: the mapping file names '{row.layer}', but NUQ is not for this {kind(row)}: ARQ"
            yield Event("fit", "warn", text, row.layer)


def _is_dilated(row: LayerRow, nodes: Mapping[str, ModelNode]) -> bool:
    return row.layer in nodes and nodes[row.layer].dilated
