"""Dialects of simple configurations: how one is told, what its type names mean, and that it can be forced."""

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.op_types import DIALECTS, dialect_of, layer_type, tensor_types, unknown_type
from calibrant.proto.simple_config import QuantConfig, parse_simple_config

HFMG = "common_config { hfmg_quantize { } }"
ADA = "common_config { ada_quantize { } }"
DMQ = "common_config { dmq_balancer { } }"
NUQ = "common_config { nuq_quantize { } }"
WEIGHT_ONLY = "common_config { weight_compress_only : false }"


def skip(*names: str) -> str:
    return "\n".join(f'skip_layer_types : "{name}"' for name in names)


def override(name: str) -> str:
    return f'override_layer_types {{ layer_type : "{name}" calibration_config {{ }} }}'


DETECTED = {
    "nothing": ("", "onnx", "nothing says otherwise"),
    "fields of all": ("activation_offset : true joint_quant : false", "onnx", "nothing"),
    **{
        f"ONNX's {name}": (skip(name), "onnx", f"the type '{name}' of line 1")
        for name in ("Conv", "Gemm", "ConvTranspose", "AveragePool")
    },
    **{
        f"IR's {name}": (override(name), "atc", f"the type '{name}' of line 1")
        for name in (
            "Conv2D", "DepthwiseConv2D", "DepthwiseConv2DNative", "DepthwiseConv2dNative", "MatMulV2", "BatchMatMulV2",
            "AvgPoolV2", "AvgPool", "Conv3D", "FullyConnection",
        )
    },
    **{
        f"Caffe's {name}": (skip(name), "atc", f"the type '{name}' of line 1")
        for name in ("Convolution", "InnerProduct", "Deconvolution", "Pooling", "Eltwise")
    },
    **{
        f"PyTorch's {name}": (skip(name), "pytorch", f"the type '{name}' of line 1")
        for name in ("Conv1d", "Conv2d", "Conv3d", "Linear", "ConvTranspose2d", "AvgPool2d", "BatchNorm2d")
    },
    "a name of several": (skip("MatMul"), "onnx", "nothing"),
    "a foreign name among ONNX's": (skip("Conv", "MatMulV2"), "atc", "the type 'MatMulV2' of line 2"),
    "version": ("\nversion : 1", "atc", "version of line 2"),
    "enable_auto_nuq": ("enable_auto_nuq : false", "atc", "enable_auto_nuq of line 1"),
    "weight_offset": ("weight_offset : false", "atc", "weight_offset of line 1"),
    "weight_compress_only": (WEIGHT_ONLY, "atc", "weight_compress_only of line 1"),
    "offset of weights": ("common_config { arq_quantize { asymmetric : false } }", "atc", "asymmetric of line 1"),
    "offset of data": ("common_config { ifmr_quantize { asymmetric : false } }", "onnx", "nothing"),
    "batch_num": ("batch_num : 1", "onnx", "batch_num of line 1"),
    "nuq_config": ('nuq_config { mapping_file : "m.json" }', "onnx", "nuq_config of line 1"),
    "HFMG": (HFMG, "onnx", "hfmg_quantize of line 1"),
    "DMQ": (DMQ, "onnx", "dmq_balancer of line 1"),
    "NUQ": (NUQ, "onnx", "nuq_quantize of line 1"),
    "AdaRound": (ADA, "pytorch", "ada_quantize of line 1"),
    "a type beats a field": ("version : 1\n" + skip("Gemm"), "onnx", "the type 'Gemm' of line 2"),
    "HFMG that lost": ("version : 1 common_config { hfmg_quantize { } ifmr_quantize { } }", "atc", "version of line 1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "dialect", "reason"), DETECTED.values(), ids=DETECTED)
def test_dialect_is_told_by_names_and_fields(text: str, dialect: str, reason: str) -> None:
    config = parse_simple_config(text, "quant.cfg")
    assert config.dialect == dialect
    assert config.dialect_reason.startswith(reason)
    told = [note for note in config.notes if "dialect" in note.message]
    assert [note.severity for note in told] == ([] if dialect == "onnx" else ["info"])
    assert all(f"told by {reason}" in note.message for note in told)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            "version : 1\nbatch_num : 2",
            "2:1",
            "onnx dialect (amct_onnx), told by batch_num of line 2, although version of line 1",
        ),
        (skip("Conv2D", "Linear"), "1:1", "although the type 'Linear' of line 2 belongs to pytorch"),
        (
            "version : 1\n" + ADA,
            "2:17",
            "pytorch dialect (amct_pytorch), told by ada_quantize of line 2, although version",
        ),
    ],
)
def test_contradiction_is_a_warning(text: str, place: str, words: str) -> None:
    warnings = [note.message for note in parse_simple_config(text, "quant.cfg").notes if note.severity == "warn"]
    assert [text for text in warnings if text.startswith(f"quant.cfg:{place}: ") and words in text]


def test_forced_dialect() -> None:
    config = parse_simple_config("version : 1", "quant.cfg", dialect="onnx")
    assert (config.dialect, config.dialect_reason) == ("onnx", "asked for")
    assert [(note.severity, note.message) for note in config.notes] == [
        (
            "warn",
            "quant.cfg:1:1: read as the onnx dialect (amct_onnx), as asked, although it looks like atc, told by version of line 1",
        )
    ]
    assert parse_simple_config("version : 1", dialect="atc").notes[0].severity == "info"


MEANINGS = {
    ("Conv2D", "atc"): ({"Conv"}, {1, 2}),
    ("Conv3D", "atc"): ({"Conv"}, {3}),
    ("Convolution", "atc"): ({"Conv"}, {1, 2, 3}),
    ("Conv2DBackpropInput", "atc"): ({"ConvTranspose"}, {1, 2}),
    ("Deconvolution", "atc"): ({"ConvTranspose"}, {1, 2, 3}),
    ("MatMul", "atc"): ({"Gemm", "MatMul"}, {1, 2, 3}),
    ("MatMul", "onnx"): ({"MatMul"}, {1, 2, 3}),
    ("MatMulV2", "atc"): ({"Gemm", "MatMul"}, {1, 2, 3}),
    ("BatchMatMulV2", "atc"): ({"MatMul"}, {1, 2, 3}),
    ("InnerProduct", "atc"): ({"Gemm", "MatMul"}, {1, 2, 3}),
    ("AvgPoolV2", "atc"): ({"AveragePool"}, {1, 2, 3}),
    ("Pooling", "atc"): ({"AveragePool"}, {1, 2, 3}),
    ("Linear", "pytorch"): ({"Gemm", "MatMul"}, {1, 2, 3}),
    ("Conv2d", "pytorch"): ({"Conv"}, {2}),
    ("ConvTranspose3d", "pytorch"): ({"ConvTranspose"}, {3}),
    **{(name, dialect): ({name}, {1, 2, 3}) for name in ("Conv", "Gemm", "AveragePool") for dialect in DIALECTS},
}


@pytest.mark.parametrize(("name", "dialect"), MEANINGS)
def test_type_names_mean_onnx_types(name: str, dialect: str) -> None:
    types, ranks = MEANINGS[name, dialect]
    found = next(layer_type(name, one) for one in DIALECTS if one == dialect)
    assert found is not None
    assert set(found.onnx) == types
    assert {rank for rank in (1, 2, 3) if found.matches(found.onnx[0], rank, depthwise=True)} == ranks
    assert not found.matches("Softmax", 2)


def test_depthwise_names_mean_depthwise_layers_alone() -> None:
    for name in ("DepthwiseConv2D", "DepthwiseConv2dNative", "DepthwiseConv2DNative"):
        found = layer_type(name, "atc")
        assert found is not None
        assert found.matches("Conv", 2, depthwise=True)
        assert not found.matches("Conv", 2, depthwise=False)
        assert not found.matches("Conv", 3, depthwise=True)


def test_inputs_that_may_be_quantized_alone() -> None:
    assert tensor_types("onnx") == {"MaxPool", "Add"}
    assert tensor_types("atc") == {"MaxPool", "Add", "Sum", "Mul", "Max"}


def test_unknown_type_has_place_and_nearest_name() -> None:
    config = parse_simple_config(
        'version : 1\noverride_layer_types { layer_type : "MatMulV3" calibration_config { } }', "quant.cfg"
    )
    with pytest.raises(
        ConfigError, match=r"^quant\.cfg:2:24: override_layer_types: 'MatMulV3' .* did you mean 'MatMulV2'\?"
    ):
        config.check_types()
    with pytest.raises(
        ConfigError, match=r"^quant\.cfg: skip_layer_types: 'Softmax' is no layer type of the atc dialect; its types"
    ):
        config.type_of("skip_layer_types", "Softmax")


def test_type_of_another_dialect_says_whose_it_is() -> None:
    config = parse_simple_config(skip("Conv2d"), "quant.cfg", dialect="onnx")
    with pytest.raises(ConfigError, match="'Conv2d' is no layer type of the onnx dialect, but one of pytorch"):
        config.check_types()
    assert "but one of atc" in unknown_type("Pooling", "pytorch")


def test_name_as_written_and_its_meaning_are_both_there() -> None:
    config = parse_simple_config(skip("Conv2D") + override("MatMulV2"))
    config.check_types()
    assert config.skip_layer_types == ("Conv2D",)
    assert config.type_of("skip_layer_types", "Conv2D").onnx == ("Conv",)
    assert config.override_types[0][0] == "MatMulV2"


def test_configuration_built_in_python_is_onnx() -> None:
    assert QuantConfig().dialect == "onnx"
    assert dialect_of("Softmax") is None
