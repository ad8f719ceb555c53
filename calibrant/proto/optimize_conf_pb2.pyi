from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompressionOptimizeConf(_message.Message):
    __slots__ = ("enable_first_layer_quantization", "calibration")
    ENABLE_FIRST_LAYER_QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    enable_first_layer_quantization: bool
    calibration: Calibration
    def __init__(self, enable_first_layer_quantization: bool = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("input_data_dir", "input_shape", "config_file", "infer_soc", "log", "infer_aicore_num", "infer_device_id", "infer_ip", "infer_port")
    INPUT_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FILE_FIELD_NUMBER: _ClassVar[int]
    INFER_SOC_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    INFER_AICORE_NUM_FIELD_NUMBER: _ClassVar[int]
    INFER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    INFER_IP_FIELD_NUMBER: _ClassVar[int]
    INFER_PORT_FIELD_NUMBER: _ClassVar[int]
    input_data_dir: str
    input_shape: str
    config_file: str
    infer_soc: str
    log: str
    infer_aicore_num: int
    infer_device_id: int
    infer_ip: str
    infer_port: int
    def __init__(self, input_data_dir: _Optional[str] = ..., input_shape: _Optional[str] = ..., config_file: _Optional[str] = ..., infer_soc: _Optional[str] = ..., log: _Optional[str] = ..., infer_aicore_num: _Optional[int] = ..., infer_device_id: _Optional[int] = ..., infer_ip: _Optional[str] = ..., infer_port: _Optional[int] = ...) -> None: ...
