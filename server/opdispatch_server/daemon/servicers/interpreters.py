"""``opdispatch.v1.InterpreterService``: begin and end the sessions of interpreters."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import grpc

from opdispatch_server.blame.flight_record import FlightRecord
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.call_context import RUN_BYTES
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.interpreters.heartbeat_lease import LeaseWatch
from opdispatch_server.daemon.interpreters.own_address import OwnAddress, check_own_address
from opdispatch_server.daemon.interpreters.session import InterpreterSession, SessionContext
from opdispatch_server.daemon.interpreters.session_end import UNEXPLAINED
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.interpreters.starvation import StarvationWatch
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.metrics.call_table import SharedCounts
from opdispatch_server.process_watch import (
    UNKNOWN_END,
    ProcessEnd,
    process_space,
    watch_process,
)
from opdispatch_server.serving.status_answers import StatusError, answers, answers_in_steps
from opdispatch_wire.addresses import AddressError
from opdispatch_wire.credentials import Credentials
from opdispatch_wire.errors import LibraryNotFoundError, RefusedError, WireError
from opdispatch_wire.library_content import upload_chunk_bytes
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import interpreter_pb2_grpc

# How long the name of an interpreter that just died may stay unavailable to its successor.
NAME_WAIT = 5.0
ENDING_WAIT = 0.5
SUPERVISOR_WAIT = 0.03
# Seconds for sending an interpreter the reason of its session's end. Without it, the interpreter
# assumes that the daemon has vanished, and looks for it.
GOODBYE_WAIT = 1.0
FETCH_BYTES = 32 * 1024**2
"""The most of an upload that one stream carries: gRPC may buffer all of it for a slow reader."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,63}")


class InterpreterServicer(interpreter_pb2_grpc.InterpreterServiceServicer):
    """Serves a stream for each interpreter.

    ``find_pid`` returns the process id of an interpreter that the daemon started, by name: such a
    name belongs to that process alone. ``stop_process`` ends the process of a session, if the
    daemon started it. ``reserved`` are the names of these interpreters, and ``pool_of`` returns the
    pool whose libraries one takes. ``leases`` defines how often heartbeats must come, and ``lane``
    is the path of the local lane for calls that kernels make. ``direct_calls`` has the epoch for
    direct calls to interpreters; ``runs`` is called with those whose kernels run too long,
    ``count_kernel_errors`` with the counts of those that kernels failed, ``judge`` with every
    session that has ended, and ``on_unfit`` with interpreters that report that they can no longer
    run kernels; ``totals`` adds up their counters. ``ticket_key`` returns the key for a session's
    tickets, by its number; see Note [Route tickets]. ``credentials`` are for interpreters that
    listen at ports themselves. ``slow_call`` and ``tracing`` are the settings that Welcome carries
    for slow calls and traces.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        find_pid: Callable[[str], Awaitable[int | None]],
        stop_process: Callable[[InterpreterSession], None],
        reserved: Callable[[], tuple[str, ...]],
        pool_of: Callable[[str], InterpreterPool | None],
        leases: LeaseWatch,
        runs: KernelRuns,
        count_kernel_errors: Callable[[pb.KernelErrors], None],
        judge: Callable[[InterpreterSession], object],
        on_unfit: Callable[[InterpreterSession, str], None],
        totals: InterpreterTotals,
        direct_calls: pb.DirectCallRules,
        ticket_key: Callable[[int], bytes],
        hosts: Callable[[], Iterable[str]],
        direct_ports: tuple[int, int] | None,
        *,
        credentials: Credentials,
        max_message_bytes: int,
        insecure: bool,
        is_secured: bool,
        lane: str,
        store: LibraryStore,
        slow_call: float = 0.0,
        tracing: str = "",
    ) -> None:
        self._sessions = sessions
        self._find_pid = find_pid
        self._stop_process = stop_process
        self._reserved = reserved
        self._pool_of = pool_of
        self._leases = leases
        self._runs = runs
        self._count_kernel_errors = count_kernel_errors
        self._judge = judge
        self._on_unfit = on_unfit
        self._totals = totals
        self._direct_calls = direct_calls
        self._ticket_key = ticket_key
        self._hosts = hosts
        self._direct_ports = direct_ports
        self._process_space = process_space()
        self._credentials = credentials
        self._max_message_bytes = max_message_bytes
        self._insecure = insecure
        self._is_secured = is_secured
        self._lane = lane
        self._store = store
        self._slow_call = slow_call
        self._tracing = tracing
        self._endings: set[asyncio.Task[None]] = set()
        # The tasks that serve a session, until its interpreter has been sent the reason of its end.
        self._handlers: dict[asyncio.Task[Any], InterpreterSession] = {}
        self._is_stopping = False

    @answers
    async def Session(self, request_iterator: object, context: SessionContext) -> None:  # noqa: N802
        """Serve one interpreter from its hello to its end."""
        message: object = await context.read()  # grpc.aio.EOF, if the stream is empty
        if not isinstance(message, pb.InterpreterMessage) or not message.HasField("hello"):
            error = WireError("$.kind is not hello; a session begins with it")
            raise StatusError.with_code(error, grpc.StatusCode.INVALID_ARGUMENT)
        hello = message.hello
        own_address = await self._check(hello)
        name = hello.name or self._sessions.choose_name(self._reserved())
        is_near = self._is_near(hello)
        starvation = StarvationWatch(hello.pid) if is_near else None
        session = InterpreterSession(
            hello,
            name,
            supervised=name in self._reserved(),
            pool=self._pool_of(name),
            max_message_bytes=self._max_message_bytes,
            lease=self._leases.grant(starvation) if hello.heartbeats else None,
            direct_lane=hello.direct_lane if is_near else "",
            flight_record=self._open_flight_record(hello),
            own_address=own_address,
        )
        session.on_kernel_errors = self._count_kernel_errors
        # The callbacks receive the session as an argument: a session that referred to itself
        # through its callbacks would, after its end, stay in memory with its flight record until
        # the garbage collector runs.
        session.on_unfit = self._on_unfit
        session.on_heartbeat = self._totals.note_rows
        session.on_overdue = self._runs.timeout.stop_overdue
        welcome = pb.Welcome(
            name=name,
            max_message_bytes=self._max_message_bytes,
            heartbeat_seconds=self._leases.heartbeat,
            lane=self._lane,
            direct_calls=self._direct_calls,
            slow_call_seconds=self._slow_call,
            tracing=self._tracing,
            reads_heartbeats=session.flight_record is not None,
        )
        rules = welcome.direct_calls
        rules.run = self._runs.begin_direct_calls(session).to_bytes(RUN_BYTES)
        rules.session = session.number
        if session.direct_lane and self._direct_ports is not None:
            rules.first_port, rules.last_port = self._direct_ports
            rules.hosts.extend(self._hosts())
            rules.ticket_key = self._ticket_key(session.number)
        counts = SharedCounts.open(hello.pid, hello.call_counts) if is_near else None
        welcome.wants_call_counts = counts is None
        self._sessions.admit(session)
        self._totals.begin(session, counts, is_near=is_near)
        self._end_if_stopping(session)
        stop_watching = self._watch_process(session, hello)
        joining = asyncio.create_task(self._join(session, hello))
        handler = asyncio.current_task()
        assert handler is not None, "gRPC runs every method in a task"
        self._handlers[handler] = session
        handler.add_done_callback(self._handlers.pop)
        writing = asyncio.create_task(_write(session, welcome, context))
        reading = asyncio.create_task(session.read_from(context))
        try:
            await _wait_for_end(session, writing, reading)
        finally:
            # In a task of its own: this one may have been cancelled with the stream.
            session.end(UNEXPLAINED)
            ending = asyncio.create_task(self._end(session, joining, stop_watching))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            # The goodbye is the last message; the interpreter closes the stream on reading it. If
            # we closed first, messages that it sends meanwhile could not be written, and gRPC's
            # asyncio client would then drop what it had received but not read.
            try:
                await asyncio.wait({writing, reading}, timeout=GOODBYE_WAIT)
            finally:
                writing.cancel()
                reading.cancel()
                await asyncio.gather(writing, reading, return_exceptions=True)

    @answers_in_steps
    async def FetchLibrary(  # noqa: N802
        self, request: pb.FetchLibraryRequest, context: SessionContext
    ) -> AsyncGenerator[pb.FetchLibraryReply, None]:
        """Send a stored upload."""
        if not self._store.has(request.sha256):
            raise LibraryNotFoundError(f"there is no upload {request.sha256[:64]!r}")
        chunk_bytes = upload_chunk_bytes(self._max_message_bytes)
        chunks = self._store.read(request.sha256, request.offset, chunk_bytes)
        sent = 0
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield pb.FetchLibraryReply(chunk=chunk)
            sent += len(chunk)
            if sent >= FETCH_BYTES:
                return

    def stop(self) -> None:
        """End every session that is not with one of the daemon's own interpreters; accept no more.

        The reason sent to them is that the daemon is stopping.
        """
        self._is_stopping = True
        for session in self._sessions.all():
            self._end_if_stopping(session)

    def _end_if_stopping(self, session: InterpreterSession) -> None:
        if self._is_stopping and not session.supervised:
            session.end("the daemon is stopping", cause=Cause.ORDERLY)

    async def _join(self, session: InterpreterSession, hello: pb.Hello) -> None:
        await session.open_lane(hello.lane if self._is_near(hello) else "")
        await self._sessions.join(session)

    def _open_flight_record(self, hello: pb.Hello) -> FlightRecord | None:
        if not self._is_near(hello):
            return None
        return FlightRecord.open(hello.pid, hello.flight_record)

    def _is_near(self, hello: pb.Hello) -> bool:
        """Return whether its process ids and paths are valid for this process, too."""
        return bool(self._process_space) and hello.process_space == self._process_space

    async def wait_for_endings(self) -> None:
        """Wait until every ended session has been removed."""
        ending = [session for session in self._sessions.all() if not session.alive]
        for session in ending:
            await self._sessions.wait_until_free(session.name, ENDING_WAIT)
        await asyncio.gather(*self._endings, return_exceptions=True)
        # Except those of the daemon's own interpreters, whose sessions last until their processes
        # end.
        handlers = [handler for handler, session in self._handlers.items() if not session.alive]
        if handlers:
            await asyncio.wait(handlers, timeout=2 * GOODBYE_WAIT)

    async def _end(
        self,
        session: InterpreterSession,
        joining: asyncio.Task[None],
        stop_watching: Callable[[], None],
    ) -> None:
        self._stop_process(session)  # without a session it is of no use
        await session.explain_end()
        self._judge(session)
        self._totals.end(session)
        stop_watching()
        await self._sessions.leave(session)
        joining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await joining

    def _watch_process(self, session: InterpreterSession, hello: pb.Hello) -> Callable[[], None]:
        """End the session when its process ends, even if the stream outlasts it."""
        if not self._is_near(hello):
            return lambda: None

        def end(how: ProcessEnd) -> None:
            if how is UNKNOWN_END and session.supervised:
                # The supervisor has noticed first, and reports it in a moment.
                asyncio.get_running_loop().call_later(
                    SUPERVISOR_WAIT, session.end_with_process, how
                )
            else:
                session.end_with_process(how)

        return watch_process(session.pid, end)

    async def _check(self, hello: pb.Hello) -> OwnAddress:
        if hello.protocol_version != PROTOCOL_VERSION:
            error = WireError(
                f"$.hello.protocol_version is {hello.protocol_version}; this daemon speaks "
                f"{PROTOCOL_VERSION}"
            )
            raise StatusError.with_code(error, grpc.StatusCode.FAILED_PRECONDITION)
        try:
            own = check_own_address(
                hello, self._credentials, is_secured=self._is_secured, insecure=self._insecure
            )
        except AddressError as error:
            raise StatusError.with_code(error, grpc.StatusCode.INVALID_ARGUMENT) from None
        if hello.name:
            await self._check_name(hello)
        return own

    async def _check_name(self, hello: pb.Hello) -> None:
        name = hello.name
        if not _NAME.fullmatch(name):
            error = WireError(
                f"$.hello.name is {name[:80]!r}; expected at most 64 letters, digits and "
                "any of _.@:-, the first a letter, digit or _"
            )
            raise StatusError.with_code(error, grpc.StatusCode.INVALID_ARGUMENT)
        hint = "choose another name with --name"
        if name in self._reserved() and await self._find_pid(name) != hello.pid:
            refusal = RefusedError(
                f"the daemon keeps the name {name!r} for an interpreter of its own", hint=hint
            )
            raise StatusError.with_code(refusal, grpc.StatusCode.ALREADY_EXISTS)
        holder = self._sessions.find(name)
        if holder is None:
            return
        if hello.process_space and (holder.process_space, holder.pid) == (
            hello.process_space,
            hello.pid,
        ):
            # It noticed the loss of its connection before the daemon did.
            holder.end("it has connected again", cause=Cause.ORDERLY, come_back=True)
        if holder.alive or not await self._sessions.wait_until_free(name, NAME_WAIT):
            refusal = RefusedError(
                f"another interpreter is named {name!r} (pid {holder.pid})", hint=hint
            )
            raise StatusError.with_code(refusal, grpc.StatusCode.ALREADY_EXISTS)


async def _wait_for_end(
    session: InterpreterSession, writing: asyncio.Task[None], reading: asyncio.Task[None]
) -> None:
    """Wait until either side ends the session."""
    ending = asyncio.create_task(session.ended.wait())
    try:
        await asyncio.wait([writing, reading, ending], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()


async def _write(session: InterpreterSession, welcome: pb.Welcome, context: SessionContext) -> None:
    """Send everything that the daemon has for the interpreter.

    Never cancelled before the goodbye has had its time: a stream whose write was cancelled accepts
    no further write.
    """
    # a closed stream delivers nothing more
    with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
        await context.write(pb.DaemonMessage(welcome=welcome))
        await session.write_to(context)
