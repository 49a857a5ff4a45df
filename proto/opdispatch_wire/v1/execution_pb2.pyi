from google.rpc import status_pb2 as _status_pb2
from opdispatch_wire.v1 import profile_pb2 as _profile_pb2
from opdispatch_wire.v1 import remote_pb2 as _remote_pb2
from opdispatch_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallRequest(_message.Message):
    __slots__ = ("id", "operator", "args", "kwargs", "local_keys", "no_grad", "modes", "profile", "traceparent", "redispatch_keys", "trace", "kernel", "retry", "timeout", "path", "cancel", "wants_route", "route_epoch", "preferred_session", "lost", "keep", "program", "libraries", "adopt", "device_memory", "device_lease", "chunk", "chunks_reply", "constant_bytes")
    class KwargsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _values_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_KEYS_FIELD_NUMBER: _ClassVar[int]
    NO_GRAD_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    REDISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    WANTS_ROUTE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SESSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LEASE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_REPLY_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    operator: str
    args: _containers.RepeatedCompositeFieldContainer[_values_pb2.Value]
    kwargs: _containers.MessageMap[str, _values_pb2.Value]
    local_keys: LocalKeys
    no_grad: bool
    modes: _containers.RepeatedCompositeFieldContainer[CallMode]
    profile: _profile_pb2.ProfileRequest
    traceparent: str
    redispatch_keys: int
    trace: bool
    kernel: KernelRef
    retry: bool
    timeout: float
    path: CallPath
    cancel: bool
    wants_route: bool
    route_epoch: int
    preferred_session: int
    lost: LostCall
    keep: _remote_pb2.Keep
    program: bytes
    libraries: _containers.RepeatedScalarFieldContainer[int]
    adopt: bool
    device_memory: bytes
    device_lease: bytes
    chunk: Chunk
    chunks_reply: bool
    constant_bytes: int
    def __init__(self, id: _Optional[int] = ..., operator: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_values_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _values_pb2.Value]] = ..., local_keys: _Optional[_Union[LocalKeys, _Mapping]] = ..., no_grad: _Optional[bool] = ..., modes: _Optional[_Iterable[_Union[CallMode, _Mapping]]] = ..., profile: _Optional[_Union[_profile_pb2.ProfileRequest, _Mapping]] = ..., traceparent: _Optional[str] = ..., redispatch_keys: _Optional[int] = ..., trace: _Optional[bool] = ..., kernel: _Optional[_Union[KernelRef, _Mapping]] = ..., retry: _Optional[bool] = ..., timeout: _Optional[float] = ..., path: _Optional[_Union[CallPath, _Mapping]] = ..., cancel: _Optional[bool] = ..., wants_route: _Optional[bool] = ..., route_epoch: _Optional[int] = ..., preferred_session: _Optional[int] = ..., lost: _Optional[_Union[LostCall, _Mapping]] = ..., keep: _Optional[_Union[_remote_pb2.Keep, _Mapping]] = ..., program: _Optional[bytes] = ..., libraries: _Optional[_Iterable[int]] = ..., adopt: _Optional[bool] = ..., device_memory: _Optional[bytes] = ..., device_lease: _Optional[bytes] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., chunks_reply: _Optional[bool] = ..., constant_bytes: _Optional[int] = ...) -> None: ...

class CallMode(_message.Message):
    __slots__ = ("name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LostCall(_message.Message):
    __slots__ = ("session", "lane", "id", "interpreter")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    session: int
    lane: int
    id: int
    interpreter: str
    def __init__(self, session: _Optional[int] = ..., lane: _Optional[int] = ..., id: _Optional[int] = ..., interpreter: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("tensor", "offset", "length", "total", "data")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    offset: int
    length: int
    total: int
    data: bytes
    def __init__(self, tensor: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., total: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("epoch", "operator", "kernel", "targets", "is_repeatable", "ticket_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEATABLE_FIELD_NUMBER: _ClassVar[int]
    TICKET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    operator: str
    kernel: KernelRef
    targets: _containers.RepeatedCompositeFieldContainer[RouteTarget]
    is_repeatable: bool
    ticket_seconds: float
    def __init__(self, epoch: _Optional[int] = ..., operator: _Optional[str] = ..., kernel: _Optional[_Union[KernelRef, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[RouteTarget, _Mapping]]] = ..., is_repeatable: _Optional[bool] = ..., ticket_seconds: _Optional[float] = ...) -> None: ...

class RouteTarget(_message.Message):
    __slots__ = ("interpreter", "lane", "session", "ports", "ticket")
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    interpreter: str
    lane: str
    session: int
    ports: _containers.RepeatedScalarFieldContainer[int]
    ticket: str
    def __init__(self, interpreter: _Optional[str] = ..., lane: _Optional[str] = ..., session: _Optional[int] = ..., ports: _Optional[_Iterable[int]] = ..., ticket: _Optional[str] = ...) -> None: ...

class CallPath(_message.Message):
    __slots__ = ("depth", "run", "lane", "limit", "queued")
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    depth: int
    run: bytes
    lane: int
    limit: int
    queued: int
    def __init__(self, depth: _Optional[int] = ..., run: _Optional[bytes] = ..., lane: _Optional[int] = ..., limit: _Optional[int] = ..., queued: _Optional[int] = ...) -> None: ...

class LocalKeys(_message.Message):
    __slots__ = ("included", "excluded")
    INCLUDED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    included: int
    excluded: int
    def __init__(self, included: _Optional[int] = ..., excluded: _Optional[int] = ...) -> None: ...

class KernelRef(_message.Message):
    __slots__ = ("load_id", "registration", "dispatch_keys", "in_slot")
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    IN_SLOT_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    registration: int
    dispatch_keys: int
    in_slot: bool
    def __init__(self, load_id: _Optional[int] = ..., registration: _Optional[int] = ..., dispatch_keys: _Optional[int] = ..., in_slot: _Optional[bool] = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("id", "returns", "error", "mutations", "generators", "trace", "interpreter", "route", "profile", "has_waited", "has_history", "result_names", "chunk")
    ID_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATORS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    HAS_WAITED_FIELD_NUMBER: _ClassVar[int]
    HAS_HISTORY_FIELD_NUMBER: _ClassVar[int]
    RESULT_NAMES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    id: int
    returns: _containers.RepeatedCompositeFieldContainer[_values_pb2.Value]
    error: _status_pb2.Status
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    generators: _containers.RepeatedCompositeFieldContainer[GeneratorUse]
    trace: _containers.RepeatedCompositeFieldContainer[TraceLine]
    interpreter: str
    route: Route
    profile: _profile_pb2.Profile
    has_waited: bool
    has_history: bool
    result_names: _containers.RepeatedCompositeFieldContainer[ResultNames]
    chunk: Chunk
    def __init__(self, id: _Optional[int] = ..., returns: _Optional[_Iterable[_Union[_values_pb2.Value, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., generators: _Optional[_Iterable[_Union[GeneratorUse, _Mapping]]] = ..., trace: _Optional[_Iterable[_Union[TraceLine, _Mapping]]] = ..., interpreter: _Optional[str] = ..., route: _Optional[_Union[Route, _Mapping]] = ..., profile: _Optional[_Union[_profile_pb2.Profile, _Mapping]] = ..., has_waited: _Optional[bool] = ..., has_history: _Optional[bool] = ..., result_names: _Optional[_Iterable[_Union[ResultNames, _Mapping]]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class ResultNames(_message.Message):
    __slots__ = ("output", "names")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    output: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, output: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Mutation(_message.Message):
    __slots__ = ("argument", "item", "value")
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    argument: _values_pb2.ArgumentRef
    item: int
    value: _values_pb2.Tensor
    def __init__(self, argument: _Optional[_Union[_values_pb2.ArgumentRef, _Mapping]] = ..., item: _Optional[int] = ..., value: _Optional[_Union[_values_pb2.Tensor, _Mapping]] = ...) -> None: ...

class GeneratorUse(_message.Message):
    __slots__ = ("argument", "before", "after")
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    argument: _values_pb2.ArgumentRef
    before: _values_pb2.GeneratorState
    after: _values_pb2.GeneratorState
    def __init__(self, argument: _Optional[_Union[_values_pb2.ArgumentRef, _Mapping]] = ..., before: _Optional[_Union[_values_pb2.GeneratorState, _Mapping]] = ..., after: _Optional[_Union[_values_pb2.GeneratorState, _Mapping]] = ...) -> None: ...

class TraceLine(_message.Message):
    __slots__ = ("depth", "kind", "operator", "key", "kernel", "reason", "interpreter")
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    depth: int
    kind: str
    operator: str
    key: str
    kernel: str
    reason: str
    interpreter: str
    def __init__(self, depth: _Optional[int] = ..., kind: _Optional[str] = ..., operator: _Optional[str] = ..., key: _Optional[str] = ..., kernel: _Optional[str] = ..., reason: _Optional[str] = ..., interpreter: _Optional[str] = ...) -> None: ...
