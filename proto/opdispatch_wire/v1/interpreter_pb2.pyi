from google.rpc import status_pb2 as _status_pb2
from opdispatch_wire.v1 import registry_pb2 as _registry_pb2
from opdispatch_wire.v1 import remote_pb2 as _remote_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchLibraryRequest(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchLibraryReply(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class InterpreterMessage(_message.Message):
    __slots__ = ("instruction_id", "hello", "staged", "done", "failed", "heartbeat", "overdue", "direct_ports", "registry_report", "kernel_errors", "settled_values")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_PORTS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_REPORT_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_VALUES_FIELD_NUMBER: _ClassVar[int]
    instruction_id: int
    hello: Hello
    staged: RegistrationBatch
    done: Done
    failed: _status_pb2.Status
    heartbeat: Heartbeat
    overdue: OverdueCall
    direct_ports: DirectPorts
    registry_report: RegistryReport
    kernel_errors: KernelErrors
    settled_values: _remote_pb2.SettledValues
    def __init__(self, instruction_id: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., staged: _Optional[_Union[RegistrationBatch, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failed: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., overdue: _Optional[_Union[OverdueCall, _Mapping]] = ..., direct_ports: _Optional[_Union[DirectPorts, _Mapping]] = ..., registry_report: _Optional[_Union[RegistryReport, _Mapping]] = ..., kernel_errors: _Optional[_Union[KernelErrors, _Mapping]] = ..., settled_values: _Optional[_Union[_remote_pb2.SettledValues, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "name", "pid", "address", "python_version", "devices", "process_space", "heartbeats", "lane", "direct_lane", "flight_record", "call_counts", "ticket_key", "tls")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SPACE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_LANE_FIELD_NUMBER: _ClassVar[int]
    FLIGHT_RECORD_FIELD_NUMBER: _ClassVar[int]
    CALL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TICKET_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    pid: int
    address: str
    python_version: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    process_space: str
    heartbeats: bool
    lane: str
    direct_lane: str
    flight_record: int
    call_counts: int
    ticket_key: bytes
    tls: bool
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., python_version: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., process_space: _Optional[str] = ..., heartbeats: _Optional[bool] = ..., lane: _Optional[str] = ..., direct_lane: _Optional[str] = ..., flight_record: _Optional[int] = ..., call_counts: _Optional[int] = ..., ticket_key: _Optional[bytes] = ..., tls: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("direct_calls_in_flight", "direct_calls_total", "transfers", "call_counts", "library_metrics", "clients", "problem", "suspect")
    DIRECT_CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DIRECT_CALLS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    CALL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_METRICS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    direct_calls_in_flight: int
    direct_calls_total: int
    transfers: _containers.RepeatedCompositeFieldContainer[_registry_pb2.DeviceTransfers]
    call_counts: _containers.RepeatedCompositeFieldContainer[CallCountRow]
    library_metrics: _containers.RepeatedCompositeFieldContainer[LibraryMetric]
    clients: _containers.RepeatedCompositeFieldContainer[_registry_pb2.ClientCalls]
    problem: str
    suspect: str
    def __init__(self, direct_calls_in_flight: _Optional[int] = ..., direct_calls_total: _Optional[int] = ..., transfers: _Optional[_Iterable[_Union[_registry_pb2.DeviceTransfers, _Mapping]]] = ..., call_counts: _Optional[_Iterable[_Union[CallCountRow, _Mapping]]] = ..., library_metrics: _Optional[_Iterable[_Union[LibraryMetric, _Mapping]]] = ..., clients: _Optional[_Iterable[_Union[_registry_pb2.ClientCalls, _Mapping]]] = ..., problem: _Optional[str] = ..., suspect: _Optional[str] = ...) -> None: ...

class LibraryMetric(_message.Message):
    __slots__ = ("name", "documentation", "is_counter", "labels", "series")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    IS_COUNTER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    documentation: str
    is_counter: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    series: _containers.RepeatedCompositeFieldContainer[LibrarySeries]
    def __init__(self, name: _Optional[str] = ..., documentation: _Optional[str] = ..., is_counter: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., series: _Optional[_Iterable[_Union[LibrarySeries, _Mapping]]] = ...) -> None: ...

class LibrarySeries(_message.Message):
    __slots__ = ("values", "value")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    value: float
    def __init__(self, values: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ...) -> None: ...

class CallCountRow(_message.Message):
    __slots__ = ("row", "words")
    ROW_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    row: int
    words: bytes
    def __init__(self, row: _Optional[int] = ..., words: _Optional[bytes] = ...) -> None: ...

class OverdueCall(_message.Message):
    __slots__ = ("operator", "lane", "id")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    operator: str
    lane: int
    id: int
    def __init__(self, operator: _Optional[str] = ..., lane: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class KernelErrors(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[KernelErrorCount]
    def __init__(self, counts: _Optional[_Iterable[_Union[KernelErrorCount, _Mapping]]] = ...) -> None: ...

class KernelErrorCount(_message.Message):
    __slots__ = ("operator", "load_id", "count")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    operator: str
    load_id: int
    count: int
    def __init__(self, operator: _Optional[str] = ..., load_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class DirectPorts(_message.Message):
    __slots__ = ("ports",)
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ports: _Optional[_Iterable[int]] = ...) -> None: ...

class DaemonMessage(_message.Message):
    __slots__ = ("instruction_id", "welcome", "stage", "commit", "abort", "retire", "mirror", "restore", "goodbye", "trim", "direct_calls", "await_direct_calls", "report_registry", "fetch", "release_values", "settle_values")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    TRIM_FIELD_NUMBER: _ClassVar[int]
    DIRECT_CALLS_FIELD_NUMBER: _ClassVar[int]
    AWAIT_DIRECT_CALLS_FIELD_NUMBER: _ClassVar[int]
    REPORT_REGISTRY_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_VALUES_FIELD_NUMBER: _ClassVar[int]
    SETTLE_VALUES_FIELD_NUMBER: _ClassVar[int]
    instruction_id: int
    welcome: Welcome
    stage: Stage
    commit: Commit
    abort: Abort
    retire: Retire
    mirror: Mirror
    restore: Restore
    goodbye: Goodbye
    trim: TrimMemory
    direct_calls: DirectCalls
    await_direct_calls: AwaitDirectCalls
    report_registry: ReportRegistry
    fetch: Fetch
    release_values: _remote_pb2.ReleaseValues
    settle_values: _remote_pb2.SettleValues
    def __init__(self, instruction_id: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., mirror: _Optional[_Union[Mirror, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., trim: _Optional[_Union[TrimMemory, _Mapping]] = ..., direct_calls: _Optional[_Union[DirectCalls, _Mapping]] = ..., await_direct_calls: _Optional[_Union[AwaitDirectCalls, _Mapping]] = ..., report_registry: _Optional[_Union[ReportRegistry, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., release_values: _Optional[_Union[_remote_pb2.ReleaseValues, _Mapping]] = ..., settle_values: _Optional[_Union[_remote_pb2.SettleValues, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("name", "max_message_bytes", "heartbeat_seconds", "lane", "direct_calls", "slow_call_seconds", "wants_call_counts", "tracing", "reads_heartbeats")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_CALLS_FIELD_NUMBER: _ClassVar[int]
    SLOW_CALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WANTS_CALL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TRACING_FIELD_NUMBER: _ClassVar[int]
    READS_HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_message_bytes: int
    heartbeat_seconds: float
    lane: str
    direct_calls: DirectCallRules
    slow_call_seconds: float
    wants_call_counts: bool
    tracing: str
    reads_heartbeats: bool
    def __init__(self, name: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., lane: _Optional[str] = ..., direct_calls: _Optional[_Union[DirectCallRules, _Mapping]] = ..., slow_call_seconds: _Optional[float] = ..., wants_call_counts: _Optional[bool] = ..., tracing: _Optional[str] = ..., reads_heartbeats: _Optional[bool] = ...) -> None: ...

class DirectCallRules(_message.Message):
    __slots__ = ("run", "queue_calls", "queue_bytes", "kernel_timeout", "hosts", "first_port", "last_port", "max_call_bytes", "session", "ticket_key", "tls_cert", "tls_key", "tls_client_ca")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CALLS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_PORT_FIELD_NUMBER: _ClassVar[int]
    LAST_PORT_FIELD_NUMBER: _ClassVar[int]
    MAX_CALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_CERT_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_CLIENT_CA_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    queue_calls: int
    queue_bytes: int
    kernel_timeout: float
    hosts: _containers.RepeatedScalarFieldContainer[str]
    first_port: int
    last_port: int
    max_call_bytes: int
    session: int
    ticket_key: bytes
    tls_cert: str
    tls_key: str
    tls_client_ca: str
    def __init__(self, run: _Optional[bytes] = ..., queue_calls: _Optional[int] = ..., queue_bytes: _Optional[int] = ..., kernel_timeout: _Optional[float] = ..., hosts: _Optional[_Iterable[str]] = ..., first_port: _Optional[int] = ..., last_port: _Optional[int] = ..., max_call_bytes: _Optional[int] = ..., session: _Optional[int] = ..., ticket_key: _Optional[bytes] = ..., tls_cert: _Optional[str] = ..., tls_key: _Optional[str] = ..., tls_client_ca: _Optional[str] = ...) -> None: ...

class DirectCalls(_message.Message):
    __slots__ = ("epoch", "revoked")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    revoked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., revoked: _Optional[_Iterable[str]] = ...) -> None: ...

class AwaitDirectCalls(_message.Message):
    __slots__ = ("load_id",)
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    def __init__(self, load_id: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "come_back")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COME_BACK_FIELD_NUMBER: _ClassVar[int]
    reason: str
    come_back: bool
    def __init__(self, reason: _Optional[str] = ..., come_back: _Optional[bool] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("load_id", "name", "sha256", "module", "filename", "folder", "replaces", "version")
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    name: str
    sha256: str
    module: str
    filename: str
    folder: str
    replaces: int
    version: int
    def __init__(self, load_id: _Optional[int] = ..., name: _Optional[str] = ..., sha256: _Optional[str] = ..., module: _Optional[str] = ..., filename: _Optional[str] = ..., folder: _Optional[str] = ..., replaces: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("sha256", "filename", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    filename: str
    size: int
    def __init__(self, sha256: _Optional[str] = ..., filename: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("load_id", "above")
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    above: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, load_id: _Optional[int] = ..., above: _Optional[_Iterable[int]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("load_id",)
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    def __init__(self, load_id: _Optional[int] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("load_id", "keep")
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    keep: bool
    def __init__(self, load_id: _Optional[int] = ..., keep: _Optional[bool] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("load_id",)
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    def __init__(self, load_id: _Optional[int] = ...) -> None: ...

class TrimMemory(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportRegistry(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegistryReport(_message.Message):
    __slots__ = ("load_ids", "violations")
    LOAD_IDS_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    load_ids: _containers.RepeatedScalarFieldContainer[int]
    violations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, load_ids: _Optional[_Iterable[int]] = ..., violations: _Optional[_Iterable[str]] = ...) -> None: ...

class Mirror(_message.Message):
    __slots__ = ("load_id", "name", "batch", "above")
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    load_id: int
    name: str
    batch: RegistrationBatch
    above: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, load_id: _Optional[int] = ..., name: _Optional[str] = ..., batch: _Optional[_Union[RegistrationBatch, _Mapping]] = ..., above: _Optional[_Iterable[int]] = ...) -> None: ...

class RegistrationBatch(_message.Message):
    __slots__ = ("registrations", "sha256", "max_concurrency", "device_types", "has_unload_hooks")
    REGISTRATIONS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPES_FIELD_NUMBER: _ClassVar[int]
    HAS_UNLOAD_HOOKS_FIELD_NUMBER: _ClassVar[int]
    registrations: _containers.RepeatedCompositeFieldContainer[Registration]
    sha256: str
    max_concurrency: int
    device_types: _containers.RepeatedScalarFieldContainer[str]
    has_unload_hooks: bool
    def __init__(self, registrations: _Optional[_Iterable[_Union[Registration, _Mapping]]] = ..., sha256: _Optional[str] = ..., max_concurrency: _Optional[int] = ..., device_types: _Optional[_Iterable[str]] = ..., has_unload_hooks: _Optional[bool] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("site", "namespace", "definition", "implementation", "fallback")
    SITE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATION_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    site: str
    namespace: NamespaceRegistration
    definition: DefinitionRegistration
    implementation: ImplementationRegistration
    fallback: FallbackRegistration
    def __init__(self, site: _Optional[str] = ..., namespace: _Optional[_Union[NamespaceRegistration, _Mapping]] = ..., definition: _Optional[_Union[DefinitionRegistration, _Mapping]] = ..., implementation: _Optional[_Union[ImplementationRegistration, _Mapping]] = ..., fallback: _Optional[_Union[FallbackRegistration, _Mapping]] = ...) -> None: ...

class NamespaceRegistration(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class DefinitionRegistration(_message.Message):
    __slots__ = ("schema", "tags")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schema: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class ImplementationRegistration(_message.Message):
    __slots__ = ("operator", "key", "kernel")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    operator: str
    key: str
    kernel: KernelTraits
    def __init__(self, operator: _Optional[str] = ..., key: _Optional[str] = ..., kernel: _Optional[_Union[KernelTraits, _Mapping]] = ...) -> None: ...

class FallbackRegistration(_message.Message):
    __slots__ = ("key", "kernel")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    key: str
    kernel: KernelTraits
    def __init__(self, key: _Optional[str] = ..., kernel: _Optional[_Union[KernelTraits, _Mapping]] = ...) -> None: ...

class KernelTraits(_message.Message):
    __slots__ = ("fallthrough", "with_keyset", "documentation")
    FALLTHROUGH_FIELD_NUMBER: _ClassVar[int]
    WITH_KEYSET_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    fallthrough: bool
    with_keyset: bool
    documentation: str
    def __init__(self, fallthrough: _Optional[bool] = ..., with_keyset: _Optional[bool] = ..., documentation: _Optional[str] = ...) -> None: ...
