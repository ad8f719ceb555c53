"""One warning a feature that was asked for and is not applied in this version, however many layers ask for it."""

from collections.abc import Iterator, Sequence

from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.not_applied import FEATURES, OF_MODEL, WORDS
from calibrant.stats.events import Event

_SHOWN = 3


class UnappliedEvents:
    """Gathers which layers ask for which feature.

    Args:
        config: what the user asked for.
    """

    def __init__(self, config: QuantConfig) -> None:
        self._config = config
        self._asked: dict[str, list[tuple[str, str]]] = {}

    def ask(self, feature: str, layer: str, where: str) -> None:
        """Note that a layer asks for a feature, and where the configuration says so."""
        self._asked.setdefault(feature, []).append((layer, where))

    def events(self) -> Iterator[Event]:
        """Yield the warnings: settings of the model, of layers."""
        for field, words in OF_MODEL.items():
            if getattr(self._config, field) not in (None, False, "DEFAULT"):
                yield _warning(f"{self._config.where(field)}: {words.format(WORDS)}")
        for feature in FEATURES:
            if (asked := self._asked.get(feature)) is not None:
                names = [f"'{layer}'" for layer, _ in asked]
                yield _warning(
                    f"{asked[0][1]}: {feature} {WORDS}: {FEATURES[feature].instead} ({_listed(names, 'layer')})"
                )


def _warning(message: str) -> Event:
    return Event("fit", "warn", message)


def _listed(names: Sequence[str], noun: str) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}: {', '.join(names[:_SHOWN])}{more}"
