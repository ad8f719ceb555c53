"""Retrain config.json: from JSON values to `RetrainJson`, every rule of AMCT's checked at its place."""

from typing import Final, Literal, cast

from calibrant.errors import nearest
from calibrant.proto._json_file_reader import JsonFileReader
from calibrant.proto._json_object import JsonObject
from calibrant.proto.retrain_config import RetrainType
from calibrant.proto.retrain_json import (
    RETRAIN_KEYS,
    PruneType,
    RetrainJson,
    RetrainJsonData,
    RetrainJsonLayer,
    RetrainJsonPrune,
    RetrainJsonWeight,
    WeightAlgorithm,
)

_LAYER_KEYS: Final = (
    "retrain_enable", "retrain_data_config", "retrain_weight_config", "regular_prune_enable", "regular_prune_config",
)  # fmt: skip
_DATA_KEYS: Final = ("algo", "clip_max", "clip_min", "fixed_min", "dst_type")
_WEIGHT_KEYS: Final = ("algo", "channel_wise", "dst_type")
_PRUNE_KEYS: Final = ("prune_type", "algo", "prune_ratio", "ascend_optimized", "n_out_of_m_type", "update_freq")
_TYPES: Final = ("INT4", "INT8", "INT16")
_PAIRS: Final = frozenset({("INT8", "INT8"), ("INT4", "INT4"), ("INT16", "INT8"), ("INT8", "INT4")})
_PRUNE_ALGORITHMS: Final = {
    "filter_prune": ("balanced_l2_norm_filter_prune", ("prune_ratio", "ascend_optimized")),
    "selective_prune": ("l1_selective_prune", ("n_out_of_m_type", "update_freq")),
}
_CALIBRATION_KEYS: Final = frozenset(
    {"quant_enable", "activation_quant_params", "weight_quant_params", "dmq_balancer_param"}
)


def read(text: str, source: str) -> RetrainJson:
    """Read the text of a retrain config.json; see `retrain_json.parse_retrain_json`."""
    return _Reader(text, source).config()


class _Reader(JsonFileReader):
    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self.pruned: list[str] = []

    def config(self) -> RetrainJson:
        root = self.root
        version, batch_num = root.integer("version", [1]), self.batch_num()
        mode = self.precision_mode()
        layers = {name: self._layer(name) for name in root.members if name not in RETRAIN_KEYS}
        if not any(layer.retrain_enable or layer.regular_prune_enable for layer in layers.values()):
            root.fail(root.place, "no layer has retrain_enable: true; enable at least one")
        if self.pruned:
            count = f"{len(self.pruned)} layer{'s' if len(self.pruned) > 1 else ''}"
            self.note(self.pruned[0], f"regular_prune_config of {count} is read and kept, but calibrant prunes nothing")
        return RetrainJson(
            batch_num=batch_num,
            layers=layers,
            fakequant_precision_mode=mode,
            version=version,
            source=root.source,
            text=self.text,
            notes=tuple(self.notes),
            positions=self.positions,
        )

    def _layer(self, name: str) -> RetrainJsonLayer:
        if not self.root.members[name].is_object:
            hint = nearest(name, RETRAIN_KEYS) or f"; known are {', '.join(RETRAIN_KEYS)} and the names of layers"
            self.root.reject(name, f"unknown key '{name}'{hint}")
        part = JsonObject(self.root.members[name], self.root.source, f"layer '{name}'", (name,))
        self.positions.update(part.positions())
        for key in part.members:
            if key in _CALIBRATION_KEYS:
                part.reject(
                    key, f"{key} belongs to a config.json of calibration; a retrain one has retrain_enable instead"
                )
        part.check_keys(_LAYER_KEYS)
        data, weight = self._data(part), self._weight(part)
        self._check_pair(part, data, weight)
        return RetrainJsonLayer(
            part.boolean("retrain_enable"), data, weight, part.boolean("regular_prune_enable"), self._prune(part)
        )

    def _data(self, layer: JsonObject) -> RetrainJsonData | None:
        part = self.child(layer, "retrain_data_config", _DATA_KEYS)
        if part is None:
            return None
        self._check_clips(part)
        return RetrainJsonData(
            algo=cast("Literal['ulq_quantize'] | None", part.text("algo", ("ulq_quantize",))),
            clip_max=_signed(part, "clip_max", 1),
            clip_min=_signed(part, "clip_min", -1),
            fixed_min=part.boolean("fixed_min"),
            dst_type=_dst_type(part, _TYPES),
        )

    def _check_clips(self, part: JsonObject) -> None:
        given = [name for name in ("clip_max", "clip_min") if name in part]
        if len(given) == 1:
            other = "clip_min" if given == ["clip_max"] else "clip_max"
            part.reject(given[0], f"{given[0]} without {other}; write both or neither")

    def _weight(self, layer: JsonObject) -> RetrainJsonWeight | None:
        part = self.child(layer, "retrain_weight_config", _WEIGHT_KEYS)
        if part is None:
            return None
        algorithm = part.text("algo", ("arq_retrain", "ulq_retrain"))
        return RetrainJsonWeight(
            algo=cast("WeightAlgorithm | None", algorithm),
            channel_wise=part.boolean("channel_wise"),
            dst_type=_dst_type(part, _TYPES[:2]),
        )

    def _check_pair(self, part: JsonObject, data: RetrainJsonData | None, weight: RetrainJsonWeight | None) -> None:
        asked = tuple("INT8" if one is None or one.dst_type is None else one.dst_type for one in (data, weight))
        if asked not in _PAIRS:
            allowed = ", ".join("/".join(pair) for pair in sorted(_PAIRS))
            part.fail(part.place, f"data is {asked[0]} and weights are {asked[1]}; one of {allowed} is expected")

    def _prune(self, layer: JsonObject) -> RetrainJsonPrune | None:
        part = self.child(layer, "regular_prune_config", _PRUNE_KEYS)
        if part is None:
            return None
        kind = part.text("prune_type", tuple(_PRUNE_ALGORITHMS))
        if kind is None:
            part.fail(part.place, f"prune_type is missing; {' or '.join(_PRUNE_ALGORITHMS)} is expected")
        algorithm, own = _PRUNE_ALGORITHMS[kind]
        part.check_keys(("prune_type", "algo", *own))
        if kind == "filter_prune" and "prune_ratio" not in part:
            part.fail(part.place, "prune_ratio is missing; give the share of filters to leave out, between 0 and 1")
        if layer.boolean("regular_prune_enable"):
            self.pruned.append(layer.spot("regular_prune_config"))
        return RetrainJsonPrune(
            prune_type=cast("PruneType", kind),
            algo=part.text("algo", (algorithm,)),
            prune_ratio=part.fraction("prune_ratio"),
            ascend_optimized=part.boolean("ascend_optimized"),
            n_out_of_m_type=cast("Literal['M4N2'] | None", part.text("n_out_of_m_type", ("M4N2",))),
            update_freq=part.count("update_freq", 0),
        )


def _signed(part: JsonObject, name: str, sign: int) -> float | None:
    expected = f"a number {'above' if sign > 0 else 'below'} 0"
    value = part.number(name, expected)
    return value if value is None or value * sign > 0 else part.expect(name, expected)


def _dst_type(part: JsonObject, allowed: tuple[str, ...]) -> RetrainType | None:
    return cast("RetrainType | None", part.text("dst_type", allowed))
