"""Requests of a session to the daemon, and how each reply is read. No I/O.

The blocking and the asyncio session both send these.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from opdispatch.errors import OpdispatchError
from opdispatch_client import listings
from opdispatch_client.operator_call import Call
from opdispatch_client.request_arguments import LONGEST_TIMEOUT, checked
from opdispatch_wire.client_identity import CLIENT_KEY, describe_self
from opdispatch_wire.errors import WireError
from opdispatch_wire.library_content import LibraryContent
from opdispatch_wire.library_source import INLINE_BYTES_LIMIT, load_source, needs_environment
from opdispatch_wire.protocol_version import PROTOCOL_VERSION, SAME_VERSION_HINT, describe_mismatch
from opdispatch_wire.requirements_file import Requirements
from opdispatch_wire.v1 import execution_pb2, registry_pb2

T = TypeVar("T")
OnProgress = Callable[[str], None]
"""Called with each step of a load, in words."""

CALL = "/opdispatch.v1.ExecutionService/Call"
"""The name of an operator call on the wire."""
_REGISTRY = "/opdispatch.v1.RegistryService"
# Seconds between a daemon's keep-alive messages.
_WATCH_SILENCE = 10.0


@dataclass(slots=True)  # frozen dataclasses take five times as long to create
class Rpc(Generic[T]):
    """One request, and the function that converts its reply to the caller's result."""

    path: str
    """The method's name on the wire."""
    what: str
    """The request in words, for error messages."""
    request: Message
    reply_type: type[Message]
    read: Callable[[Any], T]
    metadata: tuple[tuple[str, str], ...] = ()
    """Metadata sent with it: the client's identity, where the daemon records that."""
    waits: float | None = 0.0
    """Seconds that the daemon may wait before it answers; None: without limit."""

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice is harmless, because it changes nothing."""
        return not self.metadata and self.path != CALL

    def deadline(self, timeout: float | None) -> float | None:
        """Return the deadline in seconds: `timeout`, plus the time that the daemon may wait."""
        if timeout is None or self.waits is None or self.waits > LONGEST_TIMEOUT:
            return None
        # Add no negative or NaN time, which the daemon rejects at once.
        return timeout + self.waits if self.waits > 0 else timeout


def get_server_info() -> Rpc[listings.ServerInfo]:
    """Request the handshake.

    Reading the reply raises WireError if the daemon speaks another version.
    """
    request = registry_pb2.GetServerInfoRequest(protocol_version=PROTOCOL_VERSION)
    return _ask(request, "the handshake", _read_server_info)


def reply_by_itself(call: Call, request: execution_pb2.CallRequest) -> Rpc[execution_pb2.CallReply]:
    """Send one operator call as a separate gRPC request."""
    return Rpc(CALL, call.what, request, execution_pb2.CallReply, lambda reply: reply)


class Load(NamedTuple):
    """The request to load a library, and the files to upload first, if they are large."""

    rpc: Rpc[listings.LoadedLibrary]
    content: LibraryContent | None


@checked
def load(
    path_or_module: str | os.PathLike[str],
    *,
    name: str | None = None,
    interpreter: str | None = None,
    interpreters: int | None = None,
    min_ready: int | None = None,
    on: str | None = None,
    requirements: Requirements | None = None,
    python: str | os.PathLike[str] | None = None,
    isolated: bool = False,
    max_message_bytes: int,
) -> Load:
    """Read the source. Raises LibraryLoadError if there is nothing to read."""
    request, content = load_source(
        path_or_module,
        name=name,
        interpreter=interpreter,
        interpreters=interpreters,
        min_ready=min_ready,
        on=on,
        requirements=requirements,
        python=python,
        isolated=isolated,
        inline_bytes=min(INLINE_BYTES_LIMIT, max_message_bytes // 2),
    )
    rpc = Rpc(
        f"{_REGISTRY}/LoadLibrary",
        f"the library {os.fspath(path_or_module)!r}",
        request,
        registry_pb2.LoadLibraryReply,
        listings.loaded_library_from_proto,
        metadata=_who_asks(),
    )
    return Load(rpc, content)


def with_progress(rpc: Rpc[listings.LoadedLibrary]) -> Rpc[str | listings.LoadedLibrary] | None:
    """Request the same load, answered by a line for each step, and finally the library.

    None if no step can take long enough to be reported.
    """
    assert isinstance(rpc.request, registry_pb2.LoadLibraryRequest), "it comes from load()"
    if not needs_environment(rpc.request):
        return None

    def read(message: registry_pb2.LoadLibraryProgress) -> str | listings.LoadedLibrary:
        return rpc.read(message.reply) if message.HasField("reply") else message.line

    return Rpc(
        f"{rpc.path}WithProgress",
        rpc.what,
        rpc.request,
        registry_pb2.LoadLibraryProgress,
        read,
        rpc.metadata,
    )


def is_unknown_method(error: OpdispatchError) -> bool:
    """Return whether a daemon replied that it has no such method."""
    return type(error) is OpdispatchError and error.facts.get("status") == "UNIMPLEMENTED"


def cut_short_error(rpc: Rpc[Any]) -> WireError:
    """Return the error for a stream that ends before the reply."""
    return WireError(f"$: the daemon has ended its answer to {rpc.what} before the reply")


def unload(name: str, *, version: int | None) -> Rpc[listings.Library | None]:
    """Request an unload, answered by the version that is active then.

    None if the library is gone.
    """
    rpc = unload_and_measure(name, version=version, measure=False)

    def read(reply: registry_pb2.UnloadLibraryReply) -> listings.Library | None:
        return rpc.read(reply).active

    return Rpc(rpc.path, rpc.what, rpc.request, rpc.reply_type, read, rpc.metadata)


@checked
def unload_and_measure(
    name: str, *, version: int | None, measure: bool = True
) -> Rpc[listings.UnloadedLibrary]:
    """Request an unload, answered by the active version and the memory freed."""
    request = registry_pb2.UnloadLibraryRequest(
        name=name, version=version or 0, measure_memory=measure
    )
    return _ask(
        request, f"the request to unload {name}", listings.unloaded_library_from_proto, changes=True
    )


@checked
def scale(name: str, interpreters: int) -> Rpc[listings.Library]:
    """Request another number of replicas, answered by the library with its new interpreters."""
    if interpreters < 1:
        raise WireError(f"interpreters is {interpreters}; expected 1 or more")
    request = registry_pb2.ScaleLibraryRequest(name=name, interpreters=interpreters)
    return _ask(
        request,
        f"the request to scale {name}",
        lambda reply: listings.library_from_proto(reply.library),
        changes=True,
    )


@checked
def rollback(name: str) -> Rpc[listings.RolledBack]:
    """Request a rollback, answered by the new and the previous active version."""
    request = registry_pb2.RollbackLibraryRequest(name=name)
    return _ask(
        request, f"the request to roll {name} back", listings.rolled_back_from_proto, changes=True
    )


@checked
def drain(interpreter: str, *, undo: bool) -> Rpc[listings.Interpreter]:
    """Request a drain, answered by the interpreter's state after it."""
    request = registry_pb2.DrainInterpreterRequest(name=interpreter, undo=undo)
    return _ask(
        request,
        f"the request to drain {interpreter}",
        lambda reply: listings.interpreter_from_proto(reply.interpreter),
        changes=True,
    )


@checked
def list_libraries(*, all_versions: bool) -> Rpc[list[listings.Library]]:
    """Request the loaded libraries, in order of name, then version."""
    request = registry_pb2.ListLibrariesRequest(all_versions=all_versions)
    return _ask(
        request,
        "the request for the libraries",
        lambda reply: [listings.library_from_proto(msg) for msg in reply.libraries],
    )


def list_interpreters() -> Rpc[list[listings.Interpreter]]:
    """Request the interpreters that are connected to the daemon."""
    request = registry_pb2.ListInterpretersRequest()
    return _ask(
        request,
        "the request for the interpreters",
        lambda reply: [listings.interpreter_from_proto(msg) for msg in reply.interpreters],
    )


@checked
def revive(interpreter: str) -> Rpc[bool]:
    """Request a revival, answered by whether the interpreter was quarantined."""
    request = registry_pb2.ReviveInterpreterRequest(name=interpreter)
    return _ask(
        request,
        f"the request to revive {interpreter}",
        lambda reply: bool(reply.revived),
        changes=True,
    )


@checked
def list_operators(pattern: str) -> Rpc[list[listings.OperatorSummary]]:
    """Request the operators that match a shell pattern or contain a string, in order of name."""
    request = registry_pb2.ListOperatorsRequest(pattern=pattern)
    return _ask(
        request,
        "the request for the operators",
        lambda reply: [
            listings.read_fields(listings.OperatorSummary, msg) for msg in reply.operators
        ],
    )


@checked
def describe(operator: str) -> Rpc[listings.OperatorDescription]:
    """Request schema, documentation and kernels of one operator."""
    request = registry_pb2.DescribeOperatorRequest(operator=operator)
    return _ask(
        request, f"the request to describe {operator}", listings.operator_description_from_proto
    )


@checked
def get_table(operator: str) -> Rpc[list[listings.TableRow]]:
    """Request the computed dispatch table of one operator."""
    request = registry_pb2.GetDispatchTableRequest(operator=operator)
    return _ask(
        request,
        f"the request for the table of {operator}",
        lambda reply: [listings.read_fields(listings.TableRow, msg) for msg in reply.rows],
    )


@checked
def wait_for_def(operator: str, timeout: float | None) -> Rpc[listings.OperatorSummary]:
    """Request the operator, once it is defined."""
    request = registry_pb2.WaitForDefRequest(operator=operator, timeout=timeout)
    return _ask(
        request,
        f"the request to wait for {operator}",
        lambda reply: listings.read_fields(listings.OperatorSummary, reply.operator),
        waits=timeout,
    )


@checked
def wait_for_impl(
    operator: str, key: str | None, timeout: float | None
) -> Rpc[listings.KernelSummary]:
    """Request the operator's kernel for a key, once it is registered."""
    request = registry_pb2.WaitForImplRequest(operator=operator, key=key or "", timeout=timeout)
    return _ask(
        request,
        f"the request to wait for {operator}",
        lambda reply: listings.read_fields(listings.KernelSummary, reply.kernel),
        waits=timeout,
    )


@checked
def watch_registry(
    from_epoch: int | None, instance: str, *, activity: bool
) -> Rpc[listings.RegistryChange]:
    """Request the registry and its changes, answered by a stream."""
    request = registry_pb2.WatchRegistryRequest(
        from_epoch=from_epoch, instance=instance, activity=activity
    )
    return _ask(
        request,
        "changes of the registry",
        listings.registry_change_from_proto,
        waits=_WATCH_SILENCE,
    )


def check_invariants() -> Rpc[list[str]]:
    """Request the violated invariants of the daemon's registry, one sentence each."""
    request = registry_pb2.CheckInvariantsRequest()
    return _ask(
        request, "the request to check the invariants", lambda reply: list(reply.violations)
    )


def _ask(
    request: Message,
    what: str,
    read: Callable[[Any], T],
    *,
    changes: bool = False,
    waits: float | None = 0.0,
) -> Rpc[T]:
    """Return the call of RegistryService's method ``X`` for an ``XRequest``.

    ``changes`` says that the request changes the registry; its metadata then has the caller's
    identity.
    """
    method = type(request).__name__.removesuffix("Request")
    reply_type = getattr(registry_pb2, f"{method}Reply")
    metadata = _who_asks() if changes else ()
    return Rpc(f"{_REGISTRY}/{method}", what, request, reply_type, read, metadata, waits)


def _who_asks() -> tuple[tuple[str, str], ...]:
    """Return metadata with the caller's identity, which the daemon lists and logs."""
    return ((CLIENT_KEY, describe_self()),)


def _read_server_info(reply: registry_pb2.GetServerInfoReply) -> listings.ServerInfo:
    info = listings.read_fields(listings.ServerInfo, reply)
    if info.protocol_version != PROTOCOL_VERSION:
        raise WireError(
            describe_mismatch(info.protocol_version, "the daemon", "this client"),
            hint=SAME_VERSION_HINT,
        )
    return info
