import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemoryMeasure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_MEASURE_UNSPECIFIED: _ClassVar[MemoryMeasure]
    MEMORY_MEASURE_ENDED_INTERPRETERS: _ClassVar[MemoryMeasure]
    MEMORY_MEASURE_DIFFERENCE: _ClassVar[MemoryMeasure]
MEMORY_MEASURE_UNSPECIFIED: MemoryMeasure
MEMORY_MEASURE_ENDED_INTERPRETERS: MemoryMeasure
MEMORY_MEASURE_DIFFERENCE: MemoryMeasure

class GetServerInfoRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class GetServerInfoReply(_message.Message):
    __slots__ = ("protocol_version", "server_version", "max_message_bytes", "pid", "epoch", "addresses", "lane")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    max_message_bytes: int
    pid: int
    epoch: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    lane: str
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., pid: _Optional[int] = ..., epoch: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., lane: _Optional[str] = ...) -> None: ...

class LoadLibraryRequest(_message.Message):
    __slots__ = ("name", "content", "module", "uploaded", "filename", "interpreter", "interpreters", "device", "environment", "isolated", "sha256", "min_ready")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MIN_READY_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    module: str
    uploaded: str
    filename: str
    interpreter: str
    interpreters: int
    device: str
    environment: Environment
    isolated: bool
    sha256: str
    min_ready: int
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ..., module: _Optional[str] = ..., uploaded: _Optional[str] = ..., filename: _Optional[str] = ..., interpreter: _Optional[str] = ..., interpreters: _Optional[int] = ..., device: _Optional[str] = ..., environment: _Optional[_Union[Environment, _Mapping]] = ..., isolated: _Optional[bool] = ..., sha256: _Optional[str] = ..., min_ready: _Optional[int] = ...) -> None: ...

class UploadLibraryRequest(_message.Message):
    __slots__ = ("file", "chunk")
    FILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    file: UploadedFile
    chunk: bytes
    def __init__(self, file: _Optional[_Union[UploadedFile, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadedFile(_message.Message):
    __slots__ = ("filename", "sha256", "size")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    filename: str
    sha256: str
    size: int
    def __init__(self, filename: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class UploadLibraryReply(_message.Message):
    __slots__ = ("received", "stored", "waiting")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    received: int
    stored: bool
    waiting: bool
    def __init__(self, received: _Optional[int] = ..., stored: _Optional[bool] = ..., waiting: _Optional[bool] = ...) -> None: ...

class Environment(_message.Message):
    __slots__ = ("requirements", "requires_python", "python")
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_PYTHON_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    requirements: _containers.RepeatedScalarFieldContainer[str]
    requires_python: str
    python: str
    def __init__(self, requirements: _Optional[_Iterable[str]] = ..., requires_python: _Optional[str] = ..., python: _Optional[str] = ...) -> None: ...

class LoadLibraryProgress(_message.Message):
    __slots__ = ("line", "reply")
    LINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    line: str
    reply: LoadLibraryReply
    def __init__(self, line: _Optional[str] = ..., reply: _Optional[_Union[LoadLibraryReply, _Mapping]] = ...) -> None: ...

class LoadLibraryReply(_message.Message):
    __slots__ = ("library", "already_loaded", "role")
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    ALREADY_LOADED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    library: Library
    already_loaded: bool
    role: str
    def __init__(self, library: _Optional[_Union[Library, _Mapping]] = ..., already_loaded: _Optional[bool] = ..., role: _Optional[str] = ...) -> None: ...

class UnloadLibraryRequest(_message.Message):
    __slots__ = ("name", "version", "measure_memory")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEASURE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    measure_memory: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., measure_memory: _Optional[bool] = ...) -> None: ...

class UnloadLibraryReply(_message.Message):
    __slots__ = ("active", "memory_bytes", "memory_measure")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MEASURE_FIELD_NUMBER: _ClassVar[int]
    active: Library
    memory_bytes: int
    memory_measure: MemoryMeasure
    def __init__(self, active: _Optional[_Union[Library, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., memory_measure: _Optional[_Union[MemoryMeasure, str]] = ...) -> None: ...

class Library(_message.Message):
    __slots__ = ("name", "version", "sha256", "source", "interpreters", "loaded_at", "operators", "active", "calls_in_flight", "interpreters_wanted", "device", "loaded_by", "state", "home", "max_concurrency", "error", "kernel_errors", "trouble", "waiting_for")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LOADED_BY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    sha256: str
    source: str
    interpreters: _containers.RepeatedScalarFieldContainer[str]
    loaded_at: _timestamp_pb2.Timestamp
    operators: _containers.RepeatedScalarFieldContainer[str]
    active: bool
    calls_in_flight: int
    interpreters_wanted: int
    device: str
    loaded_by: str
    state: str
    home: Home
    max_concurrency: int
    error: str
    kernel_errors: int
    trouble: str
    waiting_for: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., sha256: _Optional[str] = ..., source: _Optional[str] = ..., interpreters: _Optional[_Iterable[str]] = ..., loaded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., operators: _Optional[_Iterable[str]] = ..., active: _Optional[bool] = ..., calls_in_flight: _Optional[int] = ..., interpreters_wanted: _Optional[int] = ..., device: _Optional[str] = ..., loaded_by: _Optional[str] = ..., state: _Optional[str] = ..., home: _Optional[_Union[Home, _Mapping]] = ..., max_concurrency: _Optional[int] = ..., error: _Optional[str] = ..., kernel_errors: _Optional[int] = ..., trouble: _Optional[str] = ..., waiting_for: _Optional[str] = ...) -> None: ...

class ScaleLibraryRequest(_message.Message):
    __slots__ = ("name", "interpreters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    interpreters: int
    def __init__(self, name: _Optional[str] = ..., interpreters: _Optional[int] = ...) -> None: ...

class ScaleLibraryReply(_message.Message):
    __slots__ = ("library",)
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    library: Library
    def __init__(self, library: _Optional[_Union[Library, _Mapping]] = ...) -> None: ...

class RollbackLibraryRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RollbackLibraryReply(_message.Message):
    __slots__ = ("active", "replaced")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    active: Library
    replaced: Library
    def __init__(self, active: _Optional[_Union[Library, _Mapping]] = ..., replaced: _Optional[_Union[Library, _Mapping]] = ...) -> None: ...

class DrainInterpreterRequest(_message.Message):
    __slots__ = ("name", "undo")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    name: str
    undo: bool
    def __init__(self, name: _Optional[str] = ..., undo: _Optional[bool] = ...) -> None: ...

class DrainInterpreterReply(_message.Message):
    __slots__ = ("interpreter",)
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    interpreter: Interpreter
    def __init__(self, interpreter: _Optional[_Union[Interpreter, _Mapping]] = ...) -> None: ...

class Home(_message.Message):
    __slots__ = ("environment", "isolated")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_FIELD_NUMBER: _ClassVar[int]
    environment: Environment
    isolated: bool
    def __init__(self, environment: _Optional[_Union[Environment, _Mapping]] = ..., isolated: _Optional[bool] = ...) -> None: ...

class ListLibrariesRequest(_message.Message):
    __slots__ = ("all_versions",)
    ALL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    all_versions: bool
    def __init__(self, all_versions: _Optional[bool] = ...) -> None: ...

class ListLibrariesReply(_message.Message):
    __slots__ = ("libraries",)
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    libraries: _containers.RepeatedCompositeFieldContainer[Library]
    def __init__(self, libraries: _Optional[_Iterable[_Union[Library, _Mapping]]] = ...) -> None: ...

class ListInterpretersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Interpreter(_message.Message):
    __slots__ = ("name", "pid", "supervised", "state", "libraries", "calls_in_flight", "calls_total", "connected_at", "python_version", "restarts", "heartbeat_age_seconds", "last_lines", "trouble", "devices", "reserved_for", "calls_queued", "bytes_queued", "transfers", "remote_values", "remote_bytes", "kernel_errors", "busy_operators")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SUPERVISED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CALLS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AT_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FOR_FIELD_NUMBER: _ClassVar[int]
    CALLS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    BYTES_QUEUED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_VALUES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    BUSY_OPERATORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pid: int
    supervised: bool
    state: str
    libraries: _containers.RepeatedScalarFieldContainer[str]
    calls_in_flight: int
    calls_total: int
    connected_at: _timestamp_pb2.Timestamp
    python_version: str
    restarts: int
    heartbeat_age_seconds: float
    last_lines: _containers.RepeatedScalarFieldContainer[str]
    trouble: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    reserved_for: str
    calls_queued: int
    bytes_queued: int
    transfers: _containers.RepeatedCompositeFieldContainer[DeviceTransfers]
    remote_values: int
    remote_bytes: int
    kernel_errors: int
    busy_operators: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., supervised: _Optional[bool] = ..., state: _Optional[str] = ..., libraries: _Optional[_Iterable[str]] = ..., calls_in_flight: _Optional[int] = ..., calls_total: _Optional[int] = ..., connected_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., python_version: _Optional[str] = ..., restarts: _Optional[int] = ..., heartbeat_age_seconds: _Optional[float] = ..., last_lines: _Optional[_Iterable[str]] = ..., trouble: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., reserved_for: _Optional[str] = ..., calls_queued: _Optional[int] = ..., bytes_queued: _Optional[int] = ..., transfers: _Optional[_Iterable[_Union[DeviceTransfers, _Mapping]]] = ..., remote_values: _Optional[int] = ..., remote_bytes: _Optional[int] = ..., kernel_errors: _Optional[int] = ..., busy_operators: _Optional[_Iterable[str]] = ...) -> None: ...

class DeviceTransfers(_message.Message):
    __slots__ = ("device", "to_device", "from_device", "from_peers")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TO_DEVICE_FIELD_NUMBER: _ClassVar[int]
    FROM_DEVICE_FIELD_NUMBER: _ClassVar[int]
    FROM_PEERS_FIELD_NUMBER: _ClassVar[int]
    device: str
    to_device: int
    from_device: int
    from_peers: int
    def __init__(self, device: _Optional[str] = ..., to_device: _Optional[int] = ..., from_device: _Optional[int] = ..., from_peers: _Optional[int] = ...) -> None: ...

class ReviveInterpreterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReviveInterpreterReply(_message.Message):
    __slots__ = ("revived",)
    REVIVED_FIELD_NUMBER: _ClassVar[int]
    revived: bool
    def __init__(self, revived: _Optional[bool] = ...) -> None: ...

class ListInterpretersReply(_message.Message):
    __slots__ = ("interpreters",)
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    interpreters: _containers.RepeatedCompositeFieldContainer[Interpreter]
    def __init__(self, interpreters: _Optional[_Iterable[_Union[Interpreter, _Mapping]]] = ...) -> None: ...

class ListOperatorsRequest(_message.Message):
    __slots__ = ("pattern",)
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    def __init__(self, pattern: _Optional[str] = ...) -> None: ...

class ListOperatorsReply(_message.Message):
    __slots__ = ("operators",)
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedCompositeFieldContainer[OperatorSummary]
    def __init__(self, operators: _Optional[_Iterable[_Union[OperatorSummary, _Mapping]]] = ...) -> None: ...

class OperatorSummary(_message.Message):
    __slots__ = ("name", "schema", "libraries", "keys", "kernel_errors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: str
    libraries: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[str]
    kernel_errors: int
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[str] = ..., libraries: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[str]] = ..., kernel_errors: _Optional[int] = ...) -> None: ...

class DescribeOperatorRequest(_message.Message):
    __slots__ = ("operator",)
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    operator: str
    def __init__(self, operator: _Optional[str] = ...) -> None: ...

class DescribeOperatorReply(_message.Message):
    __slots__ = ("summary", "documentation", "defined_at", "kernels", "tags")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    DEFINED_AT_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    summary: OperatorSummary
    documentation: str
    defined_at: str
    kernels: _containers.RepeatedCompositeFieldContainer[KernelSummary]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, summary: _Optional[_Union[OperatorSummary, _Mapping]] = ..., documentation: _Optional[str] = ..., defined_at: _Optional[str] = ..., kernels: _Optional[_Iterable[_Union[KernelSummary, _Mapping]]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class KernelSummary(_message.Message):
    __slots__ = ("key", "registered_at", "library", "interpreter", "fallthrough", "active")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    FALLTHROUGH_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    key: str
    registered_at: str
    library: str
    interpreter: str
    fallthrough: bool
    active: bool
    def __init__(self, key: _Optional[str] = ..., registered_at: _Optional[str] = ..., library: _Optional[str] = ..., interpreter: _Optional[str] = ..., fallthrough: _Optional[bool] = ..., active: _Optional[bool] = ...) -> None: ...

class GetDispatchTableRequest(_message.Message):
    __slots__ = ("operator",)
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    operator: str
    def __init__(self, operator: _Optional[str] = ...) -> None: ...

class GetDispatchTableReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[TableRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[TableRow, _Mapping]]] = ...) -> None: ...

class TableRow(_message.Message):
    __slots__ = ("key", "kernel", "reason", "fallthrough")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FALLTHROUGH_FIELD_NUMBER: _ClassVar[int]
    key: str
    kernel: str
    reason: str
    fallthrough: bool
    def __init__(self, key: _Optional[str] = ..., kernel: _Optional[str] = ..., reason: _Optional[str] = ..., fallthrough: _Optional[bool] = ...) -> None: ...

class WaitForDefRequest(_message.Message):
    __slots__ = ("operator", "timeout")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    operator: str
    timeout: float
    def __init__(self, operator: _Optional[str] = ..., timeout: _Optional[float] = ...) -> None: ...

class WaitForDefReply(_message.Message):
    __slots__ = ("operator",)
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    operator: OperatorSummary
    def __init__(self, operator: _Optional[_Union[OperatorSummary, _Mapping]] = ...) -> None: ...

class WaitForImplRequest(_message.Message):
    __slots__ = ("operator", "key", "timeout")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    operator: str
    key: str
    timeout: float
    def __init__(self, operator: _Optional[str] = ..., key: _Optional[str] = ..., timeout: _Optional[float] = ...) -> None: ...

class WaitForImplReply(_message.Message):
    __slots__ = ("kernel",)
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    kernel: KernelSummary
    def __init__(self, kernel: _Optional[_Union[KernelSummary, _Mapping]] = ...) -> None: ...

class WatchRegistryRequest(_message.Message):
    __slots__ = ("from_epoch", "instance", "activity")
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    from_epoch: int
    instance: str
    activity: bool
    def __init__(self, from_epoch: _Optional[int] = ..., instance: _Optional[str] = ..., activity: _Optional[bool] = ...) -> None: ...

class WatchRegistryReply(_message.Message):
    __slots__ = ("instance", "epoch", "whole", "more", "operators", "operators_gone", "libraries", "libraries_gone", "interpreters", "interpreters_gone", "activity")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_GONE_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_GONE_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_GONE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    instance: str
    epoch: int
    whole: bool
    more: bool
    operators: _containers.RepeatedCompositeFieldContainer[OperatorSummary]
    operators_gone: _containers.RepeatedScalarFieldContainer[str]
    libraries: _containers.RepeatedCompositeFieldContainer[Library]
    libraries_gone: _containers.RepeatedCompositeFieldContainer[LibraryVersion]
    interpreters: _containers.RepeatedCompositeFieldContainer[Interpreter]
    interpreters_gone: _containers.RepeatedScalarFieldContainer[str]
    activity: Activity
    def __init__(self, instance: _Optional[str] = ..., epoch: _Optional[int] = ..., whole: _Optional[bool] = ..., more: _Optional[bool] = ..., operators: _Optional[_Iterable[_Union[OperatorSummary, _Mapping]]] = ..., operators_gone: _Optional[_Iterable[str]] = ..., libraries: _Optional[_Iterable[_Union[Library, _Mapping]]] = ..., libraries_gone: _Optional[_Iterable[_Union[LibraryVersion, _Mapping]]] = ..., interpreters: _Optional[_Iterable[_Union[Interpreter, _Mapping]]] = ..., interpreters_gone: _Optional[_Iterable[str]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ...) -> None: ...

class LibraryVersion(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("interval", "ready", "interpreters", "calls", "total", "deaths", "since_start", "clients")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    SINCE_START_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    interval: float
    ready: bool
    interpreters: _containers.RepeatedCompositeFieldContainer[InterpreterActivity]
    calls: _containers.RepeatedCompositeFieldContainer[CallActivity]
    total: CallActivity
    deaths: _containers.RepeatedCompositeFieldContainer[InterpreterDeath]
    since_start: CallActivity
    clients: _containers.RepeatedCompositeFieldContainer[ClientCalls]
    def __init__(self, interval: _Optional[float] = ..., ready: _Optional[bool] = ..., interpreters: _Optional[_Iterable[_Union[InterpreterActivity, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[CallActivity, _Mapping]]] = ..., total: _Optional[_Union[CallActivity, _Mapping]] = ..., deaths: _Optional[_Iterable[_Union[InterpreterDeath, _Mapping]]] = ..., since_start: _Optional[_Union[CallActivity, _Mapping]] = ..., clients: _Optional[_Iterable[_Union[ClientCalls, _Mapping]]] = ...) -> None: ...

class ClientCalls(_message.Message):
    __slots__ = ("client", "calls")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    client: str
    calls: int
    def __init__(self, client: _Optional[str] = ..., calls: _Optional[int] = ...) -> None: ...

class InterpreterActivity(_message.Message):
    __slots__ = ("name", "running", "calls_in_flight", "calls_queued", "bytes_queued", "calls_total")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CALLS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    BYTES_QUEUED_FIELD_NUMBER: _ClassVar[int]
    CALLS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    running: _containers.RepeatedScalarFieldContainer[str]
    calls_in_flight: int
    calls_queued: int
    bytes_queued: int
    calls_total: int
    def __init__(self, name: _Optional[str] = ..., running: _Optional[_Iterable[str]] = ..., calls_in_flight: _Optional[int] = ..., calls_queued: _Optional[int] = ..., bytes_queued: _Optional[int] = ..., calls_total: _Optional[int] = ...) -> None: ...

class CallActivity(_message.Message):
    __slots__ = ("operator", "key", "library", "version", "ok", "failed", "died", "run_mean", "run_p99", "queue_mean", "queue_p99")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    RUN_MEAN_FIELD_NUMBER: _ClassVar[int]
    RUN_P99_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MEAN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_P99_FIELD_NUMBER: _ClassVar[int]
    operator: str
    key: str
    library: str
    version: str
    ok: int
    failed: int
    died: int
    run_mean: float
    run_p99: float
    queue_mean: float
    queue_p99: float
    def __init__(self, operator: _Optional[str] = ..., key: _Optional[str] = ..., library: _Optional[str] = ..., version: _Optional[str] = ..., ok: _Optional[int] = ..., failed: _Optional[int] = ..., died: _Optional[int] = ..., run_mean: _Optional[float] = ..., run_p99: _Optional[float] = ..., queue_mean: _Optional[float] = ..., queue_p99: _Optional[float] = ...) -> None: ...

class InterpreterDeath(_message.Message):
    __slots__ = ("interpreter", "cause", "reason", "at", "running")
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    interpreter: str
    cause: str
    reason: str
    at: _timestamp_pb2.Timestamp
    running: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, interpreter: _Optional[str] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., running: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckInvariantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckInvariantsReply(_message.Message):
    __slots__ = ("violations", "operators_checked")
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_CHECKED_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedScalarFieldContainer[str]
    operators_checked: int
    def __init__(self, violations: _Optional[_Iterable[str]] = ..., operators_checked: _Optional[int] = ...) -> None: ...
