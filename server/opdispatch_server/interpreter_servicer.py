"""``opdispatch.v1.InterpreterService``: how interpreters become, and cease to be, sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from opdispatch_server.interpreter_sessions import (
    InterpreterSession,
    InterpreterSessions,
    SessionContext,
)
from opdispatch_server.status_answers import abort_with_code
from opdispatch_wire.addresses import AddressError, is_loopback
from opdispatch_wire.channel import PROTOCOL_VERSION
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import interpreter_pb2_grpc

# How long one that has just died may keep its name from its successor.
NAME_WAIT = 5.0
ENDING_WAIT = 0.5


class InterpreterServicer(interpreter_pb2_grpc.InterpreterServiceServicer):
    """Holds a stream for each interpreter.

    ``pid_of`` gives the process id of one that the daemon started, by name: such a name belongs
    to that process alone. ``stop_process`` ends the process of a session, if it is ours.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        pid_of: Callable[[str], int | None],
        stop_process: Callable[[InterpreterSession], None],
        reserved: tuple[str, ...],
        *,
        max_message_bytes: int,
        insecure: bool,
    ) -> None:
        self._sessions = sessions
        self._pid_of = pid_of
        self._stop_process = stop_process
        self._reserved = reserved
        self._max_message_bytes = max_message_bytes
        self._insecure = insecure
        self._endings: set[asyncio.Task[None]] = set()

    async def Session(self, request_iterator: object, context: SessionContext) -> None:  # noqa: N802
        """Serves one interpreter from its hello to its end."""
        message: object = await context.read()  # grpc.aio.EOF, if nothing comes
        if not isinstance(message, pb.InterpreterMessage) or not message.HasField("hello"):
            error = WireError("$.kind is not hello; a session begins with it")
            await abort_with_code(context, error, grpc.StatusCode.INVALID_ARGUMENT)
        hello = message.hello
        await self._check(hello, context)
        name = hello.name or self._sessions.choose_name(self._reserved)
        session = InterpreterSession(
            hello,
            name,
            supervised=name in self._reserved,
            max_message_bytes=self._max_message_bytes,
        )
        welcome = pb.Welcome(name=name, max_message_bytes=self._max_message_bytes)
        self._sessions.admit(session)
        joining = asyncio.create_task(self._sessions.join(session))
        try:
            await context.write(pb.DaemonMessage(welcome=welcome))
            await _serve(session, context)
        finally:
            # In a task of its own: this one may have been cancelled, with the stream.
            session.end("its session ended")
            ending = asyncio.create_task(self._end(session, joining))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def wait_for_endings(self) -> None:
        """Waits until every session that has been ended is struck off."""
        ending = [session for session in self._sessions.all() if not session.alive]
        for session in ending:
            await self._sessions.wait_until_free(session.name, ENDING_WAIT)
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _end(self, session: InterpreterSession, joining: asyncio.Task[None]) -> None:
        self._stop_process(session)  # without a session it is of no use
        await self._sessions.leave(session)
        joining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await joining

    async def _check(self, hello: pb.Hello, context: SessionContext) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            error = WireError(
                f"$.hello.protocol_version is {hello.protocol_version}; this daemon speaks "
                f"{PROTOCOL_VERSION}"
            )
            await abort_with_code(context, error, grpc.StatusCode.FAILED_PRECONDITION)
        try:
            if not is_loopback(hello.address) and not self._insecure:
                raise AddressError(
                    f"the interpreter listens on {hello.address}, beyond this machine",
                    hint="start the daemon with --insecure to allow that",
                )
        except AddressError as error:
            await abort_with_code(context, error, grpc.StatusCode.INVALID_ARGUMENT)
        if hello.name and not await self._may_have(hello.name, hello.pid):
            refusal = RefusedError(f"another interpreter is named {hello.name!r}")
            await abort_with_code(context, refusal, grpc.StatusCode.ALREADY_EXISTS)

    async def _may_have(self, name: str, pid: int) -> bool:
        if name in self._reserved and self._pid_of(name) != pid:
            return False
        holder = self._sessions.find(name)
        if holder is None:
            return True
        if holder.alive:
            return False
        return await self._sessions.wait_until_free(name, NAME_WAIT)


async def _serve(session: InterpreterSession, context: SessionContext) -> None:
    """Moves messages both ways until either side ends the session."""
    tasks = [
        asyncio.create_task(session.write_to(context)),
        asyncio.create_task(session.read_from(context)),
        asyncio.create_task(session.ended.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
