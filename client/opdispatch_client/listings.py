"""What the daemon tells about itself: frozen values, one ``x_from_proto`` for each.

Times are aware datetimes in UTC. Lists keep the order in which the daemon sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from opdispatch.arrays import DeviceTransfers
    from opdispatch_wire.v1 import execution_pb2, registry_pb2


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
    """What its interpreters' environment was made for."""
    python: str
    """The Python of the existing environment that its interpreters run in."""
    kernel_errors: int
    """How many calls of this version its kernels have failed."""
    trouble: str
    """What it has done to interpreters lately, and what follows from that; empty: nothing."""
    waiting_for: str
    """What it waits for, in words, if it is in fewer interpreters than it should be."""


@dataclass(frozen=True, slots=True)
class LoadedLibrary(Library):
    """What a load has led to."""

    already_loaded: bool
    """The same content was loaded under that name before, so nothing has changed."""
    role: str
    """What the interpreter is that was named, or that has imported it for this load: "primary"
    if its registrations were published, "replica" if they were verified to be the published
    ones; empty if there is no such interpreter."""


@dataclass(frozen=True, slots=True)
class UnloadedLibrary:
    """What an unload has led to."""

    active: Library | None
    """The version that is active now; None if the library is gone."""
    memory_bytes: int | None
    """How much memory that gives back; None if nobody knows."""
    memory_exact: bool
    """Whether that is what interpreters had that ended with the library; otherwise it is by how
    much others have less than before, whatever else they did meanwhile."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback has led to."""

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
    """What it has printed last; of one that the daemon started."""
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
    """What it has copied to its devices and from them, by device, as of its last heartbeat."""
    reserved_for: str
    """What it takes libraries of: "library NAME" or "environment KEY"; empty: any."""
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
        """The line as PyTorch prints it, then the kernel and its reason."""
        place = " ".join(filter(None, (self.reason, self.kernel, self.interpreter)))
        head = f"{' ' * self.depth} [{self.kind}] op=[{self.operator}], key=[{self.key}]"
        return f"{head} ({place})" if place else head


def server_info_from_proto(msg: registry_pb2.GetServerInfoReply) -> ServerInfo:
    """The value that the message carries."""
    return ServerInfo(
        protocol_version=msg.protocol_version,
        server_version=msg.server_version,
        max_message_bytes=msg.max_message_bytes,
        pid=msg.pid,
        epoch=msg.epoch,
        addresses=tuple(msg.addresses),
        lane=msg.lane,
    )


def library_from_proto(msg: registry_pb2.Library) -> Library:
    """The value that the message carries."""
    return Library(
        name=msg.name,
        version=msg.version,
        sha256=msg.sha256,
        source=msg.source,
        interpreters=tuple(msg.interpreters),
        loaded_at=_time_from_proto(msg.loaded_at) if msg.HasField("loaded_at") else None,
        operators=tuple(msg.operators),
        active=msg.active,
        calls_in_flight=msg.calls_in_flight,
        interpreters_wanted=msg.interpreters_wanted,
        device=msg.device,
        loaded_by=msg.loaded_by,
        state=msg.state,
        error=msg.error,
        max_concurrency=max(msg.max_concurrency, 1),
        isolated=msg.home.isolated,
        requirements=tuple(msg.home.environment.requirements),
        python=msg.home.environment.python,
        kernel_errors=msg.kernel_errors,
        trouble=msg.trouble,
        waiting_for=msg.waiting_for,
    )


def unloaded_library_from_proto(msg: registry_pb2.UnloadLibraryReply) -> UnloadedLibrary:
    """The value that the message carries."""
    from opdispatch_wire.v1 import registry_pb2  # listings are imported without gRPC

    exact = msg.memory_measure == registry_pb2.MEMORY_MEASURE_ENDED_INTERPRETERS
    known = exact or msg.memory_measure == registry_pb2.MEMORY_MEASURE_DIFFERENCE
    return UnloadedLibrary(
        active=library_from_proto(msg.active) if msg.HasField("active") else None,
        memory_bytes=msg.memory_bytes if known else None,
        memory_exact=exact,
    )


def loaded_library_from_proto(msg: registry_pb2.LoadLibraryReply) -> LoadedLibrary:
    """The value that the message carries."""
    library = library_from_proto(msg.library)
    fields = {name: getattr(library, name) for name in Library.__dataclass_fields__}
    return LoadedLibrary(**fields, already_loaded=msg.already_loaded, role=msg.role)


def rolled_back_from_proto(msg: registry_pb2.RollbackLibraryReply) -> RolledBack:
    """The value that the message carries."""
    return RolledBack(library_from_proto(msg.active), library_from_proto(msg.replaced))


def interpreter_from_proto(msg: registry_pb2.Interpreter) -> Interpreter:
    """The value that the message carries."""
    from opdispatch.arrays import DeviceTransfers  # the command line starts without it

    return Interpreter(
        name=msg.name,
        pid=msg.pid,
        supervised=msg.supervised,
        state=msg.state,
        libraries=tuple(msg.libraries),
        calls_in_flight=msg.calls_in_flight,
        calls_total=msg.calls_total,
        connected_at=_time_from_proto(msg.connected_at) if msg.HasField("connected_at") else None,
        python_version=msg.python_version,
        restarts=msg.restarts,
        devices=tuple(msg.devices),
        heartbeat_age=(
            msg.heartbeat_age_seconds if msg.HasField("heartbeat_age_seconds") else None
        ),
        last_lines=tuple(msg.last_lines),
        trouble=msg.trouble,
        calls_queued=msg.calls_queued,
        bytes_queued=msg.bytes_queued,
        remote_values=msg.remote_values,
        remote_bytes=msg.remote_bytes,
        transfers={
            each.device: DeviceTransfers(each.to_device, each.from_device, each.from_peers)
            for each in msg.transfers
        },
        reserved_for=msg.reserved_for,
        kernel_errors=msg.kernel_errors,
        busy_operators=tuple(msg.busy_operators),
    )


def operator_summary_from_proto(msg: registry_pb2.OperatorSummary) -> OperatorSummary:
    """The value that the message carries."""
    return OperatorSummary(
        name=msg.name,
        schema=msg.schema,
        libraries=tuple(msg.libraries),
        keys=tuple(msg.keys),
        kernel_errors=msg.kernel_errors,
    )


def kernel_summary_from_proto(msg: registry_pb2.KernelSummary) -> KernelSummary:
    """The value that the message carries."""
    return KernelSummary(
        key=msg.key,
        registered_at=msg.registered_at,
        library=msg.library,
        interpreter=msg.interpreter,
        fallthrough=msg.fallthrough,
        active=msg.active,
    )


def operator_description_from_proto(
    msg: registry_pb2.DescribeOperatorReply,
) -> OperatorDescription:
    """The value that the message carries."""
    return OperatorDescription(
        name=msg.summary.name,
        schema=msg.summary.schema,
        libraries=tuple(msg.summary.libraries),
        keys=tuple(msg.summary.keys),
        kernel_errors=msg.summary.kernel_errors,
        documentation=msg.documentation,
        defined_at=msg.defined_at,
        kernels=tuple(kernel_summary_from_proto(kernel) for kernel in msg.kernels),
        tags=tuple(msg.tags),
    )


def table_row_from_proto(msg: registry_pb2.TableRow) -> TableRow:
    """The value that the message carries."""
    return TableRow(key=msg.key, kernel=msg.kernel, reason=msg.reason, fallthrough=msg.fallthrough)


def trace_line_from_proto(msg: execution_pb2.TraceLine) -> TraceLine:
    """The value that the message carries."""
    return TraceLine(
        depth=msg.depth,
        kind=msg.kind,
        operator=msg.operator,
        key=msg.key,
        kernel=msg.kernel,
        reason=msg.reason,
        interpreter=msg.interpreter,
    )


def _time_from_proto(msg: Timestamp) -> datetime:
    return msg.ToDatetime(tzinfo=UTC)
