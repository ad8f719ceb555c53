"""AMCT's configuration and record formats: what the user asked for, and what the NPU's tools read.

Everything public is importable from here; protobuf is loaded when a text is first read.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.proto.any_config import ConfigFile as ConfigFile
    from calibrant.proto.any_config import calibration_config as calibration_config
    from calibrant.proto.any_config import parse_calibration_config as parse_calibration_config
    from calibrant.proto.any_config import parse_config as parse_config
    from calibrant.proto.any_config import read_calibration_config as read_calibration_config
    from calibrant.proto.any_config import read_config as read_config
    from calibrant.proto.documents import DocumentKind as DocumentKind
    from calibrant.proto.documents import detect_document as detect_document
    from calibrant.proto.documents import document_kind as document_kind
    from calibrant.proto.json_config import JsonActivation as JsonActivation
    from calibrant.proto.json_config import JsonConfig as JsonConfig
    from calibrant.proto.json_config import JsonLayer as JsonLayer
    from calibrant.proto.json_config import JsonTensor as JsonTensor
    from calibrant.proto.json_config import JsonWeight as JsonWeight
    from calibrant.proto.json_config import format_json_config as format_json_config
    from calibrant.proto.json_config import parse_json_config as parse_json_config
    from calibrant.proto.json_config import read_json_config as read_json_config
    from calibrant.proto.json_config import write_json_config as write_json_config
    from calibrant.proto.layerwise import LayerwiseConfig as LayerwiseConfig
    from calibrant.proto.layerwise import layerwise_config as layerwise_config
    from calibrant.proto.op_types import Dialect as Dialect
    from calibrant.proto.op_types import OpType as OpType
    from calibrant.proto.op_types import layer_type as layer_type
    from calibrant.proto.op_types import tensor_types as tensor_types
    from calibrant.proto.optimize_conf import CompressionOptimizeConf as CompressionOptimizeConf
    from calibrant.proto.optimize_conf import parse_optimize_conf as parse_optimize_conf
    from calibrant.proto.optimize_conf import read_optimize_conf as read_optimize_conf
    from calibrant.proto.record import PruneGroup as PruneGroup
    from calibrant.proto.record import RecordEntry as RecordEntry
    from calibrant.proto.record import RecordFile as RecordFile
    from calibrant.proto.record import format_record as format_record
    from calibrant.proto.record import parse_record as parse_record
    from calibrant.proto.record import parse_record_file as parse_record_file
    from calibrant.proto.record import read_record as read_record
    from calibrant.proto.record import read_record_file as read_record_file
    from calibrant.proto.record import write_record as write_record
    from calibrant.proto.record_table import record_entries_of as record_entries_of
    from calibrant.proto.record_table import record_frame as record_frame
    from calibrant.proto.retrain_config import ArqRetrainSettings as ArqRetrainSettings
    from calibrant.proto.retrain_config import AutoPruneSettings as AutoPruneSettings
    from calibrant.proto.retrain_config import FilterPruneSettings as FilterPruneSettings
    from calibrant.proto.retrain_config import RetrainBlock as RetrainBlock
    from calibrant.proto.retrain_config import RetrainConfig as RetrainConfig
    from calibrant.proto.retrain_config import SelectivePruneSettings as SelectivePruneSettings
    from calibrant.proto.retrain_config import UlqRetrainSettings as UlqRetrainSettings
    from calibrant.proto.retrain_config import UlqSettings as UlqSettings
    from calibrant.proto.retrain_config import canonical_retrain_text as canonical_retrain_text
    from calibrant.proto.retrain_config import parse_retrain_config as parse_retrain_config
    from calibrant.proto.retrain_config import read_retrain_config as read_retrain_config
    from calibrant.proto.retrain_conversion import retrain_config_of as retrain_config_of
    from calibrant.proto.retrain_json import RetrainJson as RetrainJson
    from calibrant.proto.retrain_json import RetrainJsonData as RetrainJsonData
    from calibrant.proto.retrain_json import RetrainJsonLayer as RetrainJsonLayer
    from calibrant.proto.retrain_json import RetrainJsonPrune as RetrainJsonPrune
    from calibrant.proto.retrain_json import RetrainJsonWeight as RetrainJsonWeight
    from calibrant.proto.retrain_json import format_retrain_json as format_retrain_json
    from calibrant.proto.retrain_json import parse_retrain_json as parse_retrain_json
    from calibrant.proto.retrain_json import read_retrain_json as read_retrain_json
    from calibrant.proto.retrain_json import write_retrain_json as write_retrain_json
    from calibrant.proto.simple_config import AdaSettings as AdaSettings
    from calibrant.proto.simple_config import ArqSettings as ArqSettings
    from calibrant.proto.simple_config import CalibrationBlock as CalibrationBlock
    from calibrant.proto.simple_config import ConfigNote as ConfigNote
    from calibrant.proto.simple_config import DmqSettings as DmqSettings
    from calibrant.proto.simple_config import HfmgSettings as HfmgSettings
    from calibrant.proto.simple_config import IfmrSettings as IfmrSettings
    from calibrant.proto.simple_config import NuqSettings as NuqSettings
    from calibrant.proto.simple_config import QuantConfig as QuantConfig
    from calibrant.proto.simple_config import TensorSettings as TensorSettings
    from calibrant.proto.simple_config import canonical_text as canonical_text
    from calibrant.proto.simple_config import parse_simple_config as parse_simple_config
    from calibrant.proto.simple_config import read_simple_config as read_simple_config

_HOMES = {
    "any_config": (
        "ConfigFile", "calibration_config", "parse_calibration_config", "parse_config", "read_calibration_config", "read_config",
    ),
    "layerwise": ("LayerwiseConfig", "layerwise_config"),
    "retrain_conversion": ("retrain_config_of",),
    "retrain_json": (
        "RetrainJson", "RetrainJsonData", "RetrainJsonLayer", "RetrainJsonPrune", "RetrainJsonWeight", "format_retrain_json",
        "parse_retrain_json", "read_retrain_json", "write_retrain_json",
    ),
    "documents": ("DocumentKind", "detect_document", "document_kind"),
    "op_types": ("Dialect", "OpType", "layer_type", "tensor_types"),
    "optimize_conf": ("CompressionOptimizeConf", "parse_optimize_conf", "read_optimize_conf"),
    "retrain_config": (
        "ArqRetrainSettings", "AutoPruneSettings", "FilterPruneSettings", "RetrainBlock", "RetrainConfig",
        "SelectivePruneSettings", "UlqRetrainSettings", "UlqSettings", "canonical_retrain_text", "parse_retrain_config",
        "read_retrain_config",
    ),
    "json_config": (
        "JsonActivation", "JsonConfig", "JsonLayer", "JsonTensor", "JsonWeight", "format_json_config", "parse_json_config",
        "read_json_config", "write_json_config",
    ),
    "record": (
        "PruneGroup", "RecordEntry", "RecordFile", "format_record", "parse_record", "parse_record_file", "read_record",
        "read_record_file", "write_record",
    ),
    "record_table": ("record_entries_of", "record_frame"),
    "simple_config": (
        "AdaSettings", "ArqSettings", "CalibrationBlock", "ConfigNote", "DmqSettings", "HfmgSettings", "IfmrSettings",
        "NuqSettings", "QuantConfig", "TensorSettings", "canonical_text", "parse_simple_config", "read_simple_config",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaSettings",
    "ArqRetrainSettings",
    "ArqSettings",
    "AutoPruneSettings",
    "CalibrationBlock",
    "CompressionOptimizeConf",
    "ConfigFile",
    "ConfigNote",
    "Dialect",
    "DmqSettings",
    "DocumentKind",
    "FilterPruneSettings",
    "HfmgSettings",
    "IfmrSettings",
    "JsonActivation",
    "JsonConfig",
    "JsonLayer",
    "JsonTensor",
    "JsonWeight",
    "LayerwiseConfig",
    "NuqSettings",
    "OpType",
    "PruneGroup",
    "QuantConfig",
    "RecordEntry",
    "RecordFile",
    "RetrainBlock",
    "RetrainConfig",
    "RetrainJson",
    "RetrainJsonData",
    "RetrainJsonLayer",
    "RetrainJsonPrune",
    "RetrainJsonWeight",
    "SelectivePruneSettings",
    "TensorSettings",
    "UlqRetrainSettings",
    "UlqSettings",
    "calibration_config",
    "canonical_retrain_text",
    "canonical_text",
    "detect_document",
    "document_kind",
    "format_json_config",
    "format_record",
    "format_retrain_json",
    "layer_type",
    "layerwise_config",
    "parse_calibration_config",
    "parse_config",
    "parse_json_config",
    "parse_optimize_conf",
    "parse_record",
    "parse_record_file",
    "parse_retrain_config",
    "parse_retrain_json",
    "parse_simple_config",
    "read_calibration_config",
    "read_config",
    "read_json_config",
    "read_optimize_conf",
    "read_record",
    "read_record_file",
    "read_retrain_config",
    "read_retrain_json",
    "read_simple_config",
    "record_entries_of",
    "record_frame",
    "retrain_config_of",
    "tensor_types",
    "write_json_config",
    "write_record",
    "write_retrain_json",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOME_OF:
        message = f"module 'calibrant.proto' has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(f"calibrant.proto.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
