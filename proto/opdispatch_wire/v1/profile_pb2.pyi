from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProfileRequest(_message.Message):
    __slots__ = ("record_shapes", "with_flops", "record_keys", "max_events", "received", "sent", "profile_memory")
    RECORD_SHAPES_FIELD_NUMBER: _ClassVar[int]
    WITH_FLOPS_FIELD_NUMBER: _ClassVar[int]
    RECORD_KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    record_shapes: bool
    with_flops: bool
    record_keys: bool
    max_events: int
    received: int
    sent: int
    profile_memory: bool
    def __init__(self, record_shapes: _Optional[bool] = ..., with_flops: _Optional[bool] = ..., record_keys: _Optional[bool] = ..., max_events: _Optional[int] = ..., received: _Optional[int] = ..., sent: _Optional[int] = ..., profile_memory: _Optional[bool] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("processes", "events", "visits", "dropped")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    VISITS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProfiledProcess]
    events: _containers.RepeatedCompositeFieldContainer[ProfiledEvent]
    visits: _containers.RepeatedCompositeFieldContainer[KernelVisits]
    dropped: int
    def __init__(self, processes: _Optional[_Iterable[_Union[ProfiledProcess, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[ProfiledEvent, _Mapping]]] = ..., visits: _Optional[_Iterable[_Union[KernelVisits, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class ProfiledProcess(_message.Message):
    __slots__ = ("name", "pid", "machine")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    name: str
    pid: int
    machine: str
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., machine: _Optional[str] = ...) -> None: ...

class ProfiledEvent(_message.Message):
    __slots__ = ("name", "kind", "process", "thread", "begin", "duration", "parent", "inputs", "flops", "failed", "result_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    process: int
    thread: int
    begin: int
    duration: int
    parent: int
    inputs: _containers.RepeatedCompositeFieldContainer[ProfiledShape]
    flops: int
    failed: bool
    result_bytes: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., process: _Optional[int] = ..., thread: _Optional[int] = ..., begin: _Optional[int] = ..., duration: _Optional[int] = ..., parent: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[ProfiledShape, _Mapping]]] = ..., flops: _Optional[int] = ..., failed: _Optional[bool] = ..., result_bytes: _Optional[int] = ...) -> None: ...

class ProfiledShape(_message.Message):
    __slots__ = ("extents",)
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extents: _Optional[_Iterable[int]] = ...) -> None: ...

class KernelVisits(_message.Message):
    __slots__ = ("operator", "key", "count")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    operator: str
    key: str
    count: int
    def __init__(self, operator: _Optional[str] = ..., key: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...
