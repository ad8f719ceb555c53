"""`calibrant qat advise`: AMCT's tuning path for quantization-aware training, from a calibration run, as a table and an edited file."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from calibrant.errors import ConfigError
from calibrant.proto.any_config import ConfigFile, parse_config, read_config
from calibrant.proto.retrain_config import RetrainConfig, canonical_retrain_text, parse_retrain_config
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.retrain_advice import Advice, LayerFacts, advise
from calibrant.quantizers.retrain_edits import edited_config, edited_json, edits_of
from calibrant.stats.events import Event
from calibrant.stats.run import Run, open_run
from calibrant.stats.tables import LayerRow, layer_rows

if TYPE_CHECKING:
    from calibrant.ingest.layers import Layer
    from calibrant.ingest.model import PreparedModel
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
    found = _facts(opened, fit, given.names)
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
        return (*config.skip_layers, *config.quant_skip_layers, *(name for name, _ in config.override_layers))

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


# The run.


class _Found(NamedTuple):
    """What a run knows, in the names of the configuration."""

    facts: list[LayerFacts]
    rows: list[LayerRow]
    nodes: "dict[str, ModelNode]"
    events: list[Event]


def _facts(run: Run, fit: str, names: Sequence[str]) -> _Found:
    from calibrant.ingest.model import load_prepared
    from calibrant.ingest.nodes import model_nodes

    prepared = load_prepared(run.model_folder)
    rows = layer_rows(run.read("layers"))
    called, events = _called(rows, names)
    ranks, more = _ranks(run, fit)
    extremes, spreads = _extremes(run)
    nodes, weights = model_nodes(prepared.model.graph), _Weights(prepared)
    facts = [
        LayerFacts(
            layer=called[row.layer], op_type=row.op_type, reason=row.reason if not row.quantizable else None,
            low=extremes.get(row.tensor_id, (None, None))[0], high=extremes.get(row.tensor_id, (None, None))[1],
            producer=nodes[row.layer].producer, spread=spreads.get(row.tensor_id),
            **ranks.get(row.layer, {}), **weights.of(row.layer, called),
        )
        for row in rows
    ]  # fmt: skip
    renamed = {called.get(name, name): node for name, node in nodes.items()}
    return _Found(facts, [replace(row, layer=called[row.layer]) for row in rows], renamed, [*events, *more])


def _called(rows: Sequence[LayerRow], names: Sequence[str]) -> tuple[dict[str, str], list[Event]]:
    """Return what a configuration calls each layer: its node name, or PyTorch's module name where the file uses those."""
    own = {row.layer for row in rows}
    strangers = [name for name in names if name not in own]
    modules: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for name in {module_of(row.layer), _module_of_weight(row.weight)} - {None}:
            modules[str(name)].append(row.layer)
    found = {modules[name][0]: name for name in strangers if len(modules.get(name, ())) == 1}
    events = []
    if found:
        layer, name = next(iter(found.items()))
        text = f"{len(found)} layers are matched by the names of their PyTorch modules (first '{name}': '{layer}')"
        events.append(Event("fit", "info", text))
    return {row.layer: found.get(row.layer, row.layer) for row in rows}, events


def module_of(node: str) -> str | None:
    """Return the PyTorch module that an exporter named a node after, or None.

    Example:
        >>> module_of("/layer1/layer1.0/conv1/Conv"), module_of("Conv_0")
        ('layer1.0.conv1', None)
    """
    parts = node.strip("/").split("/")[:-1]
    if not node.startswith("/") or not parts:
        return None
    name = last = parts[0]
    for part in parts[1:]:
        name = f"{name.removesuffix(last)}{part}" if part.startswith(f"{last}.") else f"{name}.{part}"
        last = part
    return name


def _module_of_weight(weight: str | None) -> str | None:
    return weight.removesuffix(".weight") if weight is not None and weight.endswith(".weight") else None


def _ranks(run: Run, fit: str) -> tuple[dict[str, dict[str, Any]], list[Event]]:
    """Return the place of each layer by what was measured; without measurements, by the statistics of the fit."""
    from calibrant.sensitivity import RANKING_METRIC, best_view, measurements, sensitivity, worst_first

    if fit not in run.info.fits:
        text = f"{run.path}: no fit '{fit}', so that layers are not ranked; run calibrant fit"
        return {}, [Event("fit", "warn", text)]
    if measurements(run, fit).is_empty():
        sensitivity(run, fit=fit, views=["statistics"])
    rows = measurements(run, fit)
    view = best_view(rows)
    ranked = worst_first(rows.filter(view=view), RANKING_METRIC)
    found = {
        row["layer"]: {"rank": place + 1, "measured": f"{row['value']:.1f} dB SQNR in view {view}"}
        for place, row in enumerate(ranked.iter_rows(named=True))
    }
    hint = (
        []
        if view != "statistics"
        else [Event("fit", "info", f"ranked by statistics alone; calibrant sensitivity {run.path} measures")]
    )
    return found, hint


def _extremes(run: Run) -> tuple[dict[int | None, tuple[float, float]], dict[int | None, float]]:
    """Return least and greatest value of each tensor, and how much the extremes of its samples spread."""
    tensors = run.read("tensors").filter(pl.col("min").is_not_null())
    ends = {row["tensor_id"]: (row["min"], row["max"]) for row in tensors.iter_rows(named=True)}
    reach = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()).cast(pl.Float64)
    by_tensor = run.read("samples").with_columns(reach=reach).group_by("tensor_id")
    spread = by_tensor.agg(mean=pl.col("reach").mean(), std=pl.col("reach").std(ddof=1))
    known = spread.filter(pl.col("std").is_finite() & (pl.col("mean") > 0))
    return ends, {row["tensor_id"]: row["std"] / row["mean"] for row in known.iter_rows(named=True)}


class _Weights:
    """SQNR of each weight both ways, and which layers have the same one."""

    def __init__(self, prepared: "PreparedModel") -> None:
        from calibrant.ingest.model import initializer_value

        self._quality: dict[str, tuple[float, float]] = {}
        same: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for layer in prepared.layers:
            if layer.quantizable and layer.weight is not None:
                weight = initializer_value(prepared, layer.weight)
                self._quality[layer.name] = _both_ways(layer, weight)
                same[layer.op_type, weight.shape, hashlib.sha256(weight.tobytes()).digest()].append(layer.name)
        self._same = {name: [one for one in group if one != name] for group in same.values() for name in group}

    def of(self, layer: str, called: Mapping[str, str]) -> dict[str, Any]:
        if layer not in self._quality:
            return {}
        by_channel, by_tensor = self._quality[layer]
        reused = tuple(called[one] for one in self._same[layer])
        return {"by_channel_db": by_channel, "by_tensor_db": by_tensor, "reused": reused}


def _both_ways(layer: "Layer", weight: Any) -> tuple[float, float]:
    """Return the SQNR of a weight with one scale an output channel, and with one in all."""
    from calibrant.quantizers import ArqOptions, fit_arq
    from calibrant.quantizers.quality import weight_quality
    from calibrant.stats.weights import channels_first

    rows = channels_first(weight, layer.op_type, layer.groups)
    signal = float((rows.astype(np.float64) ** 2).sum())
    noise = [
        float(weight_quality(rows, fit_arq(rows, ArqOptions(channel_wise=wise))).mse.mean()) * rows.size
        for wise in (True, False)
    ]
    first, second = (float("inf") if one == 0 else 10 * float(np.log10(signal / one)) for one in noise)
    return first, second


__all__ = ["QatAdvice", "advise_qat", "module_of"]
