"""State of the daemon as clients see it: frozen values, read from messages field by field.

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
    """Counts publications: unequal values mean that the registry may have changed."""
    addresses: tuple[str, ...]
    lane: str = ""
    """The path of its local lane, on its own machine; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Library:
    """One version of a loaded library."""

    name: str
    version: int
    sha256: str
    """Of its content, in hexadecimal; empty for a module without a file."""
    source: str
    """The file's name, or the module's dotted name."""
    interpreters: tuple[str, ...]
    """Those that hold it; the first one is the primary."""
    loaded_at: datetime | None
    """When its registrations were published."""
    operators: tuple[str, ...]
    """Those that it defines or implements."""
    active: bool
    """Whether calls that start now use it."""
    calls_in_flight: int
    """Those that run, and those that wait for their turn."""
    interpreters_wanted: int
    """How many interpreters shall hold it."""
    device: str
    """The kind of device that its interpreters must have; empty: any."""
    loaded_by: str
    """``USER@HOST`` as the client said, else where the request came from."""
    state: str
    """"active", "kept" below a newer one, "waiting" for an interpreter, or "failed": it could
    not be loaded again."""
    error: str
    """Why, if it has failed."""
    max_concurrency: int
    """How many calls of clients one interpreter runs of it at a time."""
    isolated: bool
    """Whether it has interpreters of its own."""
    requirements: tuple[str, ...]
    """Requirements of its interpreters' environment."""
    python: str
    """The Python of the existing environment that its interpreters run in."""
    kernel_errors: int
    """How many calls of this version its kernels have failed."""
    trouble: str
    """Recent harm to interpreters, and its consequences; empty if there is none."""
    waiting_for: str
    """Reason why it is in fewer interpreters than it should be."""


@dataclass(frozen=True, slots=True)
class LoadedLibrary(Library):
    """Result of loading a library."""

    already_loaded: bool
    """The same content was loaded under that name before, so nothing has changed."""
    role: str
    """Role of the interpreter that was named, or that has imported it for this load: "primary"
    if its registrations were published, "replica" if they were verified to be the published
    ones; empty if there is no such interpreter."""


@dataclass(frozen=True, slots=True)
class UnloadedLibrary:
    """Result of unloading a library."""

    active: Library | None
    """The version that is active now; None if the library is gone."""
    memory_bytes: int | None
    """How much memory that gives back; None if unknown."""
    memory_exact: bool
    """Whether that is what interpreters had that ended with the library; otherwise it is by how
    much others have less than before, whatever else they did meanwhile."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Result of rolling a library back."""

    active: Library
    """The version that is active now."""
    replaced: Library
    """The one that was; the next rollback brings it back."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A worker interpreter that is connected to the daemon, or is quarantined."""

    name: str
    pid: int
    supervised: bool
    """Whether the daemon started it, and starts it again if it dies."""
    state: str
    """``ready``, ``loading``, ``busy`` while a kernel keeps its interpreter lock, ``unfit`` before
    it is replaced, ``apart`` if it is for libraries that have brought interpreters down, or
    ``quarantined``: it died too often and is not running."""
    libraries: tuple[str, ...]
    calls_in_flight: int
    calls_total: int
    connected_at: datetime | None
    python_version: str
    restarts: int
    devices: tuple[str, ...]
    """``cpu``, ``cuda:0``, ..."""
    heartbeat_age: float | None
    """Seconds since it was last heard of; None if it sends no heartbeats."""
    last_lines: tuple[str, ...]
    """Last lines that it has printed; of one that the daemon started."""
    trouble: str
    """Why it is quarantined, busy or unfit; empty if it is not."""
    calls_queued: int
    """Those that wait in the daemon for this interpreter."""
    bytes_queued: int
    """The size of their requests."""
    remote_values: int
    """Those that it keeps for clients."""
    remote_bytes: int
    transfers: dict[str, DeviceTransfers]
    """Copies to its devices and from them, by device, as of its last heartbeat."""
    reserved_for: str
    """Libraries that it takes: those of "library NAME" or "environment KEY"; empty means any."""
    kernel_errors: int
    """How many calls kernels have failed there since it is connected."""
    busy_operators: tuple[str, ...] = ()
    """While it is busy: the operators one of which keeps its interpreter lock."""


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """One operator, as a list shows it."""

    name: str
    schema: str
    """Empty if there are kernels but no definition."""
    libraries: tuple[str, ...]
    keys: tuple[str, ...]
    """The dispatch keys that have a kernel of their own."""
    kernel_errors: int
    """How many calls its kernels have failed."""


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
    """Whether it is the newest of its key."""


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
    """Where the kernel was registered."""
    reason: str
    """Why it has the slot: "kernel", "math kernel", "backend fallback", ..."""
    fallthrough: bool


@dataclass(frozen=True, slots=True)
class CallActivity:
    """Calls of one kind that have ended during an interval. Times are in seconds."""

    operator: str
    key: str
    """The dispatch key whose kernel ran."""
    library: str
    version: str
    ok: int
    failed: int
    died: int
    """Those that ended with their interpreter."""
    run_mean: float
    """How long kernels ran, on average."""
    run_p99: float
    """How long 99 of 100 calls ran at most."""
    queue_mean: float
    """How long calls waited, on average."""
    queue_p99: float

    @property
    def count(self) -> int:
        """All of them."""
        return self.ok + self.failed + self.died


@dataclass(frozen=True, slots=True)
class InterpreterActivity:
    """The work of one interpreter at one moment."""

    name: str
    running: tuple[str, ...]
    """Operators whose kernels run; known only of interpreters on the daemon's machine."""
    calls_in_flight: int
    calls_queued: int
    """Those that wait in the daemon for this interpreter."""
    bytes_queued: int
    """The size of their requests."""
    calls_total: int


@dataclass(frozen=True, slots=True)
class InterpreterDeath:
    """The end of an interpreter that was no orderly one."""

    interpreter: str
    cause: str
    """``crashed``, ``killed``, ``overdue``, ``locked``, ``silent`` or ``unfit``."""
    reason: str
    at: datetime | None
    running: tuple[str, ...]
    """The operators whose kernels were running."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of interpreters, and the calls that have ended during an interval."""

    interval: float
    """In seconds; 0 for the first one, whose counts are those since the daemon's start."""
    ready: bool
    """Whether the daemon serves calls."""
    interpreters: tuple[InterpreterActivity, ...]
    calls: tuple[CallActivity, ...]
    """Those that have run for the longest time in all, at most 100."""
    total: CallActivity
    """All calls."""
    deaths: tuple[InterpreterDeath, ...]
    """The last 32, the latest first."""
    since_start: CallActivity
    """All calls since the daemon's start."""
    clients: tuple[tuple[str, int], ...]
    """Clients with the calls that they have sent, those with most first, at most 20. A client is
    its process, ``NAME[PID]``, at a local lane; else its token, or its machine's address."""


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """One change of the registry. The first one of a stream has all libraries and interpreters."""

    instance: str
    """The run of the daemon; epochs begin again with the next one."""
    epoch: int
    whole: bool
    """Whether ``operators`` are all there are."""
    more: bool
    operators: tuple[OperatorSummary, ...]
    """Those that have come, or whose schema, libraries or kernels have changed."""
    operators_gone: tuple[str, ...]
    libraries: tuple[Library, ...]
    """All versions that have come or changed, without the counts that calls change."""
    libraries_gone: tuple[tuple[str, int], ...]
    """Names and versions."""
    interpreters: tuple[Interpreter, ...]
    """Those that have come or changed, without the counts that calls change."""
    interpreters_gone: tuple[str, ...]
    activity: Activity | None

    @property
    def is_empty(self) -> bool:
        """Whether it says only that the daemon is there."""
        lists = (self.operators, self.operators_gone, self.libraries, self.libraries_gone)
        others = (self.interpreters, self.interpreters_gone)
        return not (self.whole or self.activity or any(lists) or any(others))

    def joined_by(self, more: RegistryChange) -> RegistryChange:
        """Return this part of a change with the next one."""
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
    """One step of a dispatch: which key was served, by which kernel, and why."""

    depth: int
    kind: str
    operator: str
    key: str
    kernel: str
    reason: str
    interpreter: str
    """The process that the kernel ran in; empty for the daemon's own choice."""

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
    """Return the fields of a Library that stand otherwise in its message."""
    return {
        "loaded_at": _time_of(msg, "loaded_at"),
        "max_concurrency": max(msg.max_concurrency, 1),
        "isolated": msg.home.isolated,
        "requirements": tuple(msg.home.environment.requirements),
        "python": msg.home.environment.python,
    }


def _time_of(msg: Message, name: str) -> datetime | None:
    return getattr(msg, name).ToDatetime(tzinfo=UTC) if msg.HasField(name) else None
