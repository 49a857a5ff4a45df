"""End interpreters, and interpret the end of their processes."""

from __future__ import annotations

from collections.abc import Callable

from opdispatch_server.blame.flight_record import Subject
from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.process_watch import ProcessEnd


class InterpreterEnds:
    """Ends interpreters. For use in the event loop only.

    Once the daemon ``is_stopping``, nothing is ended here: all interpreters have been asked to end,
    and have some time to do so.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        supervisor: Supervisor,
        blame: Blame,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._blame = blame
        self._is_stopping = is_stopping

    def kill(
        self, session: InterpreterSession, reason: str, cause: Cause, named: Subject | None
    ) -> None:
        """End a session, and its process if the daemon started it."""
        if self._is_stopping():
            return
        # A process that a user started may resume, and may then connect again.
        is_silent = cause in (Cause.SILENT, Cause.LOCKED, Cause.KILLED)
        session.end(reason, cause=cause, named=named, come_back=is_silent, hung=True)
        self.judge(session)
        self.stop_process(session)

    def judge(self, session: InterpreterSession) -> Verdict:
        """Return the verdict on the end of a session.

        If it blames another, the supervisor does not count the death against the process.
        """
        verdict = self._blame.judge(session)
        if verdict.shares and self._owns_process(session):
            self._supervisor.excuse(session.name)
        return verdict

    def process_ended(self, name: str, pid: int, how: ProcessEnd) -> None:
        """End the session of a process of the daemon's that has ended."""
        session = self._sessions.find(name)
        if session is not None and session.pid == pid:
            session.end_with_process(how)
            self.judge(session)

    def stop_process(self, session: InterpreterSession) -> None:
        """End the process of a session, if the daemon started it."""
        if not self._is_stopping() and self._owns_process(session):
            # The stacks of its threads show which line holds the lock.
            dumps = session.cause is Cause.LOCKED and not session.alive
            self._supervisor.kill(session.name, dumps=dumps)

    def _owns_process(self, session: InterpreterSession) -> bool:
        return self._supervisor.pid_of(session.name) == session.pid
