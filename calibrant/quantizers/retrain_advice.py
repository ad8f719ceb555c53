"""The tuning path of AMCT's guide to quantization-aware training (its section 10), step by step, as rows with evidence.

Nothing is trained and nothing is run: a configuration of retraining is held against what a calibration run has observed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Final, Literal

from calibrant.errors import nearest
from calibrant.proto.retrain_json import RETRAIN_KEYS, RetrainJson, RetrainJsonData, RetrainJsonLayer

Topic = Literal["keys", "samples", "sensitivity", "clips", "fixed_min", "channel_wise"]
Severity = Literal["info", "warn", "error"]
Value = bool | int | float

IMAGES: Final = 50  # the guide's: no more images than that are needed for the first clip ends
LEAST, GREATEST = 0.3, 1.7  # the guide's: where clip ends should lie, by the observed extreme
_SPREAD: Final = 0.05  # relative standard error of an extreme that more samples should bring it down to
_GAIN_DB: Final = 3.0  # half a bit; less is not worth a change


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a run knows of a layer.

    Attributes:
        layer: its name in the configuration.
        op_type: of the node.
        reason: why it cannot be quantized, or None.
        low: least value of its data; None where nothing was captured.
        high: greatest value of its data.
        producer: operator that makes its data; "" for an input of the model.
        by_channel_db: SQNR of its weight with one scale an output channel; None without weight.
        by_tensor_db: SQNR of its weight with one scale.
        reused: the other layers with the same weight, which a shared module has.
        rank: place in the order of sensitivity, 1 the worst; None where it is not known.
        measured: how the place was found, in words.
        spread: standard deviation of the extremes of its samples by their mean; None where unknown.
    """

    layer: str
    op_type: str
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    producer: str = ""
    by_channel_db: float | None = None
    by_tensor_db: float | None = None
    reused: tuple[str, ...] = ()
    rank: int | None = None
    measured: str = ""
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One row: what is configured, what is proposed, and why.

    Attributes:
        topic: which step of the guide.
        severity: ``error`` (AMCT refuses it), ``warn`` (it may cost accuracy), ``info``.
        layer: the layer; None for the whole file.
        key: which key.
        value: what is configured; None: not written.
        proposed: what to write or within which interval; None: nothing to do.
        evidence: what speaks for it.
        edit: the value that the edited file gets; None where it is left alone.
    """

    topic: Topic
    severity: Severity
    layer: str | None
    key: str
    value: Value | None
    proposed: str | None
    evidence: str
    edit: Value | None = None


def advise(
    config: RetrainJson,
    facts: Sequence[LayerFacts],
    *,
    batch_size: int,
    samples: int,
    disable: int = 1,
    twice: Sequence[str] = (),
    strangers: Sequence[str] = (),
) -> list[Advice]:
    """Walk the guide's path over a configuration.

    Args:
        config: the configuration; layers named as in `facts`.
        facts: what is known of each layer of the model, in its order.
        batch_size: samples of a batch in the training that the configuration is for.
        samples: samples of the run.
        disable: how many of the worst enabled layers are proposed to stay in float.
        twice: names that the file has more than once.
        strangers: names in it that `config` leaves out, since they are of no layer that can be trained.

    Example:
        >>> from calibrant.proto.retrain_json import parse_retrain_json
        >>> config = parse_retrain_json('{"fc":{"retrain_enable":true,"retrain_data_config":{"fixed_min":true}}}')
        >>> rows = advise(config, [LayerFacts("fc", "Gemm", low=-1.0, high=2.0, producer="Add")], batch_size=8, samples=16)
        >>> [(row.key, row.proposed) for row in rows if row.topic == "fixed_min"]
        [('fixed_min', 'false')]
    """
    by_name = {one.layer: one for one in facts}
    known = [(by_name[name], layer) for name, layer in config.layers.items() if name in by_name]
    rows = [
        *_repeated(twice),
        *_strange(strangers, by_name),
        *_keys(config, by_name),
        *_samples(config, facts, batch_size, samples),
    ]
    off = {row.layer for row in rows if row.key == "retrain_enable" and row.edit is False}
    rows += _sensitivity(known, disable, off)
    for one, layer in known:
        rows += _of_layer(one, layer)
    return rows


def _of_layer(one: LayerFacts, layer: RetrainJsonLayer) -> list[Advice]:
    """Advise on one layer; what is not trained is told, but left as it is: an override would have it trained again."""
    rows = [*_clips(one, layer), *_fixed_min(one, layer), *_channel_wise(one, layer)]
    if layer.retrain_enable:
        return rows
    return [
        replace(row, severity="info", edit=None, evidence=f"{row.evidence}; the layer is not trained") for row in rows
    ]


# Step 5 of the guide, first here: names.


def _repeated(twice: Sequence[str]) -> Iterator[Advice]:
    for name in twice:
        text = "the file has it more than once, which AMCT refuses"
        yield Advice("keys", "error", name, name, None, "delete all but one", text)


def _strange(strangers: Sequence[str], facts: Mapping[str, LayerFacts]) -> Iterator[Advice]:
    for name in strangers:
        one = facts.get(name)
        if one is None:
            yield _unknown(name, facts, "no layer of the model has this name")
        else:
            yield Advice("keys", "error", name, name, None, "delete it", f"it cannot be quantized: {one.reason}")


def _unknown(name: str, facts: Mapping[str, LayerFacts], text: str) -> Advice:
    hint = nearest(name, [*facts, *RETRAIN_KEYS]).removeprefix("; ") or "delete it"
    return Advice("keys", "error", name, name, None, hint, text)


def _keys(config: RetrainJson, facts: Mapping[str, LayerFacts]) -> Iterator[Advice]:
    for name, layer in config.layers.items():
        one = facts.get(name)
        if one is None:
            yield _unknown(name, facts, f"{config.where(name)}: no layer of the model has this name")
        elif layer.retrain_enable and one.reason is not None:
            text = f"it cannot be quantized: {one.reason}"
            yield Advice("keys", "error", name, "retrain_enable", True, "false", text, False)
        elif one.reused:
            yield _reused(one, layer)
    for one in facts.values():
        if one.reason is None and one.layer not in config.layers and not one.reused:
            text = "the file does not name it, so that it is not trained"
            yield Advice("keys", "info", one.layer, one.layer, None, None, text)


def _reused(one: LayerFacts, layer: RetrainJsonLayer) -> Advice:
    text = f"it has the weight of {', '.join(one.reused[:3])}: AMCT does not quantize reused layers and leaves them out"
    proposed, edit = ("false", False) if layer.retrain_enable else (None, None)
    return Advice("keys", "warn", one.layer, "retrain_enable", layer.retrain_enable, proposed, text, edit)


# Step 1: how much data.


def _samples(config: RetrainJson, facts: Sequence[LayerFacts], batch_size: int, samples: int) -> Iterator[Advice]:
    now = config.batch_num or 1
    most = max(1, IMAGES // batch_size)
    spreads = sorted((one.spread, one.layer) for one in facts if one.spread is not None)
    spread, where = spreads[-1] if spreads else (0.0, "")
    needed = max(1, min(most, ceil((spread / _SPREAD) ** 2 / batch_size)))
    told = f"{now} x {batch_size} = {now * batch_size} samples, the guide advises no more than {IMAGES}"
    if where:
        middle = spreads[len(spreads) // 2][0]
        told += f"; over {samples} samples the extremes spread by {middle:.0%} in the middle layer and {spread:.0%} in '{where}'"
    proposed = most if now > most else needed if needed > now else None
    severity: Severity = "info" if proposed is None else "warn"
    if proposed is not None and proposed > now:
        told += f", which {proposed * batch_size} samples bring to {spread / (proposed * batch_size) ** 0.5:.0%} in the mean"
    yield Advice(
        "samples",
        severity,
        None,
        "batch_num",
        config.batch_num,
        None if proposed is None else str(proposed),
        told,
        proposed,
    )


# Step 2: sensitive layers.


def _sensitivity(
    known: Sequence[tuple[LayerFacts, RetrainJsonLayer]], disable: int, off: set[str | None]
) -> Iterator[Advice]:
    enabled = [one for one, layer in known if layer.retrain_enable and one.layer not in off]
    ranked = sorted((one for one in enabled if one.rank is not None), key=lambda one: one.rank or 0)
    count = min(disable, len(enabled) - 1)  # one layer has to stay enabled
    for place, one in enumerate(ranked):
        chosen = place < count
        yield Advice(
            "sensitivity", "warn" if chosen else "info", one.layer, "retrain_enable", True, "false" if chosen else None,
            f"place {one.rank} of sensitivity: {one.measured}", False if chosen else None,
        )  # fmt: skip


# Step 3: clip ends and the fixed lower end.


def _clips(one: LayerFacts, layer: RetrainJsonLayer) -> Iterator[Advice]:
    data = layer.data or RetrainJsonData()
    for key, value, extreme in (("clip_max", data.clip_max, one.high), ("clip_min", data.clip_min, one.low)):
        if extreme is None:
            continue
        sign = 1 if key == "clip_max" else -1
        if extreme * sign <= 0:
            side = "positive" if sign > 0 else "negative"
            text = (
                f"its data reaches from {one.low:.6g} to {one.high:.6g}: no {side} value, so that no interval follows"
            )
            yield Advice("clips", "info" if value is None else "warn", one.layer, key, value, None, text)
            continue
        low, high = sorted((LEAST * extreme, GREATEST * extreme))
        text = f"its data reaches from {one.low:.6g} to {one.high:.6g}; {LEAST} to {GREATEST} times that is advised"
        inside = value is None or low <= value <= high
        edit = None if value is None or inside else _nearest_inside(value, low, high)
        yield Advice(
            "clips", "info" if inside else "warn", one.layer, key, value, f"{low:.6g} to {high:.6g}", text, edit
        )


def _nearest_inside(value: float, low: float, high: float) -> float:
    """Return the end of an interval that is nearer to a value, in five digits, so that float32 does not put it outside."""
    end = low if value < low else high
    step = 10.0 ** (floor(log10(abs(end))) - 4)
    return float(f"{(ceil(end / step) if end == low else floor(end / step)) * step:.5g}")


def _fixed_min(one: LayerFacts, layer: RetrainJsonLayer) -> Iterator[Advice]:
    data = layer.data or RetrainJsonData()
    right = one.producer == "Relu"
    made = f"{one.producer or 'an input of the model'} makes its data"
    if data.clip_min is not None and (right if data.fixed_min is None else data.fixed_min):
        text = "fixed_min is true, so that clip_min is ignored"
        yield Advice("fixed_min", "warn", one.layer, "clip_min", data.clip_min, None, text)
    wrong = data.fixed_min is not None and data.fixed_min != right
    text = f"{made}: {'true' if right else 'false'} is right"
    if data.fixed_min is None:
        text += ", and what AMCT takes where nothing is written"
    severity: Severity = "warn" if wrong else "info"
    proposed = ("true" if right else "false") if wrong else None
    yield Advice(
        "fixed_min", severity, one.layer, "fixed_min", data.fixed_min, proposed, text, right if wrong else None
    )


# Step 4: scales of the weight.


def _channel_wise(one: LayerFacts, layer: RetrainJsonLayer) -> Iterator[Advice]:
    if one.by_channel_db is None or one.by_tensor_db is None:
        return
    possible = one.op_type in ("Conv", "ConvTranspose")
    value = None if layer.weight is None else layer.weight.channel_wise
    gain = one.by_channel_db - one.by_tensor_db if one.by_channel_db != one.by_tensor_db else 0.0
    text = f"SQNR of its weight: {one.by_channel_db:.1f} dB with one scale an output channel, {one.by_tensor_db:.1f} dB with one in all"
    if not possible:
        edit = False if value else None
        text += f"; AMCT has one a {one.op_type}"
        yield Advice(
            "channel_wise",
            "error" if value else "info",
            one.layer,
            "channel_wise",
            value,
            "false" if value else None,
            text,
            edit,
        )
        return
    chosen = not value and value is not None and gain >= _GAIN_DB
    severity: Severity = "warn" if chosen else "info"
    yield Advice(
        "channel_wise", severity, one.layer, "channel_wise", value, "true" if chosen else None, text, chosen or None
    )
