"""`calibrant qat advise`: AMCT's tuning path for quantization-aware training, from a calibration run, as a table and an edited file."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from calibrant.errors import ConfigError
from calibrant.proto.any_config import ConfigFile, parse_config, read_config
from calibrant.proto.retrain_config import RetrainConfig, canonical_retrain_text, parse_retrain_config
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json
from calibrant.proto.simple_config import QuantConfig
from calibrant.qat_facts import run_facts
from calibrant.quantizers.retrain_advice import Advice, advise
from calibrant.quantizers.retrain_edits import edited_config, edited_json, edits_of
from calibrant.stats.events import Event
from calibrant.stats.run import Run, open_run
from calibrant.stats.tables import LayerRow

if TYPE_CHECKING:
    from calibrant.stats.model_nodes import ModelNode

PathLike = str | os.PathLike[str]
_SCHEMA: Final = pl.Schema(
    {
        "topic": pl.String(), "severity": pl.String(), "layer": pl.String(), "key": pl.String(), "value": pl.String(),
        "proposed": pl.String(), "edited": pl.Boolean(), "evidence": pl.String(),
    }
)  # fmt: skip


@dataclass(frozen=True)
class QatAdvice:
    """Advice on a configuration of retraining.

    Attributes:
        table: one row a finding (docs/qat_advise.md).
        text: the edited configuration, of the kind of the given one.
        events: what a person should know besides.
        output: where the text was written, or None.
    """

    table: pl.DataFrame
    text: str = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    output: Path | None = None


def advise_qat(
    config: PathLike,
    run: "PathLike | Run",
    *,
    fit: str = "default",
    batch_size: int | None = None,
    disable: int = 1,
    output: PathLike | None = None,
) -> QatAdvice:
    """Hold a configuration of retraining against a run of the same model, and propose what AMCT's guide would try next.

    Args:
        config: a retrain config.json, or a simple retrain configuration.
        run: a run of the float model. Its layers may be named as in the ONNX file, or as PyTorch's modules are in the configuration.
        fit: the fit whose sensitivities rank the layers.
        batch_size: samples of a training batch; None: the run's.
        disable: how many of the worst layers are proposed to stay in float.
        output: where to write the edited configuration; None: nowhere.

    Raises:
        ConfigError: the file is no configuration of retraining, cannot be read, or has a layer twice and is to be edited.
        RunError: no run.

    Example:
        >>> advice = advise_qat("config.json", "model.run", output="next.json")  # doctest: +SKIP
        >>> advice.table.filter(severity="warn")  # doctest: +SKIP
    """
    from calibrant.config_files import check_apart
    from calibrant.proto._files import write_text

    _check_numbers(batch_size, disable)
    check_apart(config=Path(config), output=None if output is None else Path(output))
    opened, given = open_run(run), _read(Path(config))
    found = run_facts(opened, fit, given.names)
    resolved, strangers = given.resolved(found.rows, found.nodes)
    rows = advise(
        resolved, found.facts, batch_size=batch_size or max(1, opened.info.batch_size), samples=opened.info.samples, disable=disable,
        twice=given.twice, strangers=strangers,
    )  # fmt: skip
    if output is not None and given.twice:
        message = f"{config}: layer '{given.twice[0]}' is there more than once; delete all but one, then an edited file can be written"
        raise ConfigError(message)
    text = given.edited(rows, resolved)
    if output is not None:
        write_text(Path(output), text)
    return QatAdvice(_frame(rows), text, (*given.events, *found.events), None if output is None else Path(output))


def _check_numbers(batch_size: int | None, disable: int) -> None:
    for name, value, least in (("batch_size", batch_size, 1), ("disable", disable, 0)):
        if value is not None and value < least:
            message = f"{name} is {value}; at least {least} is expected"
            raise ConfigError(message)


def _frame(rows: Sequence[Advice]) -> pl.DataFrame:
    cells = [
        (
            row.topic,
            row.severity,
            row.layer,
            row.key,
            _shown(row.value),
            row.proposed,
            row.edit is not None,
            row.evidence,
        )
        for row in rows
    ]
    return pl.DataFrame(cells, schema=_SCHEMA, orient="row")


def _shown(value: object) -> str | None:
    return None if value is None else json.dumps(value)


# The configuration.


@dataclass(frozen=True)
class _Given:
    """The configuration as it was given, and what it names."""

    config: RetrainJson | RetrainConfig
    twice: tuple[str, ...]
    events: tuple[Event, ...]

    @property
    def names(self) -> tuple[str, ...]:
        config = self.config
        if isinstance(config, RetrainJson):
            return tuple(config.layers)
        skipped = (*config.skip_layers, *config.quant_skip_layers, *config.regular_prune_skip_layers)
        return (*skipped, *(name for name, _ in config.override_layers))

    def resolved(
        self, rows: Sequence[LayerRow], nodes: "Mapping[str, ModelNode]"
    ) -> tuple[RetrainJson, tuple[str, ...]]:
        """Return what the configuration says of each layer, and the names in a simple one that are of no layer to train."""
        if isinstance(self.config, RetrainJson):
            return self.config, ()
        from calibrant.quantizers.retrain_layers import retrain_layers

        trainable = {row.layer for row in rows if row.quantizable}
        strangers = tuple(dict.fromkeys(name for name in self.names if name not in trainable))
        return retrain_layers(_without(self.config, strangers), rows, nodes).json, strangers

    def edited(self, rows: Sequence[Advice], resolved: RetrainJson) -> str:
        edits = edits_of(rows)
        if isinstance(self.config, RetrainJson):
            return format_retrain_json(edited_json(self.config, edits))
        return canonical_retrain_text(edited_config(self.config, edits, resolved))


def _without(config: RetrainConfig, names: Collection[str]) -> RetrainConfig:
    """Return a configuration that does not mention these layers."""
    return replace(
        config,
        skip_layers=tuple(name for name in config.skip_layers if name not in names),
        quant_skip_layers=tuple(name for name in config.quant_skip_layers if name not in names),
        regular_prune_skip_layers=tuple(name for name in config.regular_prune_skip_layers if name not in names),
        override_layers=tuple((name, block) for name, block in config.override_layers if name not in names),
    )


def _read(path: Path) -> _Given:
    from calibrant.config_conversion import note_events

    twice, text = _without_repetitions(path)
    file = read_config(path) if text is None else parse_config(text, str(path))
    settings = _retraining(file)
    if twice and isinstance(settings, RetrainJson):
        settings = replace(settings, positions={})  # those of the text that was read are not those of the file
    unclear = f"{path}: nothing in it tells calibration from retraining; read as a configuration of retraining"
    events = [Event("fit", "info", unclear if isinstance(file.config, QuantConfig) else file.note)]
    events += note_events(settings.notes)
    comments = len(re.findall(r"^\s*#", settings.text, re.MULTILINE)) if isinstance(settings, RetrainConfig) else 0
    if comments:
        text = f"{path}: its lines of comment ({comments}) are not in the edited file; the settings are"
        events.append(Event("fit", "warn", text))
    return _Given(settings, twice, tuple(events))


def _retraining(file: ConfigFile) -> RetrainJson | RetrainConfig:
    """Return the configuration; a text that would do for calibration too, such as a bare batch_num, is one of retraining here."""
    if isinstance(file.config, RetrainJson | RetrainConfig):
        return file.config
    message = f"{file.note}; a configuration of retraining is expected"
    if not isinstance(file.config, QuantConfig):
        raise ConfigError(message)
    try:
        return parse_retrain_config(file.config.text, file.config.source or "<text>")
    except ConfigError as error:
        raise ConfigError(message) from error


def _without_repetitions(path: Path) -> tuple[tuple[str, ...], str | None]:
    """Return the layers that a JSON file has more than once, and the file with the first of each; nothing where all is well."""
    try:
        pairs = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=list)
    except (OSError, ValueError):
        return (), None  # the reader says what is wrong
    if not isinstance(pairs, list) or not all(isinstance(one, tuple) for one in pairs):
        return (), None
    names = [name for name, _ in pairs]
    twice = tuple(dict.fromkeys(name for name in names if names.count(name) > 1))
    first = {name: _plain(value) for name, value in reversed(pairs)}
    return (twice, json.dumps(dict(reversed(first.items())))) if twice else ((), None)


def _plain(value: Any) -> Any:
    """Turn lists of pairs back into objects; a key that one of them has twice stays for the reader to refuse."""
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        return {key: _plain(inner) for key, inner in value}
    return value


__all__ = ["QatAdvice", "advise_qat"]
