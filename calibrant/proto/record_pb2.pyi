from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SingleLayerRecord(_message.Message):
    __slots__ = ("scale_d", "offset_d", "scale_w", "offset_w", "shift_bit", "skip_fusion", "is_tensor_quantize", "tensor_balance_factor", "op_data_type", "act_type", "wts_type", "fakequant_precision_mode", "dst_type", "channels", "height", "width", "cluster", "scale_h", "offset_h", "scale_r", "offset_r")
    SCALE_D_FIELD_NUMBER: _ClassVar[int]
    OFFSET_D_FIELD_NUMBER: _ClassVar[int]
    SCALE_W_FIELD_NUMBER: _ClassVar[int]
    OFFSET_W_FIELD_NUMBER: _ClassVar[int]
    SHIFT_BIT_FIELD_NUMBER: _ClassVar[int]
    SKIP_FUSION_FIELD_NUMBER: _ClassVar[int]
    IS_TENSOR_QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BALANCE_FACTOR_FIELD_NUMBER: _ClassVar[int]
    OP_DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    ACT_TYPE_FIELD_NUMBER: _ClassVar[int]
    WTS_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAKEQUANT_PRECISION_MODE_FIELD_NUMBER: _ClassVar[int]
    DST_TYPE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SCALE_H_FIELD_NUMBER: _ClassVar[int]
    OFFSET_H_FIELD_NUMBER: _ClassVar[int]
    SCALE_R_FIELD_NUMBER: _ClassVar[int]
    OFFSET_R_FIELD_NUMBER: _ClassVar[int]
    scale_d: float
    offset_d: int
    scale_w: _containers.RepeatedScalarFieldContainer[float]
    offset_w: _containers.RepeatedScalarFieldContainer[int]
    shift_bit: _containers.RepeatedScalarFieldContainer[int]
    skip_fusion: bool
    is_tensor_quantize: bool
    tensor_balance_factor: _containers.RepeatedScalarFieldContainer[float]
    op_data_type: str
    act_type: str
    wts_type: str
    fakequant_precision_mode: str
    dst_type: str
    channels: int
    height: int
    width: int
    cluster: _containers.RepeatedScalarFieldContainer[int]
    scale_h: float
    offset_h: int
    scale_r: _containers.RepeatedScalarFieldContainer[float]
    offset_r: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scale_d: _Optional[float] = ..., offset_d: _Optional[int] = ..., scale_w: _Optional[_Iterable[float]] = ..., offset_w: _Optional[_Iterable[int]] = ..., shift_bit: _Optional[_Iterable[int]] = ..., skip_fusion: bool = ..., is_tensor_quantize: bool = ..., tensor_balance_factor: _Optional[_Iterable[float]] = ..., op_data_type: _Optional[str] = ..., act_type: _Optional[str] = ..., wts_type: _Optional[str] = ..., fakequant_precision_mode: _Optional[str] = ..., dst_type: _Optional[str] = ..., channels: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., cluster: _Optional[_Iterable[int]] = ..., scale_h: _Optional[float] = ..., offset_h: _Optional[int] = ..., scale_r: _Optional[_Iterable[float]] = ..., offset_r: _Optional[_Iterable[int]] = ...) -> None: ...

class SingleLayerKVCacheRecord(_message.Message):
    __slots__ = ("scale", "offset")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    scale: _containers.RepeatedScalarFieldContainer[float]
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scale: _Optional[_Iterable[float]] = ..., offset: _Optional[_Iterable[int]] = ...) -> None: ...

class MapFiledEntry(_message.Message):
    __slots__ = ("key", "value", "kv_cache_value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: SingleLayerRecord
    kv_cache_value: SingleLayerKVCacheRecord
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SingleLayerRecord, _Mapping]] = ..., kv_cache_value: _Optional[_Union[SingleLayerKVCacheRecord, _Mapping]] = ...) -> None: ...

class PruneAttribute(_message.Message):
    __slots__ = ("name", "f", "i", "s", "floats", "ints", "strings", "type")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNDEFINED: _ClassVar[PruneAttribute.Type]
        FLOAT: _ClassVar[PruneAttribute.Type]
        INT: _ClassVar[PruneAttribute.Type]
        STRING: _ClassVar[PruneAttribute.Type]
        TENSOR: _ClassVar[PruneAttribute.Type]
        GRAPH: _ClassVar[PruneAttribute.Type]
        FLOATS: _ClassVar[PruneAttribute.Type]
        INTS: _ClassVar[PruneAttribute.Type]
        STRINGS: _ClassVar[PruneAttribute.Type]
        TENSORS: _ClassVar[PruneAttribute.Type]
        GRAPHS: _ClassVar[PruneAttribute.Type]
    UNDEFINED: PruneAttribute.Type
    FLOAT: PruneAttribute.Type
    INT: PruneAttribute.Type
    STRING: PruneAttribute.Type
    TENSOR: PruneAttribute.Type
    GRAPH: PruneAttribute.Type
    FLOATS: PruneAttribute.Type
    INTS: PruneAttribute.Type
    STRINGS: PruneAttribute.Type
    TENSORS: PruneAttribute.Type
    GRAPHS: PruneAttribute.Type
    NAME_FIELD_NUMBER: _ClassVar[int]
    F_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    S_FIELD_NUMBER: _ClassVar[int]
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    INTS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    f: float
    i: int
    s: str
    floats: _containers.RepeatedScalarFieldContainer[float]
    ints: _containers.RepeatedScalarFieldContainer[int]
    strings: _containers.RepeatedScalarFieldContainer[str]
    type: PruneAttribute.Type
    def __init__(self, name: _Optional[str] = ..., f: _Optional[float] = ..., i: _Optional[int] = ..., s: _Optional[str] = ..., floats: _Optional[_Iterable[float]] = ..., ints: _Optional[_Iterable[int]] = ..., strings: _Optional[_Iterable[str]] = ..., type: _Optional[_Union[PruneAttribute.Type, str]] = ...) -> None: ...

class PruneNode(_message.Message):
    __slots__ = ("name", "attr")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELD_NUMBER: _ClassVar[int]
    name: str
    attr: _containers.RepeatedCompositeFieldContainer[PruneAttribute]
    def __init__(self, name: _Optional[str] = ..., attr: _Optional[_Iterable[_Union[PruneAttribute, _Mapping]]] = ...) -> None: ...

class PruneRecord(_message.Message):
    __slots__ = ("producer", "consumer", "selective_prune")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    SELECTIVE_PRUNE_FIELD_NUMBER: _ClassVar[int]
    producer: _containers.RepeatedCompositeFieldContainer[PruneNode]
    consumer: _containers.RepeatedCompositeFieldContainer[PruneNode]
    selective_prune: PruneNode
    def __init__(self, producer: _Optional[_Iterable[_Union[PruneNode, _Mapping]]] = ..., consumer: _Optional[_Iterable[_Union[PruneNode, _Mapping]]] = ..., selective_prune: _Optional[_Union[PruneNode, _Mapping]] = ...) -> None: ...

class ScaleOffsetRecord(_message.Message):
    __slots__ = ("record", "prune_record")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PRUNE_RECORD_FIELD_NUMBER: _ClassVar[int]
    record: _containers.RepeatedCompositeFieldContainer[MapFiledEntry]
    prune_record: _containers.RepeatedCompositeFieldContainer[PruneRecord]
    def __init__(self, record: _Optional[_Iterable[_Union[MapFiledEntry, _Mapping]]] = ..., prune_record: _Optional[_Iterable[_Union[PruneRecord, _Mapping]]] = ...) -> None: ...
