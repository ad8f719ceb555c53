"""config.json of post-training quantization: from JSON values to `JsonConfig`, every rule of AMCT's checked at its place."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal, cast

from calibrant.errors import nearest
from calibrant.proto._block_reader import MANY_CANDIDATES, MAX_CANDIDATES, NUMS_OF_BINS, NUQ_STEPS, WEIGHT_BITS
from calibrant.proto._json_file_reader import JsonFileReader
from calibrant.proto._json_object import JsonObject
from calibrant.proto._json_text import Value
from calibrant.proto.json_config import (
    COMMON_SUFFIX,
    GLOBAL_KEYS,
    JsonActivation,
    JsonConfig,
    JsonLayer,
    JsonTensor,
    JsonWeight,
    WeightAlgorithm,
)
from calibrant.proto.settings import AdaSettings, IfmrSettings

_LAYER_KEYS: Final = ("quant_enable", "dmq_balancer_param", "activation_quant_params", "weight_quant_params")
_TENSOR_KEYS: Final = ("layer_name", "input_index", "activation_quant_params")
_IFMR_KEYS: Final = ("max_percentile", "min_percentile", "search_range", "search_step")
_HFMG_KEYS: Final = ("num_of_bins",)
_ACTIVATION_KEYS: Final = ("num_bits", *_IFMR_KEYS, "act_algo", "asymmetric", *_HFMG_KEYS)
_ADA_KEYS: Final = ("num_iteration", "reg_param", "beta_range", "warm_start")
_NUQ_KEYS: Final = ("num_steps", "num_of_iteration")
_WEIGHT_KEYS: Final = ("num_bits", *_ADA_KEYS, *_NUQ_KEYS, "channel_wise", "wts_algo")
_KEYS_OF: Final[Mapping[str, Sequence[str]]] = {"ada_quantize": _ADA_KEYS, "nuq_quantize": _NUQ_KEYS}
_DATA_BITS: Final = (4, 8, 16)
_IFMR: Final = IfmrSettings()
_ADA: Final = AdaSettings()
_RETRAIN_KEYS: Final = frozenset(
    {"retrain_enable", "retrain_data_config", "retrain_weight_config", "regular_prune_enable", "regular_prune_config"}
)


def read(text: str, source: str) -> JsonConfig:
    """Read the text of a config.json; see `json_config.parse_json_config`."""
    return _Reader(text, source).config()


class _Reader(JsonFileReader):
    def config(self) -> JsonConfig:
        root = self.root
        version, batch_num = root.integer("version", [1]), self.batch_num()
        mode, tensors = self.precision_mode(), self._tensors()
        skip_fusion_layers = self._skip_fusion_layers()
        layers = {name: self._layer(name) for name in root.members if name not in GLOBAL_KEYS}
        return JsonConfig(
            batch_num=batch_num,
            activation_offset=root.boolean("activation_offset"),
            joint_quant=root.boolean("joint_quant"),
            do_fusion=root.boolean("do_fusion"),
            skip_fusion_layers=skip_fusion_layers,
            layers=layers,
            tensor_quantize=tensors,
            weight_offset=root.boolean("weight_offset"),
            fakequant_precision_mode=mode,
            version=version,
            source=root.source,
            text=self.text,
            notes=tuple(self.notes),
            positions=self.positions,
        )

    # The keys of the whole file.

    def _skip_fusion_layers(self) -> tuple[str, ...] | None:
        name, expected = "skip_fusion_layers", 'a list of layer names such as ["conv1"]'
        elements = self.root.elements(name, expected)
        if elements is None:
            return None
        names: dict[str, None] = {}
        for one in elements:
            if not isinstance(one.content, str):
                self.root.fail(one.place, f"{name} holds {one.kind}; a name in quotes is expected")
            if one.content in names:
                self.root.fail(one.place, f"{name} names '{one.content}' a second time; delete one")
            names[one.content] = None
            self.positions[name, one.content] = f"{self.root.source}:{one.place.line}:{one.place.column}"
        return tuple(names)

    def _tensors(self) -> tuple[JsonTensor, ...] | None:
        name = "tensor_quantize"
        elements = self.root.elements(name, "a list of objects with layer_name and input_index")
        return None if elements is None else tuple(self._tensor(one, index) for index, one in enumerate(elements))

    def _tensor(self, value: Value, index: int) -> JsonTensor:
        name = "tensor_quantize"
        part = JsonObject(value, self.root.source, name, (name, str(index)))
        self.positions.update(part.positions())
        self.positions[part.path] = f"{part.source}:{part.place.line}:{part.place.column}"
        part.check_keys(_TENSOR_KEYS)
        layer, position = part.text("layer_name"), part.count("input_index", 0)
        if layer is None or position is None:
            missing = "layer_name" if layer is None else "input_index"
            part.fail(part.place, f"{missing} is missing; say which input of which node is meant")
        return JsonTensor(layer, position, self._activation(part))

    # One layer.

    def _layer(self, name: str) -> JsonLayer:
        if not self.root.members[name].is_object:
            hint = (
                nearest(name, GLOBAL_KEYS)
                or f"; known are {', '.join(GLOBAL_KEYS)} and the names of layers, each with an object"
            )
            self.root.reject(name, f"unknown key '{name}'{hint}")
        label = f"'{name}'" if name.endswith(COMMON_SUFFIX) else f"layer '{name}'"
        part = JsonObject(self.root.members[name], self.root.source, label, (name,))
        self.positions.update(part.positions())
        self._check_no_retraining(part)
        part.check_keys(_LAYER_KEYS)
        return JsonLayer(part.boolean("quant_enable"), self._activation(part), self._weight(part), self._dmq(part))

    def _check_no_retraining(self, part: JsonObject) -> None:
        for name in part.members:
            if name in _RETRAIN_KEYS:
                part.reject(
                    name, f"{name} belongs to a retrain (QAT) config.json; one of calibration has quant_enable instead"
                )

    def _dmq(self, part: JsonObject) -> float | None:
        name, expected = "dmq_balancer_param", "a number between 0.2 and 0.8"
        value = part.number(name, expected)
        if value is None:
            return None
        if not 0.2 <= value <= 0.8:
            part.expect(name, expected)
        return value

    def _activation(self, layer: JsonObject) -> JsonActivation | None:
        part = self.child(layer, "activation_quant_params", _ACTIVATION_KEYS)
        if part is None:
            return None
        algorithm = cast("Literal['ifmr', 'hfmg'] | None", part.text("act_algo", ("ifmr", "hfmg")))
        self._check_rivals(part, algorithm)
        search_range = _search_range(part)
        return JsonActivation(
            act_algo=algorithm,
            asymmetric=part.boolean("asymmetric"),
            num_bits=self._data_bits(part),
            max_percentile=_percentile(part, "max_percentile"),
            min_percentile=_percentile(part, "min_percentile"),
            search_range=search_range,
            search_step=self._search_step(part, search_range),
            num_of_bins=part.integer("num_of_bins", NUMS_OF_BINS),
        )

    def _data_bits(self, part: JsonObject) -> int | None:
        bits = part.integer("num_bits", _DATA_BITS)
        if bits == 4:
            text = "num_bits: 4 is read but not applied in this version: the data is quantized to INT8"
            self.note(part.spot("num_bits"), f"{part.label}: activation_quant_params: {text}")
        return bits

    def _check_rivals(self, part: JsonObject, algorithm: str | None) -> None:
        """Refuse keys of the other algorithm; where none is named, the keys tell it."""
        ifmr, hfmg = ([name for name in keys if name in part] for keys in (_IFMR_KEYS, _HFMG_KEYS))
        if algorithm == "hfmg" and ifmr:
            part.reject(ifmr[0], f"{ifmr[0]} belongs to ifmr, but act_algo is hfmg; delete it")
        if algorithm == "ifmr" and hfmg:
            part.reject(hfmg[0], f"{hfmg[0]} belongs to hfmg, but act_algo is ifmr; delete it")
        if ifmr and hfmg:
            part.reject(hfmg[0], f"{hfmg[0]} belongs to hfmg and {ifmr[0]} to ifmr; keep those of one algorithm")
        if algorithm is None and hfmg:
            self.note(part.spot(hfmg[0]), f"{part.label}: act_algo is not written; {hfmg[0]} says that hfmg is meant")

    def _search_step(self, part: JsonObject, search_range: tuple[float, float] | None) -> float | None:
        name, expected = "search_step", "a number above 0"
        written = part.number(name, expected)
        if written is not None and written <= 0:
            part.expect(name, expected)
        start, end = search_range or (_IFMR.search_range_start, _IFMR.search_range_end)
        step = _IFMR.search_step if written is None else written
        width = Decimal(repr(end)) - Decimal(repr(start))
        place = name if written is not None else "search_range"
        if Decimal(repr(step)) > width:
            part.reject(place, f"search_step is {step}; at most the width of the range, {width}, is expected")
        candidates = width / Decimal(repr(step)) + 1
        if candidates > MAX_CANDIDATES:
            part.reject(
                place, f"search_step {step} makes {candidates:.3g} candidates; at most {MAX_CANDIDATES} are tried"
            )
        if candidates > MANY_CANDIDATES:
            text = f"search_step {step} makes {int(candidates)} candidates, so the search is slow (default: 61)"
            self.note(part.spot(place), f"{part.label}: {text}")
        return written

    def _weight(self, layer: JsonObject) -> JsonWeight | None:
        part = self.child(layer, "weight_quant_params", _WEIGHT_KEYS)
        if part is None:
            return None
        algorithm = self._weight_algorithm(part)
        return JsonWeight(
            channel_wise=part.boolean("channel_wise"),
            num_bits=part.integer("num_bits", WEIGHT_BITS),
            wts_algo=algorithm,
            num_steps=part.integer("num_steps", NUQ_STEPS),
            num_of_iteration=part.integer("num_of_iteration", range(6)),
            num_iteration=part.count("num_iteration", 0),
            reg_param=part.fraction("reg_param"),
            beta_range=_beta_range(part),
            warm_start=part.fraction("warm_start"),
        )

    def _weight_algorithm(self, part: JsonObject) -> WeightAlgorithm | None:
        algorithm = part.text("wts_algo", ("arq_quantize", "ada_quantize", "nuq_quantize"))
        own = _KEYS_OF.get(algorithm or "arq_quantize", ())
        for name in (*_ADA_KEYS, *_NUQ_KEYS):
            if name in part and name not in own:
                owner = "ada_quantize" if name in _ADA_KEYS else "nuq_quantize"
                text = f"{name} belongs to {owner}, but wts_algo is {algorithm or 'arq_quantize'}; delete it"
                part.reject(name, text)
        return cast("WeightAlgorithm | None", algorithm)


def _percentile(part: JsonObject, name: str) -> float | None:
    expected = "a number above 0.5 and at most 1"
    value = part.number(name, expected)
    return value if value is None or 0.5 < value <= 1 else part.expect(name, expected)


def _search_range(part: JsonObject) -> tuple[float, float] | None:
    name = "search_range"
    found = part.pair(name, "a list of two numbers such as [0.7,1.3]")
    if found is not None and not 0 < found[0] < found[1]:
        part.reject(name, f"{name} is [{found[0]},{found[1]}]; a start above 0 and an end above the start are expected")
    return found


def _beta_range(part: JsonObject) -> tuple[float, float] | None:
    name = "beta_range"
    found = part.pair(name, f"a list of two numbers such as [{_ADA.beta_range_start},{_ADA.beta_range_end}]")
    if found is not None and not 0 < found[1] < found[0]:
        part.reject(name, f"{name} is [{found[0]},{found[1]}]; an end above 0 and a start above the end are expected")
    return found
