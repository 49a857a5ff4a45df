from opdispatch_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Keep(_message.Message):
    __slots__ = ("session", "prefix", "on", "device")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    prefix: bytes
    on: str
    device: str
    def __init__(self, session: _Optional[bytes] = ..., prefix: _Optional[bytes] = ..., on: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("steps", "outputs")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    def __init__(self, steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("operator", "args", "kwargs")
    class KwargsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _values_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    operator: str
    args: _containers.RepeatedCompositeFieldContainer[_values_pb2.Value]
    kwargs: _containers.MessageMap[str, _values_pb2.Value]
    def __init__(self, operator: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_values_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _values_pb2.Value]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("what", "keep", "host")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    what: _values_pb2.Reference
    keep: bool
    host: bool
    def __init__(self, what: _Optional[_Union[_values_pb2.Reference, _Mapping]] = ..., keep: _Optional[bool] = ..., host: _Optional[bool] = ...) -> None: ...

class HoldValuesRequest(_message.Message):
    __slots__ = ("release",)
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    release: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, release: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HoldValuesReply(_message.Message):
    __slots__ = ("session", "interval", "max_values", "max_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    interval: float
    max_values: int
    max_bytes: int
    def __init__(self, session: _Optional[bytes] = ..., interval: _Optional[float] = ..., max_values: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReleaseValues(_message.Message):
    __slots__ = ("session", "ids")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SettleValues(_message.Message):
    __slots__ = ("session", "release", "values", "bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    release: _containers.RepeatedScalarFieldContainer[bytes]
    values: int
    bytes: int
    def __init__(self, session: _Optional[bytes] = ..., release: _Optional[_Iterable[bytes]] = ..., values: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SettledValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[_values_pb2.RemoteTensor]
    def __init__(self, values: _Optional[_Iterable[_Union[_values_pb2.RemoteTensor, _Mapping]]] = ...) -> None: ...
