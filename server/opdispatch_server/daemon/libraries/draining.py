"""Start and end the draining of interpreters, recorded in the journal."""

from __future__ import annotations

import asyncio
import logging

from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.journaled_changes import LibraryJournal
from opdispatch_server.daemon.libraries.placement import Placement
from opdispatch_server.log_fields import IDENTITY, Event, asked_by, fields
from opdispatch_wire.errors import JournalError

LOG = logging.getLogger("opdispatch.libraries")


class InterpreterDraining:
    """Starts and ends the draining of interpreters. For use in the event loop only.

    ``_lock`` is held while an interpreter's drained state changes, from the check that the
    interpreter exists to the last note: first the journal's, then the placement's. No other lock is
    taken while it is held. Whenever it is free, both notes agree on every interpreter of the
    daemon's, unless the journal could not be written; and neither names an interpreter that a pool
    has given up: the pool waits until the name has been removed.
    """

    def __init__(
        self, sessions: InterpreterSessions, journal: LibraryJournal, placement: Placement
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._placement = placement
        self._lock = asyncio.Lock()

    def restore(self) -> None:
        """Restore the interpreters that were drained before the daemon was restarted."""
        self._placement.restore_draining(self._journal.drained)

    async def start(self, interpreter: str) -> InterpreterSession:
        """Give an interpreter nothing new from now on. Raises InterpreterNotFoundError."""
        async with self._lock:
            session = self._sessions.get_ready(interpreter)
            # A record for an interpreter that is ending would never be removed.
            if not session.dismissed:
                # The name of a joined interpreter is meaningless after its session: not recorded.
                if session.supervised:
                    await self._journal.record_drained(interpreter, drained=True)
                self._placement.start_draining(session)
        draining = f"interpreter {interpreter} is being drained{asked_by()}"
        LOG.info("%s", draining, extra=_about(Event.INTERPRETER_DRAINING, interpreter))
        return session

    async def end(self, interpreter: str) -> InterpreterSession | None:
        """Put an interpreter back in use; return None if it is not connected at the moment.

        Raises InterpreterNotFoundError if it was not drained either.
        """
        async with self._lock:
            await self._journal.record_drained(interpreter, drained=False)
            was_draining = self._placement.end_draining(interpreter)
        session = self._sessions.find(interpreter) if was_draining else None
        if not was_draining:
            session = self._sessions.get_ready(interpreter)
        again = f"interpreter {interpreter} is in use again{asked_by()}"
        LOG.info("%s", again, extra=_about(Event.INTERPRETER_IN_USE, interpreter))
        return session

    async def interpreter_ended(self, name: str) -> None:
        """Record that an interpreter has ended for good: its name is no longer drained."""
        async with self._lock:
            if name in self._journal.drained:
                try:
                    await self._journal.record_drained(name, drained=False)
                except JournalError as error:  # it has ended nonetheless
                    LOG.error(
                        "interpreter %s is no longer drained: %s",
                        name,
                        error,
                        extra=fields(Event.JOURNAL_FAILED, interpreter=name),
                    )
            self._placement.end_draining(name)


def _about(event: Event, interpreter: str) -> dict[str, object]:
    return fields(event, interpreter=interpreter, identity=IDENTITY.get())
