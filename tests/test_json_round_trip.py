"""Text -> plan -> config.json -> text -> plan: whatever a simple configuration asks for, nothing is lost on the way."""

from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.proto.json_config import format_json_config, parse_json_config
from calibrant.proto.layerwise import layer_key, layerwise_config, simple_config_of
from calibrant.proto.settings import (
    AdaSettings,
    ArqSettings,
    CalibrationBlock,
    DmqSettings,
    HfmgSettings,
    IfmrSettings,
    NuqSettings,
    TensorSettings,
)
from calibrant.proto.simple_config import QuantConfig, canonical_text, parse_simple_config
from calibrant.quantizers.plan import Plan, json_config, resolve_plan
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow


def layer(layer_id: int, name: str, op_type: str, rank: int = 2) -> LayerRow:
    return LayerRow(layer_id, name, op_type, layer_id, "w", "b", 8, 4, 1, rank, None, 10, True, None)


CONVS = ("stem", "层/1", 'odd "name"\\2')
LAYERS = [
    *(layer(position, name, "Conv") for position, name in enumerate(CONVS)),
    layer(3, "volume", "Conv", 3), layer(4, "up", "ConvTranspose"), layer(5, "fc", "Gemm", 0),
    layer(6, "proj", "MatMul", 0), layer(7, "pool", "AveragePool"),
]  # fmt: skip
NODES = {
    "maxpool": ModelNode("MaxPool"),
    "sum": ModelNode("Add", 2),
    **{row.layer: ModelNode(row.op_type) for row in LAYERS},
}


def decimals(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers that float32 holds to the last digit that is written."""
    return st.integers(int(low * 10_000), int(high * 10_000)).map(lambda count: count / 10_000)


flags = st.none() | st.booleans()
widths = st.sampled_from(["INT8", "INT16"])
ifmr = st.builds(
    IfmrSettings, decimals(0.1, 0.8), decimals(1.0, 2.0), decimals(0.01, 0.2), decimals(0.6, 1.0), decimals(0.6, 1.0),
    flags, widths,
)  # fmt: skip
hfmg = st.builds(HfmgSettings, st.sampled_from([1024, 2048, 4096, 8192]), flags, widths)
arq = st.builds(ArqSettings, flags, st.sampled_from([4, 6, 7, 8]))
nuq = st.builds(NuqSettings, num_steps=st.sampled_from([16, 32]), num_of_iteration=st.integers(0, 5))
ada = st.builds(
    AdaSettings, st.integers(0, 20_000), decimals(0.001, 0.9), decimals(10, 30), decimals(1, 9), decimals(0.1, 0.9), flags
)  # fmt: skip
dmq = st.none() | st.builds(DmqSettings, decimals(0.2, 0.8))


@st.composite
def blocks(draw: st.DrawFn) -> CalibrationBlock:
    data, weight = draw(st.none() | ifmr | hfmg), draw(st.none() | arq | nuq | ada)
    return CalibrationBlock(
        ifmr=data if isinstance(data, IfmrSettings) else None,
        hfmg=data if isinstance(data, HfmgSettings) else None,
        arq=weight if isinstance(weight, ArqSettings) else None,
        nuq=weight if isinstance(weight, NuqSettings) else None,
        ada=weight if isinstance(weight, AdaSettings) else None,
        dmq=draw(dmq),
    )


def unequal(names: tuple[str, ...], values: st.SearchStrategy[CalibrationBlock]) -> st.SearchStrategy:
    return st.dictionaries(st.sampled_from(names), values, max_size=2).map(lambda found: tuple(found.items()))


tensors = st.lists(
    st.builds(
        TensorSettings, st.just("maxpool"), st.just(0), st.none() | st.builds(IfmrSettings, asymmetric=flags)
    ) | st.builds(TensorSettings, st.just("sum"), st.integers(0, 1), st.none() | st.builds(HfmgSettings, asymmetric=flags)),
    max_size=2, unique_by=lambda one: (one.layer, one.input_index),
).map(tuple)  # fmt: skip
configs = st.builds(
    QuantConfig,
    batch_num=st.none() | st.integers(1, 100),
    activation_offset=st.booleans(),
    joint_quant=st.booleans(),
    do_fusion=st.booleans(),
    skip_layers=st.lists(st.sampled_from([row.layer for row in LAYERS[:5]]), unique=True, max_size=3).map(tuple),
    skip_layer_types=st.sampled_from([(), ("Gemm",), ("MatMul", "AveragePool")]),
    skip_fusion_layers=st.sampled_from([(), CONVS[:2]]),
    common=st.none() | blocks(),
    override_types=unequal(("Conv",), blocks()),
    override_layers=unequal(CONVS, blocks()),
    fakequant_precision_mode=st.sampled_from([None, "FORCE_FP16_QUANT"]),
    tensor_quantize=tensors,
)


def resolved(config: QuantConfig) -> Plan:
    return resolve_plan(config, LAYERS, other_nodes=NODES)


def values(plan: Plan) -> list[dict[str, object]]:
    """What is decided of each layer and tensor, without the rules and reasons, which tell of another file."""
    told = {"reason"}
    rows = [*plan.rows, *plan.tensors]
    return [
        {
            one.name: getattr(row, one.name)
            for one in fields(row)
            if one.name not in told and not one.name.endswith("decided_by")
        }
        for row in rows
    ]


@settings(deadline=None, max_examples=150)
@given(configs)
def test_text_to_json_to_text_loses_nothing(config: QuantConfig) -> None:
    asked = resolved(parse_simple_config(canonical_text(config), dialect="onnx"))
    text = format_json_config(json_config(config, asked))
    file = layerwise_config(parse_json_config(text, "config.json"))
    of_json = resolved(file)
    assert values(of_json) == values(asked)
    assert format_json_config(json_config(file, of_json)) == text

    keys = {row.layer: layer_key(file.json, row.layer, row.op_type) for row in LAYERS}
    back = parse_simple_config(canonical_text(simple_config_of(file, keys)), dialect="onnx")
    of_text = resolved(back)
    assert values(of_text) == values(asked)
    assert format_json_config(json_config(back, of_text)) == text
