"""Instructions to interpreters, which carry out publications and other decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from opdispatch.errors import OpdispatchError
from opdispatch_server.blame.flight_record import Subject
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters.session import InterpreterSession, checked_answer
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.v1 import interpreter_pb2 as pb

LOG = logging.getLogger("opdispatch.libraries")

# All instructions but Stage run no user code, so they are answered at once, unless a kernel holds
# the interpreter lock.
INSTRUCTION_TIMEOUT = 15.0
# Seconds that each registration adds to the timeout, for a process that gets a tenth of a core.
_SECONDS_A_REGISTRATION = 0.001

StopInterpreter = Callable[[InterpreterSession, str, Cause, Subject | None], None]
"""Ends an interpreter, given the reason in words, the cause, and the subject to blame, if known."""

# Seconds between checks whether an interpreter that is waited for has become busy.
_LOOK_AT_BUSY = 0.2

# By task that awaits an instruction's answer, the interpreter that was instructed.
_INSTRUCTED: WeakKeyDictionary[asyncio.Task[bool], InterpreterSession] = WeakKeyDictionary()

Instructed = list[asyncio.Task[bool]]


def instruction_timeout(version: LibraryVersion) -> float:
    """Return the timeout of an instruction that processes every registration of a version."""
    return INSTRUCTION_TIMEOUT + _SECONDS_A_REGISTRATION * len(version.batch.registrations)


class InterpreterInstructions:
    """Sends instructions to interpreters, and stops interpreters that fail to carry them out.

    When a method returns, its instruction is on its way, after all earlier ones. The result is to
    be passed to ``finish``; it leaves out interpreters in the middle of an import, since the import
    comes first, and may take long.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        kill_interpreter: StopInterpreter,
    ) -> None:
        self._sessions = sessions
        self._kill_interpreter = kill_interpreter
        self._tasks: set[asyncio.Task[bool]] = set()

    def mirror_everywhere(
        self, version: LibraryVersion, above: Sequence[LibraryVersion] = ()
    ) -> Instructed:
        """Send a version's publication to every interpreter that does not hold it."""
        return [
            task
            for session in self._sessions.ready()
            if version.find_replica(session) is None
            for task in self.mirror(session, version, above)
        ]

    def mirror(
        self,
        session: InterpreterSession,
        version: LibraryVersion,
        above: Sequence[LibraryVersion] = (),
    ) -> Instructed:
        """Send a version's publication to one interpreter, to go below those of ``above``."""
        mirror = pb.Mirror(
            load_id=version.load_id,
            name=version.name,
            above=[each.load_id for each in above],
        )
        message, timeout = pb.DaemonMessage(mirror=mirror), instruction_timeout(version)
        return self.post(session, message, more=version.mirrored_batch, timeout=timeout)

    def retire_everywhere(self, version: LibraryVersion, *, keep: bool) -> Instructed:
        """Undo a version in every interpreter; its holders keep the code if ``keep`` is true."""
        return [
            task
            for session in self._sessions.all()
            for task in self.retire(
                session, version, keep=keep and version.find_replica(session) is not None
            )
        ]

    def retire(
        self, session: InterpreterSession, version: LibraryVersion, *, keep: bool
    ) -> Instructed:
        """Undo a version in one interpreter."""
        retire = pb.Retire(load_id=version.load_id, keep=keep)
        message = pb.DaemonMessage(retire=retire)
        return self.post(session, message, timeout=instruction_timeout(version))

    def ask_for_reports(self) -> dict[InterpreterSession, asyncio.Future[pb.InterpreterMessage]]:
        """Request a report of every interpreter's registrations, after all earlier instructions."""
        return {
            session: session.post(pb.DaemonMessage(report_registry=pb.ReportRegistry()))
            for session in self._sessions.ready()
            if not session.importing
        }

    def post(
        self,
        session: InterpreterSession,
        message: pb.DaemonMessage,
        then: Callable[[], None] = lambda: None,
        *,
        more: bytes = b"",
        timeout: float = INSTRUCTION_TIMEOUT,
    ) -> Instructed:
        """Post any instruction; ``then`` is called when it has been carried out.

        ``more`` has the meaning that it has for ``InterpreterSession.post``.
        """
        if not session.alive:
            return []
        answer = session.post(message, more)
        task = asyncio.create_task(self._see_through(session, message, answer, then, timeout))
        self._tasks.add(task)
        _INSTRUCTED[task] = session
        task.add_done_callback(self._tasks.discard)
        return [] if session.importing else [task]

    async def unless_busy(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        answer: asyncio.Future[pb.InterpreterMessage],
        undo: pb.DaemonMessage,
    ) -> pb.InterpreterMessage:
        """Return the answer to an instruction that is a part of loading ``version``.

        Raises InterpreterDiedError as soon as a kernel keeps the interpreter from carrying it out,
        so that others need not wait; ``undo`` is then posted, to follow the instruction.
        """
        while True:
            done, _ = await asyncio.wait({answer}, timeout=_LOOK_AT_BUSY)
            if done:
                return answer.result()
            if session.busy and version.name not in session.busy_with:
                self.post(session, undo)
                raise InterpreterDiedError(
                    f"interpreter {session.name}, which was to import {version}, is busy: "
                    f"{session.busy}",
                    interpreter=session.name,
                    started="no",
                )

    async def _see_through(
        self,
        session: InterpreterSession,
        message: pb.DaemonMessage,
        answer: asyncio.Future[pb.InterpreterMessage],
        then: Callable[[], None],
        timeout: float,
    ) -> bool:
        what = message.WhichOneof("kind")
        try:
            done: set[asyncio.Future[pb.InterpreterMessage]] = set()
            while not done:
                importing = bool(session.importing)
                done, _ = await asyncio.wait({answer}, timeout=timeout)
                if not done and not importing:
                    raise session.silence(message, timeout)
            checked_answer(answer.result())
        except OpdispatchError as error:
            if session.alive:
                # It would answer nested calls from an older registry than all other interpreters.
                extra = fields(Event.INTERPRETER_FAILED, interpreter=session.name)
                LOG.error("interpreter %s failed to %s: %s", session.name, what, error, extra=extra)
                reason = f"it failed to {what} a library"
                self._kill_interpreter(session, reason, Cause.SILENT, None)
            return False
        then()
        return True


async def finish(instructed: Instructed) -> None:
    """Wait until instructions have been carried out, or their interpreters stopped.

    Busy interpreters are not waited for: they follow as soon as their kernels let them.
    """
    pending = set(instructed)
    while pending := {task for task in pending if not _INSTRUCTED[task].busy}:
        _, pending = await asyncio.wait(pending, timeout=_LOOK_AT_BUSY)
