"""The daemon's state as returned by sessions: frozen dataclasses, read from messages.

Times are aware datetimes in UTC. Lists keep the order in which the daemon sent them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from opdispatch.arrays import DeviceTransfers
    from opdispatch_wire.v1 import registry_pb2


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The daemon at the other end of a session."""

    protocol_version: int
    server_version: str
    max_message_bytes: int
    """The largest message that the daemon accepts and sends."""
    pid: int
    epoch: int
    """Number of publications so far; if it is unchanged, so is the registry."""
    addresses: tuple[str, ...]
    lane: str = ""
    """The path of its local lane, on its own machine; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Library:
    """One version of a loaded library."""

    name: str
    version: int
    sha256: str
    """The digest of the content, in hexadecimal; empty for a module without a file."""
    source: str
    """The file's name, or the module's dotted name."""
    interpreters: tuple[str, ...]
    """Names of the interpreters that hold it; the first is the primary."""
    loaded_at: datetime | None
    """Time at which its registrations were published."""
    operators: tuple[str, ...]
    """The operators that it defines or implements."""
    active: bool
    """Whether new calls use it."""
    calls_in_flight: int
    """Calls that run or are queued."""
    interpreters_wanted: int
    """Requested number of interpreters."""
    device: str
    """Type of device that its interpreters must have; empty for any."""
    loaded_by: str
    """``USER@HOST`` as sent by the client, else the address of the request."""
    state: str
    """``active``, ``kept`` (below a newer version), ``waiting`` (for an interpreter) or ``failed``
    (could not be loaded again).
    """
    error: str
    """Reason of the state "failed", else empty."""
    max_concurrency: int
    """Number of its client calls that one interpreter runs at a time."""
    isolated: bool
    """Whether it has interpreters of its own."""
    requirements: tuple[str, ...]
    """The requirements of its interpreters' environment."""
    python: str
    """The Python of the existing environment that its interpreters run in."""
    kernel_errors: int
    """Number of calls of this version that its kernels have failed."""
    trouble: str
    """Recent deaths of interpreters that it caused, and the consequences, as text."""
    waiting_for: str
    """Reason why fewer interpreters hold it than requested; empty if enough do."""


@dataclass(frozen=True, slots=True)
class LoadedLibrary(Library):
    """The result of loading a library."""

    already_loaded: bool
    """Whether the same content was already loaded under that name, so that nothing changed."""
    role: str
    """The role of the interpreter that was named, or that imported the library for this load.

    "primary" if its registrations were published, "replica" if they were compared with the
    published ones; empty if there is no such interpreter.
    """


@dataclass(frozen=True, slots=True)
class UnloadedLibrary:
    """The result of unloading a library."""

    active: Library | None
    """The version that is now active; None if the library is gone."""
    memory_bytes: int | None
    """Memory freed, in bytes; None if unknown."""
    memory_exact: bool
    """Whether that is exact: the memory of interpreters that ended with the library.

    Otherwise it is how much less memory the remaining interpreters have, whatever else they did
    meanwhile.
    """


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The result of rolling a library back."""

    active: Library
    """The version that is now active."""
    replaced: Library
    """The version that was active before; the next rollback reactivates it."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A worker interpreter that is connected to the daemon, or is quarantined."""

    name: str
    pid: int
    supervised: bool
    """Whether the daemon started it, and restarts it if it dies."""
    state: str
    """``ready``, ``loading``, ``busy`` (a kernel holds the GIL), ``unfit`` (about to be replaced),
    ``apart`` (reserved for libraries that have crashed interpreters), or ``quarantined`` (died too
    often, and is not running).
    """
    libraries: tuple[str, ...]
    calls_in_flight: int
    calls_total: int
    connected_at: datetime | None
    python_version: str
    restarts: int
    devices: tuple[str, ...]
    """``cpu``, ``cuda:0``, ..."""
    heartbeat_age: float | None
    """Seconds since the last heartbeat; None if it sends none."""
    last_lines: tuple[str, ...]
    """The last lines of its output, if the daemon started it."""
    trouble: str
    """Reason of the state ``quarantined``, ``busy`` or ``unfit``, else empty."""
    calls_queued: int
    """Calls that wait in the daemon for this interpreter."""
    bytes_queued: int
    """The size of their requests."""
    remote_values: int
    """Values that it keeps for clients."""
    remote_bytes: int
    transfers: dict[str, DeviceTransfers]
    """Copies to and from its devices, by device, as of the last heartbeat."""
    reserved_for: str
    """The libraries that it takes: those of "library NAME" or "environment KEY"; empty: any."""
    kernel_errors: int
    """Number of calls that kernels have failed there since it connected."""
    busy_operators: tuple[str, ...] = ()
    """While it is busy: the running operators, one of which holds the GIL."""


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """One operator, as in a list."""

    name: str
    schema: str
    """Empty if there are kernels but no definition."""
    libraries: tuple[str, ...]
    keys: tuple[str, ...]
    """The dispatch keys with a kernel of their own."""
    kernel_errors: int
    """Number of calls that its kernels have failed."""


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One registered kernel."""

    key: str
    registered_at: str
    """``FILE:LINE``"""
    library: str
    interpreter: str
    fallthrough: bool
    active: bool
    """Whether it is the newest for its key."""


@dataclass(frozen=True, slots=True)
class OperatorDescription(OperatorSummary):
    """One operator in full."""

    documentation: str
    defined_at: str
    """``FILE:LINE``; empty if there are kernels but no definition."""
    kernels: tuple[KernelSummary, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One slot of an operator's computed dispatch table."""

    key: str
    kernel: str
    """Place of the kernel's registration, ``FILE:LINE``."""
    reason: str
    """Reason for the kernel: "kernel", "math kernel", "backend fallback", ..."""
    fallthrough: bool


@dataclass(frozen=True, slots=True)
class CallActivity:
    """The calls of one kind that ended during an interval. Times are in seconds."""

    operator: str
    key: str
    """The dispatch key whose kernel ran."""
    library: str
    version: str
    ok: int
    failed: int
    died: int
    """Calls that ended with their interpreter."""
    run_mean: float
    """The average run time of kernels."""
    run_p99: float
    """The 99th percentile of the run time."""
    queue_mean: float
    """The average time in queues."""
    queue_p99: float

    @property
    def count(self) -> int:
        """The number of calls."""
        return self.ok + self.failed + self.died


@dataclass(frozen=True, slots=True)
class InterpreterActivity:
    """The activity of one interpreter at one moment."""

    name: str
    running: tuple[str, ...]
    """The operators whose kernels are running; known only for the daemon's machine."""
    calls_in_flight: int
    calls_queued: int
    """Calls that wait in the daemon for this interpreter."""
    bytes_queued: int
    """The size of their requests."""
    calls_total: int


@dataclass(frozen=True, slots=True)
class InterpreterDeath:
    """The death of an interpreter: any end other than an orderly shutdown."""

    interpreter: str
    cause: str
    """``crashed``, ``killed``, ``overdue``, ``locked``, ``silent`` or ``unfit``."""
    reason: str
    at: datetime | None
    running: tuple[str, ...]
    """The operators whose kernels were running."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of interpreters, and the calls that ended during an interval."""

    interval: float
    """Seconds; 0 for the first report, whose counts begin with the daemon's start."""
    ready: bool
    """Whether the daemon serves calls."""
    interpreters: tuple[InterpreterActivity, ...]
    calls: tuple[CallActivity, ...]
    """The kinds of calls with the longest total run time, at most 100."""
    total: CallActivity
    """All calls."""
    deaths: tuple[InterpreterDeath, ...]
    """The last 32 deaths, newest first."""
    since_start: CallActivity
    """All calls since the daemon's start."""
    clients: tuple[tuple[str, int], ...]
    """Number of calls by client, for the 20 clients with the most calls.

    On a local lane, a client is a process, ``NAME[PID]``; otherwise a token's name, or the address
    of a machine.
    """


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """One change of the registry. The first of a stream has all libraries and interpreters."""

    instance: str
    """Id of the daemon's run; epochs start again in the next run."""
    epoch: int
    whole: bool
    """Whether ``operators`` has all existing operators."""
    more: bool
    operators: tuple[OperatorSummary, ...]
    """Operators that are new, or whose schema, libraries or kernels have changed."""
    operators_gone: tuple[str, ...]
    libraries: tuple[Library, ...]
    """All versions that are new or changed, ignoring counts that calls change."""
    libraries_gone: tuple[tuple[str, int], ...]
    """The names and versions of removed libraries."""
    interpreters: tuple[Interpreter, ...]
    """Interpreters that are new or changed, ignoring counts that calls change."""
    interpreters_gone: tuple[str, ...]
    activity: Activity | None

    @property
    def is_empty(self) -> bool:
        """Whether it has no changes and only shows that the daemon is alive."""
        lists = (self.operators, self.operators_gone, self.libraries, self.libraries_gone)
        others = (self.interpreters, self.interpreters_gone)
        return not (self.whole or self.activity or any(lists) or any(others))

    def joined_by(self, more: RegistryChange) -> RegistryChange:
        """Return this part of a change merged with the next part."""
        return replace(
            more,
            operators=self.operators + more.operators,
            operators_gone=self.operators_gone + more.operators_gone,
            libraries=self.libraries + more.libraries,
            libraries_gone=self.libraries_gone + more.libraries_gone,
            interpreters=self.interpreters + more.interpreters,
            interpreters_gone=self.interpreters_gone + more.interpreters_gone,
            activity=more.activity or self.activity,
        )


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One step of a dispatch: the key, the kernel that served it, and the reason."""

    depth: int
    kind: str
    operator: str
    key: str
    kernel: str
    reason: str
    interpreter: str
    """The process in which the kernel ran; empty for a step in the daemon."""

    def __str__(self) -> str:
        """Return the line as PyTorch prints it, then the kernel and its reason."""
        place = " ".join(filter(None, (self.reason, self.kernel, self.interpreter)))
        head = f"{' ' * self.depth} [{self.kind}] op=[{self.operator}], key=[{self.key}]"
        return f"{head} ({place})" if place else head


def library_from_proto(msg: registry_pb2.Library) -> Library:
    """Decode the message."""
    return read_fields(Library, msg, **_fields_of_library(msg))


def unloaded_library_from_proto(msg: registry_pb2.UnloadLibraryReply) -> UnloadedLibrary:
    """Decode the message."""
    from opdispatch_wire.v1 import registry_pb2  # listings are imported without gRPC

    exact = msg.memory_measure == registry_pb2.MEMORY_MEASURE_ENDED_INTERPRETERS
    known = exact or msg.memory_measure == registry_pb2.MEMORY_MEASURE_DIFFERENCE
    return UnloadedLibrary(
        active=library_from_proto(msg.active) if msg.HasField("active") else None,
        memory_bytes=msg.memory_bytes if known else None,
        memory_exact=exact,
    )


def loaded_library_from_proto(msg: registry_pb2.LoadLibraryReply) -> LoadedLibrary:
    """Decode the message."""
    others = _fields_of_library(msg.library)
    return read_fields(
        LoadedLibrary, msg.library, **others, already_loaded=msg.already_loaded, role=msg.role
    )


def rolled_back_from_proto(msg: registry_pb2.RollbackLibraryReply) -> RolledBack:
    """Decode the message."""
    return RolledBack(library_from_proto(msg.active), library_from_proto(msg.replaced))


def interpreter_from_proto(msg: registry_pb2.Interpreter) -> Interpreter:
    """Decode the message."""
    from opdispatch.arrays import DeviceTransfers  # the command line starts without it

    has_heartbeat = msg.HasField("heartbeat_age_seconds")
    return read_fields(
        Interpreter,
        msg,
        connected_at=_time_of(msg, "connected_at"),
        heartbeat_age=msg.heartbeat_age_seconds if has_heartbeat else None,
        transfers={
            each.device: DeviceTransfers(each.to_device, each.from_device, each.from_peers)
            for each in msg.transfers
        },
    )


def registry_change_from_proto(msg: registry_pb2.WatchRegistryReply) -> RegistryChange:
    """Decode the message."""
    return read_fields(
        RegistryChange,
        msg,
        operators=tuple(read_fields(OperatorSummary, each) for each in msg.operators),
        libraries=tuple(map(library_from_proto, msg.libraries)),
        libraries_gone=tuple((each.name, each.version) for each in msg.libraries_gone),
        interpreters=tuple(map(interpreter_from_proto, msg.interpreters)),
        activity=_activity_from_proto(msg.activity) if msg.HasField("activity") else None,
    )


def _activity_from_proto(msg: registry_pb2.Activity) -> Activity:
    return read_fields(
        Activity,
        msg,
        interpreters=tuple(read_fields(InterpreterActivity, each) for each in msg.interpreters),
        calls=tuple(read_fields(CallActivity, each) for each in msg.calls),
        total=read_fields(CallActivity, msg.total),
        clients=tuple((each.client, each.calls) for each in msg.clients),
        since_start=read_fields(CallActivity, msg.since_start),
        deaths=tuple(
            read_fields(InterpreterDeath, each, at=_time_of(each, "at")) for each in msg.deaths
        ),
    )


def operator_description_from_proto(
    msg: registry_pb2.DescribeOperatorReply,
) -> OperatorDescription:
    """Decode the message."""
    return read_fields(
        OperatorDescription,
        msg.summary,
        documentation=msg.documentation,
        defined_at=msg.defined_at,
        kernels=tuple(read_fields(KernelSummary, each) for each in msg.kernels),
        tags=tuple(msg.tags),
    )


def read_fields(cls: type[_T], msg: Message, **others: Any) -> _T:
    """Return a ``cls`` with the message's fields of the same names, and ``others``."""
    names: Any = cls.__dataclass_fields__.keys() - others.keys()  # type: ignore[attr-defined]
    values = ((name, getattr(msg, name)) for name in names)
    read = {name: v if isinstance(v, str | int | float) else tuple(v) for name, v in values}
    return cls(**read, **others)


def _fields_of_library(msg: registry_pb2.Library) -> dict[str, Any]:
    """Return the fields of a Library that its message represents differently."""
    return {
        "loaded_at": _time_of(msg, "loaded_at"),
        "max_concurrency": max(msg.max_concurrency, 1),
        "isolated": msg.home.isolated,
        "requirements": tuple(msg.home.environment.requirements),
        "python": msg.home.environment.python,
    }


def _time_of(msg: Message, name: str) -> datetime | None:
    return getattr(msg, name).ToDatetime(tzinfo=UTC) if msg.HasField(name) else None
