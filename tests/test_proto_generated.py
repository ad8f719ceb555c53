"""The committed protobuf code is what protoc makes of the committed schemas, and does not meet an installed AMCT's."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

import calibrant
from calibrant.proto import calibration_config_pb2, optimize_conf_pb2, record_pb2, retrain_config_pb2

ROOT = Path(calibrant.__file__).parents[1]
FOLDER = Path(calibrant.__file__).parent / "proto"
COMPILER = "1.74."  # of grpcio-tools; its protoc writes code for protobuf 6.31.1 and newer
SCHEMAS = ("calibration_config", "retrain_config", "optimize_conf", "record")
PACKAGES = ("config", "retrain", "optimize", "record")
has_compiler = pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools, which brings protoc, is not installed"
)


def compile_schemas(folder: Path) -> Path:
    sources = [f"calibrant/proto/{name}.proto" for name in SCHEMAS]
    outputs = [f"--python_out={folder}", f"--pyi_out={folder}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs, *sources], check=True, cwd=ROOT)
    return folder / "calibrant" / "proto"


@has_compiler
def test_generated_code_is_current(tmp_path: Path) -> None:
    made = compile_schemas(tmp_path)
    for name in (f"{schema}_pb2.py" for schema in SCHEMAS):
        kept = (FOLDER / name).read_text(encoding="utf-8")
        assert without_version((made / name).read_text(encoding="utf-8")) == without_version(kept), (
            f"{name}: run `just proto`"
        )


@has_compiler
def test_generated_types_are_current(tmp_path: Path) -> None:
    installed = importlib.metadata.version("grpcio-tools")
    if not installed.startswith(COMPILER):
        pytest.skip(
            f"grpcio-tools {installed} writes other type stubs than {COMPILER}, which the committed ones come from"
        )
    made = compile_schemas(tmp_path)
    for name in (f"{schema}_pb2.pyi" for schema in SCHEMAS):
        kept = (FOLDER / name).read_text(encoding="utf-8")
        assert (made / name).read_text(encoding="utf-8") == kept, f"{name}: run `just proto`"


def without_version(code: str) -> str:
    """Leave out which protoc wrote the code, so that a newer one than the committed code's can check it."""
    code = re.sub(r"# Protobuf Python Version: .*", "", code)
    return re.sub(r"(Domain\.PUBLIC,)(\s*\d+,){3}", r"\1", code)


@pytest.mark.parametrize("name", SCHEMAS)
def test_generated_code_asks_for_the_lowest_protobuf_allowed(name: str) -> None:
    assert "# Protobuf Python Version: 6.31.1" in (FOLDER / f"{name}_pb2.py").read_text(encoding="utf-8")


def test_each_schema_has_a_package_and_a_file_name_of_its_own() -> None:
    made = (calibration_config_pb2, retrain_config_pb2, optimize_conf_pb2, record_pb2)
    assert [module.DESCRIPTOR.package for module in made] == [f"calibrant.{package}" for package in PACKAGES]
    assert [module.DESCRIPTOR.name for module in made] == [f"calibrant/proto/{name}.proto" for name in SCHEMAS]


@pytest.mark.parametrize(
    "name",
    ["calibration_config.proto", "calibration_config_onnx.proto", "retrain_config.proto", "record.proto"],
)
def test_an_installed_amct_can_add_its_own_schema(name: str) -> None:
    """AMCT's files have bare names and no package; adding such a file to the pool that holds ours must not clash."""
    foreign = descriptor_pb2.FileDescriptorProto(name=name, package="AMCTTest" + name.split(".")[0], syntax="proto2")
    for message in ("AMCTConfig", "AMCTRetrainConfig", "FMRQuantize", "ScaleOffsetRecord"):
        foreign.message_type.add(name=message).field.add(name="other", number=1, type=9, label=1)
    descriptor_pool.Default().AddSerializedFile(foreign.SerializeToString())


def test_schema_has_every_member_of_the_onnx_reference() -> None:
    members = {
        "AMCTConfig": "batch_num activation_offset skip_layers skip_layer_types nuq_config joint_quant common_config "
        "override_layer_types override_layer_configs do_fusion skip_fusion_layers tensor_quantize fakequant_precision_mode",
        "NuqConfig": "mapping_file nuq_quantize",
        "OverrideLayerType": "layer_type calibration_config",
        "OverrideLayer": "layer_name calibration_config",
        "TensorQuantize": "layer_name input_index ifmr_quantize hfmg_quantize",
        "CalibrationConfig": "arq_quantize nuq_quantize ifmr_quantize hfmg_quantize dmq_balancer",
        "ARQuantize": "channel_wise quant_bits",
        "FMRQuantize": "search_range_start search_range_end search_step max_percentile min_percentile asymmetric",
        "HFMGQuantize": "num_of_bins asymmetric",
        "NUQuantize": "num_steps num_of_iteration",
        "DMQBalancer": "migration_strength",
    }
    messages = calibration_config_pb2.DESCRIPTOR.message_types_by_name
    for message, names in members.items():
        assert set(names.split()) <= set(messages[message].fields_by_name), message


def test_schema_defaults_are_amcts() -> None:
    message = calibration_config_pb2.AMCTConfig()
    ifmr = message.common_config.ifmr_quantize
    read = [ifmr.search_range_start, ifmr.search_range_end, ifmr.search_step, ifmr.max_percentile, ifmr.min_percentile]
    assert read == pytest.approx([0.7, 1.3, 0.01, 0.999999, 0.999999], rel=1e-7)
    assert message.common_config.hfmg_quantize.num_of_bins == 4096
    assert message.common_config.arq_quantize.quant_bits == 8
    assert message.common_config.dmq_balancer.migration_strength == 0.5
    assert (message.batch_num, message.activation_offset, message.joint_quant, message.do_fusion) == (
        1,
        True,
        False,
        True,
    )
    nuq = message.common_config.nuq_quantize
    assert (nuq.num_steps, nuq.num_of_iteration) == (32, 1)


def test_schema_has_every_member_of_the_retrain_reference() -> None:
    members = {
        "AMCTRetrainConfig": "batch_num retrain_data_quant_config retrain_weight_quant_config skip_layers skip_layer_types "
        "override_layer_configs override_layer_types prune_config regular_prune_skip_layers regular_prune_skip_types "
        "quant_skip_layers quant_skip_types fakequant_precision_mode",
        "RetrainDataQuantConfig": "ulq_quantize",
        "ActULQquantize": "clip_max_min fixed_min dst_type",
        "ClipMaxMin": "clip_max clip_min",
        "RetrainWeightQuantConfig": "arq_retrain ulq_retrain",
        "ARQRetrain": "dst_type channel_wise",
        "WtsULQRetrain": "dst_type channel_wise",
        "RetrainOverrideLayer": "layer_name retrain_data_quant_config retrain_weight_quant_config prune_config",
        "RetrainOverrideLayerType": "layer_type retrain_data_quant_config retrain_weight_quant_config prune_config",
        "PruneConfig": "filter_pruner n_out_of_m_pruner",
        "BalancedL2NormFilterPrune": "prune_ratio ascend_optimized",
        "L1SelectivePrune": "n_out_of_m_type update_freq",
    }
    messages = retrain_config_pb2.DESCRIPTOR.message_types_by_name
    for message, names in members.items():
        assert set(names.split()) == set(messages[message].fields_by_name) & set(names.split()), message
    numbers = {field.number for field in messages["AMCTRetrainConfig"].fields if field.number < 22}
    assert numbers == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 21}
    values = retrain_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name
    assert {name: value.number for name, value in values.items()} == {"INT4": 0, "INT8": 1, "INT16": 2}


def test_schema_has_every_member_of_the_atc_reference() -> None:
    members = {
        "AMCTConfig": "activation_offset joint_quant skip_layers skip_layer_types version common_config override_layer_types "
        "override_layer_configs do_fusion skip_fusion_layers tensor_quantize enable_auto_nuq weight_offset",
        "CalibrationConfig": "arq_quantize ifmr_quantize weight_compress_only",
        "ARQuantize": "channel_wise asymmetric quant_bits",
        "FMRQuantize": "dst_type",
    }
    messages = calibration_config_pb2.DESCRIPTOR.message_types_by_name
    for message, names in members.items():
        assert set(names.split()) <= set(messages[message].fields_by_name), message
