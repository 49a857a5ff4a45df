"""``opdispatch.v1.RegistryService``: the adapter of the registry and its view."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, aclosing
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_server.access.audit import audited
from opdispatch_server.access.authentication import CALLER, uses_local_lanes
from opdispatch_server.daemon.calls.quotas import Quotas
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.change_log import count_change
from opdispatch_server.daemon.libraries.load_request import LONGEST_NAME, reading_load_request
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.servicers.library_uploads import LibraryUploads
from opdispatch_server.daemon.servicers.load_progress import in_steps
from opdispatch_server.daemon.servicers.peer_identity import identity_of, who_asks
from opdispatch_server.daemon.servicers.registration_waiters import RegistrationWaiters
from opdispatch_server.daemon.servicers.registry_feed import RegistryFeed
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.daemon.values.direct_keeps import DirectKeeps
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.log_fields import IDENTITY, Event, asked_by, fields
from opdispatch_server.serving.status_answers import Context, StatusError, answers, answers_in_steps
from opdispatch_wire.errors import WireError
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.v1 import registry_pb2 as pb
from opdispatch_wire.v1 import registry_pb2_grpc

LOG = logging.getLogger("opdispatch.requests")

T = TypeVar("T")


class DaemonFacts(NamedTuple):
    """The version, limits and settings that ``GetServerInfo`` reports."""

    version: str
    max_message_bytes: int
    addresses: Callable[[], Sequence[str]]
    lane: str


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """The gRPC adapter of LibraryRegistry and RegistryView."""

    def __init__(
        self,
        facts: DaemonFacts,
        operators: OperatorRegistry,
        libraries: LibraryRegistry,
        view: RegistryView,
        waits: RegistrationWaiters,
        feed: RegistryFeed,
        revive: Callable[[str], bool],
        store: LibraryStore,
        quotas: Quotas,
        keeps: DirectKeeps,
    ) -> None:
        self._facts = facts
        self._operators = operators
        self._libraries = libraries
        self._view = view
        self._waits = waits
        self._feed = feed
        self._revive = revive
        self._store = store
        self._quotas = quotas
        self._keeps = keeps
        self._uploads = LibraryUploads(store)
        self._changes: set[asyncio.Task[Any]] = set()

    @answers
    async def GetServerInfo(  # noqa: N802
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoReply:
        """Return the daemon's version and limits."""
        if request.protocol_version < PROTOCOL_VERSION:
            error = WireError(
                f"$.protocol_version is {request.protocol_version}; this daemon speaks "
                f"{PROTOCOL_VERSION}"
            )
            raise StatusError.with_code(error, grpc.StatusCode.FAILED_PRECONDITION)
        return pb.GetServerInfoReply(
            protocol_version=PROTOCOL_VERSION,
            server_version=self._facts.version,
            max_message_bytes=self._facts.max_message_bytes,
            pid=os.getpid(),
            epoch=self._operators.epoch,
            addresses=self._facts.addresses(),
            lane=self._facts.lane if uses_local_lanes(CALLER.get()) else "",
        )

    @answers
    async def LoadLibrary(  # noqa: N802
        self, request: pb.LoadLibraryRequest, context: Context
    ) -> pb.LoadLibraryReply:
        """Load a library."""
        return await self._load(request, context)

    @answers_in_steps
    async def LoadLibraryWithProgress(  # noqa: N802
        self, request: pb.LoadLibraryRequest, context: Context
    ) -> AsyncGenerator[pb.LoadLibraryProgress, None]:
        """Load a library, with reports of steps that take long."""
        async with aclosing(in_steps(functools.partial(self._load, request, context))) as steps:
            async for step in steps:
                if isinstance(step, str):
                    yield pb.LoadLibraryProgress(line=step)
                else:
                    yield pb.LoadLibraryProgress(reply=step)

    async def _load(
        self,
        request: pb.LoadLibraryRequest,
        context: Context,
        report: Callable[[str], None] = lambda line: None,
    ) -> pb.LoadLibraryReply:
        IDENTITY.set(identity_of(context))
        reading = reading_load_request(
            request,
            self._store,
            loaded_by=who_asks(context),
            caller=CALLER.get(),
            patience=_patience(context),
        )
        name = request.name or PurePosixPath(request.filename).stem or request.module
        name = name[:LONGEST_NAME]  # it may not have been checked yet
        try:
            with audited("load", IDENTITY.get(), library=name):
                async with reading as order:
                    outcome = await self._libraries.load(order, report)
                    await self._libraries.heard()
        except OpdispatchError as error:
            about = fields(Event.LIBRARY_LOAD_FAILED, library=name, identity=IDENTITY.get())
            LOG.warning("%s was not loaded: %s%s", name, error, asked_by(), extra=about)
            count_change(Event.LIBRARY_LOAD_FAILED)
            raise
        fault_point(FaultPoint.BEFORE_ACKNOWLEDGEMENT)
        return pb.LoadLibraryReply(
            library=self._libraries.to_proto(outcome.version),
            already_loaded=outcome.already_loaded,
            role=outcome.role,
        )

    @answers_in_steps
    async def UploadLibrary(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.UploadLibraryRequest], context: Context
    ) -> AsyncGenerator[pb.UploadLibraryReply, None]:
        """Store a file that comes in chunks."""
        with self._quotas.upload(CALLER.get()):
            async with aclosing(self._uploads.receive(request_iterator)) as replies:
                async for reply in replies:
                    yield reply

    @answers
    async def UnloadLibrary(  # noqa: N802
        self, request: pb.UnloadLibraryRequest, context: Context
    ) -> pb.UnloadLibraryReply:
        """Unload a library, or one version of it."""
        unload = self._libraries.unloading.unload(
            request.name,
            request.version,
            measure=request.measure_memory,
            caller=CALLER.get(),
        )
        with self._audited("unload", context, library=request.name):
            active, memory = await self._to_the_end(context, unload)
        fault_point(FaultPoint.BEFORE_ACKNOWLEDGEMENT)
        return pb.UnloadLibraryReply(
            active=self._libraries.to_proto(active) if active else None,
            memory_bytes=memory.size,
            memory_measure=memory.measure,
        )

    @answers
    async def ScaleLibrary(  # noqa: N802
        self, request: pb.ScaleLibraryRequest, context: Context
    ) -> pb.ScaleLibraryReply:
        """Set the number of interpreters that hold a library."""
        scale = self._libraries.scale(request.name, request.interpreters, caller=CALLER.get())
        with self._audited("scale", context, library=request.name):
            version = await self._to_the_end(context, scale)
        fault_point(FaultPoint.BEFORE_ACKNOWLEDGEMENT)
        return pb.ScaleLibraryReply(library=self._libraries.to_proto(version))

    @answers
    async def RollbackLibrary(  # noqa: N802
        self, request: pb.RollbackLibraryRequest, context: Context
    ) -> pb.RollbackLibraryReply:
        """Reactivate the version before the active one."""
        rollback = self._libraries.rollback.roll_back(request.name, caller=CALLER.get())
        with self._audited("roll back", context, library=request.name):
            active, replaced = await self._to_the_end(context, rollback)
        fault_point(FaultPoint.BEFORE_ACKNOWLEDGEMENT)
        return pb.RollbackLibraryReply(
            active=self._libraries.to_proto(active), replaced=self._libraries.to_proto(replaced)
        )

    @answers
    async def DrainInterpreter(  # noqa: N802
        self, request: pb.DrainInterpreterRequest, context: Context
    ) -> pb.DrainInterpreterReply:
        """Drain an interpreter, or end that."""
        session: InterpreterSession | None
        if request.undo:
            end_drain = self._libraries.end_drain(request.name)
            with self._audited("end the drain of", context, interpreter=request.name):
                session = await self._to_the_end(context, end_drain)
        else:
            drain = self._libraries.drain(request.name, patience=_patience(context))
            with self._audited("drain", context, interpreter=request.name):
                session = await self._to_the_end(context, drain)
        if session is None:
            away = pb.Interpreter(name=request.name, state="away")
            return pb.DrainInterpreterReply(interpreter=away)
        return pb.DrainInterpreterReply(interpreter=self._view.interpreter(session))

    @answers
    async def ListLibraries(  # noqa: N802
        self, request: pb.ListLibrariesRequest, context: Context
    ) -> pb.ListLibrariesReply:
        """Return the libraries, between two publications.

        No call can use a library that this list does not have.
        """
        async with self._libraries.publication:
            return self._view.list_libraries(all_versions=request.all_versions)

    @answers
    async def ListInterpreters(  # noqa: N802
        self, request: pb.ListInterpretersRequest, context: Context
    ) -> pb.ListInterpretersReply:
        """Return the interpreters."""
        await self._keeps.hear_all()
        return self._view.list_interpreters()

    @answers
    async def ReviveInterpreter(  # noqa: N802
        self, request: pb.ReviveInterpreterRequest, context: Context
    ) -> pb.ReviveInterpreterReply:
        """Start a quarantined interpreter again."""
        with self._audited("revive", context, interpreter=request.name):
            revived = self._revive(request.name)
        if revived:
            identity = identity_of(context)
            LOG.info(
                "interpreter %s is revived, asked by %s",
                request.name,
                identity,
                extra=fields(
                    Event.INTERPRETER_REVIVED, interpreter=request.name, identity=identity
                ),
            )
        return pb.ReviveInterpreterReply(revived=revived)

    @answers
    async def ListOperators(  # noqa: N802
        self, request: pb.ListOperatorsRequest, context: Context
    ) -> bytes:
        """Return the operators that match a pattern."""
        return await asyncio.to_thread(self._view.list_operators, request.pattern)

    @answers
    async def DescribeOperator(  # noqa: N802
        self, request: pb.DescribeOperatorRequest, context: Context
    ) -> pb.DescribeOperatorReply:
        """Return one operator."""
        return await asyncio.to_thread(self._view.describe_operator, request.operator)

    @answers
    async def GetDispatchTable(  # noqa: N802
        self, request: pb.GetDispatchTableRequest, context: Context
    ) -> pb.GetDispatchTableReply:
        """Return the dispatch table of one operator."""
        return await asyncio.to_thread(self._view.dispatch_table, request.operator)

    @answers
    async def WaitForDef(  # noqa: N802
        self, request: pb.WaitForDefRequest, context: Context
    ) -> pb.WaitForDefReply:
        """Return one operator, once it is defined."""
        return pb.WaitForDefReply(operator=await self._waits.for_definition(request))

    @answers
    async def WaitForImpl(  # noqa: N802
        self, request: pb.WaitForImplRequest, context: Context
    ) -> pb.WaitForImplReply:
        """Return one operator's kernel for a key, once it is registered."""
        return pb.WaitForImplReply(kernel=await self._waits.for_kernel(request))

    @answers_in_steps
    async def WatchRegistry(  # noqa: N802
        self, request: pb.WatchRegistryRequest, context: Context
    ) -> AsyncGenerator[pb.WatchRegistryReply, None]:
        """Stream what is registered, and then every change."""
        async with aclosing(self._feed.changes(request)) as replies:
            async for reply in replies:
                yield reply

    @answers
    async def CheckInvariants(  # noqa: N802
        self, request: pb.CheckInvariantsRequest, context: Context
    ) -> pb.CheckInvariantsReply:
        """Check, between two publications, that registry and interpreters agree."""
        async with self._libraries.publication:
            reply = await asyncio.to_thread(self._view.check_invariants)
        reply.violations.extend(self._view.check_queues())
        reply.violations.extend(self._quotas.check_invariants())
        reply.violations.extend(await self._libraries.find_disagreements())
        return reply

    @staticmethod
    def _audited(
        action: str, context: Context, *, library: str = "", interpreter: str = ""
    ) -> AbstractContextManager[None]:
        who = identity_of(context)
        return audited(
            action, who, library=library[:LONGEST_NAME], interpreter=interpreter[:LONGEST_NAME]
        )

    async def _to_the_end(self, context: Context, change: Coroutine[Any, Any, T]) -> T:
        """Complete a change that has begun, even if its caller no longer waits."""
        IDENTITY.set(identity_of(context))
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        result = await shielded(task)
        await self._libraries.heard()
        return result


def _patience(context: Context) -> float | None:
    """Return how long the client waits for a reply; None means without limit.

    Shorter than its deadline by a fifth, up to 2 s, so that even on a busy machine it receives an
    error that says more than "deadline exceeded".
    """
    remaining = context.time_remaining()
    if remaining is None:
        return None
    return float(max(remaining - min(0.2 * remaining, 2.0), 0.0))
