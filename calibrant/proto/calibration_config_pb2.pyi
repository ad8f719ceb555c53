from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CalibrationDataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INT8: _ClassVar[CalibrationDataType]
    INT16: _ClassVar[CalibrationDataType]

class FakequantPrecisionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFAULT: _ClassVar[FakequantPrecisionMode]
    FORCE_FP16_QUANT: _ClassVar[FakequantPrecisionMode]
INT8: CalibrationDataType
INT16: CalibrationDataType
DEFAULT: FakequantPrecisionMode
FORCE_FP16_QUANT: FakequantPrecisionMode

class AMCTConfig(_message.Message):
    __slots__ = ("batch_num", "activation_offset", "joint_quant", "version", "weight_offset", "enable_auto_nuq", "skip_layers", "skip_layer_types", "nuq_config", "fakequant_precision_mode", "common_config", "override_layer_types", "conv_calibration_config", "fc_calibration_config", "override_layer_configs", "do_fusion", "skip_fusion_layers", "tensor_quantize", "calibrant_matmul_per_channel")
    BATCH_NUM_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    JOINT_QUANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENABLE_AUTO_NUQ_FIELD_NUMBER: _ClassVar[int]
    SKIP_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_LAYER_TYPES_FIELD_NUMBER: _ClassVar[int]
    NUQ_CONFIG_FIELD_NUMBER: _ClassVar[int]
    FAKEQUANT_PRECISION_MODE_FIELD_NUMBER: _ClassVar[int]
    COMMON_CONFIG_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_LAYER_TYPES_FIELD_NUMBER: _ClassVar[int]
    CONV_CALIBRATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    FC_CALIBRATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_LAYER_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    DO_FUSION_FIELD_NUMBER: _ClassVar[int]
    SKIP_FUSION_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    CALIBRANT_MATMUL_PER_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    batch_num: int
    activation_offset: bool
    joint_quant: bool
    version: int
    weight_offset: bool
    enable_auto_nuq: bool
    skip_layers: _containers.RepeatedScalarFieldContainer[str]
    skip_layer_types: _containers.RepeatedScalarFieldContainer[str]
    nuq_config: NuqConfig
    fakequant_precision_mode: FakequantPrecisionMode
    common_config: CalibrationConfig
    override_layer_types: _containers.RepeatedCompositeFieldContainer[OverrideLayerType]
    conv_calibration_config: CalibrationConfig
    fc_calibration_config: CalibrationConfig
    override_layer_configs: _containers.RepeatedCompositeFieldContainer[OverrideLayer]
    do_fusion: bool
    skip_fusion_layers: _containers.RepeatedScalarFieldContainer[str]
    tensor_quantize: _containers.RepeatedCompositeFieldContainer[TensorQuantize]
    calibrant_matmul_per_channel: bool
    def __init__(self, batch_num: _Optional[int] = ..., activation_offset: bool = ..., joint_quant: bool = ..., version: _Optional[int] = ..., weight_offset: bool = ..., enable_auto_nuq: bool = ..., skip_layers: _Optional[_Iterable[str]] = ..., skip_layer_types: _Optional[_Iterable[str]] = ..., nuq_config: _Optional[_Union[NuqConfig, _Mapping]] = ..., fakequant_precision_mode: _Optional[_Union[FakequantPrecisionMode, str]] = ..., common_config: _Optional[_Union[CalibrationConfig, _Mapping]] = ..., override_layer_types: _Optional[_Iterable[_Union[OverrideLayerType, _Mapping]]] = ..., conv_calibration_config: _Optional[_Union[CalibrationConfig, _Mapping]] = ..., fc_calibration_config: _Optional[_Union[CalibrationConfig, _Mapping]] = ..., override_layer_configs: _Optional[_Iterable[_Union[OverrideLayer, _Mapping]]] = ..., do_fusion: bool = ..., skip_fusion_layers: _Optional[_Iterable[str]] = ..., tensor_quantize: _Optional[_Iterable[_Union[TensorQuantize, _Mapping]]] = ..., calibrant_matmul_per_channel: bool = ...) -> None: ...

class NuqConfig(_message.Message):
    __slots__ = ("mapping_file", "nuq_quantize")
    MAPPING_FILE_FIELD_NUMBER: _ClassVar[int]
    NUQ_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    mapping_file: str
    nuq_quantize: NUQuantize
    def __init__(self, mapping_file: _Optional[str] = ..., nuq_quantize: _Optional[_Union[NUQuantize, _Mapping]] = ...) -> None: ...

class OverrideLayerType(_message.Message):
    __slots__ = ("layer_type", "calibration_config")
    LAYER_TYPE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    layer_type: str
    calibration_config: CalibrationConfig
    def __init__(self, layer_type: _Optional[str] = ..., calibration_config: _Optional[_Union[CalibrationConfig, _Mapping]] = ...) -> None: ...

class OverrideLayer(_message.Message):
    __slots__ = ("layer_name", "calibration_config")
    LAYER_NAME_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    layer_name: str
    calibration_config: CalibrationConfig
    def __init__(self, layer_name: _Optional[str] = ..., calibration_config: _Optional[_Union[CalibrationConfig, _Mapping]] = ...) -> None: ...

class TensorQuantize(_message.Message):
    __slots__ = ("layer_name", "input_index", "ifmr_quantize", "hfmg_quantize")
    LAYER_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    IFMR_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    HFMG_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    layer_name: str
    input_index: int
    ifmr_quantize: FMRQuantize
    hfmg_quantize: HFMGQuantize
    def __init__(self, layer_name: _Optional[str] = ..., input_index: _Optional[int] = ..., ifmr_quantize: _Optional[_Union[FMRQuantize, _Mapping]] = ..., hfmg_quantize: _Optional[_Union[HFMGQuantize, _Mapping]] = ...) -> None: ...

class CalibrationConfig(_message.Message):
    __slots__ = ("weight_compress_only", "arq_quantize", "nuq_quantize", "ada_quantize", "ifmr_quantize", "hfmg_quantize", "dmq_balancer")
    WEIGHT_COMPRESS_ONLY_FIELD_NUMBER: _ClassVar[int]
    ARQ_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    NUQ_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    ADA_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    IFMR_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    HFMG_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    DMQ_BALANCER_FIELD_NUMBER: _ClassVar[int]
    weight_compress_only: bool
    arq_quantize: ARQuantize
    nuq_quantize: NUQuantize
    ada_quantize: ADAquantize
    ifmr_quantize: FMRQuantize
    hfmg_quantize: HFMGQuantize
    dmq_balancer: DMQBalancer
    def __init__(self, weight_compress_only: bool = ..., arq_quantize: _Optional[_Union[ARQuantize, _Mapping]] = ..., nuq_quantize: _Optional[_Union[NUQuantize, _Mapping]] = ..., ada_quantize: _Optional[_Union[ADAquantize, _Mapping]] = ..., ifmr_quantize: _Optional[_Union[FMRQuantize, _Mapping]] = ..., hfmg_quantize: _Optional[_Union[HFMGQuantize, _Mapping]] = ..., dmq_balancer: _Optional[_Union[DMQBalancer, _Mapping]] = ...) -> None: ...

class ARQuantize(_message.Message):
    __slots__ = ("channel_wise", "asymmetric", "quant_bits")
    CHANNEL_WISE_FIELD_NUMBER: _ClassVar[int]
    ASYMMETRIC_FIELD_NUMBER: _ClassVar[int]
    QUANT_BITS_FIELD_NUMBER: _ClassVar[int]
    channel_wise: bool
    asymmetric: bool
    quant_bits: int
    def __init__(self, channel_wise: bool = ..., asymmetric: bool = ..., quant_bits: _Optional[int] = ...) -> None: ...

class NUQuantize(_message.Message):
    __slots__ = ("num_steps", "num_of_iteration")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_ITERATION_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    num_of_iteration: int
    def __init__(self, num_steps: _Optional[int] = ..., num_of_iteration: _Optional[int] = ...) -> None: ...

class ADAquantize(_message.Message):
    __slots__ = ("num_iteration", "reg_param", "beta_range_start", "beta_range_end", "warm_start", "channel_wise")
    NUM_ITERATION_FIELD_NUMBER: _ClassVar[int]
    REG_PARAM_FIELD_NUMBER: _ClassVar[int]
    BETA_RANGE_START_FIELD_NUMBER: _ClassVar[int]
    BETA_RANGE_END_FIELD_NUMBER: _ClassVar[int]
    WARM_START_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_WISE_FIELD_NUMBER: _ClassVar[int]
    num_iteration: int
    reg_param: float
    beta_range_start: float
    beta_range_end: float
    warm_start: float
    channel_wise: bool
    def __init__(self, num_iteration: _Optional[int] = ..., reg_param: _Optional[float] = ..., beta_range_start: _Optional[float] = ..., beta_range_end: _Optional[float] = ..., warm_start: _Optional[float] = ..., channel_wise: bool = ...) -> None: ...

class FMRQuantize(_message.Message):
    __slots__ = ("search_range_start", "search_range_end", "search_step", "max_percentile", "min_percentile", "asymmetric", "dst_type")
    SEARCH_RANGE_START_FIELD_NUMBER: _ClassVar[int]
    SEARCH_RANGE_END_FIELD_NUMBER: _ClassVar[int]
    SEARCH_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_PERCENTILE_FIELD_NUMBER: _ClassVar[int]
    MIN_PERCENTILE_FIELD_NUMBER: _ClassVar[int]
    ASYMMETRIC_FIELD_NUMBER: _ClassVar[int]
    DST_TYPE_FIELD_NUMBER: _ClassVar[int]
    search_range_start: float
    search_range_end: float
    search_step: float
    max_percentile: float
    min_percentile: float
    asymmetric: bool
    dst_type: CalibrationDataType
    def __init__(self, search_range_start: _Optional[float] = ..., search_range_end: _Optional[float] = ..., search_step: _Optional[float] = ..., max_percentile: _Optional[float] = ..., min_percentile: _Optional[float] = ..., asymmetric: bool = ..., dst_type: _Optional[_Union[CalibrationDataType, str]] = ...) -> None: ...

class HFMGQuantize(_message.Message):
    __slots__ = ("num_of_bins", "asymmetric", "dst_type")
    NUM_OF_BINS_FIELD_NUMBER: _ClassVar[int]
    ASYMMETRIC_FIELD_NUMBER: _ClassVar[int]
    DST_TYPE_FIELD_NUMBER: _ClassVar[int]
    num_of_bins: int
    asymmetric: bool
    dst_type: CalibrationDataType
    def __init__(self, num_of_bins: _Optional[int] = ..., asymmetric: bool = ..., dst_type: _Optional[_Union[CalibrationDataType, str]] = ...) -> None: ...

class DMQBalancer(_message.Message):
    __slots__ = ("migration_strength",)
    MIGRATION_STRENGTH_FIELD_NUMBER: _ClassVar[int]
    migration_strength: float
    def __init__(self, migration_strength: _Optional[float] = ...) -> None: ...
