from opdispatch_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LaneHello(_message.Message):
    __slots__ = ("protocol_version", "max_message_bytes", "shares_memory", "max_call_bytes", "operator")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_CALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    max_message_bytes: int
    shares_memory: bool
    max_call_bytes: int
    operator: str
    def __init__(self, protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., shares_memory: _Optional[bool] = ..., max_call_bytes: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class LaneWelcome(_message.Message):
    __slots__ = ("protocol_version", "max_message_bytes", "lane", "shares_memory", "max_call_bytes", "schemas")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SHARES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_CALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    max_message_bytes: int
    lane: int
    shares_memory: bool
    max_call_bytes: int
    schemas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., lane: _Optional[int] = ..., shares_memory: _Optional[bool] = ..., max_call_bytes: _Optional[int] = ..., schemas: _Optional[_Iterable[str]] = ...) -> None: ...

class LaneCancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class LaneRegion(_message.Message):
    __slots__ = ("region",)
    REGION_FIELD_NUMBER: _ClassVar[int]
    region: int
    def __init__(self, region: _Optional[int] = ...) -> None: ...

class LaneExtents(_message.Message):
    __slots__ = ("extents",)
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedCompositeFieldContainer[_values_pb2.SharedMemory]
    def __init__(self, extents: _Optional[_Iterable[_Union[_values_pb2.SharedMemory, _Mapping]]] = ...) -> None: ...
